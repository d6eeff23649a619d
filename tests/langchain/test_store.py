"""PgMemStore: what the conformance suite does not ask of every store."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest

pytest.importorskip("langgraph")

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore, GetOp, PutOp, SearchOp

from pgmem_core import AsyncPgMem, PgMem
from pgmem_core.errors import EmbeddingError, InvalidArgument, InvalidFilter, MissingExtra
from pgmem_langchain import AsyncPgMemStore, PgMemStore, close_clients
from tests.fix_memory import Face, FakeEmbedder, Maker
from tests.fix_postgres import PostgresServer
from tests.wire import counting

NS = ("notes", "u_1")
Call = Callable[..., Awaitable[Any]]


class Shop:
    """A store whose methods are called in the form of the test: `await shop.put(...)` is put or aput."""

    def __init__(self, store: PgMemStore, face: str) -> None:
        self.store, self.face = store, face

    def __getattr__(self, name: str) -> Call:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.face == "sync":
                return await asyncio.to_thread(getattr(self.store, name), *args, **kwargs)
            return await getattr(self.store, f"a{name}")(*args, **kwargs)

        return call


@pytest.fixture
def make_shop(make_memory: Maker, face: str) -> Callable[..., Awaitable[Shop]]:
    """Returns a coroutine that opens one more store on a memory of the test's form."""

    async def make(*, memory: Face | None = None, **options: Any) -> Shop:
        memory = memory or await make_memory()
        return Shop(PgMemStore(memory.target, **options), face)

    return make


