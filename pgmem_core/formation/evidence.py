"""Which turn a quote is from, and with what authority it speaks. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pgmem_core.folding import fold_space, stands_in
from pgmem_core.types import Authority, Turn

__all__ = ["AUTHORITY_KEY", "INJECTED_KEY", "Transcript", "authority_of", "own_words"]

# Turn metadata that the write path may set, never the text: who vouches for the turn; that memory itself put it there.
AUTHORITY_KEY = "authority"
INJECTED_KEY = "injected"

_BY_ROLE = {"user": Authority.user, "tool": Authority.tool, "assistant": Authority.agent}
# An opening that carries an id is closed by that id only: what is recalled cannot close its own envelope.
# A tag is at most 200 characters: an open end would make 160 kB of "<memory " cost 35 s.
_FENCE = re.compile(
    r"<memory\b[^<>]{0,200}?\bid=(\w+)[^<>]{0,200}>.*?(?:</memory\s{1,9}id=\1\s{0,9}>|\Z)"
    r"|<memor(?:y|ies)\b[^<>]{0,200}>.*?(?:</memor(?:y|ies)\b[^<>]{0,200}>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
# "I", "no" and "ok" stand in every turn and support nothing.
_MIN_QUOTE_BYTES = 3


def authority_of(turn: Turn) -> Authority | None:
    """Return who speaks in this turn, by its role or by what the write path set; None if it is no evidence.

    Instructions (system, developer) and turns that memory itself injected are no evidence.
    """
    if turn.metadata.get(INJECTED_KEY):
        return None
    by_role = _BY_ROLE.get(turn.role)
    if by_role is None:
        return None
    given = turn.metadata.get(AUTHORITY_KEY)
    if isinstance(given, str) and given in Authority.__members__:
        return Authority(given)
    return by_role


def own_words(turn: Turn) -> str:
    """Return the turn's text without what was recalled into it from memory."""
    return _FENCE.sub(" ", turn.text)


class Transcript:
    """The turns a batch of drafts is about, in order, ready to look quotes up in."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = [turn for turn in turns if authority_of(turn) is not None]
        self._order = {turn.id: number for number, turn in enumerate(turns)}
        self._folded: dict[str, str] = {}

    def position(self, turn: Turn) -> int:
        return self._order[turn.id]

    def find(self, quote: str, turn_id: str | None) -> Turn | None:
        """Return the turn that said it: the one named if the quote stands there, else the earliest that has it.

        The earliest, because the first to say it is its source, and later ones repeat it.
        """
        if len(fold_space(quote).encode("utf-8", "surrogatepass")) < _MIN_QUOTE_BYTES:
            return None
        named = [turn for turn in self._turns if turn.id == turn_id]
        for turn in (*named, *self._turns):
            if stands_in(self._text(turn), quote):
                return turn
        return None

    def _text(self, turn: Turn) -> str:
        if turn.id not in self._folded:
            self._folded[turn.id] = fold_space(own_words(turn))
        return self._folded[turn.id]
