"""Ids: what is minted, what is accepted, what is refused (A4, A7, A10, B7)."""

from __future__ import annotations

import os
import threading
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmem_core.errors import InvalidArgument
from pgmem_core.ids import check_id, new_id, turn_uuid, user_key


def test_new_ids_are_version_7_unique_and_in_order() -> None:
    ids = [new_id() for _ in range(5_000)]
    assert all(type(i) is uuid.UUID and i.version == 7 for i in ids)
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_new_ids_of_many_threads_are_unique() -> None:
    found: list[list[uuid.UUID]] = []

    def mint() -> None:
        found.append([new_id() for _ in range(2_000)])

    threads = [threading.Thread(target=mint) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({i for ids in found for i in ids}) == 8_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_children_do_not_mint_the_same_random_bits() -> None:
    new_id()
    tails = []
    for _ in range(4):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, new_id().bytes[8:])
            os._exit(0)
        os.close(writer)
        tails.append(os.read(reader, 8))
        os.close(reader)
        os.waitpid(child, 0)
    tails.append(new_id().bytes[8:])
    assert len(set(tails)) == 5


@pytest.mark.parametrize(
    "good",
    [
        "a-b",
        "a:b",
        "a b",
        "o'neil@example.org",
        "{x}",
        "用户1",
        "ticket#4711",
        "+4912345",
        "x" * 255,
        "é" * 127,
    ],
)
def test_any_readable_string_is_an_id(good: str) -> None:
    """A7, A10."""
    assert check_id(good) == good


@pytest.mark.parametrize("blank", ["", " ", "\u2003", None, {}, [], b"u1"])
def test_empty_scopes_are_refused(blank: object) -> None:
    """A4."""
    with pytest.raises(InvalidArgument, match="user_id"):
        check_id(blank)


def test_numbers_are_refused_with_the_way_out() -> None:
    """A7: 7 and "7"."""
    with pytest.raises(InvalidArgument, match=r"session_id must be a string, got int; pass str\(sess"):
        check_id(7, "session_id")


@pytest.mark.parametrize("char", ["\x00", "\n", "\x7f", "\x85", "\ud800"])
def test_unprintable_ids_are_refused_by_code_point(char: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"U\+{ord(char):04X}\) at position 1"):
        check_id(f"a{char}b")


@pytest.mark.parametrize("long", ["x" * 256, "é" * 128, os.urandom(4_500).hex()])
def test_long_ids_get_a_length_error(long: str) -> None:
    """B7."""
    with pytest.raises(InvalidArgument, match="at most 255"):
        check_id(long)


def test_a_subclass_of_str_comes_back_plain() -> None:
    class Name(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "other"

    assert type(check_id(Name("u1"))) is str
    assert check_id(Name("u1")) == "u1"


def test_turn_ids() -> None:
    known = uuid.uuid4()
    assert turn_uuid(known, "t", "s") is known
    assert turn_uuid(str(known).upper(), "t", "s") == known
    assert turn_uuid(None, "t", "s") != turn_uuid(None, "t", "s")
    own = turn_uuid("run-17", "t", "s")
    assert own == turn_uuid("run-17", "t", "s") == uuid.UUID("d16f222f-a35b-5431-ad03-e316ff058906")
    assert (
        len(
            {
                own,
                turn_uuid("run-18", "t", "s"),
                turn_uuid("run-17", "t2", "s"),
                turn_uuid("run-17", "t", "s2"),
            }
        )
        == 4
    )
    # A digest without hyphens is a content hash more often than an id, and must stay within its session.
    assert turn_uuid(known.hex, "t", "s") != turn_uuid(known.hex, "t", "s2")


@pytest.mark.parametrize("bad", ["", "  ", "a\x00", "x" * 256])
def test_bad_turn_ids_are_refused(bad: str) -> None:
    with pytest.raises(InvalidArgument, match="turn_id"):
        turn_uuid(bad, "t", "s")


ids = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8)


@given(st.tuples(ids, ids, ids), st.tuples(ids, ids, ids))
def test_derived_turn_ids_collide_only_when_all_parts_are_equal(
    a: tuple[str, str, str], b: tuple[str, str, str]
) -> None:
    if not (a[0].strip() and b[0].strip()):
        return
    assert (turn_uuid(a[0], a[1], a[2]) == turn_uuid(b[0], b[1], b[2])) == (a == b)


def test_user_key_is_pinned_and_fits_bigint() -> None:
    assert user_key("u_123") == -2655274329195947982
    assert all(-(2**63) <= user_key(f"u{i}") < 2**63 for i in range(100))
    assert len({user_key(f"u{i}") for i in range(10_000)}) == 10_000
