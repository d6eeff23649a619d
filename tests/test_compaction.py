"""Compaction: what of a session is summarised, when, and by whose asking."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from pgmem_core import AsyncSession, NotFound, PgMem, Scope, Session, Turn
from pgmem_core.asking import SessionKey
from pgmem_core.formation.compaction import cut, due_through
from pgmem_core.tiers.episodic import Standing
from tests.fix_memory import Face, Maker
from tests.scripted import turn
from tests.telling import Teller, Tellers, episodes, rows, state, talk, told

# -- what is written ---------------------------------------------------------------------------------------------


async def test_compact_writes_an_episode_of_the_whole_session_and_the_running_summary(
    make_memory: Maker, dsn: str
) -> None:
    tellers = Tellers(Teller(lambda turns: "The user plans a trip to Porto with Nell and is allergic to carpets."))
    memory = await make_memory(summarizers=tellers)
    session = await talk(memory)
    [(before,)] = rows(dsn, "SELECT prefix_at FROM pgmem.sessions")

    report = await session.compact()

    assert (report.episodes, report.turns, report.running_summaries, report.through_seq) == (1, 4, 1, 4)
    assert report.error is None
    assert report.narratives == 1
    assert episodes(dsn) == [("u1", "The user plans a trip to Porto with Nell and is allergic to carpets.", 1, 4)]
    assert told(dsn) == [1, 2, 3, 4]
    assert rows(dsn, "SELECT version, through_seq, token_count > 5 FROM pgmem.running_summaries") == [(1, 4, True)]
    [(after,)] = rows(dsn, "SELECT prefix_at FROM pgmem.sessions")
    assert after > before

    again = await session.compact()
    assert (again.episodes, again.note) == (0, "nothing is new")
    assert len(tellers.episode.asked) == 1


async def test_an_episode_is_found_by_its_words_at_once_and_by_its_meaning(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(summarizers=Tellers(Teller(lambda turns: "A journey to Porto by rail was planned.")))
    session = await talk(memory)
    await session.compact()
    [found] = await memory.search("journey rail", user_id="u1", kind="episode")
    assert found.content == "A journey to Porto by rail was planned."
    assert found.kind == "episode"
    assert found.metadata["through_seq"] == 4
    assert found.parts.cosine is not None  # embedded, by the line of what belongs to no session
    assert await memory.search("journey rail", user_id="u2", kind="episode") == []


async def test_the_next_summary_is_told_the_one_before_and_only_the_new_turns(make_memory: Maker, dsn: str) -> None:
    tellers = Tellers()
    memory = await make_memory(summarizers=tellers)
    session = await talk(memory)
    await session.compact()
    [(first,)] = rows(dsn, "SELECT content FROM pgmem.running_summaries")
    await session.add_turn("user", "We changed our minds: we travel in June instead, and Nell brings her dog.")
    await session.compact()
    turns, previous = tellers.running.asked[1]
    assert previous == first
    assert [one.seq for one in turns] == [5]
    assert rows(dsn, "SELECT version, through_seq FROM pgmem.running_summaries ORDER BY 1") == [(1, 4), (2, 5)]


async def test_an_ended_session_is_summarised_to_its_end_and_an_open_one_is_not(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(summarizers=Tellers())
    ended, _ = await talk(memory, "s1"), await talk(memory, "s2", "u2")
    await ended.end()
    report = await memory.form()
    assert report.episodes == 1
    assert report.errors == {}
    assert [row[0] for row in episodes(dsn)] == ["u1"]
    assert state(dsn, "s1")["through"] == 4
    assert state(dsn, "s2")["through"] == 0
    assert (await memory.form()).episodes == 0


async def test_a_window_that_overflows_is_summarised_but_for_its_newest_quarter(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(summarizers=Tellers(), compact_after_tokens=400)
    session = await memory.session.create("s1", user_id="u1")
    line = "Day {}: we walked along the river, ate fish at the market and slept well afterwards."
    await session.add_turns([{"role": ("user", "assistant")[n % 2], "content": line.format(n)} for n in range(12)])
    await memory.form()
    assert episodes(dsn) == []  # about 290 tokens
    await session.add_turns([{"role": ("user", "assistant")[n % 2], "content": line.format(n)} for n in range(12, 20)])
    assert (await memory.form()).episodes >= 1
    through = state(dsn)["through"]
    assert told(dsn) == list(range(1, through + 1))
    [(left,)] = rows(dsn, "SELECT sum(token_count) FROM pgmem.records WHERE kind = 'turn' AND seq > %s", through)
    assert 50 <= left <= 100
    assert (await memory.form()).episodes == 0

    for doomed in (await session.turns())[1:7]:
        await memory.delete(doomed.id)
    assert episodes(dsn) == []
    await memory.form()  # the rest would not overflow, but it was told of before
    assert told(dsn) == [1, *range(8, through + 1)]


async def test_a_long_session_becomes_several_episodes_each_within_the_limit(make_memory: Maker, dsn: str) -> None:
    tellers = Tellers()
    memory = await make_memory(summarizers=tellers, compact_after_tokens=200)
    session = await memory.session.create("s1", user_id="u1")
    line = "Step {}: the river path leads past the mill, the old bridge and three gardens."
    await session.add_turns([{"role": ("user", "assistant")[n % 2], "content": line.format(n)} for n in range(30)])
    await session.end()
    await memory.form()
    stretches = [(first, last) for _, _, first, last in episodes(dsn)]
    assert len(stretches) >= 3
    assert stretches[0][0] == 1
    assert stretches[-1][1] == 30
    assert all(one[1] + 1 == two[0] and two[0] % 2 for one, two in zip(stretches, stretches[1:], strict=False))
    for turns, *_ in tellers.episode.asked:
        assert sum(one.token_count for one in turns) <= 200
    [(versions, through)] = rows(dsn, "SELECT max(version), max(through_seq) FROM pgmem.running_summaries")
    assert (versions, through) == (len(stretches), 30)


async def test_greetings_and_instructions_are_passed_over_without_asking(make_memory: Maker, dsn: str) -> None:
    tellers = Tellers()
    memory = await make_memory(summarizers=tellers)
    session = await memory.session.create("s1", user_id="u1")
    await session.add_turns([
        {"role": "system", "content": "You are a helpful travel agent for the Douro valley."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Hi!"},
    ])  # fmt: skip
    report = await session.compact()
    assert (report.episodes, report.through_seq) == (0, 3)
    assert "nothing was said" in report.note
    assert tellers.episode.asked == []
    await session.add_turn("user", "I need a room near the river for two nights, and a table for two on Friday.")
    assert (await session.compact()).episodes == 1
    assert [one.seq for one in tellers.episode.asked[0][0]] == [4]


# -- asked for ---------------------------------------------------------------------------------------------------


async def test_without_a_model_compact_embeds_and_says_that_no_summary_was_written(memory: Face, dsn: str) -> None:
    session = await talk(memory)
    report = await session.compact()
    assert report.episodes == 0
    assert "no model is configured" in report.note
    assert report.error is None
    assert (await session.info()).embedded_through == 4
    await session.compact_async()
    assert episodes(dsn) == []


async def test_compact_async_returns_at_once_and_the_work_is_done_beside(make_memory: Maker, dsn: str) -> None:
    let_go = threading.Event()

    def say(turns: Sequence[Turn]) -> str:
        assert let_go.wait(10)
        return "The user plans a trip."

    memory = await make_memory(summarizers=Tellers(Teller(say)))
    session = await talk(memory)
    await session.compact_async()
    assert episodes(dsn) == []
    await session.add_turn("user", "And a table for two on Friday, please, somewhere quiet by the water.")
    let_go.set()
    await memory.close()
    assert [row[2:] for row in episodes(dsn)] == [(1, 4)]


async def test_what_was_asked_for_outlives_the_process_that_asked(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory()
    session = await talk(memory)
    await session.compact_async()
    await memory.close()
    other = await make_memory(summarizers=Tellers())
    await other.form()
    assert [row[2:] for row in episodes(dsn)] == [(1, 4)]


async def test_a_query_that_is_not_written_yet_is_in_the_summary(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(summarizers=Tellers())
    session = await memory.session.create("s1", user_id="u1")
    await session.compile_context(query="Find me a quiet hotel by the river in Porto, for two nights in May.")
    assert (await session.compact()).turns == 1


async def test_compact_of_another_users_session_is_refused(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(summarizers=Tellers())
    mine = await talk(memory)
    kind = Session if memory.face == "sync" else AsyncSession
    theirs = Face(kind(memory.target._rt, SessionKey(Scope("default", "u2"), "s1", False)), memory.face)
    with pytest.raises(NotFound):
        await theirs.compact()
    with pytest.raises(NotFound):
        await theirs.compact_async()
    assert (await mine.compact()).episodes == 1


async def test_a_slow_model_holds_no_connection_and_no_lock(make_memory: Maker, dsn: str) -> None:
    seen = []

    def say(turns: Sequence[Turn]) -> str:
        # A whole client more than the pool would allow, were a connection held.
        with PgMem(dsn, pool_size=1, max_overflow=0) as other:
            other.session.get("s1").add_turn("assistant", "Written while the model was thinking about the trip.")
        seen.extend(rows(dsn, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%%'"))
        return "The user plans a trip."

    memory = await make_memory(summarizers=Tellers(Teller(say)), pool_size=1, max_overflow=0)
    session = await talk(memory)
    assert (await session.compact()).episodes == 1
    assert seen == [(0,)]
    assert len(await session.turns()) == 5


# -- pure --------------------------------------------------------------------------------------------------------


def _turns(roles: str, tokens: int = 10) -> list[Turn]:
    """u user, a assistant, c an assistant that calls, t the result, by letters."""
    made = []
    for number, letter in enumerate(roles, start=1):
        role = {"u": "user", "a": "assistant", "c": "assistant", "t": "tool"}[letter]
        extra: dict[str, Any] = {"tool_calls": [{"id": f"c{number}", "name": "f", "args": {}}]} if letter == "c" else {}
        if letter == "t":
            call = max(n for n in range(number) if roles[n - 1] == "c")
            extra["tool_call_id"] = f"c{call}"
        one = turn("x", role, seq=number, **extra)
        made.append(Turn(**{**{name: getattr(one, name) for name in one.__slots__}, "token_count": tokens}))
    return made


@pytest.mark.parametrize(
    ("roles", "through", "most", "open_end", "cut_at"),
    [
        ("uaua", 4, 100, True, 4),
        ("uaua", 2, 100, True, 2),
        ("uauaua", 6, 30, True, 2),  # before a question
        ("uaaaaa", 6, 30, True, 3),
        ("uctta", 2, 100, True, 1),  # not between the call and its result
        ("uctta", 5, 20, True, 1),
        ("ctttta", 6, 20, True, 5),  # a call longer than an episode should be
        ("uac", 3, 100, True, 2),  # its results are still to come
        ("uac", 3, 100, False, 3),  # they will not come
        ("c", 1, 100, True, 0),
        ("uct", 3, 100, True, 3),
        ("ua", 0, 100, True, 0),
        ("", 0, 100, True, 0),
        ("uuu", 3, 5, True, 1),
    ],
)
def test_where_an_episode_is_cut(roles: str, through: int, most: int, open_end: bool, cut_at: int) -> None:
    assert len(cut(_turns(roles), through=through, most_tokens=most, open_end=open_end)) == cut_at


def test_two_calls_of_one_turn_wait_for_both_results() -> None:
    turns = _turns("uct")
    turns[1].tool_calls.append({"id": "second", "name": "g", "args": {}})
    assert len(cut(turns, through=3, most_tokens=100, open_end=True)) == 1
    assert len(cut(turns, through=3, most_tokens=100, open_end=False)) == 3


@pytest.mark.parametrize(
    ("standing", "force", "through"),
    [
        (Standing(0, 10, 0, False, 100, 8, None), False, 0),
        (Standing(0, 10, 0, False, 100, 8, None), True, 10),
        (Standing(4, 10, 0, True, 100, 8, None), False, 10),
        (Standing(4, 10, 6, False, 100, 8, None), False, 6),
        (Standing(4, 10, 99, False, 100, 8, None), False, 10),
        (Standing(4, 10, 0, False, 501, 8, None), False, 7),
        (Standing(4, 10, 0, False, 501, None, None), False, 9),
        (Standing(4, 10, 9, False, 501, 8, None), False, 9),
        (Standing(10, 10, 0, True, 0, None, None), False, 10),
    ],
)
def test_how_far_a_session_is_due(standing: Standing, force: bool, through: int) -> None:
    assert due_through(standing, most_tokens=500, force=force) == through
