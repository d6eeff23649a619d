"""What every reader gives: conversations of sessions of turns, whatever the file looked like."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

__all__ = ["Conversation", "ImportedSession", "ImportedTurn", "Problem", "Question"]


@dataclass(frozen=True, slots=True)
class ImportedTurn:
    """One message. `id` is the file's own, or derived from its content and position, so that reading the
    same file again gives the same ids. `content` is text or content blocks, exactly as the file has it.
    `created_at` is aware UTC, or None when the file does not say. `seq` is the file's own number, if any;
    the order of `ImportedSession.turns` is the order to store.
    """

    id: str
    role: str
    content: str | list[dict[str, Any]]
    name: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    tool_call_id: str | None = None
    created_at: datetime | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class ImportedSession:
    """One thread, or a piece of one: a file that interleaves sessions gives a session in several pieces, in
    order, with the same `session_id`. `user_id` is None when the file does not name the user.
    """

    session_id: str
    user_id: str | None
    title: str | None
    created_at: datetime | None
    turns: tuple[ImportedTurn, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a conversation. `evidence` holds ids of turns of that conversation that answer it."""

    text: str
    evidence: tuple[str, ...] = ()
    category: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Sessions that belong together (one user, one benchmark sample, one exported chat)."""

    name: str
    user_id: str | None
    sessions: tuple[ImportedSession, ...]
    questions: tuple[Question, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of a file that was left out. `where` names it ("line 7", "element 3, message 2")."""

    file: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}, {self.where}: {self.message}"