@pytest.fixture(scope="module")
def shared(server: PostgresServer) -> Iterator[dict[str, Any]]:
    """A client of each form on one database, for tests that need none of their own: each has its own tenant."""
    name = f"pgmem_items_{os.getpid()}"
    rows(server.admin_dsn, f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
    clients = {"sync": PgMem(server.dsn(name)), "async": AsyncPgMem(server.dsn(name))}
    yield clients
    clients["sync"].close()
    clients["async"]._rt.database.close()
    rows(server.admin_dsn, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def shop(shared: dict[str, Any], face: str) -> Shop:
    return Shop(PgMemStore(shared[face], group_id=uuid.uuid4().hex), face)


@pytest.fixture
async def own(make_shop: Callable[..., Awaitable[Shop]]) -> Shop:
    """One on the database of `dsn`."""
    return await make_shop()


def keys(found: list[Any]) -> list[str]:
    return [item.key for item in found]


def rows(dsn: str, statement: str, *parameters: Any) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def expire(dsn: str, *some: str) -> None:
    rows(dsn, "UPDATE pgmem.items SET expires_at = now() - interval '1 second' WHERE key = ANY (%s)", list(some))


# -- names and sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a-b", "a:b", "a b", "o'neil@example", "{x}", "用户1", "x" * 300, "7"])
async def test_any_name_of_key_and_label(shop: Shop, name: str) -> None:
    """A7: add, get, search, delete."""
    await shop.put((*NS, name), name, {"text": "jazz"})
    assert (await shop.get((*NS, name), name)).value == {"text": "jazz"}
    assert keys(await shop.search((*NS, name), query="jazz")) == [name]
    await shop.delete((*NS, name), name)
    assert await shop.get((*NS, name), name) is None


async def test_a_number_as_key_is_its_text(shop: Shop) -> None:
    """A7: 7 and "7" are one key, as in LangGraph's own stores; as a label a number is refused."""
    await shop.put(NS, 7, {"v": 1})
    assert (await shop.get(NS, "7")).value == {"v": 1}
    with pytest.raises(ValueError, match="must be strings"):
        await shop.put(("notes", 7), "k", {"v": 1})


async def test_names_that_fit_no_index_are_refused_with_their_size(shop: Shop) -> None:
    """B7: a label, a key, and a text of 9 kB of hex."""
    long = "".join(f"{uuid.uuid4().hex}" for _ in range(280))
    with pytest.raises(InvalidArgument, match=r"namespace takes 8,9\d\d bytes .* at most 1,024"):
        await shop.put(("notes", long), "k", {"v": 1})
    with pytest.raises(InvalidArgument, match=r"key takes 8,960 bytes, at most 1,024"):
        await shop.put(NS, long, {"v": 1})
    await shop.put(NS, "k", {"text": long})
    assert (await shop.get(NS, "k")).value == {"text": long}
    await shop.put(("a" * 500, "b" * 500), "k" * 1024, {"v": 1})
    assert await shop.get(("a" * 500, "b" * 500), "k" * 1024) is not None


# -- values ----------------------------------------------------------------------------------------------------------


async def test_nul_in_every_place(shop: Shop) -> None:
    """B2, and a filter on it."""
    value = {"text": "a\x00b", "deep": {"x": ["\x00"]}, "k\x00": "v", "literal": "\\u0000"}
    await shop.put(NS, "key\x00", value)
    assert (await shop.get(NS, "key\x00")).value == value
    assert keys(await shop.search(NS, filter={"text": "a\x00b"})) == ["key\x00"]
    assert keys(await shop.search(NS, query="a\x00b")) == ["key\x00"]
    assert await shop.search(NS, filter={"text": "ab"}) == []


async def test_times_and_numbers_have_a_documented_form(shop: Shop) -> None:
    """B14: stored, returned as documented, and found by a filter in their own type."""
    at, id_ = datetime(2024, 2, 29, 8, tzinfo=UTC), uuid.uuid4()
    await shop.put(NS, "k", {"at": at, "id": id_, "price": Decimal("1.10"), "tags": {"a", "b"}})
    await shop.put(NS, "later", {"at": at + timedelta(days=300), "price": Decimal(10)})
    assert (await shop.get(NS, "k")).value == {
        "at": "2024-02-29T08:00:00.000000Z", "id": str(id_), "price": 1.1, "tags": ["a", "b"],
    }  # fmt: skip
    assert keys(await shop.search(NS, filter={"at": {"$gt": at + timedelta(hours=1)}})) == ["later"]
    assert keys(await shop.search(NS, filter={"at": at.astimezone().replace(fold=0)})) == ["k"]
    assert keys(await shop.search(NS, filter={"id": id_})) == ["k"]
    assert keys(await shop.search(NS, filter={"price": {"$lt": Decimal(2)}})) == ["k"]


@pytest.mark.parametrize("bad", [b"\x00", object(), datetime(2024, 2, 29)])  # noqa: DTZ001
async def test_what_cannot_be_kept_is_refused_by_name_before_any_write(shop: Shop, bad: object) -> None:
    """B14: of a batch nothing is written."""
    with pytest.raises(InvalidArgument, match=r'value\["deep"\]\["bad"\]'):
        await shop.batch([PutOp(NS, "good", {"v": 1}), PutOp(NS, "k", {"deep": {"bad": bad}})])
    assert await shop.search(NS) == []
    await shop.batch([PutOp(NS, "good", {"v": 1})])
    assert keys(await shop.search(NS)) == ["good"]


# -- filters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ({"rank": {"$gte": 3}}, {"ten"}),
        ({"rank": {"gte": 3}}, {"ten"}),
        ({"rank": {"$in": [2, 3]}}, {"two"}),
        ({"rank": {"$nin": [2]}}, {"ten", "null", "none"}),
        ({"$or": [{"rank": 2}, {"tags": "x"}]}, {"two", "ten"}),
        ({"not": {"rank": 2}}, {"ten", "null", "none"}),
        ({"rank": None}, {"null"}),
        ({"rank": {"$exists": False}}, {"none"}),
        ({"flag": True}, {"two"}),
        ({"flag": "true"}, {"ten"}),
        ({"deep.city": "Porto"}, {"none"}),
        ({"rank": {"$gt": 1, "$lt": 10}}, {"two"}),
    ],
)
async def test_filters(shop: Shop, condition: dict[str, Any], found: set[str]) -> None:
    """C11: 10 > 3, lists, booleans apart from their names, null apart from missing, nested keys."""
    await shop.batch([
        PutOp(NS, "two", {"rank": 2, "flag": True}), PutOp(NS, "ten", {"rank": 10, "tags": ["x"], "flag": "true"}),
        PutOp(NS, "null", {"rank": None, "text": "some"}), PutOp(NS, "none", {"deep": {"city": "Porto"}}),
    ])  # fmt: skip
    assert set(keys(await shop.search(NS, filter=condition))) == found
    assert set(keys(await shop.search(NS, query="Porto", filter=condition))) == found


@pytest.mark.parametrize("condition", [{"rank": {"$near": 1}}, {"$where": 1}, {"rank": {}}, {"rank": [1, 2]}])
async def test_an_unknown_filter_is_refused(shop: Shop, condition: dict[str, Any]) -> None:
    """C11."""
    with pytest.raises(InvalidFilter):
        await shop.search(NS, filter=condition)


@pytest.mark.parametrize("page", [{"limit": -1}, {"offset": -1}, {"limit": 2.5}, {"limit": True}])
async def test_a_page_is_whole_numbers(shop: Shop, page: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"limit|offset"):
        await shop.search(NS, **page)
    assert await shop.search(NS, limit=0) == []
    assert await shop.search(NS, limit=sys.maxsize, offset=sys.maxsize) == []


# -- configuration ---------------------------------------------------------------------------------------------------


