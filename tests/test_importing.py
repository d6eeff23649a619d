"""Reading conversations from files: each format, what is wrong with files, and the way back."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmem_core import PgMem, cli, demo
from pgmem_core.errors import InvalidArgument
from pgmem_core.importing import (
    Conversation,
    ImportedSession,
    ImportedTurn,
    Problem,
    Question,
    dump_jsonl,
    read,
    sources,
)
from pgmem_core.importing.locomo import parse_time
from tests.fix_memory import Face

# Beside a checkout of the developers; its licence keeps it out of the project.
LOCOMO = Path(__file__).parents[2] / "shared" / "data" / "locomo-dev.json"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write text, bytes, or a value as JSON; a list of lines for JSON Lines."""

    def write(content: Any, name: str = "chat.json") -> Path:
        path = tmp_path / name
        if isinstance(content, str):
            content = content.encode()
        if not isinstance(content, bytes):
            content = json.dumps(content, ensure_ascii=False).encode()
        path.write_bytes(content)
        return path

    return write


def lines(*values: Any) -> str:
    return "".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values)


def collect(path: Path) -> tuple[list[Conversation], list[Problem]]:
    problems: list[Problem] = []
    return list(read(path, on_problem=problems.append)), problems


def turns_of(path: Path) -> list[ImportedTurn]:
    return [turn for found in read(path) for session in found.sessions for turn in session.turns]


def turn(session_id: str = "s", **more: Any) -> dict[str, Any]:
    return {"type": "turn", "session_id": session_id, "role": "user", "content": "hi", **more}


# pgmem's own format


FULL = Conversation(
    name="all of it",
    user_id="u-1",
    sessions=(
        ImportedSession(
            "ticket#4711",
            "u-1",
            "Ein Título 東京",
            datetime(2026, 2, 3, 18, 5, tzinfo=UTC),
            (
                ImportedTurn("t1", "user", "zero \x00 byte, \\u0000 as text,   and <|endoftext|>", seq=101),
                ImportedTurn(
                    "t2",
                    "assistant",
                    "",
                    tool_calls=({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},),
                    created_at=datetime(2026, 2, 3, 18, 5, 0, 123456, tzinfo=UTC),
                    seq=102,
                ),
                ImportedTurn("t3", "tool", "{x} %s", name="f", tool_call_id="c", seq=103),
                ImportedTurn(
                    "t4",
                    "critic",
                    [{"type": "text", "text": "look"}, {"type": "image", "url": "x:y", "alt": "a cat"}],
                    metadata={"n": 2**70, "deep": {"\x00": [None, True, 1.5]}},
                    seq=104,
                ),
            ),
        ),
        ImportedSession("empty", None, None, None, ()),
    ),
    questions=(Question("who?", ("t1", "t3"), "4", "she"), Question("and?")),
)


def test_what_is_dumped_is_read_back_whole(write: Write) -> None:
    path = write("".join(dump_jsonl([FULL, Conversation("bare", None, ())])), "out.jsonl")
    assert list(read(path)) == [FULL, Conversation("bare", None, ())]


_text = st.text(st.characters(), max_size=20)  # surrogates included
_id = st.text("abcß京-/ #'{}", min_size=1, max_size=8).filter(str.strip)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=5,
)
_when = st.none() | st.datetimes(timezones=st.just(UTC))
_block = st.fixed_dictionaries({"type": _text}, optional={"text": _text, "more": _json})
_turn = st.builds(
    ImportedTurn,
    id=_id,
    role=_text.filter(bool),
    content=_text | st.lists(_block, max_size=2),
    name=st.none() | _text,
    tool_calls=st.lists(st.dictionaries(_text, _json, max_size=2), max_size=2).map(tuple),
    tool_call_id=st.none() | _text,
    created_at=_when,
    metadata=st.dictionaries(_text, _json, max_size=2),
)
_session = st.builds(
    ImportedSession,
    session_id=_id,
    user_id=st.none() | _id,
    title=st.none() | _text,
    created_at=_when,
    turns=st.lists(_turn, max_size=3, unique_by=lambda turn: turn.id).map(tuple),
)
_conversation = st.builds(
    Conversation,
    name=_text.filter(bool),
    user_id=st.none() | _id,
    sessions=st.lists(_session, max_size=3, unique_by=lambda session: session.session_id).map(tuple),
)


