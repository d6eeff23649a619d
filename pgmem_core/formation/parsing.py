"""From what a model answered to plain text or plain values, whatever shape the answer has. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pgmem_core.errors import ExtractionError
from pgmem_core.formation.tolerant_json import find_values

__all__ = ["ReadFacts", "ThoughtFilter", "read_facts", "reply_text", "stopped_early", "without_thoughts"]

SHOWN_CHARS = 200

_LISTS = frozenset({"facts", "memories", "memory", "items", "results", "extracted_facts", "new_facts"})
_WRAPPERS = frozenset({"data", "output", "response", "reply", "result", "arguments", "args", "parameters", "input"})
_PREDICATES = frozenset({"predicate", "attribute", "property", "relation", "key"})
_VALUES = frozenset({"value", "object", "fact", "text", "content", "memory"})

_TAGS = ("think", "thinking", "thought", "thoughts", "reasoning", "reflection")
_OPENING = re.compile(rf"<({'|'.join(_TAGS)})\b[^<>]{{0,50}}>", re.I)
# On a line of its own: a sentence may speak of the tag.
_ORPHAN = re.compile(rf"^[ \t]*</(?:{'|'.join(_TAGS)})\s*>[ \t]*$", re.I | re.M)
_NOTHING = re.compile(
    r"\W*(?:none|null|nil|n/?a|nothing|empty|no)\W*"
    r"|.*\b(?:no|not any|nothing|none|zero)\b.{0,60}\b(?:facts?|memor|information|durable|extract|stor|record).*",
    re.I | re.S,
)
# Why a model stopped, when it was not because it had said all: the providers' words, lower case.
_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"})
_FILTERED = frozenset({"content_filter", "content_filtered", "safety", "refusal", "recitation", "blocklist"})
_REASONS = ("finish_reason", "stop_reason", "done_reason", "finishReason", "stopReason")


# -- text ------------------------------------------------------------------------------------------------------


def reply_text(reply: object) -> str:
    """Return the words of a reply: a str, a message, a chunk of one, or the dict of a structured answer."""
    content = getattr(reply, "content", reply)
    if isinstance(content, Mapping):
        return reply_text(content["raw"]) if "raw" in content else str(content.get("content") or "")
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "".join(
            block if isinstance(block, str) else str(block.get("text") or "")
            for block in content
            if isinstance(block, str)
            or (isinstance(block, Mapping) and block.get("type", "text") in ("text", "output_text"))
        )
    return "" if content is None else str(content)


def stopped_early(reply: object) -> str | None:
    """Return the reason if the provider says that the reply is not whole (`length`, `content_filter`, …), else None."""
    told: dict[str, Any] = {}
    for name in ("generation_info", "additional_kwargs", "response_metadata"):
        held = getattr(reply, name, None)
        if isinstance(held, Mapping):
            told.update(held)
    details = told.get("incomplete_details")  # OpenAI's Responses API
    reasons = [told.get(name) for name in _REASONS]
    if isinstance(details, Mapping):
        reasons.append(details.get("reason"))
    for reason in reasons:
        word = str(getattr(reason, "value", reason)).lower()
        if word in _LENGTH or word in _FILTERED:
            return word
    return "refusal" if told.get("refusal") else None


def without_thoughts(text: str) -> str:
    """Return the text without the `<think>` blocks that stand before its answer.

    A block that is never closed takes the rest with it: the reply ended while the model was still thinking. A
    closing tag alone on its line ends thoughts whose opening stood in the prompt.
    """
    sieve = ThoughtFilter()
    return sieve.feed(text) + sieve.close()


class ThoughtFilter:
    """Takes a reply piece by piece and gives it back without leading `<think>` blocks.

    Only what stands before the first word of the answer is filtered: an answer may speak of `<think>` itself. What
    streams cannot be taken back, so a lone closing tag is only recognised when it is in the first piece.
    """

    def __init__(self) -> None:
        self._held = ""
        self._tag: str | None = None  # the block we are in
        self._answering = False

    def feed(self, piece: str) -> str:
        """Return what of the reply is known to be answer so far."""
        if self._answering:
            return piece
        self._held += piece
        while not self._answering:
            if self._tag is not None:
                end = re.search(rf"</{self._tag}\s*>", self._held, re.I)
                if end is None:
                    return ""
                self._held, self._tag = self._held[end.end() :], None
            start = self._held.lstrip()
            opening = _OPENING.match(start)
            if opening is not None:
                self._tag, self._held = opening[1].lower(), start[opening.end() :]
            elif not start or (start[0] == "<" and len(start) < 64 and ">" not in start):
                return ""  # may yet become a tag
            else:
                self._answering = True
        return self._release()

    def close(self) -> str:
        """Return what is left: nothing when the reply ended inside a block."""
        if self._answering or self._tag is not None:
            return ""
        self._answering = True
        return self._release()

    def _release(self) -> str:
        text, self._held = self._held, ""
        orphan = _ORPHAN.search(text)
        if orphan is not None and not _OPENING.search(text[: orphan.start()]):
            text = text[orphan.end() :]
        return text.lstrip()


# -- facts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """The entries of a reply as the model wrote them: dicts or strings, unchecked.

    `truncated`: the reply ended too early, what was complete is here. `skipped`: entries that were not readable.
    """

    entries: list[Any]
    truncated: bool = False
    skipped: int = 0


def read_facts(reply: object) -> ReadFacts:
    """Return the facts of a reply: text, a message, tool calls, or the dict that structured output gives.

    An empty reply, `null`, and words that say there is nothing are no facts. Raises: ExtractionError for a reply
    that cannot be read, was refused, or ended before its answer began; it shows the first 200 characters.
    """
    if isinstance(reply, Mapping) and "raw" in reply:
        parsed = reply.get("parsed")
        if parsed is not None:
            entries = _entries(parsed.model_dump() if hasattr(parsed, "model_dump") else parsed)
            if entries is not None:
                # A call that was cut off is completed by LangChain, so that it can look whole.
                return ReadFacts(entries, stopped_early(reply["raw"]) is not None)
        reply = reply["raw"]
    elif hasattr(reply, "model_dump") and not hasattr(reply, "content"):
        reply = reply.model_dump()
    if isinstance(reply, Mapping | list):
        entries = _entries(reply)
        if entries is None:
            raise ExtractionError(_unreadable(str(reply), None))
        return ReadFacts(entries)
    return _from_calls(reply) or _from_text(reply_text(reply), stopped_early(reply))


def _from_calls(reply: object) -> ReadFacts | None:
    found: list[Any] = []
    seen, truncated, skipped = False, bool(stopped_early(reply)), 0
    for name in ("tool_calls", "invalid_tool_calls"):
        for call in getattr(reply, name, None) or ():
            arguments = call.get("args") if isinstance(call, Mapping) else None
            if isinstance(arguments, str):  # arguments that were not valid JSON
                values = find_values(arguments)
                truncated, skipped = truncated or values.truncated, skipped + values.skipped
                parts = [_entries(value) for value in values.values]
            else:
                parts = [_entries(arguments)]
            for part in parts:
                if part is not None:
                    seen = True
                    found.extend(part)
    return ReadFacts(found, truncated, skipped) if seen else None


def _from_text(text: str, stopped: str | None) -> ReadFacts:
    answer = without_thoughts(text)
    if not answer.strip():
        if stopped or text.strip():
            raise ExtractionError(_unreadable(text, stopped or "it ended inside its thoughts"))
        return ReadFacts([])
    values = find_values(answer)
    entries: list[Any] = []
    readable = False
    for value in values.values:
        part = _entries(value)
        if part is not None and (value or not values.truncated):  # a lone bracket is no answer
            readable = True
            entries.extend(part)
    if not readable:
        if values.values == [None] or (len(answer) <= SHOWN_CHARS and not stopped and _NOTHING.fullmatch(answer)):
            return ReadFacts([])
        raise ExtractionError(_unreadable(answer, stopped))
    return ReadFacts(entries, values.truncated or stopped is not None, values.skipped)


def _unreadable(text: str, why: str | None) -> str:
    shown = text.strip()[:SHOWN_CHARS]
    reason = f" ({why})" if why else ""
    return (
        f"the model's reply could not be read as facts{reason}; wanted JSON such as {{'facts': []}},"
        f" got {len(text)} characters: {shown!r}. The turns are kept and can be tried again, or with another model"
    )


def _entries(value: Any, depth: int = 0) -> list[Any] | None:
    """Return the facts in a value of JSON, or None if it does not look like an answer at all."""
    if value is None and depth:
        return []
    if isinstance(value, list):
        return _of_list(value, depth)
    if isinstance(value, str) and depth:
        found = find_values(value)
        parts = [_entries(each, depth + 1) for each in found.values] if depth < 4 else []
        return next((part for part in parts if part is not None), None)
    if not isinstance(value, dict) or depth > 4:
        return None
    if not value:
        return []
    names = {str(key).lower() for key in value}
    if names & _VALUES and (names & _PREDICATES or len(names) == 1) and not _is_container(value):
        return [value]
    held = [_of_container(part) for key, part in value.items() if str(key).lower() in _LISTS]
    if held:
        return [entry for part in held for entry in part]
    inner = [_entries(part, depth + 1) for key, part in value.items() if str(key).lower() in _WRAPPERS]
    return next((part for part in inner if part is not None), None)


def _is_container(value: Mapping[str, Any]) -> bool:
    return any(str(key).lower() in _LISTS and isinstance(part, list | dict) for key, part in value.items())


def _of_list(value: list[Any], depth: int) -> list[Any] | None:
    entries: list[Any] = []
    for item in value:
        if isinstance(item, str):
            entries.append(item)
        elif isinstance(item, dict):
            inner = _entries(item, depth + 1) if _is_container(item) else None
            entries.extend([item] if inner is None else inner)
        elif isinstance(item, list) and depth < 4:
            entries.extend(_of_list(item, depth + 1) or [])
    return entries if entries or all(item is None for item in value) else None


def _of_container(value: Any) -> list[Any]:
    if isinstance(value, list):
        return _of_list(value, 1) or []
    if isinstance(value, dict):
        entries = _entries(value, 1)
        if entries is not None:
            return entries
        if all(isinstance(part, dict) and {str(key).lower() for key in part} & _PREDICATES for part in value.values()):
            return list(value.values())  # {"1": {…}, "2": {…}}
        # {"name": "Ana", "city": "Porto"}: predicate to value
        return [{"predicate": str(key), "value": part} for key, part in value.items()]
    if isinstance(value, str) and value.strip() and not _NOTHING.fullmatch(value):
        return [value]
    return []
