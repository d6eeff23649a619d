"""Changes to single memories, with their history: the operations behind update, delete and history."""

from __future__ import annotations

import uuid
from datetime import UTC
from typing import Any

from pgmem_core.content import spoken
from pgmem_core.database.connection import Connection
from pgmem_core.encoding import decode_text, encode_text
from pgmem_core.errors import InvalidArgument
from pgmem_core.retrieval import lexical
from pgmem_core.tiers import erasing, plain
from pgmem_core.tiers.plain import Where
from pgmem_core.tiers.sessions import user_subject
from pgmem_core.tiers.unsaying import unsay
from pgmem_core.tokens import count_message
from pgmem_core.types import MemoryText, Scope

__all__ = ["delete", "delete_user", "history", "update"]


def update(
    conn: Connection, tenant_id: str, record_id: uuid.UUID, text: str, *, user_id: str | None, language: str
) -> MemoryText | None:
    """Replace a record's text and terms, drop its vector, log what it was; None if there is no such record (of the
    user, if one is named).

    The session's watermarks go back to the turn, so that the worker embeds and reads it anew, and facts that only the
    old text supported are believed no longer; the lease of one that is at the session ends, so that it does not step
    over the turn. Lock order: session, record, subjects.
    """
    place = conn.query(
        f"""SELECT session_id, seq, kind FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND id = %(id)s AND (%(user)s::text IS NULL OR user_id = %(user)s)""",
        {"tenant": tenant_id, "id": record_id, "user": user_id},
    )
    if not place:
        return None
    [(session_id, seq, kind)] = place
    if kind == "fact":
        raise InvalidArgument(
            f"memory {record_id} is a fact; say what is true now with session.correct or session.observe"
        )
    if seq is not None:
        conn.query(
            f"""UPDATE {conn.schema}.sessions SET dirty = true, claimed_until = NULL, forming_until = NULL,
                  embedded_through = least(embedded_through, %(seq)s - 1),
                  unformed = unformed OR formed_through >= %(seq)s,
                  formed_through = least(formed_through, %(seq)s - 1), touched_at = clock_timestamp()
                WHERE tenant_id = %(tenant)s AND session_id = %(session)s""",
            {"tenant": tenant_id, "session": session_id, "seq": seq},
        )
        conn.query(
            f"SELECT {conn.schema}.retell(%(tenant)s, ARRAY[%(id)s::uuid])", {"tenant": tenant_id, "id": record_id}
        )
    rows = conn.query(
        f"""SELECT content, message->>'name', user_id, user_key, terms FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND id = %(id)s FOR UPDATE""",
        {"tenant": tenant_id, "id": record_id},
    )
    if not rows:
        return None
    [(old, name, user_id, key, old_terms)] = rows
    terms = lexical.analyse(spoken(text, name and decode_text(name)), language=language)
    _log(conn, tenant_id, record_id, user_id, "UPDATE", old, encode_text(text))
    conn.query(
        f"""DELETE FROM {conn.schema}.postings
            WHERE tenant_id = %(tenant)s AND user_key = %(key)s AND term = ANY (%(terms)s::bigint[])
              AND record_id = %(id)s""",
        {"tenant": tenant_id, "key": key, "terms": old_terms, "id": record_id},
    )
    conn.query(
        f"""INSERT INTO {conn.schema}.postings (tenant_id, user_key, term, record_id, tf, len)
            SELECT %(tenant)s, %(key)s, u.term, %(id)s, u.tf, least(%(total)s, 32767)
            FROM unnest(%(terms)s::bigint[], %(counts)s::smallint[]) AS u (term, tf)""",
        {
            "tenant": tenant_id, "key": key, "id": record_id, "total": terms.length,
            "terms": list(terms.hashes), "counts": list(terms.counts),
        },
    )  # fmt: skip
    conn.query(
        f"""UPDATE {conn.schema}.records
            SET content = %(content)s, message = message - 'content', terms = %(terms)s::bigint[],
                term_total = %(total)s, token_count = %(tokens)s, model = NULL, embedding = NULL
            WHERE tenant_id = %(tenant)s AND id = %(id)s""",
        {
            "content": encode_text(text), "terms": list(terms.hashes), "total": terms.length,
            "tokens": count_message(text), "tenant": tenant_id, "id": record_id,
        },
    )  # fmt: skip
    if seq is not None:
        unsay(conn, tenant_id, record_id, text)
    return plain.listing(conn, tenant_id, Where(ids=[record_id]), limit=1)[0]


def delete(conn: Connection, tenant_id: str, record_id: uuid.UUID, *, user_id: str | None) -> bool:
    """Delete a record and what was made of it, its vector, terms and earlier texts; only the events of its history
    stay."""
    rows = conn.query(
        f"""SELECT user_id FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND id = %(id)s AND (%(user)s::text IS NULL OR user_id = %(user)s)""",
        {"tenant": tenant_id, "id": record_id, "user": user_id},
    )
    if not rows or not plain.delete(conn, tenant_id, [record_id]):
        return False
    _log(conn, tenant_id, record_id, rows[0][0], "DELETE", None, None)
    return True


def delete_user(conn: Connection, tenant_id: str, user_id: str) -> int:
    """Delete everything of one user; return how many records that were."""
    number, _ = erasing.user(conn, tenant_id, user_id, user_subject(Scope(tenant_id, user_id)))
    return number


def history(
    conn: Connection, tenant_id: str, record_id: uuid.UUID, *, user_id: str | None = None
) -> list[dict[str, Any]]:
    """Return what happened to a memory, oldest first: ADD, UPDATE and DELETE with texts and times (aware UTC); []
    where user_id is given and it is another user's."""
    events = conn.query(
        f"""SELECT event, old_content, new_content, happened_at FROM {conn.schema}.record_history
            WHERE tenant_id = %(tenant)s AND record_id = %(id)s
              AND (%(user)s::text IS NULL OR user_id = %(user)s) ORDER BY version""",
        {"tenant": tenant_id, "id": record_id, "user": user_id},
    )
    current = conn.query(
        f"""SELECT content, recorded_at FROM {conn.schema}.records
            WHERE tenant_id = %(tenant)s AND id = %(id)s AND (%(user)s::text IS NULL OR user_id = %(user)s)""",
        {"tenant": tenant_id, "id": record_id, "user": user_id},
    )
    rows = [_event(*event) for event in events]
    if current:
        content, recorded_at = current[0]
        first = events[0][1] if events else content
        rows.insert(0, _event("ADD", None, first, recorded_at))
    return rows


def _event(event: str, old: str | None, new: str | None, at: Any) -> dict[str, Any]:
    return {
        "event": event,
        "old_memory": None if old is None else decode_text(old),
        "new_memory": None if new is None else decode_text(new),
        "at": at.astimezone(UTC),
    }


def _log(
    conn: Connection,
    tenant_id: str,
    record_id: uuid.UUID,
    user_id: str,
    event: str,
    old: str | None,
    new: str | None,
) -> None:
    conn.query(
        f"""INSERT INTO {conn.schema}.record_history (tenant_id, record_id, version, user_id, event, old_content,
              new_content)
            SELECT %(tenant)s, %(id)s, coalesce(max(version), 0) + 1, %(user)s, %(event)s, %(old)s, %(new)s
            FROM {conn.schema}.record_history WHERE tenant_id = %(tenant)s AND record_id = %(id)s""",
        {"tenant": tenant_id, "id": record_id, "user": user_id, "event": event, "old": old, "new": new},
    )
