"""Compaction where something goes wrong or changes meanwhile: nothing by halves, nothing twice, nothing stale."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage

from pgmem_core import PgMem, Turn
from pgmem_core.database import health
from pgmem_core.database.connection import PsycopgConnection
from pgmem_core.formation import compaction
from pgmem_core.formation.extractors import ModelSummarizers
from pgmem_core.tiers import episodic, narrative
from tests.fix_memory import Maker
from tests.scripted import Scripted
from tests.telling import Flaky, Teller, Tellers, episodes, quoting, rows, state, talk, told

# -- a real chain ------------------------------------------------------------------------------------------------


async def test_e11_f7_braces_reach_the_model_and_a_call_without_content_is_told(make_memory: Maker, dsn: str) -> None:
    """E11: stored text is no template. F7: an assistant message whose content is None and that only calls a tool."""
    odd = '{"city": "{x}"} {{y}} %s ${z} and the template stays as it was written by the user'
    chat = Scripted(replies=["The user gave a template with {x} in it."])
    memory = await make_memory(summarizers=ModelSummarizers(chat))
    session = await memory.session.create("s1", user_id="u1")
    call = {"id": "c1", "name": "weather", "args": {"city": "{x}"}}
    await session.add_turns([
        {"role": "user", "content": odd},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "12 degrees, {rain}", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It rains, 12 degrees, so take a coat and an umbrella with you."},
    ])  # fmt: skip
    report = await session.compact()
    assert report.error is None
    assert report.episodes == 1
    assert odd in chat.prompt(0)
    assert "(calls weather)" in chat.prompt(0)
    assert "12 degrees, {rain}" in chat.prompt(1)
    assert episodes(dsn)[0][1] == "The user gave a template with {x} in it."
    assert [one.tool_calls for one in await session.turns()][1] == [call]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (AIMessage(""), "empty"),
        (AIMessage(" \n\u200b"), "blank|empty"),
        (AIMessage("The user pla", response_metadata={"finish_reason": "length"}), "cut off"),
        (AIMessage("The user pla", response_metadata={"stop_reason": "max_tokens"}), "cut off"),
        (AIMessage("word " * 2_000), "characters"),
        (RuntimeError("no credit"), "no credit"),
    ],
)
async def test_a_summary_that_is_not_whole_changes_nothing(make_memory: Maker, dsn: str, reply: Any, why: str) -> None:
    chat = Scripted(replies=[reply])
    memory = await make_memory(summarizers=ModelSummarizers(chat))
    session = await talk(memory)
    turns = await session.turns()

    report = await session.compact()

    assert report.error is not None
    assert re.search(why, report.error)
    assert episodes(dsn) == []
    assert rows(dsn, "SELECT 1 FROM pgmem.running_summaries UNION ALL SELECT 1 FROM pgmem.narratives") == []
    assert await session.turns() == turns
    found = state(dsn)
    assert (found["through"], found["uncompacted"], found["attempts"], found["waits"]) == (0, True, 1, True)

    chat.replies[:] = ["The user plans a trip to Porto."]
    assert (await session.compact()).episodes == 1
    assert state(dsn)["error"] is None


async def test_what_is_no_text_is_refused(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(summarizers=Tellers(Teller(lambda turns: {"summary": "x"})))  # type: ignore[arg-type,return-value]
    session = await talk(memory)
    assert "returned a dict" in ((await session.compact()).error or "")
    assert episodes(dsn) == []


async def test_a_failure_waits_longer_each_time_and_the_doctor_names_it(make_memory: Maker, dsn: str) -> None:
    flaky = Flaky()
    memory = await make_memory(summarizers=Tellers(flaky))
    session = await talk(memory)
    await session.end()
    waits = []
    for attempt in (1, 2, 3):
        report = await memory.form()
        assert "out of order" in report.errors["s1"]
        assert state(dsn)["attempts"] == attempt
        [(wait,)] = rows(dsn, "SELECT extract(epoch FROM forming_retry_at - now()) FROM pgmem.sessions")
        waits.append(float(wait))
    assert 1 < waits[0] < 2.1 < waits[1] < 4.1 < waits[2] < 8.1
    assert len(flaky.asked) == 3
    _, [finding] = _doctor(dsn)
    assert finding.level == "problem"
    assert "'s1'" in finding.what
    assert "out of order" in finding.what

    flaky.well = True
    await memory.form()
    assert len(episodes(dsn)) == 1
    assert _doctor(dsn)[1] == []


def _doctor(dsn: str) -> tuple[health.Backlog, list[health.Finding]]:
    with psycopg.connect(dsn) as raw:
        conn = PsycopgConnection(raw, "pgmem", None)
        work = health.backlog(conn)
        looked = health.Health(health.server(conn), "pgmem", 1, 1, "0.8.0", "public", False, "none", backlog=work)
    return work, [one for one in health.findings(looked) if one.level == "problem"]


# -- exactly once ------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """What no handler of ours may take for an error of the model."""


@pytest.mark.parametrize("step", ["before the transaction", "in the transaction", "before the narrative"])
async def test_a_worker_killed_between_two_steps_writes_exactly_one_episode(
    make_memory: Maker, dsn: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tellers = Tellers()
    memory = await make_memory(summarizers=tellers, formation_lease_seconds=0.1)
    session = await talk(memory)
    await session.end()

    def die(*_: Any, **__: Any) -> Any:
        raise Killed

    module, name = {
        "before the transaction": (compaction, "_store"),
        "in the transaction": (episodic, "advance"),
        "before the narrative": (narrative, "read"),
    }[step]
    with monkeypatch.context() as broken:
        broken.setattr(module, name, die)
        with pytest.raises(Killed):
            await memory.form()
    assert len(tellers.episode.asked) == 1
    assert len(episodes(dsn)) == (1 if step == "before the narrative" else 0)
    await asyncio.sleep(0.12)  # the lease of the dead worker

    await memory.form()
    assert len(episodes(dsn)) == 1
    assert told(dsn) == [1, 2, 3, 4]
    assert rows(dsn, "SELECT count(*) FROM pgmem.running_summaries") == [(1,)]
    assert rows(dsn, "SELECT count(*) FROM pgmem.narratives") == [(1,)]
    assert state(dsn)["through"] == 4


async def test_two_workers_at_once_write_one_episode(make_memory: Maker, dsn: str) -> None:
    tellers = Tellers()
    memory, other = await make_memory(summarizers=tellers), await make_memory(summarizers=tellers)
    session = await talk(memory)
    await session.end()
    await asyncio.gather(memory.form(), other.form())
    assert len(episodes(dsn)) == 1
    assert len(tellers.episode.asked) == 1


@pytest.mark.parametrize("change", ["delete", "update", "withdraw"])
async def test_a_turn_that_changes_while_the_model_thinks_is_not_told_as_it_was(
    make_memory: Maker, dsn: str, change: str
) -> None:
    def say(turns: Sequence[Turn]) -> str:
        target = turns[2].id
        if len(episode.asked) == 1 and change == "withdraw":
            rows(dsn, "UPDATE pgmem.records SET invalidated_at = now() WHERE id = %s RETURNING 1", target)
        elif len(episode.asked) == 1:
            with PgMem(dsn) as meanwhile:
                meanwhile.delete(target) if change == "delete" else meanwhile.update(target, "Anything will do for me.")
        return "Told of: " + " / ".join(one.text[:20] for one in turns)

    episode = Teller(say)
    memory = await make_memory(summarizers=Tellers(episode))
    session = await talk(memory)
    await session.end()
    await memory.form()
    await session.compact()
    [(_, text, _, _)] = episodes(dsn)
    assert "Yes please" not in text
    assert "I am planning" in text
    assert ("Anything will do" in text) == (change == "update")


async def test_a_stretch_that_somebody_else_wrote_meanwhile_is_not_written_again(make_memory: Maker, dsn: str) -> None:
    def say(turns: Sequence[Turn]) -> str:
        rows(dsn, "UPDATE pgmem.sessions SET summarised_through = 3 RETURNING 1")
        return "Told of: " + " / ".join(one.text[:20] for one in turns)

    memory = await make_memory(summarizers=Tellers(Teller(say)))
    session = await talk(memory)
    await session.compact()
    assert episodes(dsn) == []
    assert state(dsn)["through"] == 3


# -- what a deletion reaches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["delete", "update"])
async def test_a_turn_that_goes_takes_what_was_told_of_it_and_the_rest_is_told_again(
    make_memory: Maker, dsn: str, change: str
) -> None:
    memory = await make_memory(summarizers=quoting())
    mine, theirs = await talk(memory, "s1"), await talk(memory, "s3", "u2")
    other = await memory.session.create("s2", user_id="u1")
    await other.add_turn("user", "My garden needs a new fence, about twelve metres, and the gate should open inwards.")
    for session in (mine, other, theirs):
        await session.compact()
    story = rows(dsn, "SELECT version, content FROM pgmem.narratives WHERE user_id = 'u2'")
    assert len(episodes(dsn)) == 3
    assert "carpets" in rows(dsn, "SELECT content FROM pgmem.narratives WHERE user_id = 'u1'")[0][0]

    doomed = (await mine.turns())[2]
    assert "carpets" in doomed.text
    if change == "delete":
        await memory.delete(doomed.id)
    else:
        await memory.update(doomed.id, "Yes please, something near the river, whatever it costs.")

    assert rows(dsn, "SELECT session_id FROM pgmem.records WHERE kind = 'episode' ORDER BY 1") == [("s2",), ("s3",)]
    assert rows(dsn, "SELECT session_id FROM pgmem.running_summaries ORDER BY 1") == [("s2",), ("s3",)]
    assert rows(dsn, "SELECT 1 FROM pgmem.narratives WHERE user_id = 'u1'") == []
    assert state(dsn)["through"] == 0

    report = await memory.form()
    assert report.errors == {}
    [(text,)] = rows(dsn, "SELECT content FROM pgmem.records WHERE kind = 'episode' AND session_id = 's1'")
    assert "carpets" not in text
    assert "Porto" in text
    assert ("whatever it costs" in text) == (change == "update")
    assert state(dsn)["through"] == 4
    [(version, again)] = rows(dsn, "SELECT version, content FROM pgmem.narratives WHERE user_id = 'u1'")
    assert (version, "carpets" in again, "Porto" in again, "fence" in again) == (1, False, True, True)
    assert rows(dsn, "SELECT version, content FROM pgmem.narratives WHERE user_id = 'u2'") == story


async def test_only_the_stretches_from_the_gap_on_are_told_again(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(summarizers=quoting())
    session = await talk(memory)
    await session.compact()
    await session.add_turn("user", "We changed our minds: we travel in June instead, and Nell brings her dog.")
    await session.compact()
    [first, _] = [row[0] for row in rows(dsn, "SELECT id FROM pgmem.records WHERE kind = 'episode' ORDER BY id")]
    await memory.delete((await session.turns())[4].id)
    assert rows(dsn, "SELECT id FROM pgmem.records WHERE kind = 'episode'") == [(first,)]
    assert rows(dsn, "SELECT through_seq FROM pgmem.running_summaries") == [(4,)]
    await session.add_turn("user", "In the end it is September: the river is warm then and the hotels are cheaper.")
    await session.compact()
    assert [row[2:] for row in episodes(dsn)] == [(1, 4), (6, 6)]


async def test_deleting_a_session_takes_its_episodes_and_leaves_those_of_others(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(summarizers=Tellers())
    mine, other = await talk(memory, "s1"), await talk(memory, "s2")
    await mine.compact()
    await other.compact()
    assert rows(dsn, "SELECT max(version) FROM pgmem.narratives") == [(2,)]
    await mine.delete()
    assert len(episodes(dsn)) == 1
    assert rows(dsn, "SELECT DISTINCT session_id FROM pgmem.running_summaries") == [("s2",)]
    await memory.form()
    [(story,)] = rows(dsn, "SELECT content FROM pgmem.narratives ORDER BY version DESC LIMIT 1")
    assert story
