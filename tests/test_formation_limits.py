"""What formation may do when, and to whose facts; and what is not written beside the turn where too much waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import psycopg
import pytest

from pgmem_core import SubjectRef, reading
from pgmem_core.effects import run, transact
from pgmem_core.facts import Fact, FactDraft
from pgmem_core.flows import store_model
from pgmem_core.formation import embedding
from pgmem_core.formation.embedding import Pending
from pgmem_core.types import Turn
from tests.fix_memory import Face, FakeEmbedder, Maker
from tests.telling import Tellers
from tests.test_formation import Told, diet, drained
from tests.test_prune import BY_USER, USER, rows

ACME = SubjectRef("customer", "Acme")


async def test_a_session_that_is_due_for_a_summary_is_read_when_it_has_ended(make_memory: Maker, dsn: str) -> None:
    told = Told(diet)
    memory = await make_memory(
        extractor=told, summarizers=Tellers(), formation="session_end", formation_debounce_seconds=0
    )
    session = await memory.session.create("s", user_id="u1")
    await session.add_turn("user", "I'm vegan")
    await drained(memory)
    assert told.asked == []
    # It was looked at for a summary, and stays on the list of what is to be read.
    assert rows(dsn, "SELECT unformed, uncompacted FROM pgmem.sessions") == [(True, False)]
    await session.end()
    await drained(memory)
    assert told.asked == [["I'm vegan"]]
    assert [fact.value for fact in await memory.facts(USER)] == ["vegan"]


@pytest.mark.parametrize("name", ["Acme", "acme"])
async def test_talk_about_the_groups_own_subject_is_the_users_knowledge(make_memory: Maker, name: str) -> None:
    """The extractor is shown what the group knows of Acme, and names it, by its id or in another case: neither is
    the group's fact changed, nor is the user's word lost, nor does the session fail."""

    def reader(turn: Turn, known: Sequence[Fact]) -> list[FactDraft]:
        shown = next((fact.id for fact in known if fact.subject == ACME), None)
        about = SubjectRef("customer", name)
        return [FactDraft("billing.plan", "monthly", subject=about, id=shown, turn_id=turn.id, quote=turn.text)]

    memory = await make_memory(extractor=Told(reader))
    session = await memory.session.create("s", user_id="u1")
    await session.observe("billing.plan", "annual", **BY_USER, subject=ACME)
    await session.add_turn("user", "Acme is on a monthly plan now")
    report = await memory.form()
    assert (report.errors, report.facts) == ({}, 1)
    assert [fact.value for fact in await memory.facts(ACME)] == ["annual"]
    found = await memory.facts(user_id="u1")
    assert sorted((fact.subject.identifier, fact.value) for fact in found) == [("Acme", "annual"), ("Acme", "monthly")]


async def test_a_fact_with_a_time_to_live_keeps_it_when_its_end_is_set(memory: Face, dsn: str) -> None:
    now = datetime.now(UTC)
    session = await memory.session.create("s", user_id="u1")
    for predicate, hours in (("billing.plan", 1), ("billing.cycle", 3)):
        await session.observe(predicate, "trial", **BY_USER, ttl_seconds=3600.0 * hours, single_valued=True)
        later = now + timedelta(days=2)
        await session.observe(predicate, "paid", **BY_USER, valid_from=later, single_valued=True)
    assert [fact.predicate for fact in await memory.facts(USER)] == ["billing.cycle", "billing.plan"]
    in_two_hours = await memory.facts(USER, valid_at=now + timedelta(hours=2))
    assert [fact.predicate for fact in in_two_hours] == ["billing.cycle"]
    rows(dsn, "UPDATE pgmem.facts SET expires_at = expires_at - interval '2 hours',"
              " valid_from = valid_from - interval '3 hours'")  # fmt: skip
    assert (await memory.expire()).facts == 1
    assert (await memory.expire()).facts == 0
    assert [fact.predicate for fact in await memory.facts(USER)] == ["billing.cycle"]


async def test_prompts_are_not_logged_where_writes_pile_up(
    memory: Face, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "_MOST_BEHIND", 3)
    rt = memory.target._rt
    session = await memory.session.create("s", user_id="u1")
    await session.observe("likes", "jazz", **BY_USER)
    stuck = await memory.session.create("stuck", user_id="u2")
    with psycopg.connect(dsn) as held:
        held.execute("SELECT 1 FROM pgmem.sessions WHERE session_id = 'stuck' FOR UPDATE")
        await stuck.compile_context("What do I like?")  # its turn waits for the lock, and all behind it
        for number in range(6):
            await session.compile_context(query=f"What do I like, {number}?", store_query=False, query_id=str(number))
        assert rt.behind == 3
        assert "not logged" in caplog.text
    await asyncio.to_thread(lambda: rt.beside(lambda: None).result())
    assert len(rows(dsn, "SELECT FROM pgmem.injections WHERE session_id = 's'")) == 2
    await session.compile_context(query="What do I like?", store_query=False, query_id="last")
    await asyncio.to_thread(lambda: rt.beside(lambda: None).result())
    assert len(rows(dsn, "SELECT FROM pgmem.injections WHERE session_id = 's'")) == 3


async def test_workers_that_embed_the_same_facts_do_not_wait_for_each_other(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(embedder=FakeEmbedder())
    session = await memory.session.create("s", user_id="u1")
    for number in range(40):
        await session.observe("likes", f"thing {number}", **BY_USER)
    database = memory.target._rt.database
    model = run(store_model(memory.target._rt), database)
    loose = run(transact(embedding.load_loose, tenant_id=None, after=None, single=True), database)
    found = [pending for _, _, pending in loose]
    assert len(found) == 40
    vectors = np.ones((40, 8), dtype=np.float32)

    def store(turns: list[Pending]) -> int:
        rounds = [
            run(transact(embedding.store_vectors, "default", turns, vectors, model=model, single=True), database)
            for _ in range(12)
        ]
        return sum(rounds)

    # By turns in either order, they would lock crosswise.
    counts = await asyncio.gather(asyncio.to_thread(store, found), asyncio.to_thread(store, found[::-1]))
    assert list(counts) == [12 * 40, 12 * 40]
    assert rows(dsn, "SELECT count(*) FROM pgmem.records WHERE model IS NOT NULL") == [(40,)]
