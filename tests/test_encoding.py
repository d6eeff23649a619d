"""Text and JSON that Postgres refuses come back exactly, or are refused by name (B2, B3, B4, B14)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgmem_core.encoding import decode_json, decode_text, dumps, encode_json, encode_text
from pgmem_core.errors import InvalidArgument

any_text = st.text(st.characters())  # surrogates and NUL included
awkward_text = st.text(st.sampled_from("\x00\ud800\udc00\udfff\U0010fffd0adf$\\u"))


@given(any_text | awkward_text)
@example("\U0010fffd0000")
@example("\U0010fffd\U0010fffd\x00")
@example("\ud83d\ude00")  # two halves, not one character
def test_text_comes_back_and_is_storable(text: str) -> None:
    stored = encode_text(text)
    assert decode_text(stored) == text
    assert "\x00" not in stored
    stored.encode()  # no surrogate left


@given(awkward_text, awkward_text)
def test_different_texts_are_stored_differently(a: str, b: str) -> None:
    assert (encode_text(a) == encode_text(b)) == (a == b)


def test_the_rule_is_pinned() -> None:
    assert encode_text("a\x00b\udfff") == "a\U0010fffd0000b\U0010fffddfff"
    assert encode_text("\U0010fffd") == "\U0010fffd" * 2


def test_ordinary_text_is_untouched() -> None:
    """B2: the six characters of a written-out escape are ordinary text."""
    for text in ["", "plain", r"a\u0000b", "Xin chào, 東京 🎉", "\ufffe\ufeff\x01"]:
        assert encode_text(text) is text
        assert decode_text(text) is text


def test_escapes_written_by_others_survive_a_read() -> None:
    for foreign in ["\U0010fffd", "x\U0010fffdzz", "\U0010fffd00"]:
        assert decode_text(foreign) == foreign


tags = st.sampled_from(["$float", "$$float", "$float$"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | any_text | awkward_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(tags | any_text, inner, max_size=3),
    max_leaves=20,
)


def same(a: Any, b: Any) -> bool:
    """Equality that tells NaN from a number, 1 from True and 1 from 1.0; a float from 1e16 on may be an int."""
    if isinstance(b, float) and abs(b) >= 1e16 and type(a) is int:
        return a == b
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@given(json_values)
@example({"$float": "NaN"})
@example({"$float": {"$$float": math.nan}})
@example({"$float": "NaN", "b": 1})
def test_json_comes_back_through_strict_json(value: Any) -> None:
    text = dumps(encode_json(value, where="metadata"))
    assert "\\u0000" not in text.replace("\\\\", "")
    assert same(decode_json(json.loads(text)), value)


def test_nan_and_infinity_have_a_documented_form() -> None:
    """B4."""
    stored = encode_json({"v": math.nan, "w": math.inf, "x": [-math.inf]}, where="metadata")
    assert stored == {"v": {"$float": "NaN"}, "w": {"$float": "Infinity"}, "x": [{"$float": "-Infinity"}]}


class Colour(Enum):
    RED = "red\x00"


class Level(IntEnum):
    HIGH = 3


class Kind(StrEnum):
    A = "a"


NAIVE = datetime(2024, 1, 1)  # noqa: DTZ001
IST = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (datetime(2024, 2, 29, 13, 0, tzinfo=IST), "2024-02-29T07:30:00.000000Z"),
        (datetime(2024, 2, 29, 7, 30, 0, 1, tzinfo=UTC), "2024-02-29T07:30:00.000001Z"),
        (datetime(7, 1, 1, tzinfo=UTC), "0007-01-01T00:00:00.000000Z"),
        (date(2024, 2, 29), "2024-02-29"),
        (time(7, 5), "07:05:00"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Decimal("1.10"), 1.1),
        (Decimal("123456789012.345"), 123456789012.345),
        (Decimal("12345678901234567890123"), 12345678901234567890123),
        (Decimal("1E+3"), 1000),
        (Decimal("NaN"), {"$float": "NaN"}),
        (Decimal("-Infinity"), {"$float": "-Infinity"}),
        (Colour.RED, "red\U0010fffd0000"),
        (Level.HIGH, 3),
        (Kind.A, "a"),
        ((1, (2,)), [1, [2]]),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({3, 1}), [1, 3]),
        (MappingProxyType({"a\x00": True}), {"a\U0010fffd0000": True}),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        ({Kind.A: 1}, {"a": 1}),
    ],
)
def test_types_json_lacks_have_a_documented_form(value: object, stored: object) -> None:
    """B14."""
    got = encode_json({"k": value}, where="metadata")["k"]
    assert same(got, stored), got
    json.loads(dumps(got))


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(timezones=st.just(IST), min_value=NAIVE.replace(year=2)),
)
def test_datetimes_sort_as_text(a: datetime, b: datetime) -> None:
    first, second = (encode_json(x, where="metadata") for x in (a, b))
    assert (first < second) == (a < b)
    assert datetime.fromisoformat(first) == a


@dataclass
class Thing:
    x: int = 1


def circle() -> object:
    inner: list[object] = []
    inner.append({"again": inner})
    return inner


def nest(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b"x", r'metadata\["a"\]\[1\] is of type bytes.*base64'),
        (Thing, r'metadata\["a"\]\[1\] is of type Thing'),
        (object, r'metadata\["a"\]\[1\] is of type object'),
        (lambda: timedelta(1), "total_seconds"),
        (lambda: np.zeros(2), "tolist"),
        (lambda: 1j, "complex"),
        (lambda: NAIVE, r'metadata\["a"\]\[1\] is the datetime 2024-01-01T00:00:00 without a timezone'),
        (lambda: datetime(1, 1, 1, tzinfo=IST), "outside the years"),
        (lambda: {1: "x"}, r'metadata\["a"\]\[1\] has the key 1 of type int'),
        (lambda: {None: "x"}, "NoneType"),
        (circle, r'metadata\["a"\]\[1\]\[0\]\["again"\] contains itself'),
        (lambda: nest(200), "nested deeper than 100"),
        (lambda: 10**4100, "4,000 digits"),
        (lambda: Decimal("1E+4100"), "4,000 digits"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_place(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        encode_json({"a": [0, make()]}, where="metadata")


def test_deep_but_allowed_and_shared_values_are_stored() -> None:
    assert encode_json(nest(100), where="metadata") == nest(100)
    shared = {"x": 1}
    assert encode_json([shared, shared], where="metadata") == [shared, shared]


def test_the_callers_value_is_left_as_it_was() -> None:
    value = {"a": [1, {"b": "\x00"}]}
    encode_json(value, where="metadata")
    assert value == {"a": [1, {"b": "\x00"}]}


def test_long_and_hostile_keys_are_clipped_in_errors() -> None:
    with pytest.raises(InvalidArgument) as caught:
        encode_json({"\n" + "k" * 5_000: b""}, where="metadata")
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)