async def test_fields_and_the_fields_of_one_put(make_shop: Callable[..., Awaitable[Shop]]) -> None:
    """C14: what is not among the fields is not found by its words, nor by its meaning."""
    shop = await make_shop(index={"fields": ["body", "tags[*]"]})
    await shop.put(NS, "body", {"body": "a zebra crossing", "title": "jazz"})
    await shop.put(NS, "title", {"body": "quiet", "title": "zebra"}, index=["title"])
    await shop.put(NS, "off", {"body": "zebra"}, index=False)
    assert keys(await shop.search(NS, query="zebra")) == ["title", "body"]
    assert keys(await shop.search(NS, query="jazz")) != ["body"]
    assert set(keys(await shop.search(NS))) == {"body", "title", "off"}


async def test_index_false_of_the_store_indexes_nothing(make_shop: Callable[..., Awaitable[Shop]]) -> None:
    """C14: a query lists, as in LangGraph's stores without an index."""
    shop = await make_shop(index=False)
    await shop.put(NS, "k1", {"text": "zebra"})
    await shop.put(NS, "k2", {"text": "jazz"})
    assert [(item.key, item.score) for item in await shop.search(NS, query="zebra")] == [("k2", None), ("k1", None)]


@pytest.mark.parametrize(("metric", "score"), [("cosine", 0.6), ("inner_product", 1.8), ("l2", -(6.4**0.5))])
async def test_dense_scores_are_the_metric(
    make_shop: Callable[..., Awaitable[Shop]], metric: str, score: float
) -> None:
    """C14: distance_type, dims."""
    embedder = FakeEmbedder({"asked": [1.0, 0.0], "stored": [1.8, 2.4], "far": [-9.0, 0.0]}, dimensions=2)
    index = {"embed": embedder, "dims": 2, "fields": ["text"], "distance_type": metric}
    shop = await make_shop(index=index, ranking="dense")
    await shop.put(NS, "k", {"text": "stored"})
    await shop.put(NS, "far", {"text": "far"})
    found = await shop.search(NS, query="asked")
    assert keys(found) == ["k", "far"]
    assert found[0].score == pytest.approx(score)


async def test_hybrid_finds_a_rare_word_that_no_vector_shows(make_shop: Callable[..., Awaitable[Shop]]) -> None:
    near = {f"filler {n}": [1.0, n / 1000, 0.0] for n in range(40)}
    embedder = FakeEmbedder({"ticket QX77": [1.0, 0.0, 0.0], "about QX77": [-1.0, 0.0, 0.1], **near}, dimensions=3)
    options = {"index": {"embed": embedder, "dims": 3, "fields": ["text"]}}
    hybrid, dense = await make_shop(**options), await make_shop(**options, ranking="dense")
    await hybrid.batch([PutOp(NS, text, {"text": text}) for text in [*near, "about QX77"]])
    found = await hybrid.search(NS, query="ticket QX77", limit=40)
    assert found[0].key == "about QX77"
    scores = [item.score for item in found]
    assert len(scores) == 40
    assert scores == sorted(scores, reverse=True)
    assert 0 <= scores[-1] <= scores[0] <= 1
    assert "about QX77" not in keys(await dense.search(NS, query="ticket QX77", limit=40))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"index": {"field": ["text"]}}, "unknown key field"),
        ({"index": {"embed": FakeEmbedder(), "distance_type": "hamming"}}, "distance_type"),
        ({"index": {"embed": FakeEmbedder(), "ann_index_config": {"kin": "hnsw"}}}, "unknown key kin"),
        ({"index": {"embed": FakeEmbedder(), "ann_index_config": {"vector_type": "bit"}}}, "vector_type"),
        ({"index": {"dims": 8}}, "goes with"),
        ({"index": {"fields": 7}}, "list of paths"),
        ({"ttl": {"default": 5}}, "unknown key default"),
        ({"ttl": {"omit_expired": False}}, "never returned"),
        ({"ranking": "sparse"}, "'hybrid' or 'dense'"),
        ({"group_id": ""}, "group_id"),
        ({"group_id": 7}, "group_id"),
    ],
)
def test_a_misspelt_option_is_refused(options: dict[str, Any], complaint: str) -> None:
    """C14."""
    with pytest.raises(InvalidArgument, match=complaint):
        PgMemStore(PgMem("postgresql://nowhere/app"), **options)


