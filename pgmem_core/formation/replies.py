"""From the entries of a model's reply to drafts of facts: field by field, with evidence or not at all. Pure."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any

from pgmem_core.facts import ACTIONS, Action, Fact, FactDraft
from pgmem_core.folding import fold_space, stands_in
from pgmem_core.formation.parsing import ReadFacts
from pgmem_core.formation.prompts.extraction import EXAMPLE_MARKS
from pgmem_core.formation.prompts.rendering import Piece, local_time, subject_label
from pgmem_core.types import SubjectRef

__all__ = ["Drafts", "drafts_of"]

logger = logging.getLogger(__name__)

# A strict reading of other words for the four actions. "Delete" is an end, not a retraction: it leaves no
# tombstone, so a model that deletes too readily does no lasting harm.
_ACTIONS: dict[str, Action] = {
    "add": "assert", "new": "assert", "create": "assert", "insert": "assert", "update": "assert", "change": "assert",
    "confirm": "assert", "state": "assert", "correction": "correct", "replace": "correct", "fix": "correct",
    "delete": "end", "remove": "end", "ended": "end", "expire": "end", "stop": "end",
    "deny": "retract", "retraction": "retract",
}  # fmt: skip
_NO_ACTION = frozenset({"none", "noop", "no_change", "ignore", "skip"})
_USER = frozenset({"", "user", "the user", "i", "me", "myself", "self", "speaker", "the speaker", "human"})
_SURE = {"certain": 0.95, "high": 0.9, "medium": 0.6, "moderate": 0.6, "low": 0.3}
_NULLS = frozenset({"", "null", "none", "n/a", "nil", "unknown"})
_NAMES = {
    "predicate": ("predicate", "attribute", "property", "relation", "key"),
    "value": ("value", "object", "fact", "text", "content", "memory"),
    "subject": ("subject", "entity", "about", "person", "who"),
    "action": ("action", "event", "operation", "op"),
    "replaces": ("replaces", "supersedes", "old_value", "previous"),
    "id": ("id", "fact_id", "known", "known_id"),
    "turn": ("turn", "turn_number", "turn_id", "source", "message"),
    "quote": ("quote", "evidence", "excerpt", "words"),
    "confidence": ("confidence", "certainty", "probability"),
    "single_valued": ("single_valued", "single", "exclusive"),
    "valid_from": ("valid_from", "since", "start", "start_date"),
    "valid_to": ("valid_to", "until", "end_date", "valid_until"),
}
# "I", "no" and "ok" stand in every turn; reconciliation asks for as much.
_MIN_QUOTE_BYTES = 3
_DATE = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?")
_SHORT_KEY = re.compile(r"\s*([A-Za-z][\w .-]{0,39}?)\s*[:=]\s*(\S.*)", re.S)


class Drafts(list[FactDraft]):
    """A list of drafts that knows what is missing in it.

    `truncated`: the reply ended too early. `dropped`: why an entry did not become a draft, one line each, without
    a word of what was said.
    """

    def __init__(
        self, drafts: Iterable[FactDraft] = (), *, truncated: bool = False, dropped: Sequence[str] = ()
    ) -> None:
        super().__init__(drafts)
        self.truncated = truncated
        self.dropped = tuple(dropped)


def drafts_of(read: ReadFacts, pieces: Sequence[Piece], known: Sequence[Fact]) -> Drafts:
    """Return the entries as drafts; never raises for what a model wrote.

    Each draft has its evidence: the turn whose words the quote is. An entry without a quote counts if its value
    stands in a turn; one whose quote stands nowhere, or that comes from the prompt's own example, is dropped, and
    so is one that is no fact at all. A field that makes no sense is left out; ids and numbers that name nothing
    known are passed on, for reconciliation to refuse by name.
    """
    source = _Source(pieces, known)
    drafts: list[FactDraft] = []
    dropped = ["an entry could not be read"] * read.skipped
    for number, entry in enumerate(read.entries, start=1):
        try:
            drafts.append(source.draft(entry))
        except _Dropped as why:
            if why.args:
                dropped.append(f"entry {number}: {why}")
    for line in dropped[:20]:
        logger.warning("extraction: %s left out", line)
    if len(dropped) > 20:
        logger.warning("extraction: %d more entries left out", len(dropped) - 20)
    return Drafts(drafts, truncated=read.truncated, dropped=dropped)


class _Dropped(Exception):
    """The entry is no draft; the message says why, or is empty where the model itself meant nothing by it."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A piece as it was numbered in the prompt, and its text folded for looking up quotes."""

    piece: Piece
    folded: str


