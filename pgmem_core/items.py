"""The flows of items: keyed JSON documents in namespaces, for LangGraph's stores and whoever wants the like.

A batch is one story: values are screened, checked and encoded before anything is written, texts and queries are
embedded in one call each, then the reads see the state before the batch and its puts follow, the last of each key.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pgmem_core import screening
from pgmem_core.database import migrate
from pgmem_core.database.connection import Connection
from pgmem_core.database.migrate import Model
from pgmem_core.effects import Flow, embed, transact
from pgmem_core.encoding import decode_text, encode_json, encode_text
from pgmem_core.errors import BadVector, EmbeddingError, InvalidArgument, MissingExtra
from pgmem_core.filters import CompiledFilter, compile_filter
from pgmem_core.flows import create_schema, embed_all, ready, store_model
from pgmem_core.ids import new_id
from pgmem_core.models.vectors import check_vectors
from pgmem_core.protocols import Embedder, Vectors
from pgmem_core.retrieval import lexical
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import items as tier
from pgmem_core.tiers.items import Match, Metric, NewItem, StoredItem
from pgmem_core.turns import is_blank

__all__ = [
    "Find", "Get", "ListNamespaces", "Match", "Op", "Put", "Shelf", "StoredItem", "batch", "reembed", "setup", "sweep",
]  # fmt: skip

log = logging.getLogger(__name__)

# With the tenant (255 bytes) and the rest of a posting's key they fit a btree entry of 2,704 bytes.
_MAX_PATH_BYTES = 1024
_MAX_KEY_BYTES = 1024
_MAX_TEXTS = 1000  # of one item, each a vector
_MAX_TTL_MINUTES = 5_256_000  # ten years
_MOST = 100_000_000
_COUNT_EVERY = 64


@dataclass(frozen=True, slots=True)
class Get:
    """Fetch one item. `refresh`: its time to live starts again."""

    namespace: tuple[str, ...]
    key: str
    refresh: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Write one item, or delete it (`value` None). `texts` says what of a value is to be found by words and meaning."""

    namespace: tuple[str, ...]
    key: str
    value: Mapping[str, Any] | None
    texts: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    ttl_minutes: float | None = None


@dataclass(frozen=True, slots=True)
class Find:
    """Search under a prefix; a blank query lists, the last written first."""

    namespace: tuple[str, ...]
    query: str | None = None
    filter: Mapping[str, Any] | None = None
    limit: int = 10
    offset: int = 0
    refresh: bool = False


@dataclass(frozen=True, slots=True)
class ListNamespaces:
    """List the namespaces that hold something."""

    matches: tuple[Match, ...] = ()
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


Op = Get | Put | Find | ListNamespaces


@dataclass(slots=True, eq=False)
class Shelf:
    """One store: whose items, and how they are indexed and ranked.

    `embedder`: its own, or None for the runtime's; `indexed` False: no words and no vectors at all. `hybrid` False:
    ranked by the vectors alone, the score being the metric. `exact`: no use is made of the vector index.
    """

    tenant_id: str
    embedder: Embedder | None = None
    dimensions: int | None = None  # of the own embedder, where they are known
    indexed: bool = True
    hybrid: bool = True
    metric: Metric = "cosine"
    exact: bool = False
    model: Model | None = field(default=None, init=False)
    uncounted: dict[str, int] = field(default_factory=dict, init=False)
    wordy: bool = field(default=False, init=False)  # no embedder was found, and that was said


def setup(rt: Runtime, shelf: Shelf) -> Flow[None]:
    """Create or upgrade the schema, and register the shelf's embedder with its index."""
    if shelf.embedder is None:
        yield from ready(rt)
    elif rt.database.vector is None:
        yield from create_schema(rt)
    if shelf.indexed:
        yield from _model(rt, shelf)


def _embedder(rt: Runtime, shelf: Shelf) -> Embedder:
    return shelf.embedder or rt.embedder


