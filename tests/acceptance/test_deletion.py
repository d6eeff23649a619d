"""deletion.*: what was forgotten is nowhere, after everything that could bring it back."""

from __future__ import annotations

from pathlib import Path

import psycopg

from pgmem_core import SubjectRef
from tests.acceptance.telling import BY_USER, USER, found_in, reading, shown
from tests.fix_memory import Maker
from tests.telling import quoting
from tests.test_forget import rows, token, whereabouts

QUERY = "What about the gadget in the hall?"


async def test_deletion__absent_after_reindex_and_restart(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    memory = await make_memory(extractor=reading(), summarizers=quoting())
    word, sibling = token("gone"), token("kept")
    # One batch holds both; another session of the user's, and another user's, are siblings too.
    session = await memory.session.create("s1", user_id="u1")
    gone, kept = await session.add_turns(
        [
            {"role": "user", "content": f"My gadget is {word}, in the hall.", "metadata": {"about": word}},
            {"role": "user", "content": f"My lamp is {sibling}, in the hall."},
        ]
    )
    await session.compact()
    await session.compile_context(QUERY, floor=None)
    await memory.flush()
    other = await memory.session.create("s2", user_id="u2")
    await other.add_turn("user", f"My clock is {sibling}, in the hall.")
    await memory.form()
    assert await found_in(memory, word, QUERY) == {"search", "get_all", "facts", "history", "prompt", "turns"}
    assert len(whereabouts(dsn, word)) > 5

    report = await memory.forget(turn_id=gone.id)
    assert report.rows["turns"] == 1
    assert report.rows["facts"] >= 1

    async def check(client: object, name: str) -> None:
        await client.export(tmp_path / name)  # type: ignore[attr-defined]
        text = (tmp_path / name).read_text("utf-8")
        assert word not in text, name
        assert sibling in text, name
        assert whereabouts(dsn, word) == {}, name
        assert await found_in(client, word, QUERY) == set(), name  # type: ignore[arg-type]
        assert await found_in(client, sibling, "What about the lamp in the hall?") >= {  # type: ignore[arg-type]
            "search", "get_all", "facts", "prompt", "turns"
        }, name  # fmt: skip
        assert "u2" not in await shown(client, QUERY)  # type: ignore[arg-type]

    await check(memory, "at once")
    for _ in range(2):
        await memory.form()
        assert (await session.compact()).error is None
        await memory.expire()
        await memory.prune(10_000)
    await memory.rebuild()
    await check(memory, "after the jobs")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("REINDEX SCHEMA pgmem")
        conn.execute("VACUUM (FULL, ANALYZE) pgmem.records")
    await memory.close()
    again = await make_memory(extractor=reading(), summarizers=quoting())
    await again.form()
    await check(again, "after a restart")
    [first, *_] = await (await again.session.get("s1")).turns()
    assert first.id == kept.id
    # The audit says that it happened, and not what.
    [(target, counted)] = rows(dsn, "SELECT target, counts->>'turns' FROM pgmem.erasures")
    assert (target, counted) == ("turn", "1")
    # Said again it is a new memory.
    await (await again.session.get("s1")).add_turn("user", f"My gadget is {word}.")
    await again.form()
    assert word in await shown(again, QUERY)


async def test_deletion__absent_from_shared_copies(make_memory: Maker, dsn: str, tmp_path: Path) -> None:
    memory = await make_memory(extractor=reading(), summarizers=quoting())
    word, own = token("gone"), token("own")
    session = await memory.session.create("s1", user_id="u1")
    said = await session.add_turn("user", f"My gadget is {word}, in the hall.")
    # A second scope: its own words, and a copy of the first one's that rests on his turn.
    second = await memory.session.create("s2", user_id="u2")
    await second.add_turn("user", f"My gadget is {own}, in the hall.")
    await second.observe("overheard", f"the gadget of u1 is {word}", subject=SubjectRef("topic", "gadgets"),
                         evidence=[said])  # fmt: skip
    await second.observe("neighbour", "u1", **BY_USER)
    await session.compact()
    await second.compact()
    await memory.form()
    before = tmp_path / "before.jsonl"
    await memory.export(before)
    assert word in before.read_text("utf-8")
    assert "facts" in await found_in(memory, word, QUERY, user="u2", session_id="s2")

    await memory.forget(user_id="u1")
    for step in ("forgotten", "imported", "imported again"):
        if step != "forgotten":
            assert (await memory.import_(before)).forgotten["turn"] == 1
        await memory.form()
        assert whereabouts(dsn, word) == {}, step
        for user, session_id in (("u1", "s1"), ("u2", "s2")):
            assert await found_in(memory, word, QUERY, user=user, session_id=session_id) == set(), step
        assert await found_in(memory, own, QUERY, user="u2", session_id="s2") >= {
            "search", "get_all", "facts", "history", "prompt", "turns"
        }, step  # fmt: skip
    assert [fact.value for fact in await memory.facts(SubjectRef("user", "u2"), "neighbour")] == ["u1"]
    assert await memory.history(USER) == []
    # The same file does restore what was not forgotten.
    await memory.delete_all(user_id="u2")
    assert whereabouts(dsn, own) == {}
    await memory.import_(before)
    await memory.form()
    assert own in await shown(memory, QUERY, user="u2")
    assert whereabouts(dsn, word) == {}
