"""A conformance suite for LangGraph stores: what `BaseStore` promises, as a pytest class.

    from pgmem_langchain.testing import StoreConformance, conformance_index

    class TestMyStore(StoreConformance):
        has_ttl = True

        @pytest.fixture
        def store(self):
            with MyStore.from_conn_string(DSN, index=conformance_index(), ttl={"refresh_on_read": True}) as store:
                yield store

The fixture `store` gives an empty store, sync and async, indexed as `conformance_index()` says. `has_ttl` False leaves
out what expires, `has_query` False what is ranked. A test that does not apply is left out by `test_name = None`.

What fails of it (langgraph 1.2, langgraph-checkpoint-postgres 3.1); PgMemStore passes all, hybrid and dense:

=====================================================  =============  =============
test                                                   InMemoryStore  PostgresStore
=====================================================  =============  =============
a_batch_is_written_whole_or_not_at_all                 fails          passes
a_field_that_went_is_not_searched_any_more             fails          fails
a_missing_key_meets_no_condition                       2 of 7 fail    passes
a_namespace_without_items_is_none                      fails          passes
a_read_extends_the_time                                has none       fails
as_many_as_were_asked_for                              passes         fails
half_a_surrogate_pair_survives                         passes         fails
index_false_takes_an_older_index_away                  fails          fails
large_numbers_are_exact                                passes         fails
namespaces_come_in_the_order_of_their_labels           passes         fails
not_a_number_survives                                  passes         fails
nul_characters_survive                                 passes         fails
numbers_compare_as_numbers                             passes         5 of 7 fail
put_replaces_the_whole_value (created_at is kept)      fails          passes
texts_compare_as_texts                                 fails          passes
what_was_returned_is_the_callers_own                   fails          passes
=====================================================  =============  =============
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp

__all__ = ["ConformanceEmbeddings", "StoreConformance", "conformance_index"]

_DIMS = 64
NS = ("conf", "a")


class ConformanceEmbeddings(Embeddings):
    """Texts as the sum of a direction for each of their words: what shares words is near. No model, no network."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        total = np.full(_DIMS, 1e-3)
        for word in text.lower().split():
            seed = int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
            total += np.random.default_rng(seed).normal(size=_DIMS)
        return [float(x) for x in total / np.linalg.norm(total)]


def conformance_index() -> dict[str, Any]:
    """Return the index configuration that the suite expects of the store: the fields `text` and `tags[*]`."""
    return {"dims": _DIMS, "embed": ConformanceEmbeddings(), "fields": ["text", "tags[*]"]}