def _model(rt: Runtime, shelf: Shelf) -> Flow[Model | None]:
    """The model of the shelf's vectors; None where no embedder is installed and none was given: by words, then."""
    try:
        name = _embedder(rt, shelf).model
    except MissingExtra as exc:
        if not shelf.wordy:
            log.warning("items are found by words only: %s", exc)
            shelf.wordy = True
        shelf.model = None
        return None
    if shelf.model is not None and shelf.model.name == name:
        return shelf.model
    if shelf.embedder is None:
        model = yield from store_model(rt)
    else:
        size = shelf.dimensions or (shelf.embedder.dimensions if shelf.embedder.local else None)
        if size is None:
            probe = yield from embed(shelf.embedder, ["How many dimensions?"])
            size = int(probe.shape[1])
        model = yield from transact(migrate.register_model, name, size, source="given")
    if not (yield from transact(tier.build_index, model)):
        log.warning("the items' index of embedder %r is not built yet; searches are exact until it is", name)
    shelf.model = model
    return model


# -- a batch ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Work:
    """A batch, ready for the database."""

    gets: list[tuple[int, Get, str, str]] = field(default_factory=list)
    finds: list[tuple[int, Find, str, CompiledFilter | None, tier.Search | None]] = field(default_factory=list)
    lists: list[tuple[int, ListNamespaces]] = field(default_factory=list)
    puts: list[NewItem] = field(default_factory=list)
    model: Model | None = None
    vectors: Sequence[Vectors] | Vectors = ()

    @property
    def single(self) -> bool:
        return len(self.finds) + len(self.lists) + bool(self.gets) + bool(self.puts) == 1


def batch(rt: Runtime, shelf: Shelf, ops: Sequence[Op]) -> Flow[list[Any]]:
    """Do all of them, and return their results in order: an item or None for Get, items for Find, namespaces for
    ListNamespaces, None for Put. All or nothing.

    Raises: InvalidArgument, InvalidFilter, WriteRefused (nothing was written), EmbeddingError.
    """
    results: list[Any] = [None] * len(ops)
    work = _Work()
    puts: dict[tuple[str, str], Put] = {}
    for n, op in enumerate(ops):
        match op:
            case Get():
                work.gets.append((n, op, _path(op.namespace), _key(op.key)))
            case Put():
                puts[_path(op.namespace), _key(op.key)] = op
            case Find():
                _check_page(op.limit, op.offset)
                work.finds.append((n, op, _path(op.namespace), compile_filter(op.filter), None))
            case ListNamespaces():
                work.lists.append((n, _checked(op)))
    for (path, key), put in puts.items():
        work.puts.append((yield from _new(rt, shelf, path, key, put)))
    yield from setup(rt, shelf)
    yield from _embed(rt, shelf, work)

    read = yield from transact(_perform, shelf.tenant_id, work, single=work.single)
    due = []
    for n, refresh, found in read:
        results[n] = found
        if refresh:
            due += [item.id for item in (found if isinstance(found, list) else [found]) if item and item.expiring]
    if due:
        yield from transact(tier.extend, shelf.tenant_id, due, single=True)
    yield from _count(shelf, work.puts)
    return results


def _perform(conn: Connection, tenant_id: str, work: _Work) -> list[tuple[int, bool, Any]]:
    """Do the reads, then the puts; return (position, whether to extend, result) of the reads."""
    done: list[tuple[int, bool, Any]] = []
    if work.gets:
        found = tier.fetch(conn, tenant_id, [(path, key) for _, _, path, key in work.gets])
        done += [(n, op.refresh, found.get((path, key))) for n, op, path, key in work.gets]
    for n, op, path, filter, how in work.finds:
        page = {"limit": min(op.limit, _MOST), "offset": min(op.offset, _MOST)}
        if how is None:
            items = tier.listing(conn, tenant_id, path, filter, **page)
        else:
            items = tier.search(conn, tenant_id, path, how, filter, **page)
        done.append((n, op.refresh, items))
    for n, each in work.lists:
        listed = tier.namespaces(
            conn, tenant_id, each.matches, max_depth=each.max_depth, limit=min(each.limit, _MOST),
            offset=min(each.offset, _MOST),
        )  # fmt: skip
        done.append((n, False, listed))
    if work.puts:
        tier.put(conn, tenant_id, work.puts, model=work.model, vectors=work.vectors)
    return done