def test_either_a_memory_or_a_dsn(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGMEM_DSN", dsn)
    with pytest.raises(InvalidArgument, match="both given"):
        PgMemStore(PgMem(dsn), dsn=dsn)
    with pytest.raises(InvalidArgument, match="unknown key size"):
        PgMemStore.from_conn_string(dsn, pool_config={"size": 3})
    with PgMemStore(dsn=dsn) as store:
        store.put(NS, "k", {"v": 1})
    assert PgMemStore().get(NS, "k") is not None
    close_clients()


async def test_vectors_of_another_size_are_refused(make_shop: Callable[..., Awaitable[Shop]]) -> None:
    shop = await make_shop(index={"embed": FakeEmbedder(dimensions=8), "dims": 5})
    with pytest.raises(Exception, match="8 dimensions, wanted 5"):
        await shop.put(NS, "k", {"text": "x"})


async def test_a_function_is_an_embedder_of_its_own_name(make_shop: Callable[..., Awaitable[Shop]], dsn: str) -> None:
    def flat(texts: list[str]) -> list[list[float]]:
        return [[1.0, float(len(text))] for text in texts]

    shop = await make_shop(index={"embed": flat, "dims": 2})
    await shop.put(NS, "k", {"text": "x"})
    assert keys(await shop.search(NS, query="x")) == ["k"]
    assert any("flat" in name for (name,) in rows(dsn, "SELECT name FROM pgmem.embedding_models"))


async def test_an_embedder_that_fails_is_said(
    make_shop: Callable[..., Awaitable[Shop]], caplog: pytest.LogCaptureFixture
) -> None:
    embedder = FakeEmbedder(fail=lambda text: "broken" in text)
    options: dict[str, Any] = {"index": {"embed": embedder, "fields": ["text"]}}
    hybrid, dense = await make_shop(**options), await make_shop(**options, ranking="dense")
    await hybrid.put(NS, "k", {"text": "words"})
    with pytest.raises(EmbeddingError):
        await hybrid.put(NS, "k2", {"text": "broken"})
    assert keys(await hybrid.search(NS)) == ["k"]
    with pytest.raises(EmbeddingError):
        await dense.search(NS, query="broken words")
    with caplog.at_level(logging.WARNING):
        assert keys(await hybrid.search(NS, query="broken words")) == ["k"]
    assert "by words only" in caplog.text


async def test_without_any_embedder_items_are_found_by_words(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: Any) -> Any:
        raise MissingExtra("the bundled embedder is not installed")

    await shop.setup()
    monkeypatch.setattr(type(shop.store._rt), "embedder", property(missing))
    with caplog.at_level(logging.WARNING):
        await shop.put(NS, "k", {"text": "zebra"})
        await shop.put(NS, "k2", {"text": "jazz"})
        assert keys(await shop.search(NS, query="zebra")) == ["k"]
    assert caplog.text.count("by words only") == 1


# -- what expires ----------------------------------------------------------------------------------------------------


async def test_what_expired_is_gone_and_stays_gone(make_shop: Callable[..., Awaitable[Shop]], dsn: str) -> None:
    """C15: by no read, though nothing was swept; and no read revives it."""
    shop = await make_shop(ttl={"default_ttl": 60})
    for key in ("dead", "live", "live2"):
        await shop.put((*NS, key), key, {"text": "zebra"})
    expire(dsn, "dead")
    before = rows(dsn, "SELECT expires_at FROM pgmem.items WHERE key = 'dead'")
    for _ in range(2):
        assert await shop.get((*NS, "dead"), "dead", refresh_ttl=True) is None
        assert set(keys(await shop.search(NS, refresh_ttl=True))) == {"live", "live2"}
        assert set(keys(await shop.search(NS, query="zebra", refresh_ttl=True))) == {"live", "live2"}
        assert len(await shop.search(NS, query="zebra", limit=2)) == 2
        assert await shop.list_namespaces() == [(*NS, "live"), (*NS, "live2")]
    assert rows(dsn, "SELECT expires_at FROM pgmem.items WHERE key = 'dead'") == before


async def test_a_put_on_what_expired_is_a_new_item(own: Shop, dsn: str) -> None:
    """C15: it is not the old one revived."""
    await own.put(NS, "k", {"v": 1}, ttl=60)
    first = await own.get(NS, "k")
    expire(dsn, "k")
    await own.put(NS, "k", {"v": 2})
    second = await own.get(NS, "k")
    assert second.created_at > first.created_at
    assert rows(dsn, "SELECT expires_at = 'infinity', ttl_minutes FROM pgmem.items") == [(True, None)]


@pytest.mark.parametrize("refresh", [True, False])
async def test_a_read_refreshes_by_the_configuration(
    make_shop: Callable[..., Awaitable[Shop]], dsn: str, refresh: bool
) -> None:
    """C14: refresh_on_read; and C15's counterpart: what lives is extended, by get and by search."""
    shop = await make_shop(ttl={"default_ttl": 60, "refresh_on_read": refresh})
    for read in ("get", "search", "query"):
        await shop.put(NS, "k", {"text": "zebra"})
        rows(dsn, "UPDATE pgmem.items SET expires_at = now() + interval '1 minute'")
        if read == "get":
            await shop.get(NS, "k")
        else:
            await shop.search(NS, query="zebra" if read == "query" else None)
        [(minutes,)] = rows(dsn, "SELECT extract(epoch FROM expires_at - now()) / 60 FROM pgmem.items")
        assert (minutes > 50) is refresh, read


async def test_a_time_to_live_in_parts_of_a_minute(own: Shop, dsn: str) -> None:
    await own.put(NS, "k", {"v": 1}, ttl=0.5)
    [(seconds,)] = rows(dsn, "SELECT extract(epoch FROM expires_at - updated_at) FROM pgmem.items")
    assert seconds == 30


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e12, "5"])
async def test_a_time_to_live_that_is_none_is_refused(shop: Shop, ttl: Any) -> None:
    with pytest.raises(InvalidArgument, match="ttl"):
        await shop.put(NS, "k", {"v": 1}, ttl=ttl)
    assert await shop.get(NS, "k") is None


