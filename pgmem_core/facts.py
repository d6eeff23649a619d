"""Facts, what is proposed about them, and the keys by which two of them are the same. Pure values.

A fact is (subject, predicate, value) with who said so, how sure, when it holds and when we believed it. Two
values are the same when their `value_key` is (see `pgmem_core.folding`), two subjects when their `subject_key`
is; predicates are compared as `normalise_predicate` writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, Literal, Protocol, runtime_checkable

from pgmem_core.encoding import dumps, encode_json
from pgmem_core.errors import InvalidArgument
from pgmem_core.folding import value_key
from pgmem_core.ids import check_id
from pgmem_core.predicates import normalise_predicate
from pgmem_core.types import Authority, SubjectRef, Turn

__all__ = [
    "ACTIONS",
    "DEFAULT_CONFIDENCE",
    "REVIEW_STATUSES",
    "VERDICTS",
    "Action",
    "Decision",
    "Evidence",
    "Extractor",
    "Fact",
    "FactDraft",
    "ReviewItem",
    "ReviewStatus",
    "Status",
    "Tombstone",
    "Verdict",
    "check_subject",
    "fact_text",
    "outranks",
    "render_value",
    "strength",
    "subject_key",
]

Status = Literal["accepted", "contested", "rejected"]
Action = Literal["assert", "correct", "end", "retract"]
Verdict = Literal["confirm", "reject", "reopen"]
VERDICTS: tuple[Verdict, ...] = ("confirm", "reject", "reopen")
ReviewStatus = Literal["contested", "low_confidence", "rejected"]
REVIEW_STATUSES: tuple[ReviewStatus, ...] = ("contested", "low_confidence", "rejected")
ACTIONS: tuple[Action, ...] = ("assert", "correct", "end", "retract")

_STRENGTH = {Authority.user: 4, Authority.system: 3, Authority.tool: 2, Authority.agent: 1}
# How sure we are when nobody says: a person about himself may still err, an inference is a coin toss.
DEFAULT_CONFIDENCE = {Authority.user: 0.9, Authority.system: 0.9, Authority.tool: 0.7, Authority.agent: 0.5}


def strength(authority: Authority) -> int:
    """Return 4 for user, 3 system, 2 tool, 1 agent; a greater number wins."""
    return _STRENGTH[authority]


def outranks(one: Authority, other: Authority) -> bool:
    """True if one is strictly stronger than other."""
    return strength(one) > strength(other)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What supports a fact: a turn of the same tenant, or a `source` outside (a URL, a ticket, a record's id).

    `quote` is verbatim from the turn. At least one of `turn_id` and `source` is given.
    """

    turn_id: str | None = None
    source: str | None = None
    quote: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided in review about a fact or a rejected value: who, when, and a note if one was left."""

    decision: Verdict
    decided_by: str
    decided_at: datetime
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A stored fact. `valid_*` is when it holds in the world, `recorded_at`/`superseded_at` when we believed it.

    Intervals are half-open; None is open. `last_confirmed_at` is when it was last *said* (a turn's time), not
    when a worker came round to it.
    """

    id: str
    group_id: str
    subject: SubjectRef
    predicate: str
    value: Any
    authority: Authority
    confidence: float
    status: Status
    single_valued: bool
    valid_from: datetime | None
    valid_to: datetime | None
    recorded_at: datetime
    superseded_at: datetime | None
    last_confirmed_at: datetime
    superseded_by: str | None = None
    evidence: tuple[Evidence, ...] = ()
    decisions: tuple[Decision, ...] = ()  # in history alone

    @property
    def text(self) -> str:
        """Return "predicate: value" on one line, as a prompt shows it."""
        return f"{self.predicate}: {render_value(self.value)}"

    @property
    def value_key(self) -> bytes:
        """Return the 32 bytes by which this value is compared; computed at each call (about 10 µs)."""
        return value_key(self.value)

    def holds_at(self, moment: datetime) -> bool:
        """True if we believe it today and it is valid at the moment."""
        return (
            self.status == "accepted"
            and self.superseded_at is None
            and (self.valid_from is None or self.valid_from <= moment)
            and (self.valid_to is None or moment < self.valid_to)
        )


