"""The settings of what is done to memories and behind the turn: policy, forming, upkeep, the worker (C14)."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
import pytest

from pgmem_core import Settings
from pgmem_core.cli.upkeep import Rounds
from pgmem_core.effects import run
from pgmem_core.facts import Fact, FactDraft
from pgmem_core.formation import worker
from pgmem_core.types import Turn
from tests.cases.shown import Shown
from tests.fix_memory import Face, FakeEmbedder, Maker
from tests.scripted import Scripted
from tests.telling import Tellers, rows

shows = Shown()


async def formed(memory: Face) -> int:
    """One round of the worker's forming, at its own discretion of what is due; returns how many sessions."""
    rt = memory.target._rt
    return (await asyncio.to_thread(lambda: run(worker.form_tiers(rt), rt.database))).formed


async def upkeep(memory: Face) -> Any:
    """The upkeep of a worker that has just started; returns what it did, None if it was not time."""
    rounds = Rounds(memory.target, lambda: False)
    await asyncio.to_thread(rounds.look)
    assert rounds.error is None
    return rounds.last


# -- what may be written -----------------------------------------------------------------------------------------


def shouting(text: str, entry: str) -> str:
    """A write policy."""
    return text.upper()


@shows("policy")
async def policy(make: Maker, dsn: str) -> None:
    for number, (name, stored) in enumerate(((None, "I like jazz"), (f"{__name__}:shouting", "I LIKE JAZZ"))):
        memory = await make(settings=Settings(policy=name))
        session = await memory.session.open(f"s{number}", user_id="u1")
        await session.add_turn("user", "I like jazz")
        assert [turn.text for turn in await session.turns()] == [stored]


@shows("redact")
async def redact(make: Maker, dsn: str) -> None:
    key = "sk-test-000EXAMPLE000"
    for value, kept in (("none", True), ("secrets", False)):
        memory = await make(redact=value)
        session = await memory.session.open(value, user_id="u1")
        await session.add_turn("user", f"the key is {key}, keep it")
        [turn] = await session.turns()
        assert (key in turn.text) is kept
        assert turn.text.startswith("the key is ")


@shows("review_confidence")
async def review_confidence(make: Maker, dsn: str) -> None:
    session = await (await make()).session.open("s1", user_id="u1")
    await session.observe("likes", "opera", authority="tool", confidence=0.4)
    await session.observe("likes", "jazz", authority="tool", confidence=0.7)
    for bound, listed in ((0.5, {"opera"}), (0.3, set()), (0.8, {"opera", "jazz"})):
        memory = await make(review_confidence=bound)
        assert {item.text.removeprefix("likes: ") for item in await memory.review("u1")} == listed


# -- forming -------------------------------------------------------------------------------------------------------


@shows("extractor")
async def extractor(make: Maker, dsn: str) -> None:
    for value, found in ((None, []), ("none", []), ("patterns", ["Lisbon"])):
        memory = await make(settings=Settings.model_validate({"extractor": value}))
        session = await memory.session.open("s1", user_id="u1")
        await session.add_turn("user", "I live in Lisbon.")
        await memory.form()
        assert [value for (value,) in rows(dsn, "SELECT value FROM pgmem.facts WHERE predicate = 'lives_in'")] == found


@shows("model")
async def model(make: Maker, dsn: str) -> None:
    stated = {"predicate": "likes", "value": "fado", "turn": 1, "quote": "nothing beats fado"}
    chat = Scripted(replies=[json.dumps({"facts": [stated]})])
    asked_for: list[str] = []

    def init_chat_model(name: str) -> Scripted:
        asked_for.append(name)
        return chat

    module = types.ModuleType("langchain.chat_models")
    module.init_chat_model = init_chat_model  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "langchain", types.ModuleType("langchain"))
        patch.setitem(sys.modules, "langchain.chat_models", module)
        for name, found in ((None, []), ("openai:gpt-4o-mini", ["fado"])):
            memory = await make(settings=Settings(model=name))
            session = await memory.session.open("s1", user_id="u1")
            await session.add_turn("user", "To my ears nothing beats fado.")
            await memory.form()
            assert [value for (value,) in rows(dsn, "SELECT value FROM pgmem.facts")] == found
    assert set(asked_for) == {"openai:gpt-4o-mini"}
    assert "nothing beats fado" in chat.prompt(0)


@shows("formation")
async def formation(make: Maker, dsn: str) -> None:
    # Formed once: as soon as nobody speaks, or when the session has ended.
    for mode, before, after in (
        ("exchange", 1, 0), ("idle:0s", 1, 0), ("idle:60s", 0, 1), ("session_end", 0, 1), ("manual", 0, 0),
    ):  # fmt: skip
        quiet = 60.0 if mode == "idle:0s" else 0.0
        memory = await make(formation=mode, formation_debounce_seconds=quiet, extractor="patterns")
        session = await memory.session.open(mode, user_id="u1")
        await session.add_turn("user", "I live in Lisbon.")
        assert await formed(memory) == before, mode
        await session.end()
        assert await formed(memory) == after, mode
        assert (await memory.form()).formed == (mode == "manual")  # by hand at any time


@shows("formation_debounce_seconds")
async def formation_debounce_seconds(make: Maker, dsn: str) -> None:
    for seconds, count in ((60.0, 0), (0.0, 1)):
        memory = await make(formation_debounce_seconds=seconds, extractor="patterns")
        session = await memory.session.open("s1", user_id="u1")
        await session.add_turn("user", "I live in Lisbon.")
        assert await formed(memory) == count, seconds