def _new(rt: Runtime, shelf: Shelf, path: str, key: str, put: Put) -> Flow[NewItem]:
    if put.value is None:
        return NewItem(path, key, new_id(), None, None)
    if not isinstance(put.value, Mapping):
        raise InvalidArgument(f"value must be a dict, got {type(put.value).__name__}")
    ttl = _check_ttl(put.ttl_minutes)
    value = yield from screening.screen_value(rt, shelf.tenant_id, dict(put.value), "store")
    encoded = encode_json(value, where="value")
    if not isinstance(encoded, dict):
        raise InvalidArgument(f"value must be a dict, got {type(value).__name__}")
    item = NewItem(path, key, new_id(), encoded, ttl)
    if not shelf.indexed or put.texts is None:
        return item
    texts = [text for text in dict.fromkeys(put.texts(value)) if not is_blank(text)]
    if len(texts) > _MAX_TEXTS:
        raise InvalidArgument(
            f"the indexed fields of this item give {len(texts):,} texts, at most {_MAX_TEXTS:,} are embedded one by"
            " one; index a field that holds them together"
        )
    terms = lexical.analyse("\n".join(texts), language=rt.settings.language)
    return replace(
        item, texts=tuple(map(encode_text, texts)), terms=terms.hashes, term_counts=terms.counts,
        term_total=terms.length,
    )  # fmt: skip


def _embed(rt: Runtime, shelf: Shelf, work: _Work) -> Flow[None]:
    """Embed what the puts hold and the finds ask, together."""
    if not shelf.indexed:
        return
    asked = [place for place, (_, op, *_) in enumerate(work.finds) if op.query is not None and not is_blank(op.query)]
    texts = [text for item in work.puts for text in item.texts]
    model = shelf.model
    if model is None:
        work.puts = [replace(item, texts=()) for item in work.puts]
    elif texts:
        work.model = model
        work.vectors = yield from _vectors(rt, shelf, model, texts)
    for place in asked:
        n, op, path, filter, _ = work.finds[place]
        how = yield from _search(rt, shelf, str(op.query))
        work.finds[place] = (n, op, path, filter, how)


def _search(rt: Runtime, shelf: Shelf, query: str) -> Flow[tier.Search]:
    model, vector = shelf.model, None
    try:
        vector = None if model is None else (yield from _query_vector(rt, shelf, model, query))
    except EmbeddingError as exc:
        if not shelf.hybrid:
            raise
        log.warning("items were searched by words only: %s", exc)
    terms = lexical.query_terms(query, language=rt.settings.language).hashes
    return tier.Search(shelf.hybrid or vector is None, terms, vector, model, shelf.metric, shelf.exact)


def _query_vector(rt: Runtime, shelf: Shelf, model: Model, query: str) -> Flow[Vectors]:
    own = shelf.embedder is not None
    vector = None if own else rt.cached_query(query)
    if vector is None:
        [vector] = yield from _vectors(rt, shelf, model, [query])
        if not own:
            rt.cache_query(query, vector)
    return vector


def _vectors(rt: Runtime, shelf: Shelf, model: Model, texts: Sequence[str]) -> Flow[Vectors]:
    """Embed texts, each distinct one once. Raises: EmbeddingError, BadVector, DimensionMismatch."""
    distinct = list(dict.fromkeys(texts)) if len(texts) > 1 else list(texts)
    size, parts = rt.settings.embed_batch_size, []
    for at in range(0, len(distinct), size):
        some = distinct[at : at + size]
        found = yield from embed(_embedder(rt, shelf), some)
        parts.append(check_vectors(found, count=len(some), dimensions=model.dimensions, model=model.name))
    if len(distinct) == len(texts):
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    rows = dict(zip(distinct, np.concatenate(parts), strict=True))
    return np.stack([rows[text] for text in texts])