@given(st.lists(_conversation, max_size=3))
def test_round_trip_of_anything(tmp_path_factory: pytest.TempPathFactory, found: list[Conversation]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(dump_jsonl(found))
    assert list(read(path)) == found


def test_a_lone_surrogate_is_written_as_utf8_and_comes_back(write: Write) -> None:
    odd = ImportedTurn("t", "user", "half \ud83d of a smile")
    found = Conversation("c", None, (ImportedSession("s", None, None, None, (odd,)),))
    assert list(read(write("".join(dump_jsonl([found])), "x.jsonl"))) == [found]


@pytest.mark.parametrize("value", [float("nan"), datetime(2026, 1, 1, tzinfo=UTC), {1, 2}, b"x"])
def test_what_json_cannot_hold_is_refused_with_the_turn_named(value: object) -> None:
    odd = ImportedTurn("t-9", "user", "x", metadata={"v": value})
    found = Conversation("c", None, (ImportedSession("s", None, None, None, (odd,)),))
    with pytest.raises(InvalidArgument, match="t-9"):
        list(dump_jsonl([found]))


def test_runs_of_turns_without_headers_are_sessions_as_they_come(write: Write) -> None:
    path = write(lines(turn("a"), turn("a", content="ho"), turn("b"), turn("a")), "x.jsonl")
    found = list(read(path))
    assert [(c.name, len(c.sessions[0].turns)) for c in found] == [("a", 2), ("b", 1), ("a", 1)]
    ids = [t.id for t in turns_of(path)]
    assert len(set(ids)) == 4, "the same words in two pieces of a session are two turns"


def test_a_stream_is_yielded_before_its_end_is_read(write: Write) -> None:
    stream = read(write(lines(turn("a"), turn("b"), "{broken"), "x.jsonl"))
    assert next(stream).name == "a"
    with pytest.raises(InvalidArgument, match="line 3"):
        list(stream)


def test_seq_orders_a_session_that_has_it_throughout(write: Write) -> None:
    shuffled = [turn(id="c", seq=9), turn(id="a", seq=0), turn(id="b", seq=4)]
    assert [t.id for t in turns_of(write(lines(*shuffled), "x.jsonl"))] == ["a", "b", "c"]
    mixed = [turn(id="c", seq=9), turn(id="a")]
    assert [t.id for t in turns_of(write(lines(*mixed), "y.jsonl"))] == ["c", "a"]


def test_nested_records_are_the_same_as_lines(write: Write) -> None:
    flat = [
        {"type": "conversation", "name": "n", "user_id": "u"},
        {"type": "session", "session_id": "s", "title": "T"},
        turn(id="1"),
        {"type": "question", "text": "?", "evidence": ["1"]},
    ]
    nested = {
        **flat[0],
        "sessions": [{"session_id": "s", "title": "T", "turns": [{"id": "1", "role": "user", "content": "hi"}]}],
        "questions": [{"text": "?", "evidence": ["1"]}],
    }
    indented = write(json.dumps(nested, indent=2))
    assert list(read(indented)) == list(read(write(lines(*flat), "x.jsonl")))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (turn(seq="3"), "'seq' is the string '3'"),
        (turn(seq=True), "'seq' is the boolean True"),
        (turn(seq=2**63), "'seq' is the number 9223372036854775808"),
        (turn(role=7), "'role' is the number 7"),
        (turn(role=""), "'role'"),
        (turn(content=None), "'content' is null"),
        (turn(content={"text": "x"}), "'content' is an object"),
        (turn(content=[{"text": "x"}]), "content block 1 is an object .*wanted an object with a 'type'"),
        (turn(tool_calls={"a": 1}), "'tool_calls' is an object"),
        (turn(tool_calls=["f"]), "tool call 1 is the string 'f'"),
        (turn(metadata=[1]), "'metadata' is a list"),
        (turn(created_at="yesterday"), "'created_at' is the string 'yesterday', wanted a time"),
        (turn(created_at=10**40), "'created_at'"),
        (turn(created_at=True), "'created_at' is the boolean"),
        (turn(id="x" * 256), "id takes 256 bytes or more, at most 255"),
        (turn(id="京" * 86), "at most 255"),
        (turn(id="a\x00b"), r"id holds a control character \(U\+0000\) at position 1"),
        (turn(id="\ud800"), "half of a surrogate pair"),
        (turn(id=" "), "an id must hold at least one visible character"),
        (turn(id=True), "id must be a string, got bool"),
        (turn(user="u"), "unknown key 'user', wanted some of content"),
        ({"type": "turn", "role": "user", "content": "x"}, "'session_id' is missing"),
        ({"type": "session", "session_id": None}, "'session_id' is missing"),
        ({"type": "question", "text": "?", "evidence": [3]}, "'evidence' holds the number 3"),
        ({"type": "question"}, "'text' is missing"),
        ({"type": "fact"}, "an object with 'type', wanted a pgmem record"),
        ({}, "an object with no keys"),
        ("null", "it is null"),
        ("12", "it is the number 12"),
        ('"text"', "it is the string 'text'"),
        ("{broken", "not JSON"),
        ('{"a": 1} {"b": 2}', "more after the end"),
        ('{"type": "turn", "metadata": {"v": NaN}}', "NaN is not JSON"),
        ('{"type": "turn", "metadata": {"v": -Infinity}}', "-Infinity is not JSON"),
        ('{"n": ' + "9" * 5000 + "}", "not JSON"),
        ('{"n": ' + "[" * 100_000 + "}", "nested too deeply"),
    ],
)
def test_a_bad_line_raises_with_its_place_or_is_reported_and_nothing_else_lost(
    write: Write, bad: Any, message: str
) -> None:
    path = write(lines(turn(id="1"), bad, turn(id="2")), "x.jsonl")
    with pytest.raises(InvalidArgument, match=f"x.jsonl, line 2: .*{message}"):
        list(read(path))
    found, problems = collect(path)
    assert [t.id for c in found for s in c.sessions for t in s.turns] == ["1", "2"]
    assert [problem.where for problem in problems] == ["line 2"]
    assert str(problems[0]).startswith(str(path))


def test_a_bad_byte_costs_its_line_only(write: Write) -> None:
    content = lines(turn(id="1")).encode() + b'{"type": "turn", "content": "\xff"}\n' + lines(turn(id="2")).encode()
    found, problems = collect(write(content, "x.jsonl"))
    assert len(found[0].sessions[0].turns) == 2
    assert "0xff" in problems[0].message
    assert problems[0].where == "line 2"


