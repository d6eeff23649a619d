"""What langchain-postgres keeps in its tables: chat histories, and collections of documents. Operations that read them,
a page at a time, on whatever database they are in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pgmem_core.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from pgmem_core.database.connection import Connection

__all__ = ["DocumentRow", "MessageRow", "Source", "documents", "find", "messages"]

_HISTORY = {"id", "session_id", "message"}
_STORE = {"langchain_id", "content", "embedding"}
_OWN = ["langchain_id", "content", "embedding", "langchain_metadata"]


@dataclass(frozen=True, slots=True)
class Source:
    """What a name stands for: a history's table, a PGVectorStore's, or a collection of PGVector's."""

    kind: Literal["history", "store", "collection"]
    name: str  # as given
    table: str  # quoted
    dated: bool = True
    with_metadata: bool = True


@dataclass(frozen=True, slots=True)
class MessageRow:
    id: int
    session_id: str
    message: Any
    created_at: datetime | None


@dataclass(frozen=True, slots=True)
class DocumentRow:
    id: str
    content: str | None
    vector: list[float] | None
    metadata: dict[str, Any]


def find(conn: Connection, name: str) -> Source:
    """Return what the name stands for: a table ("chat_history", "schema.table") or a collection. Raises: NotFound,
    InvalidArgument for a table of another shape."""
    table = ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))
    columns = _columns(conn, table)
    if columns >= _HISTORY:
        return Source("history", name, table, dated="created_at" in columns)
    if columns >= _STORE:
        return Source("store", name, table, with_metadata="langchain_metadata" in columns)
    if columns:
        hint = "; name the collection instead" if "collection_id" in columns else ""
        raise InvalidArgument(
            f"table {name!r} has the columns {', '.join(sorted(columns))}: neither a PostgresChatMessageHistory's (id,"
            f" session_id, message) nor a PGVectorStore's (langchain_id, content, embedding){hint}"
        )
    if _columns(conn, "langchain_pg_collection") and conn.query(
        "SELECT FROM langchain_pg_collection WHERE name = %(name)s", {"name": name}
    ):
        return Source("collection", name, "langchain_pg_embedding")
    raise NotFound(f"there is no table and no PGVector collection of the name {name!r} in this database")


def _columns(conn: Connection, table: str) -> set[str]:
    rows = conn.query(
        """SELECT attname FROM pg_catalog.pg_attribute
           WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped""",
        {"table": table},
    )
    return {row[0] for row in rows}


def messages(conn: Connection, source: Source, *, after: int, limit: int) -> list[MessageRow]:
    """Return the next rows of a history's table, in the order in which they were written."""
    rows = conn.query(
        f"""SELECT id, session_id::text, message, {"created_at" if source.dated else "NULL"} FROM {source.table}
            WHERE id > %(after)s ORDER BY id LIMIT %(limit)s""",
        {"after": after, "limit": limit},
    )
    return [MessageRow(int(row[0]), row[1], row[2], row[3]) for row in rows]


def documents(conn: Connection, source: Source, *, after: str, limit: int) -> list[DocumentRow]:
    """Return the next documents, by id."""
    bound = {"after": after, "limit": limit, "name": source.name, "own": _OWN}
    if source.kind == "collection":
        rows = conn.query(
            """SELECT e.id::text, e.document, e.embedding::text, e.cmetadata, NULL
               FROM langchain_pg_embedding e JOIN langchain_pg_collection c ON c.uuid = e.collection_id
               WHERE c.name = %(name)s AND e.id::text COLLATE "C" > %(after)s
               ORDER BY e.id::text COLLATE "C" LIMIT %(limit)s""",
            bound,
        )
    else:
        metadata = "t.langchain_metadata" if source.with_metadata else "NULL"
        rows = conn.query(
            f"""SELECT t.langchain_id::text, t.content, t.embedding::text, {metadata}, to_jsonb(t) - %(own)s::text[]
                FROM {source.table} t WHERE t.langchain_id::text COLLATE "C" > %(after)s
                ORDER BY t.langchain_id::text COLLATE "C" LIMIT %(limit)s""",
            bound,
        )
    return [_document(row) for row in rows]


def _document(row: Sequence[Any]) -> DocumentRow:
    row_id, content, vector, metadata, columns = row
    # As PGVectorStore shows them: the columns of the table's own over what the JSON says.
    merged = {**(metadata or {}), **(columns or {})}
    return DocumentRow(row_id, content, None if vector is None else json.loads(vector), merged)
