"""`pgmem forget`, `prune`, `expire` and `rebuild`, and the rounds of upkeep that `pgmem worker` makes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from pgmem_core.cli import output
from pgmem_core.cli.facts import subject_of
from pgmem_core.cli.place import Place
from pgmem_core.effects import run
from pgmem_core.errors import ConfigurationError, PgmemError
from pgmem_core.lifecycle import schedule
from pgmem_core.lifecycle.schedule import UpkeepReport

if TYPE_CHECKING:
    from pgmem_core.client import PgMem

__all__ = ["Rounds", "expire", "forget", "prune", "rebuild"]

# How often a worker asks whether it is time: one statement.
_ASK_SECONDS = 30.0


def forget(place: Place, target: Mapping[str, str | None], *, group_id: str, yes: bool, as_json: bool) -> None:
    """Ask, erase, and say how many rows of each kind went. Raises: ConfigurationError, InvalidArgument, typer.Abort."""
    named = {name: value for name, value in target.items() if value is not None}
    if len(named) != 1:
        raise ConfigurationError(
            f"forget takes exactly one of --user-id, --session, --subject and --turn, got {len(named)}; nothing was"
            " erased"
        )
    [(name, value)] = named.items()
    wanted: dict[str, Any] = {name: subject_of(value) if name == "subject" else value}
    with place.open(create=False) as mem:
        mem.check()
        where = place.describe(mem)
        if not yes:
            _ask(name.removesuffix("_id"), value, group_id, where)
        report = mem.forget(group_id=group_id, **wanted)
    if as_json:
        output.emit({"store": where, **asdict(report)})
        return
    console = output.console()
    console.print(f"memory    {where}", soft_wrap=True)
    for kind, count in report.rows.items():
        if count:
            console.print(f"erased    {count:,} {kind.replace('_', ' ')}")
    if not report.total:
        console.print("erased    nothing: it was not known here")
    console.print(f"recorded  {report.erasure_id}, at {report.erased_at.isoformat(timespec='seconds')}")


def _ask(what: str, value: str, group_id: str, where: str) -> None:
    if not sys.stdin.isatty():
        raise ConfigurationError("nobody is there to confirm an erasure; pass --yes")
    typer.confirm(
        f"Erase {what} {output.shown(value)!r} of group {group_id!r} in {where}, for good?", abort=True, err=True
    )


def prune(
    place: Place, older_than_days: float, *, keep_evidence: bool, force: bool, group_id: str | None, as_json: bool
) -> None:
    """Delete old turns and say how many. Raises: InvalidArgument."""
    with place.open(create=False) as mem:
        mem.check()
        report = mem.prune(older_than_days, keep_evidence=keep_evidence, force=force, group_id=group_id)
        where = place.describe(mem)
    _tell(where, asdict(report), as_json)


def expire(place: Place, *, group_id: str | None, as_json: bool) -> None:
    """End what is over and say how much that was."""
    with place.open(create=False) as mem:
        mem.check()
        report = mem.expire(group_id=group_id)
        where = place.describe(mem)
    _tell(where, asdict(report), as_json)


def rebuild(place: Place, *, group_id: str | None, as_json: bool) -> None:
    """Make what is missing and say what that was; what failed, on stderr."""
    with place.open(create=False) as mem:
        mem.check()
        report = mem.rebuild(group_id=group_id)
        where = place.describe(mem)
    if as_json:
        output.emit({"store": where, **asdict(report)})
        return
    counts = {
        "records indexed": report.records, "sessions read": report.sessions, "vectors": report.turns,
        "facts": report.facts, "episodes": report.episodes,
    }  # fmt: skip
    console = output.console()
    console.print(f"memory: {where}", soft_wrap=True)
    console.print(_line(counts) or "nothing to do")
    for session_id, error in report.errors.items():
        output.note(f"session {output.shown(session_id)!r} is tried again by a worker: {output.shown(error)}")


def _tell(where: str, counts: Mapping[str, int], as_json: bool) -> None:
    if as_json:
        output.emit({"store": where, **counts})
        return
    console = output.console()
    console.print(f"memory: {where}", soft_wrap=True)
    console.print(_line(counts) or "nothing to do")


def _line(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in counts.items() if count)


class Rounds:
    """The rounds of upkeep of one worker: asks now and then whether it is time, and tells what a round did.

    A round that fails is told, kept for `pgmem doctor`, and tried again; the worker goes on with its other work.
    """

    def __init__(self, mem: PgMem, stopped: Callable[[], bool]) -> None:
        self._mem = mem
        self._stopped = stopped
        self._next = 0.0
        self.last: UpkeepReport | None = None
        self.error: str | None = None

    def look(self) -> None:
        """Make a round if it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + min(_ASK_SECONDS, self._mem.settings.upkeep_interval_seconds)
        rt = self._mem._rt
        try:
            done = run(schedule.round_(rt, stopped=self._stopped), rt.database)
        except PgmemError as exc:
            self.error = str(exc)
            output.note(f"upkeep failed, and is tried again: {output.shown(str(exc))}")
            return
        if done is not None:
            self.last, self.error = done, None
            if done.total:
                expired = _line(asdict(done.expired)) or "nothing"
                pruned = _line(asdict(done.pruned)) or "nothing"
                output.note(f"upkeep: expired {expired}; pruned {pruned}")
