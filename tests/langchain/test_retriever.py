"""A user's memory as a LangChain retriever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests

from pgmem_core import Authority, InvalidArgument, InvalidFilter, PgMem
from pgmem_langchain import PgMemRetriever, close_clients
from tests.fix_memory import Face, FakeEmbedder, Maker


async def ask(memory: Face, query: str, call: dict[str, Any] | None = None, **options: Any) -> list[Document]:
    retriever = PgMemRetriever(mem=memory.target, **{"user_id": "u1", **options})
    if memory.face == "sync":
        return await asyncio.to_thread(retriever.invoke, query, **call or {})
    return await retriever.ainvoke(query, **call or {})


def texts(found: list[Document]) -> list[str]:
    return [document.page_content for document in found]


@pytest.fixture
async def filled(memory: Face) -> Face:
    session = await memory.session.create("s", user_id="u1")
    for n, text in enumerate(
        ["the walnut cake is for Ines", "the walnut tree is old", "walnut shells burn well", "a boat in the harbour"]
    ):
        await session.add_turn("user", text, metadata={"rank": n, "topic": "nuts" if n < 3 else "sea"}, name="Ada")
    await memory.form()
    return memory


async def test_a_document_tells_where_it_is_from(filled: Face) -> None:
    [found, *_] = await ask(filled, "who is the walnut cake for?")
    assert found.page_content == "the walnut cake is for Ines"
    [turn, *_] = await (await filled.session.get("s")).turns()
    metadata = dict(found.metadata)
    assert 0 < metadata.pop("score") <= 1
    assert metadata == {
        "id": turn.id, "kind": "turn", "created_at": turn.created_at, "session_id": "s", "seq": 1, "role": "user",
        "name": "Ada", "rank": 0, "topic": "nuts",
    }  # fmt: skip
    assert found.id == turn.id


async def test_k_of_the_retriever_and_of_the_call(filled: Face) -> None:
    assert len(await ask(filled, "walnut", k=2)) == 2
    assert len(await ask(filled, "walnut", {"k": 1}, k=2)) == 1
    assert len(await ask(filled, "walnut", {"k": 3}, k=2)) == 3
    assert await ask(filled, "walnut", k=0) == []
    assert await ask(filled, " \n", k=2) == []


async def test_c10_scores_fall_from_at_most_1_to_at_least_0(make_memory: Maker) -> None:
    north, south = [1.0, 0, 0, 0, 0, 0, 0, 0], [-1.0, 0, 0, 0, 0, 0, 0, 0]
    memory = await make_memory(embedder=FakeEmbedder({"which way": north, "up": north, "down": south}))
    session = await memory.session.create("s", user_id="u1")
    await session.add_turn("user", "up")
    for _ in range(5):  # neighbours of the best, which lend it all they can
        await session.add_turn("user", "which way which way")
    await session.add_turn("user", "down")
    await memory.form()
    scores = [document.metadata["score"] for document in await ask(memory, "which way", k=10)]
    assert len(scores) >= 6
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


FILTERS: list[tuple[dict[str, Any], set[Any]]] = [
    ({"rank": {"gte": 2}}, {2, 10}),
    ({"rank": {"in": []}}, set()),
    ({"rank": {"in": [2, 3]}}, {2}),
    ({"rank": {"nin": [2, 3]}}, {10, None, "missing"}),
    ({"or": [{"rank": 2}, {"flag": True}]}, {2, 10}),
    ({"not": {"rank": 2}}, {10, None, "missing"}),
    ({"rank": None}, {None}),
    ({"rank": {"exists": False}}, {"missing"}),
    ({"flag": "true"}, set()),
    ({"tags": "vip"}, {10}),
    ({"place.city": "Porto"}, {None}),
    ({"topic' = 'x' OR '1'='1": "y"}, set()),
]


async def test_c11_filters(memory: Face) -> None:
    session = await memory.session.create("s", user_id="u1")
    rows: list[dict[str, Any]] = [
        {"rank": 2}, {"rank": 10, "flag": True, "tags": ["vip", "eu"]}, {"rank": None, "place": {"city": "Porto"}}, {},
    ]  # fmt: skip
    for row in rows:
        await session.add_turn("user", f"a boat {len(row)}", metadata=row)
    for filter, ranks in FILTERS:
        found = await ask(memory, "boat", filter=filter)
        assert {document.metadata.get("rank", "missing") for document in found} == ranks, filter
        assert len(await ask(memory, "boat", {"filter": None}, filter=filter)) == 4


async def test_c11_an_unknown_operator_is_refused(filled: Face) -> None:
    with pytest.raises(InvalidFilter, match="rnge"):
        await ask(filled, "walnut", filter={"rank": {"rnge": 3}})


async def test_a7_a_retriever_sees_its_user_alone(filled: Face) -> None:
    await filled.add("the walnut is in o'neil's garden", user_id="o'neil@example.org")
    assert texts(await ask(filled, "walnut", user_id="o'neil@example.org")) == ["the walnut is in o'neil's garden"]
    assert await ask(filled, "walnut", user_id="u2") == []
    assert await ask(filled, "walnut", group_id="g2") == []
    assert "the walnut is in o'neil's garden" not in texts(await ask(filled, "walnut", k=10))
    with pytest.raises(InvalidArgument, match=r"takes no 'user_id'.*the retriever's own"):
        await ask(filled, "walnut", {"user_id": "o'neil@example.org"})


async def test_conditions_of_one_call(filled: Face) -> None:
    other = await filled.session.create("t", user_id="u1", agent_id="bee")
    await other.add_turn("user", "walnut oil", created_at=datetime(2020, 1, 1, tzinfo=UTC))
    old = datetime(2021, 1, 1, tzinfo=UTC)
    assert texts(await ask(filled, "walnut", {"session_id": "t"})) == ["walnut oil"]
    assert texts(await ask(filled, "walnut", {"agent_id": "bee"})) == ["walnut oil"]
    assert texts(await ask(filled, "walnut", {"before": old})) == ["walnut oil"]
    assert "walnut oil" not in texts(await ask(filled, "walnut", {"after": old, "k": 10}))
    with pytest.raises(InvalidArgument, match="no timezone"):
        await ask(filled, "walnut", {"after": datetime(2021, 1, 1)})  # noqa: DTZ001


async def test_the_memory_of_a_session_without_a_user(memory: Face) -> None:
    await (await memory.session.create("s")).add_turn("user", "the walnut tree")
    await (await memory.session.create("t")).add_turn("user", "the walnut cake")
    assert texts(await ask(memory, "walnut", user_id=None, session_id="s")) == ["the walnut tree"]


async def test_a_floor_finds_nothing_for_what_memory_does_not_hold(filled: Face) -> None:
    assert await ask(filled, "quantum chromodynamics", floor="default") == []
    assert texts(await ask(filled, "who is the walnut cake for?", floor="default"))[0] == "the walnut cake is for Ines"
    assert len(await ask(filled, "quantum chromodynamics", {"floor": None}, floor="default")) == 4


# -- facts and time --------------------------------------------------------------------------------------------


async def test_facts_come_with_their_evidence(filled: Face) -> None:
    session = await filled.session.get("s")
    turn = await session.add_turn("user", "I moved to Porto")
    fact = await session.observe("lives_in", "Porto", authority=Authority.user, evidence=[turn])
    await filled.form()
    [found] = await ask(filled, "where do they live? Porto", tiers="semantic")
    assert found.page_content == "lives in: Porto"
    assert found.id == fact.id
    wanted = {
        "kind": "fact", "predicate": "lives_in", "value": "Porto", "authority": "user", "session_id": "s",
        "confidence": 0.9, "valid_to": None,
        "evidence": [{"turn_id": turn.id, "source": None, "quote": None}],
    }  # fmt: skip
    assert {key: found.metadata[key] for key in wanted} == wanted
    kinds = {document.metadata["kind"] for document in await ask(filled, "Porto", tiers=["episodic"])}
    assert kinds == {"turn"}
    kinds = {document.metadata["kind"] for document in await ask(filled, "Porto", tiers=["episodic", "semantic"])}
    assert kinds == {"turn", "fact"}
    assert {d.metadata["kind"] for d in await ask(filled, "Porto", {"kinds": "fact"}, tiers="episodic")} == {"fact"}
    with pytest.raises(InvalidArgument, match="tier 'execution' cannot be searched"):
        await ask(filled, "Porto", tiers="execution")


async def test_what_was_true_then_and_what_was_known_then(memory: Face) -> None:
    session = await memory.session.create("s", user_id="u1")
    now = datetime.now(UTC)
    moved = now - timedelta(days=100)
    await session.observe("lives_in", "Lisbon", authority="user", evidence="crm", valid_from=now - timedelta(days=500))
    await memory.form()
    before = datetime.now(UTC)
    await session.observe("lives_in", "Porto", authority="user", evidence="crm", valid_from=moved)
    await memory.form()
    question = "lives in"
    assert texts(await ask(memory, question, tiers="semantic")) == ["lives in: Porto"]
    assert texts(await ask(memory, question, {"valid_at": moved - timedelta(days=1)}, tiers="semantic")) == [
        "lives in: Lisbon"
    ]  # fmt: skip
    assert texts(await ask(memory, question, {"known_at": before}, tiers="semantic")) == ["lives in: Lisbon"]
    assert await ask(memory, question, {"known_at": now - timedelta(seconds=1)}, tiers="semantic") == []


# -- how it is made --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mem": object()}, "user_id must be a string"),
        ({"user_id": "", "mem": object()}, "user_id"),
        ({"user_id": "u1", "mem": "postgresql://localhost/app"}, "a DSN goes into dsn="),
        ({"user_id": "u1", "mem": object(), "top_k": 3}, "top_k"),
    ],
)
def test_what_it_is_made_of_is_checked(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PgMemRetriever(**arguments)


async def test_b2_awkward_questions_are_questions(filled: Face) -> None:
    for query in ["What's the bus & rail plan?", "!", "':*", "a <-> b", '"', "walnut\x00", "{x} %s", "walnut " * 5000]:
        await ask(filled, query)
    assert texts(await ask(filled, "walnut,cake")) == texts(await ask(filled, "walnut cake"))


async def test_it_is_a_part_of_a_chain_and_shows_no_secrets(filled: Face, dsn: str) -> None:
    retriever = PgMemRetriever(mem=filled.target, user_id="u1", k=2)
    chain = retriever | RunnableLambda(texts)
    found = await chain.abatch(["walnut cake", "boat"])
    assert [one[0] for one in found] == ["the walnut cake is for Ines", "a boat in the harbour"]
    try:
        other = PgMemRetriever(dsn=dsn, user_id="u1")
        assert texts(await other.ainvoke("boat"))[0] == "a boat in the harbour"
        assert dsn not in repr(other)
        assert dsn not in str(other.model_dump())
    finally:
        await asyncio.to_thread(close_clients)


class TestConformance(RetrieversIntegrationTests):
    """LangChain's own tests of retrievers."""

    @pytest.fixture(autouse=True)
    def _filled(self, dsn: str) -> Iterator[None]:
        with PgMem(dsn, embedder=FakeEmbedder()) as mem:
            mem.add([f"walnut number {n}" for n in range(5)], user_id="u1")
            self._mem = mem
            yield

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return PgMemRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"mem": self._mem, "user_id": "u1"}

    @property
    def retriever_query_example(self) -> str:
        return "walnut"
