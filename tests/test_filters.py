"""Metadata filters against Postgres itself, and against a plain Python reading of their rules (A8, C11)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pgmem_core.encoding import dumps, encode_json
from pgmem_core.errors import InvalidFilter
from pgmem_core.filters import CompiledFilter, compile_filter, literal_key

MATCH = "SELECT jsonb_path_match(%s::jsonb, %s::jsonpath, %s::jsonb, true)"


@pytest.fixture
def conn(bare_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        yield connection


def matches(conn: psycopg.Connection, metadata: object, filter: dict[str, Any]) -> bool:
    compiled = compile_filter(filter)
    if compiled is None:
        return True
    stored = dumps(encode_json(metadata, where="metadata"))
    [found] = conn.execute(MATCH, (stored, compiled.path, dumps(compiled.variables))).fetchone() or [None]
    assert found in (True, False), (metadata, filter, compiled)
    return bool(found)


class Colour(Enum):
    RED = "red"


MARCH = date(2024, 3, 1)
NOON = datetime(2024, 2, 29, 12, 0, tzinfo=UTC)
LEAP = date(2024, 2, 29)
ROWS: dict[str, dict[str, Any]] = {
    "two": {"rank": 2, "tags": ["vip", "eu"], "flag": True, "when": NOON, "day": LEAP},
    "ten": {"rank": 10, "tags": ["us"], "flag": "true", "when": NOON + timedelta(hours=1)},
    "none": {"rank": None, "tags": [], "flag": 1, "when": "zebra", "colour": Colour.RED},
    "missing": {"customer": {"city": "Porto", "plan": {"name": "annual"}}, "when": 5},
    "text": {"rank": "10", "customer": [{"city": "Lisbon"}, {"city": "Rome"}], "a.b": 1},
    "list": {"rank": [1, 20], "price": Decimal("9.90"), "ref": UUID(int=7), "a": {"b": 1}, "day": MARCH},
}


@pytest.mark.parametrize(
    ("filter", "found"),
    [
        ({}, "two ten none missing text list"),
        ({"rank": {"gte": 3}}, "ten list"),
        ({"rank": {"$gte": 2, "$lt": 10}}, "two list"),  # 20 >= 2 and 1 < 10: two items of the list
        ({"rank": 10}, "ten"),
        ({"rank": 10.0}, "ten"),
        ({"rank": Decimal("10.0")}, "ten"),
        ({"rank": "10"}, "text"),
        ({"rank": {"gt": "0"}}, "text"),
        ({"rank": None}, "none"),
        ({"rank": {"ne": None}}, "two ten missing text list"),
        ({"rank": {"ne": 2}}, "ten none missing text list"),
        ({"rank": {"in": []}}, ""),
        ({"rank": {"nin": []}}, "two ten none missing text list"),
        ({"rank": {"in": [2, "10", None]}}, "two none text"),
        ({"rank": {"in": {2, 20}}}, "two list"),
        ({"rank": {"nin": [2, 10]}}, "none missing text list"),
        ({"rank": {"exists": True}}, "two ten none text list"),
        ({"rank": {"exists": False}}, "missing"),
        ({"rank": {"exists": True, "ne": None}}, "two ten text list"),
        ({"flag": True}, "two"),
        ({"flag": "true"}, "ten"),
        ({"flag": 1}, "none"),
        ({"flag": {"gt": 0}}, "none"),
        ({"tags": "vip"}, "two"),
        ({"tags": {"in": ["us", "eu"]}}, "two ten"),
        ({"tags": {"nin": ["us"]}}, "two none missing text list"),
        ({"tags": {"exists": True}}, "two ten none"),
        ({"customer.city": "Porto"}, "missing"),
        ({"customer.city": "Rome"}, "text"),
        ({"customer.plan.name": "annual"}, "missing"),
        ({"customer.plan": {"exists": True}}, "missing"),
        ({"customer": "Porto"}, ""),
        ({"a.b": 1}, "list"),
        ({r"a\.b": 1}, "text"),
        ({"nothing": {"gte": 0}}, ""),
        ({"or": [{"rank": 2}, {"rank": 10}]}, "two ten"),
        ({"$or": [{"rank": 2}, {"$and": [{"flag": "true"}, {"tags": "us"}]}]}, "two ten"),
        ({"not": {"rank": {"gte": 3}}}, "two none missing text"),
        ({"not": {"not": {"rank": 2}}}, "two"),
        ({"rank": 2, "flag": True}, "two"),
        ({"rank": 2, "flag": "true"}, ""),
        ({"when": NOON}, "two"),
        ({"when": NOON.astimezone(timezone(timedelta(hours=-8)))}, "two"),
        ({"when": {"gt": NOON - timedelta(microseconds=1)}}, "two ten"),
        ({"when": {"gt": NOON}}, "ten"),
        ({"when": {"lt": datetime(9999, 1, 1, tzinfo=UTC)}}, "two ten"),
        ({"when": {"in": [NOON]}}, "two"),
        ({"day": {"gte": MARCH}}, "list"),
        ({"day": LEAP}, "two"),
        ({"colour": Colour.RED}, "none"),
        ({"price": {"lte": Decimal("9.9")}}, "list"),
        ({"ref": UUID(int=7)}, "list"),
    ],
)
def test_the_right_rows(conn: psycopg.Connection, filter: dict[str, Any], found: str) -> None:
    """C11."""
    assert [name for name, row in ROWS.items() if matches(conn, row, filter)] == found.split()


@pytest.mark.parametrize(
    "key",
    [
        "topic' = 'x' OR '1'='1",
        '"; DROP TABLE x; --',
        r"C:\dir",
        "back\\",
        "\\",
        r"\.",
        "e.g.",
        ".",
        "...",
        r"a\.b",
        r"a\\.b",
        "tab\tnew\nline",
        "\x00",
        "\ud800",
        "\U0010fffd",
        "$v0",
        "$gte",
        "$float",
        "and",
        "$or",
        "not",
        r"\not",
        "eq",
        "用户",
        "🎉",
        "$",
        "@",
        "*",
        "[0]",
        "a b",
        "?(1==1)",
        "k" * 5_000,
    ],
)
def test_any_key_can_be_asked_for_literally(conn: psycopg.Connection, key: str) -> None:
    """A8: a key is data, whatever it looks like."""
    filter = {literal_key(key): "y"}
    assert matches(conn, {key: "y", "other": 1}, filter)
    assert not matches(conn, {key: "x"}, filter)
    assert not matches(conn, {"topic": "y"}, filter)


@pytest.mark.parametrize(
    "key", ["topic' = 'x' OR '1'='1", '"; --', r"C:\dir", "back\\", "\x00", "用户", "[0]", "@", "eq"]
)
def test_most_keys_mean_themselves_as_they_are(key: str) -> None:
    assert literal_key(key) == key


def test_values_are_data_too(conn: psycopg.Connection) -> None:
    for value in ["' OR 1=1", '"', "$v0", "\x00", "a\ud800", "\\", "x" * 100_000]:
        assert matches(conn, {"k": value}, {"k": value})
        assert not matches(conn, {"k": "z"}, {"k": value})
    assert not matches(conn, {"k": r"a\u0000b"}, {"k": "a\x00b"})


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ({"rank": {"near": 3}}, "'rank' has the unknown operator 'near'; known are eq, ne"),
        ({"rank": {"gte": 3, "city": "x"}}, "unknown operator 'city'.*'rank.city'"),
        ({"customer": {"city": "Porto"}}, "nested key is written 'customer.city'"),
        ({"rank": {"$regex": "x"}}, r"\$regex"),
        ({"rank": {"not": {"gte": 3}}}, "unknown operator 'not'"),
        ({"rank": {}}, "empty dict of conditions"),
        ({"rank": [1, 2]}, "'rank' eq compares with one value, got list; use in"),
        ({"rank": {"eq": (1,)}}, "use in"),
        ({"rank": {"eq": {"a": 1}}}, "compares with one value, got dict"),
        ({"rank": {"in": "abc"}}, "'rank' in takes a list, got str"),
        ({"rank": {"nin": None}}, "'rank' nin takes a list, got NoneType"),
        ({"rank": {"in": [[1]]}}, "compares with one value, got list"),
        ({"rank": {"gte": None}}, "'rank' gte takes a number, a string or a time, got None"),
        ({"rank": {"lt": True}}, "got True"),
        ({"rank": {"gt": float("nan")}}, "no stored number equals"),
        ({"rank": Decimal("Infinity")}, "no stored number equals"),
        ({"rank": {"exists": 1}}, "exists takes True or False"),
        ({"when": datetime(2024, 1, 1)}, "'when' eq is the datetime .* without a timezone"),  # noqa: DTZ001
        ({"k": b"x"}, "got bytes"),
        ({"k": object()}, "got object"),
        ({"and": []}, "and with an empty list"),
        ({"$or": ()}, "or with an empty list"),
        ({"or": {"a": 1}}, "or takes a list of filters, got dict"),
        ({"and": "x"}, "metadata key of that name use literal_key"),
        ({"not": [{"a": 1}]}, "stand dicts, got list"),
        ({"not": {}}, "empty dict"),
        ({"or": [{"a": 1}, {}]}, "empty dict"),
        ({"or": ["a"]}, "stand dicts, got str"),
        ({"$gte": 3}, r"'\$gte' stands inside a key"),
        ({"$nor": []}, r"'\$nor' is not known"),
        ({3: "x"}, "key 3 is of type int"),
        ({"": "x"}, "empty part"),
        ({"e.g.": "x"}, r"empty part.*e\\\\.g\\\\."),
        ({"k": {3: "x"}}, "unknown operator 3"),
        ("topic = 1", "a filter is a dict"),
        ([("a", 1)], "a filter is a dict"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(filter: Any, message: str) -> None:
    """C11."""
    with pytest.raises(InvalidFilter, match=message):
        compile_filter(filter)


def test_no_filter() -> None:
    assert compile_filter(None) is None
    assert compile_filter({}) is None


def test_the_text_depends_on_keys_and_operators_only() -> None:
    """One statement text for all values: prepared plans and logs stay small and free of data."""
    one, two = compile_filter({"k": {"gte": 1}}), compile_filter({"k": {"gte": 2}})
    assert one == CompiledFilter('((exists($."k" ? (@ >= $v0))))', {"v0": 1})
    assert two == CompiledFilter('((exists($."k" ? (@ >= $v0))))', {"v0": 2})


def test_large_filters_work_and_huge_ones_are_refused(conn: psycopg.Connection) -> None:
    wide: dict[str, Any] = {"or": [{"k": n} for n in range(1_000)]}
    assert matches(conn, {"k": 999}, wide)
    assert not matches(conn, {"k": 1_000}, wide)
    assert matches(conn, {"k": 9_999}, {"k": {"in": list(range(10_000))}})
    deep: dict[str, Any] = {"k": 1}
    for _ in range(30):
        deep = {"not": deep}
    assert matches(conn, {"k": 1}, deep)
    with pytest.raises(InvalidFilter, match="deeper than 30"):
        compile_filter({"not": deep})
    with pytest.raises(InvalidFilter, match="over 1000 conditions"):
        compile_filter({"or": [{"k": n} for n in range(1_001)]})


# --- the rules once more, in Python

leaf = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([0.5, 1.0])
    | st.sampled_from(["", "1", "a", "b\x00"])
)
keys = st.sampled_from(["a", "b", "c"])
flat = st.dictionaries(keys, leaf | st.lists(leaf, max_size=3), max_size=3)
documents = st.dictionaries(keys, leaf | st.lists(leaf | flat, max_size=3) | flat, max_size=3)
paths = st.sampled_from(["a", "b", "a.b", "a.c", "b.a"])
ordered = st.integers(-2, 2) | st.sampled_from([0.5, "", "1", "a"])
conditions = st.one_of(
    leaf,
    st.fixed_dictionaries({}, optional={"eq": leaf, "$ne": leaf, "exists": st.booleans()}).filter(bool),
    st.fixed_dictionaries({}, optional=dict.fromkeys(["gt", "gte", "$lt", "lte"], ordered)).filter(bool),
    st.fixed_dictionaries({}, optional=dict.fromkeys(["in", "nin"], st.lists(leaf, max_size=3))).filter(bool),
)
filters = st.recursive(
    st.dictionaries(paths, conditions, min_size=1, max_size=2),
    lambda inner: st.one_of(
        st.builds(lambda x: {"not": x}, inner),
        st.builds(lambda op, xs: {op: xs}, st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=4,
)


def values_at(document: Any, names: list[str]) -> list[Any]:
    if not names:
        return [document]
    objects = document if isinstance(document, list) else [document]
    return [v for o in objects if isinstance(o, dict) and names[0] in o for v in values_at(o[names[0]], names[1:])]


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or a is None or b is None:
        return a is b
    return isinstance(a, str) == isinstance(b, str) and bool(a == b)


def compare(sign: str, a: Any, b: Any) -> bool:
    if a is None or isinstance(a, bool | dict) or isinstance(a, str) != isinstance(b, str):
        return False
    return bool({"gt": a > b, "gte": a >= b, "lt": a < b, "lte": a <= b}[sign])


def holds(document: Any, filter: dict[str, Any]) -> bool:
    return all(entry_holds(document, key, value) for key, value in filter.items())


def entry_holds(document: Any, key: str, value: Any) -> bool:
    if key == "not":
        return not holds(document, value)
    if key in ("and", "or"):
        return (all if key == "and" else any)(holds(document, each) for each in value)
    found = values_at(document, key.split("."))
    items = [i for v in found for i in (v if isinstance(v, list) else [v]) if not isinstance(i, dict)]
    for name, operand in (value if isinstance(value, dict) else {"eq": value}).items():
        match name.removeprefix("$"):
            case "exists":
                result = bool(found) == operand
            case "eq":
                result = any(equal(i, operand) for i in items)
            case "ne":
                result = not any(equal(i, operand) for i in items)
            case "in":
                result = any(equal(i, o) for i in items for o in operand)
            case "nin":
                result = not any(equal(i, o) for i in items for o in operand)
            case sign:
                result = any(compare(sign, i, operand) for i in items)
        if not result:
            return False
    return True


def test_postgres_and_python_agree(conn: psycopg.Connection) -> None:
    verdicts = set()

    @settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(documents, filters)
    @example({"a": [{"b": [1, None]}, {"b": 2}]}, {"a.b": {"in": [2]}})
    @example({"a": []}, {"a": {"exists": True}, "a.b": {"exists": False}})
    def check(document: dict[str, Any], filter: dict[str, Any]) -> None:
        expected = holds(document, filter)
        verdicts.add(expected)
        assert matches(conn, document, filter) is expected, json.dumps([document, filter])

    check()
    assert verdicts == {True, False}


any_key = st.sampled_from(["and", "not"]) | st.text(
    st.characters() | st.sampled_from("\\.$\"'\n"), min_size=1, max_size=6
)


def test_literal_keys_always_find_themselves(conn: psycopg.Connection) -> None:
    @settings(max_examples=200, deadline=None)
    @given(any_key, any_key)
    @example("a\\", "a")
    @example("\\", "and")
    @example("$\n", "\\.")
    @example("\n\\\n", "\\")
    def check(key: str, other: str) -> None:
        assert matches(conn, {key: 1}, {literal_key(key): 1})
        assert matches(conn, {other: 1}, {literal_key(key): 1}) is (key == other)
        assert matches(conn, {key: {other: 1}}, {literal_key(key, other): 1})
        assert not matches(conn, {key: 1, other: 1}, {literal_key(key, other): 1})

    check()


def test_literal_key_of_one_and_more_names() -> None:
    assert literal_key("e.g") == r"e\.g"
    assert literal_key("not") == r"\not"
    assert literal_key("customer", "e.g") == r"customer.e\.g"
    assert literal_key("a\\", "b") == r"a\\.b"
