"""Every error pgmem raises, in one tree.

::

    PgmemError
    ├── ConfigurationError      a setting, an argument or an extra is wrong or missing
    │   ├── InvalidArgument     one argument of one call: which, what was met, what was wanted
    │   │   └── InvalidFilter   a metadata filter with an unknown operator or a malformed value
    │   └── MissingExtra        an optional package is needed; names the extra to install
    ├── SchemaError             the database is not fit for pgmem, or its schema is not set up
    │   └── PermissionDenied    the role may not do it; says what an admin must run
    ├── DimensionMismatch       vectors of one size met a store of another
    ├── EmbeddingError          an embedder failed, or took too long
    │   └── BadVector           it gave NaN, infinity, zero, or the wrong number of vectors
    ├── ExtractionError         a model's reply could not be turned into memory
    ├── NotFound                no such session, turn or memory in this scope
    ├── Conflict                an id is already in use by something else
    ├── Busy                    another transaction holds what is needed; try again
    ├── WriteRefused            the write policy refused a text
    └── StoreUnavailable        Postgres could not be reached, or the connection was lost

Messages say what was met, what was wanted and what to do next. Passwords in DSNs are masked before they
reach a message.
"""

from __future__ import annotations

__all__ = [
    "BadVector",
    "Busy",
    "ConfigurationError",
    "Conflict",
    "DimensionMismatch",
    "EmbeddingError",
    "ExtractionError",
    "InvalidArgument",
    "InvalidFilter",
    "MissingExtra",
    "NotFound",
    "PermissionDenied",
    "PgmemError",
    "SchemaError",
    "StoreUnavailable",
    "WriteRefused",
]


class PgmemError(Exception):
    """The root: catching it catches everything pgmem raises on purpose."""


class ConfigurationError(PgmemError):
    """A setting, an argument or an installed package is not what was needed."""


class InvalidArgument(ConfigurationError, ValueError):
    """One argument of one call was refused; nothing was written."""


class InvalidFilter(InvalidArgument):
    """A metadata filter names an unknown operator, or gives it a value it cannot compare with."""


class MissingExtra(ConfigurationError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class SchemaError(PgmemError):
    """The database lacks what pgmem needs, or holds a schema this version does not know."""


class PermissionDenied(SchemaError):
    """The connected role may not do what setup needs; the message holds the SQL for an admin."""


class DimensionMismatch(PgmemError):
    """A vector's size differs from what the store holds for its model."""


class EmbeddingError(PgmemError):
    """An embedder failed; what it was to embed is kept and tried again."""


class BadVector(EmbeddingError):
    """A vector that cannot be stored or compared; the message names which of the batch."""


class ExtractionError(PgmemError):
    """A model's reply could not be read; the turns it was about are untouched."""


class NotFound(PgmemError, LookupError):
    """Nothing with that id exists in this scope."""


class Conflict(PgmemError):
    """The id exists already and belongs to something else."""


class Busy(PgmemError):
    """Another transaction held a lock for longer than was waited; the same call may work a moment later."""


class StoreUnavailable(PgmemError, ConnectionError):
    """Postgres could not be reached or dropped the connection, and one retry did not help."""


class WriteRefused(PgmemError):
    """The write policy refused a text; nothing of the call was stored. A policy raises it with its reason.

    `reason`: why, as the policy says. `entry`: what kind of write it was. `position`: which of a batch, from 1.
    """

    def __init__(self, reason: str = "", *, entry: str = "", position: int | None = None, advice: str = "") -> None:
        where = f"number {position} of this {entry} batch" if position is not None else f"this {entry or 'write'}"
        why = f": {reason}" if reason else ""
        super().__init__(f"the write policy refused {where}{why}; nothing was stored{advice and f'; {advice}'}")
        self.reason = reason
        self.entry = entry
        self.position = position
        # What the audit keeps of the text: its BLAKE2b-256 and its characters.
        self.content_hash = b""
        self.length = 0
