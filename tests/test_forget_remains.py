"""What an erasure must find although its turn is gone, or nobody thinks of it: quotes, notes, errors; and whom it may
not wait for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psycopg

from pgmem_core import Evidence
from pgmem_core.effects import run, transact
from pgmem_core.formation import leases
from pgmem_core.formation.leases import Due
from tests.fix_memory import Face, Maker
from tests.telling import Tellers
from tests.test_prune import BY_USER, USER, rows, talk

QUOTED = "SELECT quote FROM pgmem.evidence WHERE quote IS NOT NULL ORDER BY quote"


async def pruned(memory: Face, session_id: str) -> str:
    """A fact that quotes a turn which was pruned since; returns the turn's id."""
    session = await talk(memory, session_id, 6)
    told = (await session.turns())[1]
    cited = Evidence(turn_id=told.id, quote=f"words of {session_id}")
    await session.observe("likes", f"the {session_id} aubergine", **BY_USER, evidence=[cited])
    await session.end()
    await memory.prune(30, keep_evidence=False)
    return str(told.id)


async def test_the_quote_of_a_pruned_turn_goes_with_its_session(memory: Face, dsn: str) -> None:
    for name in ("s1", "s2"):
        await pruned(memory, name)
    assert rows(dsn, QUOTED) == [("words of s1",), ("words of s2",)]
    report = await memory.forget(session_id="s1")
    assert (report.rows["facts"], report.rows["evidence"]) == (1, 1)
    assert rows(dsn, QUOTED) == [("words of s2",)]
    assert [fact.value for fact in await memory.facts(USER)] == ["the s2 aubergine"]


async def test_the_quote_of_a_pruned_turn_goes_with_the_turn(memory: Face, dsn: str) -> None:
    turn_id = await pruned(memory, "s1")
    await pruned(memory, "s2")
    # Supported by something else too, the fact stays, without the quote.
    [both] = [fact for fact in await memory.facts(USER) if "s1" in fact.value]
    other = await memory.session.open("s3", user_id="u1")
    await other.observe("likes", both.value, **BY_USER, evidence="crm:1")
    await memory.forget(turn_id=turn_id)
    assert rows(dsn, QUOTED) == [("words of s2",)]
    assert sorted(fact.value for fact in await memory.facts(USER)) == ["the s1 aubergine", "the s2 aubergine"]


async def test_an_older_export_does_not_bring_the_quote_back(memory: Face, dsn: str, tmp_path: Path) -> None:
    await pruned(memory, "s1")
    await pruned(memory, "s2")
    await memory.export(tmp_path / "all.jsonl")
    await memory.forget(session_id="s1")
    await memory.import_(tmp_path / "all.jsonl")
    assert rows(dsn, QUOTED) == [("words of s2",)]
    await memory.forget(session_id="s2")
    assert rows(dsn, QUOTED) == []


async def test_a_note_about_a_value_that_nobody_claimed_goes_with_its_user(memory: Face, dsn: str) -> None:
    for user in ("u1", "u2"):
        session = await memory.session.create(user_id=user)
        await session.retract("diet", "vegan", **BY_USER)
        [item] = await memory.review(user_id=user, status="rejected")
        await memory.decide(item, "reopen", decided_by="grace", note=f"asked {user}")
    report = await memory.forget(user_id="u1")
    assert report.rows["decisions"] == 1
    assert rows(dsn, "SELECT note FROM pgmem.decisions") == [("asked u2",)]


class Quoting:
    """An extractor whose error quotes what it was given, as those of parsers and providers do."""

    def extract(self, turns: Any, known: Any) -> Any:
        raise ValueError(f"cannot read {turns[0].text!r}")

    async def aextract(self, turns: Any, known: Any) -> Any:
        return self.extract(turns, known)


