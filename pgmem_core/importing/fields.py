"""Typed access to parsed JSON: each function gives the value as wanted, or says what was met and wanted."""

from __future__ import annotations

import json
import reprlib
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from pgmem_core.encoding import MAX_DEPTH
from pgmem_core.errors import InvalidArgument
from pgmem_core.ids import check_id
from pgmem_core.importing.types import ImportedTurn, Problem

__all__ = [
    "FieldError",
    "Ids",
    "Report",
    "content",
    "describe",
    "identifier",
    "instant",
    "items",
    "known_keys",
    "mapping",
    "shallow",
    "text",
    "tool_calls",
]


# Fixed for ever: derived ids must be the same in every version, or a second import stores everything twice.
_NAMESPACE = uuid.UUID("6f0c1b1e-6a0f-5d1c-9a54-0d2f8f0b7c11")

_SHORT = reprlib.Repr()  # never walks a large or deep value to the end
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_JSON_NAMES = {dict: "an object", list: "a list", str: "the string", bool: "the boolean"}


class FieldError(Exception):
    """A value is not what was wanted. Never leaves this package: `Report` turns it into a problem."""


class Report:
    """Where problems go: raised as InvalidArgument, or handed to `on_problem` and the part left out."""

    def __init__(self, file: str, on_problem: Callable[[Problem], None] | None) -> None:
        self.file = file
        self._on_problem = on_problem

    def problem(self, where: str, message: str | FieldError) -> None:
        """Report a part that can be left out."""
        found = Problem(self.file, where, str(message))
        if self._on_problem is None:
            raise InvalidArgument(str(found))
        self._on_problem(found)

    def fatal(self, where: str, message: str) -> InvalidArgument:
        """Return the error for what ends the reading, also when problems are collected."""
        return InvalidArgument(str(Problem(self.file, where, message)))


class Ids:
    """Ids for what has none, from content and position in the session, never from the file's name."""

    def __init__(self) -> None:
        self._same: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()

    def session(self, *parts: object) -> str:
        """Return an id for a session of this content; the n-th with the same content gets its own."""
        key = _derive("session", *parts)
        self._same[key] += 1
        return key if self._same[key] == 1 else _derive("session", key, self._same[key])

    def positions(self, session_id: str, count: int = 1) -> range:
        """Return the next positions in the session, counted from 0 over all its pieces in this file."""
        first = self._turns[session_id]
        self._turns[session_id] += count
        return range(first, first + count)

    @staticmethod
    def turn(session_id: str, position: int, turn: ImportedTurn) -> str:
        """Return an id for the turn at that position."""
        return _derive("turn", session_id, position, *substance(turn))


def substance(turn: ImportedTurn) -> tuple[object, ...]:
    """Return what makes a turn this turn, ready to be hashed."""
    when = turn.created_at.isoformat() if turn.created_at else None
    return (turn.role, turn.content, turn.name, turn.tool_calls, turn.tool_call_id, when)


def _derive(*parts: object) -> str:
    # ASCII escapes: a lone surrogate, legal in JSON, has no UTF-8 form and would end the hash in an error.
    return str(uuid.uuid5(_NAMESPACE, json.dumps(parts, ensure_ascii=True, sort_keys=True)))


def describe(value: object) -> str:
    """Return the value in words short enough for an error message."""
    if value is None:
        return "null"
    return f"{_JSON_NAMES.get(type(value), 'the number')} {_SHORT.repr(value)}"


def text(obj: dict[str, Any], key: str) -> str | None:
    """Return a string, or None when the key is absent or null."""
    value = obj.get(key)
    if value is None or isinstance(value, str):
        return value
    raise FieldError(f"{key!r} is {describe(value)}, wanted a string")


def identifier(obj: dict[str, Any], *keys: str) -> str | None:
    """Return the first of these keys that is set, if the store takes it as an id (7 becomes "7")."""
    for key in keys:
        value = obj.get(key)
        if value is None:
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        try:
            return check_id(value, key)
        except InvalidArgument as refused:
            raise FieldError(str(refused)) from refused
    return None


def instant(obj: dict[str, Any], *keys: str) -> datetime | None:
    """Return the first of these keys that is set as an aware UTC time.

    ISO 8601 strings (without an offset they are taken as UTC) and Unix seconds; numbers of 10^11 and more
    (the year 5138) are milliseconds.
    """
    for key in keys:
        value = obj.get(key)
        if value is None:
            continue
        try:
            if isinstance(value, str):
                when = datetime.fromisoformat(value.strip())
                return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return datetime.fromtimestamp(value / 1000 if abs(value) >= 1e11 else value, UTC)
        except (ValueError, OverflowError, OSError):
            pass
        raise FieldError(
            f"{key!r} is {describe(value)}, wanted a time such as '2026-02-03T18:05:00+00:00' or Unix seconds"
        )
    return None


def mapping(obj: dict[str, Any], key: str) -> dict[str, Any]:
    """Return an object, empty when the key is absent or null."""
    value = obj.get(key)
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise FieldError(f"{key!r} is {describe(value)}, wanted an object")


def items(obj: dict[str, Any], key: str) -> list[Any]:
    """Return a list, empty when the key is absent or null."""
    value = obj.get(key)
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise FieldError(f"{key!r} is {describe(value)}, wanted a list")


def shallow(value: Any) -> Any:
    """Return the value if no list or object in it is nested deeper than the store keeps."""
    layer = [value]
    for _ in range(MAX_DEPTH):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not layer:
            return value
    raise FieldError(f"nested more than {MAX_DEPTH} levels deep")


def tool_calls(obj: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the tool calls as the file has them."""
    calls = items(obj, "tool_calls")
    for number, call in enumerate(calls, start=1):
        if not isinstance(call, dict):
            raise FieldError(f"tool call {number} is {describe(call)}, wanted an object")
    return tuple(shallow(calls))


def content(obj: dict[str, Any], *, may_be_empty: bool) -> str | list[dict[str, Any]]:
    """Return text, or blocks with a "type" each; bare strings among blocks become text blocks.

    Null or absent is "" when `may_be_empty` (a message that only calls tools), else a fault.
    """
    value = obj.get("content")
    if isinstance(value, str):
        return value
    if value is None and may_be_empty:
        return ""
    if isinstance(value, list):
        return [_block(block, number) for number, block in enumerate(shallow(value), start=1)]
    raise FieldError(f"'content' is {describe(value)}, wanted a string or a list of content blocks")


def _block(block: object, number: int) -> dict[str, Any]:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if isinstance(block, dict) and isinstance(block.get("type"), str):
        return block
    raise FieldError(f"content block {number} is {describe(block)}, wanted an object with a 'type'")


def known_keys(obj: dict[str, Any], allowed: Iterable[str]) -> None:
    """Refuse keys we would otherwise drop without a word."""
    wanted = sorted(allowed)
    if unknown := sorted(set(obj) - set(wanted)):
        raise FieldError(f"unknown key {_SHORT.repr(unknown[0])}, wanted some of {', '.join(wanted)}")
