"""Text that Postgres, a tokenizer or JSON dislikes: B2 to B9, B14."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgmem_core import InvalidArgument, PgMem, Turn
from pgmem_core.tokens import count_tokens
from tests.fix_memory import Face, FakeEmbedder

NUL = "a\x00b"
ESCAPED = r"a\u0000b"  # six written-out characters, not a NUL
SPECIAL = "why does <|endoftext|> or <|im_start|> appear?"
LONE = "half \ud83d of a pair"


async def everywhere(memory: Face, text: str) -> Turn:
    """Store text in every place a turn has; return the turn as read back."""
    session = await memory.session.open("s", user_id="u1", metadata={text: text})
    call = {"id": text, "name": text, "args": {text: [text]}}
    await session.add_turn("user", f"tea {text}", name=text, metadata={text: text, "deep": [{text: [text]}]})
    await session.add_turn("assistant", "", tool_calls=[call], extra={text: text})
    await session.add_turn("tool", f"result {text}", tool_call_id=text)
    await session.add_turn("assistant", [{"type": "text", "text": f"tea {text}", text: text}, {"type": text}])
    await memory.form()
    turns: list[Turn] = await session.turns()
    user, assistant, tool, blocks = turns
    assert user.content == user.text == f"tea {text}"
    assert user.name == text
    assert user.metadata == {text: text, "deep": [{text: [text]}]}
    assert assistant.tool_calls == [call]
    assert assistant.extra == {text: text}
    assert tool.content == f"result {text}"
    assert tool.tool_call_id == text
    assert blocks.content == [{"type": "text", "text": f"tea {text}", text: text}, {"type": text}]
    assert (await session.info()).metadata == {text: text}
    return user


# -- B2, B3: what Postgres cannot hold ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [NUL, ESCAPED, LONE, "\x00", "\U0010fffd0000", "\U0010fffd", "\\", '"', "\ufffe\uffff", "\r\n\t\x7f"],
    ids=ascii,
)
async def test_b2_b3_every_place_gives_back_what_it_was_given_and_reads_go_on(memory: Face, text: str) -> None:
    await memory.add("I like green tea", user_id="u1")
    user = await everywhere(memory, text)
    found = await memory.search("tea", user_id="u1")
    assert {one.content for one in found if one.parts.bm25} == {"I like green tea", f"tea {text}"}
    found = await memory.search("tea", user_id="u1", filter={"deep": {"exists": True}})
    assert [(one.content, one.name) for one in found] == [(f"tea {text}", text)]
    assert len(await memory.get_all(user_id="u1")) == 5
    updated = await memory.update(user.id, f"milk {text}")
    assert updated == f"milk {text}"
    assert [event["new_memory"] for event in await memory.history(user.id)] == [f"tea {text}", f"milk {text}"]
    context = await (await memory.session.create(user_id="u1")).compile_context("milk", floor=None, recall_tokens=4000)
    # repr: a message is a Python value, whatever is in it.
    assert any(f"milk {text}".replace("\n", "\n  ") in item.text for item in context.sections["episodic"].items)
    shown = await (await memory.session.get("s")).compile_context("green tea", floor=None)
    assert {"role": "user", "content": f"milk {text}", "name": text} in shown.messages


async def test_b2_a_query_is_stored_and_found_as_it_was_asked(memory: Face) -> None:
    session = await memory.session.create("s", user_id="u1")
    context = await session.compile_context(f"is {NUL} or {ESCAPED} tea?")
    assert context.messages[-1] == {"role": "user", "content": f"is {NUL} or {ESCAPED} tea?"}
    await session.add_turn("assistant", f"{NUL} is")
    assert [turn.content for turn in await session.turns()] == [f"is {NUL} or {ESCAPED} tea?", f"{NUL} is"]
    assert len(await session.search(f"{NUL} tea")) == 2


async def test_b2_the_plain_store(store: Face) -> None:
    await store.add("acme", "s", "I like green tea", kind="note")
    for text in (NUL, ESCAPED, LONE):
        await store.add("acme", "s", f"tea {text}", kind="note", metadata={"key": text, text: 1})
        [found] = await store.similar("acme", "tea", 9, filter={"key": text})
        assert found == f"tea {text}"
        assert found.metadata == {"key": text, text: 1}
    many = [{"session_id": "s", "content": f"{NUL} {n}", "kind": "note", "metadata": {NUL: n}} for n in range(10)]
    await store.add_many("acme", many)
    assert await store.count("acme") == 14
    assert len(await store.similar("acme", "tea", 20)) == 14


async def test_b3_what_sql_readers_see_is_valid_text_and_jsonb(memory: Face, dsn: str) -> None:
    await everywhere(memory, NUL)
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(
            "SELECT content, metadata->>'deep', message->>'tool_calls', message::text FROM pgmem.records ORDER BY seq"
        ).fetchall()
        [view] = conn.execute("SELECT count(*) FROM pgmem.memories WHERE content LIKE '%tea%'").fetchall()
    assert rows[0][0] == "tea a\U0010fffd0000b"
    assert view == (2,)


@pytest.fixture(scope="module")
def one_memory(server: Any) -> Any:
    """One database for all the examples of hypothesis: a fresh one for each would take 15 ms apiece."""
    name = f"pgmem_text_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        try:
            with PgMem(server.dsn(name), embedder=FakeEmbedder()) as memory:
                yield memory
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")
any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)
scalars = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | any_text
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(any_text, v, max_size=3), max_leaves=8
)


def same(left: Any, right: Any) -> bool:
    """Equal, NaN to NaN, and True not to 1."""
    if isinstance(left, float) and math.isnan(left):
        return isinstance(right, float) and math.isnan(right)
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Mapping):
        return isinstance(right, Mapping) and set(left) == set(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    content=any_text,
    name=st.none() | any_text.filter(bool),
    metadata=st.dictionaries(any_text, values, max_size=3),
    calls=st.lists(st.dictionaries(any_text, values, max_size=3).filter(bool), max_size=2),
    extra=st.dictionaries(any_text.filter(lambda key: key not in FIELDS), values, max_size=2),
    block=st.dictionaries(any_text, values, max_size=2),
)
def test_b2_every_text_and_value_round_trips_through_postgres(
    one_memory: PgMem,
    content: str,
    name: str | None,
    metadata: dict[str, Any],
    calls: list[dict[str, Any]],
    extra: dict[str, Any],
    block: dict[str, Any],
) -> None:
    session = one_memory.session.create(user_id="u1")
    given: list[dict[str, Any]] = [
        {"role": "tool", "content": content, "name": name, "metadata": metadata, "tool_calls": calls, "extra": extra},
        {"role": "user", "content": [block, {"type": "text", "text": content}], "extra": extra},
        {"role": "tool", "content": content, "extra": extra},
        {"role": "system", "content": "x" + content, "metadata": metadata},
    ]
    written = session.add_turns(given)
    for turns in (written, session.turns()):
        for want, got in zip(given, turns, strict=True):
            assert same(got.content, want["content"])
            assert got.name == want.get("name")
            assert same(got.metadata, want.get("metadata", {}))
            assert same(got.tool_calls, want.get("tool_calls", []))
            assert same(got.extra, want.get("extra", {}))
    one_memory.search(content, user_id="u1")
    session.delete()


@pytest.mark.parametrize("key", FIELDS)
async def test_extra_may_not_pose_as_a_field_of_the_turn(memory: Face, key: str) -> None:
    session = await memory.session.create(user_id="u1")
    with pytest.raises(InvalidArgument, match=f"extra.*{key}"):
        await session.add_turn("user", "tea", extra={key: "x"})
    assert await session.turns() == []


# -- B4, B14: JSON -------------------------------------------------------------------------------------------------


async def test_b4_nan_and_infinity_come_back_as_they_were(memory: Face, store: Face, dsn: str) -> None:
    session = await memory.session.create("s", user_id="u1")
    odd = {"v": math.nan, "w": math.inf, "x": [-math.inf, {"y": math.nan}], "z": 1.5}
    await session.add_turn(
        "assistant", "calling", tool_calls=[{"id": "1", "args": odd}], metadata=odd, extra={"e": odd}
    )
    await session.add_turn("tool", [{"type": "text", "text": "tea", "data": odd}], tool_call_id="1")
    await store.add("acme", "s", "tea", metadata=odd)
    call, result = await session.turns()
    for got in (call.metadata, call.tool_calls[0]["args"], call.extra["e"], result.content[0]["data"]):
        assert same(odd, got)
    assert same((await store.similar("acme", "tea"))[0].metadata, odd)
    assert same((await memory.search("tea", user_id="u1"))[0].metadata, {})
    with psycopg.connect(dsn) as conn:
        [(stored,)] = conn.execute(
            "SELECT metadata->'v'->>'$float' FROM pgmem.records WHERE seq = 1 AND role = 'assistant'"
        )
    assert stored == "NaN"


class Plan(Enum):
    free = "free"
    paid = 3


async def test_b14_what_json_lacks_is_saved_in_its_documented_form_and_filterable(memory: Face, store: Face) -> None:
    moment = datetime(2024, 2, 28, 23, 30, tzinfo=timezone(timedelta(hours=-8)))
    key = uuid.UUID("12345678-1234-5678-1234-567812345678")
    given = {
        "at": moment, "day": date(2024, 2, 29), "key": key, "price": Decimal("1.10"), "count": Decimal("10"),
        "tags": {"b", "a"}, "pair": (1, 2), "plan": Plan.free, "paid": Plan.paid,
    }  # fmt: skip
    want = {
        "at": "2024-02-29T07:30:00.000000Z", "day": "2024-02-29", "key": str(key), "price": 1.1, "count": 10,
        "tags": ["a", "b"], "pair": [1, 2], "plan": "free", "paid": 3,
    }  # fmt: skip
    session = await memory.session.create("s", user_id="u1")
    await session.add_turn("user", "tea", metadata=given)
    await session.add_turn("user", "tea too", metadata={"at": moment + timedelta(days=1), "price": 20, "count": 9})
    await store.add("acme", "s", "tea", metadata=given)
    assert (await session.turns())[0].metadata == want
    for name, value in given.items():
        if name not in ("tags", "pair"):
            [found] = await memory.search("tea", user_id="u1", filter={name: value})
            assert (found.content, found.metadata) == ("tea", want)
            assert await store.count("acme", filter={name: value}) == 1
    for filter, number in (
        ({"at": {"lt": moment + timedelta(hours=1)}}, 1),
        ({"at": {"gte": moment.astimezone(UTC)}}, 2),
        ({"price": {"gt": Decimal("1.09")}}, 2),
        ({"price": {"gt": Decimal("1.10")}}, 1),
        ({"tags": "a"}, 1),
    ):
        assert len(await memory.search("tea", user_id="u1", filter=filter)) == number


@pytest.mark.parametrize(
    "bad",
    [b"raw", object(), datetime.now(UTC).replace(tzinfo=None), timedelta(1), {1: "a"}, 1j, [set(), [b""]]],
    ids=lambda bad: type(bad).__name__,
)
async def test_b14_what_has_no_form_is_refused_by_name_before_anything_is_written(
    memory: Face, store: Face, bad: Any
) -> None:
    session = await memory.session.create("s", user_id="u1")
    for place in (
        {"metadata": {"fine": 1, "wrong": bad}},
        {"tool_calls": [{"wrong": bad}]},
        {"extra": {"wrong": bad}},
        {"content": [{"type": "text", "text": "tea", "wrong": bad}]},
    ):
        with pytest.raises(InvalidArgument, match="wrong"):
            await session.add_turns([{"role": "user", "content": "milk"}, {"role": "user", "content": "tea", **place}])
    with pytest.raises(InvalidArgument, match="wrong"):
        await store.add_many(
            "acme",
            [{"session_id": "s", "content": "milk"}, {"session_id": "s", "content": "tea", "metadata": {"wrong": bad}}],
        )
    with pytest.raises(InvalidArgument, match="wrong"):
        await memory.session.create("t", user_id="u1", metadata={"wrong": bad})
    assert await session.turns() == []
    assert await store.count("acme") == 0
    await session.add_turn("user", "tea", metadata={"wrong": None})
    assert len(await session.turns()) == 1


# -- B5, B6: tokens --------------------------------------------------------------------------------------------------


async def test_b5_special_tokens_are_plain_text(memory: Face) -> None:
    session = await memory.session.create("s", user_id="u1")
    turn = await session.add_turn("user", SPECIAL)
    assert turn.token_count > count_tokens("why does or appear?")
    await memory.form()
    assert [turn.content for turn in await session.window(budget_tokens=100)] == [SPECIAL]
    assert [found.content for found in await memory.search(SPECIAL, user_id="u1")] == [SPECIAL]
    other = await memory.session.create(user_id="u1")
    context = await other.compile_context(f"{SPECIAL} really", instructions=SPECIAL, injected_context=[SPECIAL])
    assert SPECIAL in context.sections["episodic"].items[0].text
    assert SPECIAL in context.sections["external"].items[0].text
    assert context.messages[0]["content"].startswith(SPECIAL)
    assert context.messages[-1]["content"] == f"{SPECIAL} really"


_OFFLINE = """
import socket, sys, warnings

