"""The injection log: what an agent was shown, by ids, scores and versions. Written off the turn, prunable. Operations.

The texts stay where they are: what is erased there cannot be read here. Of what the caller passed in, only a hash
and the length are kept.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from pgmem_core.content import Content
from pgmem_core.database.connection import Connection, jsonb
from pgmem_core.encoding import decode_json, decode_text, encode_json
from pgmem_core.facts import Evidence, Fact, fact_text
from pgmem_core.ids import new_id
from pgmem_core.tiers import beliefs
from pgmem_core.types import Authority, CompiledContext, Scope, ScoredMemory, ScoreParts, Standing

__all__ = ["Injection", "Prompt", "Shown", "entry_of", "find", "hash_of", "newest", "of_turn", "record"]


@dataclass(frozen=True, slots=True)
class Injection:
    """One thing that an agent was shown for a turn, and what is known of it today.

    `text` is what it says today, None where it was erased or never kept (execution memory, and what the caller
    passed in, of which `length` counts the characters and `id` is a hash). Who said it: `role` of a turn;
    `authority` and `evidence` of a fact. `known_at` is the moment of the read: the same for all of one prompt.
    """

    turn_id: str
    session_id: str
    known_at: datetime
    tier: str
    kind: str
    id: str
    text: str | None
    token_count: int
    why: str
    score: float | None = None
    parts: ScoreParts | None = None
    role: str | None = None
    authority: Authority | None = None
    evidence: tuple[Evidence, ...] = ()
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt that showed an agent some memory. `turn_id` is the turn it was made for, which `why` and
    `compile_context` take; `question` is what that says today, None where it was pruned. `shown`: what stood in the
    prompt besides the conversation itself. `token_count`: of the whole prompt.
    """

    turn_id: str
    session_id: str
    user_id: str
    known_at: datetime
    question: str | None
    token_count: int
    shown: tuple[Injection, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the log, before it is written."""

    session_id: str
    turn_id: uuid.UUID
    known_at: datetime
    items: list[dict[str, Any]]
    frame: dict[str, Any]
    prefix_hash: str
    messages_hash: str
    token_count: int


@dataclass(frozen=True, slots=True)
class Shown:
    """A row of the log: what was in a prompt, so that it can be put together again.

    `frame` holds the window's first and last turn, the prefix's age and the budgets; `query` is what the turn says,
    None where it was part of the window.
    """

    turn_id: str
    known_at: datetime
    messages_hash: str
    items: Sequence[Mapping[str, Any]]
    frame: Mapping[str, Any]
    query: Content | None = field(default=None)

    def ids(self, *, recalled: bool) -> list[str]:
        """Return the ids of what was recalled (turns, episodes, facts), or of the facts that stood, in order."""
        return [
            one["id"]
            for one in self.items
            if one["tier"] in ("semantic", "episodic") and (one.get("parts") is not None) == recalled
        ]

    def version(self, kind: str) -> int:
        """Return which narrative or summary was shown; 0: none."""
        found = [one["id"] for one in self.items if one["kind"] == kind]
        return int(found[0].partition(":")[2]) if found else 0

    @staticmethod
    def parameters(shown: Shown | None) -> dict[str, Any]:
        """Return what read_context is told of the log; without a row of it, nothing."""
        if shown is None:
            return dict.fromkeys(("from", "through", "prefix_at", "standing", "recalled", "narrative", "summary"), None)
        return {
            "from": shown.frame["from"],
            "through": shown.frame["through"],
            "prefix_at": shown.frame["prefix_at"],
            "standing": [uuid.UUID(one) for one in shown.ids(recalled=False)],
            "recalled": [uuid.UUID(one) for one in shown.ids(recalled=True)],
            "narrative": shown.version("narrative"),
            "summary": shown.version("summary"),
        }

    def scored(self, memories: Iterable[ScoredMemory]) -> Iterator[tuple[ScoredMemory, tuple[float, ScoreParts]]]:
        """Yield memories with the scores they had, best first."""
        scores = {one["id"]: (one["score"], ScoreParts(**one["parts"])) for one in self.items if one.get("parts")}
        yield from sorted(((one, scores[one.id]) for one in memories), key=lambda pair: -pair[1][0])

    def in_order(self, facts: Iterable[Standing]) -> list[Standing]:
        """Return facts in the order in which they were shown."""
        place = {one: number for number, one in enumerate(self.ids(recalled=False))}
        return sorted(facts, key=lambda fact: place[fact.id])


def hash_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the SHA-256 of messages as they were rendered."""
    text = json.dumps(messages, ensure_ascii=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def entry_of(
    compiled: CompiledContext,
    turn_id: uuid.UUID,
    *,
    messages: Sequence[Mapping[str, Any]],
    frame: dict[str, Any],
    lengths: Mapping[str, int],
) -> Entry:
    """Return what the log says of a compiled context. `messages`: as they were when it was returned; `lengths`: of the
    caller's own texts, by id. Holds no text."""
    items = []
    for tier, section in compiled.sections.items():
        for item in section.items:
            if item.kind == "turn" and tier == "working":
                continue
            one: dict[str, Any] = {"tier": tier, "kind": item.kind, "id": item.id, "tokens": item.token_count,
                                   "why": item.why}  # fmt: skip
            if item.score is not None:
                one["score"] = item.score
            if item.parts is not None:
                one["parts"] = asdict(item.parts)
            if item.kind == "external":
                one["length"] = lengths.get(item.id)
            items.append(one)
    assert compiled.known_at is not None
    return Entry(
        compiled.session_id, turn_id, compiled.known_at, items, frame, compiled.prefix_hash, hash_of(messages),
        compiled.token_count,
    )  # fmt: skip


def record(conn: Connection, scope: Scope, entry: Entry) -> None:
    """Write one row, if the user's session is there (still). One statement."""
    conn.query(
        f"""INSERT INTO {conn.schema}.injections (tenant_id, injection_id, session_id, user_id, turn_id, known_at,
              items, frame, prefix_hash, messages_hash, token_count)
            SELECT %(tenant)s, %(id)s, %(session)s, %(user)s, %(turn)s, %(known)s, %(items)s, %(frame)s, %(prefix)s,
              %(messages)s, %(tokens)s
            FROM {conn.schema}.sessions
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND user_id = %(user)s
            FOR KEY SHARE""",  # whoever is erasing the session is waited for
        {
            "tenant": scope.tenant_id, "id": new_id(), "session": entry.session_id, "user": scope.user_id,
            "turn": entry.turn_id, "known": entry.known_at, "items": jsonb(encode_json(entry.items, where="items")),
            "frame": jsonb(encode_json(entry.frame, where="frame")), "prefix": entry.prefix_hash,
            "messages": entry.messages_hash, "tokens": entry.token_count,
        },
    )  # fmt: skip


# A turn that was stored before the caller's own id for it came is found by that one too.
_OF_TURN = """i.turn_id = ANY (ARRAY[%(turn)s, (SELECT a.id FROM {schema}.records a
    WHERE a.tenant_id = %(tenant)s AND a.alias_id = %(turn)s)])"""


def find(conn: Connection, scope: Scope, session_id: str, turn_id: uuid.UUID, known_at: datetime) -> Shown | None:
    """Return the last row of a turn by known_at, or None if nothing was logged by then. Plan: injections_of_turn."""
    rows = conn.query(
        f"""SELECT i.turn_id, i.known_at, i.messages_hash, i.items, i.frame, r.content, r.message
            FROM {conn.schema}.injections i
            LEFT JOIN {conn.schema}.records r ON r.tenant_id = i.tenant_id AND r.id = i.turn_id
            WHERE i.tenant_id = %(tenant)s AND i.session_id = %(session)s AND i.user_id = %(user)s
              AND {_OF_TURN.format(schema=conn.schema)} AND i.known_at <= %(known)s
            ORDER BY i.known_at DESC, i.injection_id DESC LIMIT 1""",
        {
            "tenant": scope.tenant_id, "session": session_id, "user": scope.user_id, "turn": turn_id,
            "known": known_at,
        },
    )  # fmt: skip
    if not rows:
        return None
    [(turn, known, messages_hash, items, frame, content, message)] = rows
    query: Content | None = None
    if frame["asked"] and content is not None:
        query = decode_json(message)["content"] if message and "content" in message else decode_text(content)
    return Shown(str(turn), known.astimezone(UTC), messages_hash, decode_json(items), decode_json(frame), query)


# -- why -------------------------------------------------------------------------------------------------------


def of_turn(conn: Connection, tenant_id: str, turn_id: uuid.UUID) -> list[Injection]:
    """Return everything that was shown for a turn, in the order of the reads and then as it was shown."""
    rows = conn.query(
        f"""SELECT i.turn_id, i.session_id, i.user_id, i.known_at, i.items FROM {conn.schema}.injections i
            WHERE i.tenant_id = %(tenant)s AND {_OF_TURN.format(schema=conn.schema)}
            ORDER BY i.known_at, i.injection_id""",
        {"tenant": tenant_id, "turn": turn_id},
    )
    return [one for shown in _injections(conn, tenant_id, rows) for one in shown]


def newest(
    conn: Connection, tenant_id: str, *, session_id: str | None, user_id: str | None, limit: int
) -> list[Prompt]:
    """Return the prompts of a session, a user or the group, newest first. Plan: injections_of_session,
    injections_of_user or injections_by_age, read backwards."""
    given = {"i.session_id = %(session)s": session_id, "i.user_id = %(user)s": user_id}
    where = " AND ".join(["i.tenant_id = %(tenant)s", *(one for one, value in given.items() if value is not None)])
    rows = conn.query(
        f"""SELECT i.turn_id, i.session_id, i.user_id, i.known_at, i.items, i.token_count, r.content
            FROM {conn.schema}.injections i
            LEFT JOIN {conn.schema}.records r ON r.tenant_id = i.tenant_id AND r.id = i.turn_id
            WHERE {where} ORDER BY i.known_at DESC, i.injection_id DESC LIMIT %(limit)s""",
        {"tenant": tenant_id, "session": session_id, "user": user_id, "limit": limit},
    )
    shown = _injections(conn, tenant_id, [row[:5] for row in rows])
    return [
        Prompt(str(turn), session, user, known_at.astimezone(UTC), None if text is None else decode_text(text), tokens,
               tuple(one))
        for (turn, session, user, known_at, _, tokens, text), one in zip(rows, shown, strict=True)
    ]  # fmt: skip


def _injections(conn: Connection, tenant_id: str, rows: Sequence[tuple[Any, ...]]) -> list[list[Injection]]:
    """Return what each row (turn, session, user, known_at, items) showed."""
    held = [one for row in rows for one in row[4]]
    ids = [uuid.UUID(one["id"]) for one in held if one["tier"] in ("semantic", "episodic")]
    texts = _Texts(conn, tenant_id, ids)
    return [
        [texts.injection(str(turn), session_id, user_id, known_at.astimezone(UTC), decode_json(one)) for one in items]
        for turn, session_id, user_id, known_at, items in rows
    ]


class _Texts:
    """What the log points to, as far as it is there still."""

    def __init__(self, conn: Connection, tenant_id: str, ids: Sequence[uuid.UUID]) -> None:
        self._conn = conn
        self._tenant = tenant_id
        self._records = {
            str(record_id): (decode_text(content), role)
            for record_id, content, role in conn.query(
                f"""SELECT id, content, role FROM {conn.schema}.records
                    WHERE tenant_id = %(tenant)s AND id = ANY (%(ids)s)""",
                {"tenant": tenant_id, "ids": list(ids)},
            )
        }
        found = beliefs.select(conn, tenant_id, "f.fact_id = ANY (%(ids)s)", {"ids": list(ids)}) if ids else []
        self._facts: dict[str, Fact] = {fact.id: fact for fact in found}
        self._stories: dict[tuple[str, str, int], str | None] = {}

    def injection(
        self, turn_id: str, session_id: str, user_id: str, known_at: datetime, one: Mapping[str, Any]
    ) -> Injection:
        kind, identity = one["kind"], one["id"]
        text, role = self._records.get(identity, (None, None))
        fact = self._facts.get(identity)
        if fact is not None:
            text = fact_text(fact.subject, fact.predicate, fact.value, user_id)
        elif kind in ("narrative", "summary"):
            text = self._story(kind, user_id if kind == "narrative" else session_id, int(identity.partition(":")[2]))
        return Injection(
            turn_id=turn_id, session_id=session_id, known_at=known_at, tier=one["tier"], kind=kind, id=identity,
            text=text, token_count=one["tokens"], why=one["why"], score=one.get("score"),
            parts=ScoreParts(**one["parts"]) if one.get("parts") else None, role=role,
            authority=None if fact is None else fact.authority, evidence=() if fact is None else fact.evidence,
            length=one.get("length"),
        )  # fmt: skip

    def _story(self, kind: str, owner: str, version: int) -> str | None:
        key = (kind, owner, version)
        if key not in self._stories:
            table, column = ("narratives", "user_id") if kind == "narrative" else ("running_summaries", "session_id")
            rows = self._conn.query(
                f"""SELECT content FROM {self._conn.schema}.{table}
                    WHERE tenant_id = %(tenant)s AND {column} = %(owner)s AND version = %(version)s""",
                {"tenant": self._tenant, "owner": owner, "version": version},
            )
            self._stories[key] = decode_text(rows[0][0]) if rows else None
        return self._stories[key]
