"""`MetadataFilters` in pgmem's own filter language (`pgmem_core.filters`): each operator, or a refusal naming it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from pgmem_core.errors import InvalidFilter
from pgmem_core.filters import literal_key

__all__ = ["RESERVED", "translated"]

# Fields of a memory, not of its metadata: a filter on one of them would find nothing, without a word.
RESERVED = {
    "id": "mem.get_all",
    "kind": "PgMemRetriever(kinds=…)",
    "session_id": "PgMemRetriever(session_id=…)",
    "created_at": "PgMemRetriever(after=…, before=…)",
}

_SIMPLE = {
    FilterOperator.EQ: "eq",
    FilterOperator.NE: "ne",
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
    FilterOperator.CONTAINS: "eq",  # a list in the metadata meets what one of its items meets
    FilterOperator.TEXT_MATCH: "contains",
    FilterOperator.TEXT_MATCH_INSENSITIVE: "icontains",
}
_OF_LISTS = {FilterOperator.IN: "in", FilterOperator.NIN: "nin", FilterOperator.ANY: "in"}


def translated(filters: MetadataFilters | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the filter as pgmem's dict; one that is such a dict already as it is; None where nothing is filtered.

    `condition`: and, or, and not, which as LlamaIndex has it holds where none of the filters does. Keys are literal,
    dots included. `==` and `contains` look into lists; `!=` and `nin` hold where the key is missing.

    Raises: InvalidFilter, naming the key and the operator.
    """
    if filters is None:
        return None
    if isinstance(filters, Mapping):
        return dict(filters)
    if not isinstance(filters, MetadataFilters):
        raise InvalidFilter(f"filters must be MetadataFilters or a dict, got {type(filters).__name__}")
    return _group(filters) if filters.filters else None


def _group(filters: MetadataFilters) -> dict[str, Any]:
    parts = []
    for one in filters.filters:
        if isinstance(one, MetadataFilters):
            if not one.filters:
                raise InvalidFilter("MetadataFilters without filters inside others have no meaning; leave them out")
            parts.append(_group(one))
        else:
            parts.append(_condition(one))
    match filters.condition or FilterCondition.AND:
        case FilterCondition.AND:
            return {"and": parts}
        case FilterCondition.OR:
            return {"or": parts}
        case FilterCondition.NOT:
            return {"not": {"or": parts}}
    raise InvalidFilter(f"the condition {filters.condition!r} is not known; use and, or or not")


def _condition(one: MetadataFilter) -> dict[str, Any]:
    if one.key in RESERVED:
        raise InvalidFilter(
            f"{one.key!r} is a field of the memory and not of its metadata; use {RESERVED[one.key]}, or, for a metadata"
            f" key of that name, a dict: filters={{{one.key!r}: …}}"
        )
    key, value, operator = literal_key(one.key), one.value, one.operator
    where = f"{one.key!r} {operator.value}"
    if operator is FilterOperator.IS_EMPTY:
        return {key: {"empty": True}}
    if operator in _OF_LISTS or operator is FilterOperator.ALL:
        if not isinstance(value, list):
            raise InvalidFilter(f"{where} takes a list, got {type(value).__name__}")
        if operator is not FilterOperator.ALL:
            return {key: {_OF_LISTS[operator]: value}}
        # All of nothing holds everywhere, which is what nin says of nothing.
        return {"and": [{key: {"eq": item}} for item in value]} if value else {key: {"nin": []}}
    if operator not in _SIMPLE:
        raise InvalidFilter(f"{where}: the operator is not known to pgmem")
    if isinstance(value, list):
        raise InvalidFilter(f"{where} takes one value, got a list; use in, any or all")
    return {key: {_SIMPLE[operator]: value}}