def _count(shelf: Shelf, puts: Sequence[NewItem]) -> Flow[None]:
    """Keep the counts of every prefix written under, at each 64th item of a namespace."""
    for path in {item.path for item in puts}:
        added = shelf.uncounted.pop(path, 0) + sum(item.path == path for item in puts)
        if added < _COUNT_EVERY:
            if len(shelf.uncounted) > 10_000:
                shelf.uncounted.clear()  # they weigh words and guard a choice of plans, no more
            shelf.uncounted[path] = added
            continue
        labels = path[1:-1].split(".")
        prefixes = [tier.path_of(labels[:depth]) for depth in range(len(labels) + 1)]
        yield from transact(tier.count, shelf.tenant_id, prefixes, added, single=True)


def sweep(rt: Runtime, shelf: Shelf) -> Flow[int]:
    """Delete every item of the tenant that has expired; return how many that were."""
    yield from setup(rt, shelf)
    total = 0
    while done := (yield from transact(tier.sweep, shelf.tenant_id, single=True)):
        total += done
    return total


def reembed(rt: Runtime, model: Model, *, batch: int) -> Flow[int]:
    """Move the vectors that other embedders of this store made over to the runtime's embedder; return how many. Those
    of stores with an embedder of their own stay. Killed, it goes on where it was when it is called again."""
    moved = 0
    while left := (yield from transact(tier.left_by, model, single=True)):
        yield from transact(tier.build_index, model)
        for tenant, other in left:
            while rows := (yield from transact(tier.texts_of, tenant, other, limit=batch, single=True)):
                vectors = yield from _usable(rt, model, [decode_text(row[3]) for row in rows])
                yield from transact(tier.move, tenant, rows, vectors, model=model)
                moved += len(rows)
            yield from transact(tier.drop_index, Model(other, "", 1), single=True)
    return moved


def _usable(rt: Runtime, model: Model, texts: Sequence[str]) -> Flow[list[Vectors | None]]:
    """The vectors of texts, None for what gave no usable one: a bad vector refuses its batch, so that is halved."""
    try:
        return list((yield from embed_all(rt, model, texts)))
    except BadVector:
        if len(texts) == 1:
            return [None]
    half = len(texts) // 2
    return [*(yield from _usable(rt, model, texts[:half])), *(yield from _usable(rt, model, texts[half:]))]


# -- what may pass ---------------------------------------------------------------------------------------------------


def _path(namespace: Sequence[str]) -> str:
    path = tier.path_of([encode_text(label) for label in namespace])
    if len(path) > _MAX_PATH_BYTES or len(path.encode()) > _MAX_PATH_BYTES:
        raise InvalidArgument(
            f"namespace takes {len(path.encode()):,} bytes with its separators, at most {_MAX_PATH_BYTES:,} are"
            " allowed; use a hash of the long label"
        )
    return path


def _key(key: str) -> str:
    stored = encode_text(key)
    if len(stored.encode()) > _MAX_KEY_BYTES:
        raise InvalidArgument(
            f"key takes {len(stored.encode()):,} bytes, at most {_MAX_KEY_BYTES:,} are allowed; use a hash of it"
        )
    return stored


def _check_ttl(ttl: float | None) -> float | None:
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not math.isfinite(ttl) or ttl <= 0:
        raise InvalidArgument(f"ttl must be a number of minutes above 0, got {ttl!r}; None keeps the item for ever")
    if ttl > _MAX_TTL_MINUTES:
        raise InvalidArgument(f"ttl of {ttl:,.0f} minutes is more than ten years; None keeps the item for ever")
    return float(ttl)


def _check_page(limit: int, offset: int) -> None:
    for name, number in (("limit", limit), ("offset", offset)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InvalidArgument(f"{name} must be a whole number, 0 or more, got {number!r}")


def _checked(op: ListNamespaces) -> ListNamespaces:
    _check_page(op.limit, op.offset)
    if op.max_depth is not None and (not isinstance(op.max_depth, int) or op.max_depth < 1):
        raise InvalidArgument(f"max_depth must be 1 or more, got {op.max_depth!r}; None cuts nothing")
    matches = tuple(
        Match(each.at, tuple(None if label is None else encode_text(label) for label in each.labels))
        for each in op.matches
    )
    return replace(op, matches=matches)
