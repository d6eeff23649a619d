"""The narrative: one story a user, rewritten from what it was, new episodes and the facts that hold."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from pgmem_core import Authority
from pgmem_core.effects import run
from pgmem_core.facts import Fact
from pgmem_core.formation.compaction import write_narrative
from pgmem_core.formation.extractors import ModelSummarizers
from tests.fix_memory import Face, Maker
from tests.scripted import Scripted
from tests.telling import Flaky, Teller, Tellers, quoting, rows, state

NOTE = "{} keeps bees on the roof of the old mill, and sells the honey at the market on Saturdays."


async def tell(memory: Face, session_id: str, user_id: str | None, what: str, **place: Any) -> Face:
    """A session of one turn, compacted."""
    session = await memory.session.open(session_id, user_id=user_id, **place)
    await session.add_turn("user", what)
    await session.compact()
    return session  # type: ignore[no-any-return]


def stories(dsn: str, user: str = "u1", tenant: str = "default") -> list[str]:
    sql = "SELECT content FROM pgmem.narratives WHERE tenant_id = %s AND user_id = %s ORDER BY version"
    return [text for (text,) in rows(dsn, sql, tenant, user)]


async def test_the_next_story_is_written_from_the_last_and_only_what_it_has_not_seen(
    make_memory: Maker, dsn: str
) -> None:
    tellers = quoting()
    memory = await make_memory(summarizers=tellers)
    await tell(memory, "s1", "u1", NOTE.format("Ada"))
    await tell(memory, "s2", "u1", NOTE.format("Her brother Ben"))
    first, second = tellers.narrative.asked
    assert [len(given[0]) for given in (first, second)] == [1, 1]
    assert "Ada" in first[0][0]
    assert first[2] is None
    assert "Ben" in second[0][0]
    assert second[2] == stories(dsn)[0]
    assert isinstance(second[0][0].created_at, datetime)
    assert len(stories(dsn)) == 2
    [(seen,)] = rows(
        dsn,
        """SELECT (SELECT max(seen_through) FROM pgmem.narratives)
                  = (SELECT max(recorded_at) FROM pgmem.records WHERE kind = 'episode')""",
    )
    assert seen


async def test_nothing_new_asks_nobody(make_memory: Maker, dsn: str) -> None:
    tellers = quoting()
    memory = await make_memory(summarizers=tellers)
    session = await tell(memory, "s1", "u1", NOTE.format("Ada"))
    await session.observe("hobby", "bees", authority=Authority.user)  # a fact alone is shown as a fact
    report = await session.compact()
    assert report.narratives == 0
    await memory.form()
    assert len(tellers.narrative.asked) == 1
    assert run(write_narrative(memory.target._rt, "default", "u1"), memory.target._rt.database) == 0
    assert run(write_narrative(memory.target._rt, "default", "nobody"), memory.target._rt.database) == 0


async def test_an_episode_that_becomes_visible_late_is_seen_once(make_memory: Maker, dsn: str) -> None:
    """Its time was taken before the commit, and a story that has seen later ones was written in between."""
    tellers = quoting()
    memory = await make_memory(summarizers=tellers)
    await tell(memory, "s1", "u1", NOTE.format("Ada"))
    await tell(memory, "s2", "u1", NOTE.format("Ben"))
    with psycopg.connect(dsn) as conn:
        conn.execute(
            """INSERT INTO pgmem.records (tenant_id, id, user_id, user_key, session_id, kind, content, metadata,
                 token_count, created_at, recorded_at)
               SELECT tenant_id, gen_random_uuid(), user_id, user_key, session_id, kind, 'Cleo came late.', metadata,
                 token_count, created_at, recorded_at - interval '1 second'
               FROM pgmem.records WHERE kind = 'episode' AND session_id = 's1'"""
        )
    for _ in range(2):
        run(write_narrative(memory.target._rt, "default", "u1"), memory.target._rt.database)
    assert [list(given[0]) for given in tellers.narrative.asked[2:]] == [["Cleo came late."]]


async def test_two_users_and_two_groups_are_never_mixed(make_memory: Maker, dsn: str) -> None:
    tellers = quoting()
    memory = await make_memory(summarizers=tellers)
    places = [("u1", "default", "Ada"), ("u2", "default", "Ben"), ("u1", "other", "Cleo")]
    for number, (user, group, name) in enumerate(places):
        session = await memory.session.open(f"s{number}", user_id=user, group_id=group)
        await session.observe("name", name, authority=Authority.user)
        await session.add_turn("user", NOTE.format(name))
    await memory.form()
    for session_id, group in (("s0", "default"), ("s1", "default"), ("s2", "other")):
        await (await memory.session.get(session_id, group_id=group)).compact()
    for user, group, name in places:
        [story] = stories(dsn, user, group)
        assert name in story
        assert sum(other in story for _, _, other in places) == 1
    for given_episodes, given_facts, previous in tellers.narrative.asked:
        whole = f"{given_episodes} {[fact.value for fact in given_facts]} {previous}"
        assert sum(other in whole for _, _, other in places) == 1
        assert len(given_facts) == 1


async def test_a_session_without_a_user_has_no_story(make_memory: Maker, dsn: str) -> None:
    tellers = quoting()
    memory = await make_memory(summarizers=tellers)
    await tell(memory, "s1", None, NOTE.format("Somebody"))
    assert tellers.narrative.asked == []
    assert len(tellers.episode.asked) == 1


async def test_facts_that_hold_are_given_and_a_withdrawn_one_has_the_story_written_anew(
    make_memory: Maker, dsn: str
) -> None:
    tellers = quoting()
    memory = await make_memory(summarizers=tellers)
    session = await memory.session.open("s1", user_id="u1")
    await session.observe("diet", "vegan", authority=Authority.user)
    await session.observe("home.city", "Lisbon", authority=Authority.user)
    await tell(memory, "s1", "u1", NOTE.format("Ada"))
    assert sorted(fact.value for fact in tellers.narrative.asked[0][1]) == ["Lisbon", "vegan"]

    await session.retract("diet", "vegan", authority=Authority.user)
    report = await session.compact()
    assert (report.episodes, report.narratives) == (0, 1)
    gone: list[Fact] = list(tellers.narrative.asked[1][1])
    assert [(fact.value, fact.superseded_at is None) for fact in gone] == [("vegan", False), ("Lisbon", True)]
    assert (await session.compact()).narratives == 0


async def test_the_model_is_told_which_fact_was_never_true(make_memory: Maker, dsn: str) -> None:
    chat = Scripted(replies=["Ada keeps bees and is vegan."])
    memory = await make_memory(summarizers=ModelSummarizers(chat))
    session = await memory.session.open("s1", user_id="u1")
    await session.observe("diet", "vegan", authority=Authority.user)
    await tell(memory, "s1", "u1", NOTE.format("Ada"))
    assert "user diet: vegan" in chat.prompt()
    assert "not true" not in chat.prompt()
    await session.retract("diet", "vegan", authority=Authority.user)
    await session.compact()
    assert f"vegan (since {datetime.now(UTC):%Y-%m-%d}) — withdrawn {datetime.now(UTC):%Y-%m-%d}: not true" in (
        chat.prompt()
    )
    assert "Ada keeps bees and is vegan." in chat.prompt()  # the story so far


async def test_a_story_that_fails_leaves_the_old_one_and_is_tried_again(make_memory: Maker, dsn: str) -> None:
    flaky = Flaky()
    flaky.well = True
    memory = await make_memory(summarizers=Tellers(narrative=flaky))
    await tell(memory, "s1", "u1", NOTE.format("Ada"))
    before = stories(dsn)
    flaky.well = False
    session = await memory.session.open("s2", user_id="u1")
    await session.add_turn("user", NOTE.format("Ben"))
    report = await session.compact()
    assert report.episodes == 1  # what was written before it stays
    assert "narrative" in (report.error or "")
    assert stories(dsn) == before
    assert state(dsn, "s2")["attempts"] == 1
    flaky.well = True
    await memory.form()
    assert len(stories(dsn)) == 2
    assert state(dsn, "s2")["error"] is None
    assert rows(dsn, "SELECT count(*) FROM pgmem.records WHERE kind = 'episode'") == [(2,)]


@pytest.mark.parametrize("story", [" ", "word " * 3_000])
async def test_a_blank_or_endless_story_is_refused(make_memory: Maker, dsn: str, story: str) -> None:
    memory = await make_memory(summarizers=Tellers(narrative=Teller(lambda *_: story)))
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", NOTE.format("Ada"))
    report = await session.compact()
    assert "nothing is kept" in (report.error or "")
    assert stories(dsn) == []


async def test_a_story_whose_source_is_deleted_meanwhile_is_not_written(make_memory: Maker, dsn: str) -> None:
    def say(given: Any, *_: Any) -> str:
        if len(narrator.asked) == 1:
            with psycopg.connect(dsn) as conn:
                conn.execute(
                    """SELECT pgmem.delete_records('default', NULL, array_agg(id)) FROM pgmem.records
                       WHERE kind = 'turn' AND session_id = 's1'"""
                )
        return "Told: " + " ".join(given)

    narrator = Teller(say)
    memory = await make_memory(summarizers=Tellers(quoting().episode, quoting().running, narrator))
    await tell(memory, "s1", "u1", NOTE.format("Ada"))
    assert stories(dsn) == []
    await tell(memory, "s2", "u1", NOTE.format("Ben"))
    [story] = stories(dsn)
    assert "Ada" not in story
    assert "Ben" in story


async def test_the_session_that_led_to_a_story_shows_it(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(summarizers=Tellers(narrative=Teller(lambda *_: "A keeper of bees at the old mill.")))
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", NOTE.format("Ada"))
    before = await session.compile_context(query="What do I sell?")
    await session.compact()
    after = await session.compile_context(query="What do I sell?")
    assert "A keeper of bees at the old mill." not in str(before.messages)
    assert "A keeper of bees at the old mill." in str(after.prefix)
