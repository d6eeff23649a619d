"""Conversations of a file into memory: once per turn id, in whole batches, with their vectors.

A turn that comes with its vector costs one insert; one that is embedded later costs a second version of its row
in every index. 2,812 turns with 256 dimensions, two cores with other work on them: 950 a second this way, 670 with
`add_turns` by session and `form` after it. Two thirds of Postgres' time is the HNSW insert, 0.65 ms a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pgmem_core.content import spoken
from pgmem_core.database.connection import Connection
from pgmem_core.database.migrate import Model
from pgmem_core.effects import Flow, transact
from pgmem_core.encoding import decode_text, encode_json
from pgmem_core.errors import Conflict, EmbeddingError, InvalidArgument, MissingExtra, WriteRefused
from pgmem_core.flows import embed_all, ready, store_model
from pgmem_core.formation import embedding
from pgmem_core.formation.embedding import Pending
from pgmem_core.ids import check_id, is_uuid
from pgmem_core.importing import Conversation, ImportedSession, ImportedTurn, Problem
from pgmem_core.protocols import Vectors
from pgmem_core.retrieval import lexical
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import erasures, imports, plain, working
from pgmem_core.tiers.erasures import Said
from pgmem_core.tiers.imports import NewSession
from pgmem_core.turns import is_blank, new_turn
from pgmem_core.types import SILENT_ROLES, NewTurn, Scope

__all__ = ["Batch", "Counts", "Target", "batches", "store"]

Screen = Callable[[Any, str], Any]
_ENTRY = "import"
# Turns a transaction: what Ctrl-C waits for (0.2 s) and what kill -9 can undo.
CHUNK = 256


@dataclass(frozen=True, slots=True)
class Target:
    """Where a file goes. `user_id` None: the file says. `session_prefix` goes before each of its session ids."""

    group_id: str = "default"
    user_id: str | None = None
    session_prefix: str = ""

    def user_of(self, conversation: Conversation, session: ImportedSession) -> str:
        """Return whose the session is. Raises: InvalidArgument if nobody says."""
        found = self.user_id or session.user_id or conversation.user_id
        if found is None:
            raise InvalidArgument(
                f"conversation {conversation.name!r} does not say whose it is; name its user with --user-id"
            )
        return check_id(found)

    def session_of(self, session: ImportedSession) -> str:
        return check_id(self.session_prefix + session.session_id, "session_id")

    def turn_of(self, turn: ImportedTurn) -> str:
        """Return the turn's id as `new_turn` takes it. A UUID names one turn of the whole group: under a prefix it is
        another turn, so that the same file may be stored a second time. Other ids are of their session anyway."""
        return f"turn {turn.id}" if self.session_prefix and is_uuid(turn.id) else turn.id


@dataclass(frozen=True, slots=True)
class Counts:
    """What storing did. `turns_known` were there already, `turns_forgotten` had been erased, and were left out."""

    sessions: int = 0
    sessions_new: int = 0
    turns_new: int = 0
    turns_known: int = 0
    turns_forgotten: int = 0
    embedded: int = 0

    @property
    def turns(self) -> int:
        """How many have been dealt with."""
        return self.turns_new + self.turns_known + self.turns_forgotten

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.sessions + other.sessions,
            self.sessions_new + other.sessions_new,
            self.turns_new + other.turns_new,
            self.turns_known + other.turns_known,
            self.turns_forgotten + other.turns_forgotten,
            self.embedded + other.embedded,
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive turns of one session, ready to store. `first`: the file had no turns of it before these."""

    session: NewSession
    turns: tuple[NewTurn, ...]
    first: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """The pieces of one transaction."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        return sum(len(piece.turns) for piece in self.pieces)


def batches(
    conversations: Iterable[Conversation],
    target: Target,
    *,
    language: str,
    on_problem: Callable[[Problem], None],
    on_refused: Callable[[WriteRefused], None] = lambda refused: None,
    screen: Screen | None = None,
    file: str = "",
) -> Iterator[Batch]:
    """Yield the file in transactions of about CHUNK turns. A turn that cannot be stored, or that `screen` (the write
    policy) refuses, is a problem, not an end.

    Raises: InvalidArgument if a session has no user, or an id that no index can hold.
    """
    pieces: list[Piece] = []
    waiting = 0
    seen: set[str] = set()
    for conversation in conversations:
        for session in conversation.sessions:
            title = session.title
            if title and screen is not None:
                try:
                    title = screen(title, _ENTRY)
                except WriteRefused as exc:
                    on_refused(exc)
                    on_problem(Problem(file, f"session {session.session_id!r}, title", str(exc)))
                    title = None
            made = NewSession(
                target.session_of(session),
                target.user_of(conversation, session),
                session.created_at,
                encode_json({"title": title}, where="title") if title else {},
            )
            turns = []
            for turn in session.turns:
                try:
                    turns.append(_turn(turn, made, target, language, screen))
                except (InvalidArgument, WriteRefused) as exc:
                    if isinstance(exc, WriteRefused):
                        on_refused(exc)
                    on_problem(Problem(file, f"session {session.session_id!r}, turn {turn.id!r}", str(exc)))
            for at in range(0, max(len(turns), 1), CHUNK):
                part = turns[at : at + CHUNK]
                if waiting + len(part) > CHUNK and pieces:
                    yield Batch(tuple(pieces))
                    pieces, waiting = [], 0
                pieces.append(Piece(made, tuple(part), made.session_id not in seen))
                seen.add(made.session_id)
                waiting += len(part)
    if pieces:
        yield Batch(tuple(pieces))


def _turn(turn: ImportedTurn, made: NewSession, target: Target, language: str, screen: Screen | None) -> NewTurn:
    if screen is not None:
        turn = replace(
            turn, content=screen(turn.content, _ENTRY), name=screen(turn.name, _ENTRY),
            tool_calls=tuple(screen(turn.tool_calls, _ENTRY)), tool_call_id=screen(turn.tool_call_id, _ENTRY),
            metadata=screen(turn.metadata, _ENTRY),
        )  # fmt: skip
    return new_turn(
        tenant_id=target.group_id, session_id=made.session_id, language=language, role=turn.role,
        content=turn.content, id=target.turn_of(turn), name=turn.name, tool_calls=turn.tool_calls,
        tool_call_id=turn.tool_call_id, metadata=turn.metadata, created_at=turn.created_at,
    )  # fmt: skip


# -- storing a batch -------------------------------------------------------------------------------------------

TurnVectors = list[Vectors | None]


def store(rt: Runtime, target: Target, batch: Batch) -> Flow[Counts]:
    """Store a batch in one transaction, each turn once, and return what was done.

    Raises: Conflict (a session of another user, a turn id of another session), StoreUnavailable.
    """
    yield from ready(rt)
    tenant = target.group_id
    there = yield from transact(
        imports.stored_sessions, tenant, sorted({piece.session.session_id for piece in batch.pieces}), single=True
    )
    for piece in batch.pieces:
        owner, _ = there.get(piece.session.session_id, (piece.session.user_id, 0))
        if owner != piece.session.user_id:
            raise Conflict(
                f"session {piece.session.session_id!r} belongs to another user, {piece.session.user_id!r} was given;"
                " import with --session-prefix or another --group-id"
            )
    known = yield from transact(
        imports.known_turns, tenant, [turn.id for piece in batch.pieces for turn in piece.turns], single=True
    )
    left = [
        replace(piece, turns=tuple(t for t in piece.turns if (piece.session.session_id, t.id) not in known))
        for piece in batch.pieces
    ]
    turns_left = sum(len(piece.turns) for piece in left)
    left, sessions = yield from transact(_not_forgotten, tenant, left, single=True)
    missing = [session for session in sessions if session.session_id not in there]
    writing = [piece for piece in left if piece.turns]
    forgotten = turns_left - sum(len(piece.turns) for piece in writing)
    made = new = 0
    embedded: dict[str, int] = {}
    if writing or missing:
        # What was said before a turn is part of its vector: where that is not in this batch, `form` looks it up.
        whole = [piece.first and there.get(piece.session.session_id, ("", 0))[1] == 0 for piece in writing]
        vectors, model = yield from _vectors(rt, writing, whole)
        made, new, embedded = yield from transact(_write, tenant, missing, writing, vectors, model)
        for user_id, count in (*sorted(embedded.items()), (None, sum(embedded.values()))):
            if count:
                yield from transact(plain.refresh_stats, tenant, user_id, count, single=True)
    return Counts(
        sessions=sum(piece.first for piece in batch.pieces),
        sessions_new=made,
        turns_new=new,
        turns_known=batch.size - forgotten - new,
        turns_forgotten=forgotten,
        embedded=sum(embedded.values()),
    )


def _not_forgotten(conn: Connection, tenant: str, pieces: Sequence[Piece]) -> tuple[list[Piece], list[NewSession]]:
    """Return the pieces without the turns that were erased since they were said, and the sessions that were not: of
    the others not even the title comes back."""
    whole = [Said(one.session.user_id, one.session.session_id, one.session.created_at) for one in pieces]
    single = [
        Said(one.session.user_id, one.session.session_id, turn.created_at, turn.id)
        for one in pieces
        for turn in one.turns
    ]
    gone = erasures.blocked(conn, tenant, [*whole, *single])
    if not any(gone):
        return list(pieces), [piece.session for piece in pieces]
    of_turn = iter(gone[len(whole) :])
    left = [replace(piece, turns=tuple(turn for turn in piece.turns if not next(of_turn))) for piece in pieces]
    return left, [piece.session for piece, erased in zip(pieces, gone, strict=False) if not erased]


def _vectors(rt: Runtime, pieces: Sequence[Piece], whole: Sequence[bool]) -> Flow[tuple[list[TurnVectors], str | None]]:
    """Return the vectors of each piece's turns, None for those that `form` is to embed, and their model's id."""
    vectors: list[TurnVectors] = [[None] * len(piece.turns) for piece in pieces]
    pending: list[Pending] = []
    places: list[tuple[int, int]] = []
    for number, piece in enumerate(pieces):
        before = ""
        for at, turn in enumerate(piece.turns if whole[number] else ()):
            text = _said(turn)
            if text and not lexical.is_pleasantry(decode_text(turn.text)):
                pending.append(Pending(turn.id, at, text, before))
                places.append((number, at))
            before = text or before
    if not pending:
        return vectors, None
    try:
        model = yield from store_model(rt)
        found = yield from _embedded(rt, model, pending)
    except (EmbeddingError, MissingExtra):
        return vectors, None  # the turns are stored all the same; `form` meets the error again, and tells it
    for (number, at), vector in zip(places, found, strict=True):
        vectors[number][at] = vector
    return vectors, model.id


def _said(turn: NewTurn) -> str:
    """Return what the worker would embed of a turn."""
    text = decode_text(turn.text)
    if turn.role in SILENT_ROLES or is_blank(text):
        return ""
    name = (turn.message or {}).get("name")
    return spoken(text, name and decode_text(name))


def _embedded(rt: Runtime, model: Model, pending: list[Pending]) -> Flow[Vectors]:
    return embedding.combine((yield from embed_all(rt, model, embedding.texts_of(pending))))


def _write(
    conn: Connection,
    tenant: str,
    sessions: Sequence[NewSession],
    pieces: Sequence[Piece],
    vectors: Sequence[TurnVectors],
    model: str | None,
) -> tuple[int, int, dict[str, int]]:
    """Write a batch; return how many sessions and turns are new, and by user how many have their vector."""
    erasures.serialise(conn, tenant, erasing=False)
    left, _ = _not_forgotten(conn, tenant, pieces)
    if any(len(piece.turns) < len(given) for piece, given in zip(left, vectors, strict=True)):
        raise Conflict("something of this batch was forgotten while it was read; import again, and it is left out")
    made = imports.create_sessions(conn, tenant, sessions) if sessions else 0
    new = 0
    embedded: dict[str, int] = {}
    # In the order of their ids, as every batch locks its sessions. The sort keeps the pieces of one in order.
    for piece, given in sorted(zip(pieces, vectors, strict=True), key=lambda pair: pair[0].session.session_id):
        stored = working.append(
            conn, Scope(tenant, piece.session.user_id), piece.session.session_id, piece.turns, create=True,
            model=model, vectors=given if any(vector is not None for vector in given) else None,
        )  # fmt: skip
        fresh = [is_new for *_, is_new in stored]
        new += sum(fresh)
        count = sum(one and vector is not None for one, vector in zip(fresh, given, strict=True))
        embedded[piece.session.user_id] = embedded.get(piece.session.user_id, 0) + count
    imports.mark_embedded(conn, tenant, [piece.session.session_id for piece in pieces])
    return made, new, embedded
