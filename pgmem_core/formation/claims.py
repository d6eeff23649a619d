"""From drafts, which are a model's word, to claims, which are checked. One by one, nothing raises. Pure.

What is checked: the fields' types and sizes; that the quote stands in a turn, whose role (or what the write path
set on it) gives the authority; that a named id is a fact of the same subject and predicate; that no other user is
written about. What a draft says of its own authority counts for nothing: there is no field for it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pgmem_core import predicates
from pgmem_core.changes import Refusal, Rejected
from pgmem_core.encoding import decode_json, dumps, encode_json
from pgmem_core.errors import InvalidArgument
from pgmem_core.facts import ACTIONS, DEFAULT_CONFIDENCE, Action, Evidence, Fact, FactDraft, check_subject
from pgmem_core.folding import fold, fold_space, value_key
from pgmem_core.formation.evidence import Transcript, authority_of, own_words
from pgmem_core.predicates import canonical, normalise_predicate
from pgmem_core.turns import check_time
from pgmem_core.types import Authority, SubjectRef, Turn

__all__ = ["Claim", "Limits", "about", "check_value", "examine"]

# A quote longer than this is cut: evidence points at the turn, which has the rest.
_MAX_QUOTE_CHARS = 500
_SELF = frozenset({"me", "i", "myself", "user", "the user", "self", "human", "speaker"})


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_value_bytes` counts the value as compact JSON in UTF-8."""

    max_drafts: int = 50
    max_value_bytes: int = 4096


@dataclass(frozen=True, slots=True)
class Claim:
    """A checked statement about a subject. `said_at` is the turn's time, or the call's, aware UTC.

    `value_key` is None only where an end or a retraction names no value. `explicit` says that the speaker means to
    bring back a value that was rejected; `contrast` that what it replaces counts only where it is held just then.
    """

    by: int
    subject: SubjectRef
    predicate: str
    value: Any
    value_key: bytes | None
    action: Action
    authority: Authority
    confidence: float
    said_at: datetime
    evidence: tuple[Evidence, ...]
    single_valued: bool
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    replaces_key: bytes | None = None
    fact_id: str | None = None
    explicit: bool = False
    contrast: bool = False
    position: int = 0

    @property
    def interval(self) -> tuple[datetime | None, datetime | None]:
        """When it holds as far as was said: from when it was said if nothing else, from no known time if over then."""
        start = self.valid_from
        if start is None and (self.valid_to is None or self.valid_to > self.said_at):
            start = self.said_at
        return start, self.valid_to

    @classmethod
    def observed(
        cls,
        subject: SubjectRef,
        predicate: str,
        value: Any = None,
        *,
        authority: Authority,
        said_at: datetime,
        evidence: Sequence[Evidence] = (),
        action: Action = "assert",
        replaces: Any | None = None,
        single_valued: bool | None = None,
        confidence: float | None = None,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        fact_id: str | None = None,
        explicit: bool = False,
        limits: Limits | None = None,
    ) -> Claim:
        """Return what a program states by a call, with the authority it vouches for.

        Evidence is taken as given: that its turns exist is for the database to say. Raises: InvalidArgument.
        """
        if action not in ACTIONS:
            raise InvalidArgument(f"action {action!r} is unknown; use one of {', '.join(ACTIONS)}")
        limits = limits or Limits()
        said = check_time(said_at, "said_at")
        if said is None:
            raise InvalidArgument("said_at is None; pass the time of the call")
        name = normalise_predicate(predicate)
        optional = value is None and action in ("end", "retract")
        held = None if optional else check_value(value, limits.max_value_bytes)
        start, stop = _interval(valid_from, valid_to)
        return cls(
            by=0,
            subject=check_subject(subject),
            predicate=name,
            value=held,
            value_key=None if optional else value_key(held),
            action=action,
            authority=Authority(authority),
            confidence=_confidence(confidence, Authority(authority)),
            said_at=said,
            evidence=tuple(evidence),
            # A program that declares it knows its own predicates better than our table does.
            single_valued=predicates.single_valued(name) if single_valued is None else single_valued,
            valid_from=start,
            valid_to=stop,
            replaces_key=None if replaces is None else value_key(replaces),
            fact_id=fact_id,
            explicit=explicit,
        )


