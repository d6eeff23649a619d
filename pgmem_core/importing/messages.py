"""OpenAI-style message lists: bare, one message a line, or in an object with "messages" (chat requests, fine-tuning
lines). Messages that say of which session and user they are make sessions of those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pgmem_core.importing import fields
from pgmem_core.importing.fields import FieldError, Ids, Report
from pgmem_core.importing.types import Conversation, ImportedSession, ImportedTurn

__all__ = ["conversations", "from_object", "is_message"]

_ROLES = ("user", "assistant", "system", "developer", "tool")
_ALIASES = {"human": "user", "ai": "assistant", "function": "tool"}
_SESSION_KEYS = ("session_id", "thread_id", "conversation_id")  # of an object also "id", which a message has itself
_TIME_KEYS = ("created_at", "create_time", "timestamp", "created")
_READ = {
    "id",
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "function_call",
    "metadata",
    *_TIME_KEYS,
}


def is_message(value: dict[str, Any]) -> bool:
    """Whether an object looks like one message."""
    return ("role" in value or "content" in value) and "messages" not in value and "mapping" not in value


@dataclass(slots=True)
class _Session:
    """Messages of one session. `said_at`: where the file names its user; `drafts`: with their positions."""

    session_id: str | None
    user_id: str | None = None
    said_at: str = ""
    count: int = 0
    drafts: list[tuple[int, ImportedTurn]] = field(default_factory=list)


class _Placed(NamedTuple):
    """A message, its place in the file, and of which session and user it is, where that is said."""

    where: str
    message: Any
    session_id: str | None
    user_id: str | None

    @property
    def key(self) -> tuple[str | None, str | None]:
        """What holds messages together: the session; without one, the user."""
        return (self.session_id, None) if self.session_id is not None else (None, self.user_id)


_NOBODYS = (None, None)


def from_object(
    value: dict[str, Any], where: str, report: Report, ids: Ids, *, given_user: str | None = None
) -> list[Conversation]:
    """Return the conversations of an object with "messages": one, or none when it holds no message.

    What the object does not say, its messages may: then it is as many as they name sessions.
    """
    try:
        title = fields.text(value, "title")
        messages = fields.items(value, "messages")
        user_id = fields.identifier(value, "user_id", "user")
        session_id = fields.identifier(value, *_SESSION_KEYS, "id")
        created_at = fields.instant(value, *_TIME_KEYS)
    except FieldError as fault:
        report.problem(where, fault)
        return []
    _agree(user_id, given_user, where, report)
    numbered = [(f"{where}, message {n}", message) for n, message in enumerate(messages, start=1)]
    made = []
    for found in conversations(numbered, report, ids, session_id=session_id, user_id=user_id, given_user=given_user):
        [session] = found.sessions
        session = replace(session, title=title, created_at=created_at or session.created_at)
        made.append(replace(found, name=title or session.session_id, sessions=(session,)))
    return made


def conversations(
    messages: Iterable[tuple[str, Any]],
    report: Report,
    ids: Ids,
    *,
    session_id: str | None = None,
    user_id: str | None = None,
    given_user: str | None = None,
) -> list[Conversation]:
    """Return a conversation of one session for each that these (place, message) pairs make, in order of appearance.

    `session_id` and `user_id`: of all of them, as what holds them says; where it does not, each message may. Messages
    of a user without a session are one session, and those that name neither join the others where these are of one
    session. `given_user`: who the caller says it is.

    Without a session id of the file's own, it is derived from the whole content, so two chats that both start with
    "hi" stay apart. A list that grows between imports needs an id of its own.

    Raises: InvalidArgument, with the place, where a session would have two users, a message is of another user than
    the caller's, or nobody can say of which session it is.
    """
    placed = list(_placed(messages, report, session_id, user_id, given_user))
    named = list(dict.fromkeys(one.key for one in placed if one.key != _NOBODYS))
    sessions: dict[tuple[str | None, str | None], _Session] = {}
    for one in placed:
        turn = _read(one, report)
        key = one.key
        if key == _NOBODYS and named:
            if len(named) > 1:
                if turn is not None:
                    raise report.fatal(
                        one.where, "it says neither 'session_id' nor 'user_id', and the messages around it are of more "
                        "than one session; say of which it is",
                    )  # fmt: skip
                continue
            [key] = named
        session = sessions.setdefault(key, _Session(key[0]))
        _owned(session, one, report)
        if turn is not None:
            session.drafts.append((session.count, turn))
        session.count += 1
    return [_conversation(session, ids) for session in sessions.values() if session.drafts]


def _placed(
    messages: Iterable[tuple[str, Any]],
    report: Report,
    session_id: str | None,
    user_id: str | None,
    given_user: str | None,
) -> Iterator[_Placed]:
    for where, message in messages:
        session, user = session_id, user_id
        if isinstance(message, dict):
            try:
                session = session if session is not None else fields.identifier(message, *_SESSION_KEYS)
                user = user if user is not None else fields.identifier(message, "user_id")
            except FieldError as fault:
                report.problem(where, fault)
                continue
        _agree(user, given_user, where, report)
        yield _Placed(where, message, session, user)


def _agree(said: str | None, given: str | None, where: str, report: Report) -> None:
    if said is not None and given is not None and said != given:
        raise report.fatal(
            where, f"it is of user {said!r}, and {given!r} was given (--user-id); leave that out: it is for messages "
            "that do not say whose they are",
        )  # fmt: skip


def _owned(session: _Session, one: _Placed, report: Report) -> None:
    if one.user_id is None:
        return
    if session.user_id is None:
        session.user_id, session.said_at = one.user_id, one.where
    elif session.user_id != one.user_id:
        raise report.fatal(
            one.where, f"it is of user {one.user_id!r}, and session {session.session_id!r} is of {session.user_id!r} "
            f"by {session.said_at}; a session has one user",
        )  # fmt: skip


def _conversation(found: _Session, ids: Ids) -> Conversation:
    session_id = found.session_id
    if session_id is None:
        said = [fields.substance(turn) for _, turn in found.drafts]
        session_id = ids.session(said) if found.user_id is None else ids.session(found.user_id, said)
    # Positions count the messages that could not be read too: mending one leaves the others' ids alone.
    positions = ids.positions(session_id, found.count)
    turns = tuple(
        turn if turn.id else replace(turn, id=ids.turn(session_id, positions[number], turn))
        for number, turn in found.drafts
    )
    session = ImportedSession(session_id, found.user_id, None, turns[0].created_at, turns)
    return Conversation(session_id, found.user_id, (session,))


def _read(one: _Placed, report: Report) -> ImportedTurn | None:
    try:
        return _turn(one.message, {"user_id": one.user_id} | dict.fromkeys(_SESSION_KEYS, one.session_id))
    except FieldError as fault:
        report.problem(one.where, fault)
        return None


def _turn(message: Any, said: dict[str, str | None]) -> ImportedTurn:
    """Return the message as a turn. `said`: keys whose values are known already, and no metadata."""
    if not isinstance(message, dict):
        raise FieldError(f"the message is {fields.describe(message)}, wanted an object with 'role' and 'content'")
    role = message.get("role")
    role = _ALIASES.get(role, role) if isinstance(role, str) else role
    if role not in _ROLES:
        raise FieldError(f"'role' is {fields.describe(role)}, wanted one of {', '.join(_ROLES)}")
    calls = fields.tool_calls(message)
    if function_call := fields.mapping(message, "function_call"):  # the form before tool calls, without an id
        calls = (*calls, {"type": "function", "function": fields.shallow(function_call)})
    refusal = fields.text(message, "refusal")
    metadata = {
        **{
            key: value
            for key, value in message.items()
            if key not in _READ and value is not None and not (key in said and str(value) == said[key])
        },
        **fields.mapping(message, "metadata"),
    }
    fields.shallow(metadata)
    content = fields.content(message, may_be_empty=bool(calls or refusal))
    return ImportedTurn(
        id=fields.identifier(message, "id") or "",
        role=role,
        content=content or refusal or "",
        name=fields.text(message, "name"),
        tool_calls=calls,
        tool_call_id=fields.text(message, "tool_call_id"),
        created_at=fields.instant(message, *_TIME_KEYS),
        metadata=metadata,
    )
