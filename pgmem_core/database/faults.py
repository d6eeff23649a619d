"""The driver's errors, wrapped once into pgmem's tree."""

from __future__ import annotations

from typing import Any

import psycopg

from pgmem_core.errors import (
    Busy,
    ConfigurationError,
    Conflict,
    DimensionMismatch,
    NotFound,
    PermissionDenied,
    PgmemError,
    SchemaError,
    StoreUnavailable,
)

__all__ = ["translate"]

_MISSING = {"42P01", "3F000", "42883", "42704", "42703"}  # table, schema, function, type, column
_RETRY = {"40001", "40P01"}  # serialization failure, deadlock
_LOST = {"57P01", "57P02", "57P03", "57P05"}  # shut down, crashed, starting up, idle timeout
_POOLED = {"42P05", "26000"}  # a prepared statement exists already, or does not, on whatever connection it is now
_AUTH = {"28P01", "28000"}
_IDS = {"records_pkey", "records_alias"}


def translate(error: Any, address: str, *, lost: bool = False) -> PgmemError:
    """Return the pgmem error for a driver error. `retry` on a StoreUnavailable says that one more try may do."""
    state: str = getattr(error, "sqlstate", None) or ""
    diagnostics = getattr(error, "diag", None)
    primary = (getattr(diagnostics, "message_primary", None) or str(error)).strip()
    if state == "PGM01":
        return NotFound(f"{primary}; create it with session.create or session.open")
    if state == "PGM02":
        return Conflict(f"{primary}; open it with the user_id that created it, or use another session id")
    if state == "PGM03":
        return Conflict(f"{primary}; turn ids are unique within a group")
    if state == "PGM04":
        return DimensionMismatch(f"{primary}; open it with that one, or run 'pgmem reembed' to go back")
    if state == "23503" and "evidence" in str(getattr(diagnostics, "table_name", "")):
        return NotFound("the evidence names a turn that this group does not have; pass a stored turn, or a source")
    if state == "23505" and getattr(diagnostics, "constraint_name", None) in _IDS:
        fault = StoreUnavailable(f"another write stored the same ids at the same moment: {primary}; write again")
        fault.retry = True  # type: ignore[attr-defined]
        return fault
    if state == "55P03":
        return Busy(f"another transaction holds a lock for longer than was waited: {primary}; try again")
    if state in _AUTH or "password authentication failed" in primary or "no password supplied" in primary:
        return ConfigurationError(f"Postgres at {address} refused the login: {primary}")
    if state == "3D000" or ("does not exist" in primary and ('database "' in primary or 'role "' in primary)):
        return ConfigurationError(f"Postgres at {address}: {primary}; create it or correct the DSN")
    if state in _MISSING:
        return SchemaError(
            f"the database at {address} is not set up for this version of pgmem ({primary}); call setup() or run"
            " 'pgmem init'"
        )
    if state in _POOLED:
        return ConfigurationError(
            f"Postgres at {address} is behind a pooler that shares connections between transactions ({primary});"
            " pass pooler='pgbouncer'"
        )
    if state == "42501":
        return PermissionDenied(f"the role at {address} may not do this: {primary}")
    if state == "22000" and "dimensions" in primary:
        return DimensionMismatch(f"{primary}; pass vectors of the store's own size")
    if lost or state in _LOST or state in _RETRY or state.startswith("08"):
        fault = StoreUnavailable(f"lost the connection to Postgres at {address}: {primary}")
        fault.retry = True  # type: ignore[attr-defined]
        return fault
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not state:
        # A connect that failed on the way: psycopg gives no SQLSTATE.
        return StoreUnavailable(f"could not reach Postgres at {address}: {primary.splitlines()[0]}")
    return PgmemError(f"Postgres at {address} refused a statement: {state} {primary}")
