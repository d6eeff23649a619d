"""A memory into a file and back: equal reads, nothing twice, nothing lost on the way, nothing dead brought back."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgmem_core import Authority, Conflict, InvalidArgument, MemoryStore, PgMem, SubjectRef, cli
from pgmem_core.facts import Evidence
from pgmem_core.importing import read
from tests.fix_memory import Face, FakeEmbedder, Maker
from tests.test_compaction import Teller, Tellers

ROOT = Path(__file__).resolve().parent.parent
USER = SubjectRef("user", "u1")
CAR = SubjectRef("car", "JX-12")
BY_USER: dict[str, Any] = {"authority": Authority.user}
QUIET: dict[str, Any] = {"store_query": False, "floor": None}
WEIRD = "NUL \x00, half \ud83d, escape \U0010fffd, sep \u2028, tab\t, \\u0000 'quoted' \"too\" 用户 🦊"
# Written by the importing store for itself, at its own time, or about its own work.
_OWN = {
    "sessions": {"embedded_through", "dirty", "claimed_until", "attempts", "last_error", "retry_at", "forming_until",
                 "forming_attempts", "forming_error", "forming_retry_at"},
    "records": {"model", "embedding", "sketch"},
    "tombstones": {"hits", "last_hit_at"},
}  # fmt: skip
TABLES = (
    *("sessions", "records", "postings", "running_summaries", "subjects", "facts", "evidence", "tombstones"),
    *("decisions", "episode_turns", "narratives", "record_history"),
)


def rows(dsn: str, sql: str, *parameters: Any) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(sql, parameters).fetchall()


def contents(dsn: str, schema: str, tenant: str = "default") -> dict[str, list[str]]:
    """Every row of every table of memory, as text."""
    return {
        table: [
            text
            for (text,) in rows(
                dsn,
                f"""SELECT (to_jsonb(t) - 'tenant_id' - %s::text[])::text FROM {schema}.{table} t
                    WHERE tenant_id = %s ORDER BY 1""",
                sorted(_OWN.get(table, ())),
                tenant,
            )
        ]
        for table in TABLES
    }


def tellers() -> Tellers:
    return Tellers(Teller(lambda *given: "They spoke of a trip."), Teller(lambda *given: "So far: a trip."),
                   Teller(lambda *given: "A traveller."))  # fmt: skip


async def live(memory: Face, group: str = "default", mark: str = "") -> None:
    """A memory with something in every table: turns of all shapes, both clocks, all ends of a fact."""
    session = await memory.session.open("trip", user_id="u1", group_id=group, metadata={"title": WEIRD})
    await session.add_turn("system", "be kind")
    await session.add_turn("user", f"I am going to Porto in May {mark}", id="run-17", name="Ann",
                           metadata={"n": 1.5, "big": 10**20, WEIRD: [None, {"$float": "NaN"}, float("inf")]},
                           created_at=datetime(2024, 2, 29, 7, 30, tzinfo=UTC))  # fmt: skip
    await session.add_turn("assistant", [{"type": "text", "text": "Which river?"}, {"type": "image", "url": "x"}],
                           tool_calls=[{"id": "1", "name": "look", "args": {"at": WEIRD}}])  # fmt: skip
    await session.add_turn("tool", "the Douro", tool_call_id="1", extra={"raw": {"k": [1, 2]}})
    said = await session.add_turn("user", WEIRD)
    await session.observe("diet", "vegan", evidence=[said], **BY_USER)
    await session.correct("diet", "vegetarian", evidence=[said, Evidence(source="ticket 4")], **BY_USER)
    await session.observe("lives_in", "Lisbon", valid_from=datetime(2020, 1, 1, tzinfo=UTC), **BY_USER)
    await session.observe("lives_in", "Porto", **BY_USER)
    await session.observe("lives_in", "Rome", authority="agent", confidence=0.3)
    await session.observe("likes", ["jazz", WEIRD], authority="tool")
    await session.observe("colour", "red", subject=CAR, **BY_USER)
    for colour in ("red", "blue"):
        await session.retract("colour", colour, subject=CAR, **BY_USER)
    await session.execution.set("plan", "secret plan")
    await session.compact()
    other = await memory.session.open("later", user_id="u1", group_id=group)
    turn = await other.add_turn("user", "I sold the bicycle")
    await memory.update(turn.id, "I sold the old bicycle", group_id=group)
    gone = await other.add_turn("user", "strike this")
    await other.add_turn("user", "and a boat")
    await memory.delete(gone.id, group_id=group)
    await (await memory.session.open("hers", user_id="u2", group_id=group)).add_turn("user", "my cat is grey")
    await memory.form(group_id=group)


async def reads(memory: Face, group: str = "default") -> dict[str, Any]:
    """What an application sees of it."""
    seen: dict[str, Any] = {}
    whole = await memory.history(USER, group_id=group)
    seen["history"] = [_plain(fact) for fact in [*whole, *await memory.history(CAR, group_id=group)]]
    for moment in (None, *(fact.recorded_at for fact in whole)):
        for valid in (None, datetime(2021, 1, 1, tzinfo=UTC)):
            facts = await memory.facts(user_id="u1", group_id=group, known_at=moment, valid_at=valid)
            seen[f"facts {moment} {valid}"] = [_plain(fact) for fact in facts]
    for query in ("Porto", "river", "what do I eat?", "bicycle", "trip", "cat"):
        seen[f"search {query}"] = [
            (one.content, one.kind, one.seq, one.role, one.name, round(one.score, 2), one.created_at, one.metadata)
            for one in await memory.search(query, user_id="u1", group_id=group)
        ]
    for name in ("trip", "later"):
        session = await memory.session.open(name, user_id="u1", group_id=group)
        turns = await session.turns()
        seen[f"turns {name}"] = [repr(turn) for turn in turns]
        seen[f"memory {name}"] = [await memory.history(turn.id, group_id=group) for turn in turns]
        context = await session.compile_context("where to?", **QUIET)
        seen[f"prompt {name}"] = (context.prefix_hash, context.messages)
    return seen


def _plain(fact: Any) -> str:
    return repr(fact).replace(fact.group_id, "GROUP")


async def test_equal_rows_and_equal_reads(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    memory = await make_memory(summarizers=tellers())
    await live(memory)
    report = await memory.export(tmp_path / "memory.jsonl")
    assert set(report.counts) == {
        "session", "turn", "running_summary", "fact", "tombstone", "record", "narrative", "history"
    }  # fmt: skip
    assert report.counts["turn"] == 8
    assert report.bytes == (tmp_path / "memory.jsonl").stat().st_size
    assert os.listdir(tmp_path) == ["memory.jsonl"]  # nothing beside it
    assert "secret" not in (tmp_path / "memory.jsonl").read_text("utf-8")
    copy = await make_memory(schema_name="copy", summarizers=tellers())
    done = await copy.import_(tmp_path / "memory.jsonl")
    assert (done.format, done.group_id, done.problems) == ("memory", "default", ())
    assert done.new == report.counts
    assert done.known == done.forgotten == {}
    assert (done.dead, done.contested) == (0, 0)
    before, after = contents(dsn, "pgmem"), contents(dsn, "copy")
    assert all(before[table] for table in TABLES if table != "decisions")
    for table in TABLES:
        assert after[table] == before[table], table
    await (await memory.session.open("trip", user_id="u1")).execution.clear()  # the one thing that stays behind
    formed = await copy.form()
    assert (formed.facts, formed.episodes) == (0, 0)  # what came with its facts is not read again
    assert await reads(copy) == await reads(memory)


async def test_twice_is_once_and_both_go_on(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    memory, copy = await make_memory(summarizers=tellers()), await make_memory(schema_name="copy")
    await live(memory)
    file = tmp_path / "memory.jsonl"
    report = await memory.export(file)
    await copy.import_(file)
    await copy.form()
    before = contents(dsn, "copy")
    again = await copy.import_(file)
    assert again.new == {}
    assert again.known == report.counts
    assert contents(dsn, "copy") == before
    session = await copy.session.open("trip", user_id="u1")
    assert (await session.add_turn("user", "we are back")).seq == 6  # the number after the file's last
    assert (await copy.import_(file)).new == {}
    assert [turn.seq for turn in await session.turns()] == [1, 2, 3, 4, 5, 6]
    # The original grows too: what is new in its later export comes, where it has not gone on in both places.
    await (await memory.session.open("later", user_id="u1")).add_turn("user", "and a kayak")
    await memory.export(file)
    assert (await copy.import_(file)).new["turn"] == 1
    await (await memory.session.open("trip", user_id="u1")).add_turn("user", "another way")
    await memory.export(file)
    with pytest.raises(Conflict, match=r"'trip' has another turn 6 here.*both places"):
        await copy.import_(file)


async def test_with_vectors_nothing_is_embedded(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    first = FakeEmbedder()
    memory = await make_memory(embedder=first)
    await live(memory)
    with MemoryStore(dsn, embedder=None) as store:
        store.add("default", "s", "a caller's own vector", embedding=[1.0, 0.0, 0.5], kind="note")
    await memory.export(tmp_path / "v.jsonl", vectors=True)
    second = FakeEmbedder()
    copy = await make_memory(schema_name="copy", embedder=second)
    second.texts.clear()
    report = await copy.import_(tmp_path / "v.jsonl")
    await copy.form()
    vectors = [
        rows(
            dsn,
            f"""SELECT r.id, m.name, r.embedding::text FROM {schema}.records r
                JOIN {schema}.embedding_models m ON m.id = r.model ORDER BY 1""",
        )
        for schema in ("pgmem", "copy")
    ]
    assert report.vectors == len(vectors[0]) > 5
    assert vectors[0] == vectors[1]
    assert set(second.texts) <= {"warm"}
    # Another model's are no use: they are left, and made anew.
    third = await make_memory(schema_name="third", embedder=FakeEmbedder(model="other", dimensions=4))
    report = await third.import_(tmp_path / "v.jsonl")
    assert report.vectors == 1  # the caller's own
    await third.form()
    models = dict(rows(dsn, "SELECT model, count(*)::int FROM third.records WHERE model IS NOT NULL GROUP BY 1"))
    assert sorted(models.values()) == [1, len(vectors[0]) - 1 - _superseded(dsn)]


def _superseded(dsn: str) -> int:
    """Facts that are no longer believed keep the vector they have, and are given none."""
    [(count,)] = rows(
        dsn, "SELECT count(*)::int FROM pgmem.records WHERE model IS NOT NULL AND invalidated_at IS NOT NULL"
    )
    return int(count)


async def test_one_users_part(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    memory, copy = await make_memory(summarizers=tellers()), await make_memory(schema_name="copy")
    await live(memory)
    # A fact in u1's memory that rests on what u2 said: the turn is not part of it.
    hers = (await (await memory.session.open("hers", user_id="u2")).turns())[0]
    await (await memory.session.open("trip", user_id="u1")).observe("neighbour", "u2", evidence=[hers], **BY_USER)
    await memory.form()
    report = await memory.export(tmp_path / "u1.jsonl", user_id="u1")
    assert "cat is grey" not in (tmp_path / "u1.jsonl").read_text("utf-8")
    assert report.counts["session"] == 2
    await copy.import_(tmp_path / "u1.jsonl", group_id="acme")
    assert rows(dsn, "SELECT DISTINCT tenant_id, user_id FROM copy.records") == [("acme", "u1")]
    await copy.form(group_id="acme")
    await (await memory.session.open("trip", user_id="u1")).execution.clear()
    seen, there = await reads(copy, "acme"), await reads(memory)
    for part in (name for name in seen if not name.startswith(("history", "facts"))):
        assert seen[part] == there[part], part
    [fact] = await copy.facts(USER, "neighbour", group_id="acme")
    assert fact.evidence[0].turn_id is None
    assert fact.evidence[0].source == f"turn {hers.id}, which was not imported"
    assert (await copy.facts(USER, "diet", group_id="acme"))[0].value == "vegetarian"
    session = await copy.session.open("trip", user_id="u1", group_id="acme")
    assert await session.observe("diet", "vegan", authority="agent") is None  # its tombstone came along


async def test_a_group_is_walled(make_memory: Maker, tmp_path: Path) -> None:
    memory = await make_memory()
    await live(memory, "a", mark="amber")
    await live(memory, "b", mark="cobalt")
    await memory.export(tmp_path / "a.jsonl", group_id="a")
    text = (tmp_path / "a.jsonl").read_text("utf-8")
    assert "amber" in text
    assert "cobalt" not in text


async def test_a_value_rejected_here_stays_dead(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    memory, copy = await make_memory(), await make_memory(schema_name="copy")
    theirs = await memory.session.open("s", user_id="u1")
    await theirs.observe("diet", "vegan", **BY_USER)
    await theirs.observe("pet", "dog", **BY_USER)
    ours = await copy.session.open("other", user_id="u1")
    await ours.observe("diet", "vegan", **BY_USER)
    await ours.retract("diet", "vegan", **BY_USER)
    await memory.export(tmp_path / "m.jsonl")
    report = await copy.import_(tmp_path / "m.jsonl")
    assert (report.dead, report.new["fact"]) == (1, 1)
    assert [(fact.predicate, fact.value) for fact in await copy.facts(user_id="u1")] == [("pet", "dog")]
    assert rows(dsn, "SELECT hits::int FROM copy.tombstones") == [(1,)]
    assert [one.content for one in await copy.search("vegan", user_id="u1") if one.kind == "fact"] == []
    assert [one.content for one in await copy.search("dog", user_id="u1") if one.kind == "fact"]


async def test_what_is_believed_here_is_not_replaced(make_memory: Maker, tmp_path: Path) -> None:
    memory, copy = await make_memory(), await make_memory(schema_name="copy")
    theirs = await memory.session.open("s", user_id="u1")
    await theirs.observe("lives_in", "Lisbon", single_valued=True, **BY_USER)
    await theirs.observe("pet", "dog", single_valued=True, **BY_USER)
    await theirs.retract("likes", "rain", **BY_USER)
    ours = await copy.session.open("other", user_id="u1")
    await ours.observe("lives_in", "Porto", single_valued=True, **BY_USER)
    mine = await ours.observe("pet", "dog", single_valued=True, **BY_USER)
    await ours.observe("likes", "rain", **BY_USER)
    await memory.export(tmp_path / "m.jsonl")
    report = await copy.import_(tmp_path / "m.jsonl")
    assert (report.contested, report.new.get("fact"), report.known["fact"]) == (1, None, 1)
    facts = {fact.predicate: fact for fact in await copy.facts(user_id="u1")}
    assert {name: fact.value for name, fact in facts.items()} == {"lives_in": "Porto", "pet": "dog", "likes": "rain"}
    assert facts["pet"].id == mine.id
    [waiting] = await copy.review(user_id="u1", status="contested")
    assert waiting.value == "Lisbon"
    assert (await copy.import_(tmp_path / "m.jsonl")).contested == 0


async def test_what_was_forgotten_stays_away(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    memory = await make_memory(summarizers=tellers())
    await live(memory)
    report = await memory.export(tmp_path / "m.jsonl")
    session = await memory.session.open("trip", user_id="u1")
    [turn] = [turn for turn in await session.turns() if "Porto" in turn.text]
    await memory.forget(turn_id=turn.id)
    again = await memory.import_(tmp_path / "m.jsonl")
    # With the turn what had been made of it: the episode, the running summary, the story.
    assert again.forgotten == {"turn": 1, "record": 1, "running_summary": 1, "narrative": 1}
    assert again.new == {}
    assert rows(dsn, "SELECT count(*)::int FROM pgmem.records WHERE kind = 'episode'") == [(0,)]
    await memory.forget(user_id="u1")
    again = await memory.import_(tmp_path / "m.jsonl")
    assert again.new == {}
    assert again.forgotten["turn"] == report.counts["turn"] - 1
    assert again.known == {"session": 1, "turn": 1, "tombstone": 2}  # u2's, and what the group knows of a car
    assert await memory.facts(user_id="u1") == []
    assert rows(dsn, "SELECT DISTINCT user_id FROM pgmem.records") == [("u2",)]
    assert rows(dsn, "SELECT count(*)::int FROM pgmem.subjects WHERE identifier = 'u1'") == [(0,)]
    # What is said since is a conversation of its own, and its export comes back.
    await (await memory.session.open("new", user_id="u1")).add_turn("user", "hello again")
    await memory.export(tmp_path / "n.jsonl")
    copy = await make_memory(schema_name="copy")
    await copy.forget(user_id="u1")
    await (await memory.session.open("newer", user_id="u1")).add_turn("user", "a kayak at dawn")
    await memory.export(tmp_path / "n.jsonl")
    done = await copy.import_(tmp_path / "n.jsonl")
    assert (done.forgotten, done.new["turn"]) == ({"session": 1, "turn": 1}, 2)  # said before; since, and u2's
    assert [one.content for one in await copy.search("kayak", user_id="u1")] == ["a kayak at dawn"]


async def test_turns_that_nobody_has_read_are_read_after_the_import(
    make_memory: Maker, dsn: str, tmp_path: Path
) -> None:
    memory = await make_memory()
    await (await memory.session.open("s", user_id="u1")).add_turn("user", "My name is Ada.")
    await memory.export(tmp_path / "m.jsonl")
    plain = tmp_path / "plain.jsonl"
    plain.write_text(
        json.dumps({"type": "turn", "session_id": "p", "role": "user", "content": "My name is Bo."}) + "\n"
    )
    copy = await make_memory(schema_name="copy", extractor="patterns")
    report = await copy.import_(tmp_path / "m.jsonl")
    assert rows(dsn, "SELECT session_id, unformed FROM copy.sessions") == [("s", True)]
    more = await copy.import_(plain, user_id="u2")
    assert (more.format, more.new) == ("conversations", {"session": 1, "turn": 1})
    assert rows(dsn, "SELECT unformed FROM copy.sessions WHERE session_id = 'p'") == [(True,)]
    assert report.new["turn"] == 1
    await copy.form()
    assert {fact.value for user in ("u1", "u2") for fact in await copy.facts(user_id=user)} == {"Ada", "Bo"}


_KILLED = """
import os, signal, sys
from pgmem_core import PgMem
from pgmem_core.lifecycle import restoring
restoring._CHUNK = 2
mem = PgMem(sys.argv[1], schema_name="copy")
def stop(lines):
    if lines >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
