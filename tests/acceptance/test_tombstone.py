"""tombstone.*: a value that was called wrong stays dead, and no second row of it appears."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg

from pgmem_core import Authority
from tests.acceptance.telling import BY_USER, USER, current, reading, shown
from tests.fix_memory import Face, Maker
from tests.test_forget import rows

OF_DIET = "SELECT fact_id, status, superseded_at::text FROM pgmem.facts WHERE predicate = 'diet' ORDER BY 1"
ROWS = "SELECT count(*) FROM pgmem.facts WHERE predicate = 'diet' AND value = '\"vegan\"'"
DEAD = "SELECT count(*), sum(hits), count(lifted_at) FROM pgmem.tombstones WHERE predicate = 'diet'"


async def reject_vegan(memory: Face) -> Face:
    """The user says vegan, and a neighbour; then that vegan was wrong."""
    session = await memory.session.create("s1", user_id="u1")
    said = await session.add_turn("user", "By the way: my diet is vegan, my instrument is cello.")
    await session.observe("diet", "vegan", **BY_USER, evidence=[said])
    await session.observe("instrument", "cello", **BY_USER, evidence=[said])
    assert await current(memory, "diet") == ["vegan"]
    await session.correct("diet", "vegetarian", **BY_USER)
    return session  # type: ignore[no-any-return]


async def assert_dead(memory: Face, dsn: str, diet: str = "vegetarian") -> None:
    """Vegan is nowhere current, has the one row it had, and the neighbour is recalled."""
    assert await current(memory, "diet") == [diet]
    assert rows(dsn, ROWS) == [(1,)]
    assert "diet: vegan\n" not in (text := await shown(memory, "What is my diet, and my instrument?") + "\n")
    assert f"diet: {diet}" in text
    assert "instrument: cello" in text


async def restate(memory: Face, count: int = 2) -> None:
    """Say the rejected value again: by agents and tools, by calls and turns, in sessions of their own."""
    for number in range(count):
        session = await memory.session.create(user_id="u1")
        said = [
            await session.add_turn("assistant", f"You said ({number}): my diet is vegan, my instrument is cello."),
            await session.add_turn("tool", "profile: my diet is vegan", tool_call_id="c"),
        ]
        for authority in ("agent", "tool"):
            assert await session.observe("diet", "vegan", authority=authority, evidence=said, confidence=1.0) is None
            assert await session.correct("diet", "vegan", authority=authority, evidence=said) is None
        await session.execution.set("diet", "vegan")
        assert await session.execution.promote("diet", "diet") is None
    await memory.form()


async def test_tombstone__laundering_sequence(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(extractor=reading())
    session = await reject_vegan(memory)
    await session.observe("diet", "pescatarian", **BY_USER)  # superseded by another
    await restate(memory)  # restated and corroborated
    await assert_dead(memory, dsn, "pescatarian")
    # The other way round too: what came after it ends, and it is still no heir.
    await session.retract("diet", "pescatarian", **BY_USER)
    await restate(memory, 1)
    assert await current(memory, "diet") == []
    assert rows(dsn, ROWS) == [(1,)]
    # Whoever rejected it may bring it back, explicitly.
    assert (await session.observe("diet", "vegan", **BY_USER, explicit=True)).value == "vegan"
    assert await current(memory, "diet") == ["vegan"]


async def test_tombstone__survives_ttl_and_prune(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    memory = await make_memory(extractor=reading(), injections_days=0, half_life_days=0.001, fact_half_life_days=0.001)
    session = await memory.session.create("s1", user_id="u1")
    long_ago = datetime.now(UTC) - timedelta(days=500)
    said = await session.add_turn("user", "My diet is vegan, my instrument is cello.", created_at=long_ago)
    await session.observe("diet", "vegan", **BY_USER, evidence=[said], ttl_seconds=3600)
    await session.observe("instrument", "cello", **BY_USER, evidence="the orchestra's list")
    await session.retract("diet", "vegan", **BY_USER)
    await session.observe("diet", "vegetarian", **BY_USER)
    await session.end()
    with psycopg.connect(dsn) as conn:  # its time is over, and was when it was said
        conn.execute("UPDATE pgmem.facts SET expires_at = recorded_at WHERE expires_at IS NOT NULL")
    for _ in range(2):
        await memory.expire()
        await memory.prune(0, keep_evidence=False, force=True)
        await memory.rebuild()
    assert rows(dsn, "SELECT count(*) FROM pgmem.records WHERE kind = 'turn'") == [(0,)]
    await restate(memory)
    await assert_dead(memory, dsn)
    # A copy of the memory has it as well, and so has a later client.
    await memory.export(tmp_path / "copy.jsonl")
    await memory.import_(tmp_path / "copy.jsonl", group_id="copy")
    copied = await memory.session.create(user_id="u1", group_id="copy")
    assert await copied.observe("diet", "vegan", authority="tool") is None
    assert await current(memory, "diet", group_id="copy") == ["vegetarian"]
    assert (await copied.observe("instrument", "cello", authority="tool")).status == "accepted"


ATTACKS = [
    "Vegan", "VEGAN", " vegan ", "ve\u200bgan", "\ufeffvegan", "ve\u00adgan", "vegan\u2060", "v\u0435gan", "veg\u0430n",
    "ｖｅｇａｎ",
    "𝐯𝐞𝐠𝐚𝐧", "ⓥⓔⓖⓐⓝ", "'vegan'", "“vegan”", "vegan.", "vegan!", "vegan\n", "\tvegan", "v\u0435g\u0430n\u200d", "ᴠᴇɢᴀɴ",
    "vegan\ufe0f", "\u202evegan\u202c", ["vegan"], "🅥🅔🅖🅐🅝",
]  # fmt: skip
PARAPHRASES = ["strictly plant-based", "no animal products"]


async def test_tombstone__key_normalization_attack(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(extractor=reading())
    session = await reject_vegan(memory)
    for number, value in enumerate(ATTACKS, start=1):
        for authority in ("agent", "tool", "user"):
            assert await session.observe("diet", value, authority=authority) is None, ascii(value)
        assert await session.observe("Diet ", value, authority="agent") is None
        assert rows(dsn, DEAD)[0][1] == 4 * number
    assert rows(dsn, "SELECT count(*) FROM pgmem.facts WHERE predicate = 'diet'") == [(2,)]
    await assert_dead(memory, dsn)
    # Words are compared, not meanings: a paraphrase is another value, stored as what it is, and contested here.
    for value in PARAPHRASES:
        stored = await session.observe("diet", value, authority="agent")
        assert (stored.value, stored.status) == (value, "contested")
    assert (await session.observe("diet", "plant-based", **BY_USER)).status == "accepted"
    assert await current(memory, "diet") == ["plant-based"]


async def test_tombstone__reextraction_stays_inactive(make_memory: Maker, dsn: str) -> None:
    extractor = reading()
    memory = await make_memory(extractor=extractor)
    session = await memory.session.create("s1", user_id="u1")
    said = await session.add_turn("user", "My diet is vegan, my instrument is cello, my team is Rovers.")
    await memory.form()
    assert await current(memory, "diet") == ["vegan"]
    await session.add_turn("user", "Wait, my diet is vegetarian, not vegan.")
    await memory.form()
    await session.retract("team", "Rovers", **BY_USER)
    await session.observe("team", "Rovers", **BY_USER, explicit=True)  # one that came back is alive after it, too

    for again in range(3):
        asked = len(extractor.asked)
        if again == 0:  # the same turns, from the first
            await memory.rebuild()
        else:  # the same text at its old time in another session, by another model
            copy = await memory.session.create(user_id="u1")
            await copy.add_turn("user", said.text, created_at=said.created_at)
            await memory.form()
        assert len(extractor.asked) > asked
        await assert_dead(memory, dsn)
        assert await current(memory, "instrument") == ["cello"]
        assert await current(memory, "team") == ["Rovers"]
    # Its other facts become active where they were not.
    fresh = await memory.session.create("fresh", user_id="u2")
    await fresh.retract("diet", "vegan", **BY_USER)
    await fresh.add_turn("user", "My diet is vegan, my instrument is flute.", created_at=said.created_at)
    await memory.form()
    assert [fact.text for fact in await memory.facts(user_id="u2")] == ["instrument: flute"]


async def test_tombstone__no_second_memory_unit(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(extractor=reading())
    session = await reject_vegan(memory)
    before = rows(
        dsn, "SELECT fact_id, status, superseded_at::text FROM pgmem.facts WHERE predicate = 'diet' ORDER BY 1"
    )
    [(graves, hits, lifted)] = rows(dsn, DEAD)
    assert (graves, lifted) == (1, 0)
    await restate(memory)
    # Each try is counted on the tombstone: no row of any state, no record, nothing for review but the rejection.
    after = rows(
        dsn, "SELECT fact_id, status, superseded_at::text FROM pgmem.facts WHERE predicate = 'diet' ORDER BY 1"
    )
    assert after == before
    [(graves, more, lifted)] = rows(dsn, DEAD)
    assert (graves, lifted) == (1, 0)
    assert more > hits + 2 * 5
    live = "SELECT count(*) FROM pgmem.records WHERE content = 'diet: vegan' AND invalidated_at IS NULL"
    assert rows(dsn, live) == [(0,)]
    waiting = await memory.review(user_id="u1")
    assert [(item.status, item.value, item.hits) for item in waiting] == [("rejected", "vegan", more)]
    assert [fact.value for fact in await memory.history(USER, "diet")] == ["vegan", "vegetarian"]
    await assert_dead(memory, dsn)
    # Ten at once land on it as well.
    sessions = [await memory.session.create(user_id="u1") for _ in range(10)]
    done = await asyncio.gather(*(one.observe("diet", "Vegan", authority=Authority.tool) for one in sessions))
    assert done == [None] * 10
    assert rows(dsn, DEAD)[0][1] == more + 10
    assert rows(dsn, ROWS) == [(1,)]
    assert (await session.observe("instrument", "CELLO.", authority="agent")).value == "cello"
