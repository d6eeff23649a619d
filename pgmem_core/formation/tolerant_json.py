"""JSON as language models write it: in fences, among prose, cut off, with stray quotes. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Found", "find_values"]

# Deeper than any reply that means something; the recursion below takes two Python frames a level.
_DEPTH = 40
# A brace that opens nothing costs a look; a text of braces alone must not cost its length squared.
_MISSES = 64
_KEY_CHARS = 200
_SPACE = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)+", re.S)
_OPENING = re.compile(r"[{\[]")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FENCE = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)(?:\n[ \t]*```|\Z)", re.S)
_NEXT_OBJECT = re.compile(r"\}\s*,?\s*(?=\{)")
_KEY = re.compile(r"""(["'])\w{1,40}\1\s*:""")  # the comma before it is missing
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_CLOSERS = {'"': '"', "'": "'", "“": "”"}
_STOPS = {closer: re.compile(rf"[\\{closer}]") for closer in _CLOSERS.values()}
_CONSTANTS: dict[str, Any] = {
    "true": True, "false": False, "null": None, "none": None, "undefined": None,
    "nan": float("nan"), "infinity": float("inf"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """`values`: each JSON object or array of the text, in order. `truncated`: the last one ended too early.

    `skipped`: how many elements of arrays could not be read and were left out.
    """

    values: list[Any]
    truncated: bool = False
    skipped: int = 0


def find_values(text: str) -> Found:
    """Return the JSON objects and arrays in a text, or a lone `null`; never raises.

    Strict JSON is read as such. Else, in this order: the fenced blocks, then whatever starts with a bracket in
    the text, read leniently: single quotes, bare keys, missing and trailing commas, quotes inside strings,
    comments, Python's constants. An object or an array that is cut off keeps its complete parts; a broken element
    of an array is left out and the others kept. Of equal keys the last counts, except that lists are joined.
    """
    for part in (text, *(match[1] for match in _FENCE.finditer(text))):
        try:
            value = json.loads(part, object_pairs_hook=_joined)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list | dict) or value is None:
            return Found([value])
    for part in (*(match[1] for match in _FENCE.finditer(text)), text):
        found = _scan(part)
        if found.values:
            return found
    return Found([])


def _joined(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        before = made.get(key)
        made[key] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
    return made


def _scan(text: str) -> Found:
    values: list[Any] = []
    truncated, skipped, misses, at = False, 0, 0, 0
    strict = json.JSONDecoder(object_pairs_hook=_joined)
    while misses < _MISSES and (match := _OPENING.search(text, at)):
        try:
            value, at = strict.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            pass
        else:
            values.append(value)
            continue
        reader = _Reader(text, match.start())
        try:
            values.append(reader.value(0))
        except _Cut as cut:
            values.append(cut.partial)
            truncated = True
            skipped += reader.skipped
            break
        except _NotJson:
            misses += 1
            at = match.start() + 1
            continue
        at = reader.at
        skipped += reader.skipped
    return Found(values, truncated, skipped)


class _NotJson(Exception):
    """Here is nothing that can be read."""


class _Cut(Exception):
    """The text ended inside a value; `partial` is what was complete of it."""

    def __init__(self, partial: Any) -> None:
        super().__init__()
        self.partial = partial


class _Reader:
    def __init__(self, text: str, at: int) -> None:
        self.text, self.at, self.skipped = text, at, 0

    def value(self, depth: int) -> Any:
        if depth > _DEPTH:
            raise _NotJson
        char = self._peek()
        if char == "{":
            return self._object(depth)
        if char == "[":
            return self._array(depth)
        if char in _CLOSERS:
            return self._string(_CLOSERS[char])
        if match := _NUMBER.match(self.text, self.at):
            return self._number(match)
        return self._constant()

    def _peek(self) -> str:
        if match := _SPACE.match(self.text, self.at):
            self.at = match.end()
        if self.at >= len(self.text):
            raise _Cut(None)
        return self.text[self.at]

    def _object(self, depth: int) -> dict[str, Any]:
        self.at += 1
        pairs: list[tuple[str, Any]] = []
        try:
            while (char := self._peek()) != "}":
                if char == ",":
                    self.at += 1
                    continue
                key = self._key()
                if self._peek() != ":":
                    raise _NotJson
                self.at += 1
                try:
                    pairs.append((key, self.value(depth + 1)))
                except _Cut as cut:
                    if isinstance(cut.partial, list | dict):  # what is complete in there still counts
                        pairs.append((key, cut.partial))
                    raise
        except _Cut:
            raise _Cut(_joined(pairs)) from None
        self.at += 1
        return _joined(pairs)

    def _key(self) -> str:
        char = self.text[self.at]
        if char in _CLOSERS:
            start = self.at
            try:
                key = self._string(_CLOSERS[char], ends=":")
            except _Cut:
                if "}" in self.text[start : start + _KEY_CHARS]:
                    raise _NotJson from None
                raise
            if len(key) > _KEY_CHARS or any(mark in key for mark in "{}\n"):
                raise _NotJson  # it ran over the end of something broken
            return key
        if match := _WORD.match(self.text, self.at):
            self.at = match.end()
            return match[0]
        raise _NotJson

    def _array(self, depth: int) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        try:
            while (char := self._peek()) != "]":
                if char == ",":
                    self.at += 1
                    continue
                start = self.at
                try:
                    items.append(self.value(depth + 1))
                except _Cut as cut:
                    if _holds_objects(cut.partial):
                        items.append(cut.partial)
                    raise
                except _NotJson:
                    self._skip_element(start)
        except _Cut:
            raise _Cut(items) from None
        self.at += 1
        return items

    def _skip_element(self, start: int) -> None:
        if self.text[start] not in "{.":
            raise _NotJson  # an array of prose, [as here]
        self.skipped += 1
        if self.text[start] == ".":  # "...", where a model was too lazy to go on
            self.at = start + len(self.text[start:]) - len(self.text[start:].lstrip("."))
            return
        following = _NEXT_OBJECT.search(self.text, start)
        if following is None:
            end = self.text.find("}", start)
            if end < 0:
                raise _Cut(None)
            self.at = end + 1
        else:
            self.at = following.end()

    def _string(self, closer: str, *, ends: str = ",:}]") -> str:
        self.at += 1
        parts: list[str] = []
        while stop := _STOPS[closer].search(self.text, self.at):
            parts.append(self.text[self.at : stop.start()])
            self.at = stop.end()
            if stop[0] == "\\":
                parts.append(self._escape())
            elif self._ends_here(ends):
                return "".join(parts)
            else:
                parts.append(closer)  # a quote inside the string that should have been escaped
        self.at = len(self.text)
        raise _Cut(None)

    def _ends_here(self, ends: str) -> bool:
        match = _SPACE.match(self.text, self.at)
        at = match.end() if match else self.at
        return at >= len(self.text) or self.text[at] in ends or _KEY.match(self.text, at) is not None

    def _escape(self) -> str:
        if self.at >= len(self.text):
            raise _Cut(None)
        char = self.text[self.at]
        self.at += 1
        if char == "u" and re.match(r"[0-9a-fA-F]{4}", self.text[self.at : self.at + 4]):
            code = self.text[self.at : self.at + 4]
            self.at += 4
            if code[0] in "dD" and (low := re.match(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})", self.text[self.at :][:6])):
                self.at += 6
                return bytes.fromhex(code + low[1]).decode("utf-16-be", "replace")
            return chr(int(code, 16))
        return _ESCAPES.get(char, char)

    def _number(self, match: re.Match[str]) -> int | float | str:
        self.at = match.end()
        if self.at >= len(self.text):
            raise _Cut(None)  # more digits may have followed
        digits = match[0]
        if len(digits) > 300:  # int() refuses above 4,300 digits
            return digits
        return int(digits) if digits.lstrip("-").isdigit() else float(digits)

    def _constant(self) -> Any:
        match = _WORD.match(self.text, self.at)
        if match is None:
            raise _NotJson
        if match.end() >= len(self.text):
            raise _Cut(None)
        word = match[0].lower()
        if word not in _CONSTANTS:
            raise _NotJson
        self.at = match.end()
        return _CONSTANTS[word]


def _holds_objects(value: Any) -> bool:
    """True for a cut-off object that holds a list of complete objects: {"facts": [{…}, {…}, …"""
    if not isinstance(value, dict):
        return False
    return any(isinstance(part, list) and any(isinstance(item, dict) for item in part) for part in value.values())
