"""A file into memory: an export of pgmem row by row, conversations of any other format turn by turn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pgmem_core import screening
from pgmem_core.effects import Flow, blocking, run, transact
from pgmem_core.errors import InvalidArgument, WriteRefused
from pgmem_core.flows import ready
from pgmem_core.ids import check_id
from pgmem_core.importing import Conversation, Problem, archive, read
from pgmem_core.lifecycle import loading
from pgmem_core.lifecycle.loading import Batch, Counts, Target
from pgmem_core.lifecycle.restoring import restore
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import imports

__all__ = ["ImportReport", "import_", "load"]

# Two: while one embeds, Postgres inserts the other's. Of one session they are never at work at once.
_WRITERS = 2


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did, by type of line; of conversations: "session" and "turn".

    `known` was there already. `forgotten` has been erased since, and stays away; so do `dead` values, which were
    rejected here. `contested` facts contradict what is believed here, and wait in review. `vectors` came with the
    file, or were made. `problems`: what was left out, and why.
    """

    format: Literal["memory", "conversations"]
    group_id: str
    new: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    forgotten: dict[str, int] = field(default_factory=dict)
    dead: int = 0
    contested: int = 0
    vectors: int = 0
    problems: tuple[Problem, ...] = ()
    seconds: float = 0.0


def import_(
    rt: Runtime,
    path: str | os.PathLike[str],
    *,
    group_id: str | None,
    user_id: str | None,
    on_progress: Callable[[int], None] | None,
) -> Flow[ImportReport]:
    """Store what is in a file, each row or turn once. Reading and writing go on in a thread where an event loop runs.

    Raises: InvalidArgument, Conflict, StoreUnavailable. What had been stored by then stays: import the file again.
    """
    file = Path(path)
    group = None if group_id is None else check_id(group_id, "group_id")
    user = None if user_id is None else check_id(user_id)
    yield from ready(rt)
    report = yield from blocking(lambda: run(_import(rt, file, group, user, on_progress), rt.database))
    rt.wake()
    return report


def _import(
    rt: Runtime, file: Path, group: str | None, user: str | None, on_progress: Callable[[int], None] | None
) -> Flow[ImportReport]:
    started = time.perf_counter()
    problems: list[Problem] = []
    if archive.is_archive(file):
        if user is not None:
            raise InvalidArgument(f"{file} is an export, which says whose everything is; leave user_id out")
        found = archive.open_archive(file)
        group = group or found.group_id
        done = yield from restore(rt, found, group, on_problem=problems.append, on_progress=on_progress)
        yield from transact(imports.analyze, single=True)
        return ImportReport(
            "memory", group, _counted(done.new), _counted(done.known), _counted(done.forgotten), done.dead,
            done.contested, done.vectors, tuple(problems), round(time.perf_counter() - started, 3),
        )  # fmt: skip
    target = Target(group or "default", user)
    counts = load(
        rt, read(file, on_problem=problems.append, user_id=user), target, on_problem=problems.append, file=str(file),
        on_batch=lambda so_far: None if on_progress is None else on_progress(so_far.turns),
    )  # fmt: skip
    yield from transact(imports.analyze, single=True)
    return ImportReport(
        "conversations", target.group_id,
        _counted({"session": counts.sessions_new, "turn": counts.turns_new}),
        _counted({"session": counts.sessions - counts.sessions_new, "turn": counts.turns_known}),
        _counted({"turn": counts.turns_forgotten}), 0, 0, counts.embedded, tuple(problems),
        round(time.perf_counter() - started, 3),
    )  # fmt: skip


def _counted(counts: dict[str, int]) -> dict[str, int]:
    return {kind: number for kind, number in counts.items() if number}


def load(
    rt: Runtime,
    conversations: Iterable[Conversation],
    target: Target,
    *,
    on_problem: Callable[[Problem], None],
    file: str = "",
    on_batch: Callable[[Counts], None] = lambda so_far: None,
) -> Counts:
    """Store conversations with their vectors; blocking. `on_batch` is told the counts so far.

    KeyboardInterrupt passes through when the batches under way are stored.
    """
    total = Counts()
    refused: list[WriteRefused] = []
    made = loading.batches(
        conversations, target, language=rt.settings.language, on_problem=on_problem, on_refused=refused.append,
        screen=None if rt.policy is None else rt.screen, file=file,
    )  # fmt: skip
    under_way: set[Future[Counts]] = set()

    def collect(most: int) -> None:
        nonlocal under_way, total
        while len(under_way) > most:
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                total += future.result()
                on_batch(total)

    def write(batch: Batch) -> Counts:
        return run(loading.store(rt, target, batch), rt.database)

    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="pgmem-import") as writers:
        try:
            for batch in made:
                # A batch that goes on with a session waits until what came before is stored: order is to be kept.
                collect(_WRITERS - 1 if all(piece.first for piece in batch.pieces) else 0)
                under_way.add(writers.submit(write, batch))
        finally:
            collect(0)  # also after Ctrl-C: what is under way will be stored, and is to be counted
            run(screening.record(rt, target.group_id, refused), rt.database)
    return total
