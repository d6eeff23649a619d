"""Pruning: what is old and no longer needed goes, in small transactions. Facts, tombstones and episodes stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pgmem_core.database.connection import Connection
from pgmem_core.effects import Flow, transact
from pgmem_core.errors import InvalidArgument
from pgmem_core.flows import ready
from pgmem_core.ids import check_id
from pgmem_core.runtime import Runtime

__all__ = ["PruneReport", "check_days", "prune", "prune_injections", "tenants"]

# Sessions looked at in one transaction: 0.02 ms each where there is nothing to do.
_SESSIONS = 500
_MOST_DAYS = 365_000.0


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What a prune did. `evidence_unlinked`: evidence whose turn went; it keeps its quote, and names the turn."""

    turns: int = 0
    injections: int = 0
    evidence_unlinked: int = 0


def check_days(days: object, name: str) -> float:
    """Return a number of days. Raises: InvalidArgument."""
    if not isinstance(days, int | float) or isinstance(days, bool) or not 0 <= days <= _MOST_DAYS:
        raise InvalidArgument(f"{name} must be a number of days, 0 to {_MOST_DAYS:.0f}, got {days!r}")
    return float(days)


def prune(
    rt: Runtime,
    older_than_days: float,
    *,
    keep_evidence: bool,
    force: bool,
    group_id: str | None,
    batch: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Flow[PruneReport]:
    """Delete turns from before then, and prompts logged longer ago than is set. `stopped` is asked between batches."""
    before = datetime.now(UTC) - timedelta(days=check_days(older_than_days, "older_than_days"))
    tenant = None if group_id is None else check_id(group_id, "group_id")
    if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= 100_000:
        raise InvalidArgument(f"batch must be a whole number, 1 to 100,000, got {batch!r}")
    yield from ready(rt)
    turns = unlinked = injections = 0
    of = [tenant] if tenant is not None else (yield from transact(tenants, single=True))
    for one in of:
        formed, summarised = yield from transact(_uses, one, single=True)
        after, more = "", True
        while more and not stopped():
            # What nobody reads waits for nobody: without an extractor, no turn is ever read for facts.
            last, count, left, more = yield from transact(
                _prune_turns, rt, one, after, before, keep_evidence=keep_evidence, batch=batch,
                formed=not force and (formed or rt.extractor is not None),
                summarised=not force and (summarised or rt.summarizers is not None),
            )  # fmt: skip
            after = after if last is None else last
            turns, unlinked = turns + count, unlinked + left
        injections += yield from prune_injections(rt, one, batch=batch, stopped=stopped)
    return PruneReport(turns, injections, unlinked)


def prune_injections(
    rt: Runtime, tenant_id: str, *, batch: int = 1000, stopped: Callable[[], bool] = lambda: False
) -> Flow[int]:
    """Delete prompts logged longer ago than `injections_days`, and refusals of that age; return how many prompts."""
    before = datetime.now(UTC) - timedelta(days=rt.settings.injections_days)
    total = 0
    for table, key, at in (("injections", "injection_id", "known_at"), ("refusals", "refusal_id", "refused_at")):
        while not stopped():
            count = yield from transact(_prune_log, tenant_id, (table, key, at), before, batch, single=True)
            total += count if table == "injections" else 0
            if count < batch:
                break
    return total


def tenants(conn: Connection) -> list[str]:
    """Return the groups that hold anything that ages. Steps from key to key: 0.03 ms a group."""
    found: set[str] = set()
    for table in ("sessions", "facts", "injections", "items", "refusals"):
        rows = conn.query(
            f"""WITH RECURSIVE t (tenant_id) AS (
                  (SELECT tenant_id FROM {conn.schema}.{table} ORDER BY tenant_id LIMIT 1)
                  UNION ALL
                  SELECT (SELECT x.tenant_id FROM {conn.schema}.{table} x WHERE x.tenant_id > t.tenant_id
                          ORDER BY x.tenant_id LIMIT 1)
                  FROM t WHERE t.tenant_id IS NOT NULL)
                SELECT tenant_id FROM t WHERE tenant_id IS NOT NULL"""
        )
        found.update(row[0] for row in rows)
    return sorted(found)


def _uses(conn: Connection, tenant_id: str) -> tuple[bool, bool]:
    """Return whether facts and summaries are formed in this group: then what is not formed yet has to wait."""
    [(formed, summarised)] = conn.query(
        f"""SELECT coalesce(bool_or(formed_through > 0), false), coalesce(bool_or(summarised_through > 0), false)
            FROM {conn.schema}.sessions WHERE tenant_id = %(tenant)s""",
        {"tenant": tenant_id},
    )
    return bool(formed), bool(summarised)


def _prune_turns(
    conn: Connection,
    rt: Runtime,
    tenant_id: str,
    after: str,
    before: datetime,
    *,
    keep_evidence: bool,
    formed: bool,
    summarised: bool,
    batch: int,
) -> tuple[str | None, int, int, bool]:
    [(last, turns, unlinked, more)] = conn.query(
        f"""SELECT last_session, turns, unlinked, more FROM {conn.schema}.prune_turns(
              %(tenant)s, %(after)s, %(before)s, %(window_turns)s, %(window_tokens)s, %(keep)s, %(formed)s,
              %(summarised)s, %(sessions)s, %(batch)s)""",
        {
            "tenant": tenant_id, "after": after, "before": before, "window_turns": rt.settings.window_turns,
            "window_tokens": rt.settings.budget_tokens, "keep": keep_evidence, "formed": formed,
            "summarised": summarised, "sessions": _SESSIONS, "batch": batch,
        },
    )  # fmt: skip
    return last, int(turns), int(unlinked), bool(more)


def _prune_log(conn: Connection, tenant_id: str, log: tuple[str, str, str], before: datetime, limit: int) -> int:
    table, key, at = log
    [(count,)] = conn.query(
        f"""WITH gone AS (
              DELETE FROM {conn.schema}.{table}
              WHERE tenant_id = %(tenant)s AND {key} IN (
                SELECT {key} FROM {conn.schema}.{table}
                WHERE tenant_id = %(tenant)s AND {at} < %(before)s ORDER BY {at} LIMIT %(limit)s)
              RETURNING 1)
            SELECT count(*) FROM gone""",
        {"tenant": tenant_id, "before": before, "limit": limit},
    )
    return int(count)