async def test_sweeping_takes_all_that_belongs_to_an_item(own: Shop, dsn: str) -> None:
    await own.put(NS, "dead", {"text": "zebra"}, ttl=1)
    await own.put(NS, "live", {"text": "jazz"}, ttl=1)
    await own.put(("other",), "ever", {"text": "whale"})
    expire(dsn, "dead")
    assert await own.sweep_ttl() == 1
    assert await own.sweep_ttl() == 0
    left = rows(dsn, "SELECT id FROM pgmem.items ORDER BY key")
    assert len(left) == 2
    for table in ("item_postings", "item_vectors"):
        assert rows(dsn, f"SELECT DISTINCT item_id FROM pgmem.{table} ORDER BY 1") == sorted(left)


def test_the_sweeper(dsn: str) -> None:
    """C14: sweep_interval_minutes; and that it can be stopped."""
    with PgMemStore.from_conn_string(dsn, ttl={"sweep_interval_minutes": 0.0005}) as store:
        store.put(NS, "dead", {"v": 1}, ttl=1)
        store.put(NS, "live", {"v": 1}, ttl=1)
        expire(dsn, "dead")
        future = store.start_ttl_sweeper()
        deadline = time.monotonic() + 10
        while rows(dsn, "SELECT count(*) FROM pgmem.items") != [(1,)] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert keys(store.search(NS)) == ["live"]
        assert rows(dsn, "SELECT count(*) FROM pgmem.items") == [(1,)]
        assert store.stop_ttl_sweeper(timeout=10)
        assert future.result(timeout=10) is None
    with PgMemStore.from_conn_string(dsn) as store:
        assert store.start_ttl_sweeper().done()


async def test_a_cancelled_sweeper_stops(dsn: str) -> None:
    async with PgMemStore.from_conn_string(dsn, ttl={"sweep_interval_minutes": 0.0005}) as store:
        task = await store.start_ttl_sweeper()
        task.cancel()
        assert await store.stop_ttl_sweeper(timeout=10)


# -- whose items -----------------------------------------------------------------------------------------------------


async def test_nothing_crosses_a_tenant(make_shop: Callable[..., Awaitable[Shop]], memory: Face) -> None:
    acme, other = await make_shop(memory=memory, group_id="acme"), await make_shop(memory=memory, group_id="other")
    await acme.put(NS, "k", {"text": "zebra", "of": "acme"})
    await other.put(NS, "k", {"text": "zebra", "of": "other"})
    await other.put(("others",), "k2", {"text": "zebra"}, ttl=1)
    for shop, name in ((acme, "acme"), (other, "other")):
        assert (await shop.get(NS, "k")).value["of"] == name
        assert [item.value.get("of") for item in await shop.search(NS, query="zebra")] == [name]
    assert await acme.list_namespaces() == [NS]
    assert len(await acme.search(())) == 1
    await acme.delete(NS, "k")
    assert (await other.get(NS, "k")).value["of"] == "other"


async def test_items_are_no_memories(memory: Face, make_shop: Callable[..., Awaitable[Shop]]) -> None:
    """Nothing of them is recalled, shown or formed into facts; what was said is."""
    shop = await make_shop(memory=memory, group_id="default")
    session = await memory.session.create(user_id="u_1")
    await session.add_turn("user", "I once rode a zebra")
    await shop.put(("u_1",), "k", {"text": "zebra zebra, my plan is annual"})
    await memory.form()
    found = await memory.search("zebra", user_id="u_1")
    assert [one.content for one in found] == ["I once rode a zebra"]
    other = await memory.session.create(user_id="u_1")
    context = await other.compile_context("What about the zebra?", store_query=False)
    assert "rode a zebra" in str(context.messages)
    assert "my plan is annual" not in str(context.messages)
    assert len(await memory.get_all(user_id="u_1")) == 1
    assert await memory.facts(user_id="u_1") == []


