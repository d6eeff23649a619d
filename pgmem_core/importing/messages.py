"""OpenAI-style message lists: bare, or in an object with "messages" (chat requests, fine-tuning lines)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pgmem_core.importing import fields
from pgmem_core.importing.fields import FieldError, Ids, Report
from pgmem_core.importing.types import Conversation, ImportedSession, ImportedTurn

__all__ = ["conversation", "from_object", "is_message"]

_ROLES = ("user", "assistant", "system", "developer", "tool")
_ALIASES = {"human": "user", "ai": "assistant", "function": "tool"}
_SESSION_KEYS = ("session_id", "thread_id", "conversation_id", "id")
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


def from_object(value: dict[str, Any], where: str, report: Report, ids: Ids) -> Conversation | None:
    """Return the conversation of an object with "messages", or None when it holds no message."""
    try:
        title = fields.text(value, "title")
        messages = fields.items(value, "messages")
        user_id = fields.identifier(value, "user_id", "user")
        session_id = fields.identifier(value, *_SESSION_KEYS)
        created_at = fields.instant(value, *_TIME_KEYS)
    except FieldError as fault:
        report.problem(where, fault)
        return None
    numbered = [(f"{where}, message {n}", message) for n, message in enumerate(messages, start=1)]
    found = conversation(numbered, report, ids, session_id=session_id)
    if found is None:
        return None
    [session] = found.sessions
    session = replace(session, user_id=user_id, title=title, created_at=created_at or session.created_at)
    return Conversation(title or session.session_id, user_id, (session,))


def conversation(
    messages: Iterable[tuple[str, Any]], report: Report, ids: Ids, *, session_id: str | None = None
) -> Conversation | None:
    """Return one session of these (place, message) pairs, or None when none of them can be read.

    Without a session id of the file's own, it is derived from the whole content, so two chats that both
    start with "hi" stay apart. A list that grows between imports needs an id of its own.
    """
    drafts: list[tuple[int, ImportedTurn]] = []
    numbered = list(enumerate(messages))
    for number, (where, message) in numbered:
        try:
            drafts.append((number, _turn(message)))
        except FieldError as fault:
            report.problem(where, fault)
    if not drafts:
        return None
    if session_id is None:
        session_id = ids.session([fields.substance(turn) for _, turn in drafts])
    # Positions count the messages that could not be read too: mending one leaves the others' ids alone.
    positions = ids.positions(session_id, len(numbered))
    turns = tuple(
        turn if turn.id else replace(turn, id=ids.turn(session_id, positions[number], turn)) for number, turn in drafts
    )
    session = ImportedSession(session_id, None, None, turns[0].created_at, turns)
    return Conversation(session_id, None, (session,))


def _turn(message: Any) -> ImportedTurn:
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
        **{key: value for key, value in message.items() if key not in _READ and value is not None},
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
