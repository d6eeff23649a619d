"""A group's memory, or one user's, into a file: as of one moment, while it is used."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pgmem_core.database.connection import Connection
from pgmem_core.effects import Flow, blocking, run, transact
from pgmem_core.errors import InvalidArgument, StoreUnavailable
from pgmem_core.flows import ready, write_queries
from pgmem_core.ids import check_id
from pgmem_core.importing import archive
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import exports

__all__ = ["ExportReport", "export"]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written: lines by type, and when it was so (ISO 8601)."""

    counts: dict[str, int] = field(default_factory=dict)
    exported_at: str = ""
    bytes: int = 0
    seconds: float = 0.0


def export(
    rt: Runtime,
    to: str | os.PathLike[str] | IO[str],
    *,
    group_id: str,
    user_id: str | None,
    vectors: bool,
    on_progress: Callable[[int], None] | None,
) -> Flow[ExportReport]:
    """Write an export. A path gets it whole or not at all; an open text file as it comes.

    Raises: InvalidArgument (a path that cannot be written), StoreUnavailable.
    """
    group = check_id(group_id, "group_id")
    user = None if user_id is None else check_id(user_id)
    yield from ready(rt)
    yield from write_queries(rt, rt.all_pending())
    writer = _Writer(to, on_progress)
    # Reading rows and writing lines is CPU and disk: where an event loop runs, a thread does both.
    return (yield from blocking(lambda: run(_export(rt, writer, group, user, vectors), rt.database)))


def _export(rt: Runtime, writer: _Writer, group: str, user: str | None, vectors: bool) -> Flow[ExportReport]:
    started = time.perf_counter()
    try:
        moment = yield from transact(_write, writer, group, user, vectors)
    except BaseException:
        writer.abandon()
        raise
    writer.finish()
    return ExportReport(dict(writer.counts), moment, writer.bytes, round(time.perf_counter() - started, 3))


def _write(conn: Connection, writer: _Writer, group: str, user: str | None, vectors: bool) -> str:
    moment = exports.snapshot(conn)
    models = exports.models(conn) if vectors else []
    writer.start(archive.start_line(group_id=group, user_id=user, exported_at=moment, vectors=vectors, models=models))
    for kind, row in exports.lines(conn, group, user, vectors=vectors):
        writer.row(kind, row)
    writer.line(archive.end_line(dict(writer.counts)))
    return moment


class _Writer:
    """Writes lines beside the path and moves the file there when it is whole; or to a file of the caller's."""

    def __init__(self, to: str | os.PathLike[str] | IO[str], on_progress: Callable[[int], None] | None) -> None:
        self._path: Path | None = None
        self._file: IO[str] | None = None
        self._on_progress = on_progress
        self._started = False
        self.counts: Counter[str] = Counter()
        self.bytes = 0
        if isinstance(to, str | os.PathLike):
            self._path = Path(to)
            if self._path.is_dir():
                raise InvalidArgument(f"{self._path} is a directory; name a file to export to, such as memory.jsonl")
        elif hasattr(to, "write"):
            self._file = to
        else:
            raise InvalidArgument(f"export takes a path or an open text file, got {type(to).__name__}")

    @property
    def _beside(self) -> Path:
        assert self._path is not None
        return self._path.with_name(f".{self._path.name}.{os.getpid()}.part")

    def start(self, line: str) -> None:
        if self._path is not None:
            if self._file is not None:  # the connection was lost, and all is read again
                self._file.close()
            try:
                self._file = self._beside.open("w", encoding="utf-8", newline="\n")
            except OSError as exc:
                raise InvalidArgument(f"{self._path} cannot be written: {exc.strerror}") from exc
        elif self._started:
            raise StoreUnavailable("the connection was lost while the export was written; start it again in a new file")
        self._started = True
        self.counts.clear()
        self.bytes = 0
        self.line(line)

    def row(self, kind: str, row: str) -> None:
        self.counts[kind] += 1
        self.line(archive.row_line(kind, row))
        if self._on_progress is not None and (total := self.counts.total()) % 500 == 0:
            self._on_progress(total)

    def line(self, line: str) -> None:
        assert self._file is not None
        self._file.write(line)
        self.bytes += len(line) if line.isascii() else len(line.encode())

    def finish(self) -> None:
        if self._path is not None and self._file is not None:
            self._file.close()
            self._beside.replace(self._path)

    def abandon(self) -> None:
        if self._path is not None and self._file is not None:
            self._file.close()
            self._beside.unlink(missing_ok=True)