class _Source:
    """What the model was shown: against it every entry is checked."""

    def __init__(self, pieces: Sequence[Piece], known: Sequence[Fact]) -> None:
        self._shown = [_Shown(piece, fold_space(piece.text)) for piece in pieces]
        self._known = known
        self._subjects = {subject_label(fact.subject).casefold(): fact.subject for fact in known}
        names = {piece.turn.name.casefold() for piece in pieces if piece.turn.role == "user" and piece.turn.name}
        # With one speaker of role user, that name is the user; in a group it is one of several.
        self._user_names = names if len(names) == 1 else set()

    def draft(self, entry: Any) -> FactDraft:
        fields = _fields(entry)
        predicate, value = _text(fields.get("predicate")), fields.get("value")
        action = _action(fields.get("action"))
        fact, given_id = self._fact(fields)
        if fact is not None:
            predicate = predicate or fact.predicate
        if _is_missing(value) and fact is not None and action in ("end", "retract"):
            value = fact.value
        if _is_missing(value):
            raise _Dropped("it has no value")
        if not predicate:
            raise _Dropped("it has no predicate")
        shown, quote = self._evidence(fields, value)
        if self._is_example(predicate, value, shown):
            raise _Dropped("it repeats the example of the prompt")
        zone = local_time(shown.piece.turn).tzinfo
        return FactDraft(
            predicate=predicate,
            value=value,
            subject=self._subject(fields.get("subject"), fact),
            action=action,
            replaces=fact.value if fact is not None else self._replaced(fields.get("replaces")),
            single_valued=_flag(fields.get("single_valued")),
            confidence=_confidence(fields.get("confidence")),
            valid_from=_moment(fields.get("valid_from"), zone),
            valid_to=_moment(fields.get("valid_to"), zone, last=True),
            turn_id=shown.piece.turn.id,
            quote=quote,
            id=given_id,
        )

    def _subject(self, given: Any, fact: Fact | None) -> SubjectRef | None:
        if isinstance(given, Mapping):
            given = given.get("identifier") or given.get("name") or given.get("id")
        name = _text(given)
        folded = name.casefold()
        if not folded and fact is not None:
            return None if fact.subject.kind == "user" else fact.subject
        if folded in _USER or folded in self._user_names:
            return None
        if folded in self._subjects:
            return self._subjects[folded]
        return SubjectRef(kind="person", identifier=name)

    def _fact(self, fields: Mapping[str, Any]) -> tuple[Fact | None, Any]:
        """Return the known fact that the entry names, and its id; or what it named instead of one."""
        given = fields.get("id")
        fact = self._numbered(given, bare=True)
        if fact is None:
            replaces = fields.get("replaces")
            if isinstance(replaces, list) and replaces:
                replaces = replaces[0]
            fact = self._numbered(replaces, bare=isinstance(replaces, int))
            if fact is None and isinstance(replaces, str):
                if re.fullmatch(r"\s*[Kk]\d+\s*", replaces):
                    given = replaces.strip()  # names a fact that is not there
                elif replaces in {each.id for each in self._known}:
                    given = replaces
                    fact = next(each for each in self._known if each.id == given)
        return (fact, fact.id) if fact is not None else (None, None if _is_null(given) else given)

    def _numbered(self, given: Any, *, bare: bool) -> Fact | None:
        match = re.fullmatch(r"\s*([Kk]?)(\d{1,6})\s*", str(given)) if isinstance(given, int | str) else None
        if match is None or isinstance(given, bool) or not (match[1] or bare):
            return next((fact for fact in self._known if bare and fact.id == given), None)
        number = int(match[2])
        return self._known[number - 1] if 1 <= number <= len(self._known) else None

    def _replaced(self, given: Any) -> Any:
        if _is_null(given) or (isinstance(given, str) and re.fullmatch(r"\s*[Kk]\d+\s*", given)):
            return None
        return given

    # -- evidence

    def _evidence(self, fields: Mapping[str, Any], value: Any) -> tuple[_Shown, str]:
        cited = self._cited(fields.get("turn"))
        quote = fields.get("quote")
        if isinstance(quote, list):
            quote = next((part for part in quote if isinstance(part, str)), None)
        wanted = _text(quote).strip("\"'“”„«» ") or _text(quote)
        if wanted:
            shown = self._find(wanted, cited)
            if shown is None:
                raise _Dropped("its quote stands in no turn")
            return shown, wanted
        stated = value.strip() if isinstance(value, str) else _text(value)
        shown = self._find(stated, cited) if stated else None
        if shown is None:
            raise _Dropped("it quotes no turn")
        return shown, stated

    def _cited(self, given: Any) -> _Shown | None:
        if isinstance(given, list) and given:
            given = given[0]
        match = re.search(r"\d{1,6}", str(given)) if isinstance(given, int | float | str) else None
        if match is None or not 1 <= int(match[0]) <= len(self._shown):
            return None
        return self._shown[int(match[0]) - 1]

    def _find(self, quote: str, cited: _Shown | None) -> _Shown | None:
        """Return the piece in which the quote stands: the cited one, else the user's, else anybody's."""
        folded = fold_space(quote)
        if len(folded.encode("utf-8", "surrogatepass")) < _MIN_QUOTE_BYTES:
            return None
        users = [shown for shown in self._shown if shown.piece.turn.role == "user"]
        others = [shown for shown in self._shown if shown.piece.turn.role != "user"]
        for shown in [*([cited] if cited else []), *users, *others]:
            # `in` first: it is a hundred times faster than looking for whole words.
            if folded in shown.folded and stands_in(shown.folded, folded):
                return shown
        return None

    def _is_example(self, predicate: str, value: Any, shown: _Shown) -> bool:
        written = f"{predicate} {value}".casefold()
        return any(mark.casefold() in written and mark.casefold() not in shown.folded for mark in EXAMPLE_MARKS)


