"""evidence.*: every claim in a prompt leads to a source, goes with it, and can be made of it again."""

from __future__ import annotations

from typing import Any

import psycopg

from pgmem_core import CompiledContext
from tests.acceptance.telling import BY_USER, USER, context_of, current, reading, shown
from tests.fix_memory import Face, Maker
from tests.telling import quoting
from tests.test_forget import rows, token, whereabouts

# What stands in a prompt and is remembered: not the conversation's own window, nor what the caller passed in.
CLAIMS = {"fact", "turn", "episode", "narrative", "summary"}


async def conversation(memory: Face, session_id: str, word: str, thing: str = "gadget", *, user: str = "u1") -> Face:
    """A session that says a word, formed and compacted."""
    session = await memory.session.create(session_id, user_id=user)
    await session.add_turns(
        [
            {"role": "user", "content": f"Let me tell you about it: my {thing} is {word}, and it stands in the hall."},
            {"role": "assistant", "content": f"I see, the {thing} stands in the hall."},
        ]
    )
    assert (await session.compact()).error is None
    return session  # type: ignore[no-any-return]


def claims_of(context: CompiledContext, session_id: str) -> list[tuple[str, str]]:
    """Kind and id of every claim that memory put into a prompt."""
    items = [item for section in context.sections.values() for item in section.items]
    return [
        (item.kind, item.id)
        for item in items
        if item.kind in CLAIMS and not (item.kind == "turn" and item.session_id == session_id)
    ]


async def sources_of(memory: Face, dsn: str, kind: str, claim_id: str, session_id: str) -> set[str]:
    """The texts of the turns that a claim leads to, of those that are there; where a fact was stated, that."""
    if kind == "fact":
        [fact] = [one for one in await memory.history(USER) if one.id == claim_id]
        turns = [one.turn_id for one in fact.evidence if one.turn_id is not None]
        found = rows(dsn, "SELECT content FROM pgmem.records WHERE id = ANY (%s::uuid[])", turns)
        assert len(found) == len(turns)
        return {row[0] for row in found} | {one.source for one in fact.evidence if one.source is not None}
    if kind == "turn":
        found = rows(dsn, "SELECT content FROM pgmem.records WHERE kind = 'turn' AND id = %s::uuid", claim_id)
    elif kind == "episode":
        found = rows(
            dsn,
            """SELECT t.content FROM pgmem.episode_turns e JOIN pgmem.records t ON t.id = e.turn_id
               WHERE e.episode_id = %s::uuid""",
            claim_id,
        )
    elif kind == "summary":
        found = rows(
            dsn,
            """SELECT t.content FROM pgmem.running_summaries v JOIN pgmem.records t ON t.session_id = v.session_id
               WHERE v.session_id = %s AND v.version = %s AND t.seq <= v.through_seq""",
            session_id, int(claim_id.removeprefix("summary:")),
        )  # fmt: skip
    else:
        found = rows(
            dsn,
            """SELECT t.content FROM pgmem.narratives n
               JOIN pgmem.episode_turns e ON e.episode_id = ANY (n.seen_episodes)
               JOIN pgmem.records t ON t.id = e.turn_id WHERE n.user_id = 'u1' AND n.version = %s""",
            int(claim_id.removeprefix("narrative:")),
        )  # fmt: skip
    return {row[0] for row in found}


