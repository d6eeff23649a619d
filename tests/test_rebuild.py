"""Rebuilding: what is missing is made again, what is there stays, and what is dead stays dead."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgmem_core import Authority, InvalidArgument, PgMem, SubjectRef, cli
from tests.acceptance.test_evidence import drop_derived
from tests.fix_memory import FakeEmbedder, Maker
from tests.telling import quoting, talk
from tests.test_forget import rows

USER = SubjectRef("user", "u1")
SAID = [
    "My name is Ada Byron and I live in Lisbon.", "I like jazz.", "I have a sister named Nell.",
    "I just moved to Porto.", "I misspoke, I have no sister.", "I no longer like jazz.", "I work at Birch Ltd.",
]  # fmt: skip


def memory_of(dsn: str) -> dict[str, Any]:
    """Every row of what is remembered, without counters of how often something was said again."""
    tables = {
        "facts": "to_jsonb(t) - 'confirmations'", "evidence": "to_jsonb(t)", "episode_turns": "to_jsonb(t)",
        "postings": "to_jsonb(t)", "running_summaries": "to_jsonb(t)", "narratives": "to_jsonb(t)",
        "records": "to_jsonb(t)", "tombstones": "to_jsonb(t) - 'hits' - 'last_hit_at'",
        "sessions": "to_jsonb(t) - 'touched_at' - 'claimed_until'", "scope_stats": "to_jsonb(t) - 'counted_at'",
    }  # fmt: skip
    return {
        table: [text for (text,) in rows(dsn, f"SELECT ({row})::text FROM pgmem.{table} t ORDER BY 1")]
        for table, row in tables.items()
    }


async def test_a_memory_that_is_whole_stays_as_it_is(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(extractor="patterns", summarizers=quoting())
    session = await memory.session.create("s1", user_id="u1")
    start = datetime.now(UTC) - timedelta(days=10)
    for day, text in enumerate(SAID):
        await session.add_turn("user", text, created_at=start + timedelta(days=day))
        await memory.form()
    await session.compact()
    await memory.rebuild()  # counts of scopes are taken now and then, and by this
    before = memory_of(dsn)
    assert [fact.value for fact in await memory.facts(USER, "lives_in")] == ["Porto"]
    assert await memory.facts(USER, "has_sibling") == await memory.facts(USER, "likes") == []
    assert len(before["facts"]) > 5
    report = await memory.rebuild()
    assert (report.turns, report.facts, report.episodes, report.errors) == (0, 0, 0, {})
    assert memory_of(dsn) == before


async def test_without_a_model_words_and_vectors_come_back_and_nothing_else_goes(make_memory: Maker, dsn: str) -> None:
    formed = await make_memory(extractor="patterns", summarizers=quoting())
    await (await talk(formed)).compact()
    episodes = rows(dsn, "SELECT content FROM pgmem.records WHERE kind = 'episode'")
    plain = await make_memory()
    report = await plain.rebuild()
    assert (report.facts, report.episodes) == (0, 0)
    assert rows(dsn, "SELECT content FROM pgmem.records WHERE kind = 'episode'") == episodes
    drop_derived(dsn)
    assert (await plain.rebuild()).turns == 4
    assert rows(dsn, "SELECT count(embedding) FROM pgmem.records") == [(4,)]
    assert len(await plain.search("hotel by the river", user_id="u1")) == 4
    # A client with a model, later, forms what is still to be formed: as far as it was asked for before.
    assert (await formed.form()).episodes == 1
    assert rows(dsn, "SELECT content FROM pgmem.records WHERE kind = 'episode'") == episodes


async def test_the_summaries_of_turns_that_are_gone_stay(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(summarizers=quoting())
    session = await memory.session.create("s1", user_id="u1")
    old = datetime.now(UTC) - timedelta(days=100)
    await session.add_turn("user", "The lighthouse has two hundred steps and a red door.", created_at=old)
    await session.end()
    await memory.form()
    assert (await memory.prune(30)).turns == 1
    before = memory_of(dsn)
    report = await memory.rebuild()
    assert report.episodes == 0
    after = memory_of(dsn)
    assert after["records"] == before["records"]
    assert after["running_summaries"] == before["running_summaries"]
    assert [one.kind for one in await memory.search("lighthouse steps", user_id="u1")] == ["episode"]


async def test_another_language_is_another_index_of_words(make_memory: Maker, dsn: str) -> None:
    embedder = FakeEmbedder()
    english = await make_memory(embedder=embedder)
    await english.add("Die Katzen schlafen", user_id="u1")
    await english.add("thanks!", user_id="u1")
    german = await make_memory(embedder=embedder, language="german")
    assert await german.search("Katze", user_id="u1") == []
    assert (await german.rebuild(batch=1)).records == 2
    [first, *_] = await german.search("Katze", user_id="u1")
    assert (first.content, first.parts.bm25 > 0) == ("Die Katzen schlafen", True)
    pleasantries = "SELECT r.content FROM pgmem.records r WHERE r.term_total = 0"
    assert rows(dsn, pleasantries) == []  # the list of them is English
    orphans = """SELECT count(*) FROM pgmem.postings p JOIN pgmem.records r ON r.id = p.record_id
                 WHERE p.term <> ALL (r.terms)"""
    assert rows(dsn, orphans) == [(0,)]
    await english.rebuild()
    assert rows(dsn, pleasantries) == [("thanks!",)]
    assert rows(dsn, orphans) == [(0,)]


async def test_of_one_group_or_of_all(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(extractor="patterns")
    for group in ("a", "b"):
        await memory.add("I live in Porto.", user_id="u1", group_id=group)
    await memory.form()
    drop_derived(dsn)
    report = await memory.rebuild(group_id="a")
    assert (report.records, report.sessions, report.facts) == (1, 1, 1)
    assert len(await memory.facts(user_id="u1", group_id="a")) == 1
    assert await memory.facts(user_id="u1", group_id="b") == []
    assert (await memory.rebuild()).facts == 1
    assert len(await memory.facts(user_id="u1", group_id="b")) == 1
    for bad in ("", " ", 7):
        with pytest.raises(InvalidArgument):
            await memory.rebuild(group_id=bad)
    with pytest.raises(InvalidArgument, match="batch"):
        await memory.rebuild(batch=0)


async def test_a_model_that_fails_is_told_and_tried_again(make_memory: Maker, dsn: str) -> None:
    class Broken:
        well = False

        def extract(self, turns: Any, known: Any) -> list[Any]:
            if not self.well:
                raise RuntimeError("out of order")
            return []

        async def aextract(self, turns: Any, known: Any) -> list[Any]:
            return self.extract(turns, known)

    extractor = Broken()
    memory = await make_memory(extractor=extractor)
    await memory.add("I live in Porto.", user_id="u1", session_id="s1")
    await memory.form()
    report = await memory.rebuild()
    assert "out of order" in report.errors["s1"]
    assert report.records == 1
    extractor.well = True
    assert (await memory.rebuild()).errors == {}


def test_the_command(capsys: Any, monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    monkeypatch.setenv("PGMEM_DSN", dsn)
    monkeypatch.setenv("PGMEM_EXTRACTOR", "patterns")
    with PgMem(dsn, formation="manual") as mem:
        session = mem.session.create("s1", user_id="u1")
        session.add_turn("user", "I live in Porto.")
        session.observe("diet", "vegan", authority=Authority.user)
        mem.form()
        drop_derived(dsn)
        capsys.readouterr()
        assert cli.run(["rebuild", "--json"]) == 0
        done = json.loads(capsys.readouterr().out)
        assert (done["records"], done["sessions"], done["facts"], done["errors"]) == (1, 1, 1, {})
        assert [fact.text for fact in mem.facts(user_id="u1")] == ["lives_in: Porto"]
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("TRUNCATE pgmem.postings")
        assert cli.run(["rebuild", "--group-id", "default"]) == 0
        said = capsys.readouterr()
        assert "2 records indexed, 1 sessions read" in said.out
        assert mem.search("Porto", user_id="u1")[0].parts.bm25 > 0
