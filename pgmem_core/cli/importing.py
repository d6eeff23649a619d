"""`pgmem import`: a file into memory, with a bar, resumable whenever it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pgmem_core.cli import Interrupted, exporting, output
from pgmem_core.cli.place import Place
from pgmem_core.effects import run, transact
from pgmem_core.errors import InvalidArgument
from pgmem_core.importing import Problem, archive, read
from pgmem_core.lifecycle import importing
from pgmem_core.lifecycle.loading import Counts, Target
from pgmem_core.tiers import imports

if TYPE_CHECKING:
    from pgmem_core.client import PgMem

__all__ = ["ImportReport", "import_file", "load", "survey"]


@dataclass(slots=True)
class ImportReport:
    """What an import did. `embedded` counts vectors made by this import, whoever wrote the turns."""

    counts: Counts = field(default_factory=Counts)
    problems: list[Problem] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def embedded(self) -> int:
        return self.counts.embedded


def survey(file: Path, target: Target) -> int:
    """Read the whole file once, storing nothing; return its number of turns.

    For the bar, and so that what would end an import half way (broken JSON, a conversation of nobody) ends it
    before its first write. Raises: InvalidArgument.
    """
    turns = 0
    for conversation in read(file, on_problem=lambda problem: None, user_id=target.user_id):
        for session in conversation.sessions:
            target.session_of(session), target.user_of(conversation, session)
            turns += len(session.turns)
    return turns


def load(
    mem: PgMem,
    conversations: Callable[[Callable[[Problem], None]], Any],
    target: Target,
    *,
    file: str = "",
    on_batch: Callable[[Counts], None] = lambda so_far: None,
) -> ImportReport:
    """Store conversations, embed what is left, and count the tables anew.

    `conversations`: called with what to tell problems, returns the conversations. `on_batch`: told the counts so far.
    """
    started = time.perf_counter()
    report = ImportReport()
    note = report.problems.append
    report.counts = importing.load(mem._rt, conversations(note), target, on_problem=note, file=file, on_batch=on_batch)
    formed = mem.form(group_id=target.group_id)
    report.counts += Counts(embedded=formed.turns)
    report.errors = dict(formed.errors)
    run(transact(imports.analyze), mem._rt.database)
    report.seconds = time.perf_counter() - started
    return report


def import_file(
    place: Place, file: Path, *, user_id: str | None, group_id: str | None, session_prefix: str, as_json: bool
) -> None:
    """Import a file and say what was done. Raises: Interrupted, PgmemError."""
    if archive.is_archive(file):
        if user_id is not None or session_prefix:
            raise InvalidArgument(
                f"{file} is an export, which says whose everything is and keeps its ids; leave --user-id and"
                " --session-prefix out"
            )
        exporting.import_export(place, file, group_id=group_id, as_json=as_json)
        return
    target = Target(group_id or "default", user_id, session_prefix)
    total = survey(file, target)
    done = Counts()
    with place.open() as mem:
        mem.setup()
        if not as_json:
            output.console().print(f"memory: {place.describe(mem)}", soft_wrap=True)
        try:
            with _Bar(total) as bar:

                def on_batch(so_far: Counts) -> None:
                    nonlocal done
                    done = so_far
                    bar.update(so_far.turns)

                report = load(
                    mem,
                    lambda on_problem: read(file, on_problem=on_problem, user_id=user_id),
                    target,
                    file=str(file),
                    on_batch=on_batch,
                )
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted: {done.turns_new:,} new turns are stored, whole. Run the same command again to go on"
                " from there."
            ) from None
        where = place.describe(mem)
    if as_json:
        output.emit(_document(report, file, target, where))
    else:
        _tell(report)
    if report.problems and not (report.counts.turns_new or report.counts.turns_known):
        raise typer.Exit(1)  # a file of which nothing could be read is not a success


class _Bar:
    """A progress bar on stderr; nothing where that is no terminal."""

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("turns"),
            TimeRemainingColumn(), console=output.console(stderr=True), transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task("importing", total=total)

    def update(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()


def _document(report: ImportReport, file: Path, target: Target, where: str) -> dict[str, Any]:
    return {
        "store": where,
        "file": str(file),
        "group_id": target.group_id,
        **asdict(report.counts),
        "seconds": round(report.seconds, 3),
        "problems": [str(problem) for problem in report.problems],
        "errors": report.errors,
    }


def _tell(report: ImportReport) -> None:
    console = output.console()
    counts = report.counts
    rate = f", {counts.turns_new / report.seconds:,.0f} turns a second" if counts.turns_new else ""
    console.print(f"sessions  {counts.sessions:,} in the file, {counts.sessions_new:,} new")
    console.print(f"turns     {counts.turns_new:,} new, {counts.turns_known:,} there already")
    if counts.turns_forgotten:
        console.print(f"forgotten {counts.turns_forgotten:,} turns left out: they were erased after they were said")
    console.print(f"embedded  {counts.embedded:,}")
    console.print(f"took      {report.seconds:.1f} s{rate}")
    exporting.tell_problems(report.problems, report.errors)