def test_duplicates_are_problems_that_name_the_first(write: Write) -> None:
    session = {"type": "session", "session_id": "s"}
    head = {"type": "conversation", "name": "n"}
    path = write(lines(head, session, turn(id="1", seq=1), turn(id="1"), turn(id="2", seq=1), session), "x.jsonl")
    found, problems = collect(path)
    assert [p.message for p in problems] == [
        "turn id '1' was already used at line 3",
        "seq 1 was already used at line 3",
        "session 's' was already described at line 2",
    ]
    assert [t.id for t in found[0].sessions[0].turns] == ["1"]


def test_evidence_that_is_no_turn_is_reported_and_the_question_kept(write: Write) -> None:
    path = write(lines(turn(id="1"), {"type": "question", "text": "?", "evidence": ["1", "7"]}), "x.jsonl")
    found, problems = collect(path)
    assert found[0].questions == (Question("?", ("1",)),)
    assert "'7'" in problems[0].message


def test_separators_that_are_no_newline_do_not_cut_a_line(write: Write) -> None:
    odd = "one\u2028two\u2029three\x85four\x0cfive"
    assert [t.content for t in turns_of(write(json.dumps(turn(content=odd), ensure_ascii=False), "x.jsonl"))] == [odd]


def test_byte_order_mark_and_windows_newlines(write: Write) -> None:
    content = b"\xef\xbb\xbf" + lines(turn(id="1"), turn(id="2")).replace("\n", "\r\n").encode()
    for name in ("x.jsonl", "x.json", "x.txt"):
        assert [t.id for t in turns_of(write(content, name))] == ["1", "2"]


# Files that are not conversations


@pytest.mark.parametrize("content", ["", " \n\t\n", b"\xef\xbb\xbf"])
def test_empty_files(write: Write, content: Any) -> None:
    assert list(read(write(content, "none.jsonl"))) == []
    with pytest.raises(InvalidArgument, match="file is empty"):
        list(read(write(content, "none.json")))


def test_empty_lists_hold_nothing(write: Write) -> None:
    assert list(read(write([]))) == []
    assert list(read(write([[], {"messages": []}]))) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<html></html>", "starts with b'<html></html>', wanted JSON"),
        ("[]".encode("utf-16"), "starts with b'.xff.xfe"),
        ('[{"role": "user", "content": "a"}', "element 1: the array is not closed"),
        ('[{"role": "user", "content": "a"},', "element 2: .*not JSON"),
        ('[{"role": "user", "content": "a"}}', "'}' at character 34, wanted , or ]"),
        ('[{"role": "user" "content": "a"}]', "element 1: not JSON .*character 18"),
        ("[", "element 1"),
        ("[1 2]", "element 1: '2' at character 4"),
        ('[[{"role": "user", "content": "a"}]]\n[]', "more after the end of the array; .*\\.jsonl"),
        ("[" * 100_000, "nested too deeply"),
        ("[" + "9" * 5000 + "]", "element 1"),
        (b'[{"role": "user", "content": "\xff"}]', "not UTF-8"),
        (b'{"messages": "\xff"}', "0xff at 14 is not UTF-8"),
        ('{"messages": [\n', "the object: not JSON"),
        ('{"messages": [],\n "n": NaN}', "NaN is not JSON"),
    ],
)
def test_what_ends_the_reading_raises_also_when_problems_are_collected(
    write: Write, content: Any, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        collect(write(content))


def test_no_such_file_and_a_directory_raise_at_the_call(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="does not exist"):
        read(tmp_path / "nothing.json")
    with pytest.raises(InvalidArgument, match="is a directory"):
        read(str(tmp_path))


def test_broken_first_line_of_a_json_file_of_lines(write: Write) -> None:
    found, problems = collect(write('{"broken\n' + lines(turn(id="1"), turn(id="2"))))
    assert len(found[0].sessions[0].turns) == 2
    assert [p.where for p in problems] == ["line 1"]


def test_an_array_is_read_in_pieces_whatever_is_cut(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    chat: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": 'quote " bracket ] comma , \\ 東京',
            "metadata": {"n": 123456789, "f": -1.5e3},
        },
        {"role": "assistant", "content": "x" * 300},
        {"role": "user", "content": [{"type": "text", "text": "[[{"}]},
    ]
    path = write(json.dumps(chat, indent=1, ensure_ascii=False))
    whole = list(read(path))
    assert [t.content for t in whole[0].sessions[0].turns] == [message["content"] for message in chat]
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr(sources, "_CHUNK", size)
        assert list(read(path)) == whole
    numbers = write("[12, 345 ,6.75,-1e5]", "numbers.json")
    monkeypatch.setattr(sources, "_CHUNK", 1)
    _, problems = collect(numbers)
    assert [p.message.split(",")[0].split()[-1] for p in problems] == ["12", "345", "6.75", "-100000.0"]


def test_zip_of_an_export_and_zip_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("user.json", "{}")
        archive.writestr("deep/conversations.json", json.dumps([chatgpt([said("1", "user", "hi")])]))
    assert [t.content for t in turns_of(path)] == ["hi"]
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "x")
    with pytest.raises(InvalidArgument, match=r"without a conversations\.json"):
        read(tmp_path / "other.zip")


