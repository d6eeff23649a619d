"""`pgmem import`: a file into memory, with a bar, resumable whenever it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pgmem_core.cli import Interrupted, output, storing
from pgmem_core.cli.place import Place
from pgmem_core.cli.storing import Batch, Counts, Target
from pgmem_core.effects import run, transact
from pgmem_core.importing import Problem, read
from pgmem_core.tiers import imports

if TYPE_CHECKING:
    from pgmem_core.client import PgMem

__all__ = ["ImportReport", "import_file", "load", "survey"]

# Two: while one embeds, Postgres inserts the other's. Of one session they are never at work at once.
_WRITERS = 2
_PROBLEMS_SHOWN = 10


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
    for conversation in read(file, on_problem=lambda problem: None):
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
    on_batch: Callable[[Counts], None] = lambda counts: None,
) -> ImportReport:
    """Store conversations, embed what is left, and count the tables anew.

    `conversations`: called with what to tell problems, returns the conversations. KeyboardInterrupt passes
    through when the batches under way are stored.
    """
    started = time.perf_counter()
    report = ImportReport()
    rt = mem._rt
    made = storing.batches(
        conversations(report.problems.append), target, language=rt.settings.language,
        on_problem=report.problems.append, file=file,
    )  # fmt: skip
    under_way: set[Future[Counts]] = set()

    def collect(most: int) -> None:
        nonlocal under_way
        while len(under_way) > most:
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                counts = future.result()
                report.counts += counts
                on_batch(counts)

    def write(batch: Batch) -> Counts:
        return run(storing.store(rt, target, batch), rt.database)

    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="pgmem-import") as writers:
        try:
            for batch in made:
                # A batch that goes on with a session waits until what came before is stored: order is to be kept.
                collect(_WRITERS - 1 if all(piece.first for piece in batch.pieces) else 0)
                under_way.add(writers.submit(write, batch))
        finally:
            collect(0)  # also after Ctrl-C: what is under way will be stored, and is to be counted
    formed = mem.form(group_id=target.group_id)
    report.counts += Counts(embedded=formed.turns)
    report.errors = dict(formed.errors)
    run(transact(imports.analyze), rt.database)
    report.seconds = time.perf_counter() - started
    return report


def import_file(
    place: Place, file: Path, *, user_id: str | None, group_id: str, session_prefix: str, as_json: bool
) -> None:
    """Import a file and say what was done. Raises: Interrupted, PgmemError."""
    target = Target(group_id, user_id, session_prefix)
    total = survey(file, target)
    done = Counts()
    with place.open() as mem:
        mem.setup()
        if not as_json:
            output.console().print(f"memory: {place.describe(mem)}", soft_wrap=True)
        try:
            with _Bar(total) as bar:

                def on_batch(counts: Counts) -> None:
                    nonlocal done
                    done += counts
                    bar.update(done)

                report = load(
                    mem, lambda on_problem: _read(file, on_problem), target, file=str(file), on_batch=on_batch
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


def _read(file: Path, on_problem: Callable[[Problem], None]) -> Any:
    return read(file, on_problem=on_problem)


class _Bar:
    """A progress bar on stderr; nothing where that is no terminal."""

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("turns"),
            TimeRemainingColumn(), console=output.console(stderr=True), transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task("importing", total=total)

    def update(self, done: Counts) -> None:
        self._progress.update(self._task, completed=done.turns_new + done.turns_known)

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
    console.print(f"embedded  {counts.embedded:,}")
    console.print(f"took      {report.seconds:.1f} s{rate}")
    if report.problems:
        console.print(f"problems  {len(report.problems):,} left out:")
        for problem in report.problems[:_PROBLEMS_SHOWN]:
            console.print(f"  {output.shown(str(problem))}", soft_wrap=True)
        if len(report.problems) > _PROBLEMS_SHOWN:
            console.print(f"  … and {len(report.problems) - _PROBLEMS_SHOWN:,} more (--json lists them all)")
    for session, error in list(report.errors.items())[:_PROBLEMS_SHOWN]:
        console.print(
            f"not embedded: session {session}: {output.shown(error)} (found by words until 'pgmem worker' succeeds)",
            soft_wrap=True,
        )