class _Refused(Exception):
    def __init__(self, code: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.code: Refusal = code


def examine(
    drafts: Iterable[object],
    current: Sequence[Fact],
    *,
    turns: Sequence[Turn],
    user_subject: SubjectRef,
    now: datetime,
    limits: Limits | None = None,
) -> tuple[list[Claim], list[Rejected]]:
    """Return the claims that hold water, in the order given, and what was refused with the reason.

    current: the facts the extractor was shown and those of `predicates.related`. A list of strings for a predicate
    of several values becomes a claim a string.
    """
    examiner = _Examiner(current, Transcript(turns), check_subject(user_subject), now, limits or Limits())
    claims: list[Claim] = []
    rejected: list[Rejected] = []
    for number, draft in enumerate(drafts):
        try:
            if number >= examiner.limits.max_drafts:
                raise _Refused("too_many", f"more than {examiner.limits.max_drafts} drafts in one answer")
            claims.extend(examiner.examine(number, draft))
        except _Refused as refused:
            rejected.append(Rejected(number, draft, refused.code, str(refused)))
        except Exception as exc:  # an array has no truth, a foreign __eq__ raises: that costs this draft alone
            rejected.append(Rejected(number, draft, "not_a_draft", f"a field cannot be read: {type(exc).__name__}"))
    return claims, rejected


def about(
    drafts: Iterable[object], known: Sequence[Fact], user_subject: SubjectRef
) -> tuple[list[object], list[SubjectRef]]:
    """Return the drafts with the subjects they mean among the facts that were shown, and those subjects, the user
    first, each once. What names its subject wrongly is left as it is, for `examine` to refuse."""
    examiner = _Examiner(known, Transcript(()), check_subject(user_subject), datetime.now(UTC), Limits())
    found = {examiner.user: None}
    made: list[object] = []
    for draft in drafts:
        if isinstance(draft, FactDraft):
            with suppress(Exception):  # whatever is wrong with it, `examine` says
                subject = examiner.subject(draft.subject)
                found[subject] = None
                draft = replace(draft, subject=subject)
        made.append(draft)
    return made, list(found)


class _Examiner:
    def __init__(
        self, current: Sequence[Fact], transcript: Transcript, user: SubjectRef, now: datetime, limits: Limits
    ) -> None:
        self.limits = limits
        self._current = current
        self._transcript = transcript
        self.user = user
        self._now = now

    def examine(self, number: int, draft: object) -> Iterator[Claim]:
        """Yield the claims of one draft. Raises: _Refused."""
        if not isinstance(draft, FactDraft):
            raise _Refused("not_a_draft", f"a {type(draft).__name__} is no FactDraft")
        if not isinstance(draft.action, str) or draft.action not in ACTIONS:
            raise _Refused("action", f"action {_show(draft.action)} is unknown")
        subject = self.subject(draft.subject)
        predicate = self._predicate(draft.predicate, subject)
        turn, evidence = self._evidence(draft)
        if draft.action in ("end", "retract") and self._supports(turn, evidence, subject, predicate):
            raise _Refused("evidence", "it is said in the words on which the fact itself rests")
        authority = authority_of(turn)
        assert authority is not None  # the transcript holds no turn without one
        claim = Claim(
            by=number,
            subject=subject,
            predicate=predicate,
            value=None,
            value_key=None,
            action=draft.action,
            authority=authority,
            confidence=self._confidence(draft.confidence, authority),
            said_at=min(turn.created_at, self._now),
            evidence=(evidence,),
            single_valued=self._single(draft.single_valued, predicate),
            replaces_key=self._optional_key(draft.replaces),
            fact_id=self._known_id(draft.id, subject, predicate),
            explicit=draft.explicit is True,
            contrast=draft.contrast is True,
            position=self._transcript.position(turn),
        )
        claim = self._timed(claim, draft)
        if _blank(draft.value):
            if draft.action in ("assert", "correct"):
                raise _Refused("value", f"the value is {_show(draft.value)}, which states nothing")
            yield claim
            return
        for value in self._values(self._named_value(draft, predicate), claim.single_valued):
            yield replace(claim, value=value, value_key=value_key(value))

    def subject(self, given: object) -> SubjectRef:
        if given is None:
            return self.user
        if not isinstance(given, SubjectRef):
            raise _Refused("subject", f"a {type(given).__name__} is no SubjectRef")
        if isinstance(given.identifier, str) and fold(given.identifier) in _SELF:
            return self.user
        try:
            subject = check_subject(given)
        except InvalidArgument as exc:
            raise _Refused("subject", str(exc)) from exc
        if subject.kind in (self.user.kind, "user", "session"):  # "session": a user without a name
            if subject.identifier != self.user.identifier or subject.kind not in (self.user.kind, "user"):
                raise _Refused("subject", f"{_show(subject.identifier)} is another {subject.kind} than the session's")
            return self.user
        tidy = SubjectRef(subject.kind, " ".join(subject.identifier.split()))
        for fact in self._current:  # "nell" is the Nell we know
            if fact.subject.kind == tidy.kind and fold(fact.subject.identifier) == fold(tidy.identifier):
                return fact.subject
        return tidy

    def _predicate(self, given: object, subject: SubjectRef) -> str:
        try:
            predicate = normalise_predicate(given)
        except InvalidArgument as exc:
            raise _Refused("predicate", str(exc)) from exc
        # A name that is in use for this subject stays; else the well-known one for the same thing.
        in_use = any(fact.predicate == predicate and fact.subject == subject for fact in self._current)
        return predicate if in_use or subject != self.user else canonical(predicate)

    def _evidence(self, draft: FactDraft) -> tuple[Turn, Evidence]:
        quote, turn_id = draft.quote, draft.turn_id
        if not isinstance(quote, str) or not quote.strip():
            raise _Refused("evidence", "no quote: nothing shows that anybody said it")
        turn = self._transcript.find(quote, turn_id if isinstance(turn_id, str) else None)
        if turn is None:
            raise _Refused("evidence", f"the quote {_show(quote)} stands in no turn of this batch")
        return turn, Evidence(turn_id=turn.id, quote=quote.strip()[:_MAX_QUOTE_CHARS])

    def _supports(self, turn: Turn, evidence: Evidence, subject: SubjectRef, predicate: str) -> bool:
        """True if the turn says nothing but what a standing fact was learnt from: the same again ends nothing."""
        words = fold(evidence.quote or "")
        return fold(own_words(turn)) == words and any(
            fact.subject == subject
            and fact.predicate == predicate
            and fact.valid_to is None
            and any(one.quote is not None and fold(one.quote) == words for one in fact.evidence)
            for fact in self._current
        )

    def _confidence(self, given: object, authority: Authority) -> float:
        try:
            return _confidence(given, authority)
        except InvalidArgument as exc:
            raise _Refused("confidence", str(exc)) from exc

    def _single(self, given: object, predicate: str) -> bool:
        # What is well known before what a model says: "likes" declared single-valued would close every other.
        known = predicates.well_known(predicate)
        if known is not None:
            return known
        return given if isinstance(given, bool) else predicates.single_valued(predicate)

    def _known_id(self, given: object, subject: SubjectRef, predicate: str) -> str | None:
        if given is None:
            return None
        for fact in self._current:
            if fact.id == str(given):
                if fact.subject == subject and fact.predicate == predicate:
                    return fact.id
                raise _Refused(
                    "id", f"fact {_show(given)} is {_show(fact.predicate)} of {_show(fact.subject.identifier)}"
                )
        raise _Refused("id", f"no fact with the id {_show(given)} was shown")

    def _timed(self, claim: Claim, draft: FactDraft) -> Claim:
        try:
            start, stop = _interval(draft.valid_from, draft.valid_to)
        except InvalidArgument as exc:
            raise _Refused("time", str(exc)) from exc
        return replace(claim, valid_from=start, valid_to=stop)

    def _values(self, given: object, single: bool) -> Iterator[Any]:
        items = [given]
        if isinstance(given, list) and given and not single and all(isinstance(item, str) for item in given):
            items = [item for item in given if not _blank(item)][: self.limits.max_drafts]
        try:
            for item in items:
                yield check_value(item, self.limits.max_value_bytes)
        except InvalidArgument as exc:
            raise _Refused("value", str(exc)) from exc

    def _named_value(self, draft: FactDraft, predicate: str) -> object:
        """Return the draft's value, or the one its own predicate names, where it is known by another."""
        given = normalise_predicate(draft.predicate)
        named = predicates.value_named_by(given)
        if named is None or given == predicate:
            return draft.value
        if draft.value is True or (isinstance(draft.value, str) and fold(draft.value) in ("true", "yes", named)):
            return named
        raise _Refused("value", f"{given}: {_show(draft.value)} names no value of {predicate}")

    def _optional_key(self, given: object) -> bytes | None:
        if _blank(given):
            return None
        try:
            return value_key(check_value(given, self.limits.max_value_bytes))
        except InvalidArgument as exc:
            raise _Refused("value", f"replaces: {exc}") from exc


def check_value(value: object, max_bytes: int) -> Any:
    """Return the value as plain JSON types, a string without white space around it.

    Raises: InvalidArgument for None, blank text, numbers that are not finite, and more than max_bytes of JSON.
    """
    if isinstance(value, str):
        if len(value) > max_bytes:  # before any work on it
            raise InvalidArgument(f"value has {len(value)} characters, at most {max_bytes} bytes are allowed")
        value = value.strip()
    if _blank(value):
        raise InvalidArgument(f"value is {_show(value)}; a fact states something")
    encoded = encode_json(value, where="value")
    size = len(dumps(encoded).encode())
    if size > max_bytes:
        raise InvalidArgument(f"value takes {size} bytes, at most {max_bytes} are allowed; store a reference to it")
    plain = decode_json(encoded)
    value_key(plain)  # refuses NaN and infinities, also inside
    return plain


def _blank(value: object) -> bool:
    if isinstance(value, str):
        text = fold_space(value)  # circled and squared letters are letters, and a smile says something
        return re.fullmatch(r"[\W_]*|n/a|none|null|unknown|undefined", text) is not None and not any(
            unicodedata.category(char) == "So" for char in text
        )
    return value is None or value == [] or value == {}


def _confidence(given: object, authority: Authority) -> float:
    if given is None:
        return DEFAULT_CONFIDENCE[authority]
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
        raise InvalidArgument(f"confidence is {_show(given)}; it must be a number from 0 to 1")
    return float(given)


def _interval(start: object, stop: object) -> tuple[datetime | None, datetime | None]:
    try:
        start = check_time(start, "valid_from")  # type: ignore[arg-type]  # it checks
        stop = check_time(stop, "valid_to")  # type: ignore[arg-type]
    except OverflowError as exc:
        raise InvalidArgument("valid_from or valid_to lies outside the years 1 to 9999 in UTC") from exc
    if start is not None and stop is not None and stop <= start:
        raise InvalidArgument(f"valid_to {stop.isoformat()} is not after valid_from {start.isoformat()}")
    return start, stop


def _show(value: object) -> str:
    """Return a short repr for a message; a repr that fails is no reason to lose the batch."""
    try:
        text = repr(value)
    except Exception:  # whatever a foreign __repr__ raises
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."
