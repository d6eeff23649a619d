"""The flows of documents: records that are replaced by id, for the vector stores of frameworks.

A document's id is any string of its owner's. Within a collection (the record's session) of a user's it stands for one
record; the same id elsewhere is another document.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pgmem_core import screening
from pgmem_core.effects import Flow, embed, transact
from pgmem_core.errors import InvalidArgument
from pgmem_core.flows import embed_all, store_model
from pgmem_core.ids import check_id, new_id, turn_uuid
from pgmem_core.models.vectors import check_vectors
from pgmem_core.runtime import Runtime
from pgmem_core.storing import check_limit, count_scope, new_record, prepare, where_of
from pgmem_core.tiers import plain
from pgmem_core.tiers.plain import NewRecord, Where
from pgmem_core.types import MemoryText, Scope

__all__ = ["KIND", "Place", "by_ids", "delete", "nearest", "own_id", "place_of", "put", "vectors_of"]

KIND = "document"
# Where the owner's id is kept; metadata of the caller's own under this name would be lost, so it is refused.
_ID = "pgmem:id"

Place = tuple[Scope, str]  # whose, and which collection


def place_of(group_id: str, user_id: str | None, collection: str) -> Place:
    """Return the checked place; documents without a user are the group's own. Raises: InvalidArgument."""
    scope = Scope(check_id(group_id, "group_id"), "" if user_id is None else check_id(user_id))
    return scope, check_id(collection, "collection")


def own_id(document: MemoryText) -> str:
    """Return the id by which its owner knows the document, and take pgmem's note of it out of the metadata."""
    return str(document.metadata.pop(_ID, document.id))


def put(
    rt: Runtime,
    place: Place,
    texts: Sequence[str],
    metadatas: Sequence[Mapping[str, Any]],
    ids: Sequence[str | None],
    *,
    vectors: Sequence[Any] | None = None,
) -> Flow[list[str]]:
    """Store documents, all or none, in place of those of the same ids; return their ids (minted where None).

    Of one id given twice the last counts. `vectors`: the embedder's, where they are at hand.
    Raises: InvalidArgument, EmbeddingError, DimensionMismatch.
    """
    scope, _ = place
    given = [str(new_id()) if one is None else check_id(one, "id") for one in ids]
    last = {one: number for number, one in enumerate(given)}
    rows = []
    for one, number in last.items():
        if _ID in metadatas[number]:
            raise InvalidArgument(f"metadata has the key {_ID!r}, under which pgmem keeps ids; use another name")
        metadata = {**metadatas[number], _ID: one}
        rows.append(
            {
                "session_id": place[1],
                "content": texts[number],
                "kind": KIND,
                "id": _uuid(place, one),
                "metadata": metadata,
            }
        )
    if not rows:
        return []
    kept = yield from screening.screen_rows(rt, scope.tenant_id, rows, "memory")
    records: list[NewRecord] = []
    for number, row in zip(last.values(), kept, strict=True):
        _, record = new_record(rt, scope, row, f"document {number + 1} of {len(texts)}: ")
        assert isinstance(record, NewRecord)
        records.append(record)
    if any(row["content"] != was["content"] for row, was in zip(kept, rows, strict=True)):
        vectors = None  # they tell of words that the policy took out
    yield from prepare(rt)
    model = yield from store_model(rt)
    if vectors is None:
        made = yield from embed_all(rt, model, [record.text for record in records])
    else:
        chosen = [vectors[number] for number in last.values()]
        made = check_vectors(chosen, count=len(records), dimensions=model.dimensions, model=model.name)
    yield from transact(plain.replace, scope, records, model=model, vectors=made)
    yield from count_scope(rt, scope, len(records))
    return given


def nearest(
    rt: Runtime,
    place: Place,
    query: str | Sequence[float],
    k: int,
    *,
    filter: Mapping[str, Any] | None = None,
) -> Flow[list[MemoryText]]:
    """Return the k documents nearest to a text or a vector, best first, scored by cosine similarity (-1..1)."""
    where = _where(place, filter=filter)
    k = check_limit(k, "k")
    yield from prepare(rt)
    model = yield from store_model(rt)
    given: Any = (yield from embed(rt.embedder, [query])) if isinstance(query, str) else [query]
    [vector] = check_vectors(given, count=1, dimensions=model.dimensions, model=model.name)
    if k == 0:
        return []
    return (yield from transact(
        plain.similar, place[0].tenant_id, where, model=model, vector=vector, limit=k, single=True
    ))  # fmt: skip


def vectors_of(rt: Runtime, place: Place, documents: Sequence[MemoryText]) -> Flow[list[list[float]]]:
    """Return the documents' stored vectors, in order."""
    ids = [uuid.UUID(document.id) for document in documents]
    found = yield from transact(plain.vectors, place[0].tenant_id, ids, single=True)
    return [found[document.id] for document in documents]


def by_ids(rt: Runtime, place: Place, ids: Sequence[str]) -> Flow[list[MemoryText]]:
    """Return the stored documents of these ids, in the order asked for; those that are not there are left out."""
    wanted = [_uuid(place, one) for one in ids]
    yield from prepare(rt)
    if not wanted:
        return []
    found = yield from transact(
        plain.listing, place[0].tenant_id, _where(place, ids=wanted), limit=len(wanted), single=True
    )
    order = {str(one): number for number, one in enumerate(wanted)}
    return sorted(found, key=lambda document: order[document.id])


def delete(rt: Runtime, place: Place, ids: Sequence[str] | None) -> Flow[int]:
    """Delete documents by id, all of the collection if ids is None; return how many there were."""
    wanted = None if ids is None else [_uuid(place, one) for one in ids]
    yield from prepare(rt)
    if wanted is not None and not wanted:
        return 0
    return (yield from transact(plain.delete_where, place[0].tenant_id, _where(place, ids=wanted)))


def _where(place: Place, *, filter: Mapping[str, Any] | None = None, ids: Sequence[uuid.UUID] | None = None) -> Where:
    scope, collection = place
    # The empty user of a group's own documents is a user like any other here, never "all".
    return replace(where_of(session_id=collection, kind=KIND, filter=filter, ids=ids), user_id=scope.user_id)


def _uuid(place: Place, own: str) -> uuid.UUID:
    scope, collection = place
    return turn_uuid(f"document:{check_id(own, 'id')}", scope.tenant_id, f"{scope.user_id}\x00{collection}")
