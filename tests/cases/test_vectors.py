"""Vectors and filters: scores that mean what they say, plans that find what is there, refusals that name numbers.

C15 (rows that are past their time) has no test of reads: nothing in this version expires, and a `ttl` is refused
rather than ignored, which `test_nothing_expires` holds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import psycopg
import pytest

from pgmem_core import (
    BadVector,
    DimensionMismatch,
    InvalidArgument,
    InvalidFilter,
    PgmemError,
)
from pgmem_core.tokens import count_tokens
from tests.fix_memory import Face, FakeEmbedder, Maker

# Directions by their cosine distance to EAST, the query.
EAST = [1.0, 0.0]
BY_DISTANCE = {name: [1 - d, math.sqrt(1 - (1 - d) ** 2)] for name, d in
               {"same": 0.0, "near": 0.3, "far": 0.9, "against": 1.6}.items()}  # fmt: skip


def texts(found: Sequence[Any]) -> list[str]:
    return [str(getattr(one, "content", one)) for one in found]


# -- C1, C10: scores ---------------------------------------------------------------------------------------------


async def test_c1_thresholds_keep_what_is_near(store: Face) -> None:
    for name in ("far", "same", "against", "near"):
        await store.add("t1", "s1", name, BY_DISTANCE[name], kind="fact")
    found = await store.similar("t1", EAST)
    assert texts(found) == ["same", "near", "far", "against"]
    assert [one.score for one in found] == pytest.approx([1.0, 0.7, 0.1, -0.6], abs=1e-6)
    assert texts(await store.similar("t1", EAST, min_score=0.0999)) == ["same", "near", "far"]
    assert texts(await store.similar("t1", EAST, min_score=0.8)) == ["same"]
    assert texts(await store.similar("t1", EAST, min_score=-1)) == ["same", "near", "far", "against"]
    assert texts(await store.similar("t1", EAST, limit=2)) == ["same", "near"]


async def test_c1_the_duplicate_is_first_in_a_search(make_memory: Maker) -> None:
    embedder = FakeEmbedder({**BY_DISTANCE, "question": EAST}, dimensions=2)
    memory = await make_memory(embedder=embedder)
    for name in ("far", "same", "against", "near"):  # in sessions of their own: no turn lends its score to another
        await memory.add(name, user_id="u1", session_id=name)
    await memory.form()
    found = await memory.search("question", user_id="u1")
    assert texts(found) == ["same", "near", "far", "against"]
    assert [one.parts.cosine for one in found] == pytest.approx([1.0, 0.7, 0.1, -0.6], abs=1e-6)
    # The floor is a gate on the best of all; past it each must still bear seven tenths of it.
    assert texts(await memory.search("question", user_id="u1", floor=0.99)) == ["same", "near"]
    [best] = [one for one in found if one.content == "same"]
    await memory.delete(best.id)
    assert texts(await memory.search("question", user_id="u1", floor=0.8)) == []
    assert texts(await memory.search("question", user_id="u1", floor=0.69)) == ["near"]


async def test_c10_scores_stay_in_their_range(make_memory: Maker, make_store: Maker) -> None:
    store = await make_store(model="ranges", schema_name="ranges")
    rng = np.random.default_rng(5)
    for number, row in enumerate([*rng.normal(size=(10, 3)), [1.0, 0, 0], [-1.0, 0, 0], [1e18, 0, 0], [-1e-15, 0, 0]]):
        await store.add("t1", "s1", f"text {number}", list(row))
    scores = [one.score for one in await store.similar("t1", [7.0, 0.0, 0.0], limit=50)]
    assert scores == sorted(scores, reverse=True)
    assert max(scores) == pytest.approx(1.0)
    assert min(scores) == pytest.approx(-1.0)
    assert all(-1.0 <= score <= 1.0 for score in scores)

    memory = await make_memory(embedder=FakeEmbedder({"up": [1.0, 0.0], "down": [-1.0, 0.0]}, dimensions=2))
    for text in ("up", "down", "up and down", "nothing like it"):
        await memory.add(text, user_id="u1")
    await memory.form()
    for one in await memory.search("down", user_id="u1"):
        parts = one.parts
        assert one.score >= 0
        assert all(0 <= part <= 1 for part in (parts.lexical, parts.dense, parts.decay))
        assert -1 <= parts.cosine <= 1


# -- C4, C5: dimensions ------------------------------------------------------------------------------------------


async def test_c4_another_size_is_refused_at_open(make_memory: Maker) -> None:
    small = await make_memory(embedder=FakeEmbedder(dimensions=384, model="small"))
    await small.add("my bicycle is green", user_id="u1")
    assert (await small.form()).errors == {}
    for model in ("small", "large"):
        other = await make_memory(embedder=FakeEmbedder(dimensions=768, model=model), setup=False)
        with pytest.raises(DimensionMismatch, match=r"768 dimensions.* 384"):
            await other.setup()
        for _ in range(2):  # by every call, not by the first alone
            with pytest.raises(DimensionMismatch, match="384"):
                await other.search("bicycle", user_id="u1")
        with pytest.raises(DimensionMismatch, match="384"):
            await other.add("and new", user_id="u1")
    assert texts(await small.search("bicycle", user_id="u1")) == ["my bicycle is green"]


async def test_c4_a_vector_of_another_size_is_refused(store: Face, make_store: Maker) -> None:
    await store.add("t1", "s1", "hello", [1.0, 0.0, 0.0])
    for again in (store, await make_store()):
        with pytest.raises(DimensionMismatch, match=r"\b2\b.*\b3\b"):
            await again.add("t1", "s1", "hello", [1.0, 0.0])
        with pytest.raises(DimensionMismatch, match=r"\b2\b.*\b3\b"):
            await again.similar("t1", [1.0, 0.0])
        with pytest.raises(DimensionMismatch, match=r"item|dimensions"):
            await again.add_many("t1", [{"session_id": "s1", "content": "a", "embedding": [1.0, 0.0, 0.0]},
                                        {"session_id": "s1", "content": "b", "embedding": [1.0, 0.0]}])  # fmt: skip
    assert await store.count("t1") == 1


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize(
    ("dimensions", "index"),
    [(2000, "vector(2000)) vector_cosine_ops"), (2001, "halfvec(2001)) halfvec_cosine_ops"),
     (3072, "halfvec(3072)) halfvec_cosine_ops"), (4001, None)],
)  # fmt: skip
async def test_c5_wide_vectors(
    make_store: Maker, dsn: str, dimensions: int, index: str | None, filled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = await make_store(model="wide")
    if filled:
        await (await make_store(model="narrow")).add("t1", "s1", "a narrow one", [1.0, 0.0])
    axes = np.eye(3, dimensions, dtype=np.float32)
    with caplog.at_level(logging.WARNING, "pgmem_core"):
        for number, axis in enumerate(axes):
            await store.add("t1", "s1", f"axis {number}", axis, kind="fact")
    # Route by index even for so few: what the planner sees above 5,000 records.
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("INSERT INTO pgmem.scope_stats VALUES ('t1', 'tenant', '', 6000, 6000, now())")
        indexes = [row[0] for row in conn.execute("SELECT indexdef FROM pg_indexes WHERE indexdef LIKE '%hnsw%'")]
    [found] = await store.similar("t1", axes[1] + 0.1 * axes[2], limit=1)
    assert (found, found.score) == ("axis 1", pytest.approx(1 / math.sqrt(1.01), abs=1e-3))
    assert len(await store.similar("t1", axes[1])) == 3  # vectors of the narrow model are not compared
    own = [definition for definition in indexes if "(2))" not in definition]
    if index is None:
        assert own == []
        assert f"{dimensions} dimensions" in caplog.text
        assert "exact" in caplog.text
    else:
        assert [index in definition for definition in own] == [True]
        assert caplog.text == ""


async def test_c5_a_refused_size_leaves_nothing(make_memory: Maker, make_store: Maker, dsn: str) -> None:
    memory = await make_memory(embedder=FakeEmbedder(dimensions=16_001), setup=False)
    with pytest.raises(DimensionMismatch, match=r"16001 dimensions; pgvector holds 1 to 16,000"):
        await memory.setup()
    with psycopg.connect(dsn) as conn:
        assert conn.execute("SELECT count(*) FROM pgmem.embedding_models").fetchone() == (0,)
        assert conn.execute("SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%hnsw%'").fetchone() == (0,)
    again = await make_memory(embedder=FakeEmbedder(dimensions=16))
    await again.add("my bicycle is green", user_id="u1")
    assert (await again.form()).errors == {}


# -- C9: vectors that are none -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0])
async def test_c9_a_bad_vector_refuses_its_batch_by_number(store: Face, bad: float) -> None:
    rows = [{"session_id": "s1", "content": f"text {n}", "embedding": [1.0, n]} for n in range(5)]
    rows[2]["embedding"] = [bad, bad]
    with pytest.raises(BadVector, match="item 3 of 5"):
        await store.add_many("t1", rows)
    assert await store.count("t1") == 0
    rows[2]["embedding"] = [1.0, 2.0]
    await store.add_many("t1", rows)
    with pytest.raises(BadVector, match="the vector"):
        await store.similar("t1", [1.0, bad] if bad else [0.0, 0.0])
    assert texts(await store.similar("t1", [0.0, 1.0], limit=1)) == ["text 4"]


async def test_c9_one_bad_vector_costs_one_turn_its_vector(make_memory: Maker, dsn: str) -> None:
    embedder = FakeEmbedder({"text 2": [math.nan, 1.0]}, dimensions=2)
    memory = await make_memory(embedder=embedder)
    session = await memory.session.open("s1", user_id="u1")
    for number in range(5):
        await session.add_turn("user", f"text {number}")
    report = await memory.form()
    assert (report.turns, report.errors) == (4, {})
    with psycopg.connect(dsn) as conn:
        without = conn.execute("SELECT content FROM pgmem.records WHERE embedding IS NULL").fetchall()
        [problem] = conn.execute("SELECT last_error FROM pgmem.sessions")
    assert without == [("text 2",)]
    assert "turn 3" in problem[0]
    found = await memory.search("text 2", user_id="u1")
    assert {one.content for one in found} >= {"text 2"}  # by its words
    assert all(math.isfinite(one.score) for one in found)


# -- C11: filters through every door -----------------------------------------------------------------------------

METADATA: dict[str, dict[str, Any]] = {
    "two": {"rank": 2, "tags": ["vip", "eu"], "flag": True},
    "ten": {"rank": 10, "tags": ["us"], "flag": "true", "customer": {"city": "Porto"}},
    "null": {"rank": None, "flag": 1},
    "missing": {"customer": {"city": "Lisbon"}},
}
FILTERS: list[tuple[dict[str, Any], set[str]]] = [
    ({"rank": {"gte": 3}}, {"ten"}),
    ({"rank": {"$gte": 3}}, {"ten"}),
    ({"rank": {"in": []}}, set()),
    ({"rank": {"nin": [2]}}, {"ten", "null", "missing"}),
    ({"or": [{"rank": 2}, {"customer.city": "Lisbon"}]}, {"two", "missing"}),
    ({"not": {"rank": {"lt": 5}}}, {"ten", "null", "missing"}),
    ({"rank": None}, {"null"}),
    ({"rank": {"exists": False}}, {"missing"}),
    ({"absent": 1}, set()),
    ({"flag": True}, {"two"}),
    ({"flag": "true"}, {"ten"}),
    ({"tags": "vip"}, {"two"}),
    ({"customer.city": {"in": ["Porto", "Faro"]}}, {"ten"}),
    ({"customer.city": "Porto", "rank": {"gt": 2}}, {"ten"}),
    ({}, {"two", "ten", "null", "missing"}),
]
REFUSED: list[dict[Any, Any]] = [
    {"rank": {"between": [1, 3]}}, {"rank": {"gte": [3]}}, {"rank": {"in": 3}}, {"xor": [{"rank": 1}]} | {"$xor": []},
    {"rank": {"gte": None}}, {"or": []}, {3: 4},
]  # fmt: skip


async def test_c11_the_store_filters(store: Face) -> None:
    for name, metadata in METADATA.items():
        await store.add("t1", "s1", name, EAST, kind="fact", metadata=metadata)
    for filter, wanted in FILTERS:
        assert set(await store.similar("t1", EAST, filter=filter)) == wanted, filter
        assert await store.count("t1", filter=filter) == len(wanted), filter
    for bad in REFUSED:
        for call in (store.similar("t1", EAST, filter=bad), store.count("t1", filter=bad),
                     store.delete("t1", filter=bad)):  # fmt: skip
            with pytest.raises(InvalidFilter):
                await call
    assert await store.delete("t1", filter={"rank": {"gte": 3}}) == 1
    assert set(await store.similar("t1", EAST)) == {"two", "null", "missing"}
    with pytest.raises(InvalidArgument, match="empty"):
        await store.delete("t1", filter={})


async def test_c11_the_memory_filters(make_memory: Maker) -> None:
    memory = await make_memory(embedder=FakeEmbedder())
    session = await memory.session.open("s1", user_id="u1")
    for name, metadata in METADATA.items():
        await session.add_turn("user", f"tea {name}", metadata=metadata)
    await memory.form()
    other = await memory.session.open("s2", user_id="u1")
    for filter, wanted in FILTERS:
        expected = {f"tea {name}" for name in wanted}
        assert set(texts(await memory.search("tea", user_id="u1", filter=filter))) == expected, filter
        assert set(await memory.get_all(user_id="u1", filter=filter)) == expected, filter
        assert set(texts(await session.search("tea", filter=filter))) == expected, filter
        context = await other.compile_context("tea", filter=filter, store_query=False, floor=None)
        recalled = [item.text for item in context.sections["episodic"].items]
        assert all(any(text in one for one in recalled) for text in expected), filter
        assert len(recalled) == len(expected), filter
    for bad in REFUSED:
        for call in (memory.search("tea", user_id="u1", filter=bad), memory.get_all(user_id="u1", filter=bad),
                     session.search("tea", filter=bad), other.compile_context("tea", filter=bad)):  # fmt: skip
            with pytest.raises(InvalidFilter):
                await call


async def test_c11_times_are_half_open(store: Face) -> None:
    noon = datetime(2024, 2, 29, 12, tzinfo=UTC)
    for hours in range(3):
        await store.add("t1", "s1", f"at {hours}", EAST, kind="fact", created_at=noon + timedelta(hours=hours))
    found = await store.similar("t1", EAST, after=noon + timedelta(hours=1), before=noon + timedelta(hours=2))
    assert texts(found) == ["at 1"]
    with pytest.raises(InvalidArgument, match="timezone"):
        await store.similar("t1", EAST, after=datetime(2024, 2, 29))  # noqa: DTZ001


# -- C13: long texts ---------------------------------------------------------------------------------------------


class Limited:
    """A LangChain embeddings model whose provider takes at most 8,192 tokens a text."""

    model = "limited"

    def __init__(self) -> None:
        self.longest = 0
        self.seen: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.seen += texts
        for text in texts:
            tokens = count_tokens(text)
            self.longest = max(self.longest, tokens)
            if tokens > 8192:
                raise RuntimeError(f"400: maximum context length is 8192 tokens, got {tokens}")
        return [[float(len(text) % 7 + 1), 1.0, float("jazz" in text)] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


async def test_c13_long_conversations_and_queries(make_memory: Maker) -> None:
    embedder = Limited()
    memory = await make_memory(embedder=embedder, embed_timeout_ms=10_000)
    session = await memory.session.open("s1", user_id="u1")
    words = " ".join(f"word{n % 97} about{n % 89}" for n in range(150))
    turns: list[dict[str, Any]] = [
        {"role": "user" if n % 2 == 0 else "assistant", "content": f"turn {n}: {words}"} for n in range(60)
    ]
    turns[31]["content"] = "I like jazz. " + words * 45  # one turn of 20,000 tokens and more
    await session.add_turns(turns)
    assert (await session.info()).token_count > 40_000
    report = await memory.form()
    assert (report.turns, report.errors) == (60, {})
    assert 8_000 >= embedder.longest > 7_000

    query = "the beginning " + words * 45 + " do I like jazz?"
    assert count_tokens(query) > 20_000
    embedder.seen.clear()
    found = await memory.search(query, user_id="u1", top_k=60)
    [sent] = embedder.seen  # its beginning and its end, where the question stands
    assert sent.startswith("the beginning ")
    assert sent.endswith("do I like jazz?")
    assert "I like jazz." in {text[:12] for text in texts(found)}
    assert all(one.parts.cosine is not None for one in found)
    context = await session.compile_context(query)
    assert context.timings["words_only"] == 0.0
    assert context.messages[-1]["content"] == query  # the user's own words are never shortened


# -- C15 ---------------------------------------------------------------------------------------------------------


async def test_nothing_expires(memory: Face, store: Face) -> None:
    session = await memory.session.open("s1", user_id="u1")
    for call in (
        memory.add("hello", user_id="u1", ttl=1),
        store.add("t1", "s1", "hello", EAST, ttl=1),
        session.add_turn("user", "hello", ttl=1),
    ):
        with pytest.raises(TypeError, match="ttl"):
            await call
    for field in ("ttl", "expires_at"):
        with pytest.raises(PgmemError, match=field):
            await session.add_turns([{"role": "user", "content": "hello", field: 1}])
        with pytest.raises(PgmemError, match=field):
            await store.add_many("t1", [{"session_id": "s1", "content": "hello", "embedding": EAST, field: 1}])
    assert await memory.get_all(user_id="u1") == []
