"""scope.*: nothing of one scope is in another's, whoever asks, and whatever works behind the turns."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pgmem_core import Conflict, InvalidArgument, NotFound, SubjectRef
from pgmem_core.facts import Evidence
from tests.acceptance.telling import BY_USER, found_in, reading, shown
from tests.fix_memory import Face, Maker
from tests.telling import quoting
from tests.test_forget import rows, token

EVERYWHERE = {"search", "get_all", "facts", "history", "sessions", "prompt", "turns", "execution"}


async def tell(memory: Face, group: str, word: str, *, user: str = "u1", session_id: str = "s1") -> Face:
    """Put a word into every tier of a scope; all else is alike in all scopes."""
    session = await memory.session.create(session_id, user_id=user, group_id=group, metadata={"topic": word})
    await session.add_turn("user", f"The door code of the lighthouse: my code is {word}")
    await session.add_turn("assistant", "I noted the door code of the lighthouse.")
    await session.observe("door_code", word, **BY_USER)
    await session.execution.set("plan", f"open with {word}")
    return session  # type: ignore[no-any-return]


async def test_scope__cross_tenant_absent(memory: Face, store: Face, tmp_path: Path) -> None:
    word, own = token("a"), token("b")
    session = await tell(memory, "a", word)
    await tell(memory, "b", own)
    await memory.form()
    query = "What is the door code of the lighthouse?"
    assert await found_in(memory, word, query, group="a") == EVERYWHERE
    assert await found_in(memory, word, query, group="b") == set()
    assert await found_in(memory, own, query, group="b") == EVERYWHERE
    # By its id, by its turn, in the plain store, in the log and in an export.
    [turn, *_] = await session.turns()
    context = await session.compile_context(query, floor=None)
    assert word in json.dumps(context.messages, default=str)
    assert await memory.history(turn.id, group_id="b") == []
    assert not await memory.delete(turn.id, group_id="b")
    with pytest.raises(NotFound):
        await memory.update(turn.id, "overwritten", group_id="b")
    assert await memory.why(context.query_id, group_id="b") == []
    assert await memory.why(context.query_id, group_id="a") != []
    similar = {group: await store.similar(group, query, limit=10) for group in ("a", "b")}
    recent = {group: await store.recent_turns(group, "s1", 10) for group in ("a", "b")}
    exported = {}
    for group in ("a", "b"):
        await memory.export(tmp_path / group, group_id=group)
        exported[group] = (tmp_path / group).read_text("utf-8")
    for texts in (similar, recent, exported):
        assert word in str(texts["a"])
        assert word not in str(texts["b"])
        assert own in str(texts["b"])


async def test_scope__caller_cannot_widen(memory: Face, store: Face) -> None:
    word, other, foreign = token("mine"), token("other"), token("foreign")
    session = await tell(memory, "a", word)
    theirs = await tell(memory, "a", other, user="u2", session_id="s2")
    await tell(memory, "b", foreign)
    await memory.form()
    query = f"the door code of the lighthouse {other} {foreign}"

    # Nothing: refused. A wildcard: a name like any other, of nobody.
    nothing: list[Any] = [None, "", " ", {}, [], 7, True, ["u1", "u2"], {"neq": "u1"}]
    for bad in nothing:
        for refused in (
            memory.search(query, user_id=bad),
            memory.get_all(user_id=bad),
            memory.search(query, user_id="u1", group_id=bad),
            memory.add("a note", user_id=bad),
            memory.delete_all(user_id=bad),
            memory.forget(user_id=bad),
            store.similar(bad, query),
            store.add(bad, "s1", "a note"),
            store.recent_turns(bad, "s1", 5),
        ):
            with pytest.raises(InvalidArgument):
                await refused
    with pytest.raises(InvalidArgument):
        await memory.facts()
    for wildcard in ("*", "%", "_", "u%", "u1' OR '1'='1", "u1,u2", ".*"):
        assert await memory.search(query, user_id=wildcard, group_id="a") == []
        assert await memory.get_all(user_id=wildcard, group_id="a") == []
        assert await memory.get_all(user_id="u1", group_id=wildcard) == []
        assert await memory.facts(user_id=wildcard, group_id="a") == []
        assert await memory.delete_all(user_id=wildcard, group_id="a") == 0
        assert await store.similar(wildcard, query) == []
        fresh = await memory.session.create(user_id=wildcard, group_id="a")
        assert word not in str((await fresh.compile_context(query, floor=None)).messages)
        await fresh.delete()

    # A filter is of metadata, and narrows; unknown names are refused.
    for bad_filter in ({"user_id": "u2"}, {"tenant_id": "b"}, {"or": [{"user_id": "u2"}, {"user_id": "u1"}]}):
        assert await memory.search(query, user_id="u1", group_id="a", filter=bad_filter) == []
    for name in ("tenant_id", "user", "users"):
        with pytest.raises(TypeError):
            await memory.search(query, user_id="u1", **{name: "b"})

    # A session is bound to its user and group: another's is not opened, nor read or written by its name.
    for reach in (
        memory.session.get("s2", user_id="u1", group_id="a"),
        memory.session.open("s2", user_id="u1", group_id="a"),
        memory.add("a note", user_id="u1", group_id="a", session_id="s2"),
    ):
        with pytest.raises((NotFound, Conflict)):
            await reach
    [their_turn, *_] = await theirs.turns()
    foreign_session = await memory.session.get("s1", group_id="b")
    [foreign_turn, *_] = await foreign_session.turns()
    for turn in (foreign_turn, Evidence(turn_id=foreign_turn.id)):
        with pytest.raises(NotFound):
            await session.observe("stolen", "yes", evidence=[turn])
    with pytest.raises((NotFound, Conflict)):
        await session.add_turn("user", "taken over", id=their_turn.id)
    assert not await memory.delete(their_turn.id, group_id="a", user_id="u1")
    with pytest.raises(NotFound):
        await memory.update(their_turn.id, "overwritten", group_id="a", user_id="u1")

    # All of it is as it was, and everybody still has his own.
    neutral = "the door code of the lighthouse"
    for user, group, session_id, own in (("u1", "a", "s1", word), ("u2", "a", "s2", other), ("u1", "b", "s1", foreign)):
        asked = {"user": user, "group": group, "session_id": session_id}
        assert await found_in(memory, own, neutral, **asked) == EVERYWHERE
        for not_own in {word, other, foreign} - {own}:
            assert await found_in(memory, not_own, neutral, **asked) == set()


async def test_scope__background_respects_boundary(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(extractor=reading(), summarizers=quoting())
    places = [("a", "u1"), ("b", "u1"), ("a", "u2")]
    words = {place: token() for place in places}
    for (group, user), word in words.items():
        await tell(memory, group, word, user=user, session_id=f"s-{user}")
    # The work of one group alone, then of all at once by two who are at it together.
    await memory.form(group_id="a")
    assert rows(dsn, "SELECT DISTINCT tenant_id FROM pgmem.facts WHERE predicate = 'code'") == [("a",)]
    other = await make_memory(extractor=reading(), summarizers=quoting())
    await asyncio.gather(memory.form(), other.form())
    for group, user in places:
        report = await (await memory.session.get(f"s-{user}", group_id=group)).compact()
        assert (report.error, report.episodes) == (None, 1)

    for (group, user), word in words.items():
        # Each has all that is made of it: the derived rows hold the own word, and nobody else's.
        derived = {
            "records": "SELECT content FROM pgmem.records WHERE tenant_id = %s AND user_id = %s AND kind <> 'turn'",
            "facts": "SELECT predicate || value::text FROM pgmem.facts WHERE tenant_id = %s AND user_id = %s",
            "summaries": """SELECT r.content FROM pgmem.running_summaries r
                            JOIN pgmem.sessions s USING (tenant_id, session_id)
                            WHERE s.tenant_id = %s AND s.user_id = %s""",
            "narratives": "SELECT content FROM pgmem.narratives WHERE tenant_id = %s AND user_id = %s",
        }  # fmt: skip
        for name, statement in derived.items():
            texts = " ".join(row[0] for row in rows(dsn, statement, group, user))
            assert word in texts, name
            assert name != "facts" or f'code"{word}"' in texts.replace("door_code", ""), name  # the one that was read
            assert not any(one in texts for one in words.values() if one != word), name
        # Evidence and episodes stay in their group, postings and vectors are of the own records.
        query = "What is the door code of the lighthouse?"
        text = await shown(memory, query, user=user, group=group)
        assert word in text
        assert not any(one in text for one in words.values() if one != word)
        found = await memory.search(query, user_id=user, group_id=group)
        assert found
        assert all(one.parts.cosine is not None for one in found)
        assert {fact.value for fact in await memory.facts(user_id=user, group_id=group)} == {word}
    astray = """SELECT count(*) FROM pgmem.evidence e JOIN pgmem.facts f USING (tenant_id, fact_id)
                JOIN pgmem.records r ON r.tenant_id = e.tenant_id AND r.id = e.turn_id WHERE r.user_id <> f.user_id"""
    assert rows(dsn, astray) == [(0,)]
    assert rows(dsn, "SELECT count(*) > 2 FROM pgmem.evidence WHERE turn_id IS NOT NULL") == [(True,)]
    assert await memory.facts(SubjectRef("user", "u1"), group_id="c") == []
