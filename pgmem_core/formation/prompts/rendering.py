"""How turns, facts and episodes look in a prompt: numbered, dated, fenced, and cut to a size. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pgmem_core.context import fence
from pgmem_core.errors import InvalidArgument
from pgmem_core.facts import Fact, render_value
from pgmem_core.formation.dates import local_time
from pgmem_core.formation.evidence import authority_of, own_words
from pgmem_core.models.texts import clean, shorten
from pgmem_core.turns import is_blank
from pgmem_core.types import SubjectRef, Turn

__all__ = [
    "FENCE_CHARS",
    "Piece",
    "check_turns",
    "fenced_turns",
    "local_time",
    "pieces_of",
    "render_episodes",
    "render_known",
    "split",
    "subject_label",
    "told",
]

# A tool's result is context for what people say about it, seldom more than its first lines.
MAX_TOOL_CHARS = 2_000
MAX_NAME_CHARS = 64
MAX_KNOWN_VALUE_CHARS = 200
# What `fence` adds, and the line before the continuation of an earlier request.
FENCE_CHARS = 96
_LEAD_CHARS = 300  # an earlier turn, shown again for understanding only
# A piece shorter than this is not worth a request of its own.
_MIN_PIECE_CHARS = 200
_BREAKS = ("\n\n", "\n", ". ", "。", " ")


@dataclass(frozen=True, slots=True)
class Piece:
    """A turn, or a part of a long one, as a prompt shows it. `text` is what the speaker said, and only that."""

    turn: Turn
    text: str
    part: int = 1
    parts: int = 1


def check_turns(turns: object) -> list[Turn]:
    """Return the turns as a list. Raises: InvalidArgument if they are not turns."""
    if isinstance(turns, Turn):
        return [turns]
    if not isinstance(turns, Sequence) or isinstance(turns, str | bytes):
        raise InvalidArgument(f"turns must be a list of Turn, got {type(turns).__name__}")
    for number, turn in enumerate(turns):
        if not isinstance(turn, Turn):
            raise InvalidArgument(f"turns[{number}] must be a Turn, got {type(turn).__name__}")
    return list(turns)


def said(turn: Turn) -> str:
    """Return what the speaker said: without the memory that had been recalled into the message."""
    # Every kind of line end, as `_line` indents after one kind: nothing said can pose as the head of another turn.
    text = "\n".join(clean(own_words(turn)).splitlines())
    return shorten(text, MAX_TOOL_CHARS) if turn.role == "tool" else text


def told(turns: Sequence[Turn], *, calls: bool = False) -> list[Piece]:
    """Return what of the turns was said by somebody: nothing of the host program or of memory itself, nothing blank.

    `calls`: a turn that only calls tools is told by their names.
    """
    pieces = [
        Piece(turn, said(turn) or (_called(turn) if calls else "")) for turn in turns if authority_of(turn) is not None
    ]
    return [piece for piece in pieces if not is_blank(piece.text)]


def _called(turn: Turn) -> str:
    names = [call.get("name") or (call.get("function") or {}).get("name") for call in turn.tool_calls]
    return f"(calls {', '.join(_one_line(str(name), MAX_NAME_CHARS) for name in names)})" if names else ""


# -- time and names --------------------------------------------------------------------------------------------


def _stamp(turn: Turn) -> str:
    moment = local_time(turn)
    offset = moment.strftime("%z")
    zone = f"{offset[:3]}:{offset[3:5]}" if offset else ""
    return f"{_WEEKDAYS[moment.weekday()]} {moment:%Y-%m-%d %H:%M} {zone}".rstrip()


# Not strftime's %A, which speaks the host's language.
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _one_line(text: str, most: int) -> str:
    return shorten(" ".join(clean(text).split()), most).replace("\n", " ")


def subject_label(subject: SubjectRef) -> str:
    """Return how a subject is called in a prompt: the user of the session is "user", others by their name."""
    return "user" if subject.kind == "user" else _one_line(subject.identifier, MAX_NAME_CHARS)


# -- turns -----------------------------------------------------------------------------------------------------


def _line(number: int, piece: Piece) -> str:
    turn = piece.turn
    name = f" {_one_line(turn.name, MAX_NAME_CHARS)}" if turn.name else ""
    part = f", part {piece.part} of {piece.parts}" if piece.parts > 1 else ""
    # Indented, so that no line of a turn can pose as the head of another.
    body = piece.text.replace("\n", "\n  ")
    return f"[{number}] {turn.role}{name}, {_stamp(turn)}{part}: {body}"


def fenced_turns(pieces: Sequence[Piece], lead: Sequence[Piece] = ()) -> str:
    """Return the turns, numbered from 1, in an envelope their text cannot close.

    `lead`: turns that came before and are shown without a number, cut short, for understanding only.
    """
    lines = [f"[before] {_line(0, piece)[4:]}" for piece in _lead(lead)]
    lines += [_line(number, piece) for number, piece in enumerate(pieces, start=1)]
    return fence("conversation", "\n".join(lines))


def _lead(pieces: Sequence[Piece]) -> list[Piece]:
    return [Piece(piece.turn, _one_line(piece.text, _LEAD_CHARS)) for piece in pieces]


def _cost(piece: Piece) -> int:
    return len(_line(9_999, piece)) + 1


def split(pieces: Sequence[Piece], *, max_turns: int, max_chars: int, lead_turns: int = 0) -> Iterator[list[Piece]]:
    """Yield the pieces in order, at most `max_turns` and `max_chars` rendered characters at a time.

    A turn too long for one request is cut at a paragraph, a sentence or a space, and comes as parts. Room is
    left for `lead_turns` earlier turns beside each.
    """
    room = max(max_chars - FENCE_CHARS - lead_turns * (_LEAD_CHARS + 160), _MIN_PIECE_CHARS)
    batch: list[Piece] = []
    spent = 0
    for whole in pieces:
        for piece in pieces_of(whole, room):
            cost = _cost(piece)
            if batch and (len(batch) >= max_turns or spent + cost > room):
                yield batch
                batch, spent = [], 0
            batch.append(piece)
            spent += cost
    if batch:
        yield batch


def pieces_of(piece: Piece, room: int) -> list[Piece]:
    """Return the piece, or its parts where it takes more than `room` characters."""
    if _cost(piece) <= room:
        return [piece]
    # The head of the line with its part numbers, and two characters for each line break.
    free = room - (_cost(Piece(piece.turn, "", 9_999, 9_999)))
    free = max(free, _MIN_PIECE_CHARS // 4)
    texts = list(_cuts(piece.text, free))
    return [Piece(piece.turn, text, number, len(texts)) for number, text in enumerate(texts, start=1)]


def _cuts(text: str, free: int) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = at + free
        # A line break costs three characters as rendered.
        while end > at + 1 and (end - at) + 2 * text.count("\n", at, end) > free:
            end -= max(1, ((end - at) + 2 * text.count("\n", at, end) - free) // 3)
        if end < len(text):
            # In the last fifth at the earliest: a text of one long word is cut anywhere.
            for mark in _BREAKS:
                found = text.rfind(mark, at + (end - at) * 4 // 5, end)
                if found > at:
                    end = found + len(mark)
                    break
        part = text[at:end]
        at = end
        if part.strip():
            yield part


# -- facts -----------------------------------------------------------------------------------------------------


def render_known(known: Sequence[Fact], max_chars: int, *, numbered: bool = True) -> str:
    """Return the facts as lines, K1, K2, … if numbered, in an envelope; as many, from the first, as fit. One that is
    no longer believed says so."""
    lines = []
    for number, fact in enumerate(known, start=1):
        since = f" (since {fact.valid_from:%Y-%m-%d})" if fact.valid_from else ""
        gone = "" if fact.superseded_at is None else f" — withdrawn {fact.superseded_at:%Y-%m-%d}: not true"
        value = _one_line(render_value(fact.value), MAX_KNOWN_VALUE_CHARS)
        mark = f"K{number} " if numbered else ""
        lines.append(f"{mark}{subject_label(fact.subject)} {fact.predicate}: {value}{since}{gone}")
    fitting = fit(lines, max_chars)
    return fence("known-facts" if numbered else "facts", "\n".join(fitting)) if fitting else ""


def render_episodes(episodes: Sequence[str]) -> str:
    """Return the episodes, oldest first as given, in an envelope; each with its date if it knows it (`.created_at`)."""
    lines = []
    for episode in episodes:
        at = getattr(episode, "created_at", None)
        date = f"[{at:%Y-%m-%d}] " if isinstance(at, datetime) else ""
        lines.append("- " + date + "\n  ".join(clean(str(episode)).splitlines()))
    return fence("episodes", "\n".join(lines)) if lines else ""


def fit(lines: Sequence[str], max_chars: int) -> list[str]:
    """Return as many of the lines, from the first, as fit into an envelope of `max_chars`."""
    spent = FENCE_CHARS
    for count, line in enumerate(lines):
        spent += len(line) + 1
        if spent > max_chars:
            return list(lines[:count])
    return list(lines)