class StoreConformance:
    """Subclass it, and give it a fixture `store`. See the module."""

    has_ttl = False
    has_query = True

    @pytest.fixture
    def store(self) -> BaseStore:
        """An empty store."""
        raise NotImplementedError("a subclass of StoreConformance gives the fixture 'store'")

    @pytest.fixture
    def expiring(self, store: BaseStore) -> BaseStore:
        if not self.has_ttl:
            pytest.skip("the store has no time to live")
        return store

    @pytest.fixture
    def indexed(self, store: BaseStore) -> BaseStore:
        if not self.has_query:
            pytest.skip("the store has no search by query")
        return store

    # -- put, get, delete --------------------------------------------------------------------------------------------

    def test_get_returns_what_was_put(self, store: BaseStore) -> None:
        value = {
            "text": "naïve 用户 🦊", "n": 7, "f": 0.1 + 0.2, "no": None, "yes": True, "empty": {}, "none": [],
            "deep": {"a": [{"b": [1, 2.5, "x"]}]}, "": "an empty key", "with.dot": 1,
        }  # fmt: skip
        store.put(NS, "k", value)
        item = _got(store, "k")
        assert item.value == value
        assert (item.namespace, item.key) == (NS, "k")

    def test_large_numbers_are_exact(self, store: BaseStore) -> None:
        store.put(NS, "k", {"id": 2**70 + 1, "n": 2**53 + 1, "huge": 1e300})
        assert _got(store, "k").value == {"id": 2**70 + 1, "n": 2**53 + 1, "huge": 1e300}

    def test_what_is_not_there_is_none(self, store: BaseStore) -> None:
        store.put(NS, "k", {"v": 1})
        assert store.get(NS, "other") is None
        assert store.get((*NS, "deeper"), "k") is None
        assert store.get(NS[:1], "k") is None
        assert store.get(NS, "k") is not None

    def test_put_replaces_the_whole_value(self, store: BaseStore) -> None:
        store.put(NS, "k", {"a": 1, "b": 2})
        before = _got(store, "k")
        store.put(NS, "k", {"a": 3})
        after = _got(store, "k")
        assert after.value == {"a": 3}
        assert after.created_at == before.created_at
        assert after.updated_at > before.updated_at

    def test_times_are_aware_and_now(self, store: BaseStore) -> None:
        store.put(NS, "k", {"v": 1})
        item = _got(store, "k")
        for moment in (item.created_at, item.updated_at):
            assert moment.tzinfo is not None
            assert abs((moment - datetime.now(UTC)).total_seconds()) < 60

    def test_delete(self, store: BaseStore) -> None:
        store.put(NS, "k", {"v": 1})
        store.put(NS, "kept", {"v": 1})
        store.delete(NS, "k")
        store.delete(NS, "never there")
        assert store.get(NS, "k") is None
        assert [item.key for item in store.search(NS)] == ["kept"]

    def test_what_was_returned_is_the_callers_own(self, store: BaseStore) -> None:
        given = {"list": [1]}
        store.put(NS, "k", given)
        given["list"].append(2)
        _got(store, "k").value["list"].append(3)
        assert _got(store, "k").value == {"list": [1]}

    @pytest.mark.parametrize(
        "label", ["a-b", "a:b", "a b", "o'neil@example", "{x}", "用户1", "%_", "a\\b", "*", 'q"', "a\nb"]
    )
    def test_a_label_or_key_may_be_any_text(self, store: BaseStore, label: str) -> None:
        store.put(("labels", label), label, {"v": label})
        store.put(("labels", f"{label}x"), label, {"v": "another"})
        found = store.get(("labels", label), label)
        assert found is not None
        assert found.value == {"v": label}
        assert [item.value["v"] for item in store.search(("labels", label))] == [label]
        store.delete(("labels", label), label)
        assert store.get(("labels", label), label) is None
        assert len(store.search(("labels",))) == 1

    def test_a_long_key(self, store: BaseStore) -> None:
        store.put(NS, "k" * 300, {"v": 1})
        assert store.get(NS, "k" * 300) is not None
        assert store.get(NS, "k" * 299) is None

    def test_bad_namespaces_are_refused(self, store: BaseStore) -> None:
        for namespace in [(), ("a.b",), ("",), ("langgraph", "x"), (1,)]:
            with pytest.raises(ValueError, match=r"(?i)namespace"):
                store.put(namespace, "k", {"v": 1})  # type: ignore[arg-type]
        assert store.search(()) == []

    def test_a_dot_in_a_label_leads_to_no_other_namespace(self, store: BaseStore) -> None:
        with contextlib.suppress(ValueError):
            store.batch([PutOp(("a.b",), "k", {"v": 1})])  # batch may leave out what put checks
        assert store.get(("a", "b"), "k") is None
        assert store.search(("a",)) == []

    # -- values ------------------------------------------------------------------------------------------------------

    def test_nul_characters_survive(self, store: BaseStore) -> None:
        value = {"text": "a\x00b", "nested": {"x": ["\x00"]}, "ke\x00y": 1, "literal": "\\u0000"}
        store.put(NS, "k", value)
        assert _got(store, "k").value == value

    def test_half_a_surrogate_pair_survives(self, store: BaseStore) -> None:
        store.put(NS, "k", {"text": "cut \ud83d here"})
        assert _got(store, "k").value == {"text": "cut \ud83d here"}

    def test_not_a_number_survives(self, store: BaseStore) -> None:
        store.put(NS, "k", {"x": float("inf"), "y": [float("nan")]})
        value = _got(store, "k").value
        assert value["x"] == float("inf")
        assert value["y"][0] != value["y"][0]

    def test_what_json_has_not_is_kept_or_refused_whole(self, store: BaseStore) -> None:
        for value in ({"at": datetime(2024, 2, 29, tzinfo=UTC)}, {"raw": b"\x00\xff"}, {"s": {1, 2}}, {"o": object()}):
            try:
                store.put(NS, "k", value)
            except Exception:
                assert store.get(NS, "k") is None
            else:
                assert set(_got(store, "k").value) == set(value)
            store.delete(NS, "k")

    def test_a_large_value(self, store: BaseStore) -> None:
        store.put(NS, "k", {"text": "word " * 100_000, "hex": blake2b(b"x").hexdigest() * 200}, index=False)
        assert len(_got(store, "k").value["text"]) == 500_000

    # -- batch -------------------------------------------------------------------------------------------------------

    def test_a_batch_answers_in_order_and_reads_what_was_before(self, store: BaseStore) -> None:
        store.put(NS, "k", {"v": "old"})
        found: list[Any] = store.batch(
            [
                PutOp(NS, "k", {"v": "new"}), GetOp(NS, "k"), SearchOp(NS, limit=5), ListNamespacesOp(),
                GetOp(NS, "none"), PutOp(NS, "k2", {"v": 2}), GetOp(NS, "k2"),
            ]
        )  # fmt: skip
        assert found[0] is None
        assert found[1].value == {"v": "old"}
        assert [item.value for item in found[2]] == [{"v": "old"}]
        assert found[3] == [NS]
        assert found[4:] == [None, None, None]
        assert _got(store, "k").value == {"v": "new"}
        assert _got(store, "k2").value == {"v": 2}

    def test_of_two_puts_of_a_key_the_last_counts(self, store: BaseStore) -> None:
        store.batch(
            [PutOp(NS, "k", {"v": 1}), PutOp(NS, "k", {"v": 2}), PutOp(NS, "k2", {"v": 1}), PutOp(NS, "k2", None)]
        )
        store.batch([PutOp(NS, "k3", None), PutOp(NS, "k3", {"v": 3})])
        assert _got(store, "k").value == {"v": 2}
        assert store.get(NS, "k2") is None
        assert _got(store, "k3").value == {"v": 3}

    def test_a_batch_is_written_whole_or_not_at_all(self, store: BaseStore) -> None:
        circle: dict[str, Any] = {}
        circle["self"] = circle
        with pytest.raises(Exception):  # noqa: B017, PT011 - which one is the store's own
            store.batch(
                [PutOp(NS, "good", {"v": 1}), PutOp(NS, "bad", circle), SearchOp(NS, filter={"v": {"$near": 1}})]
            )
        assert store.get(NS, "good") is None

    def test_an_empty_batch(self, store: BaseStore) -> None:
        assert store.batch([]) == []

    # -- search by namespace and filter ------------------------------------------------------------------------------

    def test_a_prefix_is_of_whole_labels(self, store: BaseStore) -> None:
        for namespace in [("foo",), ("foo", "child"), ("foobar",), ("foobar", "child"), ("fo",), ("foo-x",), ("f%",)]:
            store.put(namespace, "k", {"v": 1})
        found = {item.namespace for item in store.search(("foo",), limit=100)}
        assert found == {("foo",), ("foo", "child")}
        assert {item.namespace for item in store.search(("f%",), limit=100)} == {("f%",)}
        assert len(store.search((), limit=100)) == 7

    @pytest.mark.parametrize(
        ("condition", "keys"),
        [
            ({"rank": 10}, {"ten"}),
            ({"rank": {"$eq": 10}}, {"ten"}),
            ({"rank": {"$gt": 3}}, {"ten"}),
            ({"rank": {"$gte": 3}}, {"three", "ten"}),
            ({"rank": {"$lt": 3}}, {"two", "minus"}),
            ({"rank": {"$lte": 3, "$gt": -5}}, {"two", "three"}),
            ({"rank": {"$gt": 2.5}}, {"three", "ten"}),
        ],
    )
    def test_numbers_compare_as_numbers(self, store: BaseStore, condition: dict[str, Any], keys: set[str]) -> None:
        for key, rank in [("two", 2), ("three", 3), ("ten", 10), ("minus", -20)]:
            store.put(NS, key, {"rank": rank})
        assert {item.key for item in store.search(NS, filter=condition, limit=100)} == keys

    @pytest.mark.parametrize(
        ("condition", "keys"),
        [
            ({"rank": {"$gt": 1}}, {"one"}),
            ({"rank": None}, {"null"}),
            ({"flag": True}, {"one"}),
            ({"flag": "true"}, {"null"}),
            ({"flag": True, "rank": 2}, {"one"}),
            ({"flag": True, "rank": 3}, set()),
            ({"nothing": 1}, set()),
        ],
    )
    def test_a_missing_key_meets_no_condition(
        self, store: BaseStore, condition: dict[str, Any], keys: set[str]
    ) -> None:
        store.put(NS, "one", {"rank": 2, "flag": True})
        store.put(NS, "null", {"rank": None, "flag": "true"})
        store.put(NS, "missing", {"other": 1})
        assert {item.key for item in store.search(NS, filter=condition, limit=100)} == keys

    def test_texts_compare_as_texts(self, store: BaseStore) -> None:
        for name in ("ada", "bob", "cy"):
            store.put(NS, name, {"name": name})
        assert {item.key for item in store.search(NS, filter={"name": {"$gte": "bob"}})} == {"bob", "cy"}

    def test_not_equal(self, store: BaseStore) -> None:
        store.put(NS, "a", {"color": "red"})
        store.put(NS, "b", {"color": "blue"})
        assert {item.key for item in store.search(NS, filter={"color": {"$ne": "red"}})} == {"b"}

    def test_an_unknown_operator_is_refused(self, store: BaseStore) -> None:
        store.put(NS, "k", {"rank": 1})
        with pytest.raises(ValueError, match="near"):
            store.search(NS, filter={"rank": {"$near": 1}})

    def test_pages_are_disjoint_and_complete(self, store: BaseStore) -> None:
        for n in range(12):
            store.put(NS, f"k{n}", {"n": n, "even": n % 2 == 0})
        pages = [[item.key for item in store.search(NS, limit=5, offset=at)] for at in (0, 5, 10, 15)]
        assert [len(page) for page in pages] == [5, 5, 2, 0]
        assert sorted(key for page in pages for key in page) == sorted(f"k{n}" for n in range(12))
        assert len(store.search(NS, filter={"even": True}, limit=4)) == 4
        assert len(store.search(NS)) == 10

    def test_a_blank_query_lists(self, store: BaseStore) -> None:
        store.put(NS, "k1", {"text": "one"})
        store.put(NS, "k2", {"other": 1}, index=False)
        for query in (None, ""):
            found = store.search(NS, query=query)
            assert {item.key for item in found} == {"k1", "k2"}
            assert [item.score for item in found] == [None, None]

    # -- search by query ---------------------------------------------------------------------------------------------

    def test_the_nearest_comes_first_and_scores_fall(self, indexed: BaseStore) -> None:
        _fill(indexed)
        found = indexed.search(NS, query="vegetarian food", limit=3)
        assert found[0].key == "food"
        scores = [item.score for item in found]
        assert len(scores) == 3
        assert None not in scores
        assert scores == sorted(scores, key=lambda score: -(score or 0))

    def test_as_many_as_were_asked_for(self, indexed: BaseStore) -> None:
        for n in range(6):
            indexed.put(NS, f"k{n}", {"tags": [f"item {n} tag {t} apples" for t in range(30)]})
        assert len({item.key for item in indexed.search(NS, query="apples tag 1 item 0", limit=6)}) == 6

    def test_an_item_is_found_once_by_its_best_field(self, indexed: BaseStore) -> None:
        indexed.put(NS, "many", {"text": "quite unlike", "tags": ["blue whale", "red fox"]})
        indexed.put(NS, "one", {"text": "green frog"})
        found = indexed.search(NS, query="red fox")
        assert [item.key for item in found] == ["many", "one"]

    def test_pages_of_a_query_are_disjoint_and_complete(self, indexed: BaseStore) -> None:
        for n in range(11):
            indexed.put(NS, f"k{n}", {"text": f"note number {n} about apples"})
        pages = [
            [item.key for item in indexed.search(NS, query="apples note 3", limit=4, offset=at)] for at in (0, 4, 8)
        ]
        assert [len(page) for page in pages] == [4, 4, 3]
        assert len({key for page in pages for key in page}) == 11

    def test_a_query_keeps_to_its_namespace_and_filter(self, indexed: BaseStore) -> None:
        indexed.put(("q", "a"), "k", {"text": "red apple", "rank": 2})
        indexed.put(("q", "a"), "k2", {"text": "red car", "rank": 10})
        indexed.put(("q", "ab"), "k", {"text": "red apple", "rank": 10})
        assert {item.namespace for item in indexed.search(("q", "a"), query="red apple")} == {("q", "a")}
        assert [item.key for item in indexed.search(("q", "a"), query="red apple", filter={"rank": 10})] == ["k2"]
        assert indexed.search(("q", "b"), query="red apple") == []

    def test_a_new_value_is_found_and_the_old_one_is_not(self, indexed: BaseStore) -> None:
        _fill(indexed)
        indexed.put(NS, "food", {"text": "plays the cello"})
        found = indexed.search(NS, query="plays the cello")
        assert found[0].key == "food"
        assert indexed.search(NS, query="vegetarian food")[0].value != {"text": "plays the cello"}

    def test_a_field_that_went_is_not_searched_any_more(self, indexed: BaseStore) -> None:
        indexed.put(NS, "k", {"text": "blue whale", "tags": ["vegetarian food"]})
        indexed.put(NS, "other", {"text": "vegetarian cooking"})
        assert indexed.search(NS, query="vegetarian food")[0].key == "k"
        indexed.put(NS, "k", {"text": "blue whale"})
        assert indexed.search(NS, query="vegetarian food")[0].key == "other"

    def test_index_false_is_not_found_by_a_query(self, indexed: BaseStore) -> None:
        _fill(indexed)
        indexed.put(NS, "secret", {"text": "vegetarian food"}, index=False)
        assert "secret" not in [item.key for item in indexed.search(NS, query="vegetarian food", limit=3)]
        assert indexed.get(NS, "secret") is not None

    def test_index_false_takes_an_older_index_away(self, indexed: BaseStore) -> None:
        _fill(indexed)
        indexed.put(NS, "food", {"text": "vegetarian food"}, index=False)
        found = indexed.search(NS, query="vegetarian food", limit=2)
        assert "food" not in [item.key for item in found]

    def test_the_fields_of_one_put(self, indexed: BaseStore) -> None:
        indexed.put(NS, "k", {"text": "blue whale", "note": {"body": "vegetarian food"}}, index=["note.body"])
        indexed.put(NS, "other", {"text": "vegetarian cooking"})
        assert indexed.search(NS, query="vegetarian food")[0].key == "k"
        indexed.put(NS, "third", {"text": "blue dolphin"})
        assert indexed.search(NS, query="blue whale")[0].key == "third"

    def test_the_configured_fields_count(self, indexed: BaseStore) -> None:
        indexed.put(NS, "k", {"text": "blue whale", "elsewhere": "vegetarian food"})
        indexed.put(NS, "other", {"text": "vegetarian cooking"})
        assert indexed.search(NS, query="vegetarian food")[0].key == "other"

    def test_what_was_deleted_is_not_found(self, indexed: BaseStore) -> None:
        _fill(indexed)
        indexed.delete(NS, "food")
        found = indexed.search(NS, query="vegetarian food")
        assert found
        assert "food" not in [item.key for item in found]

    def test_a_query_may_be_any_text(self, indexed: BaseStore) -> None:
        _fill(indexed)
        for query in ("!!!", "a AND (b", "it's \\ '; DROP TABLE x", "用户", "word " * 5_000, "nul \x00 inside"):
            assert indexed.search(NS, query=query)

    # -- namespaces --------------------------------------------------------------------------------------------------

    def test_list_namespaces(self, store: BaseStore) -> None:
        for namespace in [
            ("a", "b", "c"),
            ("a", "b", "d", "e"),
            ("a", "b", "d", "i"),
            ("a", "b", "f"),
            ("a", "c", "f"),
            ("ab",),
        ]:
            store.put(namespace, "k", {"v": 1})
        assert len(store.list_namespaces()) == 6
        assert store.list_namespaces(prefix=("a", "b"), max_depth=3) == [
            ("a", "b", "c"),
            ("a", "b", "d"),
            ("a", "b", "f"),
        ]
        assert store.list_namespaces(max_depth=1) == [("a",), ("ab",)]
        assert store.list_namespaces(suffix=("f",)) == [("a", "b", "f"), ("a", "c", "f")]
        assert store.list_namespaces(prefix=("a", "*", "f")) == [("a", "b", "f"), ("a", "c", "f")]
        assert store.list_namespaces(suffix=("d", "*")) == [("a", "b", "d", "e"), ("a", "b", "d", "i")]
        assert store.list_namespaces(prefix=("a", "b"), suffix=("f",)) == [("a", "b", "f")]
        assert store.list_namespaces(prefix=("a", "b", "c", "d")) == []
        assert store.list_namespaces(limit=2) == [("a", "b", "c"), ("a", "b", "d", "e")]
        assert store.list_namespaces(limit=2, offset=4) == [("a", "c", "f"), ("ab",)]

    def test_namespaces_come_in_the_order_of_their_labels(self, store: BaseStore) -> None:
        names = [("a",), ("a", "b"), ("a-b",), ("a b",), ("B",), ("é",), ("b",)]
        for namespace in names:
            store.put(namespace, "k", {"v": 1})
        assert store.list_namespaces() == sorted(names)

    def test_a_namespace_without_items_is_none(self, store: BaseStore) -> None:
        store.put(("kept",), "k", {"v": 1})
        store.put(("gone",), "k", {"v": 1})
        store.delete(("gone",), "k")
        store.get(("asked",), "k")
        assert store.list_namespaces() == [("kept",)]

    def test_conditions_in_a_batch(self, store: BaseStore) -> None:
        store.put(("a", "x"), "k", {"v": 1})
        store.put(("b", "x"), "k", {"v": 1})
        conditions = (MatchCondition("prefix", ("a",)), MatchCondition("suffix", ("x",)))
        assert store.batch([ListNamespacesOp(match_conditions=conditions)]) == [[("a", "x")]]

    # -- time to live ------------------------------------------------------------------------------------------------

    def test_what_expired_is_gone_unswept(self, expiring: BaseStore) -> None:
        expiring.put(NS, "short", {"text": "red fox"}, ttl=_minutes(0.1))
        expiring.put((*NS, "only"), "short", {"text": "red fox"}, ttl=_minutes(0.1))
        expiring.put(NS, "long", {"text": "red dog"}, ttl=60)
        expiring.put(NS, "ever", {"text": "red cat"})
        time.sleep(0.25)
        assert expiring.get(NS, "short", refresh_ttl=True) is None
        assert expiring.get(NS, "short", refresh_ttl=False) is None
        assert {item.key for item in expiring.search(NS)} == {"long", "ever"}
        assert expiring.list_namespaces() == [NS]
        if self.has_query:
            assert {item.key for item in expiring.search(NS, query="red fox", limit=2)} == {"long", "ever"}
        assert expiring.get(NS, "short", refresh_ttl=True) is None

    def test_the_limit_counts_what_is_live(self, expiring: BaseStore) -> None:
        for n in range(3):
            expiring.put(NS, f"live{n}", {"text": f"note {n}"})
        for n in range(3):
            expiring.put(NS, f"dead{n}", {"text": f"note {n}"}, ttl=_minutes(0.05))
        time.sleep(0.15)
        assert len(expiring.search(NS, limit=3)) == 3
        if self.has_query:
            assert len(expiring.search(NS, query="note 1", limit=3)) == 3

    def test_a_read_extends_the_time(self, expiring: BaseStore) -> None:
        started = time.monotonic()
        for key in ("got", "searched", "left"):
            expiring.put((*NS, key), key, {"v": 1}, ttl=_minutes(0.45))
        time.sleep(0.25)
        expiring.get((*NS, "got"), "got", refresh_ttl=True)
        expiring.search((*NS, "searched"), refresh_ttl=True)
        expiring.get((*NS, "left"), "left", refresh_ttl=False)
        read = time.monotonic() - started
        time.sleep(0.25)
        found = [expiring.get((*NS, key), key, refresh_ttl=False) for key in ("got", "searched", "left")]
        if read > 0.4 or time.monotonic() - started > read + 0.4:
            pytest.skip("this machine is too busy to tell")
        assert [item is not None for item in found] == [True, True, False]

    def test_a_new_put_takes_the_time_away(self, expiring: BaseStore) -> None:
        expiring.put(NS, "k", {"v": 1}, ttl=_minutes(0.1))
        expiring.put(NS, "k", {"v": 2}, ttl=None)
        expiring.put(NS, "short", {"v": 2}, ttl=_minutes(0.1))
        time.sleep(0.2)
        assert expiring.get(NS, "k") is not None
        assert expiring.get(NS, "short") is None

    # -- both worlds -------------------------------------------------------------------------------------------------

    def test_the_awaited_methods(self, store: BaseStore) -> None:
        async def body() -> None:
            await store.aput(NS, "k", {"text": "red fox", "rank": 10})
            await store.aput((*NS, "deep"), "k2", {"text": "blue whale"})
            found = await store.aget(NS, "k")
            assert found is not None
            assert found.value == {"text": "red fox", "rank": 10}
            assert [item.key for item in await store.asearch(NS, filter={"rank": 10})] == ["k"]
            if self.has_query:
                assert [item.key for item in await store.asearch(NS, query="blue whale")] == ["k2", "k"]
            assert await store.alist_namespaces(max_depth=2) == [NS]
            assert (await store.abatch([GetOp(NS, "k"), GetOp(NS, "none")]))[1] is None
            await store.adelete(NS, "k")
            assert await store.aget(NS, "k") is None

        asyncio.run(body())

    def test_the_blocking_methods_in_a_running_loop(self, store: BaseStore) -> None:
        async def body() -> None:
            store.put(NS, "k", {"v": 1})
            await store.aput(NS, "k2", {"v": 2})
            assert store.get(NS, "k2") is not None
            assert await store.aget(NS, "k") is not None
            assert len(store.search(NS)) == 2

        asyncio.run(asyncio.wait_for(body(), 30))

    def test_many_at_once(self, store: BaseStore) -> None:
        async def body() -> None:
            await asyncio.gather(*(store.aput(NS, f"k{n}", {"v": n}) for n in range(60)))
            await asyncio.gather(*(store.aput(NS, "same", {"v": n}) for n in range(20)))
            found = await asyncio.gather(*(store.aget(NS, f"k{n}") for n in range(60)))
            assert [item.value["v"] for item in found if item] == list(range(60))
            assert len(await store.asearch(NS, limit=1000)) == 61

        asyncio.run(body())

    def test_many_threads(self, store: BaseStore) -> None:
        def work(n: int) -> None:
            store.batch([PutOp(NS, f"k{m}", {"v": n}) for m in (range(8) if n % 2 else reversed(range(8)))])
            store.get(NS, "k1")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(24)))
        assert len(store.search(NS, limit=100)) == 8


def _minutes(seconds: float) -> float:
    return seconds / 60


def _got(store: BaseStore, key: str, namespace: tuple[str, ...] = NS) -> Any:
    item = store.get(namespace, key)
    assert item is not None
    return item


def _fill(store: BaseStore, extra: Sequence[tuple[str, str]] = ()) -> None:
    for key, text in [("food", "Ada eats vegetarian food"), ("dog", "the dog is called Rex"), *extra]:
        store.put(NS, key, {"text": text})
    for key, text in [("job", "she works as a nurse"), ("town", "they moved to Porto")]:
        store.put(NS, key, {"text": text})
