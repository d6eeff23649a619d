"""What an agent was shown: memory as it was known then, the same bytes again from the injection log, and why."""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgmem_core import CompiledContext, InvalidArgument, PgMem, SchemaError, SubjectRef, cli
from tests.fix_memory import Face, Maker
from tests.test_prefix import anew, sum_up, tell, write

BY_USER: dict[str, Any] = {"authority": "user"}
QUIET: dict[str, Any] = {"store_query": False}


def rows(dsn: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(statement, values).fetchall()


async def logged(memory: Face, dsn: str) -> list[tuple[Any, ...]]:
    """The log, whole, once what is under way beside the turn is done."""
    await memory.why(str(uuid.uuid4()))
    return rows(dsn, "SELECT turn_id::text, items, frame, injections::text FROM pgmem.injections ORDER BY known_at")


async def remember(memory: Face) -> None:
    old = await memory.session.create("old", user_id="u1")
    await old.add_turns(
        [
            {"role": "user", "content": "I am allergic to walnuts, please never suggest them"},
            {"role": "assistant", "content": "Noted: no walnuts in any recipe"},
            {"role": "user", "content": "My daughter Ines plays the cello in the youth orchestra"},
            {"role": "assistant", "content": "How lovely, the cello is a demanding instrument"},
        ]
    )
    await memory.form()


# -- as it was known -------------------------------------------------------------------------------------------


async def test_what_is_true_now_what_was_known_then(memory: Face) -> None:
    session = await memory.session.create("s1", user_id="u1")
    await session.observe("diet", "vegan", **BY_USER)
    later = await memory.session.create("s2", user_id="u1")
    then = await later.compile_context("what can I eat as a vegan?")
    assert then.known_at is not None
    assert then.known_at.tzinfo is UTC
    await later.add_turn("assistant", "Only plants")
    await later.correct("diet", "vegetarian, not vegan", replaces="vegan", **BY_USER)
    await memory.form()

    def diets(ctx: CompiledContext) -> list[str]:
        return [item.text for item in ctx.sections["semantic"].items]

    for query in ("what can I eat as a vegan?", "hello"):
        now = await later.compile_context(query, **QUIET)
        assert diets(now) == ["- diet: vegetarian, not vegan"]
        past = await later.compile_context(query, known_at=then.known_at)
        assert diets(past) == ["- diet: vegan"]
        assert past.prefix_hash == then.prefix_hash
        assert past.known_at == then.known_at
    replayed = await later.compile_context("what can I eat as a vegan?", known_at=then.known_at, query_id=then.query_id)
    assert replayed.messages == then.messages
    # A session that began later, asked about before: only what was known, and none of its own turns.
    new = await memory.session.create("s3", user_id="u1")
    await new.add_turn("user", "good morning")
    before = await new.compile_context("hello", known_at=then.known_at)
    assert diets(before) == ["- diet: vegan"]
    assert [message["role"] for message in before.messages] == ["system", "user", "user"]
    assert "good morning" in str((await new.compile_context("hello", **QUIET)).messages)
    nothing = await new.compile_context("hello", known_at=then.known_at - timedelta(days=1))
    assert len(nothing.messages) == 2


async def test_the_window_and_the_recall_of_then(memory: Face) -> None:
    await remember(memory)
    session = await memory.session.create("s1", user_id="u1")
    await session.observe("likes", "walnut cake of the old town", **BY_USER, single_valued=False)
    await session.add_turn("user", "Good morning")
    then = await session.compile_context("are there walnuts in this?", floor=None, **QUIET)
    await session.add_turn("assistant", "Yes, there are")
    await session.execution.set("plan", ["look for walnuts"])
    await session.retract("likes", "walnut cake of the old town", **BY_USER)
    await memory.add("walnuts grow on trees in Ghent", user_id="u1", session_id="newer")
    await memory.form()
    now = await session.compile_context("are there walnuts in this?", floor=None, **QUIET)
    assert "Ghent" in str(now.messages)
    assert "Yes, there are" in str(now.messages)
    assert now.sections["execution"].items
    past = await session.compile_context("are there walnuts in this?", floor=None, known_at=then.known_at)
    assert past.messages == then.messages
    assert "walnut cake" in str(past.messages)
    assert not past.sections["execution"].items
    assert any("without execution memory" in note for note in past.notes)


async def test_facts_that_hold_at_another_time(memory: Face) -> None:
    session = await memory.session.create(user_id="u1")
    summer, winter = datetime(2025, 7, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    await session.observe("lives_in", "Lisbon", valid_from=summer - timedelta(days=30), **BY_USER)
    await session.observe("lives_in", "Porto", valid_from=winter - timedelta(days=30), **BY_USER)
    await memory.form()

    async def home(query: str = "hello", **when: Any) -> list[str]:
        ctx = await session.compile_context(query, floor=None, **QUIET, **when)
        assert len({item.text for item in ctx.sections["semantic"].items}) == len(ctx.sections["semantic"].items)
        return [item.text.removeprefix("- lives in: ") for item in ctx.sections["semantic"].items]

    assert await home() == ["Porto"]
    assert await home(valid_at=summer) == ["Lisbon"]
    assert await home(valid_at=winter) == ["Porto"]
    assert await home(valid_at=summer - timedelta(days=365)) == []
    assert await home("where is home, lives in?", valid_at=summer - timedelta(days=365)) == []
    known = (await session.compile_context("hello", **QUIET)).known_at
    await session.correct("lives_in", "Braga", replaces="Porto", valid_from=winter - timedelta(days=30), **BY_USER)
    assert await home(valid_at=winter) == ["Braga"]
    assert await home(valid_at=winter, known_at=known) == ["Porto"]
    assert await home(valid_at=summer, known_at=known) == ["Lisbon"]


async def test_times_are_aware_and_the_past_is_only_read(memory: Face, dsn: str) -> None:
    session = await memory.session.create("s1", user_id="u1")
    await session.observe("diet", "vegan", **BY_USER)
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    with pytest.raises(InvalidArgument, match="known_at"):
        await session.compile_context("hello", known_at=naive)
    with pytest.raises(InvalidArgument, match="valid_at"):
        await session.compile_context("hello", valid_at=naive)
    past = await session.compile_context("hello", known_at=datetime.now(UTC))
    assert past.query_id is None
    await memory.flush()
    assert await session.turns() == []
    assert await logged(memory, dsn) == []
    now = await session.compile_context("hello", valid_at=datetime.now(UTC))
    await memory.flush()
    assert [turn.id for turn in await session.turns()] == [now.query_id]
    assert [row[0] for row in await logged(memory, dsn)] == [now.query_id]


# -- the same bytes again --------------------------------------------------------------------------------------


async def test_every_prompt_of_a_conversation_can_be_shown_again(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(budget_tokens=1500, recall_items=4)
    await remember(memory)
    tell(dsn, "Ada cooks a lot. She has a daughter.")
    session = await memory.session.create("s1", user_id="u1")
    await session.observe("diet", "vegan", **BY_USER)
    shown: list[tuple[str, dict[str, Any], CompiledContext]] = []
    questions = ["is there a walnut in this?", "does Ines play the cello?", "hello", "what do I eat as a vegan?"]
    for i in range(24):
        extra: dict[str, Any] = {}
        if i % 3 == 0:
            extra["injected_context"] = [f"subscription: active since {i}"]
        if i % 5 == 0:
            extra["instructions"] = "Be brief."
        query = f"{questions[i % 4]} ({i}) " + "and again " * 10
        ctx = await session.compile_context(query, floor=None if i % 2 else "default", **extra)
        shown.append((query, extra, ctx))
        await session.add_turn("assistant", f"answer number {i} " + "and some more words " * 12)
        if i == 5:
            await session.correct("diet", "vegetarian", replaces="vegan", **BY_USER)
        if i == 8:
            await session.observe("likes", "the cello", authority="agent", confidence=0.4)
        if i == 10:
            await memory.form()
        if i == 12:
            sum_up(dsn, "s1", "They spoke of food.", through=16)
            tell(dsn, "Ada cooks less now.", version=2)
        if i == 14:
            anew(dsn, "s1")
        if i == 18:
            await session.observe("likes", "the cello", **BY_USER)
            sum_up(dsn, "s1", "They spoke of food, and of music.", through=30, version=2)
    await session.retract("likes", "the cello", **BY_USER)
    await memory.add("walnut, cello, vegan: is there one in this?", user_id="u1")
    await memory.form()
    tiers = dict.fromkeys(shown[0][2].sections, 0)
    for query, extra, ctx in shown:
        again = await session.compile_context(
            query, known_at=ctx.known_at, query_id=ctx.query_id, **extra, budget_tokens=4000
        )
        assert again.messages == ctx.messages
        assert (again.prefix_hash, again.token_count, again.query_id) == (
            ctx.prefix_hash, ctx.token_count, ctx.query_id,
        )  # fmt: skip
        assert not any("not the bytes" in note for note in again.notes)
        for tier, section in ctx.sections.items():
            assert [(item.id, item.text) for item in again.sections[tier].items] == [
                (item.id, item.text) for item in section.items
            ]
            if tier != "semantic":  # a fact that was confirmed since is surer now
                assert again.sections[tier] == section
            tiers[tier] += len(section)
    assert all(tiers[tier] > 0 for tier in tiers if tier != "execution")
    # The question is kept as the turn it is; what is not kept is missed, and said to be.
    query, extra, ctx = shown[15]
    asked = await session.compile_context(known_at=ctx.known_at, query_id=ctx.query_id, **extra)
    assert asked.messages == ctx.messages
    without = await session.compile_context(known_at=ctx.known_at, query_id=ctx.query_id)
    assert "subscription" in str(ctx.messages)
    assert without.messages != ctx.messages
    assert any("not the bytes" in note for note in without.notes)
    # A moment later is still that prompt; for a turn that nothing was logged for, memory is asked as it was.
    assert ctx.known_at is not None
    soon = ctx.known_at + timedelta(milliseconds=1)
    assert (
        await session.compile_context(query, known_at=soon, query_id=ctx.query_id, **extra)
    ).messages == ctx.messages
    unknown = await session.compile_context(query, known_at=ctx.known_at, query_id=str(uuid.uuid4()), **extra)
    assert any("nothing was logged" in note for note in unknown.notes)
    early = await session.compile_context(query, known_at=ctx.known_at - timedelta(hours=1), query_id=ctx.query_id)
    assert any("nothing was logged" in note for note in early.notes)


async def test_what_stood_is_shown_again_whatever_would_stand_now(make_memory: Maker) -> None:
    """A confirmation by the user puts a fact before others; what was shown then is shown again."""
    memory = await make_memory(prefix_tokens=10)
    first = await memory.session.create(user_id="u1")
    await first.observe("allergic_to", "nuts", authority="agent")
    await first.observe("likes", "jazz", **BY_USER)
    session = await memory.session.create(user_id="u1")
    then = await session.compile_context("hello")
    assert [item.text for item in then.sections["semantic"].items] == ["- likes: jazz"]
    await session.observe("allergic_to", "nuts", **BY_USER)
    now = await session.compile_context("hello", **QUIET)
    assert [item.text for item in now.sections["semantic"].items] == ["- allergic to: nuts"]
    again = await session.compile_context("hello", known_at=then.known_at, query_id=then.query_id)
    assert again.messages == then.messages


async def test_a_prompt_for_a_question_in_the_window(memory: Face, dsn: str) -> None:
    """As an agent asks after its tools have run: without a query, for the question that is there."""
    await remember(memory)
    session = await memory.session.create("s1", user_id="u1")
    await session.observe("diet", "vegan", **BY_USER)
    question = await session.add_turn("user", "walnuts?")
    await session.add_turn("assistant", "", tool_calls=[{"id": "c1", "name": "look", "args": {}}])
    await session.add_turn("tool", "found three", tool_call_id="c1")
    ctx = await session.compile_context()
    assert ctx.query_id is None
    same = await session.compile_context("walnuts?", query_id=question.id, **QUIET)  # the caller stores it
    await session.add_turn("assistant", "three")
    await session.retract("diet", "vegan", **BY_USER)
    assert [row[0] for row in await logged(memory, dsn)] == [question.id, question.id]
    for one in (ctx, same):
        query = None if one is ctx else "walnuts?"
        again = await session.compile_context(query, known_at=one.known_at, query_id=question.id)
        assert again.messages == one.messages
        assert "diet: vegan" in str(again.messages)
    assert len({one.known_at for one in await memory.why(question.id)}) == 2


async def test_what_was_withdrawn_or_edited_since_is_said(memory: Face, dsn: str) -> None:
    await remember(memory)
    session = await memory.session.create("s1", user_id="u1")
    ctx = await session.compile_context("is there a walnut in this?")
    await session.add_turn("assistant", "no")
    [found] = [item for item in ctx.sections["episodic"].items if "allergic" in item.text]
    await memory.update(found.id, "I am allergic to peanuts")
    again = await session.compile_context(known_at=ctx.known_at, query_id=ctx.query_id)
    assert "peanuts" in str(again.messages)
    assert any("not the bytes" in note for note in again.notes)
    write(dsn, "UPDATE pgmem.records SET archived_at = now(), token_offset = -1 WHERE session_id = 's1' AND seq = 1")
    write(dsn, "UPDATE pgmem.records SET content = %s WHERE id = %s",
          "I am allergic to walnuts, please never suggest them", found.id)  # fmt: skip
    assert (await session.compile_context(known_at=ctx.known_at, query_id=ctx.query_id)).messages == ctx.messages


# -- the log ---------------------------------------------------------------------------------------------------


async def test_the_log_holds_no_text(memory: Face, dsn: str) -> None:
    await remember(memory)
    tell(dsn, "Ada cooks a lot.")
    session = await memory.session.create("s1", user_id="u1")
    await session.observe("diet", "vegan", **BY_USER, evidence="ticket 7")
    sum_up(dsn, "s1", "They spoke of food.", through=0)
    secret = "subscription: gold, card 4711"
    ctx = await session.compile_context(
        "which walnut for a vegan?", injected_context=[secret], instructions="Answer in rhymes."
    )
    [(turn_id, items, frame, whole)] = await logged(memory, dsn)
    assert turn_id == ctx.query_id
    for word in ("walnut", "vegan", "cooks", "food", "subscription", "gold", "4711", "rhymes", "ticket"):
        assert word in str(ctx.messages) or word == "ticket"
        assert word not in whole
    assert {item["tier"] for item in items} == {"narrative", "semantic", "working", "episodic", "external"}
    assert [item["id"] for item in items] == [
        item.id for section in ctx.sections.values() for item in section.items if item.kind != "turn"
        or section.tier != "working"
    ]  # fmt: skip
    [external] = [item for item in items if item["kind"] == "external"]
    assert external["length"] == len(secret)
    assert hashlib.sha256(secret.encode()).hexdigest().startswith(external["id"])
    best = next(item for item in items if item["tier"] == "episodic")
    assert best["score"] > 0
    assert set(best["parts"]) >= {"bm25", "cosine", "decay", "weight"}
    assert frame["budget_tokens"] == ctx.budget_tokens


async def test_only_what_is_shown_to_an_agent_is_logged(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory()
    session = await memory.session.create("s1", user_id="u1")
    await session.compile_context("hello")  # nothing but the question
    await session.add_turn("assistant", "hi")
    await session.compile_context("how are you?")
    await session.observe("diet", "vegan", **BY_USER)
    await session.compile_context("what do I eat?", **QUIET)  # nobody's turn
    assert await logged(memory, dsn) == []
    await session.compile_context("what do I eat?")
    assert len(await logged(memory, dsn)) == 1
    silent = await make_memory(log_injections=False)
    quiet = await silent.session.get("s1", user_id="u1")
    ctx = await quiet.compile_context("and drink?")
    assert ctx.sections["semantic"].items
    assert len(await logged(silent, dsn)) == 1


async def test_a_log_that_fails_fails_no_turn(memory: Face, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    session = await memory.session.create("s1", user_id="u1")
    await session.observe("diet", "vegan", **BY_USER)
    write(dsn, "ALTER TABLE pgmem.injections RENAME TO lost")
    with caplog.at_level(logging.WARNING, logger="pgmem_core"):
        ctx = await session.compile_context("what do I eat?")
        await session.add_turn("assistant", "plants")
        with pytest.raises(SchemaError):
            await memory.why(ctx.query_id)  # after all that is under way
    write(dsn, "ALTER TABLE pgmem.lost RENAME TO injections")
    assert ctx.sections["semantic"].items
    assert [turn.text for turn in await session.turns()] == ["what do I eat?", "plants"]
    await session.compile_context("and drink?")
    assert [row[0] for row in await logged(memory, dsn)] != [ctx.query_id]
    assert any("beside the turn failed" in record.message for record in caplog.records)


async def test_a_session_that_is_gone_is_not_logged(memory: Face, dsn: str) -> None:
    session = await memory.session.create("s1", user_id="u1")
    await session.observe("diet", "vegan", **BY_USER)
    await session.compile_context("what do I eat?")
    await memory.delete_all(user_id="u1")
    assert await logged(memory, dsn) == []


# -- why -------------------------------------------------------------------------------------------------------


async def test_why_says_what_was_shown_and_who_said_it(memory: Face, dsn: str) -> None:
    await remember(memory)
    tell(dsn, "Ada cooks a lot.")
    session = await memory.session.create("s1", user_id="u1")
    said = await session.add_turn("user", "I am a vegan")
    fact = await session.observe("diet", "vegan", **BY_USER, evidence=said)
    await session.observe("plan", "gold", subject=SubjectRef("customer", "c-7"), authority="system", evidence="crm/7")
    await session.execution.set("step", 1)
    anew(dsn, "s1")
    ctx = await session.compile_context("which walnut for me?", injected_context=["open tickets: 2"])
    shown = await memory.why(ctx.query_id)
    assert {one.known_at for one in shown} == {ctx.known_at}
    assert {one.session_id for one in shown} == {"s1"}
    items = [item for section in ctx.sections.values() for item in section.items]
    assert [one.id for one in shown] == [item.id for item in items if (item.kind, item.session_id) != ("turn", "s1")]
    by_text = {one.text: one for one in shown if one.text}
    assert by_text["diet: vegan"].authority == "user"
    assert [one.turn_id for one in by_text["diet: vegan"].evidence] == [said.id]
    assert by_text["diet: vegan"].id == fact.id
    assert by_text["c-7 plan: gold"].authority == "system"
    assert [one.source for one in by_text["c-7 plan: gold"].evidence] == ["crm/7"]
    assert by_text["Ada cooks a lot."].tier == "narrative"
    allergic = by_text["I am allergic to walnuts, please never suggest them"]
    assert (allergic.role, allergic.tier) == ("user", "episodic")
    assert allergic.score is not None
    assert allergic.parts is not None
    assert allergic.parts.why() == allergic.why
    [external] = [one for one in shown if one.kind == "external"]
    assert (external.text, external.length) == (None, len("open tickets: 2"))
    [doing] = [one for one in shown if one.kind == "execution"]
    assert (doing.id, doing.text) == ("execution:step", None)
    # Today's answer to the same question: what is gone is gone from here too.
    write(dsn, "DELETE FROM pgmem.records WHERE id = %s", allergic.id)
    write(dsn, "DELETE FROM pgmem.narratives")
    later = {one.id: one for one in await memory.why(uuid.UUID(ctx.query_id))}
    assert list(later) == [one.id for one in shown]
    assert later[allergic.id].text is None
    assert later[allergic.id].score == allergic.score
    assert later["narrative:1"].text is None
    assert later[by_text["diet: vegan"].id].text == "diet: vegan"


async def test_why_is_of_one_group_and_one_turn(memory: Face) -> None:
    session = await memory.session.create("s1", user_id="u1", group_id="g1")
    await session.observe("diet", "vegan", **BY_USER)
    ctx = await session.compile_context("what do I eat?")
    own = await session.add_turn("user", "what do I eat?", id=str(uuid.uuid5(uuid.NAMESPACE_URL, "mine")))
    assert own.id == ctx.query_id
    assert [one.text for one in await memory.why(ctx.query_id, group_id="g1")] == ["diet: vegan"]
    # Under the id that the caller has for it, too.
    alias = str(uuid.uuid5(uuid.NAMESPACE_URL, "mine"))
    assert [one.text for one in await memory.why(alias, group_id="g1")] == ["diet: vegan"]
    again = await session.compile_context(known_at=ctx.known_at, query_id=alias)
    assert again.messages == ctx.messages
    assert await memory.why(ctx.query_id) == []
    assert await memory.why(str(uuid.uuid4()), group_id="g1") == []
    with pytest.raises(InvalidArgument):
        await memory.why("not an id")


def test_the_command_tells_why(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    with PgMem(dsn) as mem:
        session = mem.session.create("s1", user_id="u1")
        said = session.add_turn("user", "I am a vegan")
        session.observe("diet", "vegan", authority="user", evidence=said)
        ctx = session.compile_context("what do I eat?", injected_context=["plan: gold\x1b[2J"])
    assert ctx.query_id is not None
    assert cli.run(["why", ctx.query_id, "--dsn", dsn]) == 0
    out = capsys.readouterr().out
    for part in ("diet: vegan", "user", f"from turn {said.id}", "said by user", "14 characters, sha256"):
        assert part in out, part
    assert "gold" not in out
    assert cli.run(["why", ctx.query_id, "--dsn", dsn, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in document["shown"]] == ["fact", "external"]
    assert document["shown"][0]["evidence"][0]["turn_id"] == said.id
    assert cli.run(["why", str(uuid.uuid4()), "--dsn", dsn]) == 0
    assert "nothing was shown" in capsys.readouterr().out
    assert cli.run(["why", "nonsense", "--dsn", dsn]) == 2
    assert "nonsense" in capsys.readouterr().err
