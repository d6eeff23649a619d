"""What the configuration of a LangGraph store says: LangGraph's dictionaries, checked key by key."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from langgraph.store.base import TTLConfig, ensure_embeddings, get_text_at_path, tokenize_path

from pgmem_core import items
from pgmem_core.errors import InvalidArgument
from pgmem_core.models.adapters import as_embedder
from pgmem_core.tiers.items import Metric

__all__ = ["Texts", "pool_options", "read_fields", "read_index", "read_ttl"]

log = logging.getLogger(__name__)

_INDEX_KEYS = {"dims", "embed", "fields", "distance_type", "ann_index_config"}
_ANN_KEYS = {"kind", "vector_type", "m", "ef_construction", "nlist", "lists"}
_METRICS = ("cosine", "inner_product", "l2")
_TTL_KEYS = {"refresh_on_read", "omit_expired", "default_ttl", "sweep_interval_minutes"}
_POOL_KEYS = {"min_size", "max_size", "kwargs"}


class Texts:
    """What of a value is indexed: one text for each field, for each item of a list where the path says `[*]`."""

    __slots__ = ("_paths",)

    def __init__(self, paths: Sequence[Literal["$"] | list[str]]) -> None:
        self._paths = paths

    def __call__(self, value: Mapping[str, Any]) -> list[str]:
        return [text for path in self._paths for text in _at(value, path)]


def _at(value: Mapping[str, Any], path: Literal["$"] | list[str]) -> list[str]:
    if path == "$":
        return ["\n".join(_lines(value, ""))]
    return get_text_at_path(value, path)


def _lines(value: object, name: str) -> list[str]:
    """Return the leaves of a value as `name: leaf`; a nested name stands after its parent's."""
    if isinstance(value, Mapping):
        return [line for key, item in value.items() for line in _lines(item, f"{name} {key}".lstrip())]
    if isinstance(value, list | tuple | set | frozenset):
        return [line for item in value for line in _lines(item, name)]
    return [] if value is None else [f"{name}: {value}"]


def read_index(index: Mapping[str, Any] | Literal[False] | None) -> tuple[items.Shelf, list[Any]]:
    """Return a shelf (without its tenant) and the fields that are indexed by default."""
    if index is False:
        return items.Shelf("", indexed=False), []
    config = dict(index or {})
    _refuse_unknown("index", config, _INDEX_KEYS)
    metric: Metric = config.get("distance_type", "cosine")
    if metric not in _METRICS:
        raise InvalidArgument(f"index['distance_type'] is one of {', '.join(_METRICS)}, got {metric!r}")
    ann = dict(config.get("ann_index_config") or {})
    _refuse_unknown("index['ann_index_config']", ann, _ANN_KEYS)
    if ann.get("kind", "hnsw") not in ("hnsw", "ivfflat", "flat") or ann.get("vector_type", "vector") not in (
        "vector", "halfvec",
    ):  # fmt: skip
        raise InvalidArgument(
            "index['ann_index_config'] takes kind 'hnsw' or 'flat' and vector_type 'vector' or 'halfvec', got"
            f" {ann.get('kind', 'hnsw')!r} and {ann.get('vector_type', 'vector')!r}"
        )
    ignored = sorted(name for name in ann if name != "kind" or ann[name] == "ivfflat")
    if ignored:
        log.info("pgmem builds one HNSW index a model for all its stores; not used of ann_index_config: %s", ignored)
    embedder = dims = None
    if config.get("embed") is not None:
        dims = config.get("dims")
        if dims is not None and (isinstance(dims, bool) or not isinstance(dims, int) or dims < 1):
            raise InvalidArgument(f"index['dims'] is the number of dimensions, got {dims!r}")
        embedder = as_embedder(_embeddings(config["embed"]), model=_model_name(config["embed"]), dimensions=dims)
    elif config.get("dims") is not None:
        raise InvalidArgument("index['dims'] goes with index['embed']; without it the memory's embedder is used")
    shelf = items.Shelf("", embedder=embedder, dimensions=dims, metric=metric, exact=ann.get("kind") == "flat")
    return shelf, read_fields(config.get("fields") or ["$"])


def _embeddings(embed: Any) -> Any:
    if isinstance(embed, str):
        return embed  # pgmem's own strings, "bundled" among them
    known = ("embed_documents", "get_text_embedding_batch", "embed")
    return embed if any(hasattr(embed, name) for name in known) else ensure_embeddings(embed)


def _model_name(embed: Any) -> str | None:
    """A function is named by its own name: the wrapper's would make one vector space of all."""
    if isinstance(embed, str) or not callable(embed) or hasattr(embed, "embed_documents"):
        return None
    return f"{getattr(embed, '__module__', '')}.{getattr(embed, '__qualname__', type(embed).__qualname__)}"


def read_fields(fields: object) -> list[Literal["$"] | list[str]]:
    names = [fields] if isinstance(fields, str) else fields
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise InvalidArgument(f"indexed fields are a list of paths such as ['text', 'tags[*]'], got {fields!r}")
    return ["$" if name == "$" else tokenize_path(name) for name in names]


def read_ttl(ttl: TTLConfig | None) -> TTLConfig | None:
    if ttl is None:
        return None
    config: TTLConfig = dict(ttl)  # type: ignore[assignment]
    _refuse_unknown("ttl", config, _TTL_KEYS)
    if config.get("omit_expired") is False:
        raise InvalidArgument("ttl['omit_expired'] cannot be False: an item that has expired is never returned")
    return config


def pool_options(pool: Mapping[str, Any] | None) -> dict[str, Any]:
    if pool is None:
        return {}
    _refuse_unknown("pool_config", pool, _POOL_KEYS)
    if pool.get("kwargs"):
        raise InvalidArgument("pool_config['kwargs'] is not taken; write connection parameters into the DSN")
    size = pool.get("max_size") or pool.get("min_size")
    return {"pool_size": size, "max_overflow": 0} if size else {}


def _refuse_unknown(name: str, config: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(map(str, config)) - known)
    if unknown:
        raise InvalidArgument(f"{name} has the unknown key {', '.join(unknown)}; known are {', '.join(sorted(known))}")
