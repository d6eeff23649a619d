"""What an edited turn no longer says is no longer believed."""

from __future__ import annotations

import uuid

from pgmem_core.database.connection import Connection
from pgmem_core.encoding import decode_text
from pgmem_core.folding import fold_space, stands_in

__all__ = ["unsay"]


def unsay(conn: Connection, tenant_id: str, turn_id: uuid.UUID, text: str) -> int:
    """Close the transaction time of current facts that rested on words of the turn alone which its new text has not;
    return how many. No tombstone: nobody called them wrong. In the transaction that edits the turn, after it."""
    rows = conn.query(
        f"""SELECT f.fact_id, f.subject_id, e.turn_id = %(turn)s, e.quote
            FROM {conn.schema}.facts f JOIN {conn.schema}.evidence e
              ON e.tenant_id = f.tenant_id AND e.fact_id = f.fact_id
            WHERE f.tenant_id = %(tenant)s AND f.superseded_at = 'infinity' AND f.fact_id IN (
              SELECT fact_id FROM {conn.schema}.evidence WHERE tenant_id = %(tenant)s AND turn_id = %(turn)s)""",
        {"tenant": tenant_id, "turn": turn_id},
    )
    said = fold_space(text)
    # A fact that names the turn without quoting it was stated by a program, which vouches for it.
    supported = {
        fact for fact, _, here, quote in rows if not here or quote is None or stands_in(said, decode_text(quote))
    }
    gone = {fact: subject for fact, subject, _, _ in rows if fact not in supported}
    for subject in sorted(set(gone.values())):
        facts = [fact for fact, about in gone.items() if about == subject]
        [(now,)] = conn.query(
            f"""UPDATE {conn.schema}.subjects
                SET last_change = greatest(clock_timestamp(), last_change + interval '1 microsecond')
                WHERE tenant_id = %(tenant)s AND subject_id = %(subject)s RETURNING last_change""",
            {"tenant": tenant_id, "subject": subject},
        )
        for table, change, current in (
            ("facts", "superseded_at = %(now)s, ended_as = 'retracted'", "superseded_at = 'infinity'"),
            ("records", "invalidated_at = %(now)s", "invalidated_at IS NULL"),
        ):
            key = "fact_id" if table == "facts" else "id"
            conn.query(
                f"""UPDATE {conn.schema}.{table} SET {change}
                    WHERE tenant_id = %(tenant)s AND {key} = ANY (%(facts)s) AND {current}""",
                {"tenant": tenant_id, "facts": facts, "now": now},
            )
    return len(gone)
