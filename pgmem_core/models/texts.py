"""What an embedder is given: text any tokenizer takes, of a length any model takes."""

from __future__ import annotations

import re

import numpy as np

from pgmem_core.protocols import Vectors
from pgmem_core.tokens import count_tokens

__all__ = ["blank_vector", "clean", "is_blank", "shorten", "shorten_to_tokens"]

_UNREADABLE = re.compile("[\x00\ud800-\udfff]")
_CUT = "\n…\n"
# Prose has 3 to 5 characters a token; what is beyond 6 a token is cut before anything is counted.
_CHARS_PER_TOKEN = 6


def clean(text: str) -> str:
    """Return the text with NUL and lone surrogates replaced by U+FFFD: tokenizers and HTTP refuse them."""
    return _UNREADABLE.sub("\ufffd", text) if _UNREADABLE.search(text) else text


def is_blank(text: str) -> bool:
    return not text or text.isspace()


def blank_vector(dimensions: int) -> Vectors:
    """The vector of a blank text: the first unit vector. It is valid, and near to nothing."""
    vector = np.zeros(dimensions, dtype=np.float32)
    vector[0] = 1.0
    return vector


def shorten(text: str, max_chars: int) -> str:
    """Return at most `max_chars` characters: the first three quarters and the last, where a question often
    stands, with an ellipsis on a line of its own between them."""
    if len(text) <= max_chars:
        return text
    room = max(max_chars - len(_CUT), 0)
    tail = room // 4
    return text[: room - tail] + _CUT[: max_chars - room] + text[len(text) - tail :]


def shorten_to_tokens(text: str, max_tokens: int, model: str | None = None) -> str:
    """Return the text if it has at most `max_tokens` tokens, else that much of both its ends (`shorten`)."""
    if len(text) * 4 <= max_tokens:  # a character is at most 4 bytes, a token at least one
        return text
    text = shorten(text, max_tokens * _CHARS_PER_TOKEN)
    while (count := count_tokens(text, model)) > max_tokens:
        # Aim 3 % below: what stays may be denser than the average of what is cut.
        text = shorten(text, int(len(text) * max_tokens / count * 0.97))
    return text