@shows("formation_lease_seconds")
async def formation_lease_seconds(make: Maker, dsn: str) -> None:
    left: list[float] = []

    class Watching:
        def extract(self, turns: Sequence[Turn], known: Sequence[Fact]) -> list[FactDraft]:
            of_it = "SELECT extract(epoch FROM forming_until - now())::float8 FROM pgmem.sessions"
            left.extend(seconds for (seconds,) in rows(dsn, of_it))
            return []

        async def aextract(self, turns: Sequence[Turn], known: Sequence[Fact]) -> list[FactDraft]:
            return self.extract(turns, known)

    for seconds in (5.0, 500.0):
        memory = await make(formation_lease_seconds=seconds, extractor=Watching())
        session = await memory.session.open("s1", user_id="u1")
        await session.add_turn("user", "I live in Lisbon.")
        left.clear()
        await memory.form()
        assert 0.9 * seconds < left[0] <= seconds


@shows("compact_after_tokens")
async def compact_after_tokens(make: Maker, dsn: str) -> None:
    line = "Day {}: we walked along the river, ate fish at the market and slept well afterwards."
    for number, (tokens, told) in enumerate(((2800, False), (400, True))):
        memory = await make(compact_after_tokens=tokens, summarizers=Tellers())
        session = await memory.session.open(f"s{number}", user_id=f"u{number}")
        await session.add_turns([{"role": "user", "content": line.format(day)} for day in range(20)])
        report = await memory.form()
        assert report.errors == {}
        assert (report.episodes > 0) is told, tokens
        await session.end()  # its rest, so that the next finds nothing waiting
        assert (await memory.form()).episodes > 0


# -- upkeep --------------------------------------------------------------------------------------------------------


@shows("injections_days")
async def injections_days(make: Maker, dsn: str) -> None:
    for days, gone in ((30.0, False), (5.0, True)):
        memory = await make(injections_days=days)
        session = await memory.session.open(f"s-{days}", user_id="u1")
        await session.observe("likes", "jazz", authority="user")
        context = await session.compile_context("music?")
        assert await memory.why(context.query_id)  # written by now
        with psycopg.connect(dsn) as conn:
            conn.execute("UPDATE pgmem.injections SET known_at = now() - interval '10 days'")
        assert ((await memory.expire()).injections > 0) is gone, days
        assert (await memory.why(context.query_id) == []) is gone, days


@shows("prune_after_days")
async def prune_after_days(make: Maker, dsn: str) -> None:
    session = await (await make()).session.open("s1", user_id="u1")
    await session.add_turns([{"role": "user", "content": f"jazz note {n}"} for n in range(4)])
    await session.end()
    with psycopg.connect(dsn) as conn:
        conn.execute("UPDATE pgmem.records SET created_at = now() - interval '100 days'")
    for days, gone in ((None, 0), (200.0, 0), (30.0, 4)):
        memory = await make(prune_after_days=days, upkeep_interval_seconds=1e-6)
        assert (await upkeep(memory)).pruned.turns == gone, days
        assert len(await session.turns()) == 4 - gone


@shows("upkeep_interval_seconds")
async def upkeep_interval_seconds(make: Maker, dsn: str) -> None:
    assert await upkeep(await make()) is not None
    with psycopg.connect(dsn) as conn:
        conn.execute("UPDATE pgmem.upkeep SET finished_at = now() - interval '10 minutes'")
    for seconds, due in ((3600.0, False), (700.0, False), (500.0, True)):
        assert (await upkeep(await make(upkeep_interval_seconds=seconds)) is not None) is due, seconds


# -- the worker ----------------------------------------------------------------------------------------------------


@shows("worker_poll_seconds")
async def worker_poll_seconds(make: Maker, dsn: str) -> None:
    writer = await make()
    for number, (seconds, seen) in enumerate(((30.0, False), (0.05, True))):
        memory = await make(worker_poll_seconds=seconds)
        await memory.start()
        await asyncio.sleep(0.2)  # its first round is over
        await writer.add(f"hello {number}", user_id="u1", session_id="s1")  # by another process, so to say
        await asyncio.sleep(0.5)
        with psycopg.connect(dsn) as conn:
            [behind] = conn.execute("SELECT count(*) FROM pgmem.pending_work")
        assert (behind[0] == 0) is seen
        await memory.close()


@shows("worker_lease_seconds")
async def worker_lease_seconds(make: Maker, dsn: str) -> None:
    left: list[float] = []

    class Watching(FakeEmbedder):
        def embed(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
            with psycopg.connect(dsn) as conn:
                left.extend(
                    row[0] for row in conn.execute(
                        "SELECT extract(epoch FROM claimed_until - now())::float8 FROM pgmem.sessions"
                        " WHERE claimed_until IS NOT NULL"
                    )
                )  # fmt: skip
            return super().embed(texts)

    for seconds in (5.0, 500.0):
        memory = await make(worker_lease_seconds=seconds, embedder=FakeEmbedder())
        memory.target._rt._embedder = Watching()
        await memory.add("the cello", user_id="u1")
        left.clear()
        await memory.form()
        assert 0.9 * seconds < left[0] <= seconds


@pytest.mark.parametrize("name", sorted(shows.checks))
async def test_c14_each_setting_has_an_effect(name: str, make_memory: Maker, dsn: str) -> None:
    await shows.checks[name](make_memory, dsn)
