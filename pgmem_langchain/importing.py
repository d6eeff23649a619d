"""Moving in from langchain-postgres: a `PostgresChatMessageHistory` table, or a collection of documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pgmem_core import asking, documents
from pgmem_core.database.engine import Database
from pgmem_core.effects import Flow, arun, run, transact
from pgmem_core.errors import InvalidArgument, WriteRefused
from pgmem_core.flows import SessionKey, ready
from pgmem_core.ids import turn_uuid
from pgmem_core.importing import langchain_postgres as reading
from pgmem_core.importing.langchain_postgres import DocumentRow, MessageRow, Source
from pgmem_core.runtime import Runtime
from pgmem_core.storing import check_limit
from pgmem_core.tiers import imports
from pgmem_langchain.clients import runtime_of
from pgmem_langchain.convert import as_messages, turn_of

__all__ = ["ImportReport", "aimport_langchain_postgres", "import_langchain_postgres"]

T = TypeVar("T")
Users = str | Callable[[str], str | None] | None


@dataclass(slots=True)
class ImportReport:
    """What an import has done so far: `read` = `stored` + `known` (from a run before) + the failed.

    `failed` says of each row that was left out which it is, and why. `sessions`: how many a history had.
    """

    source: str
    kind: str = ""
    read: int = 0
    stored: int = 0
    known: int = 0
    sessions: int = 0
    failed: list[str] = field(default_factory=list)


def import_langchain_postgres(
    mem: Any,
    dsn: str | None,
    table: str,
    *,
    user_id: Users = None,
    group_id: str = "default",
    collection: str | None = None,
    reuse_vectors: bool = False,
    batch_size: int = 200,
    on_batch: Callable[[ImportReport], None] | None = None,
) -> ImportReport:
    """Copy a table of langchain-postgres into pgmem, and return what was done. The table is only read.

    `dsn`: where the table is; None: in mem's own database. `table`: that of a `PostgresChatMessageHistory`, whose
    sessions become sessions of pgmem with equal messages and their times (`user_id`: whose, or a function of the
    session id; without it each is a scope of its own); or that of a `PGVectorStore`, or the name of a `PGVector`
    collection, whose documents go into the `PgMemVectorStore` collection of the same name (or `collection`), embedded
    anew unless `reuse_vectors` says that they came from mem's own embedder.

    Killed at any point it may be called again: what is there is counted as known and not stored twice. `on_batch` is
    called after each batch of `batch_size` rows.

    Raises: NotFound, InvalidArgument, DimensionMismatch, StoreUnavailable.
    """
    rt = runtime_of(mem, None)
    source = rt.database if dsn is None else Database(dsn, rt.settings)
    move = _Move(rt, source, table, user_id, group_id, collection, reuse_vectors, check_limit(batch_size), on_batch)
    try:
        return run(move.flow(), rt.database)
    finally:
        if dsn is not None:
            source.close()


async def aimport_langchain_postgres(
    mem: Any,
    dsn: str | None,
    table: str,
    *,
    user_id: Users = None,
    group_id: str = "default",
    collection: str | None = None,
    reuse_vectors: bool = False,
    batch_size: int = 200,
    on_batch: Callable[[ImportReport], None] | None = None,
) -> ImportReport:
    """The same, awaited."""
    rt = runtime_of(mem, None)
    source = rt.database if dsn is None else Database(dsn, rt.settings)
    move = _Move(rt, source, table, user_id, group_id, collection, reuse_vectors, check_limit(batch_size), on_batch)
    try:
        return await arun(move.flow(), rt.database)
    finally:
        if dsn is not None:
            await source.aclose()


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """An effect: a flow that runs on another database."""

    flow: Flow[Any]
    database: Database

    def perform(self, database: Database) -> Any:
        return run(self.flow, self.database)

    async def aperform(self, database: Database) -> Any:
        return await arun(self.flow, self.database)


@dataclass(frozen=True, slots=True)
class _Move:
    rt: Runtime
    database: Database  # the table's
    table: str
    user_id: Users
    group_id: str
    collection: str | None
    reuse_vectors: bool
    batch_size: int
    on_batch: Callable[[ImportReport], None] | None

    def flow(self) -> Flow[ImportReport]:
        report = ImportReport(self.table)
        if self.batch_size < 1:
            raise InvalidArgument("batch_size must be at least 1")
        yield from ready(self.rt)
        source: Source = yield from self._there(reading.find, self.table)
        report.kind = source.kind
        if source.kind == "history":
            yield from self._history(source, report)
        else:
            yield from self._documents(source, report)
        return report

    def _there(self, operation: Callable[..., T], *arguments: Any, **keywords: Any) -> Flow[T]:
        found: T = yield _Elsewhere(transact(operation, *arguments, single=True, **keywords), self.database)
        return found

    # -- a history -------------------------------------------------------------------------------------------

    def _history(self, source: Source, report: ImportReport) -> Flow[None]:
        after = -(1 << 63)
        sessions: set[str] = set()
        while rows := (yield from self._there(reading.messages, source, after=after, limit=self.batch_size)):
            after = rows[-1].id
            report.read += len(rows)
            of_session: dict[str, list[MessageRow]] = {}
            for row in rows:
                of_session.setdefault(row.session_id, []).append(row)
            sessions.update(of_session)
            report.sessions = len(sessions)
            for session_id, some in of_session.items():
                yield from self._session(session_id, some, report)
            if self.on_batch is not None:
                self.on_batch(report)

    def _session(self, session_id: str, rows: Sequence[MessageRow], report: ImportReport) -> Flow[None]:
        user = self.user_id(session_id) if callable(self.user_id) else self.user_id
        key = asking.session_key(session_id, group_id=self.group_id, user_id=user, agent_id=None)
        ids = {
            row.id: turn_uuid(f"langchain-postgres:{self.table}:{row.id}", self.group_id, session_id) for row in rows
        }
        known = yield from transact(imports.known_turns, self.group_id, list(ids.values()), single=True)
        stored = {turn_id for _, turn_id in known}
        report.known += len(stored)
        turns = []
        for row in rows:
            if ids[row.id] in stored:
                continue
            try:
                [message] = as_messages([row.message])
            except InvalidArgument as exc:
                report.failed.append(f"row {row.id}: {exc}")
            else:
                turns.append((row.id, {**turn_of(message), "id": ids[row.id], "created_at": row.created_at}))
        yield from self._put_all(turns, lambda some: self._add(key, some), report)

    def _add(self, key: SessionKey, turns: Sequence[dict[str, Any]]) -> Flow[int]:
        return len((yield from asking.add_turns(self.rt, key, turns, None)))

    # -- documents -------------------------------------------------------------------------------------------

    def _documents(self, source: Source, report: ImportReport) -> Flow[None]:
        if callable(self.user_id):
            raise InvalidArgument("documents have no session; user_id must be a string or None")
        place = documents.place_of(self.group_id, self.user_id, self.collection or self.table)
        after = ""
        while rows := (yield from self._there(reading.documents, source, after=after, limit=self.batch_size)):
            after = rows[-1].id
            report.read += len(rows)
            there = yield from documents.by_ids(self.rt, place, [row.id for row in rows])
            held = {documents.own_id(text): (str(text), text.metadata) for text in there}
            new = [row for row in rows if held.get(row.id) != (row.content, row.metadata)]
            report.known += len(rows) - len(new)
            yield from self._put_all([(row.id, row) for row in new], lambda some: self._put(place, some), report)
            if self.on_batch is not None:
                self.on_batch(report)

    def _put(self, place: documents.Place, rows: Sequence[DocumentRow]) -> Flow[int]:
        vectors = [row.vector for row in rows] if self.reuse_vectors else None
        made = yield from documents.put(
            self.rt, place, [row.content or "" for row in rows], [row.metadata for row in rows],
            [row.id for row in rows], vectors=vectors,
        )  # fmt: skip
        return len(made)

    def _put_all(
        self, rows: Sequence[tuple[Any, T]], put: Callable[[Sequence[T]], Flow[int]], report: ImportReport
    ) -> Flow[None]:
        """Store rows at once; where one of them is refused, one by one, so that it alone is left out."""
        if not rows:
            return
        try:
            report.stored += yield from put([row for _, row in rows])
            return
        except (InvalidArgument, WriteRefused):
            pass
        for row_id, row in rows:
            try:
                report.stored += yield from put([row])
            except (InvalidArgument, WriteRefused) as exc:
                report.failed.append(f"row {row_id}: {exc}")
