"""The schedule of upkeep: one round in an interval, whichever of the workers comes first.

Whose turn it is says a row of `upkeep` with a lease, not an advisory lock: a round is many transactions, and behind a
transaction pooler nothing lasts longer than one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from pgmem_core.database.connection import Connection, jsonb
from pgmem_core.effects import Flow, transact
from pgmem_core.encoding import encode_text
from pgmem_core.errors import PgmemError
from pgmem_core.flows import ready
from pgmem_core.lifecycle import expiry, pruning
from pgmem_core.lifecycle.expiry import ExpireReport
from pgmem_core.lifecycle.pruning import PruneReport
from pgmem_core.runtime import Runtime

__all__ = ["UpkeepReport", "round_"]

_TASK = "prune and expire"
# How long a round may take before another worker takes it for dead.
_LEASE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """What a round of upkeep did."""

    expired: ExpireReport
    pruned: PruneReport

    @property
    def total(self) -> int:
        """Rows of all kinds."""
        ended = self.expired
        gone = ended.facts + ended.execution + ended.items + ended.injections
        return gone + self.pruned.turns + self.pruned.injections


def round_(rt: Runtime, *, stopped: Callable[[], bool] = lambda: False) -> Flow[UpkeepReport | None]:
    """Expire, and prune if `prune_after_days` is set; None if it is not time yet, or another worker is at it.

    Raises what stopped it; the error is kept for `pgmem doctor`, and the next try is at most an interval away.
    """
    yield from ready(rt)
    interval = rt.settings.upkeep_interval_seconds
    if not (yield from transact(_claim, interval, single=True)):
        return None
    try:
        expired = yield from expiry.expire(rt, group_id=None, stopped=stopped)
        pruned = PruneReport()
        days = rt.settings.prune_after_days
        if days is not None and not stopped():
            pruned = yield from pruning.prune(
                rt, days, keep_evidence=True, force=False, group_id=None, batch=1000, stopped=stopped
            )
    except PgmemError as exc:
        yield from transact(_fail, f"{type(exc).__name__}: {exc}", interval, single=True)
        raise
    report = UpkeepReport(expired, pruned)
    yield from transact(_finish, report, done=not stopped(), single=True)
    return report


def _claim(conn: Connection, interval_seconds: float) -> bool:
    return bool(
        conn.query(
            f"""INSERT INTO {conn.schema}.upkeep AS u (task, claimed_until)
                VALUES (%(task)s, clock_timestamp() + %(lease)s * interval '1 second')
                ON CONFLICT (task) DO UPDATE SET claimed_until = excluded.claimed_until
                WHERE (u.claimed_until IS NULL OR u.claimed_until <= clock_timestamp())
                  AND (u.finished_at IS NULL OR u.attempts > 0
                       OR u.finished_at <= clock_timestamp() - %(interval)s * interval '1 second')
                RETURNING true""",
            {"task": _TASK, "lease": _LEASE_SECONDS, "interval": interval_seconds},
        )
    )


def _finish(conn: Connection, report: UpkeepReport, *, done: bool) -> None:
    # One that was stopped half way gives its turn to the next worker.
    conn.query(
        f"""UPDATE {conn.schema}.upkeep
            SET claimed_until = NULL, attempts = 0, last_error = NULL, did = %(did)s,
                finished_at = CASE WHEN %(done)s THEN clock_timestamp() ELSE finished_at END
            WHERE task = %(task)s""",
        {"task": _TASK, "did": jsonb(asdict(report)), "done": done},
    )


def _fail(conn: Connection, error: str, interval_seconds: float) -> None:
    conn.query(
        f"""UPDATE {conn.schema}.upkeep
            SET attempts = attempts + 1, last_error = %(error)s, claimed_until = clock_timestamp()
                  + least(%(interval)s, power(2, least(attempts + 1, 10)) * 10) * interval '1 second'
            WHERE task = %(task)s""",
        {"task": _TASK, "error": encode_text(error[:2000]), "interval": interval_seconds},
    )
