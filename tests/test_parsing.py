"""What models answer, and what is read from it (G7)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from pgmem_core.errors import ExtractionError
from pgmem_core.formation.parsing import ThoughtFilter, read_facts, reply_text, stopped_early, without_thoughts
from pgmem_core.formation.tolerant_json import find_values

A = {"predicate": "likes", "value": "jazz"}
B = {"predicate": "name", "value": "Ana"}
ONE = '{"facts": [{"predicate": "likes", "value": "jazz"}]}'


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        (ONE, [A]),
        (f"```json\n{ONE}\n```", [A]),
        (f"Here are the facts I found:\n\n```\n{ONE}\n```\nTell me if you want more!", [A]),
        (f"```json\n{ONE}", [A]),  # a fence that is never closed
        (f"Sure! {ONE} I hope that helps {{really}}.", [A]),
        (f"The format [as asked] is {{followed}} here: {ONE}", [A]),
        (f"<think>The user {{likes}} [jazz], so {ONE[:20]}</think>\n{ONE}", [A]),
        (f"<thinking>\n\n</thinking>{ONE}", [A]),
        (f"The user likes jazz.\n</think>\n\n{ONE}", [A]),  # the opening tag stood in the prompt
        (json.dumps([A, B]), [A, B]),
        (json.dumps(A), [A]),
        ("{'facts': [{'predicate': 'likes', 'value': 'jazz'},]}", [A]),
        ("{facts: [{predicate: 'likes', value: 'jazz', single: True, x: None}]}", [{**A, "single": True, "x": None}]),
        ('{"facts": [{"predicate": "likes" "value": "jazz"} {"predicate": "name", "value": "Ana"}]}', [A, B]),
        ('{"facts": [{"predicate": "likes", "value": "jazz"}, // one\n/* two */ ...]}', [A]),
        (
            '{"facts": [{"predicate": "said", "value": "he said "hi" to me"}]}',
            [{"predicate": "said", "value": 'he said "hi" to me'}],
        ),
        ("{'facts': [{'predicate': 'x', 'value': 'I don't know'}]}", [{"predicate": "x", "value": "I don't know"}]),
        ('{"facts": [{"predicate": "a", "value": "two\nlines"}]}', [{"predicate": "a", "value": "two\nlines"}]),
        (f"{json.dumps(A)}\n{json.dumps(B)}", [A, B]),
        (f'{{"facts": [{json.dumps(A)}], "facts": [{json.dumps(B)}]}}', [A, B]),  # equal keys
        ('{"facts": [{"predicate": "likes", "value": "pop", "value": "jazz"}]}', [A]),
        ('{"facts": {"likes": "jazz", "name": "Ana"}}', [A, B]),
        ('{"facts": ["likes: jazz", "name: Ana"]}', ["likes: jazz", "name: Ana"]),
        ('{"data": {"facts": [{"predicate": "likes", "value": "jazz"}]}}', [A]),
        (json.dumps({"name": "ExtractionReply", "arguments": ONE}), [A]),
        ('{"facts": [null, {"predicate": "likes", "value": "jazz"}, 7, true]}', [A]),
        ('{"facts": [[{"predicate": "likes", "value": "jazz"}]]}', [A]),
    ],
)
def test_facts_are_read_in_any_dress(reply: str, wanted: list[Any]) -> None:
    read = read_facts(reply)
    assert read.entries == wanted
    assert not read.truncated
    assert read_facts(AIMessage(reply)).entries == wanted


@pytest.mark.parametrize(
    "reply",
    ["", "  \n", "null", "None.", "[]", "{}", '{"facts": []}', '{"facts": null}', '{"facts": "none"}', "No facts.",
     "There are no durable facts in this conversation.", "Nothing to remember or store here.", "```json\nnull\n```",
     "<think>nothing here</think>[]", '{"facts": {}}', "[null]"],
)  # fmt: skip
def test_nothing_to_record_is_an_empty_list(reply: str) -> None:
    assert read_facts(reply).entries == []


@pytest.mark.parametrize(
    "reply",
    ["I'm sorry, I can't help with that.", "42", "{", "[[[[", "}{", '{"error": "rate limit"}', "[1, 2, 3]",
     "user: likes jazz", "x" * 5_000, "<think>let me see", "<think>done</think>", "{" * 3_000, "[" * 200_000,
     "\x00\ud800", '{"answer": {"a": [1]}}'],
)  # fmt: skip
def test_what_cannot_be_read_is_a_visible_error(reply: str) -> None:
    with pytest.raises(ExtractionError, match="could not be read as facts") as error:
        read_facts(reply)
    assert len(str(error.value)) < 2_000
    if len(reply) > 300 and reply[0] == "x":
        assert "x" * 200 in str(error.value)
        assert "x" * 201 not in str(error.value)


def test_a_reply_that_was_cut_off_keeps_its_complete_facts() -> None:
    whole = json.dumps({"facts": [{**A, "value": f"jazz {n}"} for n in range(10)]})
    for length in range(20, len(whole) - 1):
        read = read_facts(whole[:length])
        assert read.truncated
        complete = [json.loads(part) for part in _complete(whole[:length])]
        assert read.entries == complete, length
    assert not read_facts(whole).truncated


def _complete(text: str) -> list[str]:
    return [part[part.index("{") :] + "}" for part in text.removeprefix('{"facts": [').split("}")[:-1]]


def test_a_cut_off_is_also_believed_from_the_provider() -> None:
    assert read_facts(AIMessage(ONE, response_metadata={"finish_reason": "length"})).truncated
    assert not read_facts(AIMessage(ONE, response_metadata={"finish_reason": "stop"})).truncated
    for text in ("", "No facts."):
        with pytest.raises(ExtractionError, match="length"):
            read_facts(AIMessage(text, response_metadata={"finish_reason": "length"}))


def test_a_refusal_is_not_an_empty_list() -> None:
    with pytest.raises(ExtractionError, match="refusal"):
        read_facts(AIMessage("", additional_kwargs={"refusal": "I will not"}))
    with pytest.raises(ExtractionError, match="content_filter"):
        read_facts(AIMessage("", response_metadata={"finish_reason": "content_filter"}))


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"finish_reason": "length"}, "length"),
        ({"stop_reason": "max_tokens"}, "max_tokens"),
        ({"done_reason": "length"}, "length"),
        ({"finish_reason": "MAX_TOKENS"}, "max_tokens"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "max_output_tokens"),
        ({"finish_reason": "stop"}, None),
        ({"stop_reason": "end_turn"}, None),
        ({"finish_reason": None}, None),
        ({}, None),
    ],
)
def test_every_provider_has_its_own_word_for_a_cut_off(metadata: dict[str, Any], reason: str | None) -> None:
    assert stopped_early(AIMessage("x", response_metadata=metadata)) == reason


def test_a_broken_fact_costs_only_itself() -> None:
    read = read_facts(
        '{"facts": [{"predicate": "likes", "value": "jazz"}, {"predicate" = @}, {"predicate": "name", "value": "Ana"}]}'
    )
    assert read.entries == [A, B]
    assert read.skipped == 1
    read = read_facts('{"facts": [{"predicate": "likes", "value": "jazz"}, {"predicate" = @}]}')
    assert (read.entries, read.skipped, read.truncated) == ([A], 1, False)


def test_five_hundred_facts_and_a_fact_of_50_kB() -> None:
    many = [{"predicate": "likes", "value": f"thing {n}"} for n in range(500)]
    long = {"predicate": "note", "value": "ab" * 25_000}
    started = time.perf_counter()
    assert read_facts("Sure:\n" + json.dumps({"facts": [*many, long]})).entries == [*many, long]
    assert read_facts(str({"facts": [*many, long]})).entries == [*many, long]
    assert time.perf_counter() - started < 2


def test_hostile_text_takes_no_more_than_linear_time() -> None:
    for text in (
        "{" * 300_000,
        '{"a":' * 60_000,
        '[{"' * 100_000,
        "'" * 300_000,
        "{a " * 100_000,
        '"\\' * 100_000 + "{",
        '{"facts": [' + "{x} " * 50_000,
        "<think>" * 50_000,
        "```\n" * 50_000 + "{",
    ):
        started = time.perf_counter()
        try:
            read_facts(text)
        except ExtractionError:
            pass
        assert time.perf_counter() - started < 3, text[:20]


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="{}[]\",:\\ '\nab1-.<>/`tk", max_size=60), st.integers(0, 40))
def test_no_text_breaks_the_reader(text: str, at: int) -> None:
    for reply in (text, ONE[:at] + text, ONE[:at] + text + ONE[at:]):
        find_values(reply)
        try:
            read_facts(reply)
        except ExtractionError:
            pass


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=10,
    )
)
def test_what_is_json_is_read_as_json_also_among_prose(value: Any) -> None:
    whole = {"held": value}
    assert find_values(json.dumps(whole)).values == [whole]
    assert find_values("Here: " + json.dumps(whole) + " done").values[0] == whole


def test_tool_calls_and_parsed_models_are_replies_too() -> None:
    called = AIMessage("", tool_calls=[{"name": "ExtractionReply", "args": {"facts": [A]}, "id": "1"}])
    assert read_facts(called).entries == [A]
    assert read_facts({"raw": called, "parsed": None, "parsing_error": ValueError()}).entries == [A]
    assert read_facts({"raw": AIMessage(""), "parsed": {"facts": [B]}, "parsing_error": None}).entries == [B]
    broken = AIMessage(
        "", invalid_tool_calls=[{"name": "E", "args": ONE[:-1], "id": "1", "error": "bad", "type": "invalid_tool_call"}]
    )
    read = read_facts({"raw": broken, "parsed": None, "parsing_error": None})
    assert (read.entries, read.truncated) == ([A], True)
    with pytest.raises(ExtractionError):
        read_facts({"raw": AIMessage("What do you mean?"), "parsed": None, "parsing_error": None})
    cut = AIMessage("", tool_calls=called.tool_calls, response_metadata={"stop_reason": "max_tokens"})
    assert read_facts({"raw": cut, "parsed": {"facts": [A]}, "parsing_error": None}).truncated


# --- prose


def test_thoughts_are_left_out_and_answers_about_them_kept() -> None:
    assert without_thoughts("<think>hm</think>\n\nAna moved.") == "Ana moved."
    assert without_thoughts("<think>a</think> <Thinking>b</THINKING>Ana") == "Ana"
    assert without_thoughts("<think>never done") == ""
    assert without_thoughts("Ana asked what <think> and </think> mean.") == "Ana asked what <think> and </think> mean."
    assert without_thoughts("hm\n</think>\nAna moved.") == "Ana moved."
    assert without_thoughts("<b>Ana</b> moved") == "<b>Ana</b> moved"
    assert without_thoughts("<") == "<"


@pytest.mark.parametrize(
    "text", ["<think>so\nmuch < to > think</think>\nAna moved.", "Ana <3 jazz", "<thinkers> met", "  <think>x", "<thi"]
)
def test_the_size_of_the_pieces_makes_no_difference(text: str) -> None:
    wanted = without_thoughts(text)
    for size in range(1, len(text)):
        sieve = ThoughtFilter()
        given_back = "".join(sieve.feed(text[at : at + size]) for at in range(0, len(text), size))
        assert given_back + sieve.close() == wanted, size


def test_words_are_found_in_every_form_of_a_reply() -> None:
    assert reply_text("a") == "a"
    assert reply_text(AIMessage("a")) == "a"
    blocks: list[Any] = [{"type": "thinking", "thinking": "no"}, {"type": "text", "text": "a"}, "b", {"type": "image"}]
    assert reply_text(AIMessage(content=blocks)) == "ab"
    assert reply_text({"raw": AIMessage("a")}) == "a"
    assert reply_text(None) == ""
