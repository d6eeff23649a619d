r"""Metadata filters: a small dict language, compiled to one jsonpath predicate with bound variables.

::

    {"topic": "billing"}                                     equal
    {"rank": {"gte": 3, "lt": 10}}                           eq ne gt gte lt lte in nin exists; also $gte ...
    {"title": {"icontains": "tax"}}                          contains icontains (part of a string), empty
    {"customer.city": {"in": ["Porto", "Lisbon"]}}           a dot goes into nested objects
    {"or": [{"topic": "billing"}, {"not": {"flag": True}}]}  and, or, not; several keys mean and

Use it as `jsonb_path_match(metadata, :path, :variables, true)`. It is never null on an object, so `NOT` and
`AND` around it mean what they say. Keys and values are data: no part of them is read as SQL or jsonpath.

- **Types are kept apart.** Numbers compare as numbers (10 > 3), strings by code point, and `True` equals
  neither `"true"` nor 1. A comparison across types is false.
- **null** equals null only. A missing key is not null: ask with `exists`.
- **ne and nin** are the negations of eq and in, so they hold where the key is missing.
- **empty** holds where the key is missing, null, "" or [] (or holds nothing but null).
- **contains** finds a part of a string, case and all; `icontains` by the database's rule for upper and lower case.
- **A list in the metadata** meets a condition if one of its items does: `{"tags": "vip"}` finds
  `{"tags": ["vip", "eu"]}`, and `{"items.sku": "a"}` looks into a list of objects. Two operators on one key
  may be met by two different items. A list in the list is looked into as well, a third is not.
- **Times**: an aware datetime compares, as a time, with the datetimes that pgmem stored; a date with dates.
- **A dot that belongs to the key** is written `\.`, and a backslash before such a dot `\\`; any other
  character means itself. `literal_key` writes any key so that it means itself, also `and`, `or`, `not` and
  `$...`.
- `{}` and None filter nothing. `in` with `[]` finds nothing, `nin` with `[]` everything.

Whatever is not described here raises InvalidFilter.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import numpy as np

from pgmem_core.encoding import encode_json, encode_text
from pgmem_core.errors import InvalidArgument, InvalidFilter

__all__ = ["CompiledFilter", "compile_filter", "literal_key"]

_MAX_DEPTH = 30
_MAX_CONDITIONS = 1_000

_ORDER = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_PARTS = {"contains": "q", "icontains": "iq"}  # jsonpath flags: q takes the pattern for the text it is
_OPERATORS = ("eq", "ne", *_ORDER, "in", "nin", "exists", "empty", *_PARTS)
_CONNECTIVES = ("and", "or", "not")
_NAMES = ", ".join(_OPERATORS)

_TRUE, _FALSE = "(1 == 1)", "(1 == 0)"
# The shapes that encode_json gives to times: strings of this shape sort as the times they are.
_SHAPES = {
    datetime: r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}Z$",
    date: r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
}
_RESERVED = re.compile(r"\\*(?:and|or|not|\$.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CompiledFilter:
    """`path`: a jsonpath predicate. `variables`: what its `$v0`, `$v1` ... stand for, ready for jsonb."""

    path: str
    variables: dict[str, Any]


def compile_filter(filter: Mapping[str, Any] | None) -> CompiledFilter | None:
    """Return the filter as jsonpath, or None if it lets everything through.

    Raises: InvalidFilter, naming the key or the operator.
    """
    if filter is None:
        return None
    if not isinstance(filter, Mapping):
        raise InvalidFilter(f"a filter is a dict such as {{'topic': 'billing'}}, got {type(filter).__name__}")
    if not filter:
        return None
    compiler = _Compiler()
    path = compiler.group(filter, 0)
    return CompiledFilter(path, compiler.variables)


def literal_key(*names: str) -> str:
    """Return the key as a filter writes it: `names` one inside the other, each meaning exactly itself.

    >>> print(literal_key("e.g"), literal_key("not"), literal_key("customer", "e.g"))
    e\\.g \\not customer.e\\.g
    """
    escaped = [re.sub(r"(\\*)\.", r"\1\1\\.", name) for name in names]
    # The dot between two names must not be escaped by the backslashes that end the first.
    joined = ".".join([*(re.sub(r"(\\+)\Z", r"\1\1", name) for name in escaped[:-1]), *escaped[-1:]])
    return f"\\{joined}" if _RESERVED.fullmatch(joined) else joined


class _Compiler:
    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}
        self._conditions = 0

    def group(self, filter: object, depth: int) -> str:
        """All entries of one dict, joined by and."""
        if not isinstance(filter, Mapping):
            raise InvalidFilter(f"inside and, or and not stand dicts, got {type(filter).__name__}")
        if not filter:
            raise InvalidFilter("an empty dict inside and, or or not has no meaning; leave it out")
        if depth > _MAX_DEPTH:
            raise InvalidFilter(f"the filter is nested deeper than {_MAX_DEPTH} levels")
        return _join("&&", [self._entry(key, value, depth) for key, value in filter.items()])

    def _entry(self, key: object, value: object, depth: int) -> str:
        if not isinstance(key, str):
            raise InvalidFilter(f"the key {key!r} is of type {type(key).__name__}; metadata keys are strings")
        word = key.removeprefix("$")
        if word in _CONNECTIVES:
            return self._connective(key, word, value, depth)
        if key.startswith("$"):
            hint = "stands inside a key: {'rank': {'gte': 3}}" if word in _OPERATORS else "is not known"
            raise InvalidFilter(f"the operator {_show(key)} {hint}; for a key of that name use literal_key()")
        return self._conditions_on(key, value)

    def _connective(self, key: str, word: str, value: object, depth: int) -> str:
        if word == "not":
            return f"!{self.group(value, depth + 1)}"
        if not isinstance(value, list | tuple):
            raise InvalidFilter(
                f"{key} takes a list of filters, got {type(value).__name__}; "
                f"for a metadata key of that name use literal_key({key!r})"
            )
        if not value:
            raise InvalidFilter(f"{key} with an empty list has no meaning; leave it out")
        return _join("&&" if word == "and" else "||", [self.group(each, depth + 1) for each in value])

    def _conditions_on(self, key: str, value: object) -> str:
        at = _accessor(key)
        if not isinstance(value, Mapping):
            return self._condition(key, at, "eq", value)
        if not value:
            raise InvalidFilter(f"{_show(key)} has an empty dict of conditions; one of {_NAMES} was wanted")
        for name in value:
            if not isinstance(name, str) or name.removeprefix("$") not in _OPERATORS:
                raise InvalidFilter(
                    f"{_show(key)} has the unknown operator {_show(name)}; known are {_NAMES}; "
                    f"a nested key is written {_show(f'{key}.{name}')}"
                )
        return _join("&&", [self._condition(key, at, op.removeprefix("$"), v) for op, v in value.items()])

    def _condition(self, key: str, at: str, operator: str, value: object) -> str:
        self._conditions += 1
        if self._conditions > _MAX_CONDITIONS:
            raise InvalidFilter(f"the filter has over {_MAX_CONDITIONS} conditions; use in for long lists")
        where = f"{_show(key)} {operator}"
        match operator:
            case "exists":
                if not isinstance(value, bool):
                    raise InvalidFilter(f"{where} takes True or False, got {type(value).__name__}")
                return f"{'' if value else '!'}exists({at})"
            case "empty":
                if not isinstance(value, bool):
                    raise InvalidFilter(f"{where} takes True or False, got {type(value).__name__}")
                held = '@.type() != "null" && (@.type() != "string" || @ != "")'
                return f"{'!' if value else ''}exists({at}[*] ? ({held}))"
            case "contains" | "icontains":
                if not isinstance(value, str):
                    raise InvalidFilter(f"{where} takes a string, got {type(value).__name__}")
                # A pattern cannot be a variable; as a JSON string it is a jsonpath string, whatever it holds.
                pattern = json.dumps(encode_text(str(value)))
                return f'exists({at} ? (@ like_regex {pattern} flag "{_PARTS[operator]}"))'
            case "in" | "nin":
                found = self._member(where, at, value)
                return found if operator == "in" else f"!{found}"
            case "eq" | "ne":
                found = f"exists({at} ? (@ == {self._bind(_scalar(where, value))}))"
                return found if operator == "eq" else f"!{found}"
            case _:
                return self._ordered(where, at, _ORDER[operator], value)

    def _member(self, where: str, at: str, value: object) -> str:
        if not isinstance(value, list | tuple | set | frozenset):
            raise InvalidFilter(f"{where} takes a list, got {type(value).__name__}")
        if not value:
            return _FALSE
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return f"exists({at} ? (@ == {self._bind([_scalar(where, item) for item in items])}[*]))"

    def _ordered(self, where: str, at: str, sign: str, value: object) -> str:
        plain = value.value if isinstance(value, Enum) else value
        bound = _scalar(where, plain)
        if bound is None or isinstance(bound, bool):
            raise InvalidFilter(f"{where} takes a number, a string or a time, got {plain!r}")
        shape = _SHAPES[datetime] if isinstance(plain, datetime) else None
        if isinstance(plain, date) and not shape:
            shape = _SHAPES[date]
        # Other strings would compare with a time letter by letter.
        guard = f"@ like_regex {json.dumps(shape)} && " if shape else ""
        return f"exists({at} ? ({guard}@ {sign} {self._bind(bound)}))"

    def _bind(self, value: Any) -> str:
        name = f"v{len(self.variables)}"
        self.variables[name] = value
        return f"${name}"


def _scalar(where: str, value: object) -> Any:
    """The value in the form in which `encode_json` stored it."""
    known = str | int | float | date | time | Decimal | UUID | Enum | np.generic
    if value is not None and not isinstance(value, known):
        hint = "; use in for a list of values" if isinstance(value, list | tuple | set | frozenset) else ""
        raise InvalidFilter(f"{where} compares with one value, got {type(value).__name__}{hint}")
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        raise InvalidFilter(f"{where} compares with {value!r}, which no stored number equals")
    try:
        encoded = encode_json(value, where=where)
    except InvalidArgument as exc:
        raise InvalidFilter(str(exc)) from exc
    if isinstance(encoded, dict | list):
        raise InvalidFilter(f"{where} compares with one value, got {value!r}")
    return encoded


def _accessor(key: str) -> str:
    """The jsonpath of a key; the names stand in it as string literals."""
    if _RESERVED.fullmatch(key) and key.startswith("\\"):
        key = key[1:]
    # Backslashes before a dot come in pairs; the odd one makes the dot a part of the name.
    names, name, rest = [], "", 0
    for found in re.finditer(r"(\\*)\.", key):
        slashes = len(found[1])
        name += key[rest : found.start()] + "\\" * (slashes // 2)
        rest = found.end()
        if slashes % 2:
            name += "."
        else:
            names.append(name)
            name = ""
    names.append(name + key[rest:])
    if "" in names:
        hint = f"; if the dot belongs to the key, write {literal_key(key)!r}" if "." in key else ""
        raise InvalidFilter(f"the key {_show(key)} has an empty part{hint}")
    return "$" + "".join(f".{json.dumps(encode_text(each))}" for each in names)


def _join(sign: str, parts: list[str]) -> str:
    return f"({f' {sign} '.join(parts)})"


def _show(key: object) -> str:
    text = repr(key)
    return text if len(text) <= 80 else f"{text[:77]}..."
