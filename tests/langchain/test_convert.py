"""Messages become turns and come back equal; what cannot is refused; what is read is fit for a provider."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    ChatMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
)

from pgmem_core import InvalidArgument, Turn
from pgmem_core.tiers.working import turn_of_row
from pgmem_core.turns import new_turn
from pgmem_langchain.convert import NO_RESULT, as_messages, message_of, repair, turn_id, turn_of
from tests.langchain.messages import EVERY_KIND, messages

_NOW = datetime(2024, 2, 29, 7, 30, tzinfo=UTC)


def stored(message: BaseMessage) -> Turn:
    """The turn as the database would give it back, without one."""
    new = new_turn(tenant_id="default", session_id="s", language="english", **turn_of(message))
    # What jsonb does to a document, as far as text can show: keys unordered, no more types than JSON has.
    held = None if new.message is None else json.loads(json.dumps(new.message, sort_keys=True))
    return turn_of_row((new.id, "s", 1, new.role, new.text, held, new.metadata, new.token_count, _NOW))


@given(messages)
@settings(max_examples=150, deadline=None)
def test_a_message_of_any_kind_comes_back_equal(message: BaseMessage) -> None:
    before = message.model_copy(deep=True)
    [taken] = as_messages([message])
    back = message_of(stored(taken))
    assert back == message == before
    assert type(back) is type(message)


@pytest.mark.parametrize("message", EVERY_KIND, ids=lambda message: message.type)
def test_a_message_that_came_back_is_one_to_work_with(message: BaseMessage) -> None:
    back = message_of(stored(message))
    assert back == message
    assert back.text == message.text
    assert [block["type"] for block in back.content_blocks] == [block["type"] for block in message.content_blocks]
    assert message_to_dict(back) == message_to_dict(message)
    assert back.model_copy(update={"name": "x"}).name == "x"


def test_fields_that_langchain_has_not_declared_come_back_too() -> None:
    message = HumanMessage("hi", example=True, tags=["a"], type_="x")
    assert message_of(stored(message)) == message


@pytest.mark.parametrize(
    ("message", "role"),
    [
        (HumanMessage("x"), "user"),
        (AIMessage("x"), "assistant"),
        (SystemMessage("x"), "system"),
        (SystemMessage("x", additional_kwargs={"__openai_role__": "developer"}), "developer"),
        (ToolMessage("x", tool_call_id="c"), "tool"),
        (ChatMessage("x", role="user"), "user"),
        (ChatMessage("x", role="Human"), "user"),
        (ChatMessage("x", role="critic"), "assistant"),  # never the user's word
    ],
)
def test_who_said_it(message: BaseMessage, role: str) -> None:
    turn = stored(message)
    assert turn.role == role
    assert turn.text == "x"


def test_only_words_are_searchable_text() -> None:
    turn = stored(EVERY_KIND[2])
    assert turn.text == "Look:\nwhat is this?"
    assert turn.name == "Ada"
    assert "iVBOR" not in turn.text
    assert stored(EVERY_KIND[3]).text == "Let me see."  # neither the reasoning nor the call


def test_e8_chunks_come_back_as_the_message_they_make_up() -> None:
    chunks = [
        AIMessageChunk("It is ", id="run-1"),
        AIMessageChunk("raining.", id="run-1", tool_call_chunks=[
            {"name": "look", "args": '{"at": ', "id": "c1", "index": 0, "type": "tool_call_chunk"}]),
        AIMessageChunk("", id="run-1", tool_call_chunks=[
            {"name": None, "args": '"sky"}', "id": None, "index": 0, "type": "tool_call_chunk"}]),
    ]  # fmt: skip
    [taken, human, critic] = as_messages(
        [chunks[0] + chunks[1] + chunks[2], HumanMessageChunk("hi"), ChatMessageChunk("no", role="critic")]
    )
    back = message_of(stored(taken))
    assert type(back) is AIMessage
    assert back.content == "It is raining."
    assert [(call["name"], call["args"], call["id"]) for call in back.tool_calls] == [("look", {"at": "sky"}, "c1")]
    assert message_of(stored(human)) == HumanMessage("hi")
    assert message_of(stored(critic)) == ChatMessage("no", role="critic")


def test_e8_what_langchain_reads_as_a_message_is_read_so() -> None:
    ai = AIMessage("hello", tool_calls=[{"name": "f", "args": {}, "id": "c"}], id="a1")
    assert as_messages([{"role": "user", "content": "hi"}, ("ai", "hey"), "yes", message_to_dict(ai)]) == [
        HumanMessage("hi"), AIMessage("hey"), HumanMessage("yes"), ai,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([HumanMessage("a"), RemoveMessage(id="x")], "message 2 is a RemoveMessage"),
        ([{"role": "remove", "content": "", "id": "x"}], "message 1 is a RemoveMessage"),
        ([HumanMessage("a"), {"text": "no role"}], "message 2 is of type dict and cannot be read"),
        ([{"role": "oracle", "content": "x"}], "message 1 .* cannot be read as a message"),
        ([7], "message 1 is of type int"),
        ([BaseMessage(content="x", type="oracle")], "message 1 is of the unknown type 'oracle'"),
        (HumanMessage("a"), "put it in a list"),
        ("hello", "put it in a list"),
    ],
)
def test_e8_what_is_no_message_is_refused_by_its_place(given: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        as_messages(given)


def test_a_class_of_the_applications_own_comes_back_as_what_it_extends() -> None:
    class Whisper(HumanMessage):
        volume: int = 1

    back = message_of(stored(Whisper("psst", volume=2)))
    assert type(back) is HumanMessage
    assert back.content == "psst"


@pytest.mark.parametrize(
    ("id", "wanted"),
    [
        (None, None),
        ("", None),
        ("run-1", "lc:run-1"),
        ("0b0e8f0e-3f5e-4a0f-8d41-0c6e0f3f0b11", "lc:0b0e8f0e-3f5e-4a0f-8d41-0c6e0f3f0b11"),
    ],
)
def test_the_id_under_which_a_message_is_stored(id: str | None, wanted: str | None) -> None:
    assert turn_id(id) == wanted


@pytest.mark.parametrize("id", ["x" * 400, "a\nb", "a\x00", "\ud800"], ids=["long", "line", "nul", "surrogate"])
def test_an_id_that_no_index_can_carry_stands_for_itself_all_the_same(id: str) -> None:
    assert turn_id(id) == turn_id(str(id))
    assert turn_id(id) != turn_id(id + "x")
    assert message_of(stored(HumanMessage("hi", id=id))).id == id


@pytest.mark.parametrize(
    ("turn", "wanted"),
    [
        ({"role": "user", "content": "hi", "name": "Ada"}, HumanMessage("hi", name="Ada")),
        ({"role": "developer", "content": "x"}, SystemMessage("x", additional_kwargs={"__openai_role__": "developer"})),
        ({"role": "tool", "content": "x", "tool_call_id": "c"}, ToolMessage("x", tool_call_id="c")),
        (
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
            AIMessage("", tool_calls=[{"id": "c", "name": "f", "args": {"a": 1}}]),
        ),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "f", "args": {"a": 1}}]},
            AIMessage("", tool_calls=[{"id": "c", "name": "f", "args": {"a": 1}}]),
        ),
    ],
)  # fmt: skip
def test_a_turn_that_another_part_of_the_program_wrote_is_a_message_of_its_role(
    turn: dict[str, Any], wanted: BaseMessage
) -> None:
    new = new_turn(tenant_id="default", session_id="s", language="english", **turn)
    row = (new.id, "s", 1, new.role, new.text, new.message, new.metadata, new.token_count, _NOW)
    assert message_of(turn_of_row(row)) == wanted.model_copy(update={"id": str(new.id)})


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (ToolMessage("x", tool_call_id="c", artifact=object()), r"\[\"artifact\"\] is of type object"),
        (ToolMessage("x", tool_call_id="c", artifact=[b"x"]), r"\[\"artifact\"\]\[0\] is of type bytes"),
        (HumanMessage("x", additional_kwargs={"a": {1: 2}}), r"\[\"additional_kwargs\"\]\[\"a\"\] has the key 1"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_its_place(message: BaseMessage, place: str) -> None:
    with pytest.raises(InvalidArgument, match=place):
        stored(message)


# -- E3, E4: fit for a provider --------------------------------------------------------------------------------


def call(*ids: str, invalid: tuple[str, ...] = ()) -> AIMessage:
    return AIMessage(
        "", tool_calls=[{"name": "f", "args": {}, "id": id, "type": "tool_call"} for id in ids],
        invalid_tool_calls=[
            {"name": "f", "args": "{", "id": id, "error": None, "type": "invalid_tool_call"} for id in invalid
        ],
    )  # fmt: skip


def result(id: str, text: str = "done") -> ToolMessage:
    return ToolMessage(text, tool_call_id=id)


def missing(id: str) -> ToolMessage:
    return ToolMessage(NO_RESULT, tool_call_id=id, name="f", status="error")


HI, BYE = HumanMessage("hi"), AIMessage("bye")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([HI, call("x"), HI], [HI, call("x"), missing("x"), HI]),
        ([HI, call("x"), HI, result("x"), BYE], [HI, call("x"), result("x"), HI, BYE]),
        ([HI, call("x", "y"), result("y"), BYE], [HI, call("x", "y"), result("y"), missing("x"), BYE]),
        ([HI, call("x", "y"), result("y"), HI, result("x")], [HI, call("x", "y"), result("y"), result("x"), HI]),
        ([call(invalid=("x",)), HI], [call(invalid=("x",)), missing("x"), HI]),
        # Ids counted anew in each reply: each result stays with its own call.
        (
            [call("0"), result("0", "a"), call("0"), result("0", "b"), BYE],
            [call("0"), result("0", "a"), call("0"), result("0", "b"), BYE],
        ),
        (
            [call("0"), HI, call("0"), result("0", "b"), BYE],
            [call("0"), missing("0"), HI, call("0"), result("0", "b"), BYE],
        ),
    ],
)  # fmt: skip
def test_e4_calls_without_results_are_repaired(given: list[BaseMessage], wanted: list[BaseMessage]) -> None:
    before = [message.model_copy(deep=True) for message in given]
    assert repair(given) == wanted
    assert given == before


@pytest.mark.parametrize(
    "sound",
    [
        [],
        [HI, BYE, HI],
        [HI, call("x", "y"), result("y"), result("x"), BYE],  # parallel calls end in any order
        [HI, call("x")],  # under way
        [HI, call("x", "y"), result("x")],
        [HI, call("x"), result("x")],
        [result("x"), HI],  # the application's own: nothing was cut, so nothing is left out
    ],
)
def test_e4_what_is_sound_or_under_way_stays_as_it_is(sound: list[BaseMessage]) -> None:
    assert repair(sound) == sound


def test_e3_a_result_whose_call_was_cut_off_is_left_out() -> None:
    assert repair([result("x"), BYE, HI, call("y"), result("y"), BYE], cut=True) == [
        BYE, HI, call("y"), result("y"), BYE,
    ]  # fmt: skip
