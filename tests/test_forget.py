"""Forgetting on real Postgres: nothing of it is left anywhere, and nothing brings it back."""

from __future__ import annotations

import asyncio
import json
import secrets
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgmem_core import Authority, InvalidArgument, SubjectRef
from pgmem_core.changes import Add, Confirm, Contest, End, Ignore, NewFact, Retract, Supersede
from pgmem_core.facts import Evidence, FactDraft, Tombstone
from pgmem_core.folding import value_key
from pgmem_core.tiers import erasures
from tests.fix_memory import Face, Maker

USER = SubjectRef("user", "u1")
BY_USER: dict[str, Any] = {"authority": Authority.user}
QUIET: dict[str, Any] = {"store_query": False, "floor": None}


def rows(dsn: str, statement: str, *parameters: Any) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        done = conn.execute(statement, parameters)
        return done.fetchall() if done.description is not None else []


def token(name: str = "x") -> str:
    """A word that nobody says by accident."""
    return f"{name}{secrets.token_hex(6)}"


def whereabouts(dsn: str, wanted: str) -> dict[str, int]:
    """Return in which columns of the whole schema a token stands, in how many rows: text of any type, case folded."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        columns = conn.execute(
            """SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
               WHERE c.relnamespace = 'pgmem'::regnamespace AND c.relkind = 'r' AND a.attnum > 0
                 AND NOT a.attisdropped AND a.atttypid::regtype::text NOT IN ('vector', 'bigint', 'bit varying')"""
        ).fetchall()
        assert len(columns) > 100  # it does look everywhere
        found = {}
        for table, column in columns:
            [(count,)] = conn.execute(
                f'SELECT count(*) FROM pgmem."{table}" WHERE "{column}"::text ILIKE %s', (f"%{wanted}%",)
            ).fetchall()
            if count:
                found[f"{table}.{column}"] = count
        return found


async def prompt(session: Face, query: str, **options: Any) -> str:
    context = await session.compile_context(query, **{**QUIET, **options})
    return "\n".join(str(message["content"]) for message in context.messages)


class Told:
    """What was told: one user's secret and its sibling, and another user's own."""

    def __init__(self) -> None:
        self.secret, self.sibling, self.others = token("secret"), token("sibling"), token("others")
        self.turns: dict[str, Any] = {}


async def tell(memory: Face, dsn: str, told: Told) -> None:
    """Fill every table that can hold what was said: by u1 the secret in s1 and the sibling in s2, by u2 in s3."""
    for user, session_id, word in (("u1", "s1", told.secret), ("u1", "s2", told.sibling), ("u2", "s3", told.others)):
        session = await memory.session.create(session_id, user_id=user, metadata={"topic": word})
        said = await session.add_turn("user", f"My favourite gadget is the {word}", metadata={"about": word})
        calls = [{"id": "c", "name": word, "args": {}}]
        reply = await session.add_turn("assistant", f"A {word}, noted", tool_calls=calls)
        told.turns[session_id] = [said, reply]
        await memory.update(reply.id, f"A {word}, edited")
        await session.observe(
            "favourite_gadget", f"the {word}", **BY_USER, single_valued=False,
            evidence=[Evidence(turn_id=said.id, quote=f"gadget is the {word}")],
        )  # fmt: skip
        await session.execution.set("plan", {"buy": word})
        summarise(dsn, user, session_id, said, reply, word)
    # What another scope derived of it: it rests on the turn of u1. And a copy that is another user's own.
    third = await memory.session.create("s4", user_id="u3")
    await third.observe("overheard", f"u1 likes {told.secret}", subject=SubjectRef("topic", "gadgets"),
                        evidence=[told.turns["s1"][0]])  # fmt: skip
    other = await memory.session.get("s3")
    await other.add_turn("user", f"I own a {told.others} myself")
    await memory.form()
    for session_id in ("s1", "s2", "s3"):
        session = await memory.session.get(session_id)
        await session.compile_context(f"which gadget? {told.turns[session_id][0].text}", floor=None)
    await asyncio.to_thread(memory.target._rt.beside(lambda: None).result)  # the log is written beside the turn


def summarise(dsn: str, user: str, session_id: str, said: Any, reply: Any, word: str) -> None:
    """Write what compaction and narration would have written of two turns."""
    episode = uuid.uuid4()
    with psycopg.connect(dsn) as conn:
        conn.execute(
            """INSERT INTO pgmem.records (tenant_id, id, user_id, user_key, session_id, kind, content, token_count,
                 created_at) SELECT tenant_id, %s, user_id, user_key, session_id, 'episode', %s, 9, now()
               FROM pgmem.records WHERE id = %s""",
            (episode, f"They spoke of {word}", said.id),
        )
        for turn in (said, reply):
            conn.execute("INSERT INTO pgmem.episode_turns VALUES ('default', %s, %s)", (episode, turn.id))
        conn.execute(
            """INSERT INTO pgmem.running_summaries (tenant_id, session_id, version, content, through_seq, token_count)
               VALUES ('default', %s, 1, %s, 2, 5)""",
            (session_id, f"so far: {word}"),
        )
        conn.execute("UPDATE pgmem.sessions SET summarised_through = 2 WHERE session_id = %s", (session_id,))
        conn.execute(
            """INSERT INTO pgmem.narratives (tenant_id, user_id, version, content, seen_through)
               SELECT 'default', %s, count(*) + 1, %s, now() FROM pgmem.narratives WHERE user_id = %s""",
            (user, f"The story of {word}", user),
        )


async def probes(memory: Face, word: str, *, user: str, session: str | None = None) -> list[str]:
    """Return which ways of asking find a token."""
    before = datetime.now(UTC)
    found = {
        "search": [one.content for one in await memory.search(f"gadget {word}", user_id=user)],
        "get_all": [str(one) for one in await memory.get_all(user_id=user)],
        "facts": [fact.text for fact in await memory.facts(user_id=user)],
        "history": [str(fact) for fact in await memory.history(SubjectRef("user", user))],
        "known_at": [fact.text for fact in await memory.facts(user_id=user, known_at=before)],
        "sessions": [str(info) for info in await memory.session.list(user_id=user)],
    }
    asking = await memory.session.create(user_id=user) if session is None else await memory.session.get(session)
    found["context"] = [await prompt(asking, "which gadget do I like?")]
    if session is None:
        await asking.delete()
    return [name for name, texts in found.items() if any(word in text for text in texts)]


# -- a user ----------------------------------------------------------------------------------------------------


async def test_nothing_is_left_of_a_forgotten_user(make_memory: Maker, dsn: str) -> None:
    memory, told = await make_memory(), Told()
    await tell(memory, dsn, told)
    before = whereabouts(dsn, told.secret)
    assert {key.split(".")[0] for key in before} >= {
        "records", "facts", "evidence", "sessions", "execution", "running_summaries", "narratives", "record_history",
    }  # fmt: skip
    assert await probes(memory, told.secret, user="u1") == ["search", "get_all", "facts", "history", "known_at",
                                                            "sessions", "context"]  # fmt: skip
    report = await memory.forget(user_id="u1")
    assert whereabouts(dsn, told.secret) == {}
    assert whereabouts(dsn, told.sibling) == {}
    assert whereabouts(dsn, "u1") == {}
    assert report.target == "user"
    assert (report.rows["turns"], report.rows["sessions"], report.rows["episodes"]) == (6, 2, 2)
    assert report.rows["facts"] == 3  # his two, and what rested on his words in another's memory
    assert report.rows["vectors"] > 0
    assert report.rows["postings"] > 0
    assert report.total == sum(report.rows.values())
    assert await probes(memory, told.secret, user="u1") == []
    # What the second user said himself is there, in every way.
    assert len(await probes(memory, told.others, user="u2")) == 7
    assert rows(dsn, "SELECT count(*) FROM pgmem.injections WHERE user_id = 'u2'") == [(1,)]
    # After the jobs, a reindex, and in another client.
    await memory.form()
    rows(dsn, "REINDEX SCHEMA pgmem")
    again = await make_memory()
    assert await probes(again, told.secret, user="u1") == []
    assert len(await probes(again, told.others, user="u2")) == 7


async def test_the_audit_says_that_it_happened_and_not_what(memory: Face, dsn: str) -> None:
    word = token("user")
    await memory.add("hello there", user_id=word)
    report = await memory.forget(user_id=word)
    [(erasure, target, counts, at, key)] = rows(
        dsn, "SELECT erasure_id, target, counts, erased_at, key_hash FROM pgmem.erasures"
    )
    assert (str(erasure), target, at) == (report.erasure_id, "user", report.erased_at)
    assert counts == dict(report.rows)
    assert len(key) == 32
    assert rows(dsn, "SELECT %s = pgmem.erasure_key('default', 'user', %s)", key, word) == [(True,)]
    assert whereabouts(dsn, word) == {}


async def test_the_other_tenant_keeps_its_own(memory: Face, dsn: str) -> None:
    word = token()
    for group in ("a", "b"):
        await memory.add(f"the word is {word}", user_id="u1", group_id=group)
    await memory.forget(user_id="u1", group_id="a")
    assert await memory.get_all(user_id="u1", group_id="a") == []
    assert [str(one) for one in await memory.get_all(user_id="u1", group_id="b")] == [f"the word is {word}"]


async def test_a_forgotten_user_may_begin_anew(memory: Face) -> None:
    session = await memory.session.create("s1", user_id="u1")
    said = await session.add_turn("user", "I am vegan")
    await session.observe("diet", "vegan", **BY_USER, evidence=[said])
    await session.retract("diet", "vegan", **BY_USER)
    assert await session.observe("diet", "vegan") is None
    await memory.forget(user_id="u1")
    fresh = await memory.session.create("s1", user_id="u1")
    turn = await fresh.add_turn("user", "I am vegan")
    assert turn.seq == 1
    fact = await fresh.observe("diet", "vegan", **BY_USER, evidence=[turn])
    assert fact is not None
    assert [one.value for one in await memory.facts(USER)] == ["vegan"]
    assert "vegan" in await prompt(fresh, "what do I eat?")


# -- exactly one target ----------------------------------------------------------------------------------------


NO_TARGETS: list[dict[str, Any]] = [
    {}, {"user_id": None}, {"user_id": ""}, {"user_id": "  "}, {"user_id": {}}, {"user_id": 7}, {"session_id": ""},
    {"turn_id": ""}, {"turn_id": "run-17"}, {"subject": SubjectRef("user", "")}, {"subject": "user:u1"},
    {"user_id": "u1", "session_id": "s1"}, {"user_id": "u1", "turn_id": None, "subject": USER},
    {"user_id": "u1", "group_id": ""}, {"user_id": "u1", "group_id": None},
]  # fmt: skip


async def test_no_target_or_two_are_refused_and_nothing_goes(memory: Face, dsn: str) -> None:
    """A4"""
    await memory.add("a note", user_id="u1")
    for target in NO_TARGETS:
        with pytest.raises(InvalidArgument):
            await memory.forget(**target)
    assert len(await memory.get_all(user_id="u1")) == 1
    assert rows(dsn, "SELECT count(*) FROM pgmem.erasures") == [(0,)]
    assert (await memory.forget(user_id="u1")).rows["turns"] == 1


async def test_forgetting_one_of_three_users_leaves_two(memory: Face) -> None:
    """A4"""
    for user in ("u1", "u2", "u3"):
        for number in (1, 2):
            await memory.add(f"fact {number} of {user}", user_id=user)
    await memory.forget(user_id="u2")
    assert [len(await memory.get_all(user_id=user)) for user in ("u1", "u2", "u3")] == [2, 0, 2]


async def test_what_is_unknown_is_reported_as_nothing(memory: Face) -> None:
    for target in ({"user_id": "nobody"}, {"session_id": "none"}, {"turn_id": uuid.uuid4()},
                   {"subject": SubjectRef("person", "none")}):  # fmt: skip
        assert (await memory.forget(**target)).total == 0


# -- a session -------------------------------------------------------------------------------------------------


async def test_nothing_is_left_of_a_forgotten_session(memory: Face, dsn: str) -> None:
    told = Told()
    await tell(memory, dsn, told)
    session = await memory.session.get("s1")
    called = token("called")
    await session.observe("colour", called)  # by a call, without a turn
    kept = token("kept")
    await session.observe("size", kept, evidence="crm record 7")
    report = await memory.forget(session_id="s1")
    assert whereabouts(dsn, told.secret) == {}
    assert whereabouts(dsn, called) == {}
    assert report.rows["turns"] == 3
    assert report.rows["sessions"] == report.rows["execution"] == 1
    assert report.rows["running_summaries"] == 1
    # The other session of the user, and what somebody else's record supports, are there.
    assert set(await probes(memory, told.sibling, user="u1", session="s2")) >= {"search", "get_all", "facts", "context"}
    assert kept in [fact.value for fact in await memory.facts(USER)]
    assert rows(dsn, "SELECT content FROM pgmem.narratives WHERE user_id = 'u1'") == []


async def test_a_session_without_a_user_is_forgotten_with_its_facts(memory: Face, dsn: str) -> None:
    word, sibling = token(), token()
    for session_id, said in (("anonymous-1", word), ("anonymous-2", sibling)):
        session = await memory.session.create(session_id)
        await session.add_turn("user", f"call me {said}")
        await session.observe("name", said, evidence="a form")
    await memory.forget(session_id="anonymous-1")
    assert whereabouts(dsn, word) == whereabouts(dsn, "anonymous-1") == {}
    assert await probes_of_session(memory, "anonymous-2") == [sibling]


async def probes_of_session(memory: Face, session_id: str) -> list[Any]:
    return [fact.value for fact in await memory.facts(SubjectRef("session", session_id))]


# -- a turn ----------------------------------------------------------------------------------------------------


async def test_a_turn_goes_with_what_was_made_of_it(memory: Face, dsn: str) -> None:
    told = Told()
    await tell(memory, dsn, told)
    session = await memory.session.get("s1")
    secret, reply = told.turns["s1"]
    both = await session.observe("mood", "glad", **BY_USER, evidence=[secret, told.turns["s2"][0]])
    later = await session.add_turn("user", "Something else entirely: aubergines")
    report = await memory.forget(turn_id=secret.id)
    assert report.rows["turns"] == report.rows["episodes"] == report.rows["running_summaries"] == 1
    assert report.rows["facts"] == 2
    # The reply, the query and the plan name it too: those are other turns' words, and the agent's.
    left = set(whereabouts(dsn, told.secret))
    assert left == {
        "records.content", "records.message", "record_history.old_content", "record_history.new_content",
        "sessions.metadata", "execution.value",
    }  # fmt: skip
    assert (await session.turns())[0].id == reply.id
    assert [one.seq for one in await session.turns()] == [2, 3, 4]
    # A fact that another turn supports as well stays, with that evidence.
    [mood] = await memory.facts(USER, "mood")
    assert mood.id == both.id
    assert [one.turn_id for one in mood.evidence] == [told.turns["s2"][0].id]
    # The session is to be summarised again, from there on.
    marks = "SELECT summarised_through, uncompacted FROM pgmem.sessions WHERE session_id = %s"
    assert rows(dsn, marks, "s1") == [(0, True)]
    assert rows(dsn, marks, "s2")[0][0] == 2
    assert rows(dsn, "SELECT count(*) FROM pgmem.injections WHERE session_id = 's1'") == [(0,)]
    assert rows(dsn, "SELECT count(*) FROM pgmem.injections WHERE session_id = 's3'") == [(1,)]
    # It goes on as any session does.
    assert "aubergines" in await prompt(session, "and?")
    assert (await session.add_turn("user", "more")).seq == later.seq + 1
    assert (await memory.form()).errors == {}


async def test_episodes_after_the_gap_are_written_again_and_those_before_stay(memory: Face, dsn: str) -> None:
    session = await memory.session.create("s1", user_id="u1")
    turns = [await session.add_turn("user", f"part {number} of the tale") for number in range(6)]
    for first in (0, 2, 4):
        summarise(dsn, "u1", "s1", turns[first], turns[first + 1], f"tale {first}") if first == 0 else None
    with psycopg.connect(dsn) as conn:
        for version, first in ((2, 2), (3, 4)):
            episode = uuid.uuid4()
            conn.execute(
                """INSERT INTO pgmem.records (tenant_id, id, user_id, user_key, session_id, kind, content, token_count,
                     created_at) SELECT tenant_id, %s, user_id, user_key, session_id, 'episode', %s, 9, now()
                   FROM pgmem.records WHERE id = %s""",
                (episode, f"episode {first}", turns[first].id),
            )
            for turn in turns[first : first + 2]:
                conn.execute("INSERT INTO pgmem.episode_turns VALUES ('default', %s, %s)", (episode, turn.id))
            conn.execute(
                "INSERT INTO pgmem.running_summaries VALUES ('default', 's1', %s, 'so far', %s, 5)",
                (version, first + 2),
            )
        conn.execute("UPDATE pgmem.sessions SET summarised_through = 6")
    await memory.forget(turn_id=turns[3].id)
    assert rows(dsn, "SELECT content FROM pgmem.records WHERE kind = 'episode'") == [("They spoke of tale 0",)]
    assert rows(dsn, "SELECT version FROM pgmem.running_summaries") == [(1,)]
    assert rows(dsn, "SELECT summarised_through, last_seq FROM pgmem.sessions") == [(2, 6)]


async def test_a_turn_on_its_way_is_forgotten_too(memory: Face, dsn: str) -> None:
    word, other = token(), token()
    session = await memory.session.create("s1", user_id="u1")
    asked = await session.compile_context(f"where is {word}?")
    kept = await session.compile_context(f"where is {other}?")
    await memory.forget(turn_id=asked.query_id)
    await memory.flush()
    assert "records.content" not in whereabouts(dsn, word)
    assert "records.content" in whereabouts(dsn, other)
    assert [turn.id for turn in await session.turns()] == [kept.query_id]
    gone = await session.compile_context(f"and {word}?")
    assert gone.query_id is not None
    await memory.forget(user_id="u1")
    await memory.flush()
    assert whereabouts(dsn, word) == whereabouts(dsn, other) == {}
    assert memory.target._rt._queries == {}


# -- a subject -------------------------------------------------------------------------------------------------


async def test_a_subject_goes_everywhere_and_the_turns_stay(memory: Face, dsn: str) -> None:
    word, other = token("acme"), token("bolt")
    turns = {}
    for user in ("u1", "u2"):
        session = await memory.session.create(f"of-{user}", user_id=user)
        for name in (word, other):
            turns[user, name] = said = await session.add_turn("user", f"{name} pays late, says {user}")
            subject = SubjectRef("customer", name)
            await session.observe("pays", f"late ({user})", subject=subject, evidence=[said], single_valued=False)
            await session.retract("tier", "gold", subject=subject, **BY_USER)
    report = await memory.forget(subject=SubjectRef("customer", word))
    assert (report.rows["facts"], report.rows["subjects"], report.rows["tombstones"]) == (2, 1, 1)
    assert report.rows["turns"] == 0
    assert set(whereabouts(dsn, word)) == {"records.content"}
    assert await memory.facts(SubjectRef("customer", word)) == await memory.history(SubjectRef("customer", word)) == []
    assert len(await memory.history(SubjectRef("customer", other))) == 2
    assert (await (await memory.session.get("of-u1")).turns())[0].text.startswith(word)


async def test_what_was_said_before_is_not_read_into_facts_again(make_memory: Maker) -> None:
    """An extractor reads turns from before and after the erasure, in one batch."""

    class Reads:
        def extract(self, turns: Any, known: Any) -> list[FactDraft]:
            return [FactDraft("pays", turn.text.split()[-1], SubjectRef("customer", turn.text.split()[0]),
                              turn_id=turn.id, quote=turn.text, single_valued=True)
                    for turn in turns if turn.role == "user"]  # fmt: skip

        async def aextract(self, turns: Any, known: Any) -> list[FactDraft]:
            return self.extract(turns, known)

    memory = await make_memory(extractor=Reads(), formation="manual")
    session = await memory.session.create("s1", user_id="u1")
    for text in ("acme pays late", "bolt pays late", "acme pays never"):
        await session.add_turn("user", text)
    await memory.forget(subject=SubjectRef("customer", "acme"))
    await memory.form()
    facts = {fact.subject.identifier: fact.value for fact in await memory.facts(user_id="u1")}
    assert facts == {"bolt": "late"}
    await session.add_turn("user", "acme pays early")
    await memory.form()
    facts = {fact.subject.identifier: fact.value for fact in await memory.facts(user_id="u1")}
    assert facts == {"bolt": "late", "acme": "early"}


# -- older copies ----------------------------------------------------------------------------------------------


def exported(tmp_path: Path, word: str, *, user: str = "u1", session: str = "s1") -> Path:
    """A file as an export from before would be."""
    file = tmp_path / f"{user}-{session}.jsonl"
    then = datetime.now(UTC) - timedelta(days=1)
    lines: list[dict[str, Any]] = [
        {"type": "session", "session_id": session, "user_id": user, "title": f"On {word}",
         "created_at": then.isoformat()}
    ]  # fmt: skip
    for number in range(3):
        at = (then + timedelta(minutes=number)).isoformat()
        turn = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{session}{number}"))
        lines.append({"type": "turn", "session_id": session, "id": turn, "role": "user",
                      "content": f"{word} number {number}", "created_at": at})  # fmt: skip
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


async def test_an_older_export_does_not_bring_a_user_back(memory: Face, dsn: str, tmp_path: Path) -> None:
    word, sibling = token(), token()
    file, other = exported(tmp_path, word), exported(tmp_path, sibling, user="u2", session="s2")
    assert (await memory.import_(file)).new == {"session": 1, "turn": 3}
    assert (await memory.import_(other)).new == {"session": 1, "turn": 3}
    await memory.forget(user_id="u1")
    report = await memory.import_(file)
    assert (report.new, report.forgotten) == ({}, {"turn": 3})
    assert whereabouts(dsn, word) == {}
    # Nor under another name, where its ids or its sessions tell; a conversation of its own is welcome.
    assert (await memory.import_(file, user_id="u9")).forgotten == {"turn": 3}
    assert whereabouts(dsn, word) == {}
    assert (await memory.import_(other)).known == {"session": 1, "turn": 3}
    line = {"type": "turn", "session_id": "s1", "role": "user", "content": f"new {word}",
            "created_at": (datetime.now(UTC) + timedelta(seconds=5)).isoformat()}  # fmt: skip
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    report = await memory.import_(file)
    assert (report.new.get("turn"), report.forgotten) == (1, {"turn": 3})
    assert [str(one) for one in await memory.get_all(user_id="u1")] == [f"new {word}"]
    assert set(whereabouts(dsn, word)) == {"records.content"}  # and not the old title


async def test_an_older_export_does_not_bring_a_session_or_a_turn_back(memory: Face, dsn: str, tmp_path: Path) -> None:
    word, sibling = token(), token()
    file, other = exported(tmp_path, word), exported(tmp_path, sibling, session="s2")
    await memory.import_(file)
    await memory.import_(other)
    await memory.forget(session_id="s1")
    assert (await memory.import_(file)).forgotten == {"turn": 3}
    assert whereabouts(dsn, word) == {}
    [first, *_] = await (await memory.session.get("s2")).turns()
    await memory.forget(turn_id=first.id)
    report = await memory.import_(other)
    assert (report.known["turn"], report.forgotten) == (2, {"turn": 1})
    await (await memory.session.get("s2")).delete()
    report = await memory.import_(other)
    assert (report.new["turn"], report.forgotten) == (2, {"turn": 1})


async def test_an_export_of_all_tiers_does_not_bring_it_back(memory: Face, dsn: str, tmp_path: Path) -> None:
    told, file = Told(), tmp_path / "memory.jsonl"
    await tell(memory, dsn, told)
    await memory.export(file)
    assert told.secret in file.read_text("utf-8")
    assert told.others in file.read_text("utf-8")
    await memory.forget(user_id="u1")
    report = await memory.import_(file)
    assert report.forgotten["turn"] >= 4
    assert whereabouts(dsn, told.secret) == whereabouts(dsn, told.sibling) == whereabouts(dsn, "u1") == {}
    # What was another's is restored from it.
    await memory.delete_all(user_id="u2")
    assert whereabouts(dsn, told.others) == {}
    await memory.import_(file)
    assert set(await probes(memory, told.others, user="u2")) >= {"search", "get_all", "facts", "context"}
    await memory.forget(subject=SubjectRef("user", "u2"))
    await memory.import_(file)
    assert set(whereabouts(dsn, told.others)) & {"facts.value", "evidence.quote"} == set()


async def test_a_deletion_without_forgetting_can_be_imported_again(memory: Face, dsn: str, tmp_path: Path) -> None:
    word = token()
    file = exported(tmp_path, word)
    await memory.import_(file)
    assert await memory.delete_all(user_id="u1") == 3
    assert whereabouts(dsn, word) == {}
    assert (await memory.import_(file)).new["turn"] == 3


# -- on the caller's transaction, and under concurrency ---------------------------------------------------------


async def test_it_joins_the_callers_transaction(memory: Face, dsn: str) -> None:
    await memory.add("a note", user_id="u1")
    if memory.face == "sync":
        with psycopg.connect(dsn) as conn:
            assert (await memory.forget(user_id="u1", connection=conn)).rows["turns"] == 1
            conn.rollback()
    else:
        async with await psycopg.AsyncConnection.connect(dsn) as aconn:
            assert (await memory.forget(user_id="u1", connection=aconn)).rows["turns"] == 1
            await aconn.rollback()
    assert len(await memory.get_all(user_id="u1")) == 1
    assert rows(dsn, "SELECT count(*) FROM pgmem.erasures") == [(0,)]
    assert rows(dsn, "SELECT count(*) FROM pgmem.erased_keys") == [(0,)]


async def test_forgetting_while_others_write(memory: Face, dsn: str) -> None:
    """Turns, facts and erasures of one user at once: no deadlock, and no fact without evidence."""
    sessions = [await memory.session.create(f"s{number}", user_id="u1") for number in range(4)]

    async def write(session: Face, number: int) -> None:
        said = await session.add_turn("user", f"I like fruit {number}")
        try:
            await session.observe("likes", f"fruit {number}", evidence=[said], **BY_USER, single_valued=False)
        except LookupError:
            return  # the turn was forgotten in between
        if number % 2:
            await memory.forget(turn_id=said.id)

    await asyncio.gather(*(write(sessions[number % 4], number) for number in range(24)))
    assert rows(dsn, """SELECT count(*) FROM pgmem.facts f WHERE NOT EXISTS (
                          SELECT FROM pgmem.evidence e WHERE e.fact_id = f.fact_id)""") == [(0,)]  # fmt: skip
    left = {fact.value for fact in await memory.facts(USER, "likes")}
    assert left == {f"fruit {number}" for number in range(0, 24, 2)}
    await memory.forget(user_id="u1")
    assert whereabouts(dsn, "fruit") == {}


# -- deletion of single memories takes the same road -----------------------------------------------------------


async def test_a_deleted_turn_leaves_no_summary_of_it(memory: Face, dsn: str) -> None:
    told = Told()
    await tell(memory, dsn, told)
    secret, reply = told.turns["s1"]
    assert await memory.delete(secret.id)
    assert await memory.delete(reply.id)
    assert set(whereabouts(dsn, told.secret)) == {"records.content", "sessions.metadata", "execution.value"}
    events = await memory.history(reply.id)
    assert [(one["event"], one["old_memory"], one["new_memory"]) for one in events] == [
        ("UPDATE", None, None), ("DELETE", None, None)]  # fmt: skip
    assert set(whereabouts(dsn, told.sibling)) >= {"facts.value", "running_summaries.content", "evidence.quote"}


# -- what is left of a decision --------------------------------------------------------------------------------

BEFORE, ERASED, AFTER = (datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3))


def stated(ref: str, value: str, at: datetime, **options: Any) -> NewFact:
    return NewFact(ref, USER, "diet", value, value_key(value), Authority.user, 0.9, options.get("status", "accepted"),
                   True, None, None, at, (Evidence(turn_id=ref),))  # fmt: skip


def test_what_was_said_before_the_erasure_is_left_out_of_a_decision() -> None:
    old, new = stated("new:0", "vegan", BEFORE), stated("new:1", "vegetarian", AFTER)
    grave = Tombstone(USER, "diet", value_key("vegan"), Authority.user, AFTER, "new:0")
    erased = {USER: ERASED}

    def left(*changes: Any) -> tuple[Any, ...]:
        return erasures.without(changes, erased)

    assert left(Add(0, old)) == (Ignore(0, "said before its subject was forgotten"),)
    assert left(Add(0, new)) == (Add(0, new),)
    assert erasures.without([Add(0, old)], {}) == (Add(0, old),)
    assert erasures.without([Add(0, old)], {SubjectRef("user", "u2"): ERASED}) == (Add(0, old),)
    # Said since, it stands by itself, whatever it confirms, contests or replaces.
    [first, again] = left(Add(0, old), Confirm(1, "new:0", 0.95, AFTER, Authority.user, new.evidence))
    assert isinstance(first, Ignore)
    assert isinstance(again, Add)
    assert (again.by, again.new.value, again.new.last_confirmed_at) == (1, "vegan", AFTER)
    assert again.new.evidence == new.evidence
    assert isinstance(left(Add(0, old), Confirm(1, "new:0", 0.95, BEFORE, Authority.user, ()))[1], Ignore)
    assert left(Add(0, old), Supersede(1, "new:0", "changed", new, AFTER))[1] == Add(1, new)
    [_, kept] = left(Add(0, old), Contest(1, stated("new:1", "vegetarian", AFTER, status="contested"), "new:0"))
    assert kept == Add(1, new)
    assert left(Add(0, old), Add(1, new, settles=("new:0", "7")))[1] == Add(1, new, settles=("7",))
    [_, buried] = left(Add(0, old), Retract(1, "new:0", grave, ()))
    assert isinstance(buried, Retract)
    assert (buried.fact_id, buried.tombstone.fact_id) == (None, None)
    assert isinstance(left(Add(0, old), End(1, "new:0", AFTER, ()))[1], Ignore)
    assert left(End(0, "7", AFTER, ())) == (End(0, "7", AFTER, ()),)