# Message lists

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bath"}'}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Rain?"}, {"type": "image_url", "image_url": {"url": "u"}}],
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": ""},
    {"role": "assistant", "content": "No.", "name": "Sky", "weight": 1, "id": "m5", "created_at": 1770141900},
]


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (CHAT, "a.json"),
        ([CHAT], "b.json"),
        ({"messages": CHAT}, "c.json"),
        ([{"messages": CHAT, "tools": []}], "d.json"),
        (lines({"messages": CHAT}), "e.jsonl"),
        (lines({"messages": CHAT}), "f.json"),
        (lines(CHAT), "g.jsonl"),
        (lines(*CHAT), "h.jsonl"),
        (json.dumps(CHAT, indent=4), "i.json"),
        ('{"messages": [\n' + ",\n".join(map(json.dumps, CHAT)) + "\n]}", "j.json"),
        ('{"messages": [\n{"role": "user", "content": "x"}\n]}', "k.json"),
    ],
)
def test_every_shape_of_a_message_list_is_the_same_conversation(write: Write, shape: Any, name: str) -> None:
    [found] = read(write(shape, name))
    [session] = found.sessions
    if name == "k.json":  # the second line is an object by itself, and still no line of its own
        assert [t.content for t in session.turns] == ["x"]
        return
    assert [t.role for t in session.turns] == ["system", "user", "assistant", "tool", "assistant"]
    assert session.turns[1].content == CHAT[1]["content"]
    assert (session.turns[2].content, session.turns[2].tool_calls) == ("", (CALL,))
    assert (session.turns[3].tool_call_id, session.turns[3].name) == ("call_1", "weather")
    last = session.turns[4]
    assert (last.id, last.name, last.metadata) == ("m5", "Sky", {"weight": 1})
    assert last.created_at == datetime(2026, 2, 3, 18, 5, tzinfo=UTC)
    assert session.session_id == next(read(write(CHAT, "other-name.json"))).sessions[0].session_id


def test_ids_of_an_object_are_kept_and_numbers_become_strings(write: Write) -> None:
    chat = {
        "id": 7,
        "user_id": "ada",
        "title": "T",
        "created_at": "2026-02-03T19:05:00+01:00",
        "messages": CHAT,
    }
    [found] = read(write(chat))
    [session] = found.sessions
    assert (found.name, found.user_id, session.session_id, session.user_id) == ("T", "ada", "7", "ada")
    assert session.created_at == datetime(2026, 2, 3, 18, 5, tzinfo=UTC)


def test_derived_ids_are_stable_distinct_and_free_of_the_file(write: Write) -> None:
    hi = [{"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}]
    other = [{"role": "user", "content": "hi"}, {"role": "user", "content": "ho"}]
    first = list(read(write([hi, other, hi], "one.json")))
    again = list(read(write(lines(hi, other, hi), "two.jsonl")))
    assert first == again
    assert len({c.sessions[0].session_id for c in first}) == 3, "the same chat twice is two sessions"
    assert len({t.id for c in first for t in c.sessions[0].turns}) == 6
    assert first[0].sessions[0].session_id == "6ee1fcca-3874-5859-9011-32a3782f9e66"


def test_a_session_in_two_objects_continues(write: Write) -> None:
    part = {"session_id": "s", "messages": [{"role": "user", "content": "hi"}]}
    path = write([part, part])
    assert [c.sessions[0].session_id for c in read(path)] == ["s", "s"]
    assert len({t.id for t in turns_of(path)}) == 2


def test_mending_a_message_leaves_the_ids_after_it(write: Write) -> None:
    good = [{"role": "user", "content": c} for c in "abc"]
    before, problems = collect(write({"id": "s", "messages": [good[0], {"role": "user"}, good[2]]}))
    after = list(read(write({"id": "s", "messages": good})))
    assert len(problems) == 1
    assert before[0].sessions[0].turns[1].id == after[0].sessions[0].turns[2].id


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"role": "usre", "content": "x"}, "'role' is the string 'usre', wanted one of user"),
        ({"content": "x"}, "'role' is null"),
        ({"role": {}, "content": "x"}, "'role' is an object"),
        ({"role": "user", "content": None}, "'content' is null"),
        ({"role": "user", "content": 5}, "'content' is the number 5"),
        ({"role": "user", "content": [1]}, "content block 1 is the number 1"),
        ({"role": "user", "content": "x", "timestamp": -(10**30)}, "'timestamp'"),
        ({"role": "user", "content": "x", "name": []}, "'name' is a list"),
        (None, "null"),
        ("hi", "the string 'hi'"),
    ],
)
def test_a_bad_message_is_named_and_the_others_are_kept(write: Write, bad: Any, message: str) -> None:
    path = write([{"messages": [CHAT[0], bad, CHAT[4]]}])
    with pytest.raises(InvalidArgument, match=f"element 1, message 2: .*{message}"):
        list(read(path))
    found, problems = collect(path)
    assert [t.role for t in found[0].sessions[0].turns] == ["system", "assistant"]
    assert len(problems) == 1


