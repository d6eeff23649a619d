"""Content of a turn, as callers give it and as memory reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pgmem_core.errors import InvalidArgument

__all__ = ["Content", "read_content", "searchable_text", "spoken"]

Content = str | list[dict[str, Any]]

# Blocks whose words count as what was said. Reasoning is kept and returned, never searched.
_TEXT_KEYS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def read_content(content: object) -> Content:
    """Return content as a str or a list of JSON-ready blocks.

    Takes a str, None (as ""), a sequence of blocks (dicts, or strings, which become text blocks), or any
    object with `.content`. Raises: InvalidArgument naming the block.
    """
    if hasattr(content, "content") and not isinstance(content, str | Mapping):
        content = content.content
    if content is None:
        return ""
    if isinstance(content, str):
        return str(content)
    if isinstance(content, Mapping):
        content = [content]
    if isinstance(content, Sequence) and not isinstance(content, bytes | bytearray):
        return [_block(block, number) for number, block in enumerate(content)]
    raise InvalidArgument(
        f"content must be a str, a list of content blocks or an object with .content, got {type(content).__name__}"
    )


def _block(block: object, number: int) -> dict[str, Any]:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if isinstance(block, Mapping):
        return dict(block)
    raise InvalidArgument(f"content[{number}] must be a dict or a str, got {type(block).__name__}")


def searchable_text(content: Content) -> str:
    """Return the words of content: text blocks, and the alt texts of images; never binary data."""
    if isinstance(content, str):
        return content
    parts = []
    for block in content:
        kind = block.get("type")
        key = _TEXT_KEYS.get(str(kind))
        if key is not None:
            parts.append(str(block.get(key) or ""))
        elif kind in ("image", "image_url", "input_image"):
            alt = block.get("alt") or block.get("caption")
            if alt:
                parts.append(f"[image: {alt}]")
        elif kind is None and isinstance(block.get("text"), str):
            parts.append(block["text"])
    return "\n".join(part for part in parts if part)


def spoken(text: str, name: str | None) -> str:
    """Return the text that is indexed: with the speaker's name, where one was given.

    Questions name people ("what did Ada say?"); on LoCoMo the name is worth 0.05 of recall@10, 0.10 in a pool.
    """
    return f"{name}: {text}" if name and text else text