async def test_evidence__claim_resolves_to_source(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(extractor=reading(), summarizers=quoting())
    words = [token(f"w{number}") for number in range(3)]
    for number, word in enumerate(words):
        await conversation(memory, f"s{number}", word, f"gadget{number}")
    stated = await memory.session.get("s0")
    await stated.observe("owns", "a dog", **BY_USER, evidence="crm:contact/7")

    # A new session, and an old one with its summary.
    seen: set[str] = set()
    fresh = await memory.session.create("fresh", user_id="u1")
    old = await memory.session.get("s0")
    await old.compact()
    for session in (fresh, old):
        context = await context_of(session, "Which gadget0, gadget1, gadget2 stands in the hall, and who owns a dog?")
        claims = claims_of(context, session.id)
        assert claims
        for kind, claim_id in claims:
            sources = await sources_of(memory, dsn, kind, claim_id, session.id)
            assert sources, (kind, claim_id)
            [text] = {
                item.text
                for section in context.sections.values()
                for item in section.items
                if (item.kind, item.id) == (kind, claim_id)
            }
            # What it says of our words stands in its sources.
            assert all(any(word in source for source in sources) for word in words if word in text), (kind, text)
            seen.add(kind)
    assert seen == CLAIMS


async def test_evidence__source_delete_reaches_derived(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(extractor=reading(), summarizers=quoting())
    word, sibling = token("gone"), token("kept")
    session = await conversation(memory, "s1", word)
    other = await conversation(memory, "s2", sibling, "lamp")
    await session.compile_context("Which gadget stands in the hall?", floor=None)  # it is in the log of prompts too
    await memory.flush()
    derived = {"records.content", "facts.value", "evidence.quote", "running_summaries.content", "narratives.content"}
    assert set(whereabouts(dsn, word)) >= derived
    assert set(whereabouts(dsn, sibling)) >= derived
    [source, *_] = await session.turns()
    [kept, *_] = await other.turns()
    fact_ids = [fact.id for fact in await memory.facts(USER, "gadget")]
    assert word in await shown(memory, "Which gadget stands in the hall?")

    assert await memory.delete(source.id)

    async def check() -> None:
        assert whereabouts(dsn, word) == {}
        gone = [source.id, *fact_ids]
        for place in ("records.id", "postings.record_id", "evidence.turn_id", "facts.fact_id", "episode_turns.turn_id",
                      "evidence.fact_id"):  # fmt: skip
            table, column = place.split(".")
            assert rows(dsn, f"SELECT count(*) FROM pgmem.{table} WHERE {column} = ANY (%s::uuid[])", gone) == [(0,)]
        assert word not in await shown(memory, "Which gadget stands in the hall?")
        # Of the sibling there is every kind, its vector and its words.
        assert set(whereabouts(dsn, sibling)) >= derived - {"narratives.content"}
        assert rows(dsn, "SELECT count(embedding) FROM pgmem.records WHERE id = %s::uuid", kept.id) == [(1,)]
        assert rows(dsn, "SELECT count(*) > 3 FROM pgmem.postings WHERE record_id = %s::uuid", kept.id) == [(True,)]
        assert sibling in await shown(memory, "Which lamp stands in the hall?")

    await check()
    # What is left of the session is told anew, and the story with it.
    report = await memory.form()
    assert report.errors == {}
    assert (await session.compact()).error is None
    await check()
    assert "narratives.content" in whereabouts(dsn, sibling)


_DERIVED = """
    TRUNCATE pgmem.facts, pgmem.evidence, pgmem.decisions, pgmem.postings, pgmem.scope_stats, pgmem.episode_turns,
             pgmem.running_summaries, pgmem.narratives, pgmem.injections, pgmem.item_stats CASCADE;
    DELETE FROM pgmem.records WHERE kind IN ('fact', 'episode');
    UPDATE pgmem.records SET model = NULL, embedding = NULL, terms = '{}', term_total = 0;
    DELETE FROM pgmem.subjects s WHERE NOT EXISTS (
        SELECT FROM pgmem.tombstones t WHERE t.tenant_id = s.tenant_id AND t.subject_id = s.subject_id);
"""


def drop_derived(dsn: str) -> list[str]:
    """Lose everything that was made of the turns, and the index of the vectors; return its name."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(_DERIVED)
        found = conn.execute("SELECT indexname FROM pg_indexes WHERE indexname LIKE 'records_hnsw%'").fetchall()
        for (name,) in found:
            conn.execute(f"DROP INDEX pgmem.{name}")
    return [name for (name,) in found]


async def test_evidence__rebuild_from_retained(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(extractor=reading(), summarizers=quoting())
    words = {thing: token(thing[0]) for thing in ("gadget", "lamp", "clock")}
    other = token("other")
    for number, (thing, word) in enumerate(words.items()):
        await conversation(memory, f"s{number}", word, thing)
    await conversation(memory, "t", other, "gadget", user="u2")
    session = await memory.session.get("s2")
    await session.correct("clock", "wooden", **BY_USER)  # the word of the clock is dead from now on

    async def whole() -> dict[str, Any]:
        return {
            "facts": sorted(fact.text for fact in await memory.facts(user_id="u1") if fact.predicate != "clock"),
            "found": sorted((one.kind, one.content) for one in await memory.search("hall", user_id="u1")
                            if one.kind != "fact"),
            "prompt": [word in await shown(memory, f"Which {thing} is it?") for thing, word in words.items()],
            "vectors": rows(dsn, "SELECT count(*), count(embedding) FROM pgmem.records WHERE kind <> 'fact'"),
            "terms": rows(dsn, "SELECT count(*) FROM pgmem.postings p JOIN pgmem.records r ON r.id = p.record_id"
                               " WHERE r.kind = 'turn'"),
            "counted": rows(dsn, "SELECT count(*) FROM pgmem.scope_stats"),
            "summaries": rows(dsn, "SELECT count(*), max(through_seq) FROM pgmem.running_summaries"),
        }  # fmt: skip

    before = await whole()
    assert before["prompt"] == [True, True, True]
    indexes = drop_derived(dsn)
    assert len(indexes) == 1
    lost = await whole()
    assert (lost["facts"], lost["found"], lost["prompt"]) == ([], [], [False] * 3)

    report = await memory.rebuild()

    assert report.errors == {}
    assert report.sessions >= 4
    assert report.records == 8
    assert report.facts >= 3
    assert report.episodes == 4
    after = await whole()
    assert after == before
    # The tokens themselves, as facts and in the stable part of the prompt.
    assert await current(memory, "gadget") == [words["gadget"]]
    for thing in ("gadget", "lamp"):
        assert f"{thing}: {words[thing]}" in await shown(memory, f"Which {thing} is it?")
    assert [fact.value for fact in await memory.facts(user_id="u2")] == [other]
    assert rows(dsn, "SELECT indexname FROM pg_indexes WHERE indexname LIKE 'records_hnsw%%'") == [(indexes[0],)]
    # What was called wrong came to no fact again, and what no turn says has no source to be made of.
    assert await current(memory, "clock") == []
    assert f"clock: {words['clock']}" not in await shown(memory, "Which clock is it?")
    [hit] = rows(dsn, "SELECT hits FROM pgmem.tombstones WHERE predicate = 'clock'")
    assert hit[0] >= 1
