"""The forming lane's to-do list: which sessions have turns to extract from or to summarise, and who is at it.

`sessions.unformed` and `uncompacted` say what is to be looked at, a lease (`forming_until`) says who is at it. It is
another lease than the one for embedding: a model may think for a minute, and meanwhile new turns are embedded.
Every result is written in one transaction with the watermark, by whoever still holds the lease.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pgmem_core.database.connection import Connection
from pgmem_core.encoding import encode_text

__all__ = ["Due", "Lease", "backlog", "claim", "fail", "finish", "hold", "release"]


@dataclass(frozen=True, slots=True)
class Lease:
    """A session whose facts or summaries are to be formed, ours until `lease`."""

    tenant_id: str
    session_id: str
    user_id: str
    agent_id: str | None
    lease: datetime  # when it ends; also what tells this claim from a later one
    touched_at: datetime  # as it was claimed: a later turn, or the end, leaves it on the list
    attempts: int  # that failed before
    extracts: bool  # its turns are due to be read; false where it was claimed for a summary alone


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be claimed, and when a session is due. `mode`: see the setting `formation`."""

    extracts: bool
    summarises: bool
    mode: str
    debounce_seconds: float

    def conditions(self, *, all_of_it: bool) -> tuple[str, str, dict[str, float]]:
        """Return the SQL conditions on a row of sessions: that its turns are due to be read, and that it is due to be
        looked at for a summary; all_of_it: whatever the mode says."""
        seconds = self.debounce_seconds
        idle = re.fullmatch(r"idle:(\d+(?:\.\d+)?)s", self.mode)
        if idle is not None:
            seconds = float(idle[1])
        quiet = "(touched_at <= clock_timestamp() - %(quiet)s * interval '1 second' OR ended_at IS NOT NULL)"
        read = told = "false"
        if self.extracts:
            if all_of_it:
                read = "unformed"
            elif self.mode == "session_end":
                read = "(unformed AND ended_at IS NOT NULL)"
            elif self.mode != "manual":
                # Twenty turns do not wait for a pause in a talk that has none.
                busy = " OR last_seq - formed_through >= 20" if idle is None else ""
                read = f"(unformed AND ({quiet}{busy}))"
        if self.summarises and (all_of_it or self.mode != "manual"):
            told = "uncompacted" if all_of_it else f"(uncompacted AND {quiet})"
        return read, told, {"quiet": seconds}


def claim(
    conn: Connection,
    due: Due,
    *,
    limit: int,
    lease_seconds: float,
    tenant_id: str | None,
    session_id: str | None = None,
    eager: bool,
    all_of_it: bool,
) -> list[Lease]:
    """Take up to limit sessions that nobody else is at; eager takes also those whose retry is not due yet."""
    read, told, bound = due.conditions(all_of_it=all_of_it)
    rows = conn.query(
        f"""UPDATE {conn.schema}.sessions s
            SET forming_until = clock_timestamp() + %(lease)s * interval '1 second'
            FROM (SELECT tenant_id, session_id, {read} AS extracts FROM {conn.schema}.sessions
                  WHERE ({read} OR {told}) AND (forming_until IS NULL OR forming_until < clock_timestamp())
                    AND (%(eager)s OR forming_retry_at IS NULL OR forming_retry_at <= clock_timestamp())
                    AND (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s)
                    AND (%(session)s::text IS NULL OR session_id = %(session)s)
                  ORDER BY tenant_id, session_id LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) due
            WHERE s.tenant_id = due.tenant_id AND s.session_id = due.session_id
            RETURNING s.tenant_id, s.session_id, s.user_id, s.agent_id, s.forming_until, s.touched_at,
                      s.forming_attempts, due.extracts""",
        {
            "limit": limit, "lease": lease_seconds, "tenant": tenant_id, "session": session_id, "eager": eager, **bound,
        },
    )  # fmt: skip
    return [Lease(*row) for row in rows]


