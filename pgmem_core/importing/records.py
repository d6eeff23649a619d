"""pgmem's own format, read and written: JSON Lines of conversations, sessions, turns and questions.

The package's docstring describes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pgmem_core.errors import InvalidArgument
from pgmem_core.importing import fields
from pgmem_core.importing.fields import FieldError, Ids, Report
from pgmem_core.importing.types import Conversation, ImportedSession, ImportedTurn, Question

__all__ = ["RECORD_TYPES", "Assembler", "dump_jsonl"]

_TURN_KEYS = (
    *("type", "session_id", "id", "seq", "role", "content", "name"),
    *("tool_calls", "tool_call_id", "created_at", "metadata"),
)
_KEYS = {
    "conversation": ("type", "name", "user_id", "sessions", "questions"),
    "session": ("type", "session_id", "user_id", "title", "created_at", "turns"),
    "turn": _TURN_KEYS,
    "question": ("type", "text", "evidence", "category", "answer"),
}
RECORD_TYPES = frozenset(_KEYS)

_MAX_SEQ = 2**63 - 1


@dataclass(slots=True)
class _OpenSession:
    session_id: str
    declared: str | None = None  # where its session record was
    user_id: str | None = None
    title: str | None = None
    created_at: datetime | None = None
    turns: list[ImportedTurn] = field(default_factory=list)
    turn_places: dict[str, str] = field(default_factory=dict)
    seq_places: dict[int, str] = field(default_factory=dict)

    def closed(self) -> ImportedSession:
        turns = self.turns
        if all(turn.seq is not None for turn in turns):
            turns = sorted(turns, key=lambda turn: turn.seq or 0)
        created_at = self.created_at or (turns[0].created_at if turns and not self.declared else None)
        return ImportedSession(self.session_id, self.user_id, self.title, created_at, tuple(turns))


class Assembler:
    """Puts records together. Holds one conversation, or one session where the file has no conversations."""

    def __init__(self, report: Report, ids: Ids) -> None:
        self._report = report
        self._ids = ids
        self._start(None, None, headed=False)

    def _start(self, name: str | None, user_id: str | None, *, headed: bool) -> None:
        self._name, self._user_id, self._headed = name, user_id, headed
        self._sessions: dict[str, _OpenSession] = {}
        self._questions: list[tuple[str, Question]] = []

    def feed(self, where: str, record: dict[str, Any]) -> Iterator[Conversation]:
        """Take one record; yield the conversation that it ends, if any."""
        try:
            kind: str = record["type"]
            fields.known_keys(record, _KEYS[kind])
            match kind:
                case "conversation":
                    yield from self._conversation(where, record)
                case "session":
                    yield from self._session(where, record)
                case "turn":
                    yield from self._turn(where, record)
                case _:
                    self._question(where, record)
        except FieldError as fault:
            self._report.problem(where, fault)

    def finish(self) -> Iterator[Conversation]:
        """Yield what is still open."""
        if not self._headed and not self._sessions:
            return
        sessions = tuple(session.closed() for session in self._sessions.values())
        turn_ids = {turn.id for session in sessions for turn in session.turns}
        questions: list[Question] = []
        for where, question in self._questions:
            known = tuple(turn_id for turn_id in question.evidence if turn_id in turn_ids)
            for turn_id in question.evidence:
                if turn_id not in turn_ids:
                    self._report.problem(where, f"evidence {turn_id!r} is no turn of this conversation")
            questions.append(replace(question, evidence=known))
        user_id = self._user_id if self._headed else sessions[0].user_id
        name = self._name or (sessions[0].session_id if sessions else user_id) or ""
        found = Conversation(name, user_id, sessions, tuple(questions))
        self._start(None, None, headed=False)
        yield found

    def _conversation(self, where: str, record: dict[str, Any]) -> Iterator[Conversation]:
        name, user_id = fields.text(record, "name"), fields.identifier(record, "user_id")
        sessions, questions = fields.items(record, "sessions"), fields.items(record, "questions")
        yield from self.finish()
        self._start(name, user_id, headed=True)
        yield from self._nested(where, "session", sessions)
        yield from self._nested(where, "question", questions)

    def _session(self, where: str, record: dict[str, Any]) -> Iterator[Conversation]:
        session_id = _required(fields.identifier(record, "session_id"), "session_id")
        user_id, title = fields.identifier(record, "user_id"), fields.text(record, "title")
        created_at, turns = fields.instant(record, "created_at"), fields.items(record, "turns")
        if not self._headed:
            yield from self.finish()
        session = self._sessions.setdefault(session_id, _OpenSession(session_id))
        if session.declared:
            raise FieldError(f"session {session_id!r} was already described at {session.declared}")
        session.declared = where
        session.user_id, session.title, session.created_at = user_id, title, created_at
        yield from self._nested(where, "turn", turns, session_id=session_id)

    def _nested(self, where: str, kind: str, children: list[Any], **given: str) -> Iterator[Conversation]:
        for number, child in enumerate(children, start=1):
            place = f"{where}, {kind} {number}"
            implied = {"type": kind, **given}
            if isinstance(child, dict) and all(child.get(key, v) == v for key, v in implied.items()):
                yield from self.feed(place, {**implied, **child})
            else:
                self._report.problem(place, f"it is {fields.describe(child)}, wanted {implied!r} and more")

    def _turn(self, where: str, record: dict[str, Any]) -> Iterator[Conversation]:
        session_id = _required(fields.identifier(record, "session_id"), "session_id")
        if not self._headed and session_id not in self._sessions:
            yield from self.finish()
        [position] = self._ids.positions(session_id)  # taken also if the turn is refused: see messages.py
        turn = _turn_of(record)
        turn = turn if turn.id else replace(turn, id=self._ids.turn(session_id, position, turn))
        session = self._sessions.setdefault(session_id, _OpenSession(session_id))
        if first := session.turn_places.get(turn.id):
            raise FieldError(f"turn id {turn.id!r} was already used at {first}")
        if turn.seq is not None and (first := session.seq_places.get(turn.seq)):
            raise FieldError(f"seq {turn.seq} was already used at {first}")
        session.turn_places[turn.id] = where
        if turn.seq is not None:
            session.seq_places[turn.seq] = where
        session.turns.append(turn)

    def _question(self, where: str, record: dict[str, Any]) -> None:
        if not self._headed and not self._sessions:
            raise FieldError("a question needs a conversation, session or turn before it")
        evidence = fields.items(record, "evidence")
        for item in evidence:
            if not isinstance(item, str):
                raise FieldError(f"'evidence' holds {fields.describe(item)}, wanted ids of turns")
        asked = _required(fields.text(record, "text"), "text")
        category, answer = fields.text(record, "category"), fields.text(record, "answer")
        self._questions.append((where, Question(asked, tuple(evidence), category, answer)))


def _required(value: str | None, key: str) -> str:
    if value is None:
        raise FieldError(f"{key!r} is missing")
    return value


def _turn_of(record: dict[str, Any]) -> ImportedTurn:
    seq = record.get("seq")
    if seq is not None and (not isinstance(seq, int) or isinstance(seq, bool) or not 0 <= seq <= _MAX_SEQ):
        raise FieldError(f"'seq' is {fields.describe(seq)}, wanted an integer from 0 to {_MAX_SEQ}")
    role = fields.text(record, "role")
    if not role:
        raise FieldError(f"'role' is {fields.describe(role)}, wanted user, assistant, system, developer or tool")
    calls = fields.tool_calls(record)
    return ImportedTurn(
        id=fields.identifier(record, "id") or "",
        role=role,
        content=fields.content(record, may_be_empty=bool(calls)),
        name=fields.text(record, "name"),
        tool_calls=calls,
        tool_call_id=fields.text(record, "tool_call_id"),
        created_at=fields.instant(record, "created_at"),
        metadata=fields.shallow(fields.mapping(record, "metadata")),
        seq=seq,
    )


def dump_jsonl(conversations: Iterable[Conversation]) -> Iterator[str]:
    """Yield the lines of the format, each with its newline: `file.writelines(dump_jsonl(found))`.

    What `read` gives for them equals what went in. The text is always valid UTF-8, also where a string holds
    a lone surrogate. Raises: InvalidArgument, when metadata or a block holds what JSON cannot.
    """
    for conversation in conversations:
        yield _line("conversation", name=conversation.name, user_id=conversation.user_id)
        for session in conversation.sessions:
            yield _line(
                "session",
                session_id=session.session_id,
                user_id=session.user_id,
                title=session.title,
                created_at=_iso(session.created_at),
            )
            for turn in session.turns:
                yield _line(
                    "turn",
                    session_id=session.session_id,
                    id=turn.id,
                    seq=turn.seq,
                    role=turn.role,
                    content=turn.content,
                    name=turn.name,
                    tool_calls=list(turn.tool_calls) or None,
                    tool_call_id=turn.tool_call_id,
                    created_at=_iso(turn.created_at),
                    metadata=turn.metadata or None,
                )
        for question in conversation.questions:
            yield _line(
                "question",
                text=question.text,
                evidence=list(question.evidence),
                category=question.category,
                answer=question.answer,
            )


def _iso(when: datetime | None) -> str | None:
    return when.isoformat() if when else None


def _line(kind: str, **values: Any) -> str:
    record = {"type": kind, **{key: value for key, value in values.items() if value is not None}}
    try:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False)
        try:
            line.encode()
        except UnicodeEncodeError:
            line = json.dumps(record, ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as exc:
        named = values.get("id") or values.get("session_id") or ""
        raise InvalidArgument(f"{kind} {named!r} cannot be written as JSON ({exc})") from exc
    return line + "\n"
