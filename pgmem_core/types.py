"""The small frozen values that pass between rooms, and between pgmem and its callers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

__all__ = [
    "Authority",
    "CompiledContext",
    "Item",
    "MemoryText",
    "RefusedWrite",
    "Role",
    "Scope",
    "ScoreParts",
    "ScoredMemory",
    "Section",
    "SessionInfo",
    "SubjectRef",
    "Turn",
]

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = ("system", "developer", "user", "assistant", "tool")
# Instructions of the host program, not something anybody remembers: stored, never indexed or recalled.
SILENT_ROLES: frozenset[str] = frozenset({"system", "developer"})


class Authority(StrEnum):
    """Who said so, strongest first. A lower authority never silently replaces a higher one."""

    user = "user"
    system = "system"
    tool = "tool"
    agent = "agent"


@dataclass(frozen=True, slots=True)
class SubjectRef:
    """Whom or what a fact is about, for example `SubjectRef(kind="customer", identifier="u_123")`."""

    kind: str
    identifier: str


@dataclass(frozen=True, slots=True)
class Scope:
    """Who a memory is about. `tenant_id` is the hard wall (the public face calls it `group_id`)."""

    tenant_id: str
    user_id: str
    agent_id: str | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as stored: its scope, its length and how far formation has come."""

    session_id: str
    group_id: str
    user_id: str | None
    agent_id: str | None
    metadata: Mapping[str, Any]
    created_at: datetime
    ended_at: datetime | None
    turn_count: int
    token_count: int
    embedded_through: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a session, whole. `seq` starts at 1 and has no gaps; `created_at` is aware UTC.

    `content` is what was given: a str, or the list of content blocks. `text` is its searchable text. `utc_offset`
    ("-08:00") is that of the time given, where it was not UTC: what day it was for the speaker.
    """

    id: str
    session_id: str
    seq: int
    role: str
    content: str | list[dict[str, Any]]
    text: str
    created_at: datetime
    token_count: int
    name: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    tool_call_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    utc_offset: str | None = None

    def as_message(self) -> dict[str, Any]:
        """Return the role/content dict that chat APIs take."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.name:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """Why a memory was chosen. `bm25` and `cosine` are raw; the rest is on the scale of the final score.

    `lexical` and `dense` are the two arms after scaling to 0..1, `neighbour` and `episode` what the turns
    beside it and the best turns of its session lent it, `decay` the factor that age left (0..1], `weight` the factor
    of a fact's confidence and of who said it.
    """

    lexical: float
    dense: float
    neighbour: float
    episode: float
    decay: float
    bm25: float
    cosine: float | None
    weight: float = 1.0

    def why(self) -> str:
        """Say in one line what made the score."""
        cosine = "not embedded yet" if self.cosine is None else f"cosine {self.cosine:.2f}"
        lent = self.neighbour + self.episode
        sure = "" if self.weight == 1 else f" · sure ×{self.weight:.2f}"
        return (
            f"words {self.lexical:.2f} (bm25 {self.bm25:.1f}) · meaning {self.dense:.2f} ({cosine})"
            f" · neighbours {lent:.2f} · age ×{self.decay:.2f}{sure}"
        )


@dataclass(frozen=True, slots=True)
class ScoredMemory:
    """A memory found by a search, best first: its text, where it is from and why it was found."""

    id: str
    kind: str
    content: str
    score: float
    parts: ScoreParts
    session_id: str
    seq: int | None
    role: str | None
    name: str | None
    created_at: datetime
    token_count: int
    metadata: Mapping[str, Any]


class MemoryText(str):
    """A remembered text that knows where it is from. `score` is cosine similarity, -1..1, or None."""

    __slots__ = ("created_at", "id", "kind", "metadata", "role", "score", "seq", "session_id", "user_id")

    id: str
    kind: str
    score: float | None
    session_id: str
    user_id: str | None
    seq: int | None
    role: str | None
    created_at: datetime
    metadata: dict[str, Any]

    @classmethod
    def of(cls, text: str, **attributes: Any) -> MemoryText:
        """Return text with the attributes named in `__slots__` set."""
        made = cls(text)
        for name in cls.__slots__:
            setattr(made, name, attributes.get(name))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_memory_text, (str(self), {name: getattr(self, name) for name in self.__slots__})


def _restore_memory_text(text: str, attributes: dict[str, Any]) -> MemoryText:
    return MemoryText.of(text, **attributes)


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of a section: its text as rendered, what it cost, and why it is there."""

    id: str
    text: str
    token_count: int
    created_at: datetime | None = None
    score: float | None = None
    parts: ScoreParts | None = None
    why: str = ""
    kind: str = ""
    session_id: str | None = None
    seq: int | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """A current fact, or an entry of execution memory, as the read brings it: what a prompt shows of it."""

    id: str
    text: str
    at: datetime
    authority: str | None = None
    confidence: float | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """A narrative, or a session's running summary, as the read brings it."""

    version: int
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Section:
    """One tier's share of a compiled context."""

    tier: str
    items: tuple[Item, ...] = ()

    @property
    def token_count(self) -> int:
        return sum(item.token_count for item in self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class CompiledContext:
    """What `compile_context` returns: the prompt, and an account of how it came to be.

    `messages` are role/content dicts ready for a chat API: a system message and what always holds (the stable
    prefix), the running summary and the window of this session, at most one fenced data message (the volatile tail),
    and the query. `prefix_hash` is the SHA-256 of the stable prefix. `timings` are milliseconds by step; `notes` say
    what was left out. `known_at` is the moment of the read, by the database's clock: with `query_id` it names what
    was shown, `compile_context(query, known_at=…, query_id=…)` shows it again. `turns` are those of this session that
    were read, oldest first, whole: before the budget cut them.
    """

    messages: list[dict[str, Any]]
    sections: Mapping[str, Section]
    token_count: int
    budget_tokens: int
    prefix_hash: str
    timings: Mapping[str, float]
    notes: Sequence[str]
    query_id: str | None
    session_id: str
    prefix_message_count: int
    known_at: datetime | None = None
    turns: Sequence[Turn] = ()

    @property
    def prefix(self) -> list[dict[str, Any]]:
        """The messages before the volatile tail: what a provider's prompt cache can keep."""
        return self.messages[: self.prefix_message_count]


@dataclass(frozen=True, slots=True)
class RefusedWrite:
    """A write that the policy refused, without its content: `content_hash` is of the group and the text, `length`
    the text's characters."""

    id: str
    group_id: str
    entry: str
    reason: str
    content_hash: str
    length: int
    refused_at: datetime


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn ready to be stored: checked, counted, its terms known."""

    id: uuid.UUID
    role: str
    text: str
    message: dict[str, Any] | None
    metadata: dict[str, Any]
    token_count: int
    created_at: datetime | None
    terms: tuple[int, ...]
    term_counts: tuple[int, ...]
    term_total: int
    given_id: bool = False
    provisional: bool = False
    after_seq: int | None = None
