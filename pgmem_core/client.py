"""`PgMem` and `AsyncPgMem`: the memory of an application's agents.

`PgMem` blocks and has the words; `AsyncPgMem` has the same methods to await.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, overload

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from pgmem_core import asking, believing, flows
from pgmem_core.database.embedded import EmbeddedPostgres
from pgmem_core.database.engine import Database
from pgmem_core.effects import arun, blocking, run
from pgmem_core.facts import Fact
from pgmem_core.formation import worker
from pgmem_core.formation.worker import FormReport, Worker
from pgmem_core.models.adapters import as_embedder
from pgmem_core.runtime import Runtime
from pgmem_core.sessions import AsyncSessions, Sessions
from pgmem_core.settings import Settings, make_settings
from pgmem_core.types import MemoryText, ScoredMemory, SubjectRef, Turn

__all__ = ["AsyncPgMem", "PgMem"]

_DSN_VARIABLE = "PGMEM_DSN"


class _Base:
    _server: EmbeddedPostgres | None = None

    def __init__(
        self,
        dsn: str | Engine | AsyncEngine | None = None,
        *,
        embedder: Any = None,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        if dsn is None:
            dsn = os.environ.get(_DSN_VARIABLE, "")
        chosen = make_settings(settings, options)
        self._rt = Runtime(Database(dsn, chosen), chosen, None if embedder is None else as_embedder(embedder))
        self._worker = Worker(self._rt)

    @classmethod
    def embedded(
        cls,
        path: str | os.PathLike[str] = ".pgmem",
        *,
        embedder: Any = None,
        settings: Settings | None = None,
        **options: Any,
    ) -> Self:
        """Return a client on a Postgres of its own that lives in `path`, started from the wheel if need be.

        The server is shared by the processes of this machine that name the same path, and stops when the last
        of them leaves. Needs the extra `embedded`. Raises: MissingExtra, ConfigurationError.
        """
        server = EmbeddedPostgres(path)
        client = cls(server.start(), embedder=embedder, settings=settings, **options)
        client._server = server
        client._rt.database.revive = server.start
        return client

    @property
    def settings(self) -> Settings:
        return self._rt.settings

    @property
    def dsn(self) -> str:
        """Where the database is, without a password."""
        return self._rt.database.address

    def start(self) -> None:
        """Start the worker thread, which embeds what this process writes soon after it is written."""
        self._worker.start()

    def _settle(self) -> None:
        self._worker.stop()
        self._rt.close()

    def _leave(self) -> None:
        if self._server is not None:
            self._server.release()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._rt.database.address}, schema={self._rt.settings.schema_name})"


class PgMem(_Base):
    """Durable memory for LLM agents in Postgres.

    `dsn`: a Postgres URL or a SQLAlchemy engine (psycopg); default: the environment's `PGMEM_DSN`. `embedder`:
    a LangChain or LlamaIndex embedding model, a string such as "openai:text-embedding-3-small", or anything
    with the methods of `Embedder`; default: the bundled one. Further keywords are settings.

    `with PgMem(dsn) as mem:` sets up, starts the worker, and closes. Without it every method sets up at first
    use, and `form()` does the worker's work when called.
    """

    @property
    def session(self) -> Sessions:
        """Sessions: create, open, get, list."""
        return Sessions(self._rt)

    def setup(self) -> None:
        """Create or upgrade the schema; safe from many processes at once, a no-op the second time.

        Raises: SchemaError, PermissionDenied (with what an admin must run), DimensionMismatch, StoreUnavailable.
        """
        run(flows.setup(self._rt), self._rt.database)

    def check(self) -> None:
        """Make sure that the schema is there, and create nothing. Raises: SchemaError, StoreUnavailable."""
        run(flows.check(self._rt), self._rt.database)

    def form(self, *, group_id: str | None = None) -> FormReport:
        """Do now what the worker does in the background, until nothing waits; returns what was done."""
        self._flush()
        return run(worker.form(self._rt, tenant_id=group_id), self._rt.database)

    def add(
        self,
        messages: object,
        *,
        user_id: str,
        group_id: str = "default",
        agent_id: str | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> list[Turn]:
        """Remember a text, a message or a list of messages, as turns of a session (a new one if none is named)."""
        scope = asking.scope_of(group_id, user_id, agent_id, None)
        return run(
            asking.add_messages(
                self._rt, messages, scope=scope, session_id=session_id, metadata=metadata, given=connection
            ),
            self._rt.database,
        )

    def search(
        self,
        query: object,
        *,
        user_id: str,
        top_k: int = 10,
        group_id: str = "default",
        agent_id: str | None = None,
        session_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        filter: Mapping[str, Any] | None = None,
        floor: float | str | None = None,
    ) -> list[ScoredMemory]:
        """Return a user's best memories for a query, best first, with the parts of their scores; [] if blank."""
        return run(asking.search(
            self._rt, asking.scope_of(group_id, user_id, None, None), query, top_k,
            {"session_id": session_id, "agent_id": agent_id, "kind": kind, "after": after, "before": before,
             "filter": filter}, floor,
        ), self._rt.database)  # fmt: skip

    def get_all(
        self,
        *,
        user_id: str,
        group_id: str = "default",
        session_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[MemoryText]:
        """Return a user's memories, newest first."""
        return run(asking.get_all(
            self._rt, asking.scope_of(group_id, user_id, None, None), limit=limit, offset=offset,
            conditions={"session_id": session_id, "kind": kind, "filter": filter},
        ), self._rt.database)  # fmt: skip

    def update(
        self,
        memory_id: str | uuid.UUID,
        content: object,
        *,
        group_id: str = "default",
        user_id: str | None = None,
        connection: Any = None,
    ) -> MemoryText:
        """Replace a memory's text; what it was stays in `history`. Raises: NotFound, also where user_id is given and
        it is another user's."""
        return run(asking.update(self._rt, group_id, memory_id, content, user_id, connection), self._rt.database)

    def delete(
        self,
        memory_id: str | uuid.UUID,
        *,
        group_id: str = "default",
        user_id: str | None = None,
        connection: Any = None,
    ) -> bool:
        """Delete one memory with its vector, terms and earlier texts; False if there is none."""
        return run(asking.delete(self._rt, group_id, memory_id, user_id, connection), self._rt.database)

    def delete_all(self, *, user_id: str, group_id: str = "default", connection: Any = None) -> int:
        """Delete everything of one user; returns how many memories that were. An empty user_id is refused."""
        return run(
            asking.delete_all(self._rt, asking.scope_of(group_id, user_id, None, None), connection), self._rt.database
        )

    def facts(
        self,
        subject: SubjectRef | None = None,
        predicate: str | None = None,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
    ) -> list[Fact]:
        """Return the facts about a subject, or in a user's memory, that hold.

        `valid_at`: that held then; `known_at`: as they were believed then (aware datetimes; default now). The two
        clocks are independent: what was true in May, as we knew it in June.
        """
        return run(believing.facts(
            self._rt, group_id, subject=subject, user_id=user_id, predicate=predicate, valid_at=valid_at,
            known_at=known_at,
        ), self._rt.database)  # fmt: skip

    @overload
    def history(self, target: str | uuid.UUID, *, group_id: str = "default") -> list[dict[str, Any]]: ...

    @overload
    def history(self, target: SubjectRef, predicate: str | None = None, *, group_id: str = "default") -> list[Fact]: ...

    def history(
        self, target: str | uuid.UUID | SubjectRef, predicate: str | None = None, *, group_id: str = "default"
    ) -> list[dict[str, Any]] | list[Fact]:
        """Return what happened to a memory (its id), or everything ever believed about a subject, oldest first."""
        if isinstance(target, SubjectRef):
            return run(believing.history(self._rt, group_id, target, predicate), self._rt.database)
        return run(asking.history(self._rt, group_id, target), self._rt.database)

    def flush(self) -> None:
        """Wait until every query that was compiled is durable."""
        self._flush()

    def _flush(self) -> None:
        run(flows.write_queries(self._rt, self._rt.all_pending()), self._rt.database)

    def close(self) -> None:
        """Stop the worker, finish what is under way, close the connections, leave the embedded server."""
        self._settle()
        self._rt.database.close()
        self._leave()

    def __enter__(self) -> Self:
        self.setup()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncPgMem(_Base):
    """`PgMem` to await; see there."""

    @property
    def session(self) -> AsyncSessions:
        return AsyncSessions(self._rt)

    async def setup(self) -> None:
        await arun(flows.setup(self._rt), self._rt.database)

    async def check(self) -> None:
        await arun(flows.check(self._rt), self._rt.database)

    async def form(self, *, group_id: str | None = None) -> FormReport:
        await self.flush()
        return await arun(worker.form(self._rt, tenant_id=group_id), self._rt.database)

    async def add(
        self,
        messages: object,
        *,
        user_id: str,
        group_id: str = "default",
        agent_id: str | None = None,
        session_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> list[Turn]:
        scope = asking.scope_of(group_id, user_id, agent_id, None)
        return await arun(
            asking.add_messages(
                self._rt, messages, scope=scope, session_id=session_id, metadata=metadata, given=connection
            ),
            self._rt.database,
        )

    async def search(
        self,
        query: object,
        *,
        user_id: str,
        top_k: int = 10,
        group_id: str = "default",
        agent_id: str | None = None,
        session_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        filter: Mapping[str, Any] | None = None,
        floor: float | str | None = None,
    ) -> list[ScoredMemory]:
        return await arun(asking.search(
            self._rt, asking.scope_of(group_id, user_id, None, None), query, top_k,
            {"session_id": session_id, "agent_id": agent_id, "kind": kind, "after": after, "before": before,
             "filter": filter}, floor,
        ), self._rt.database)  # fmt: skip

    async def get_all(
        self,
        *,
        user_id: str,
        group_id: str = "default",
        session_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[MemoryText]:
        return await arun(asking.get_all(
            self._rt, asking.scope_of(group_id, user_id, None, None), limit=limit, offset=offset,
            conditions={"session_id": session_id, "kind": kind, "filter": filter},
        ), self._rt.database)  # fmt: skip

    async def update(
        self,
        memory_id: str | uuid.UUID,
        content: object,
        *,
        group_id: str = "default",
        user_id: str | None = None,
        connection: Any = None,
    ) -> MemoryText:
        return await arun(asking.update(self._rt, group_id, memory_id, content, user_id, connection), self._rt.database)

    async def delete(
        self,
        memory_id: str | uuid.UUID,
        *,
        group_id: str = "default",
        user_id: str | None = None,
        connection: Any = None,
    ) -> bool:
        return await arun(asking.delete(self._rt, group_id, memory_id, user_id, connection), self._rt.database)

    async def delete_all(self, *, user_id: str, group_id: str = "default", connection: Any = None) -> int:
        return await arun(
            asking.delete_all(self._rt, asking.scope_of(group_id, user_id, None, None), connection), self._rt.database
        )

    async def facts(
        self,
        subject: SubjectRef | None = None,
        predicate: str | None = None,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
    ) -> list[Fact]:
        return await arun(believing.facts(
            self._rt, group_id, subject=subject, user_id=user_id, predicate=predicate, valid_at=valid_at,
            known_at=known_at,
        ), self._rt.database)  # fmt: skip

    @overload
    async def history(self, target: str | uuid.UUID, *, group_id: str = "default") -> list[dict[str, Any]]: ...

    @overload
    async def history(
        self, target: SubjectRef, predicate: str | None = None, *, group_id: str = "default"
    ) -> list[Fact]: ...

    async def history(
        self, target: str | uuid.UUID | SubjectRef, predicate: str | None = None, *, group_id: str = "default"
    ) -> list[dict[str, Any]] | list[Fact]:
        if isinstance(target, SubjectRef):
            return await arun(believing.history(self._rt, group_id, target, predicate), self._rt.database)
        return await arun(asking.history(self._rt, group_id, target), self._rt.database)

    async def flush(self) -> None:
        await arun(flows.write_queries(self._rt, self._rt.all_pending()), self._rt.database)

    async def close(self) -> None:
        await arun(blocking(self._settle), self._rt.database)
        await self._rt.database.aclose()
        self._leave()

    async def __aenter__(self) -> Self:
        await self.setup()
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