async def test_the_write_policy_is_asked(
    make_memory: Maker, make_shop: Callable[..., Awaitable[Shop]], dsn: str
) -> None:
    memory = await make_memory(redact="secrets")
    shop = await make_shop(memory=memory)
    secret = "sk-proj-" + "A1b2C3d4E5f6G7h8" * 3
    await shop.put(NS, "k", {"text": f"the key is {secret}", "n": 1})
    assert secret not in str((await shop.get(NS, "k")).value)
    assert "the key is" in (await shop.get(NS, "k")).value["text"]
    assert secret not in str(rows(dsn, "SELECT content FROM pgmem.item_vectors"))


async def test_a_refused_value_is_not_written(
    make_memory: Maker, make_shop: Callable[..., Awaitable[Shop]], dsn: str
) -> None:
    from pgmem_core.errors import WriteRefused

    def policy(text: str, entry: str) -> str:
        if "forbidden" in text:
            raise WriteRefused(f"{entry} holds what it must not")
        return text

    shop = await make_shop(memory=await make_memory(policy=policy))
    with pytest.raises(WriteRefused, match="store"):
        await shop.batch([PutOp(NS, "good", {"v": 1}), PutOp(NS, "bad", {"deep": ["forbidden"]})])
    assert await shop.search(NS) == []
    await shop.put(NS, "good", {"v": 1})
    assert keys(await shop.search(NS)) == ["good"]
    assert rows(dsn, "SELECT entry FROM pgmem.refusals") == [("store",)]


# -- how it is stored ------------------------------------------------------------------------------------------------


async def test_the_same_text_again_is_not_indexed_again(own: Shop, dsn: str) -> None:
    own.store._fields = [["text"]]
    index = """SELECT xmin::text, item_id FROM pgmem.item_vectors
               UNION ALL SELECT xmin::text, item_id FROM pgmem.item_postings"""
    await own.put(NS, "k", {"text": "a zebra", "seen": 1})
    before = rows(dsn, index)
    await own.put(NS, "k", {"text": "a zebra", "seen": 2})
    assert rows(dsn, index) == before
    assert (await own.search(NS, query="zebra"))[0].value["seen"] == 2
    await own.put(NS, "k", {"text": "a horse", "seen": 2})
    assert not set(rows(dsn, index)) & set(before)


async def test_items_move_to_another_embedder_with_the_memory(
    make_memory: Maker, make_shop: Callable[..., Awaitable[Shop]], dsn: str
) -> None:
    memory = await make_memory(embedder=FakeEmbedder(model="old", dimensions=8))
    shop = await make_shop(memory=memory, index={"fields": ["text", "tags[*]"]}, ranking="dense")
    with_own = await make_shop(memory=memory, group_id="own", index={"embed": FakeEmbedder(model="own", dimensions=4)})
    for n in range(7):
        await shop.put(NS, f"k{n}", {"text": f"note {n}", "tags": [f"tag {n}"]})
    await with_own.put(NS, "k", {"text": "apart"})
    report = await memory.reembed(to=FakeEmbedder(model="new", dimensions=12), batch=3)
    assert report.moved == 14
    used = """SELECT m.name, count(*) FROM pgmem.item_vectors v JOIN pgmem.embedding_models m ON m.id = v.model
              GROUP BY 1 ORDER BY 1"""
    assert rows(dsn, used) == [("new", 14), ("own", 1)]
    assert keys(await shop.search(NS, query="tag 5"))[0] == "k5"
    assert (await shop.search(NS, query="note 3"))[0].score == pytest.approx(1)
    assert keys(await with_own.search(NS, query="text: apart")) == ["k"]


async def test_one_round_trip_an_operation(server: PostgresServer, dsn: str, face: str) -> None:
    database = dsn.partition("@/")[2].partition("?")[0]
    trips: dict[str, Counter[int]] = {name: Counter() for name in ("put", "get", "search", "list", "batch")}
    with counting("127.0.0.1", server.port) as wire:
        mem = (PgMem if face == "sync" else AsyncPgMem)(
            f"postgresql://postgres@127.0.0.1:{wire.port}/{database}?sslmode=disable"
        )
        shop = Shop(PgMemStore(mem), face)
        for n in range(20):
            await shop.put(NS, f"warm{n}", {"text": f"zebra {n}"})
            await shop.search(NS, query="zebra")
            await shop.get(NS, "warm1")
            await shop.search(NS)
        for n in range(10):
            for name, call in {
                "put": shop.put(NS, f"k{n}", {"text": f"zebra {n}"}),
                "get": shop.get(NS, f"k{n}"),
                "search": shop.search(NS, query=f"zebra {n}"),
                "list": shop.search(NS),
                "batch": shop.batch([PutOp(NS, f"b{n}{m}", {"text": "jazz"}) for m in range(3)]),
            }.items():
                wire.take()
                await call
                trips[name][wire.take()] += 1
        await asyncio.to_thread(mem.close) if face == "sync" else await mem.close()
    assert all(count == {1: 10} for count in trips.values()), trips