# -- fields ----------------------------------------------------------------------------------------------------


def _fields(entry: Any) -> dict[str, Any]:
    if isinstance(entry, str):
        match = _SHORT_KEY.fullmatch(entry)
        if match is not None:
            return {"predicate": match[1], "value": match[2]}
        return {"predicate": "note", "value": entry, "single_valued": False}
    if not isinstance(entry, Mapping):
        raise _Dropped(f"it is a {type(entry).__name__}, not an object")
    given = {str(key).strip().lower(): value for key, value in entry.items()}
    fields: dict[str, Any] = {}
    for name, words in _NAMES.items():
        for word in words:
            if word in given:
                fields[name] = given[word]
                break
    if isinstance(evidence := fields.get("quote"), Mapping):  # "evidence": {"turn": 1, "quote": "…"}
        fields["quote"] = evidence.get("quote") or evidence.get("text")
        fields.setdefault("turn", evidence.get("turn"))
    if "predicate" not in fields and "value" in fields:
        fields["predicate"] = "note"
        fields.setdefault("single_valued", False)
    return fields


def _text(given: Any) -> str:
    if isinstance(given, bool) or given is None or not isinstance(given, str | int | float):
        return ""
    text = str(given).strip()
    return "" if text.lower() in _NULLS else text


def _is_missing(value: Any) -> bool:
    # "none" and "unknown" are values that people do state.
    if isinstance(value, str):
        return value.strip().lower() in ("", "null")
    return value is None or (isinstance(value, list | dict) and not value)


def _is_null(given: Any) -> bool:
    if isinstance(given, str):
        return given.strip().lower() in _NULLS
    return given is None or (isinstance(given, list | dict) and not given)


def _action(given: Any) -> Action:
    if _is_null(given) and not (isinstance(given, str) and given.strip().lower() == "none"):
        return "assert"
    word = str(given).strip().lower()
    for action in ACTIONS:
        if word == action:
            return action
    if word in _NO_ACTION:
        raise _Dropped
    if word not in _ACTIONS:
        raise _Dropped(f"its action {word[:40]!r} is unknown")
    return _ACTIONS[word]


def _flag(given: Any) -> bool | None:
    if isinstance(given, bool):
        return given
    return {"true": True, "yes": True, "false": False, "no": False}.get(str(given).strip().lower())


def _confidence(given: Any) -> float | None:
    """Return a number as it is, also one out of bounds; a percentage and plain words as numbers; else None."""
    if isinstance(given, bool) or given is None:
        return None
    text = str(given).strip().lower()
    if text in _SURE:
        return _SURE[text]
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        return None
    return number / 100 if text.endswith("%") else number


def _moment(given: Any, zone: tzinfo | None, *, last: bool = False) -> datetime | None:
    """Return an aware datetime: midnight of a date in the speaker's zone; `last`: the end of the day, month or year."""
    text = _text(given)
    try:
        match = _DATE.fullmatch(text)
        if match is None:
            moment = datetime.fromisoformat(text)
            return moment if moment.tzinfo else moment.replace(tzinfo=zone)
        year, month, day = int(match[1]), int(match[2] or 1), int(match[3] or 1)
        start = datetime(year, month, day, tzinfo=zone)
        if not last:
            return start
        if match[3]:
            return start + timedelta(days=1)
        if match[2]:
            return start.replace(year=year + month // 12, month=month % 12 + 1)
        return start.replace(year=year + 1)
    except (ValueError, OverflowError):
        return None
