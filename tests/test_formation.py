"""Formation in the background: turns become facts, once, whatever fails and whoever else is at it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgmem_core import ConfigurationError, ExtractionError, InvalidArgument, PgMem, SubjectRef
from pgmem_core.effects import arun, run
from pgmem_core.facts import Fact, FactDraft
from pgmem_core.formation import worker
from pgmem_core.types import Turn
from tests.fix_memory import Face, Maker
from tests.telling import Tellers

ROOT = Path(__file__).parents[1]
Reader = Callable[[Turn, Sequence[Fact]], list[FactDraft]]


class Told:
    """An extractor that reads each turn as it is told to; `asked`: the turns of each call."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.asked: list[list[str]] = []
        self.awaited = 0
        self.during: Callable[[], None] = lambda: None

    def extract(self, turns: Sequence[Turn], known: Sequence[Fact]) -> list[FactDraft]:
        self.asked.append([turn.text for turn in turns])
        self.during()
        return [draft for turn in turns for draft in self.reader(turn, known)]

    async def aextract(self, turns: Sequence[Turn], known: Sequence[Fact]) -> list[FactDraft]:
        self.awaited += 1
        return self.extract(turns, known)


def diet(turn: Turn, known: Sequence[Fact]) -> list[FactDraft]:
    """Reads "I'm vegan" and "I'm vegetarian, not vegan"."""
    if turn.role != "user":
        return []
    if "not vegan" in turn.text:
        return [
            FactDraft("diet", "vegetarian", action="correct", replaces="vegan", turn_id=turn.id, quote=turn.text),
        ]
    return [FactDraft("diet", "vegan", turn_id=turn.id, quote=turn.text)] if "vegan" in turn.text else []


async def drained(memory: Face, **how: Any) -> Any:
    """What the worker's forming lane does in one round, by the client's settings."""
    rt = memory.target._rt
    flow = worker.form_tiers(rt, **how)
    return run(flow, rt.database) if memory.face == "sync" else await arun(flow, rt.database)


async def test_turns_become_facts(make_memory: Maker) -> None:
    memory = await make_memory(extractor="patterns")
    session = await memory.session.open("s1", user_id="u1")
    [said] = await session.add_turns([{"role": "user", "content": "My name is Ada Byron and I live in Lisbon."}])
    await session.add_turn("assistant", "Nice to meet you. I live in Rome.")
    report = await memory.form()
    assert report.facts == 2
    assert report.formed == 1
    found = {fact.predicate: fact for fact in await memory.facts(user_id="u1")}
    assert found["name"].value == "Ada Byron"
    assert found["lives_in"].value == "Lisbon"
    assert found["lives_in"].authority == "user"
    assert found["lives_in"].evidence[0].turn_id == said.id
    again = await memory.form()
    assert (again.facts, again.formed) == (0, 0)


async def test_a_correction_leaves_one_current_value(make_memory: Maker) -> None:
    memory = await make_memory(extractor=Told(diet))
    session = await memory.session.open("s1", user_id="u1")
    vegan = await session.add_turn("user", "By the way, I'm vegan.")
    await memory.form()
    [before] = await memory.facts(user_id="u1")
    other = await memory.session.open("s2", user_id="u1")
    correction = await other.add_turn("user", "I'm vegetarian, not vegan.")
    await memory.form()
    [now] = await memory.facts(user_id="u1")
    assert now.value == "vegetarian"
    [then] = await memory.facts(user_id="u1", known_at=before.recorded_at)
    assert then.value == "vegan"
    rows = await memory.history(SubjectRef("user", "u1"), "diet")
    assert [(row.value, [one.turn_id for one in row.evidence]) for row in rows] == [
        ("vegan", [vegan.id]),
        ("vegetarian", [correction.id]),
    ]
    # The first sentence read again, by a session that repeats it as history: dead stays dead.
    third = await memory.session.open("s3", user_id="u1")
    await third.add_turn("assistant", "As you said, I'm vegan.")
    await third.add_turn("user", "I'm vegan.", created_at=vegan.created_at)
    await memory.form()
    assert [fact.value for fact in await memory.facts(user_id="u1")] == ["vegetarian"]
    assert len(await memory.history(SubjectRef("user", "u1"), "diet")) == 2
    context = await third.compile_context("what shall I cook?")
    text = json.dumps(context.messages)
    assert "diet: vegetarian" in text
    assert "diet: vegan" not in text


