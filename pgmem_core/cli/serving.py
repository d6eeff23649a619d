"""`pgmem init`, `worker` and `doctor`: what an operator runs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from pgmem_core import flows
from pgmem_core.cli import explaining, output
from pgmem_core.cli.place import Place
from pgmem_core.cli.upkeep import Rounds
from pgmem_core.database import health, migrate
from pgmem_core.database.health import Finding, Health
from pgmem_core.effects import run, transact
from pgmem_core.errors import EmbeddingError, MissingExtra
from pgmem_core.formation import worker
from pgmem_core.formation.worker import FormReport, Worker

if TYPE_CHECKING:
    from pgmem_core.client import PgMem

__all__ = ["doctor", "init", "work"]

_LOOK_SECONDS = 0.1


def init(place: Place, *, as_json: bool) -> None:
    """Set up and report. Raises: SchemaError, PermissionDenied, DimensionMismatch, StoreUnavailable."""
    with place.open() as mem:
        before = run(transact(migrate.inspect, single=True), mem._rt.database)
        mem.setup()
        found = _examine(mem)
        embedder = _embedder(mem)
        where = place.describe(mem)
    document = {
        "store": where,
        "schema": found.schema,
        "schema_version_before": before.version,
        "schema_version": found.schema_version,
        "postgres": found.server.version,
        "pgvector": found.pgvector,
        "embedder": embedder,
    }
    if as_json:
        output.emit(document)
        return
    console = output.console()
    did = "up to date" if before.version == found.schema_version else f"set up (was at version {before.version})"
    console.print(f"memory    {where}", soft_wrap=True)
    console.print(f"schema    {found.schema}, version {found.schema_version}: {did}", soft_wrap=True)
    console.print(f"postgres  {found.server.version}, pgvector {found.pgvector}")
    if "model" in embedder:
        console.print(
            f"embedder  {embedder['model']}, {embedder['dimensions']} dimensions, registered as {embedder['id']}"
        )
    else:
        console.print(f"embedder  not at hand: {embedder['error']}", soft_wrap=True)


def _embedder(mem: PgMem) -> dict[str, Any]:
    try:
        name = mem._rt.embedder.model
    except (EmbeddingError, MissingExtra) as exc:
        return {"error": str(exc)}
    model = mem._rt.models.get(name)
    if model is None:
        return {"error": f"{name} could not be asked for its dimensions; it is registered when it first answers"}
    return {"model": model.name, "dimensions": model.dimensions, "id": model.id}


# -- worker ----------------------------------------------------------------------------------------------------


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set. The handler sets nothing that the main thread may hold a lock of."""
    asked = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=asked.set).start()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def work(place: Place, *, once: bool, as_json: bool, model: str | None = None, extractor: str | None = None) -> None:
    """Work in the foreground until asked to stop, or until nothing waits (once).

    model and extractor: who forms facts and summaries; the settings' where None.
    """
    total = FormReport()

    def on_round(report: FormReport) -> None:
        nonlocal total
        total += report
        if report.turns or report.formed or report.errors:
            output.note(_round(report))

    with place.open(create=False, model=model, extractor=extractor) as mem, _signals() as asked:
        mem.setup()
        where = place.describe(mem)
        output.note(f"working in {where}" + ("" if once else "; SIGTERM or Ctrl-C ends it after the session under way"))
        rounds = Rounds(mem, asked.is_set)
        if once:
            total = run(worker.form(mem._rt, stopped=asked.is_set), mem._rt.database)
            rounds.look()
        else:
            one = Worker(mem._rt, on_round)
            one.start()
            while one.running and not asked.is_set():
                rounds.look()
                time.sleep(_LOOK_SECONDS)
            one.stop(timeout_seconds=600)
        left = run(transact(health.backlog, single=True), mem._rt.database)
    if as_json:
        output.emit(
            {
                "store": where, "turns": total.turns, "sessions": total.sessions, "errors": total.errors,
                "facts": total.facts, "episodes": total.episodes, "sessions_formed": total.formed,
                "sessions_waiting": left.sessions, "turns_waiting": left.turns,
                "upkeep": None if rounds.last is None else asdict(rounds.last), "upkeep_error": rounds.error,
            }
        )  # fmt: skip
    else:
        output.console().print(f"{_round(total)}; {left.turns:,} turns of {left.sessions:,} sessions wait")
    if once and (total.errors or rounds.error):
        import typer

        raise typer.Exit(1)


def _round(report: FormReport) -> str:
    text = f"embedded {report.turns:,} turns, brought {report.sessions:,} sessions up to date"
    if report.formed:
        text += f", formed {report.facts:,} facts and {report.episodes:,} episodes from {report.formed:,} sessions"
    for session, error in list(report.errors.items())[:3]:
        text += f"; {session!r} failed: {output.shown(error)}"
    return text


# -- doctor ----------------------------------------------------------------------------------------------------


