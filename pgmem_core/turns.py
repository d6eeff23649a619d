"""From what a caller gives to what is stored: a turn checked, counted and analysed. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pgmem_core.content import read_content, searchable_text, spoken
from pgmem_core.encoding import encode_json, encode_text
from pgmem_core.errors import InvalidArgument
from pgmem_core.ids import turn_uuid
from pgmem_core.retrieval import lexical
from pgmem_core.tokens import count_message
from pgmem_core.types import ROLES, SILENT_ROLES, NewTurn

__all__ = ["check_time", "is_blank", "new_turn", "turn_terms"]

# What counts as nothing: white space, and the characters that show nothing at all (controls, joiners, bidi marks,
# variation selectors, tags, the blanks of Hangul and Braille).
_NOTHING = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]*"
)
# What `extra` must leave alone: the fields that have arguments of their own.
_FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "utc_offset"})
_ALIASES = {
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
    "chatbot": "assistant",
    "function": "tool",
}


def is_blank(text: str) -> bool:
    """True if text shows nothing: empty, white space, zero-width characters."""
    return _NOTHING.fullmatch(text) is not None


def turn_terms(role: str, text: str, name: str | None, *, language: str) -> lexical.Terms:
    """Return the terms under which a turn is found: none for instructions, and for what says nothing."""
    if role in SILENT_ROLES or is_blank(text) or lexical.is_pleasantry(text, language=language):
        return lexical.Terms((), (), 0)
    return lexical.analyse(spoken(text, name), language=language)


def check_time(value: datetime | None, name: str = "created_at") -> datetime | None:
    """Return an aware datetime in UTC. Raises: InvalidArgument for a naive one: its zone would be a guess."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidArgument(f"{name} must be an aware datetime, got {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidArgument(
            f"{name} {value.isoformat()} has no timezone; pass an aware datetime, e.g. datetime.now(timezone.utc)"
        )
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        raise InvalidArgument(f"{name} {value.isoformat()} is outside the years 1 to 9999 in UTC") from None
    # A database in another timezone would hand a stored one back as of the year 0 or 10000, which Python has not.
    if name == "created_at" and not 1 < utc.year < 9999:
        raise InvalidArgument(f"{name} {value.isoformat()} is outside the years 2 to 9998")
    return utc


def check_role(role: object) -> str:
    """Return the role, with the other names of the same roles folded. Raises: InvalidArgument."""
    if isinstance(role, str):
        known = _ALIASES.get(role.lower(), role.lower())
        if known in ROLES:
            return known
    raise InvalidArgument(f"role {role!r} is unknown; use one of {', '.join(ROLES)}")


def new_turn(
    *,
    tenant_id: str,
    session_id: str,
    language: str,
    role: str,
    content: object,
    id: str | uuid.UUID | None = None,
    name: str | None = None,
    tool_calls: Sequence[Mapping[str, Any]] | None = None,
    tool_call_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    created_at: datetime | None = None,
    extra: Mapping[str, Any] | None = None,
    provisional: bool = False,
    after_seq: int | None = None,
) -> NewTurn:
    """Return the turn ready to store. Raises: InvalidArgument before anything is written."""
    role = check_role(role)
    body = read_content(content)
    text = searchable_text(body)
    calls = [dict(call) for call in tool_calls or ()]
    if is_blank(text) and not calls and not extra and not (isinstance(body, list) and body) and role != "tool":
        raise InvalidArgument(
            f"the content of this {role} turn is blank; a turn needs text, a content block or a tool call"
        )
    held: dict[str, Any] = {}
    if isinstance(body, list):  # else the text column says it all
        held["content"] = body
    for key, value in (("name", name), ("tool_call_id", tool_call_id)):
        if value is not None:
            if not isinstance(value, str):
                raise InvalidArgument(f"{key} must be a string, got {type(value).__name__}")
            held[key] = value
    if calls:
        held["tool_calls"] = calls
    if taken := sorted(_FIELDS.intersection(extra or ())):
        raise InvalidArgument(f"extra holds {', '.join(map(repr, taken))}, which the turn has as arguments of its own")
    held.update(extra or {})
    if isinstance(created_at, datetime) and created_at.utcoffset():
        held["utc_offset"] = created_at.isoformat()[-6:]  # stored times are UTC, and "tomorrow" is not
    terms = turn_terms(role, text, name, language=language)
    return NewTurn(
        id=turn_uuid(id, tenant_id, session_id),
        role=role,
        text=encode_text(text),
        # Whole, so that its keys go by the same rule as its values.
        message=encode_json(held, where="turn") or None,
        metadata=encode_json(dict(metadata or {}), where="metadata"),
        token_count=count_message(body, calls, name),
        created_at=check_time(created_at),
        terms=terms.hashes,
        term_counts=terms.counts,
        term_total=terms.length,
        given_id=id is not None,
        provisional=provisional,
        after_seq=after_seq,
    )
