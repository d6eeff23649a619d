"""`pgmem export`, and `pgmem import` of what it wrote."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pgmem_core.cli import Interrupted, output
from pgmem_core.cli.place import Place
from pgmem_core.importing import Problem

__all__ = ["export", "import_export", "tell_problems"]

_PROBLEMS_SHOWN = 10


def export(place: Place, file: Path, *, group_id: str, user_id: str | None, vectors: bool, as_json: bool) -> None:
    """Write a group's memory, or one user's, into a file ("-": stdout). Raises: PgmemError."""
    to_stdout = str(file) == "-"
    with place.open(create=False) as mem:
        with _bar("exporting", "lines") as bar:
            task = bar.add_task("exporting", total=None)
            report = mem.export(
                sys.stdout if to_stdout else file, group_id=group_id, user_id=user_id, vectors=vectors,
                on_progress=lambda lines: bar.update(task, completed=lines),
            )  # fmt: skip
        where = place.describe(mem)
    turns = report.counts.get("turn", 0)
    if as_json and not to_stdout:
        output.emit({"store": where, "file": str(file), "group_id": group_id, "user_id": user_id, **asdict(report)})
        return
    console = output.console(stderr=to_stdout)
    console.print(f"memory    {where}", soft_wrap=True)
    console.print(f"file      {file}, {output.size(report.bytes)}", soft_wrap=True)
    console.print(f"lines     {_counts(report.counts)}", soft_wrap=True)
    console.print(f"took      {report.seconds:.1f} s, as of {report.exported_at}")
    if not turns and not report.counts.get("record") and not report.counts.get("fact"):
        output.note(f"there is nothing in group {group_id!r}" + (f" of user {user_id!r}" if user_id else ""))


def import_export(place: Place, file: Path, *, group_id: str | None, as_json: bool) -> None:
    """Import an export, embed what came without vectors, and say what was done. Raises: Interrupted, PgmemError."""
    with file.open("rb") as stream:
        total = sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))
    with place.open() as mem:
        mem.setup()
        try:
            with _bar("importing", "lines") as bar:
                task = bar.add_task("importing", total=total)
                report = mem.import_(
                    file, group_id=group_id, on_progress=lambda lines: bar.update(task, completed=lines)
                )
            formed = mem.form(group_id=report.group_id)
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted: what was read so far is stored. Run the same command again to go on from there."
            ) from None
        where = place.describe(mem)
    if as_json:
        output.emit(
            {
                "store": where, "file": str(file), **asdict(report), "embedded": formed.turns,
                "problems": [str(problem) for problem in report.problems], "errors": dict(formed.errors),
            }
        )  # fmt: skip
        return
    console = output.console()
    console.print(f"memory    {where}, group {report.group_id}", soft_wrap=True)
    console.print(f"new       {_counts(report.new)}", soft_wrap=True)
    console.print(f"known     {_counts(report.known)}", soft_wrap=True)
    if report.forgotten:
        console.print(f"forgotten {_counts(report.forgotten)}: erased here since, and left out", soft_wrap=True)
    if report.dead:
        console.print(f"dead      {report.dead:,} facts: their values were rejected here")
    if report.contested:
        console.print(f"contested {report.contested:,} facts: something else is believed here; see 'pgmem review'")
    console.print(f"embedded  {formed.turns:,}, {report.vectors:,} came with their vectors")
    lines = sum(report.new.values())
    rate = f", {lines / report.seconds:,.0f} lines a second" if lines and report.seconds else ""
    console.print(f"took      {report.seconds:.1f} s{rate}")
    tell_problems(report.problems, formed.errors)


def tell_problems(problems: Sequence[Problem], errors: Mapping[str, str]) -> None:
    """Print what was left out of a file, and what could not be embedded."""
    console = output.console()
    if problems:
        console.print(f"problems  {len(problems):,} left out:")
        for problem in problems[:_PROBLEMS_SHOWN]:
            console.print(f"  {output.shown(str(problem))}", soft_wrap=True)
        if len(problems) > _PROBLEMS_SHOWN:
            console.print(f"  … and {len(problems) - _PROBLEMS_SHOWN:,} more (--json lists them all)")
    for session, error in list(errors.items())[:_PROBLEMS_SHOWN]:
        console.print(
            f"not embedded: session {session}: {output.shown(error)} (found by words until 'pgmem worker' succeeds)",
            soft_wrap=True,
        )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in counts.items()) or "nothing"


def _bar(what: str, unit: str) -> Progress:
    """A bar on stderr; nothing where that is no terminal."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn(),
        console=output.console(stderr=True), transient=True,
    )  # fmt: skip
