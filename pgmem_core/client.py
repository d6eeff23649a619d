"""`PgMem` and `AsyncPgMem`: the memory of an application's agents.

`PgMem` blocks and has the words; `AsyncPgMem` has the same methods to await.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from pgmem_core import flows
from pgmem_core.database.embedded import EmbeddedPostgres
from pgmem_core.database.engine import Database
from pgmem_core.effects import arun, blocking, run
from pgmem_core.errors import ConfigurationError
from pgmem_core.formation import worker
from pgmem_core.formation.choosing import choose
from pgmem_core.formation.draining import FormReport
from pgmem_core.formation.worker import Worker
from pgmem_core.models.adapters import as_embedder
from pgmem_core.policy import Policy, with_policy
from pgmem_core.runtime import Runtime
from pgmem_core.sessions import AsyncSessions, Sessions
from pgmem_core.settings import Settings
from pgmem_core.upkeep import AsyncUpkeep, Upkeep
from pgmem_core.verbs import AsyncVerbs, Verbs

__all__ = ["AsyncPgMem", "PgMem", "dsn_of"]

_DSN_VARIABLE = "PGMEM_DSN"


def dsn_of(dsn: str | Engine | AsyncEngine | None) -> str | Engine | AsyncEngine:
    """Return the dsn, or what the environment variable holds that it names ("env:NAME"; None: PGMEM_DSN)."""
    if dsn is None:
        dsn = f"env:{_DSN_VARIABLE}"
    if not isinstance(dsn, str) or not dsn.startswith("env:"):
        return dsn
    name = dsn.removeprefix("env:")
    if not (found := os.environ.get(name, "").strip()):
        raise ConfigurationError(
            f"the environment has no {name}; set it to a URL such as postgresql://user@host/dbname, pass dsn=..., or"
            " use PgMem.embedded(path) for a Postgres of its own"
        )
    return found


class _Base:
    _server: EmbeddedPostgres | None = None

    def __init__(
        self,
        dsn: str | Engine | AsyncEngine | None = None,
        *,
        embedder: Any = None,
        model: Any = None,
        extractor: Any = None,
        summarizers: Any = None,
        policy: Policy | str | None = None,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        dsn = dsn_of(dsn)
        chosen, screens = with_policy(settings, options, policy)
        reads, writes = choose(chosen, model=model, extractor=extractor, summarizers=summarizers)
        self._rt = Runtime(
            Database(dsn, chosen), chosen, None if embedder is None else as_embedder(embedder), extractor=reads,
            summarizers=writes, policy=screens,
        )  # fmt: skip
        self._worker = Worker(self._rt)

    @classmethod
    def embedded(
        cls,
        path: str | os.PathLike[str] = ".pgmem",
        *,
        embedder: Any = None,
        model: Any = None,
        extractor: Any = None,
        summarizers: Any = None,
        policy: Policy | str | None = None,
        settings: Settings | None = None,
        **options: Any,
    ) -> Self:
        """Return a client on a Postgres of its own that lives in `path`, started from the wheel if need be.

        The server is shared by the processes of this machine that name the same path, and stops when the last
        of them leaves. Needs the extra `embedded`. Raises: MissingExtra, ConfigurationError.
        """
        server = EmbeddedPostgres(path)
        client = cls(
            server.start(), embedder=embedder, model=model, extractor=extractor, summarizers=summarizers,
            policy=policy, settings=settings, **options,
        )  # fmt: skip
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

    def _settle(self) -> None:
        self._worker.stop()
        self._rt.close()

    def _leave(self) -> None:
        if self._server is not None:
            self._server.release()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._rt.database.address}, schema={self._rt.settings.schema_name})"


class PgMem(_Base, Verbs, Upkeep):
    """Durable memory for LLM agents in Postgres.

    `dsn`: a Postgres URL, a SQLAlchemy engine (psycopg), or "env:NAME" for the URL in an environment variable; default:
    `PGMEM_DSN`. `embedder`:
    a LangChain or LlamaIndex embedding model, a string such as "openai:text-embedding-3-small", or anything
    with the methods of `Embedder`; default: the bundled one. `model`: a chat model (LangChain, LlamaIndex, or a
    string such as "openai:gpt-4o-mini") that extracts facts and writes summaries, off the turn; without one nothing
    is extracted, unless an `extractor` is given: "patterns" (no model, English) or an `Extractor`. `summarizers`:
    others than the model's. `policy`: called with each text before it is stored, see `pgmem_core.policy`, or
    "module:function". Further keywords are settings.

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

    def start(self) -> None:
        """Start the worker's threads: what this process writes is embedded soon after, and with a model or an
        extractor its facts are formed."""
        self._worker.start()

    def check(self) -> None:
        """Make sure that the schema is there, and create nothing. Raises: SchemaError, StoreUnavailable."""
        run(flows.check(self._rt), self._rt.database)

    def form(self, *, group_id: str | None = None) -> FormReport:
        """Do now what the worker does in the background, until nothing waits; returns what was done."""
        self._flush()
        return run(worker.form(self._rt, tenant_id=group_id), self._rt.database)

    def flush(self) -> None:
        """Wait until every query that was compiled is durable."""
        self._flush()

    def _flush(self) -> None:
        run(flows.write_queries(self._rt, self._rt.all_pending()), self._rt.database)

    def close(self) -> None:
        """Stop the worker, finish what is under way, close the connections, leave the embedded server."""
        self._settle()
        self._rt.database.close(every_loop=True)  # adapters await on a PgMem too
        self._leave()

    def __enter__(self) -> Self:
        self.setup()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncPgMem(_Base, AsyncVerbs, AsyncUpkeep):
    """`PgMem` to await; see there."""

    @property
    def session(self) -> AsyncSessions:
        return AsyncSessions(self._rt)

    async def setup(self) -> None:
        await arun(flows.setup(self._rt), self._rt.database)

    async def start(self) -> None:
        self._worker.start()

    async def check(self) -> None:
        await arun(flows.check(self._rt), self._rt.database)

    async def form(self, *, group_id: str | None = None) -> FormReport:
        await self.flush()
        return await arun(worker.form(self._rt, tenant_id=group_id), self._rt.database)

    async def flush(self) -> None:
        await arun(flows.write_queries(self._rt, self._rt.all_pending()), self._rt.database)

    async def close(self) -> None:
        await arun(blocking(self._settle), self._rt.database)
        await self._rt.database.aclose()
        self._leave()

    async def __aenter__(self) -> Self:
        await self.setup()
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