@dataclass(frozen=True, slots=True)
class FactDraft:
    """What an extractor proposes. Nothing in it is trusted: reconciliation checks every field.

    `subject` None means the user of the session. `action`: "assert" states a value; "correct" says that an
    earlier value was wrong (`replaces` is that value, if known); "end" says that it was true and is no longer;
    "retract" that it never was. `single_valued` None means not declared. `quote` is verbatim from the turn
    `turn_id`. `id` is the id of a known fact that the model named, if it did.

    `explicit`: it says that this holds again or from now on ("I'm vegan again"), and so brings back a rejected value.
    `contrast`: what it replaces is named in passing ("not X, I'm Y"): it is rejected only if it is held just then.
    """

    predicate: str
    value: Any = None
    subject: SubjectRef | None = None
    action: Action = "assert"
    replaces: Any | None = None
    single_valued: bool | None = None
    confidence: float | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    turn_id: str | None = None
    quote: str | None = None
    id: Any = None
    explicit: bool = False
    contrast: bool = False


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A value called wrong. It stays dead until the authority that rejected it, or a higher one, says otherwise.

    `rejected_at` is when that was said (a turn's time): a quote from before cannot lift it. `fact_id` is the
    row it was, or None if the value was denied before anybody had claimed it. A lifted one is kept, with the time:
    what was said until then stays rejected.
    """

    subject: SubjectRef
    predicate: str
    value_key: bytes
    authority: Authority
    rejected_at: datetime
    fact_id: str | None = None
    lifted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """Something for a person to decide. `id` is what `decide` takes.

    `value` is None where a value was rejected that nobody had claimed: its key alone is kept. `authority` and `at`:
    who said so and when; of a rejected value who rejected it and when, and `hits` how often it was stated since.
    `conflicts`: the standing facts that cannot hold beside it.
    """

    id: str
    status: ReviewStatus
    subject: SubjectRef
    predicate: str
    value: Any
    authority: Authority
    at: datetime
    confidence: float | None = None
    evidence: tuple[Evidence, ...] = ()
    conflicts: tuple[Fact, ...] = ()
    hits: int = 0
    decisions: tuple[Decision, ...] = ()

    @property
    def text(self) -> str:
        """Return "predicate: value" on one line."""
        shown = "(a value that nobody had claimed)" if self.value is None else render_value(self.value)
        return f"{self.predicate}: {shown}"


@runtime_checkable
class Extractor(Protocol):
    """Reads turns and proposes facts. `known` are the current facts, so that it can name what it corrects."""

    def extract(self, turns: Sequence[Turn], known: Sequence[Fact]) -> list[FactDraft]:
        """Return drafts, best effort. Raises: ExtractionError when the model's reply cannot be read."""
        ...

    async def aextract(self, turns: Sequence[Turn], known: Sequence[Fact]) -> list[FactDraft]:
        """The same, awaited."""
        ...


def check_subject(subject: SubjectRef) -> SubjectRef:
    """Return the subject with its kind normalised as a predicate is; the identifier is left as it is.

    Raises: InvalidArgument.
    """
    if not isinstance(subject, SubjectRef):
        raise InvalidArgument(
            f"subject must be a SubjectRef, got {type(subject).__name__}; a user is SubjectRef('user', {subject!r:.80})"
        )
    kind = normalise_predicate(subject.kind, name="subject.kind")
    identifier = check_id(subject.identifier, "subject.identifier")
    return subject if kind == subject.kind else SubjectRef(kind=kind, identifier=identifier)


def subject_key(subject: SubjectRef) -> bytes:
    """Return 32 bytes for kind and identifier.

    The kind is normalised. The identifier is taken to the letter: two users' ids that differ in case only are
    two users. Raises: InvalidArgument.
    """
    checked = check_subject(subject)
    hashed = blake2b(digest_size=32, person=b"pgmem.subject.1")
    hashed.update(checked.kind.encode() + b"\x00" + checked.identifier.encode())
    return hashed.digest()


def render_value(value: Any) -> str:
    """Return the value on one line: a string as it is with white space folded, anything else as compact JSON."""
    if isinstance(value, str):
        return " ".join(value.split())
    return dumps(encode_json(value, where="value"))


def fact_text(subject: SubjectRef, predicate: str, value: Any, user_id: str) -> str:
    """Return the fact as one line of plain words: "lives in: Porto", with the subject where it is not the user."""
    words = predicate.replace("_", " ").replace(".", " ")
    own = subject.kind == "user" and subject.identifier == user_id
    return f"{words}: {render_value(value)}" if own else f"{subject.identifier} {words}: {render_value(value)}"
