"""`pgmem reembed`: the store from one embedder to another."""

from __future__ import annotations

from dataclasses import asdict

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pgmem_core.cli import Interrupted, output
from pgmem_core.cli.place import Place
from pgmem_core.lifecycle.reembedding import ReembedProgress

__all__ = ["reembed"]


def reembed(place: Place, to: str, *, batch: int, as_json: bool) -> None:
    """Move all rows, with a bar on stderr, and say what was done. Raises: Interrupted, PgmemError."""
    done = 0
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeRemainingColumn(),
        console=output.console(stderr=True), transient=True,
    )  # fmt: skip
    with place.open(create=False) as mem:
        where = place.describe(mem)
        try:
            with bar:
                task = bar.add_task("reembedding", total=None)

                def on_progress(now: ReembedProgress) -> None:
                    nonlocal done
                    done = now.moved
                    bar.update(task, completed=now.moved, total=now.total)

                report = mem.reembed(to, batch=batch, on_progress=on_progress)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted: {done:,} rows are moved. Run the same command again to go on; both embedders answer"
                " until it has come to its end."
            ) from None
    if as_json:
        output.emit({"store": where, **asdict(report)})
        return
    console = output.console()
    console.print(f"memory    {where}", soft_wrap=True)
    console.print(f"embedder  {report.model}, {report.dimensions} dimensions", soft_wrap=True)
    rate = f", {report.moved / report.seconds:,.0f} a second" if report.moved else ""
    console.print(f"moved     {report.moved:,} rows in {report.seconds:.1f} s{rate}")
    if report.unusable:
        console.print(f"unusable  {report.unusable:,} rows have no vector from it: found by words only")
    if report.retired:
        console.print(f"retired   {', '.join(report.retired)}: clients that name it are refused", soft_wrap=True)