def refuse(*arguments, **keywords):
    raise OSError("no network in this test")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.startswith("llama_index") else find(name, *rest)
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    from pgmem_core import PgMem
    from pgmem_core.tokens import count_tokens

    text = "The quick brown fox jumps over the lazy dog. " * 10
    counts = [count_tokens(text, model) for model in (None, "gpt-4o", "my-local-13b", "openai:gpt-9")]
    with PgMem(sys.argv[1]) as memory:
        session = memory.session.create("s", user_id="u1")
        for number in range(20):
            session.add_turn("user", f"{number} {text}")
        window = session.window(budget_tokens=400)
        context = session.compile_context("fox", budget_tokens=500)
assert all(80 <= count <= 150 for count in counts), counts
assert 2 <= len(window) <= 4, len(window)
assert context.token_count <= 500, context.token_count
assert context.messages[-1]["content"] == "fox"
ours = [w for w in caught if w.category.__name__ == "PgmemWarning"]
assert len(ours) <= 1 and len(caught) == len(ours), [str(w.message) for w in caught]
print("warnings", len(ours))
"""


def test_b6_without_network_and_cache_tokens_are_estimated_with_one_warning(dsn: str, tmp_path: Any) -> None:
    environment = {"HOME": str(tmp_path), "TIKTOKEN_CACHE_DIR": str(tmp_path / "none"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _OFFLINE, dsn],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "warnings 1"


# -- B7, B8: length ---------------------------------------------------------------------------------------------------


async def test_b7_long_incompressible_text_is_stored_and_filtered(memory: Face, store: Face) -> None:
    long = random.Random(7).randbytes(4500).hex()
    session = await memory.session.create("s", user_id="u1")
    first = await session.add_turn("user", long, id="one", name=long, metadata={"hash": long, long: 1})
    again = await session.add_turn("user", long, id="one", name=long, metadata={"hash": long, long: 1})
    assert first.id == again.id
    await session.add_turn("user", "short", metadata={"hash": "short"})
    await session.add_turn("assistant", long)  # as it was repeated, not retried: a turn of its own
    await memory.form()
    assert [turn.text for turn in await session.turns()] == [long, "short", long]
    assert [found.content for found in await memory.search("anything", user_id="u1", filter={"hash": long})] == [long]
    other = await memory.session.create(user_id="u1")
    context = await other.compile_context(long[:200], floor=None, recall_tokens=8000, budget_tokens=30_000)
    shown = [item for item in context.sections["episodic"].items if long[:1000] in item.text]
    assert len(shown) == 1
    await store.add("acme", "s", long, kind="note", metadata={"hash": long})
    assert await store.similar("acme", long[:100], filter={"hash": long}) == [long]


@pytest.mark.parametrize("long", [random.Random(7).randbytes(4500).hex(), "x" * 256, "ü" * 128], ids=len)
async def test_b7_an_id_that_is_too_long_is_refused_with_its_limit(memory: Face, store: Face, long: str) -> None:
    session = await memory.session.create("s", user_id="u1")
    for call in (
        memory.add("tea", user_id=long),
        memory.add("tea", user_id="u1", group_id=long),
        memory.add("tea", user_id="u1", agent_id=long),
        memory.add("tea", user_id="u1", session_id=long),
        memory.search("tea", user_id=long),
        memory.session.create(long),
        session.add_turn("user", "tea", id=long),
        session.compile_context("tea", query_id=long),
        store.add(long, "s", "tea"),
        store.add("acme", "s", "tea", kind=long),
        store.similar("acme", "tea", kind=long),
    ):
        with pytest.raises(InvalidArgument, match="255") as caught:
            await call
        assert len(str(caught.value)) < 200
    assert await memory.get_all(user_id="u1") == []
    most = "x" * 255
    await memory.add("tea", user_id=most, group_id=most, agent_id=most, session_id=most)
    assert len(await memory.search("tea", user_id=most, group_id=most)) == 1


def _words(count: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join(
        "".join(letters[n // 26**place % 26] for place in range(5, -1, -1)) for n in range(7, 7 + 31 * count, 31)
    )


@pytest.mark.parametrize(
    ("text", "known", "lost"),
    [(_words(400_000), _words(1), _words(400_000)[-6:]), ("banana " * 428_571, "banana", None)],
    ids=["400,000 words", "3 MB of one word"],
)
async def test_b8_no_text_is_too_long(memory: Face, store: Face, text: str, known: str, lost: str | None) -> None:
    await memory.add("a short text about tea", user_id="u1")
    session = await memory.session.create("s", user_id="u1")
    started = time.perf_counter()
    turn = await session.add_turn("user", text)
    stored = time.perf_counter()
    await memory.form()
    formed = time.perf_counter()
    found = await memory.search(f"{known} tea", user_id="u1")
    searched = time.perf_counter()
    context = await (await memory.session.create(user_id="u1")).compile_context(f"{known} tea", floor=None)
    compiled = time.perf_counter()
    await store.add("acme", "s", text, kind="note")
    plain = time.perf_counter()
    seconds = {
        "add_turn": stored - started, "form": formed - stored, "search": searched - formed,
        "compile_context": compiled - searched, "store.add": plain - compiled,
    }  # fmt: skip
    print({step: f"{1000 * took:.0f} ms" for step, took in seconds.items()})
    assert turn.text == text
    assert {one.content for one in found} == {text, "a short text about tea"}
    assert found[0].parts.bm25 > 0
    assert context.token_count <= context.budget_tokens
    assert (await session.turns())[0].content == text
    if lost is not None:  # beyond the first 100,000 characters the words are not indexed: documented
        assert all(one.parts.bm25 == 0 for one in await memory.search(lost, user_id="u1"))
    assert await store.count("acme") == 1
    # 10 times what it takes on two busy cores.
    assert seconds["add_turn"] < 5
    assert seconds["search"] < 1


async def test_b8_a_query_of_any_length(memory: Face) -> None:
    await memory.add("a short text about tea", user_id="u1")
    await memory.form()
    session = await memory.session.create("s", user_id="u1")
    query = f"what about tea? {_words(100_000)}"
    [found] = await memory.search(query, user_id="u1")
    assert found.parts.bm25 > 0
    context = await session.compile_context(query, floor=None)
    assert context.messages[-1]["content"] == query
    await session.add_turn("assistant", "yes")
    assert [turn.text for turn in await session.turns()] == [query, "yes"]


# -- B9: queries are words, not syntax --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "What's the bus & rail plan?", "!", "':*", "a <-> b", '"', "bus & | rail", "bus:* !rail (", "((", "\\", "'",
        "%", "bus\x00rail", "NOT bus", "bus AND", "-bus", "*", "bus'); DROP TABLE pgmem.records; --",
        "%(tenant)s %s", "{bus}",
    ],
)  # fmt: skip
async def test_b9_any_query_is_read_as_words(memory: Face, query: str) -> None:
    await memory.add("The bus and rail plan costs ninety", user_id="u1")
    await memory.add("Dogs like walks", user_id="u1")
    session = await memory.session.create(user_id="u1")
    found = [one.content for one in await memory.search(query, user_id="u1")]
    # Nothing is embedded yet: the words alone.
    assert found == (["The bus and rail plan costs ninety"] if "bus" in query else [])
    context = await session.compile_context(query, floor=None, store_query=False)
    assert [item.text.partition(": ")[2] for item in context.sections["episodic"].items] == found
    await memory.form()
    assert len(await memory.search(query, user_id="u1")) == 2


@pytest.mark.parametrize(
    "variants",
    [
        ["tea milk", "tea,milk", "tea, milk", "tea;milk", "tea/milk", "tea-milk", "(tea) milk!", "TEA & MILK",
         "tea|milk", '"tea" "milk"'],
        ["What's new", "whats new?", "What\u2019s new", "what's 'new'"],
        ["café crème", "cafe creme", "CAFE\u0301 CRE\u0300ME", "café-crème"],
    ],
    ids=["separators", "apostrophes", "accents"],
)  # fmt: skip
async def test_b9_variants_of_a_query_give_the_same_hits_in_the_same_order(memory: Face, variants: list[str]) -> None:
    for text in ("tea with milk", "tea alone", "milk alone, cold", "café crème", "a new cafe", "dogs and cats", "news"):
        await memory.add(text, user_id="u1")
    expected = [(one.content, one.score) for one in await memory.search(variants[0], user_id="u1")]
    assert expected
    for variant in variants[1:]:
        got = [(one.content, one.score) for one in await memory.search(variant, user_id="u1")]
        assert [text for text, _ in got] == [text for text, _ in expected]
        assert [score for _, score in got] == pytest.approx([score for _, score in expected], rel=1e-3)
