"""Embedding off the turn: the worker, the drain, failures, and the time limit of a query's embedding."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psycopg
import pytest

from pgmem_core import AsyncPgMem, BundledEmbedder, PgMem
from tests.fix_memory import Face, FakeEmbedder, Maker


class Slow(BundledEmbedder):
    """The bundled embedder, remote and slow once told to be."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = 0.0
        self._later = seconds

    @property
    def local(self) -> bool:
        return False

    def slow_down(self) -> None:
        self.seconds = self._later

    def embed(self, texts: Sequence[str]) -> Any:
        time.sleep(self.seconds)
        return super().embed(texts)

    async def aembed(self, texts: Sequence[str]) -> Any:
        await asyncio.sleep(self.seconds)
        return super().embed(texts)


async def test_found_by_words_at_once_and_by_meaning_once_formed(make_memory: Maker) -> None:
    memory = await make_memory()
    session = await memory.session.create(user_id="u1")
    await session.add_turn("user", "The physician prescribed rest")
    [found] = await memory.search("physician", user_id="u1")
    assert found.parts.cosine is None
    assert found.parts.bm25 > 0
    assert "not embedded yet" in found.parts.why()
    assert await memory.search("doctor", user_id="u1") == []
    report = await memory.form()
    assert (report.turns, report.sessions, report.errors) == (1, 1, {})
    [found] = await memory.search("doctor", user_id="u1")
    assert found.parts.bm25 == 0
    assert (found.parts.cosine or 0) > 0.2
    assert (await memory.form()).turns == 0


async def test_the_worker_forms_what_is_written(make_memory: Maker) -> None:
    memory = await make_memory()
    await memory.start()
    await memory.start()  # a second call changes nothing
    session = await memory.session.create(user_id="u1")
    await session.add_turn("user", "The physician prescribed rest")
    deadline = time.monotonic() + 5
    while not (found := await memory.search("doctor", user_id="u1")) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert found


async def test_an_exchange_is_embedded_with_its_question(make_memory: Maker) -> None:
    embedder = FakeEmbedder()
    memory = await make_memory(embedder=embedder)
    session = await memory.session.create(user_id="u1")
    await session.add_turn("system", "never embedded")
    await session.add_turn("user", "where do you live?", name="Ada")
    await session.add_turn("assistant", "in Porto")
    embedder.texts.clear()
    await memory.form()
    assert embedder.texts == [
        "Ada: where do you live?",
        "in Porto",
        "Ada: where do you live?",
        "Ada: where do you live?\nin Porto",
    ]


async def test_a_failing_embedder_loses_no_turn_and_is_seen(make_memory: Maker, dsn: str) -> None:
    broken = {"on": True}
    embedder = FakeEmbedder(fail=lambda text: broken["on"] and "cursed" in text)
    memory = await make_memory(embedder=embedder)
    good, bad = [await memory.session.create(name, user_id="u1") for name in ("good", "bad")]
    await good.add_turn("user", "a plain sentence")
    await bad.add_turn("user", "a cursed sentence")
    report = await memory.form()
    assert report.turns == 1
    assert list(report.errors) == ["bad"]
    assert "out of order" in report.errors["bad"]
    assert [turn.text for turn in await bad.turns()] == ["a cursed sentence"]
    assert (await memory.search("cursed", user_id="u1"))[0].content == "a cursed sentence"
    with psycopg.connect(dsn) as conn:
        [(session, behind, attempts, error)] = conn.execute(
            "SELECT session_id, turns_behind, attempts, last_error FROM pgmem.pending_work"
        ).fetchall()
    assert (session, behind, attempts) == ("bad", 1, 1)
    assert "out of order" in error
    broken["on"] = False
    assert (await memory.form()).turns == 1
    with psycopg.connect(dsn) as conn:
        assert conn.execute("SELECT count(*) FROM pgmem.pending_work").fetchone() == (0,)


async def test_one_bad_vector_costs_one_turn_its_meaning(make_memory: Maker) -> None:
    nan = [float("nan")] * 8
    embedder = FakeEmbedder({"the odd one": nan, "first\nthe odd one": nan, "the odd one\nlast": [1.0] * 8})
    memory = await make_memory(embedder=embedder)
    session = await memory.session.create("s", user_id="u1")
    await session.add_turns([{"role": "user", "content": text} for text in ("first", "the odd one", "last")])
    report = await memory.form()
    assert (report.turns, report.errors) == (2, {})
    found = {one.content: one.parts.cosine for one in await memory.search("the odd one first last", user_id="u1")}
    assert found["the odd one"] is None
    assert found["first"] is not None
    assert found["last"] is not None
    assert (await session.info()).embedded_through == 3


async def test_a_slow_embedder_costs_the_read_its_limit_only(make_memory: Maker) -> None:
    embedder = Slow(2.0)
    memory = await make_memory(embedder=embedder, embed_timeout_ms=60)
    session = await memory.session.create(user_id="u1")
    await session.add_turn("user", "The physician prescribed rest")
    await memory.form()
    embedder.slow_down()
    other = await memory.session.create(user_id="u1")
    ctx = await other.compile_context("what did the physician say?", store_query=False)
    assert ctx.timings["words_only"] == 1.0
    assert any("took longer than 0.06 s" in note for note in ctx.notes)
    assert ctx.sections["episodic"].items  # found by words
    assert ctx.timings["embed_ms"] < 1000  # not the two seconds; the exact limit is the benchmark's to measure
    await asyncio.sleep(2.2)  # the late answer was kept
    again = await other.compile_context("what did the physician say?", store_query=False)
    assert again.timings["words_only"] == 0.0