def test_a_large_namespace_uses_the_graph_index_and_a_small_one_never_comes_short(dsn: str) -> None:
    embedder = FakeEmbedder(dimensions=16)
    options: dict[str, Any] = {"index": {"embed": embedder, "dims": 16, "fields": ["text"]}, "ranking": "dense"}
    with PgMem(dsn) as mem:
        store = PgMemStore(mem, **options)
        store.batch([PutOp(("small", str(n % 3)), f"k{n}", {"text": f"n {n}"}) for n in range(30)])
        model = store._shelf.model
        assert model is not None
    # 6,000 by SQL, and the index after them, in a second; by put it would take ten.
    rows(dsn, f"DROP INDEX pgmem.item_vectors_hnsw_{model.id}")
    rows(
        dsn,
        """INSERT INTO pgmem.items (id, created_at, updated_at, tenant_id, namespace, key, value)
                 SELECT gen_random_uuid(), now(), now(), 'default', '.big.', 'k' || n,
                        jsonb_build_object('n', n, 'text', 'n ' || n) FROM generate_series(0, 5999) AS n""",
    )
    vectors = {
        f"k{n}": str(vector.tolist()) for n, vector in enumerate(embedder.embed([f"n {n}" for n in range(6000)]))
    }
    rows(
        dsn,
        """INSERT INTO pgmem.item_vectors (item_id, place, tenant_id, namespace, model, embedding, content)
                 SELECT i.id, 1, 'default', '.big.', %s, u.vector::vector, i.value->>'text'
                 FROM unnest(%s::text[], %s::text[]) AS u (key, vector)
                 JOIN pgmem.items i ON i.namespace = '.big.' AND i.key = u.key""",
        model.id,
        list(vectors),
        list(vectors.values()),
    )
    rows(dsn, "ANALYZE")
    queries = [f"n {n}" for n in range(0, 6000, 300)]
    with PgMem(dsn) as mem:
        store = PgMemStore(mem, **options)
        hits = [store.search(("big",), query=query, limit=10)[0].value["text"] == query for query in queries]
        assert sum(hits) >= len(hits) - 1
        assert len(store.search(("small", "1"), query="n 5", limit=10)) == 10
        assert len(store.search(("small",), query="n 5", limit=100)) == 30
        assert keys(store.search(("big",), query="n 7", filter={"n": {"$in": [5, 7, 5999]}}))[0] == "k7"
        assert len(store.search(("big",), query="n 7", filter={"n": {"$gte": 5990}}, limit=20)) == 10
        assert len(store.search(("big",), query="n 7", filter={"n": {"$gte": 500}}, limit=20)) == 20
    # The backends have ended and with that reported.
    deadline = time.monotonic() + 10
    used = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname LIKE 'item_vectors_hnsw_%%'"
    while (counted := rows(dsn, used)) != [(20,)] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert counted == [(20,)]


# -- both worlds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PgMem, AsyncPgMem])
async def test_either_client_serves_both_forms(dsn: str, kind: Any) -> None:
    mem = kind(dsn)
    store = PgMemStore(mem)
    store.put(NS, "sync", {"text": "zebra"})
    await store.aput(NS, "async", {"text": "zebra"})
    assert set(keys(store.search(NS, query="zebra"))) == {"sync", "async"}
    assert set(keys(await store.asearch(NS, query="zebra"))) == {"sync", "async"}
    store.close()
    if kind is PgMem:
        await mem._rt.database.aclose()
        mem.close()
    else:
        await mem.close()


async def test_async_with_gives_what_AsyncPostgresStore_is_used_like(dsn: str) -> None:
    async with PgMemStore.from_conn_string(dsn, pool_config={"min_size": 1, "max_size": 2}, pipeline=True) as store:
        assert isinstance(store, AsyncPgMemStore)
        await store.setup()
        await store.aput(NS, "k", {"v": 1}, ttl=1)
        expire(dsn, "k")
        assert await store.sweep_ttl() == 1
        assert store._rt.settings.pool_size == 2
        with pytest.raises(TypeError, match="async with"):
            store.__enter__()


async def test_more_at_once_than_the_pool_has_connections_for(dsn: str) -> None:
    async with AsyncPgMem(dsn, pool_size=1, max_overflow=0, pool_timeout_seconds=0.2) as mem:
        store = PgMemStore(mem)
        await asyncio.gather(*(store.aput(NS, f"k{n}", {"v": n}) for n in range(300)))
        assert len(await store.asearch(NS, limit=1000)) == 300