async def test_an_error_that_quotes_a_turn_goes_with_it(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(extractor=Quoting())
    for name in ("s1", "s2"):
        session = await memory.session.create(name, user_id="u1")
        told = await session.add_turn("user", f"My secret is {name}")
        await session.add_turn("user", "And I like tea")
    await memory.form()
    errors = "SELECT session_id, forming_error LIKE '%%My secret%%' FROM pgmem.sessions ORDER BY 1"
    assert rows(dsn, errors) == [("s1", True), ("s2", True)]
    await memory.forget(turn_id=told.id)
    assert rows(dsn, errors) == [("s1", True), ("s2", None)]


async def test_an_erasure_does_not_wait_for_a_session_while_it_holds_a_subject(make_memory: Maker, dsn: str) -> None:
    """Sessions are locked before subjects everywhere: the other way round two writers wait for each other."""
    memory = await make_memory(summarizers=Tellers())
    old = await memory.session.create("old", user_id="u1")
    told = await old.add_turn("user", "I live in Porto and I like jazz")
    await old.observe("likes", "jazz", **BY_USER, evidence=[told])
    await old.compact()
    new = await memory.session.create("new", user_id="u1")
    await new.add_turn("user", "Something else that I say")
    with psycopg.connect(dsn) as held:
        held.execute("SELECT 1 FROM pgmem.sessions WHERE session_id = 'new' FOR UPDATE")
        report = await asyncio.wait_for(memory.forget(turn_id=told.id), 5)
    assert report.rows["narratives"] == 1
    assert rows(dsn, "SELECT session_id FROM pgmem.sessions WHERE uncompacted AND session_id = 'old'") == [("old",)]


async def test_a_story_erased_behind_a_workers_last_look_is_written_anew(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(summarizers=Tellers())
    note = await memory.session.create("note", user_id="u1")
    told = await note.add_turn("user", "I was born in Porto, and I like jazz")
    await note.end()
    session = await memory.session.create("s", user_id="u1")
    await session.add_turn("user", "I live in Lisbon and I like blues")
    await memory.form()
    on_list = "SELECT session_id FROM pgmem.sessions WHERE uncompacted"
    assert rows(dsn, on_list) == []
    rows(dsn, "UPDATE pgmem.sessions SET uncompacted = true WHERE session_id = 's'")
    due = Due(extracts=False, summarises=True, mode="exchange", debounce_seconds=0)
    for erased in (False, True):
        [held] = run(
            transact(leases.claim, due, limit=1, lease_seconds=60, tenant_id=None, session_id="s", eager=True,
                     all_of_it=True, single=True),
            memory.target._rt.database,
        )  # fmt: skip
        if erased:  # the worker has looked, and found nothing to write
            assert (await memory.forget(turn_id=told.id)).rows["narratives"] >= 1
        run(transact(leases.finish, held, formed=False, compacted=True, single=True), memory.target._rt.database)
        assert ("s",) in rows(dsn, on_list) if erased else rows(dsn, on_list) == []
        rows(dsn, "UPDATE pgmem.sessions SET uncompacted = true WHERE session_id = 's'")


async def test_a_session_begun_while_its_user_is_forgotten_is_whole(memory: Face, dsn: str) -> None:
    first = await memory.session.create("first", user_id="u1")
    await first.add_turn("user", "I live in Porto and I like jazz")
    with psycopg.connect(dsn) as held:
        held.execute("SELECT pgmem.lock_narrative('default', 'u1')")  # the erasure has looked at all there is by then
        forgetting = asyncio.ensure_future(memory.forget(user_id="u1"))
        while not rows(dsn, "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
            await asyncio.sleep(0.005)
        new = await memory.session.create("new", user_id="u1")
        await new.add_turn("user", "I live in Rome")
    report = await forgetting
    assert (report.rows["turns"], report.rows["sessions"]) == (1, 1)
    # Its turn was said since: it stays, and so does the session that numbers it.
    await (await memory.session.open("new", user_id="u1")).add_turn("assistant", "Rome it is")
    assert [turn.seq for turn in await new.turns()] == [1, 2]
    assert [one.session_id for one in await memory.session.list(user_id="u1")] == ["new"]