def says(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def sessions_of(found: list[Conversation]) -> list[tuple[str | None, str, list[Any]]]:
    return [(one.user_id, one.session_id, [t.content for t in one.turns]) for c in found for one in c.sessions]


TWO_USERS = [
    says("a1", session_id="s1", user_id="ada", mood="glad"),
    says("b1", session_id="s2", user_id="bo"),
    {"role": "assistant", "content": "a2", "session_id": "s1"},  # whose it is, its session says
    says("b2", session_id="s2", user_id="bo"),
]


@pytest.mark.parametrize("key", ["session_id", "thread_id", "conversation_id"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "list.json"])
def test_messages_go_to_the_sessions_and_users_they_name(write: Write, key: str, name: str) -> None:
    chat = [{key if k == "session_id" else k: v for k, v in one.items()} for one in TWO_USERS]
    found = list(read(write(chat if name == "list.json" else lines(*chat), name)))
    assert sessions_of(found) == [("ada", "s1", ["a1", "a2"]), ("bo", "s2", ["b1", "b2"])]
    assert [c.user_id for c in found] == ["ada", "bo"]
    assert found[0].sessions[0].turns[0].metadata == {"mood": "glad"}
    [in_object] = read(write({"id": "s1", "user_id": "ada", "messages": [says("a1"), {**CHAT[4], "id": None}]}, "o"))
    assert in_object.sessions[0].turns[0].id == found[0].sessions[0].turns[0].id, (
        "a line is the message it is in a list"
    )


def test_a_list_of_lists_and_an_object_that_says_less_are_grouped_too(write: Write) -> None:
    wanted = [("ada", "s1", ["a1", "a2"]), ("bo", "s2", ["b1", "b2"])]
    assert sessions_of(list(read(write([TWO_USERS], "a.json")))) == wanted
    assert sessions_of(list(read(write({"messages": TWO_USERS, "title": "T"}, "b.json")))) == wanted
    # What holds the messages has the first word.
    [whole] = read(write({"session_id": "all", "user_id": "eve", "messages": TWO_USERS}, "c.json"))
    assert sessions_of([whole]) == [("eve", "all", ["a1", "b1", "a2", "b2"])]
    assert whole.sessions[0].turns[0].metadata == {"session_id": "s1", "user_id": "ada", "mood": "glad"}


def test_messages_of_users_without_sessions_are_one_session_a_user(write: Write) -> None:
    found = list(
        read(write(lines(says("hi", user_id="ada"), says("hi", user_id="bo"), says("ho", user_id="ada")), "x.jsonl"))
    )
    assert [(user, content) for user, _, content in sessions_of(found)] == [("ada", ["hi", "ho"]), ("bo", ["hi"])]
    alone = list(read(write(lines(says("hi", user_id="bo")), "y.jsonl")))
    other = list(read(write(lines(says("hi", user_id="eve")), "z.jsonl")))
    assert alone[0].sessions[0].session_id == found[1].sessions[0].session_id
    assert alone[0].sessions[0].session_id != other[0].sessions[0].session_id, "two people say hi"


def test_a_message_that_says_neither_joins_the_only_session_there_is(write: Write) -> None:
    path = write(lines(says("be brief"), says("a", session_id="s1", user_id="ada"), says("b")), "x.jsonl")
    assert sessions_of(list(read(path))) == [("ada", "s1", ["be brief", "a", "b"])]
    several = write(lines(*TWO_USERS, says("whose?")), "y.jsonl")
    with pytest.raises(InvalidArgument, match="line 5: it says neither 'session_id' nor 'user_id'"):
        collect(several)


def test_a_session_has_one_user(write: Write) -> None:
    path = write(lines(*TWO_USERS, says("mine", session_id="s2", user_id="ada")), "x.jsonl")
    with pytest.raises(InvalidArgument, match="line 5: it is of user 'ada', and session 's2' is of 'bo' by line 2"):
        collect(path)


def test_the_callers_user_fills_in_and_contradicts_nobody(write: Write) -> None:
    path = write(lines(*TWO_USERS), "x.jsonl")
    with pytest.raises(InvalidArgument, match=r"x\.jsonl, line 1: it is of user 'ada', and 'boss' was given"):
        list(read(path, user_id="boss", on_problem=lambda problem: None))
    objects = write([{"user_id": "ada", "messages": [says("a")]}], "o.json")
    with pytest.raises(InvalidArgument, match="element 1: it is of user 'ada'"):
        list(read(objects, user_id="boss"))
    only = write(lines(*TWO_USERS[:1], *TWO_USERS[2:3]), "y.jsonl")
    assert list(read(only, user_id="ada")) == list(read(only))
    silent = write(lines(says("a", session_id="s1"), says("b", session_id="s2")), "z.jsonl")
    assert sessions_of(list(read(silent, user_id="boss"))) == [(None, "s1", ["a"]), (None, "s2", ["b"])]


def test_a_line_that_cannot_be_read_leaves_the_ids_of_its_session_alone(write: Write) -> None:
    bad = [{**TWO_USERS[0], "role": "usre"}, *TWO_USERS[1:], says("x", session_id=[1]), says("y", user_id="a\x00")]
    found, problems = collect(write(lines(*bad), "x.jsonl"))
    whole = list(read(write(lines(*TWO_USERS), "y.jsonl")))
    assert [p.where for p in problems] == ["line 5", "line 6", "line 1"]
    by_content = {t.content: t.id for c in whole for s in c.sessions for t in s.turns}
    assert {t.content: t.id for c in found for s in c.sessions for t in s.turns} == {
        content: turn_id for content, turn_id in by_content.items() if content != "a1"
    }


# Into a store


async def test_lines_of_two_users_are_two_memories(memory: Face, write: Write) -> None:
    path = write(lines(*TWO_USERS), "x.jsonl")
    with pytest.raises(InvalidArgument, match="line 1"):
        await memory.import_(path, user_id="boss")
    assert await memory.session.list() == []
    assert (await memory.import_(path)).new == {"session": 2, "turn": 4}
    for user_id, session_id, content in (("ada", "s1", ["a1", "a2"]), ("bo", "s2", ["b1", "b2"])):
        [info] = await memory.session.list(user_id=user_id)
        assert info.session_id == session_id
        session = await memory.session.get(session_id, user_id=user_id)
        assert [t.content for t in await session.turns()] == content
    assert (await memory.import_(path)).known == {"session": 2, "turn": 4}


@pytest.mark.parametrize("own", [None, "0198c1de-0000-7000-8000-00000000000", "m"])
def test_a_file_may_be_stored_again_under_a_prefix(dsn: str, write: Write, own: str | None) -> None:
    chat = [says(text, session_id="s1", **({} if own is None else {"id": f"{own}{n}"})) for n, text in enumerate("abc")]
    path = str(write(lines(*chat), "x.jsonl"))
    for prefix in ((), ("--session-prefix", "z/"), ("--session-prefix", "y/"), ("--session-prefix", "z/")):
        assert cli.run(["import", path, "--user-id", "ada", *prefix, "--dsn", dsn]) == 0
    with PgMem(dsn) as mem:
        for session_id in ("s1", "z/s1", "y/s1"):
            assert [t.content for t in mem.session.get(session_id, user_id="ada").turns()] == ["a", "b", "c"]


def test_the_command_refuses_another_user_and_stores_nothing(
    dsn: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(lines(*TWO_USERS), "x.jsonl"))
    assert cli.run(["import", path, "--user-id", "boss", "--dsn", dsn]) == 2
    assert "line 1: it is of user 'ada'" in " ".join(capsys.readouterr().err.split())
    assert cli.run(["import", path, "--dsn", dsn, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sessions_new"] == 2


def test_older_and_other_spellings(write: Write) -> None:
    chat = [
        {"role": "human", "content": "q", "timestamp": 1770141900000},
        {"role": "ai", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "r"},
        {"role": "assistant", "content": None, "refusal": "I'd rather not."},
        {"role": "user", "content": ["one", {"type": "text", "text": "two"}]},
    ]
    found = turns_of(write(chat))
    assert [t.role for t in found] == ["user", "assistant", "tool", "assistant", "user"]
    assert found[0].created_at == datetime(2026, 2, 3, 18, 5, tzinfo=UTC), "milliseconds"
    assert found[1].tool_calls[0]["function"]["name"] == "f"
    assert (found[3].content, found[3].metadata["refusal"]) == ("I'd rather not.", "I'd rather not.")
    assert found[4].content == [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


def test_naive_times_are_utc_and_offsets_are_converted(write: Write) -> None:
    times = ["2026-03-29T02:30:00", "2026-03-29T02:30:00Z", "2026-03-29T08:00:00+05:30"]
    found = turns_of(write([{"role": "user", "content": "x", "created_at": t} for t in times]))
    assert {t.created_at for t in found} == {datetime(2026, 3, 29, 2, 30, tzinfo=UTC)}


@pytest.mark.parametrize("where", ["content", "metadata", "tool_calls", "function_call", "extra"])
def test_what_is_nested_too_deeply_to_be_written_again_is_refused(write: Write, where: str) -> None:
    def message(levels: int) -> str:
        deep = "[" * levels + "]" * levels
        values = {
            "content": f'[{{"type": "x", "v": {deep}}}]',
            "tool_calls": f'[{{"v": {deep}}}]',
            "extra": deep,
        }
        value = values.get(where, f'{{"v": {deep}}}')
        rest = "" if where == "content" else ', "content": "x"'
        return f'{{"role": "user"{rest}, "{where}": {value}}}'

    for levels in (150, 500):
        found, problems = collect(write(f"[{message(levels)}, {message(5)}]"))
        assert [len(c.sessions[0].turns) for c in found] == [1]
        assert [(p.where, p.message) for p in problems] == [("element 1", "nested more than 100 levels deep")]


# ChatGPT


def said(node: str, role: str, *parts: Any, **more: Any) -> dict[str, Any]:
    body = {"content_type": "text", "parts": list(parts)}
    return {"id": node, "author": {"role": role}, "create_time": 1770141900.5, "content": body, **more}


def chatgpt(messages: list[dict[str, Any] | None], **more: Any) -> dict[str, Any]:
    """A chat that is one branch, root first."""
    mapping: dict[str, Any] = {"root": {"id": "root", "message": None, "parent": None, "children": []}}
    parent = "root"
    for number, message in enumerate(messages):
        node = f"n{number}"
        mapping[parent]["children"].append(node)
        mapping[node] = {"id": node, "message": message, "parent": parent, "children": []}
        parent = node
    chat = {"title": "T", "create_time": 1770141900.0, "mapping": mapping, "current_node": parent}
    return {**chat, "conversation_id": "conv", **more}


def test_chatgpt_reads_the_shown_branch_oldest_first(write: Write) -> None:
    chat = chatgpt([said("a", "user", "first"), said("b", "assistant", "old answer")])
    chat["mapping"]["n0"]["children"].append("alt")
    retry = said("c", "assistant", "new answer", metadata={"model_slug": "m-1"})
    chat["mapping"]["alt"] = {"message": retry, "parent": "n0", "children": []}
    chat["current_node"] = "alt"
    [found] = read(write([chat]))
    [session] = found.sessions
    assert (found.name, session.session_id, session.title) == ("T", "conv", "T")
    assert session.created_at == datetime(2026, 2, 3, 18, 5, tzinfo=UTC)
    assert [(t.id, t.role, t.content) for t in session.turns] == [
        ("a", "user", "first"),
        ("c", "assistant", "new answer"),
    ]
    assert session.turns[0].created_at == datetime(2026, 2, 3, 18, 5, 0, 500_000, tzinfo=UTC)
    assert session.turns[1].metadata == {"model": "m-1"}


def test_chatgpt_leaves_out_what_was_not_said(write: Write) -> None:
    hidden = {"metadata": {"is_visually_hidden_from_conversation": True}}
    chat = chatgpt(
        [
            said("1", "system", ""),
            said("2", "system", "hidden rules", **hidden),
            {**said("3", "user"), "content": {"content_type": "user_editable_context", "user_profile": "p"}},
            said("4", "user", "  ", "\n"),
            {**said("5", "assistant"), "content": {"content_type": "thoughts", "thoughts": []}},
            {**said("6", "assistant"), "content": {"content_type": "execution_output", "text": " "}},
            None,
            said("7", "user", "kept"),
            said("8", "system", "kept rules"),
        ]
    )
    assert [t.content for t in turns_of(write([chat]))] == ["kept", "kept rules"]
    assert list(read(write([chatgpt([said("1", "user", "")])]))) == []


def test_chatgpt_kinds_of_content(write: Write) -> None:
    image = {
        "content_type": "image_asset_pointer",
        "asset_pointer": "file-service://file-1",
        "metadata": {"dalle": {"prompt": "a fox"}},
    }
    audio = {"content_type": "audio_asset_pointer", "asset_pointer": "sediment://a"}
    transcript = {"content_type": "audio_transcription", "text": "spoken"}
    code = {"content_type": "code", "language": "python", "text": "1 + 1"}
    output = {"content_type": "execution_output", "text": "2"}
    chat = chatgpt(
        [
            {
                **said("1", "user"),
                "content": {"content_type": "multimodal_text", "parts": [image, "what is it?"]},
            },
            {**said("2", "assistant"), "content": code, "recipient": "python"},
            {**said("3", "tool"), "content": output, "author": {"role": "tool", "name": "python"}},
            {
                **said("4", "user"),
                "content": {"content_type": "multimodal_text", "parts": [audio, transcript]},
            },
            {**said("5", "tool"), "content": {"content_type": "tether_browsing_display", "result": "page"}},
            said("6", "assistant", "one", "two", recipient="all"),
        ]
    )
    found = turns_of(write([chat]))
    assert found[0].content == [
        {"type": "image", "url": "file-service://file-1", "alt": "a fox"},
        {"type": "text", "text": "what is it?"},
    ]
    assert (found[1].content, found[1].metadata) == (
        "1 + 1",
        {"content_type": "code", "language": "python", "recipient": "python"},
    )
    assert (found[2].role, found[2].name, found[2].content) == ("tool", "python", "2")
    assert found[3].content == [{"type": "audio", "url": "sediment://a"}, {"type": "text", "text": "spoken"}]
    assert found[4].content == "page"
    assert (found[5].content, found[5].metadata) == ("one\ntwo", {})


def test_chatgpt_without_a_current_node_takes_the_newest_leaf(write: Write) -> None:
    chat = chatgpt([said("a", "user", "q"), {**said("b", "assistant", "late"), "create_time": 1770149999}])
    old = said("c", "assistant", "early")
    chat["mapping"]["x"] = {"message": old, "parent": "n0", "children": []}
    for current in (None, "gone"):
        chat["current_node"] = current
        assert [t.content for t in turns_of(write([chat]))] == ["q", "late"]


def test_chatgpt_damage_is_reported_and_the_rest_read(write: Write) -> None:
    loop = chatgpt([said("a", "user", "q"), said("b", "assistant", "r")])
    loop["mapping"]["root"]["parent"] = "n1"
    orphan = chatgpt([said("a", "user", "q"), said("b", "assistant", "r")])
    orphan["mapping"]["n1"]["parent"] = "gone"
    odd = chatgpt(
        [
            said("a", "wizard", "q"),
            said("b", "user", 7),
            said("c", "user", "q", create_time="soon"),
            {**said("d", "user"), "content": {"content_type": "hologram"}},
            {**said("e", "user"), "content": "text"},
            said("f", "user", "kept", create_time=None),
            said("f", "user", "twice"),
        ]
    )
    found, problems = collect(write([loop, orphan, odd, {"mapping": []}, {"mapping": {}, "title": 3}]))
    assert [[t.content for t in c.sessions[0].turns] for c in found] == [["q", "r"], ["r"], ["kept"]]
    assert [(p.where.split(", ")[0], p.message.split(",")[0].split(";")[0]) for p in problems] == [
        ("element 1", "it is its own ancestor"),
        ("element 2", "it is no node of the mapping"),
        ("element 3", "the author's role is the string 'wizard'"),
        ("element 3", "a part is the number 7"),
        ("element 3", "'create_time' is the string 'soon'"),
        ("element 3", "content type 'hologram' holds no text"),
        ("element 3", "'content' is the string 'text'"),
        ("element 3", "message id 'f' is used twice in this chat"),
        ("element 4", "'mapping' is a list []"),
        ("element 5", "'title' is the number 3"),
    ]
    assert found[2].sessions[0].turns[0].created_at is None


def test_chatgpt_long_branch_is_no_recursion(write: Write) -> None:
    chat = chatgpt([said(f"m{n}", "user", f"text {n}") for n in range(5_000)])
    assert len(turns_of(write([chat]))) == 5_000


# LoCoMo


def sample(**more: Any) -> dict[str, Any]:
    body = {
        "speaker_a": "Ines",
        "speaker_b": "Otto",
        "session_2_date_time": "12:09 am on 13 September, 2023",
        "session_2": [{"speaker": "Otto", "dia_id": "D2:1", "text": "Back again."}],
        "session_10_date_time": "1:00 pm on 1 October, 2023",
        "session_10": [{"speaker": "Ines", "dia_id": "D10:1", "text": "Late."}],
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Ines", "dia_id": "D1:1", "text": "Hello."},
            {
                "speaker": "Otto",
                "dia_id": "D1:2",
                "text": "Look.",
                "blip_caption": "a photo of a kite",
                "img_url": ["https://example.org/kite.jpg"],
            },
            {"speaker": "Ines", "text": "Nice.", "blip_caption": "a photo of rain"},
        ],
        "session_11_date_time": "1:00 pm on 1 November, 2023",
    }
    asked = [
        {
            "question": "What flew?",
            "answer": "a kite",
            "evidence": ["D1:2; D2:1,D1:1 D9:9", "D:1:1"],
            "category": 4,
        },
        {"question": "How many?", "answer": 1, "evidence": ["D1:2", "D1:2"], "category": 2},
        {"question": "Who lied?", "adversarial_answer": "Otto", "evidence": [], "category": 5},
    ]
    return {"sample_id": "conv-1", "conversation": body, "qa": asked, **more}


def test_locomo_sample(write: Write) -> None:
    [found] = read(write([sample()]))
    assert (found.name, found.user_id) == ("conv-1", "conv-1")
    assert [s.session_id for s in found.sessions] == [f"conv-1/session_{n}" for n in (1, 2, 10)]
    first = found.sessions[0]
    start = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
    assert first.created_at == start
    assert [(t.id, t.role, t.name, t.created_at) for t in first.turns] == [
        ("conv-1/D1:1", "user", "Ines", start),
        ("conv-1/D1:2", "assistant", "Otto", start + timedelta(seconds=1)),
        ("conv-1/D1:3", "user", "Ines", start + timedelta(seconds=2)),
    ]
    assert first.turns[0].content == "Hello."
    assert first.turns[1].content == [
        {"type": "text", "text": "Look."},
        {"type": "image", "alt": "a photo of a kite", "url": "https://example.org/kite.jpg"},
    ]
    assert first.turns[2].content == [
        {"type": "text", "text": "Nice."},
        {"type": "image", "alt": "a photo of rain"},
    ]
    assert found.sessions[1].created_at == datetime(2023, 9, 13, 0, 9, tzinfo=UTC)
    assert found.questions == (
        Question("What flew?", ("conv-1/D1:2", "conv-1/D2:1", "conv-1/D1:1"), "4", "a kite"),
        Question("How many?", ("conv-1/D1:2",), "2", "1"),
        Question("Who lied?", (), "5", None),
    )


def test_locomo_sample_alone_in_its_file(write: Write) -> None:
    assert list(read(write(sample()))) == list(read(write([sample()], "list.json")))


@pytest.mark.parametrize(
    ("text", "hour"),
    [("12:00 am on 1 May, 2023", 0), ("12:30 PM on 1 May 2023", 12), ("11:59 pm on 1 may, 2023", 23)],
)
def test_locomo_times(text: str, hour: int) -> None:
    assert parse_time(text).replace(minute=0) == datetime(2023, 5, 1, hour, tzinfo=timezone.utc)  # noqa: UP017


def test_locomo_damage_is_reported_and_the_rest_read(write: Write) -> None:
    bad = sample(qa=[{"question": 3}, "x", {"question": "?", "evidence": "D1:1"}, {"question": "ok"}])
    body = bad["conversation"]
    body["session_2_date_time"] = "31 February, sometime"
    body["session_10_date_time"] = "1:00 pm on 31 February, 2023"
    body["session_1"] += [
        {"speaker": "Nobody", "text": "x"},
        {"speaker": "Ines", "text": None},
        "text",
        {"speaker": "Ines", "dia_id": "D1:1", "text": "again"},
    ]
    found, problems = collect(write([bad]))
    assert [len(s.turns) for s in found[0].sessions] == [3, 1, 1]
    assert found[0].sessions[1].turns[0].created_at is None
    assert [q.text for q in found[0].questions] == ["ok"]
    assert [p.where.removeprefix("element 1, ") for p in problems] == [
        *(f"session_1, turn {n}" for n in (4, 5, 6, 7)),
        "session_2",
        "session_10",
        *(f"question {n}" for n in (1, 2, 3)),
    ]
    with pytest.raises(InvalidArgument, match="session_1, turn 4: 'speaker' is the string 'Nobody'"):
        list(read(write([bad])))


@pytest.mark.skipif(not LOCOMO.exists(), reason="the LoCoMo data set is not on this machine")
def test_locomo_of_the_authors() -> None:
    found = list(read(LOCOMO))
    assert [(c.name, len(c.sessions), sum(len(s.turns) for s in c.sessions)) for c in found] == [
        ("conv-26", 19, 419),
        ("conv-30", 19, 369),
        ("conv-41", 32, 663),
        ("conv-43", 29, 680),
        ("conv-48", 30, 681),
    ]
    assert sum(bool(q.evidence) and q.category != "5" for c in found for q in c.questions) == 752


# The demo


def test_demo_is_a_conversation_worth_searching() -> None:
    found = demo.load()
    turns = {t.id: t for s in found.sessions for t in s.turns}
    assert (found.user_id, len(found.sessions), len(found.questions)) == ("ada", 3, 8)
    assert all(question.evidence and question.answer for question in found.questions)
    assert {turn_id for q in found.questions for turn_id in q.evidence} <= set(turns)
    times = [t.created_at for t in turns.values() if t.created_at]
    assert len(times) == len(turns)
    assert times == sorted(times)
    starts = [s.created_at for s in found.sessions if s.created_at]
    assert all(later - earlier > timedelta(days=13) for earlier, later in pairwise(starts))


def test_demo_tool_results_answer_the_call_before_them() -> None:
    turns = [t for s in demo.load().sessions for t in s.turns]
    results = [number for number, t in enumerate(turns) if t.role == "tool"]
    assert len(results) == 5
    for number in results:
        assert [call["id"] for call in turns[number - 1].tool_calls] == [turns[number].tool_call_id]
        json.loads(str(turns[number].content))
