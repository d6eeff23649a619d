"""correction.*: what was corrected stays so, whatever is made anew of what was said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from pgmem_core import SubjectRef
from tests.acceptance.telling import BY_USER, USER, current, shown
from tests.fix_memory import Face, Maker
from tests.telling import quoting
from tests.test_forget import rows

NOW = datetime.now(UTC)
PREDICATES = ("diet", "likes", "dislikes", "has_sibling", "visited", "works_at")


async def answers(memory: Face) -> dict[str, Any]:
    """What an application is told: now, then, and the whole history."""
    told: dict[str, Any] = {name: await current(memory, name) for name in PREDICATES}
    in_march = NOW - timedelta(days=40)
    told["then"] = await current(memory, "visited", valid_at=in_march)
    told["history"] = [
        (fact.text, fact.valid_from, fact.valid_to, fact.superseded_at, fact.superseded_by)
        for fact in await memory.history(USER)
    ]
    return told


async def test_correction__survives_reindex(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    memory = await make_memory(extractor="patterns", summarizers=quoting())
    session = await memory.session.create("s1", user_id="u1")
    said = await session.add_turn("user", "I'm vegan. I like olives. I have a sister named Nell.")
    await memory.form()
    cited: dict[str, Any] = {**BY_USER, "evidence": [said]}
    assert (await current(memory, "diet"), await current(memory, "likes")) == (["vegan"], ["olives"])
    await session.correct("diet", "vegetarian", **cited)  # replacement
    await session.observe("dislikes", "olives", **cited)  # the opposite of what it was
    await session.retract("has_sibling", (await current(memory, "has_sibling"))[0], **cited)  # without replacement
    for place in ("Rome", "Oslo", "Bern"):
        await session.observe("visited", place, **cited, valid_from=NOW - timedelta(days=60))
    await session.correct("visited", "Oslo (Minnesota)", replaces="Oslo", **cited)  # one of several
    await session.observe(
        "works_at", "Birch Ltd", **cited, valid_from=NOW - timedelta(days=50), valid_to=NOW - timedelta(days=30)
    )  # fmt: skip - bounded
    await session.observe("works_at", "Cedar Ltd", **cited, valid_from=NOW - timedelta(days=30))
    expected = {
        "diet": ["vegetarian"], "likes": [], "dislikes": ["olives"], "has_sibling": [],
        "visited": ["Bern", "Oslo (Minnesota)", "Rome"], "works_at": ["Cedar Ltd"],
    }  # fmt: skip
    before = await answers(memory)
    assert {name: before[name] for name in PREDICATES} == expected
    assert await current(memory, "works_at", valid_at=NOW - timedelta(days=40)) == ["Birch Ltd"]
    assert len(before["history"]) >= 12

    async def check(client: Face) -> None:
        assert await answers(client) == before
        # What is derived agrees: the records that are recalled, and the prompt.
        live = rows(
            dsn,
            """SELECT r.content FROM pgmem.records r JOIN pgmem.facts f ON f.fact_id = r.id
               WHERE r.kind = 'fact' AND r.invalidated_at IS NULL AND f.superseded_at <> 'infinity'""",
        )
        assert live == []
        text = await shown(client, "What do I eat, whom do I work for, where have I been?", recall_tokens=2000) + "\n"
        for line in ("diet: vegetarian", "dislikes: olives", "works at: Cedar Ltd", "visited: Oslo (Minnesota)"):
            assert line in text
        for line in ("diet: vegan\n", "- likes: olives", "works at: Birch Ltd", "visited: Oslo\n", "sibling: Nell"):
            assert line not in text
        [best, *_] = await client.search("works at Cedar Ltd", user_id="u1", kind="fact")
        assert "Cedar Ltd" in best.content

    await check(memory)
    await session.compact()
    await memory.rebuild()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("REINDEX SCHEMA pgmem")
    await check(memory)
    await memory.close()
    again = await make_memory(extractor="patterns", summarizers=quoting())
    await again.form()
    await check(again)
    # And as a copy.
    await again.export(tmp_path / "copy.jsonl")
    await again.import_(tmp_path / "copy.jsonl", group_id="copy")
    for name, values in expected.items():
        assert sorted(fact.value for fact in await again.facts(USER, name, group_id="copy")) == values


async def test_correction__retraction_without_replacement(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(extractor="patterns")
    source = "I have a sister named Nell. I live in Porto."
    session = await memory.session.create("s1", user_id="u1")
    said = await session.add_turn("user", source)
    await memory.form()
    assert "Nell" in str(await current(memory, "has_sibling"))
    assert "sibling: Nell" in await shown(memory, "Who is my sister, and where do I live?")
    await session.add_turn("user", "I misspoke, I have no sister.")
    await memory.form()

    async def check() -> None:
        assert await current(memory, "has_sibling") == []
        assert await current(memory, "lives_in") == ["Porto"]
        text = await shown(memory, "Who is my sister, and where do I live?")
        assert "sibling" not in text
        assert "lives in: Porto" in text
        assert [fact.text for fact in await memory.history(USER, "has_sibling")] == ["has_sibling: Nell (sister)"]

    await check()
    # The source is fed again: the turns read anew, the same text as an old one elsewhere, repeated by the assistant.
    await memory.rebuild()
    await check()
    copy = await memory.session.create("s2", user_id="u1")
    await copy.add_turn("user", source, created_at=said.created_at)
    await copy.add_turn("assistant", f"You told me: {source}")
    await memory.form()
    await check()
    assert await memory.facts(SubjectRef("user", "u2")) == []
