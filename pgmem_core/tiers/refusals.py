"""Refusals of the write policy: content-free rows, added and read. Operations."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC
from hashlib import blake2b

from pgmem_core.database.connection import Connection
from pgmem_core.encoding import decode_text, encode_text
from pgmem_core.errors import WriteRefused
from pgmem_core.types import RefusedWrite

__all__ = ["add", "listing"]


def add(conn: Connection, tenant_id: str, refused: Sequence[tuple[uuid.UUID, WriteRefused]]) -> None:
    """Record refusals under the given ids, in one statement."""
    conn.query(
        f"""INSERT INTO {conn.schema}.refusals (tenant_id, refusal_id, entry, reason, content_hash, length)
            SELECT %(tenant)s, * FROM unnest(%(ids)s::uuid[], %(entries)s::text[], %(reasons)s::text[],
                                             %(hashes)s::bytea[], %(lengths)s::bigint[])""",
        {
            "tenant": tenant_id,
            "ids": [one for one, _ in refused],
            "entries": [one.entry for _, one in refused],
            "reasons": [encode_text(one.reason) for _, one in refused],
            # With the group, so that the same text cannot be matched across groups.
            "hashes": [
                blake2b(encode_text(tenant_id).encode() + b"\x00" + one.content_hash, digest_size=32).digest()
                for _, one in refused
            ],
            "lengths": [one.length for _, one in refused],
        },
    )


def listing(conn: Connection, tenant_id: str, *, limit: int) -> list[RefusedWrite]:
    """Return the refusals of a group, newest first."""
    rows = conn.query(
        f"""SELECT refusal_id, entry, reason, content_hash, length, refused_at FROM {conn.schema}.refusals
            WHERE tenant_id = %(tenant)s ORDER BY refusal_id DESC LIMIT %(limit)s""",
        {"tenant": tenant_id, "limit": limit},
    )
    return [
        RefusedWrite(str(one), tenant_id, entry, decode_text(reason), bytes(hashed).hex(), length, at.astimezone(UTC))
        for one, entry, reason, hashed, length, at in rows
    ]