async def test_a_query_is_embedded_once(make_memory: Maker) -> None:
    embedder = FakeEmbedder()
    memory = await make_memory(embedder=embedder)
    session = await memory.session.create(user_id="u1")
    for _ in range(3):
        await session.compile_context("the same question", store_query=False)
    assert embedder.texts.count("the same question") == 1


async def test_two_workers_embed_each_turn_once(make_memory: Maker) -> None:
    embedder = FakeEmbedder()
    one, two = [await make_memory(embedder=embedder) for _ in range(2)]
    for i in range(20):
        session = await one.session.create(user_id=f"u{i}")
        await session.add_turns([{"role": "user", "content": f"sentence {i}-{j}"} for j in range(5)])
    reports = await asyncio.gather(one.form(), two.form())
    assert sum(report.turns for report in reports) == 100
    assert max(embedder.texts.count(f"sentence {i}-3") for i in range(20)) == 1


def test_a_killed_worker_loses_nothing(dsn: str) -> None:
    """SIGKILL while it embeds: its lease runs out, and another worker does the work, once."""
    program = """
        import os, signal, sys
        from pgmem_core import BundledEmbedder, PgMem

        class Deadly(BundledEmbedder):
            def embed(self, texts):
                if any("sentence" in text for text in texts):
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().embed(texts)

        PgMem(sys.argv[1], embedder=Deadly(), worker_lease_seconds=0.5).form()
    """
    with PgMem(dsn) as mem:
        mem._worker.stop()
        session = mem.session.create(user_id="u1")
        session.add_turns([{"role": "user", "content": f"sentence {i}"} for i in range(5)])
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), dsn], check=False, capture_output=True)
        assert done.returncode == -9, done.stderr.decode()
        assert session.info().embedded_through == 0
        report = mem.form()  # waits for the lease of the dead
        assert report.turns == 5
        assert session.info().embedded_through == 5


async def test_cancelling_a_read_leaves_the_client_whole(dsn: str) -> None:
    async with AsyncPgMem(dsn, embedder=Slow(0.0), embed_timeout_ms=5000) as mem:
        session = await mem.session.create(user_id="u1")
        await session.add_turn("user", "hello")
        await mem.form()
        mem._rt.embedder.slow_down()  # type: ignore[attr-defined]
        mem._rt.embedder.seconds = 3.0  # type: ignore[attr-defined]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(session.compile_context("slow question"), 0.1)
        mem._rt.embedder.seconds = 0.0  # type: ignore[attr-defined]
        assert (await session.compile_context("another question")).messages[-1]["content"] == "another question"


def test_vectors_are_what_the_embedder_gave(dsn: str) -> None:
    embedder = FakeEmbedder({"the cello": [3.0, 4.0] + [0.0] * 6})
    with PgMem(dsn, embedder=embedder) as mem:
        mem.add("the cello", user_id="u1")
        mem.form()
    with psycopg.connect(dsn) as conn:
        [(vector,)] = conn.execute("SELECT embedding::text FROM pgmem.memories").fetchall()
    assert np.allclose([float(x) for x in vector[1:-1].split(",")][:3], [0.6, 0.8, 0.0])


async def test_facts_and_edited_notes_get_their_vectors(make_memory: Maker) -> None:
    memory = await make_memory()
    session = await memory.session.create(user_id="u1")
    await session.observe("allergic_to", "walnuts", authority="user")
    [turn] = await memory.add("The physician prescribed rest", user_id="u1")
    await memory.update(turn.id, "The dentist pulled a tooth")
    report = await memory.form()
    assert report.turns == 2
    found = {one.content: one.parts.cosine for one in await memory.search("nut allergy dentist", user_id="u1")}
    assert found["allergic to: walnuts"] is not None
    assert found["The dentist pulled a tooth"] is not None
    assert (await memory.form()).turns == 0


async def test_a_text_the_embedder_refuses_holds_up_its_session_for_a_while_only(make_memory: Maker) -> None:
    memory = await make_memory(embedder=FakeEmbedder(fail=lambda text: "forbidden" in text))
    session = await memory.session.create("s", user_id="u1")
    await session.add_turns([{"role": "user", "content": f"a fine sentence {i}"} for i in range(3)])
    await session.add_turn("user", "the forbidden one")
    reports = [await memory.form() for _ in range(4)]
    assert [report.turns for report in reports] == [0, 0, 0, 3]
    assert (await session.info()).embedded_through == 4
    found = {one.content: one.parts.cosine for one in await memory.search("the one fine sentence", user_id="u1")}
    assert found["the forbidden one"] is None
    assert found["a fine sentence 1"] is not None


async def test_very_old_turns_are_found(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    await session.add_turn("user", "the steam engine", created_at=datetime(1801, 1, 1, tzinfo=UTC))
    await session.add_turn("user", "a steam iron")
    assert {one.content for one in await memory.search("steam", user_id="u1")} == {"the steam engine", "a steam iron"}


async def test_an_async_engine_has_its_worker_too(dsn: str) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    async with AsyncPgMem(engine) as mem:
        session = await mem.session.create(user_id="u1")
        await session.compile_context("written beside the turn, on a connection of its own")
        deadline = time.monotonic() + 5
        async with AsyncPgMem(dsn) as other:
            while not (seen := await (await other.session.get(session.id)).turns()) and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
    assert [turn.text for turn in seen] == ["written beside the turn, on a connection of its own"]
    await engine.dispose()