def _examine(mem: PgMem) -> Health:
    """Return all that the doctor looks at, whatever state the database is in. Sets nothing up."""
    database = mem._rt.database
    state = run(transact(migrate.inspect, single=True), database)
    at = run(transact(health.server, single=True), database)
    found = Health(
        server=at,
        schema=mem.settings.schema_name,
        schema_version=state.version,
        newest_version=migrate.migrations()[-1][0],
        pgvector=state.pgvector,
        pgvector_schema=None if state.vector is None else state.vector.schema,
        behind_pooler=_behind_pooler(mem),
        pooler=mem.settings.pooler,
    )
    if 0 < state.version == found.newest_version:
        found = replace(
            found,
            models=run(transact(health.models, single=True), database),
            tables=run(transact(health.tables, single=True), database),
            memories=run(transact(health.memories, single=True), database),
            refused_writes=run(transact(health.refused_writes, single=True), database),
            backlog=run(transact(health.backlog, single=True), database),
            scopes=run(transact(health.scopes, single=True), database),
            upkeep=run(transact(health.upkeep, single=True), database),
        )
    return replace(found, findings=tuple(health.findings(found)))


def _behind_pooler(mem: PgMem) -> bool:
    """Whether the server's process is another than the one that greeted us: a pooler invents its own numbers."""
    with mem._rt.database.sync_engine().connect() as connection:
        greeted = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
        [(serving,)] = connection.exec_driver_sql("SELECT pg_backend_pid()").fetchall()
    return bool(greeted != serving)


def doctor(
    place: Place,
    *,
    as_json: bool,
    explain: bool = False,
    group_id: str | None = None,
    user_id: str | None = None,
    analyze: bool = False,
) -> bool:
    """Examine and report; False if there is a problem. `explain`: also how a read is planned."""
    explained = None
    with place.open(create=False) as mem:
        found = _examine(mem)
        if explain and 0 < found.schema_version == found.newest_version:
            run(flows.check(mem._rt), mem._rt.database)
            explained = explaining.explain(mem, group_id=group_id, user_id=user_id, analyze=analyze)
            if explained is not None:
                found = replace(found, findings=(*found.findings, *explaining.findings(explained)))
        where = place.describe(mem)
    healthy = not any(one.level == "problem" for one in found.findings)
    if as_json:
        document = {"store": where, "healthy": healthy, "postings_bytes_per_memory": _postings(found), **asdict(found)}
        if explain:
            document["explain"] = explaining.as_document(explained)
        output.emit(document)
    else:
        _tell(found, where)
        if explain:
            explaining.tell(explained)
    return healthy


def _postings(found: Health) -> float | None:
    total = sum(table.total_bytes for table in found.tables if table.name == "postings")
    return round(total / found.memories, 1) if found.memories else None


def _tell(found: Health, where: str) -> None:
    console = output.console()
    at = found.server
    console.print(f"memory    {where}", soft_wrap=True)
    console.print(f"postgres  {at.version}, database {at.database} ({at.encoding}), role {at.role}", soft_wrap=True)
    console.print(f"pgvector  {found.pgvector or 'missing'}, in schema {found.pgvector_schema or '-'}")
    console.print(f"schema    {found.schema}, version {found.schema_version} of {found.newest_version}")
    console.print(f"pooler    {'seen' if found.behind_pooler else 'none seen'}; setting: {found.pooler}")
    for model in found.models:
        state = "no index" if model.index is None else "index valid" if model.index_valid else "INDEX INVALID"
        state = state if model.status == "active" else f"{model.status}, {state}"
        console.print(
            f"model     {model.id} {model.name}, {model.dimensions} dimensions, {model.rows:,} rows, {state},"
            f" {output.size(model.index_bytes)}",
            soft_wrap=True,
        )
    if found.tables:
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
        for name in ("table", "rows", "bytes", "indexes", "analyzed"):
            table.add_column(name, justify="left" if name == "table" else "right")
        for one in found.tables:
            table.add_row(
                one.name, f"{one.rows:,}", output.size(one.table_bytes), output.size(one.index_bytes),
                _age(one.analyzed_at),
            )  # fmt: skip
        console.print(table)
        per = _postings(found)
        console.print(f"memories  {found.memories:,}; postings {'-' if per is None else output.size(per)} a memory")
    if found.backlog is not None:
        work = found.backlog
        console.print(
            f"backlog   {work.turns:,} turns of {work.sessions:,} sessions, {work.claimed} in work,"
            f" {work.failing_sessions} failing"
        )
    if found.scopes is not None:
        console.print(
            f"counts    of {found.scopes.counted:,} users, the oldest made {_age(found.scopes.oldest_count_at)}"
        )
    if found.upkeep is not None:
        console.print(f"upkeep    last done {_age(found.upkeep.finished_at)}")
    if found.refused_writes:
        console.print(f"refused   {found.refused_writes:,} writes, by the write policy")
    for finding in found.findings:
        _tell_finding(console, finding)
    if not found.findings:
        console.print(Text("nothing is wrong", style="green"))


def _tell_finding(console: Any, finding: Finding) -> None:
    style = "red" if finding.level == "problem" else "yellow"
    console.print(Text(f"{finding.level}: {output.shown(finding.what)}", style=style), soft_wrap=True)
    console.print(f"  do: {output.shown(finding.remedy)}", soft_wrap=True)


def _age(when: datetime | None) -> str:
    if when is None:
        return "never"
    seconds = max((datetime.now(UTC) - when).total_seconds(), 0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
