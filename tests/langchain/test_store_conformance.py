"""The conformance suite on PgMemStore, hybrid and dense, and on LangGraph's own stores, less what these are known to
fail (the table is in `pgmem_langchain.testing`)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import psycopg
import pytest

pytest.importorskip("langgraph")

from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from pgmem_core import PgMem
from pgmem_langchain.store import PgMemStore
from pgmem_langchain.testing import StoreConformance, conformance_index
from tests.fix_postgres import PostgresServer


@pytest.fixture(scope="module")
def mem(server: PostgresServer) -> Iterator[PgMem]:
    """One database for all tests: each has a tenant of its own."""
    name = f"pgmem_conformance_{os.getpid()}"
    with psycopg.connect(server.admin_dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        with PgMem(server.dsn(name)) as mem:
            yield mem
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


class TestHybrid(StoreConformance):
    has_ttl = True

    @pytest.fixture
    def store(self, mem: PgMem) -> BaseStore:
        return PgMemStore(mem, group_id=uuid.uuid4().hex, index=conformance_index())


class TestDense(StoreConformance):
    has_ttl = True

    @pytest.fixture
    def store(self, mem: PgMem) -> BaseStore:
        return PgMemStore(mem, group_id=uuid.uuid4().hex, index=conformance_index(), ranking="dense")


class TestInMemoryStore(StoreConformance):
    # What InMemoryStore fails.
    test_a_batch_is_written_whole_or_not_at_all = None  # type: ignore[assignment]
    test_a_field_that_went_is_not_searched_any_more = None  # type: ignore[assignment]
    test_a_missing_key_meets_no_condition = None  # type: ignore[assignment]
    test_a_namespace_without_items_is_none = None  # type: ignore[assignment]
    test_index_false_takes_an_older_index_away = None  # type: ignore[assignment]
    test_put_replaces_the_whole_value = None  # type: ignore[assignment]
    test_texts_compare_as_texts = None  # type: ignore[assignment]
    test_what_was_returned_is_the_callers_own = None  # type: ignore[assignment]

    @pytest.fixture
    def store(self) -> BaseStore:
        return InMemoryStore(index=conformance_index())  # type: ignore[arg-type]


@pytest.mark.skipif("PGMEM_TEST_PEERS" not in os.environ, reason="not ours: set PGMEM_TEST_PEERS=1 to run it")
class TestPostgresStore(StoreConformance):
    has_ttl = True
    # What PostgresStore fails.
    test_a_field_that_went_is_not_searched_any_more = None  # type: ignore[assignment]
    test_a_read_extends_the_time = None  # type: ignore[assignment]
    test_as_many_as_were_asked_for = None  # type: ignore[assignment]
    test_half_a_surrogate_pair_survives = None  # type: ignore[assignment]
    test_index_false_takes_an_older_index_away = None  # type: ignore[assignment]
    test_large_numbers_are_exact = None  # type: ignore[assignment]
    test_namespaces_come_in_the_order_of_their_labels = None  # type: ignore[assignment]
    test_not_a_number_survives = None  # type: ignore[assignment]
    test_nul_characters_survive = None  # type: ignore[assignment]
    test_numbers_compare_as_numbers = None  # type: ignore[assignment]

    @pytest.fixture
    def store(self, dsn: str) -> Iterator[BaseStore]:
        postgres = pytest.importorskip("langgraph.store.postgres")
        with postgres.PostgresStore.from_conn_string(
            dsn, index=conformance_index(), ttl={"omit_expired": True}
        ) as store:
            store.setup()
            yield store
