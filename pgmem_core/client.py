"""`PgMem` and `AsyncPgMem`: the memory of an application's agents.

`PgMem` blocks and has the words; `AsyncPgMem` has the same methods to await.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from pgmem_core import asking, flows
from pgmem_core.database.embedded import EmbeddedPostgres
from pgmem_core.database.engine import Database
from pgmem_core.effects import arun, blocking, run
from pgmem_core.formation import worker
from pgmem_core.formation.worker import FormReport, Worker
from pgmem_core.models.adapters import as_embedder
from pgmem_core.runtime import Runtime
from pgmem_core.session import AsyncSession, Session
from pgmem_core.settings import Settings, make_settings
from pgmem_core.types import MemoryText, ScoredMemory, SessionInfo, Turn

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
        self, memory_id: str | uuid.UUID, content: object, *, group_id: str = "default", connection: Any = None
    ) -> MemoryText:
        """Replace a memory's text; what it was stays in `history`. Raises: NotFound."""
        return run(asking.update(self._rt, group_id, memory_id, content, connection), self._rt.database)

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

    def history(self, memory_id: str | uuid.UUID, *, group_id: str = "default") -> list[dict[str, Any]]:
        """Return what happened to a memory, oldest first."""
        return run(asking.history(self._rt, group_id, memory_id), self._rt.database)

    def flush(self) -> None:
        """Wait until every query that was compiled is durable."""
        self._flush()

    def _flush(self) -> None:
        for query in self._rt.all_pending():
            run(flows.write_query(self._rt, query), self._rt.database)
            self._rt.settle(query.scope.tenant_id, query.session_id, [query])

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
        self, memory_id: str | uuid.UUID, content: object, *, group_id: str = "default", connection: Any = None
    ) -> MemoryText:
        return await arun(asking.update(self._rt, group_id, memory_id, content, connection), self._rt.database)

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

    async def history(self, memory_id: str | uuid.UUID, *, group_id: str = "default") -> list[dict[str, Any]]:
        return await arun(asking.history(self._rt, group_id, memory_id), self._rt.database)

    async def flush(self) -> None:
        for query in self._rt.all_pending():
            await arun(flows.write_query(self._rt, query), self._rt.database)
            self._rt.settle(query.scope.tenant_id, query.session_id, [query])

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


class Sessions:
    """`mem.session`: create, open (get or create), get, list."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    def create(
        self,
        session_id: str | None = None,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        agent_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> Session:
        """Create a session and return it; an id is minted (UUIDv7) if none is given.

        Without user_id the session is a scope of its own: it recalls itself only. Raises: Conflict if it exists.
        """
        key = asking.session_key(session_id, group_id=group_id, user_id=user_id, agent_id=agent_id)
        return Session(
            self._rt,
            run(asking.open_session(self._rt, key, metadata, create_only=True, given=connection), self._rt.database),
        )

    def open(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        agent_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> Session:
        """Get the session, or create it. Raises: Conflict if it is another user's."""
        key = asking.session_key(asking.check_id(session_id, "session_id"), group_id=group_id, user_id=user_id,
                                 agent_id=agent_id)  # fmt: skip
        return Session(
            self._rt,
            run(asking.open_session(self._rt, key, metadata, create_only=False, given=connection), self._rt.database),
        )

    def get(self, session_id: str, *, group_id: str = "default", user_id: str | None = None) -> Session:
        """Get a stored session. Raises: NotFound, also where user_id is given and it is another user's."""
        return Session(
            self._rt,
            run(
                asking.get_session(self._rt, session_id, group_id=group_id, user_id=user_id),
                self._rt.database,
            ),
        )

    def list(
        self, *, user_id: str | None = None, group_id: str = "default", limit: int = 100, offset: int = 0
    ) -> list[SessionInfo]:
        """Return sessions of a user (or of the whole group), newest first."""
        return run(
            asking.list_sessions(self._rt, group_id=group_id, user_id=user_id, limit=limit, offset=offset),
            self._rt.database,
        )

    def end(self, session_id: str, *, group_id: str = "default") -> SessionInfo:
        """Mark a session ended. Raises: NotFound."""
        return self.get(session_id, group_id=group_id).end()


class AsyncSessions:
    """`Sessions` to await; see there."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    async def create(
        self,
        session_id: str | None = None,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        agent_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> AsyncSession:
        key = asking.session_key(session_id, group_id=group_id, user_id=user_id, agent_id=agent_id)
        return AsyncSession(
            self._rt,
            await arun(
                asking.open_session(self._rt, key, metadata, create_only=True, given=connection), self._rt.database
            ),
        )

    async def open(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        group_id: str = "default",
        agent_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> AsyncSession:
        key = asking.session_key(asking.check_id(session_id, "session_id"), group_id=group_id, user_id=user_id,
                                 agent_id=agent_id)  # fmt: skip
        return AsyncSession(
            self._rt,
            await arun(
                asking.open_session(self._rt, key, metadata, create_only=False, given=connection), self._rt.database
            ),
        )

    async def get(self, session_id: str, *, group_id: str = "default", user_id: str | None = None) -> AsyncSession:
        return AsyncSession(
            self._rt,
            await arun(
                asking.get_session(self._rt, session_id, group_id=group_id, user_id=user_id),
                self._rt.database,
            ),
        )

    async def list(
        self, *, user_id: str | None = None, group_id: str = "default", limit: int = 100, offset: int = 0
    ) -> list[SessionInfo]:
        return await arun(
            asking.list_sessions(self._rt, group_id=group_id, user_id=user_id, limit=limit, offset=offset),
            self._rt.database,
        )

    async def end(self, session_id: str, *, group_id: str = "default") -> SessionInfo:
        return await (await self.get(session_id, group_id=group_id)).end()