async def test_a_graph_reaches_the_store_in_nodes_of_both_kinds(dsn: str) -> None:
    def remember(state: dict[str, Any], *, store: BaseStore) -> dict[str, Any]:
        store.put(("users", "u_1"), "food", {"text": "Ada is vegetarian"})
        return {"seen": []}

    async def recall(state: dict[str, Any], *, store: BaseStore) -> dict[str, Any]:
        return {"seen": [item.value["text"] for item in await store.asearch(("users", "u_1"), query="vegetarian")]}

    builder: Any = StateGraph(dict)
    builder.add_node("remember", remember)
    builder.add_node("recall", recall)
    builder.add_edge(START, "remember")
    builder.add_edge("remember", "recall")
    builder.add_edge("recall", END)
    async with PgMemStore.from_conn_string(dsn) as store:
        result = await builder.compile(store=store).ainvoke({"seen": []})
    assert result["seen"] == ["Ada is vegetarian"]


async def test_the_order_of_a_mixed_batch(shop: Shop) -> None:
    await shop.put(NS, "k", {"text": "zebra"})
    found = await shop.batch(
        [PutOp(NS, "k", None), SearchOp(NS, query="zebra"), GetOp(NS, "k"), PutOp(NS, "n", {"v": 1})]
    )
    assert [found[0], keys(found[1]), found[2].key, found[3]] == [None, ["k"], "k", None]
    assert keys(await shop.search(NS)) == ["n"]


# -- LangMem ---------------------------------------------------------------------------------------------------------


def langmem() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports are of names that langgraph has deprecated
        return pytest.importorskip("langmem")


async def test_langmem_tools(dsn: str) -> None:
    """Create, update and delete by the tools, and search after a restart."""
    lib = langmem()
    space = ("memories", "u_1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        async with PgMemStore.from_conn_string(dsn) as store:
            manage = lib.create_manage_memory_tool(space, store=store)
            for content in ("Ada is vegetarian", "Ada lives in Lisbon", "Ada has a dog"):
                await manage.ainvoke({"action": "create", "content": content})
            ids = {item.value["content"]: item.key for item in await store.asearch(space)}
            await manage.ainvoke(
                {"action": "update", "id": ids["Ada lives in Lisbon"], "content": "Ada lives in Porto"}
            )
            await asyncio.to_thread(manage.invoke, {"action": "delete", "id": ids["Ada has a dog"]})
        with PgMemStore.from_conn_string(dsn) as store:
            search = lib.create_search_memory_tool(space, store=store)
            text = await asyncio.to_thread(search.invoke, {"query": "Where does Ada live?"})
    assert "Porto" in str(text)
    assert "vegetarian" in str(text)
    assert "Lisbon" not in str(text)
    assert "dog" not in str(text)


class ScriptedModel(BaseChatModel):
    """Says what it was told to say, one tool call after the other; what it was bound to does not matter."""

    calls: list[dict[str, Any]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self.bind(tools=tools)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        call = self.calls.pop(0) if self.calls else None
        asked = [] if call is None else [{**call, "id": f"call_{uuid.uuid4().hex}"}]
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=asked))])


async def test_langmem_manager(dsn: str) -> None:
    """The memory manager creates, updates and deletes; what it wrote is found after a restart."""
    lib = langmem()
    space = ("memories", "u_1")
    config = {"configurable": {"langgraph_user_id": "u_1"}}

    async def say(store: Any, text: str, *calls: dict[str, Any]) -> None:
        manager = lib.create_memory_store_manager(
            ScriptedModel(calls=list(calls)), namespace=("memories", "{langgraph_user_id}"), store=store,
            enable_deletes=True,
        )  # fmt: skip
        await manager.ainvoke({"messages": [{"role": "user", "content": text}]}, config=config)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        async with PgMemStore.from_conn_string(dsn) as store:
            await say(store, "I live in Lisbon", {"name": "Memory", "args": {"content": "lives in Lisbon"}})
            await say(store, "I have a dog", {"name": "Memory", "args": {"content": "has a dog"}})
            # The manager shows its model a name of its own for each item.
            found = {
                item.value["content"]["content"]: uuid.uuid5(uuid.NAMESPACE_DNS, str((*space, item.key))).hex
                for item in await store.asearch(space)
            }
            assert set(found) == {"lives in Lisbon", "has a dog"}
            patch = {"op": "replace", "path": "/content", "value": "lives in Porto"}
            await say(store, "I moved to Porto, from Lisbon", {"name": "PatchDoc", "args": {
                "json_doc_id": found["lives in Lisbon"], "planned_edits": "the town", "patches": [patch],
            }})  # fmt: skip
            await say(store, "my dog is gone", {"name": "RemoveDoc", "args": {"json_doc_id": found["has a dog"]}})
    with PgMemStore.from_conn_string(dsn) as again:
        items = again.search(space, query="Where does the user live?")
    assert [item.value["content"]["content"] for item in items] == ["lives in Porto"]
