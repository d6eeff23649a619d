"""`MemoryStore`: tables rather than tiers. Texts with vectors, by tenant, filtered in SQL, nearest first.

`MemoryStore` blocks, `AsyncMemoryStore` has the same methods to await. The schema is created at first use.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from pgmem_core import storing
from pgmem_core.database.engine import Database
from pgmem_core.effects import arun, run
from pgmem_core.models.adapters import as_embedder
from pgmem_core.policy import Policy, with_policy
from pgmem_core.runtime import Runtime
from pgmem_core.settings import Settings
from pgmem_core.storing import VectorLike
from pgmem_core.types import MemoryText

__all__ = ["AsyncMemoryStore", "MemoryStore"]


class _Base:
    def __init__(
        self,
        dsn: str | Engine | AsyncEngine,
        *,
        embedder: Any = None,
        model: str | None = None,
        policy: Policy | str | None = None,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        chosen, screens = with_policy(settings, options, policy)
        self._rt = Runtime(
            Database(dsn, chosen), chosen, None if embedder is None else as_embedder(embedder), policy=screens
        )
        self._model = model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._rt.database.address}, schema={self._rt.settings.schema_name})"


class MemoryStore(_Base):
    """Texts with vectors in Postgres.

    `dsn`: a Postgres URL, or a SQLAlchemy engine (psycopg). `embedder`: makes the vectors that calls leave out
    (default: the bundled one). `model`: the name of the vector space of vectors that calls pass, where no
    embedder names it (default "given"). `policy`: called with each text before it is stored, see `pgmem_core.policy`,
    or "module:function". Further keywords are settings (`schema_name=`, `pooler=` …).
    """

    def setup(self) -> None:
        """Create or upgrade the schema. Every method does it at first use; call it to have it done early."""
        run(storing.setup(self._rt), self._rt.database)

    def add(
        self,
        tenant_id: str,
        session_id: str,
        content: object,
        embedding: VectorLike | None = None,
        kind: str = "turn",
        *,
        role: str = "user",
        user_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        created_at: datetime | None = None,
        id: str | uuid.UUID | None = None,
        connection: Any = None,
    ) -> str:
        """Store one text and return its id. A repeated id stores once.

        `embedding`: float vector of the store's dimensions; left out, the embedder makes it. Kind "turn" takes
        the next seq of its session; any other kind is yours to name. `connection`: joins that transaction.

        Raises: InvalidArgument, DimensionMismatch, EmbeddingError; nothing is stored then.
        """
        row = {
            "session_id": session_id, "content": content, "embedding": embedding, "kind": kind, "role": role,
            "metadata": metadata, "created_at": created_at, "id": id,
        }  # fmt: skip
        return run(
            storing.add(self._rt, self._model, tenant_id, [row], user_id=user_id, given=connection),
            self._rt.database,
        )[0]

    def add_many(
        self,
        tenant_id: str,
        rows: Iterable[Mapping[str, Any]],
        *,
        user_id: str | None = None,
        connection: Any = None,
    ) -> list[str]:
        """Store many texts by COPY, in one transaction, and return their ids in order.

        Each row has the arguments of `add` as keys: `session_id` and `content`, and what else it needs.
        """
        return run(
            storing.add(self._rt, self._model, tenant_id, list(rows), user_id=user_id, given=connection),
            self._rt.database,
        )

    def recent_turns(self, tenant_id: str, session_id: str, limit: int = 20) -> list[MemoryText]:
        """Return the last `limit` turns of a session, oldest first."""
        return run(storing.recent_turns(self._rt, tenant_id, session_id, limit), self._rt.database)

    def similar(
        self,
        tenant_id: str,
        embedding: VectorLike | str,
        limit: int = 10,
        kind: str | Sequence[str] | None = None,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        filter: Mapping[str, Any] | None = None,
        min_score: float | None = None,
    ) -> list[MemoryText]:
        """Return the `limit` texts nearest to a vector (or a text, which is embedded), best first.

        `score` is cosine similarity, -1..1, 1 for the same direction; `min_score` keeps what is at least that
        near. Filters are applied in SQL before vectors are compared; `filter` is on metadata, for example
        `{"rank": {"gte": 3}, "tag": {"in": ["a", "b"]}}`; times are aware, after <= created_at < before.
        """
        return run(
            storing.similar(
                self._rt, self._model, tenant_id, embedding, limit, kind, user_id=user_id, session_id=session_id,
                after=after, before=before, filter=filter, min_score=min_score,
            ),
            self._rt.database,
        )  # fmt: skip

    def delete(
        self,
        tenant_id: str,
        ids: str | uuid.UUID | Sequence[str | uuid.UUID] | None = None,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> int:
        """Delete what every given condition matches and return how many that were.

        Raises: InvalidArgument if no condition is given: emptying a tenant is never an accident.
        """
        return run(
            storing.delete(
                self._rt,
                tenant_id,
                ids,
                user_id=user_id,
                session_id=session_id,
                kind=kind,
                filter=filter,
                given=connection,
            ),
            self._rt.database,
        )

    def count(
        self,
        tenant_id: str,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> int:
        """Return how many texts match."""
        return run(
            storing.count(
                self._rt, tenant_id, user_id=user_id, session_id=session_id, kind=kind, after=after, before=before,
                filter=filter,
            ),
            self._rt.database,
        )  # fmt: skip

    def close(self) -> None:
        """Close the connections."""
        self._rt.close()
        self._rt.database.close(every_loop=True)  # adapters await on a MemoryStore too

    def __enter__(self) -> Self:
        self.setup()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncMemoryStore(_Base):
    """`MemoryStore` to await; see there."""

    async def setup(self) -> None:
        await arun(storing.setup(self._rt), self._rt.database)

    async def add(
        self,
        tenant_id: str,
        session_id: str,
        content: object,
        embedding: VectorLike | None = None,
        kind: str = "turn",
        *,
        role: str = "user",
        user_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        created_at: datetime | None = None,
        id: str | uuid.UUID | None = None,
        connection: Any = None,
    ) -> str:
        row = {
            "session_id": session_id, "content": content, "embedding": embedding, "kind": kind, "role": role,
            "metadata": metadata, "created_at": created_at, "id": id,
        }  # fmt: skip
        ids = await arun(
            storing.add(self._rt, self._model, tenant_id, [row], user_id=user_id, given=connection),
            self._rt.database,
        )
        return ids[0]

    async def add_many(
        self,
        tenant_id: str,
        rows: Iterable[Mapping[str, Any]],
        *,
        user_id: str | None = None,
        connection: Any = None,
    ) -> list[str]:
        return await arun(
            storing.add(self._rt, self._model, tenant_id, list(rows), user_id=user_id, given=connection),
            self._rt.database,
        )

    async def recent_turns(self, tenant_id: str, session_id: str, limit: int = 20) -> list[MemoryText]:
        return await arun(storing.recent_turns(self._rt, tenant_id, session_id, limit), self._rt.database)

    async def similar(
        self,
        tenant_id: str,
        embedding: VectorLike | str,
        limit: int = 10,
        kind: str | Sequence[str] | None = None,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        filter: Mapping[str, Any] | None = None,
        min_score: float | None = None,
    ) -> list[MemoryText]:
        return await arun(
            storing.similar(
                self._rt, self._model, tenant_id, embedding, limit, kind, user_id=user_id, session_id=session_id,
                after=after, before=before, filter=filter, min_score=min_score,
            ),
            self._rt.database,
        )  # fmt: skip

    async def delete(
        self,
        tenant_id: str,
        ids: str | uuid.UUID | Sequence[str | uuid.UUID] | None = None,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> int:
        return await arun(
            storing.delete(
                self._rt,
                tenant_id,
                ids,
                user_id=user_id,
                session_id=session_id,
                kind=kind,
                filter=filter,
                given=connection,
            ),
            self._rt.database,
        )

    async def count(
        self,
        tenant_id: str,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        kind: str | Sequence[str] | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> int:
        return await arun(
            storing.count(
                self._rt, tenant_id, user_id=user_id, session_id=session_id, kind=kind, after=after, before=before,
                filter=filter,
            ),
            self._rt.database,
        )  # fmt: skip

    async def close(self) -> None:
        self._rt.close()
        await self._rt.database.aclose()

    async def __aenter__(self) -> Self:
        await self.setup()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
