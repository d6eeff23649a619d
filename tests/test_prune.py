"""Pruning and expiry on real Postgres: what is old goes, what is needed stays, and reading goes on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgmem_core import Authority, InvalidArgument, SubjectRef
from pgmem_core.effects import run
from pgmem_core.facts import FactDraft
from pgmem_core.lifecycle import schedule
from tests.fix_memory import Face, Maker

USER = SubjectRef("user", "u1")
BY_USER: dict[str, Any] = {"authority": Authority.user}
OLD = datetime.now(UTC) - timedelta(days=100)


def rows(dsn: str, statement: str, *parameters: Any) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        done = conn.execute(statement, parameters)
        return done.fetchall() if done.description is not None else []


async def talk(memory: Face, session_id: str, count: int, *, at: datetime = OLD, user: str = "u1") -> Face:
    session = await memory.session.open(session_id, user_id=user)
    await session.add_turns(
        [
            {"role": ("user", "assistant")[number % 2], "content": f"{session_id} word{number} aubergine",
             "created_at": at + timedelta(seconds=number)}
            for number in range(count)
        ]
    )  # fmt: skip
    return session


async def texts(session: Face) -> list[int]:
    return [turn.seq for turn in await session.turns()]


# -- which turns go --------------------------------------------------------------------------------------------


async def test_old_turns_of_ended_sessions_go_and_new_ones_stay(memory: Face, dsn: str) -> None:
    old, new = await talk(memory, "old", 6), await talk(memory, "new", 4, at=datetime.now(UTC) - timedelta(days=2))
    await memory.form()
    await old.end()
    await new.end()
    report = await memory.prune(30)
    assert (report.turns, report.injections, report.evidence_unlinked) == (6, 0, 0)
    assert await texts(old) == []
    assert await texts(new) == [1, 2, 3, 4]
    assert rows(dsn, "SELECT count(*) FROM pgmem.postings p WHERE NOT EXISTS (SELECT FROM pgmem.records r"
                     " WHERE r.id = p.record_id)") == [(0,)]  # fmt: skip
    # What is pruned is not found, what is not is.
    found = [one.content for one in await memory.search("aubergine", user_id="u1")]
    assert found
    assert all(text.startswith("new") for text in found)
    assert (await memory.prune(30)).turns == 0


async def test_the_window_of_an_open_session_stays(make_memory: Maker) -> None:
    memory = await make_memory(window_turns=4, budget_tokens=400)
    session = await memory.session.create("s1", user_id="u1")
    await session.add_turn("system", "Be brief.", created_at=OLD)
    await talk(memory, "s1", 20)
    before = await session.compile_context("and now?", store_query=False)
    assert (await memory.prune(30)).turns == 16
    assert await texts(session) == [1, 18, 19, 20, 21]
    after = await session.compile_context("and now?", store_query=False)
    assert after.messages == before.messages  # byte for byte
    assert [turn.seq for turn in await session.window()] == [18, 19, 20, 21]
    assert (await session.add_turn("user", "It goes on.")).seq == 22
    assert await memory.form() is not None
    assert (await session.info()).turn_count == 22


async def test_a_pruned_session_reads_as_before(make_memory: Maker) -> None:
    """Ended and emptied, or emptied and opened again: every read works."""
    memory = await make_memory()
    session = await talk(memory, "s1", 10)
    await session.end()
    assert (await memory.prune(30)).turns == 10
    assert await session.window() == []
    assert await session.turns(5) == []
    context = await session.compile_context("what was it?", store_query=False)
    assert context.messages[-1]["content"] == "what was it?"
    again = await memory.session.open("s1", user_id="u1")
    assert (await again.add_turn("user", "Where were we?")).seq == 11
    context = await again.compile_context("Hello?", store_query=False)
    said = [message["content"] for message in context.messages if message["role"] == "user"]
    assert said[0] == "Where were we?"
    assert (await memory.form()).errors == {}


async def test_evidence_is_kept_with_its_turn_or_with_its_quote(memory: Face, dsn: str) -> None:
    session = await talk(memory, "s1", 6)
    [_, told, *_] = turns = await session.turns()
    fact = await session.observe("likes", "aubergines", **BY_USER, evidence=[told])
    wrong = await session.observe("diet", "vegan", **BY_USER, evidence=[turns[3]])
    await session.retract("diet", "vegan", **BY_USER)
    await session.end()
    assert (await memory.prune(30)).turns == 4
    assert await texts(session) == [2, 4]
    [kept] = await memory.facts(USER)
    assert kept == fact
    report = await memory.prune(30, keep_evidence=False)
    assert (report.turns, report.evidence_unlinked) == (2, 2)
    [kept] = await memory.facts(USER)
    assert (kept.id, kept.value) == (fact.id, "aubergines")
    assert [one.source for one in kept.evidence] == [f"turn {told.id} of session s1, pruned"]
    assert rows(dsn, "SELECT count(*) FROM pgmem.facts f WHERE NOT EXISTS (SELECT FROM pgmem.evidence e"
                     " WHERE e.fact_id = f.fact_id)") == [(0,)]  # fmt: skip
    # A value called wrong is dead still, and a neighbour is not.
    assert await session.observe("diet", "vegan") is None
    assert [one.id for one in await memory.history(USER, "diet")] == [wrong.id]
    assert (await session.observe("diet", "vegetarian", **BY_USER)).value == "vegetarian"
    assert [one.content for one in await memory.search("aubergines", user_id="u1")] == ["likes: aubergines"]


class Reads:
    """Reads nothing into turns."""

    def extract(self, turns: Any, known: Any) -> list[FactDraft]:
        return []

    async def aextract(self, turns: Any, known: Any) -> list[FactDraft]:
        return []


async def test_what_is_still_to_be_read_waits(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(extractor=Reads(), formation="manual")
    session = await talk(memory, "s1", 4)
    await session.end()
    assert (await memory.prune(30)).turns == 0
    await memory.form()
    # Also where the one that prunes has no extractor of its own: the group shows that somebody has.
    pruning = await make_memory()
    more = await talk(memory, "s2", 3)
    await more.end()
    assert (await pruning.prune(30)).turns == 4
    assert (await pruning.prune(30)).turns == 0
    assert (await pruning.prune(30, force=True)).turns == 3
    assert rows(dsn, "SELECT count(*) FROM pgmem.records") == [(0,)]


async def test_batches_leave_nothing_out(memory: Face, dsn: str) -> None:
    for number in range(5):
        session = await talk(memory, f"s{number}", 7, user=f"u{number % 2}")
        if number == 2:
            turns = await session.turns()
            for turn in turns[:4]:  # more evidence than a batch holds does not stop the walk
                await session.observe("said", turn.text, single_valued=False, evidence=[turn])
        await session.end()
    other = await memory.session.create("x", user_id="u9", group_id="other")
    await other.add_turn("user", "elsewhere", created_at=OLD)
    await other.end()
    assert (await memory.prune(30, batch=3, group_id="default")).turns == 31
    assert rows(dsn, "SELECT session_id, count(*) FROM pgmem.records WHERE seq IS NOT NULL GROUP BY 1 ORDER BY 1") == [
        ("s2", 4), ("x", 1)]  # fmt: skip
    assert (await memory.prune(30, batch=1)).turns == 1


async def test_bad_arguments_are_refused(memory: Face) -> None:
    session = await talk(memory, "s1", 2)
    await session.end()
    for wrong in ({"older_than_days": -1}, {"older_than_days": "30"}, {"older_than_days": True},
                  {"older_than_days": 30, "batch": 0}, {"older_than_days": 30, "group_id": ""}):  # fmt: skip
        with pytest.raises(InvalidArgument):
            await memory.prune(**wrong)
    assert await texts(session) == [1, 2]


async def test_pruning_while_facts_come_to_rest_on_old_turns(memory: Face, dsn: str) -> None:
    session = await talk(memory, "s1", 20)
    turns = await session.turns()
    await session.end()

    async def observe(turn: Any) -> None:
        try:
            await session.observe("said", turn.text, single_valued=False, evidence=[turn])
        except LookupError:
            pass  # pruned before

    await asyncio.gather(*(observe(turn) for turn in turns), memory.prune(30, batch=2))
    assert rows(dsn, "SELECT count(*) FROM pgmem.facts f WHERE NOT EXISTS (SELECT FROM pgmem.evidence e"
                     " WHERE e.fact_id = f.fact_id)") == [(0,)]  # fmt: skip
    facts = len(await memory.facts(USER))
    assert len(await texts(session)) >= facts


# -- what an agent was shown -----------------------------------------------------------------------------------


async def test_old_entries_of_the_injection_log_go(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(injections_days=10)
    session = await memory.session.create("s1", user_id="u1")
    await session.observe("likes", "aubergines", **BY_USER)
    for question in ("what do I like?", "and what else?"):
        await session.compile_context(question, floor=None)
    await asyncio.to_thread(memory.target._rt.beside(lambda: None).result)
    assert rows(dsn, "SELECT count(*) FROM pgmem.injections") == [(2,)]
    assert (await memory.expire()).injections == 0
    rows(dsn, "UPDATE pgmem.injections SET known_at = now() - interval '11 days' WHERE injection_id ="
              " (SELECT injection_id FROM pgmem.injections ORDER BY known_at LIMIT 1)")  # fmt: skip
    assert (await memory.prune(30)).injections == 1
    assert rows(dsn, "SELECT count(*) FROM pgmem.injections") == [(1,)]


# -- expiry ----------------------------------------------------------------------------------------------------


def age(dsn: str, table: str, seconds: float) -> None:
    """Let what will expire have expired some seconds ago."""
    rows(dsn, f"UPDATE pgmem.{table} SET expires_at = now() - %s * interval '1 second' WHERE expires_at IS NOT NULL",
         seconds)  # fmt: skip
    if table == "facts":
        rows(dsn, "UPDATE pgmem.facts SET recorded_at = recorded_at - interval '1 day'")


async def test_an_expired_fact_is_gone_at_once_and_was_true(memory: Face, dsn: str) -> None:
    session = await memory.session.create("s1", user_id="u1")
    kept = await session.observe("city", "Porto", **BY_USER)
    made = await session.observe("mood", "glad", **BY_USER, ttl_seconds=3600, valid_from=OLD)
    assert [fact.value for fact in await memory.facts(USER)] == ["Porto", "glad"]
    age(dsn, "facts", 10)
    before = datetime.now(UTC) - timedelta(seconds=20)

    async def shown() -> list[Any]:
        context = await session.compile_context("how am I?", store_query=False, floor=None)
        prompt = str(context.messages)
        found = [one.content for one in await memory.search("mood glad city Porto", user_id="u1")]
        return [["glad" in prompt, "Porto" in prompt], found, [fact.value for fact in await memory.facts(USER)]]

    expected = [[False, True], ["city: Porto"], ["Porto"]]
    assert await shown() == expected  # nobody has swept yet
    assert (await memory.expire(group_id="another")).facts == 0
    assert (await memory.expire()).facts == 1
    assert await shown() == expected
    assert (await memory.expire()).facts == 0
    assert [fact.value for fact in await memory.facts(USER, "mood", valid_at=before)] == ["glad"]
    first, second = await memory.history(USER, "mood")
    assert (first.id, first.superseded_by) == (made.id, second.id)
    assert second.valid_to is not None
    assert second.valid_to < datetime.now(UTC)
    assert rows(dsn, "SELECT ended_as FROM pgmem.facts WHERE fact_id = %s", made.id) == [("ended",)]
    assert (await memory.facts(USER, "city"))[0].id == kept.id


async def test_said_again_after_it_expired_it_is_news(memory: Face, dsn: str) -> None:
    session = await memory.session.create("s1", user_id="u1")
    made = await session.observe("mood", "glad", **BY_USER, ttl_seconds=3600)
    again = await session.observe("mood", "glad", **BY_USER, ttl_seconds=7200)  # before: its time starts anew
    assert again.id == made.id
    [(left,)] = rows(dsn, "SELECT extract(epoch FROM expires_at - now()) FROM pgmem.facts")
    assert left > 7000
    age(dsn, "facts", 10)
    news = await session.observe("mood", "glad", **BY_USER)
    assert news.id != made.id
    assert [fact.id for fact in await memory.facts(USER)] == [news.id]
    # A fact without an end gets none from somebody who is sure of it for an hour.
    assert (await session.observe("mood", "glad", **BY_USER, ttl_seconds=60)).id == news.id
    assert rows(dsn, "SELECT count(*) FROM pgmem.facts WHERE expires_at > now()") == [(0,)]


async def test_a_dead_value_stays_dead_after_expiry_and_pruning(memory: Face, dsn: str) -> None:
    session = await memory.session.create("s1", user_id="u1")
    said = await session.add_turn("user", "I am vegan", created_at=OLD)
    await session.observe("diet", "vegan", **BY_USER, evidence=[said], ttl_seconds=3600)
    await session.retract("diet", "vegan", **BY_USER)
    await session.observe("pet", "a cat", **BY_USER)
    age(dsn, "facts", 10)
    await session.end()
    await memory.expire()
    await memory.prune(30, keep_evidence=False)
    for authority in ("agent", "tool"):
        assert await session.observe("diet", "Vegan", authority=authority) is None
    assert [fact.value for fact in await memory.facts(USER)] == ["a cat"]
    assert await session.observe("pet", "a dog", **BY_USER, single_valued=False) is not None


async def test_a_time_to_live_that_is_none_is_refused(memory: Face) -> None:
    session = await memory.session.create("s1", user_id="u1")
    for ttl in (0, -1, True, "60", float("inf")):
        with pytest.raises(InvalidArgument, match="ttl_seconds"):
            await session.observe("mood", "glad", ttl_seconds=ttl)
    assert await memory.facts(USER) == []


async def test_expired_scratch_and_what_an_ended_session_left_go(memory: Face, dsn: str) -> None:
    open_, ended = await memory.session.create("open", user_id="u1"), await memory.session.create("ended", user_id="u1")
    await open_.execution.set("plan", "stays")
    await open_.execution.set("draft", "goes", ttl_seconds=3600)
    age(dsn, "execution", 1)
    await ended.execution.set("plan", "left behind")
    rows(dsn, "UPDATE pgmem.sessions SET ended_at = now() WHERE session_id = 'ended'")
    assert (await memory.expire()).execution == 2
    assert rows(dsn, "SELECT key FROM pgmem.execution") == [("plan",)]
    assert await open_.execution.all() == {"plan": "stays"}


# -- the schedule ----------------------------------------------------------------------------------------------


async def test_one_worker_of_many_makes_the_round(make_memory: Maker, dsn: str) -> None:
    options = {"prune_after_days": 30, "upkeep_interval_seconds": 3600}
    workers = [await make_memory(**options) for _ in range(4)]
    session = await talk(workers[0], "s1", 4)
    await session.end()

    def round_of(memory: Face) -> Any:
        rt = memory.target._rt
        return run(schedule.round_(rt), rt.database)

    done = await asyncio.gather(*(asyncio.to_thread(round_of, one) for one in workers))
    assert [one.pruned.turns for one in done if one is not None] == [4]
    assert await asyncio.to_thread(round_of, workers[0]) is None  # it is not time yet
    rows(dsn, "UPDATE pgmem.upkeep SET finished_at = finished_at - interval '2 hours'")
    assert (await asyncio.to_thread(round_of, workers[1])).total == 0
    assert rows(dsn, "SELECT attempts, last_error, did->'pruned'->>'turns' FROM pgmem.upkeep") == [(0, None, "0")]


async def test_a_round_that_was_stopped_is_another_workers(make_memory: Maker) -> None:
    memory = await make_memory(prune_after_days=30)
    session = await talk(memory, "s1", 4)
    await session.end()
    rt = memory.target._rt
    stopped = await asyncio.to_thread(lambda: run(schedule.round_(rt, stopped=lambda: True), rt.database))
    assert stopped.total == 0
    done = await asyncio.to_thread(lambda: run(schedule.round_(rt), rt.database))
    assert done.pruned.turns == 4
