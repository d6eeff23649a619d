"""What memory adds to a list of messages: one fenced text, made, recognised and cut. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llama_index.core.base.llms.types import ChatMessage, TextBlock

from pgmem_core.context import PREAMBLE, fence
from pgmem_core.tokens import count_tokens
from pgmem_core.types import CompiledContext, Item

__all__ = ["Part", "cut", "is_recalled", "own", "parts_of", "text_of", "unbraced"]

# The names that LlamaIndex's context and refine templates fill in, wherever they stand in the history.
_FILLED = re.compile(r"\{(query_str|context_str|context_msg|existing_answer)\}")
_FENCE = re.compile(r"<memory ([a-z-]+) id=([0-9a-f]{12})>\n(.*?)\n</memory id=\2>(?:\n|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Part:
    """One envelope: what it holds ("facts", "recalled", …) and its entries, each of one or more lines."""

    kind: str
    lines: tuple[str, ...]


def parts_of(context: CompiledContext) -> list[Part]:
    """Return what was read besides the session's turns: what always holds first, what was recalled last, in the order
    in which it happened."""
    sections = context.sections
    told = sorted(
        sections["episodic"].items, key=lambda item: (item.created_at, item.session_id or "", item.seq or 0, item.id)
    )
    found: list[tuple[str, Iterable[Item]]] = [
        ("narrative", sections["narrative"].items),
        ("facts", sections["semantic"].items),
        ("summary", [item for item in sections["working"].items if item.kind == "summary"]),
        ("recalled", told),
        ("working-state", sections["execution"].items),
    ]
    parts = [Part(kind, tuple(item.text for item in items)) for kind, items in found]
    return [part for part in parts if part.lines]


def text_of(parts: Sequence[Part], *, templated: bool = False) -> str | None:
    """Return the parts as one text that says what it is, or None where there are none. `templated`: for a list of
    messages that is used as a template."""
    if not parts:
        return None
    bodies = [(part.kind, "\n".join(part.lines)) for part in parts]
    return "\n".join([PREAMBLE, *(fence(kind, unbraced(body) if templated else body) for kind, body in bodies)])


def is_recalled(text: str) -> bool:
    """Return whether a text is one that `text_of` made: ours from end to end, each envelope with its own hash."""
    if not text.startswith(PREAMBLE + "\n<memory "):
        return False
    at = len(PREAMBLE) + 1
    while at < len(text):
        found = _FENCE.match(text, at)
        if found is None or fence(found[1], found[3]) != found[0].removesuffix("\n"):
            return False
        at = found.end()
    return True


def own(message: ChatMessage) -> ChatMessage | None:
    """Return the message without what `get` added to it; None if that is all there was."""
    blocks = getattr(message, "blocks", None)
    if not blocks or not isinstance(blocks[0], TextBlock) or not is_recalled(blocks[0].text):
        return message
    return message.model_copy(update={"blocks": list(blocks[1:])}) if len(blocks) > 1 else None


def cut(text: str, tokens: int) -> str | None:
    """Return a text of `text_of` with at least so many tokens fewer: what was recalled goes first, from its end, then
    the parts before it. None if nothing is left. Any other text is cut to nothing."""
    if not is_recalled(text):
        return None
    parts = [Part(found[1], _entries(found[3])) for found in _FENCE.finditer(text)]
    most = count_tokens(text) - tokens
    while parts:
        last = parts[-1]
        shorter = last.lines[:-1]
        parts = [*parts[:-1], Part(last.kind, shorter)] if shorter else parts[:-1]
        left = text_of(parts)
        if left is not None and count_tokens(left) <= most:
            return left
    return None


def _entries(body: str) -> tuple[str, ...]:
    """Each entry begins with "- " at the start of a line; its further lines are indented."""
    return tuple(re.split(r"\n(?=- )", body))


def unbraced(text: str) -> str:
    """Return text with a space inside the braces of the names that LlamaIndex would fill in: `{ query_str }`."""
    return _FILLED.sub(r"{ \1 }", text)