def backlog(
    conn: Connection, due: Due, *, tenant_id: str | None, session_id: str | None = None, eager: bool
) -> tuple[int, int]:
    """Return how many sessions `claim` would take, and how many somebody is at."""
    read, told, bound = due.conditions(all_of_it=True)
    [(waiting, busy)] = conn.query(
        f"""SELECT count(*) FILTER (WHERE (forming_until IS NULL OR forming_until <= clock_timestamp())
                     AND (%(eager)s OR forming_retry_at IS NULL OR forming_retry_at <= clock_timestamp())),
                   count(*) FILTER (WHERE forming_until > clock_timestamp())
            FROM {conn.schema}.sessions
            WHERE ({read} OR {told}) AND (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s)
              AND (%(session)s::text IS NULL OR session_id = %(session)s)""",
        {"tenant": tenant_id, "session": session_id, "eager": eager, **bound},
    )
    return int(waiting), int(busy)


def hold(conn: Connection, held: Lease) -> tuple[int, int] | None:
    """Lock the session's row and return formed_through and summarised_through; None where the lease has ended.

    First of all locks in a transaction that writes what was formed. What others hold for long is not waited for:
    every turn of the session would wait with us.
    """
    conn.query("SELECT set_config('lock_timeout', '200ms', true)")
    rows = conn.query(
        f"""SELECT formed_through, summarised_through FROM {conn.schema}.sessions
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND forming_until = %(lease)s
            FOR NO KEY UPDATE""",
        {"tenant": held.tenant_id, "session": held.session_id, "lease": held.lease},
    )
    return (int(rows[0][0]), int(rows[0][1])) if rows else None


def finish(conn: Connection, held: Lease, *, formed: bool, compacted: bool) -> None:
    """Give the session back, off the lists of what was done, unless it was touched meanwhile."""
    conn.query(
        f"""UPDATE {conn.schema}.sessions
            SET forming_until = NULL, forming_attempts = 0, forming_retry_at = NULL, forming_error = NULL,
                unformed = unformed AND (NOT %(formed)s OR touched_at <> %(touched)s),
                uncompacted = uncompacted AND (NOT %(compacted)s OR touched_at <> %(touched)s)
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND forming_until = %(lease)s""",
        {
            "tenant": held.tenant_id, "session": held.session_id, "lease": held.lease, "touched": held.touched_at,
            "formed": formed, "compacted": compacted,
        },
    )  # fmt: skip


def release(conn: Connection, held: Sequence[Lease]) -> None:
    """Give sessions back untouched, for another worker to take at once."""
    conn.query(
        f"""UPDATE {conn.schema}.sessions s SET forming_until = NULL
            FROM unnest(%(tenants)s::text[], %(sessions)s::text[], %(leases)s::timestamptz[])
                 AS c (tenant, session, lease)
            WHERE s.tenant_id = c.tenant AND s.session_id = c.session AND s.forming_until = c.lease""",
        {
            "tenants": [one.tenant_id for one in held], "sessions": [one.session_id for one in held],
            "leases": [one.lease for one in held],
        },
    )  # fmt: skip


def fail(conn: Connection, held: Lease, *, error: str) -> None:
    """Give the session back with its error: tried again after 2, 4, 8 … 3,600 seconds: each try is a model's work."""
    conn.query(
        f"""UPDATE {conn.schema}.sessions
            SET forming_until = NULL, forming_attempts = forming_attempts + 1, forming_error = %(error)s,
                forming_retry_at = clock_timestamp()
                  + least(3600, power(2, least(forming_attempts + 1, 12))) * interval '1 second'
            WHERE tenant_id = %(tenant)s AND session_id = %(session)s AND forming_until = %(lease)s""",
        {
            "error": encode_text(error[:2000]), "tenant": held.tenant_id, "session": held.session_id,
            "lease": held.lease,
        },
    )  # fmt: skip