async def test_a_failing_extractor_loses_nothing_and_is_seen(make_memory: Maker, dsn: str) -> None:
    broken = Told(diet)

    def fail() -> None:
        raise RuntimeError("the model is out")

    broken.during = fail
    memory = await make_memory(extractor=broken)
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", "I'm vegan")
    report = await memory.form()
    assert "the model is out" in report.errors["s1"]
    assert report.turns == 1  # embedded all the same
    assert await memory.facts(user_id="u1") == []
    with psycopg.connect(dsn) as conn:
        [(error, attempts)] = conn.execute("SELECT forming_error, forming_attempts FROM pgmem.pending_work").fetchall()
    assert "Told failed on 1 turns: RuntimeError: the model is out" in error
    assert attempts == 1
    assert (await drained(memory)).formed == 0  # its time has not come
    broken.during = lambda: None
    assert (await memory.form()).facts == 1
    with psycopg.connect(dsn) as conn:
        assert conn.execute("SELECT count(*) FROM pgmem.pending_work").fetchone() == (0,)


async def test_the_awaited_form_awaits_the_extractor(make_memory: Maker) -> None:
    extractor = Told(diet)
    memory = await make_memory(extractor=extractor)
    await (await memory.session.open("s1", user_id="u1")).add_turn("user", "I'm vegan")
    await memory.form()
    assert extractor.awaited == (1 if memory.face == "async" else 0)
    assert len(extractor.asked) == 1