mem.import_(sys.argv[2], on_progress=stop)
"""


@pytest.mark.parametrize("face", ["sync"])
async def test_killed_anywhere_and_gone_on(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    memory = await make_memory(summarizers=tellers())
    await live(memory)
    file = tmp_path / "m.jsonl"
    total = sum((await memory.export(file)).counts.values())
    before = contents(dsn, "pgmem")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    seen = 0
    for after in (total // 3, total - 2):
        ended = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", _KILLED, dsn, str(file), str(after)], cwd=ROOT, env=environment,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        stored = contents(dsn, "copy")
        assert stored != before
        now = sum(map(len, stored.values()))
        assert now > seen
        seen = now
        # Nobody makes anything of a conversation before all of it is there.
        assert rows(dsn, "SELECT count(*)::int FROM copy.sessions WHERE unformed OR uncompacted") == [(0,)]
    copy = await make_memory(schema_name="copy")
    await copy.import_(file)
    assert contents(dsn, "copy") == before


# -- files -----------------------------------------------------------------------------------------------------


async def test_a_file_of_the_callers_and_one_that_cannot_be_written(make_memory: Maker, tmp_path: Path) -> None:
    memory = await make_memory()
    await live(memory)
    stream = io.StringIO()
    report = await memory.export(stream)
    lines = [json.loads(line) for line in stream.getvalue().rstrip("\n").split("\n")]
    assert (lines[0]["type"], lines[0]["version"], lines[-1]["type"]) == ("memory", 1, "end")
    assert Counter(line["type"] for line in lines[1:-1]) == report.counts
    for bad in (tmp_path, tmp_path / "no" / "m.jsonl"):
        with pytest.raises(InvalidArgument, match=r"cannot be written|is a directory"):
            await memory.export(bad)
    with pytest.raises(InvalidArgument, match="path or an open text file"):
        await memory.export(7)
    with pytest.raises(InvalidArgument, match="does not exist"):
        await memory.import_(tmp_path / "none.jsonl")


def damaged(lines: list[str]) -> Iterator[tuple[str, list[str], str]]:
    """A name, the lines of a damaged file, and what is said of it."""
    turn = next(i for i, line in enumerate(lines) if line.startswith('{"type":"turn"'))
    yield "cut off", lines[:-1], "ends before its end"
    yield "half a line", [*lines[:-2], lines[-2][:40]], "not JSON"
    yield "a line gone", lines[:turn] + lines[turn + 1 :], "the export had"
    yield "another type", [*lines[:-1], '{"type":"dream"}', lines[-1]], "'type' is the string 'dream'"
    for key, value in (("id", "x"), ("seq", "1"), ("user_id", None), ("content", "a\x00b")):
        changed = lines.copy()
        changed[turn] = json.dumps({**json.loads(lines[turn]), key: value})
        yield key, changed, "U+0000" if key == "content" else f"'{key}' is"


async def test_a_damaged_file_says_where_and_gives_the_rest(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    memory = await make_memory()
    await live(memory)
    stream = io.StringIO()
    total = sum((await memory.export(stream)).counts.values())
    for number, (name, lines, said) in enumerate(damaged(stream.getvalue().rstrip("\n").split("\n"))):
        file = tmp_path / f"{number}.jsonl"
        file.write_text("\n".join(lines) + "\n", "utf-8")
        copy = await make_memory(schema_name=f"copy{number}")
        report = await copy.import_(file)
        assert any(said in str(problem) for problem in report.problems), (name, report.problems)
        assert total - 2 <= sum(report.new.values()) <= total, name
        await copy.close()
    with pytest.raises(InvalidArgument, match="export of a whole memory"):
        next(read(tmp_path / "0.jsonl"))
    newer = tmp_path / "newer.jsonl"
    newer.write_text('{"type":"memory","version":2,"group_id":"default"}\n')
    with pytest.raises(InvalidArgument, match=r"version 2.*upgrade"):
        await memory.import_(newer)
    with pytest.raises(InvalidArgument, match="leave user_id out"):
        await memory.import_(tmp_path / "0.jsonl", user_id="u9")


async def test_a_column_that_no_table_has_is_never_named(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    """Names of columns come from the database, not from the file."""
    memory = await make_memory()
    await live(memory)
    stream = io.StringIO()
    report = await memory.export(stream)
    lines = [json.loads(line) for line in stream.getvalue().rstrip("\n").split("\n")]
    for line in lines[1:-1]:
        line['x"; DROP SCHEMA pgmem CASCADE; --'] = 1
        line["tenant_id"] = "theirs"
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    copy = await make_memory(schema_name="copy")
    assert (await copy.import_(tmp_path / "m.jsonl")).new == report.counts
    assert rows(dsn, "SELECT DISTINCT tenant_id FROM copy.records") == [("default",)]


async def test_the_policy_screens_an_import(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    memory = await make_memory()
    session = await memory.session.open("s", user_id="u1")
    said = await session.add_turn("user", "my code is 4711")
    await session.add_turn("user", "fine weather")
    await session.observe("code", "4711", evidence=[Evidence(turn_id=said.id, quote="code is 4711")], **BY_USER)
    await memory.export(tmp_path / "m.jsonl")
    copy = await make_memory(schema_name="copy", policy=lambda text, entry: text.replace("4711", "[code]"))
    assert (await copy.import_(tmp_path / "m.jsonl")).problems == ()
    assert [turn.text for turn in await (await copy.session.open("s", user_id="u1")).turns()] == [
        "my code is [code]", "fine weather",
    ]  # fmt: skip
    [fact] = await copy.facts(user_id="u1")
    assert (fact.value, fact.evidence[0].quote) == ("[code]", "code is [code]")
    assert [one for table in contents(dsn, "copy").values() for one in table if "4711" in one] == []
    again = await (await copy.session.open("s", user_id="u1")).observe("code", "[code]", **BY_USER)
    assert again.id == fact.id  # its key is that of the value it has now


# -- on the command line ---------------------------------------------------------------------------------------


@pytest.fixture
def pgmem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    for name in ("PGMEM_DSN", "PGMEM_EMBEDDER", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_commands(dsn: str, tmp_path: Path, pgmem: Callable[..., tuple[int, str, str]]) -> None:
    file = str(tmp_path / "m.jsonl")
    with PgMem(dsn) as mem:
        session = mem.session.open("s", user_id="u1", group_id="acme")
        session.add_turn("user", "I like jazz")
        session.observe("likes", "jazz", authority="user")
    code, out, err = pgmem("export", file, "--group-id", "acme", "--dsn", dsn)
    assert code == 0, err
    assert "1 session, 1 turn, 1 fact" in out
    code, out, _ = pgmem("export", "-", "--group-id", "acme", "--dsn", dsn)
    assert [json.loads(line)["type"] for line in out.splitlines()] == [
        "memory", "session", "turn", "fact", "record", "end",
    ]  # fmt: skip
    code, out, err = pgmem("import", file, "--group-id", "copy", "--dsn", dsn, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert (document["format"], document["group_id"], document["new"]["turn"]) == ("memory", "copy", 1)
    assert document["embedded"] == 2
    code, out, _ = pgmem("import", file, "--dsn", dsn)
    assert code == 0
    assert "known     1 session, 1 turn, 1 fact, 1 record" in out
    assert "group acme" in out
    code, _, err = pgmem("import", file, "--user-id", "u2", "--dsn", dsn)
    assert code == 2
    assert "leave --user-id" in err
    code, _, err = pgmem("export", file, "--group-id", "nobody", "--dsn", dsn)
    assert code == 0
    assert "nothing in group 'nobody'" in err
