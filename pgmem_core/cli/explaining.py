"""`pgmem doctor --explain`: the plans of a read, and a warning where an index is not used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from pgmem_core.cli import output
from pgmem_core.database.connection import PsycopgConnection
from pgmem_core.database.health import Finding
from pgmem_core.effects import run, transact
from pgmem_core.retrieval import explaining
from pgmem_core.retrieval.explaining import Explained, Plan, Scope

if TYPE_CHECKING:
    from pgmem_core.client import PgMem

__all__ = ["as_document", "explain", "findings", "tell"]


def explain(mem: PgMem, *, group_id: str | None, user_id: str | None, analyze: bool) -> Explained | None:
    """Return the plans of the read of the biggest scope (or of that user); None where nothing is stored.

    Without analyze no statement is run but those of auto_explain, where that may be loaded: a read as any other.
    """
    database = mem._rt.database
    scope = run(transact(explaining.biggest_scope, tenant_id=group_id, user_id=user_id, single=True), database)
    if scope is None:
        return None
    plans = run(transact(explaining.explain, scope, analyze=analyze), database)
    watched = _watched(mem, scope, analyze=analyze)
    if watched:
        plans = [(name, plan) for name, plan in plans if name == "window"] + watched
    steps = tuple(explaining.judge(scope, name, plan) for name, plan in plans)
    return Explained(scope, "auto_explain" if watched else "statements", analyze, steps)


def _watched(mem: PgMem, scope: Scope, *, analyze: bool) -> list[tuple[str, Plan]]:
    """Return the plans that auto_explain shows of a read; [] where it may not be loaded."""
    database = mem._rt.database
    notices: list[str] = []
    with database.sync_engine().connect() as connection:
        driver: Any = connection.connection.driver_connection
        connection.detach()  # closed afterwards: its settings are nobody else's
        driver.autocommit = True

        def note(diagnostic: Any) -> None:
            _, plan, text = (diagnostic.message_primary or "").partition("plan:\n")
            if plan:
                notices.append(text)

        driver.add_notice_handler(note)
        try:
            for statement in (
                "LOAD 'auto_explain'", "SET auto_explain.log_min_duration = 0",
                "SET auto_explain.log_nested_statements = on", "SET auto_explain.log_format = json",
                f"SET auto_explain.log_analyze = {'on' if analyze else 'off'}", "SET client_min_messages = log",
            ):  # fmt: skip
                driver.execute(statement)
        except (psycopg.Error, DBAPIError):
            return []
        explaining.real_read(PsycopgConnection(driver, database.schema, database.vector), scope)
    return explaining.named(notices)


def findings(explained: Explained) -> list[Finding]:
    """Return a hint for each statement that does not take its index."""
    scope = explained.scope
    found = []
    for step in explained.steps:
        if step.good:
            continue
        takes = ", ".join(step.used) or "no index"
        whole = f", and reads {', '.join(step.scanned)} from end to end" if step.scanned else ""
        wanted = step.expected or "an index of the scope"
        found.append(
            Finding(
                "hint",
                f"the read of user {scope.user_id!r} in group {scope.tenant_id!r} finds its {step.name} by {takes}"
                f" instead of {wanted}{whole}",
                f"see that {wanted} is there and valid, and let the planner count anew: ANALYZE"
                f" {'postings' if step.name == 'words' else 'records'} (in our schema)",
            )
        )
    return found


def as_document(explained: Explained | None) -> dict[str, Any] | None:
    """Return what --json shows; what was asked for is left out, being somebody's memory."""
    if explained is None:
        return None
    scope = explained.scope
    return {
        "group_id": scope.tenant_id,
        "user_id": scope.user_id,
        "memories": scope.memories,
        "arm": scope.arm,
        "source": explained.source,
        "analyzed": explained.analyzed,
        "steps": [
            {"name": step.name, "expected": step.expected, "used": step.used, "scanned": step.scanned,
             "good": step.good, "plan": step.plan}
            for step in explained.steps
        ],
    }  # fmt: skip


def tell(explained: Explained | None) -> None:
    """Print the plans."""
    console = output.console()
    if explained is None:
        console.print("explain   nothing is stored that could be read")
        return
    scope = explained.scope
    console.print(
        f"explain   the read of user {output.shown(scope.user_id)!r} in group {output.shown(scope.tenant_id)!r}:"
        f" {scope.memories:,} memories, meaning by {scope.arm} (from {explained.source})",
        soft_wrap=True,
    )
    for step in explained.steps:
        wanted = step.expected or "any index"
        console.print(Text(f"{step.name}: {wanted} {'is used' if step.good else 'IS NOT USED'}",
                           style="green" if step.good else "yellow"))  # fmt: skip
        for line in explaining.outline(step.plan):
            console.print("  " + line, soft_wrap=True)
