"""What an operation talks to: one small face over SQLAlchemy's and psycopg's connections, sync or async.

Operations are plain functions whose first argument is a `Connection`. In the async world they run inside a
greenlet (SQLAlchemy's `run_sync`), so the same function serves both. SQL is psycopg's (`%(name)s`), values
are always bound; identifiers come from `schema`, which settings have checked.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from psycopg import adapt, pq
from psycopg.types import TypeInfo
from psycopg.types.json import Jsonb
from sqlalchemy.util import await_only

__all__ = ["Connection", "VectorParameter", "VectorType", "jsonb"]

Row = tuple[Any, ...]


def jsonb(value: Any) -> Jsonb:
    """Wrap a JSON-ready value for binding as jsonb."""
    return Jsonb(value, dumps=_dumps)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class VectorParameter:
    """A float32 vector on its way into a statement. A class of its own, so that no ndarray of a caller's own
    statements changes meaning because pgmem registered a dumper."""

    __slots__ = ("data",)

    def __init__(self, vector: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        # pgvector's wire form: int16 dimensions, int16 unused, then big-endian float32.
        # Binary costs 2 µs and 6 kB for 1,536 dimensions, text 869 µs and 30 kB.
        self.data = len(vector).to_bytes(2, "big") + b"\0\0" + vector.astype(">f4").tobytes()


class VectorType:
    """The vector type as this database numbers it; its OID differs from database to database."""

    def __init__(self, oid: int, array_oid: int, schema: str) -> None:
        self.oid = oid
        self.schema = schema
        self._info = TypeInfo("vector", oid, array_oid)
        self._dumper = type("_VectorDumper", (_VectorDumper,), {"oid": oid})

    def register(self, context: Any) -> None:
        """Teach a psycopg connection or cursor to bind VectorParameter. No round trip."""
        self._info.register(context)
        context.adapters.register_dumper(VectorParameter, self._dumper)


class _VectorDumper(adapt.Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: VectorParameter) -> bytes:
        return obj.data


class Connection(Protocol):
    """One database connection as operations see it. `schema` is the quoted name of pgmem's schema."""

    schema: str

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Run one statement and return all of its rows ([] where it gives none)."""
        ...

    def copy(self, sql: str, types: Sequence[str | int], rows: Iterable[Sequence[Any]]) -> None:
        """Run COPY … FROM STDIN (FORMAT BINARY) with rows of the given types."""
        ...

    def vector_type(self) -> VectorType:
        """The vector type of this database."""
        ...


class _Base:
    def __init__(self, schema: str, vector: VectorType | None) -> None:
        self.schema = f'"{schema}"'
        self._vector = vector

    def vector_type(self) -> VectorType:
        if self._vector is None:
            from pgmem_core.errors import SchemaError

            raise SchemaError("the database has not been set up: call setup() or run 'pgmem init'")
        return self._vector

    def _register(self, cursor: Any) -> None:
        if self._vector is not None:
            self._vector.register(cursor)


class PooledConnection(_Base):
    """A SQLAlchemy Connection: from pgmem's own engine, or the caller's (then `foreign`: nothing is
    registered on the caller's connection itself, only on cursors of pgmem)."""

    def __init__(self, connection: Any, schema: str, vector: VectorType | None, foreign: bool = False) -> None:
        super().__init__(schema, vector)
        self._connection = connection
        self._foreign = foreign

    def _driver(self) -> Any:
        return self._connection.connection.driver_connection

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        if self._foreign:
            return _wrap(self._driver(), self.schema, self._vector).query(sql, parameters)
        result = self._connection.exec_driver_sql(
            sql, dict(parameters) if parameters else None, execution_options={"no_parameters": True}
        )
        # Rows are tuples; all() fetches them in one call where iterating would make one a row.
        return cast("list[Row]", result.all()) if result.returns_rows else []

    def copy(self, sql: str, types: Sequence[str | int], rows: Iterable[Sequence[Any]]) -> None:
        _wrap(self._driver(), self.schema, self._vector).copy(sql, types, rows)


class PsycopgConnection(_Base):
    """A psycopg Connection, whatever its row factory or autocommit mode."""

    def __init__(self, connection: Any, schema: str, vector: VectorType | None) -> None:
        super().__init__(schema, vector)
        self._connection = connection

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        from psycopg.rows import tuple_row

        with self._connection.cursor(row_factory=tuple_row) as cursor:
            self._register(cursor)
            cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def copy(self, sql: str, types: Sequence[str | int], rows: Iterable[Sequence[Any]]) -> None:
        with self._connection.cursor() as cursor:
            self._register(cursor)
            with cursor.copy(sql) as copy:
                copy.set_types(types)
                for row in rows:
                    copy.write_row(row)


class AsyncPsycopgConnection(_Base):
    """A psycopg AsyncConnection; only usable inside a greenlet that SQLAlchemy spawned."""

    def __init__(self, connection: Any, schema: str, vector: VectorType | None) -> None:
        super().__init__(schema, vector)
        self._connection = connection

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        from psycopg.rows import tuple_row

        async def run() -> list[Row]:
            async with self._connection.cursor(row_factory=tuple_row) as cursor:
                self._register(cursor)
                await cursor.execute(sql, parameters)
                return await cursor.fetchall() if cursor.description is not None else []

        return cast("list[Row]", _await(run))

    def copy(self, sql: str, types: Sequence[str | int], rows: Iterable[Sequence[Any]]) -> None:
        async def run() -> None:
            async with self._connection.cursor() as cursor:
                self._register(cursor)
                async with cursor.copy(sql) as copy:
                    copy.set_types(types)
                    for row in rows:
                        await copy.write_row(row)

        _await(run)


def _await(function: Callable[[], Awaitable[Any]]) -> Any:
    return await_only(function())


def _wrap(driver: Any, schema: str, vector: VectorType | None) -> PsycopgConnection | AsyncPsycopgConnection:
    from psycopg import AsyncConnection

    name = schema.strip('"')
    if isinstance(driver, AsyncConnection):
        return AsyncPsycopgConnection(driver, name, vector)
    return PsycopgConnection(driver, name, vector)
