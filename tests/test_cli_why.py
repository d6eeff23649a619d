"""What leads a person to a turn: the prompts of a session, of a user, and the last one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pgmem_core import InvalidArgument, PgMem, cli
from tests.fix_memory import Face
from tests.test_prefix import write


async def asked(memory: Face) -> dict[str, str]:
    """Three prompts of two users; return the ids of their turns by question."""
    found = {}
    for session_id, user_id, question in (
        ("s1", "ada", "what do I eat?"), ("s2", "bo", "where do I live?"), ("s1", "ada", "and for dinner?"),
    ):  # fmt: skip
        session = await memory.session.open(session_id, user_id=user_id)
        predicate, value = ("diet", "vegan") if user_id == "ada" else ("lives_in", "Porto")
        await session.observe(predicate, value, authority="user")
        context = await session.compile_context(question)
        found[question] = context.query_id
    return found


async def test_prompts_are_newest_first_of_a_session_a_user_or_all(memory: Face) -> None:
    turns = await asked(memory)
    every = await memory.prompts()
    assert [one.question for one in every] == ["and for dinner?", "where do I live?", "what do I eat?"]
    assert [one.turn_id for one in every] == [turns[one.question] for one in every]
    assert [(one.user_id, one.session_id) for one in every] == [("ada", "s1"), ("bo", "s2"), ("ada", "s1")]
    assert [one.question for one in await memory.prompts(session_id="s1")] == ["and for dinner?", "what do I eat?"]
    assert [one.question for one in await memory.prompts("ada", limit=1)] == ["and for dinner?"]
    assert await memory.prompts("bo", session_id="s1") == []
    assert await memory.prompts(group_id="other") == []
    newest = every[0]
    assert [one.text for one in newest.shown] == ["diet: vegan"]
    assert list(newest.shown) == await memory.why(newest.turn_id)
    assert newest.token_count > newest.shown[0].token_count


async def test_a_question_that_is_gone_leaves_its_prompt(memory: Face, dsn: str) -> None:
    turns = await asked(memory)
    await memory.prompts()  # what is written beside the turn is there
    write(dsn, "DELETE FROM pgmem.records WHERE id = %s", turns["what do I eat?"])
    newer, older = await memory.prompts("ada")
    assert (newer.question, [one.text for one in newer.shown]) == ("and for dinner?", ["diet: vegan"])
    assert (older.question, [one.text for one in older.shown]) == (None, ["diet: vegan"])
    assert older.turn_id == turns["what do I eat?"]


async def test_what_was_forgotten_was_not_asked(memory: Face) -> None:
    await asked(memory)
    await memory.forget(user_id="ada")
    assert [one.question for one in await memory.prompts()] == ["where do I live?"]


@pytest.mark.parametrize("bad", [{"limit": -1}, {"session_id": " "}, {"user_id": 7}])
async def test_bad_arguments_are_refused(memory: Face, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        await memory.prompts(**bad)


@pytest.fixture
def turns(dsn: str) -> dict[str, str]:
    """Two prompts of ada's session and one of bo's, later; the ids of their turns by question."""
    found = {}
    with PgMem(dsn) as mem:
        ada = mem.session.create("s1", user_id="ada")
        ada.observe("diet", "vegan", authority="user")
        bo = mem.session.create("s2", user_id="bo")
        bo.observe("lives_in", "Porto", authority="user")
        for session, question in ((ada, "what do I eat?"), (ada, "and for \x1b[2J dinner?"), (bo, "where do I live?")):
            context = session.compile_context(question)
            assert context.query_id is not None
            found[question] = context.query_id
    return found


def test_the_command_leads_to_a_turn(dsn: str, turns: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    def ran(*arguments: str) -> str:
        assert cli.run(["why", *arguments, "--dsn", dsn]) == 0
        return capsys.readouterr().out

    lunch, dinner, home = turns.values()
    told = ran("--session", "s1")
    assert told.index(dinner) < told.index("“and for") < told.index(lunch) < told.index("“what do I eat?”")
    assert told.count("diet: vegan") == 2
    assert home not in told
    assert "\x1b[2J" not in told
    last = ran("--last")
    assert home in last
    assert "lives in: Porto" in last
    assert lunch not in last
    assert dinner in ran("--last", "--user", "ada")
    assert lunch not in ran("--session", "s1", "--limit", "1")
    assert "diet: vegan" in ran(lunch)
    assert "no prompt of group 'default', session 'nowhere' showed any memory" in ran("--session", "nowhere")
    document = json.loads(ran("--session", "s1", "--json"))
    assert [one["turn_id"] for one in document["prompts"]] == [dinner, lunch]
    assert document["prompts"][1]["question"] == "what do I eat?"
    assert document["prompts"][1]["shown"][0]["text"] == "diet: vegan"


def test_the_command_says_what_it_wants(dsn: str, turns: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["why", "--dsn", dsn]) == 2
    assert "--last" in capsys.readouterr().err
    assert cli.run(["why", turns["what do I eat?"], "--last", "--dsn", dsn]) == 2
    assert "leave --session, --user and --last out" in " ".join(capsys.readouterr().err.split())