async def test_greetings_cost_no_request(make_memory: Maker) -> None:
    extractor = Told(diet)
    memory = await make_memory(extractor=extractor)
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turns([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello!"}])
    await memory.form()
    assert extractor.asked == []
    await session.add_turn("user", "I'm vegan")
    assert (await memory.form()).facts == 1
    assert extractor.asked == [["hi", "Hello!", "I'm vegan"]]  # with what went before, to be understood by


async def test_a_long_session_is_read_in_parts_each_turn_once(make_memory: Maker) -> None:
    extractor = Told(lambda turn, known: [])
    memory = await make_memory(extractor=extractor)
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turns([{"role": "user", "content": f"sentence number {i}"} for i in range(95)])
    assert (await memory.form()).formed == 1
    fresh = [text for number, batch in enumerate(extractor.asked) for text in batch[2 if number else 0 :]]
    assert fresh == [f"sentence number {i}" for i in range(95)]
    assert max(map(len, extractor.asked)) <= 42


async def test_third_persons_are_of_the_user_who_told(make_memory: Maker) -> None:
    def brother(turn: Turn, known: Sequence[Fact]) -> list[FactDraft]:
        return [
            FactDraft("lives_in", turn.text.split()[-1], SubjectRef("person", "Max"), turn_id=turn.id, quote=turn.text)
        ]

    memory = await make_memory(extractor=Told(brother))
    for user, town in (("u1", "Rome"), ("u2", "Oslo")):
        session = await memory.session.open(f"s-{user}", user_id=user)
        await session.add_turn("user", f"My brother Max lives in {town}")
    await memory.form()
    for user, town, other in (("u1", "Rome", "Oslo"), ("u2", "Oslo", "Rome")):
        assert [fact.value for fact in await memory.facts(user_id=user)] == [town]
        assert [fact.value for fact in await memory.facts(SubjectRef("person", "Max"), user_id=user)] == [town]
        [row] = await memory.history(SubjectRef("person", "Max"), user_id=user)
        assert row.value == town
        text = json.dumps(
            (await (await memory.session.open(f"t-{user}", user_id=user)).compile_context("Max?")).messages
        )
        assert f"Max lives in: {town}" in text
        assert other not in text
    assert await memory.facts(SubjectRef("person", "Max")) == []  # nobody's in particular


async def test_a_turn_edited_while_it_is_read_is_read_again(make_memory: Maker) -> None:
    extractor = Told(diet)
    memory = await make_memory(extractor=extractor)
    session = await memory.session.open("s1", user_id="u1")
    turn = await session.add_turn("user", "I'm vegan")
    helper = await make_memory()

    def edit() -> None:
        extractor.during = lambda: None
        if helper.face == "sync":
            helper.target.update(turn.id, "I eat all things")
        else:
            thread = threading.Thread(target=lambda: asyncio.run(_update(helper.target, turn.id)))
            thread.start()
            thread.join()

    extractor.during = edit
    await memory.form()
    assert await memory.facts(user_id="u1") == []
    assert extractor.asked[-1] == ["I eat all things"]


async def _update(target: Any, turn_id: str) -> None:
    await target.update(turn_id, "I eat all things")
    await target._rt.database.aclose()


async def test_when_it_is_due(make_memory: Maker) -> None:
    names = iter("abcdefgh")

    async def told(**settings: Any) -> tuple[Face, Face]:
        memory = await make_memory(extractor=Told(diet), **settings)
        name = next(names)
        session = await memory.session.open(name, user_id=name)
        await session.add_turn("user", "I'm vegan")
        return memory, session

    memory, _ = await told(formation="exchange", formation_debounce_seconds=0)
    assert (await drained(memory)).facts == 1
    memory, _ = await told(formation="manual")
    assert (await drained(memory)).formed == 0
    memory, _ = await told(formation="idle:3600s")
    assert (await drained(memory)).formed == 0
    memory, _ = await told(formation="idle:0s")
    assert (await drained(memory)).formed >= 1
    memory, session = await told(formation="session_end", formation_debounce_seconds=0)
    assert (await drained(memory)).formed == 0
    await memory.session.end(session.id)
    assert (await drained(memory)).facts == 1
    memory, _ = await told(formation="manual")
    assert (await memory.form()).facts == 1


async def test_a_busy_session_is_read_in_the_end(make_memory: Maker) -> None:
    memory = await make_memory(extractor=Told(diet), formation_debounce_seconds=3600)
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", "I'm vegan")
    assert (await drained(memory)).formed == 0
    await session.add_turns([{"role": "user", "content": f"sentence {i}"} for i in range(19)])
    assert (await drained(memory)).facts == 1


async def test_the_worker_forms_by_itself(make_memory: Maker) -> None:
    memory = await make_memory(extractor="patterns", formation_debounce_seconds=0, worker_poll_seconds=0.05)
    await memory.start()
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", "I live in Porto.")
    for _ in range(200):
        if await memory.facts(user_id="u1"):
            break
        await asyncio.sleep(0.05)
    assert [fact.value for fact in await memory.facts(user_id="u1")] == ["Porto"]


async def test_an_extractor_that_comes_later_reads_what_was_said_before(make_memory: Maker) -> None:
    plain = await make_memory()
    session = await plain.session.open("s1", user_id="u1")
    await session.add_turn("user", "I live in Porto.")
    assert (await plain.form()).turns == 1
    assert await plain.facts(user_id="u1") == []
    later = await make_memory(extractor="patterns")
    assert (await later.form()).facts == 1


async def test_weak_answers_keep_the_good_ones(make_memory: Maker, caplog: pytest.LogCaptureFixture) -> None:
    def weak(turn: Turn, known: Sequence[Fact]) -> list[Any]:
        said: dict[str, Any] = {"turn_id": turn.id, "quote": "live in Porto"}
        return [
            FactDraft("lives_in", "Porto", confidence=1e15, **said),
            FactDraft("likes", "jazz", id="12", **said),
            FactDraft("likes", "x" * 50_000, **said),
            FactDraft("likes", "tea", turn_id=turn.id, quote="never said"),
            FactDraft("likes", "coffee", SubjectRef("user", "u2"), **said),
            FactDraft("likes", "MERGE", **{**said, "action": "MERGE"}),
            "not a draft",
            FactDraft("lives_in", "Porto", **said),
            FactDraft("lives_in", "porto ", **said),
            *[FactDraft("likes", f"thing {i}", **said) for i in range(500)],
        ]

    memory = await make_memory(extractor=Told(weak))
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", "I live in Porto")
    with caplog.at_level("WARNING"):
        await memory.form()
    facts = await memory.facts(user_id="u1")
    assert [fact.value for fact in facts if fact.predicate == "lives_in"] == ["Porto"]
    assert 0 < sum(fact.predicate == "likes" for fact in facts) <= 50
    assert not any(fact.value in ("jazz", "tea", "coffee", "MERGE") for fact in facts)
    assert await memory.facts(user_id="u2") == []
    for words in ("confidence", "12", "MERGE", "u2", "not_a_draft", "too_many", "stands in no turn"):
        assert words in caplog.text


async def test_bad_arguments_are_refused_at_once(make_memory: Maker) -> None:
    with pytest.raises(InvalidArgument, match="wanted an object with extract and aextract"):
        await make_memory(extractor="magic")
    with pytest.raises(ConfigurationError, match="needs a model"):
        await make_memory(extractor="model")
    with pytest.raises(ConfigurationError, match="formation"):
        await make_memory(formation="sometimes")
    with pytest.raises(InvalidArgument, match="summarizers"):
        await make_memory(summarizers=object())


async def test_an_unreadable_reply_is_an_error_and_half_of_it_is_nothing(make_memory: Maker) -> None:
    def garbage(turn: Turn, known: Sequence[Fact]) -> list[FactDraft]:
        raise ExtractionError("the reply is no JSON")

    memory = await make_memory(extractor=Told(garbage))
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", "I live in Porto")
    assert "no JSON" in (await memory.form()).errors["s1"]
    assert [turn.text for turn in await session.turns()] == ["I live in Porto"]


def _run(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


_SAME_SENTENCE = """
import sys
from pgmem_core import PgMem
dsn, name = sys.argv[1:]
mem = PgMem(dsn, extractor="patterns")
session = mem.session.open(name, user_id="u1")
session.add_turn("user", "I live in Porto.")
print("ready", flush=True)
sys.stdin.readline()
mem.form()
mem.close()
"""


def test_ten_processes_read_one_sentence_into_one_fact(dsn: str) -> None:
    with PgMem(dsn) as mem:
        started = [
            subprocess.Popen(
                [sys.executable, "-c", _SAME_SENTENCE, dsn, f"s{i}"], cwd=ROOT, text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for i in range(10)
        ]  # fmt: skip
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in started:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        for one in started:
            one.communicate()
            assert one.returncode == 0
        [fact] = mem.facts(user_id="u1")
        assert fact.value == "Porto"
        assert mem.history(SubjectRef("user", "u1")) == [fact]
        assert len({one.turn_id for one in fact.evidence}) == 10


# Forks a child for each boundary between two steps of the worker; the child is killed there.
_KILLED = """
import json, os, signal, sys
from pgmem_core import PgMem
from pgmem_core import effects
dsn = sys.argv[1]
options = dict(extractor="patterns", worker_lease_seconds=0.05, formation_lease_seconds=0.05)
perform = effects.Transact.perform
consult = effects.Consult.perform

def dying(at):
    seen = [0]
    def boundary():
        seen[0] += 1
        if seen[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
    def transact(self, database):
        boundary()
        done = perform(self, database)
        boundary()
        return done
    def ask(self, database):
        boundary()
        done = consult(self, database)
        boundary()
        return done
    effects.Transact.perform = transact
    effects.Consult.perform = ask

results = []
for at in range(1, 200):
    mem = PgMem(dsn, **options)
    user = f"u{at}"
    session = mem.session.open(f"s{at}", user_id=user)
    session.add_turns([{"role": "user", "content": "I live in Porto."}, {"role": "assistant", "content": "Noted."}])
    mem.close()
    child = os.fork()
    if child == 0:
        dying(at)
        mem = PgMem(dsn, **options)
        mem.form()
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    mem = PgMem(dsn, **options)
    mem.form()
    from pgmem_core import SubjectRef
    rows = mem.history(SubjectRef("user", user))
    results.append([at, killed, [row.value for row in rows], [len(row.evidence) for row in rows]])
    mem.close()
    if not killed:
        break
print(json.dumps(results))
"""


def test_a_worker_killed_at_any_step_boundary_repeats_nothing(dsn: str) -> None:
    with PgMem(dsn):
        pass
    out, err = _run(_KILLED, dsn).communicate(timeout=120)
    results = json.loads(out or f'"{err}"')
    assert len(results) > 12
    assert [killed for _, killed, _, _ in results] == [True] * (len(results) - 1) + [False]
    assert [values for _, _, values, _ in results] == [["Porto"]] * len(results)
    assert [evidence for _, _, _, evidence in results] == [[1]] * len(results)
    with psycopg.connect(dsn) as conn:
        behind = conn.execute(
            """SELECT count(*) FROM pgmem.sessions WHERE formed_through <> last_seq OR embedded_through <> last_seq
               OR unformed OR dirty"""
        ).fetchone()
        bare = conn.execute("SELECT count(*) FROM pgmem.records WHERE model IS NULL AND content <> 'Noted.'").fetchone()
    assert behind == (0,)
    assert bare == (0,)


async def test_what_an_edited_turn_no_longer_says_is_believed_no_longer(make_memory: Maker) -> None:
    memory = await make_memory(extractor="patterns")
    session = await memory.session.open("s1", user_id="u1")
    turn = await session.add_turn("user", "I live in Porto. My name is Ada Byron.")
    await session.add_turn("user", "I work at Cedar Ltd.")
    await memory.form()
    stated = await session.observe("plan", "annual", authority="user", evidence=turn)
    await memory.update(turn.id, "I live in Braga. My name is Ada Byron.")
    assert {fact.value for fact in await memory.facts(user_id="u1")} == {"Ada Byron", "Cedar Ltd", "annual"}
    assert "Porto" not in json.dumps(
        (await session.compile_context("where do I live?")).sections["semantic"].items, default=str
    )
    await memory.form()
    assert {fact.value for fact in await memory.facts(user_id="u1")} == {"Braga", "Ada Byron", "Cedar Ltd", "annual"}
    rows = await memory.history(SubjectRef("user", "u1"), "lives_in")
    assert [(row.value, row.superseded_at is None) for row in rows] == [("Porto", False), ("Braga", True)]
    assert await memory.facts(user_id="u1", known_at=stated.recorded_at) != await memory.facts(user_id="u1")
    assert len(await memory.history(turn.id, user_id="u1")) == 2
    assert await memory.history(turn.id, user_id="u2") == []


async def test_summaries_do_not_wait_for_a_batch_that_no_model_reads(make_memory: Maker) -> None:
    def unread(turn: Turn, known: Sequence[Fact]) -> list[FactDraft]:
        raise ExtractionError("the content filter said no")

    memory = await make_memory(extractor=Told(unread), summarizers=Tellers())
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turns([{"role": "user", "content": f"We spoke at length about matter {i}."} for i in range(30)])
    await memory.session.end("s1")
    report = await memory.form()
    assert "content filter" in report.errors["s1"]
    assert report.episodes == 1


async def test_an_answer_outlives_a_lock(make_memory: Maker, dsn: str) -> None:
    extractor = Told(diet)
    memory = await make_memory(extractor=extractor)
    session = await memory.session.open("s1", user_id="u1")
    await session.observe("likes", "tea", authority="user")
    await session.add_turn("user", "I'm vegan")
    with psycopg.connect(dsn) as conn:
        conn.execute("SELECT FROM pgmem.subjects FOR UPDATE")
        waiting = asyncio.create_task(memory.form())
        while not extractor.asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # longer than a lock is waited for
        written = await session.add_turn("assistant", "Noted.")  # the session's row was let go
        assert written.seq == 2
    assert (await waiting).facts == 1
    assert len(extractor.asked) == 1 or extractor.asked[1][-1] == "Noted."
