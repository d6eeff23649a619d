"""Every setting, set to something else, has an effect that can be seen; an unknown one is refused (C14).

What happens behind the turn is in `test_settings_background`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import psycopg
import pytest

from pgmem_core import AsyncMemoryStore, AsyncPgMem, ConfigurationError, MemoryStore, PgMem, Settings, StoreUnavailable
from tests.cases import test_settings_background
from tests.cases.shown import Shown
from tests.fix_memory import Face, FakeEmbedder, Maker


class Remote(FakeEmbedder):
    """An embedder that is not local: called off the loop, under embed_timeout_ms."""

    local = False

    def __init__(self, seconds: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = seconds
        self.batches: list[int] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        self.batches.append(len(texts))
        time.sleep(self.seconds)
        return super().embed(texts)

    async def aembed(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        return await asyncio.to_thread(self.embed, texts)


shows = Shown()


async def talk(memory: Face, count: int = 40, words: int = 60) -> Face:
    """A session of turns with something to recall from each."""
    session = await memory.session.open("long", user_id="u1")
    await session.add_turns(
        [
            {"role": "user", "content": f"jazz note {n}: " + " ".join(f"w{n}x{i}" for i in range(words))}
            for n in range(count)
        ]
    )
    await memory.form()
    other: Face = await memory.session.open("other", user_id="u1")
    return other


async def compiled(memory: Face, session: Face, **options: Any) -> Any:
    return await session.compile_context("jazz note", store_query=False, floor=None, **options)


@shows("schema_name")
async def schema_name(make: Maker, dsn: str) -> None:
    await (await make(schema_name="notes")).add("hello", user_id="u1")
    with psycopg.connect(dsn) as conn:
        assert conn.execute("SELECT count(*) FROM notes.records").fetchone() == (1,)


@shows("language")
async def language(make: Maker, dsn: str) -> None:
    for name, found in (("english", True), ("simple", False)):
        memory = await make(schema_name=name, language=name)
        await memory.add("she was running", user_id="u1")
        [one] = await memory.search("run", user_id="u1") or [None]
        assert (one is not None and one.parts.bm25 > 0) is found, name


@shows("pooler")
async def pooler(make: Maker, dsn: str) -> None:
    for value, prepared in (("none", True), ("pgbouncer", False)):
        memory = await make(pooler=value, pool_size=1, max_overflow=0)
        session = await memory.session.open("s1", user_id="u1")
        for _ in range(8):
            await session.turns()
        count = lambda conn: conn.query("SELECT count(*) FROM pg_prepared_statements")[0][0]  # noqa: E731
        database = memory.target._rt.database
        found = database.run(count, single=True) if memory.face == "sync" else await database.arun(count, single=True)
        assert (found > 0) is prepared, value
        await memory.close()


@contextlib.contextmanager
def locked(dsn: str) -> Iterator[None]:
    """Hold the session s1, so that a write to it keeps its connection."""
    with psycopg.connect(dsn) as conn:
        conn.execute("SELECT FROM pgmem.sessions WHERE session_id = 's1' FOR UPDATE")
        yield


@shows("pool_size", "max_overflow", "pool_timeout_seconds")
async def pool(make: Maker, dsn: str) -> None:
    for size, overflow in ((1, 0), (2, 0), (1, 1)):
        memory = await make(pool_size=size, max_overflow=overflow, pool_timeout_seconds=0.2)
        session = await memory.session.open("s1", user_id="u1")
        with locked(dsn):
            waiting = asyncio.create_task(session.add_turn("user", "hello"))
            await asyncio.sleep(0.05)
            started = time.monotonic()
            if size + overflow == 1:
                with pytest.raises(StoreUnavailable, match=r"busy for 0\.2 s \(pool_size 1, max_overflow 0\)"):
                    await session.turns()
                assert 0.15 < time.monotonic() - started < 2
            else:
                await session.turns()
        await waiting
        await memory.close()


@shows("connect_timeout_seconds")
async def connect_timeout_seconds(make: Maker, dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # takes the connection and says nothing
        where = f"postgresql://postgres@127.0.0.1:{deaf.getsockname()[1]}/x"
        memory = await make(dsn=where, connect_timeout_seconds=1, setup=False)
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match="could not reach"):
            await memory.setup()
        assert time.monotonic() - started < 5


@shows("budget_tokens")
async def budget_tokens(make: Maker, dsn: str) -> None:
    memory = await make(budget_tokens=900)
    context = await compiled(memory, await talk(memory))
    assert context.budget_tokens == 900
    assert context.token_count <= 900


@shows("prefix_tokens", "window_turns")
async def window(make: Maker, dsn: str) -> None:
    memory = await make()
    await talk(memory, count=40, words=25)
    session = await memory.session.open("long", user_id="u1")
    total = (await session.info()).token_count
    # The window gets what an eighth of the budget, the recalled 800 and the prefix leave: just enough without one.
    budget = (total + 850) * 8 // 7 + 8
    turns = []
    for changed in ({"prefix_tokens": 0}, {"prefix_tokens": budget}, {"prefix_tokens": 0, "window_turns": 10}):
        memory = await make(budget_tokens=budget, **changed)
        context = await compiled(memory, await memory.session.open("long", user_id="u1"))
        turns.append(len(context.sections["working"]))
    assert turns[0] == 40
    assert 0 < turns[1] < 40
    assert 0 < turns[2] <= 10


@shows("recall_items", "recall_tokens")
async def recall(make: Maker, dsn: str) -> None:
    sections = {}
    for options in ({}, {"recall_items": 2}, {"recall_tokens": 100}, {"recall_items": 0}):
        memory = await make(**options)
        context = await compiled(memory, await talk(memory, count=20, words=10))
        sections[tuple(options.items())] = context.sections["episodic"]
    assert len(sections[()]) == 8
    assert len(sections[("recall_items", 2),]) == 2
    assert len(sections[("recall_items", 0),]) == 0
    assert 0 < sections[("recall_tokens", 100),].token_count <= 100


@shows("embed_timeout_ms")
async def embed_timeout_ms(make: Maker, dsn: str) -> None:
    for milliseconds, words_only in ((20, 1.0), (5_000, 0.0)):
        embedder = Remote(dimensions=4)
        memory = await make(embed_timeout_ms=milliseconds, embedder=embedder)
        session = await talk(memory, count=2, words=2)
        embedder.seconds = 0.2
        context = await compiled(memory, session)
        assert context.timings["words_only"] == words_only
        await asyncio.sleep(0.25 if words_only else 0)  # let the late answer land before the loop ends


@shows("embed_batch_size")
async def embed_batch_size(make: Maker, dsn: str) -> None:
    embedder = Remote(dimensions=4)
    memory = await make(embed_batch_size=3, embedder=embedder)
    await talk(memory, count=10, words=2)
    assert max(embedder.batches) == 3


@shows("half_life_days", "recency_share")
async def decay(make: Maker, dsn: str) -> None:
    for half_life, share, wanted in ((30.0, 0.1, 0.95), (60.0, 0.1, 0.9 + 0.1 * 0.5**0.5), (30.0, 0.6, 0.7)):
        memory = await make(half_life_days=half_life, recency_share=share)
        session = await memory.session.open("s1", user_id="u1")
        month_ago = datetime.now(UTC) - timedelta(days=30)
        await session.add_turn("user", "I like jazz", created_at=month_ago, id="first")
        [found] = await memory.search("jazz", user_id="u1")
        assert found.parts.decay == pytest.approx(wanted, abs=1e-4)


@shows("fact_half_life_days")
async def fact_decay(make: Maker, dsn: str) -> None:
    for half_life, wanted in ((180.0, 0.95), (90.0, 0.925)):
        memory = await make(fact_half_life_days=half_life)
        session = await memory.session.open("s1", user_id="u1")
        await session.observe("likes", "jazz", authority="user")
        with psycopg.connect(dsn) as conn:
            conn.execute("UPDATE pgmem.facts SET last_confirmed_at = now() - interval '180 days'")
        [found] = await memory.search("jazz", user_id="u1")
        assert found.parts.decay == pytest.approx(wanted, abs=1e-4)


@shows("log_injections")
async def log_injections(make: Maker, dsn: str) -> None:
    for kept in (True, False):
        memory = await make(log_injections=kept)
        session = await memory.session.open(f"s-{kept}", user_id="u1")
        await session.observe("likes", "jazz", authority="user")
        context = await session.compile_context("music?")
        assert bool(await memory.why(context.query_id)) == kept


@shows("relevance_floor")
async def relevance_floor(make: Maker, dsn: str) -> None:
    vectors = {"I like jazz": [1.0, 0.0], "music?": [0.6, 0.8]}
    for floor, shown in ((None, 1), (0.5, 1), (0.7, 0)):
        memory = await make(relevance_floor=floor, embedder=FakeEmbedder(vectors, dimensions=2))
        await memory.add("I like jazz", user_id="u1", session_id="s1")
        await memory.form()
        session = await memory.session.open("s2", user_id="u1")
        context = await session.compile_context("music?", store_query=False)
        assert (len(context.sections["episodic"]) > 0) == bool(shown), floor


@pytest.mark.parametrize("name", sorted(shows.checks))
async def test_c14_each_setting_has_an_effect(name: str, make_memory: Maker, dsn: str) -> None:
    await shows.checks[name](make_memory, dsn)


def test_c14_no_setting_is_left_out() -> None:
    assert sorted(shows.settings + test_settings_background.shows.settings) == sorted(Settings.model_fields)


@pytest.mark.parametrize("face", [PgMem, AsyncPgMem, MemoryStore, AsyncMemoryStore])
def test_c14_a_misspelt_setting_is_refused(face: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown setting budget_token; pgmem knows .*budget_tokens"):
        face("postgresql://localhost/x", budget_token=500)
    with pytest.raises(ConfigurationError, match="pooler"):
        face("postgresql://localhost/x", pooler="bouncer")
    with pytest.raises(ConfigurationError, match="recency_share"):
        face("postgresql://localhost/x", recency_share=1.5)


def test_c14_settings_come_from_arguments_then_the_object_then_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGMEM_BUDGET_TOKENS", "1234")
    monkeypatch.setenv("PGMEM_POOLER", "pgbouncer")
    dsn = "postgresql://localhost/x"
    assert PgMem(dsn).settings.budget_tokens == 1234
    given = Settings(budget_tokens=2000)
    assert PgMem(dsn, settings=given).settings.budget_tokens == 2000
    both = PgMem(dsn, settings=given, budget_tokens=3000).settings
    assert (both.budget_tokens, both.pooler) == (3000, "pgbouncer")
    monkeypatch.setenv("PGMEM_BUDGET_TOKENS", "many")
    with pytest.raises(ConfigurationError, match="budget_tokens"):
        PgMem(dsn)
    monkeypatch.setenv("PGMEM_DSN", "postgresql://somewhere.example/app")
    monkeypatch.delenv("PGMEM_BUDGET_TOKENS")
    assert PgMem().dsn == "somewhere.example:5432/app"
