"""`pgmem forget`, `prune`, `expire`, and the upkeep of `pgmem worker`: what they say, what they do, how they end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgmem_core import BundledEmbedder, PgMem, cli
from pgmem_core.cli import upkeep
from tests.test_cli import Ran, ended, started

OLD = datetime.now(UTC) - timedelta(days=100)


@pytest.fixture
def pgmem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dsn: str) -> Any:
    """Run a command on the test's database, in this process."""
    for name in ("PGMEM_EMBEDDER", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGMEM_DSN", dsn)

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = cli.run(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def mem(dsn: str) -> Iterator[PgMem]:
    """Two users, one of whom has an old session."""
    client = PgMem(dsn, embedder=BundledEmbedder())
    client.setup()
    old = client.session.create("old", user_id="ada")
    old.add_turns([{"role": "user", "content": f"My bees number {n}", "created_at": OLD} for n in range(3)])
    old.observe("keeps", "bees", evidence=old.turns(1))
    old.observe("mood", "glad", ttl_seconds=3600)
    old.end()
    client.session.create("new", user_id="bob").add_turn("user", "My cats are two")
    yield client
    client.close()


def query(dsn: str, sql: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        done = conn.execute(sql)
        return done.fetchall() if done.description is not None else []


# -- forget ----------------------------------------------------------------------------------------------------


def test_forget_asks_first(pgmem: Any, mem: PgMem, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = pgmem("forget", "--user", "ada")
    assert (refused.code, refused.out) == (2, "")
    assert "--yes" in refused.err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", _answer(False))
    assert pgmem("forget", "--user", "ada").code == 130
    assert len(mem.get_all(user_id="ada", kind="turn")) == 3
    monkeypatch.setattr("typer.confirm", _answer(True))
    assert pgmem("forget", "--user", "ada").code == 0
    assert mem.get_all(user_id="ada") == []
    assert len(mem.get_all(user_id="bob")) == 1


def _answer(yes: bool) -> Any:
    def confirm(text: str, *, abort: bool, err: bool) -> bool:
        import typer

        assert "'ada'" in text
        assert (abort, err) == (True, True)
        if not yes:
            raise typer.Abort
        return True

    return confirm


def test_forget_reports_what_went(pgmem: Any, mem: PgMem) -> None:
    ran = pgmem("forget", "--user-id", "ada", "--yes")
    assert ran.code == 0, ran.err
    assert "3 turns" in ran.out
    assert "2 facts" in ran.out
    assert "recorded" in ran.out
    assert "0 " not in ran.out.split("recorded")[0].replace("erased    ", "")
    again = pgmem("forget", "--user-id", "ada", "--yes")
    assert (again.code, "nothing" in again.out) == (0, True)


@pytest.mark.parametrize(
    ("option", "kind"), [("--session", "sessions"), ("--subject", "facts"), ("--turn", "turns"), ("--user", "turns")]
)
def test_forget_each_kind_as_json(pgmem: Any, mem: PgMem, option: str, kind: str) -> None:
    turn = mem.session.get("old").turns(1)[0].id
    target = {"--session": "old", "--subject": "user:ada", "--turn": turn, "--user": "ada"}[option]
    ran = pgmem("forget", option, target, "--yes", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["rows"][kind] > 0
    assert ran.document["target"] == option.removeprefix("--")
    assert json.loads(ran.out)["group_id"] == "default"
    assert len(mem.get_all(user_id="bob")) == 1


def test_forget_refuses_what_names_nothing_or_two(pgmem: Any, mem: PgMem) -> None:
    for arguments in (
        (), ("--user", "ada", "--session", "old"), ("--user", ""), ("--user", " "), ("--subject", "ada"),
        ("--subject", ":ada"), ("--turn", "run-17"), ("--user", "ada", "--group", ""),
    ):  # fmt: skip
        ran = pgmem("forget", *arguments, "--yes")
        assert (ran.code, ran.out) == (2, ""), arguments
        assert "error:" in ran.err
    assert len(mem.get_all(user_id="ada", kind="turn")) == 3
    assert pgmem("forget", "--user", "ada", "--group", "default", "--yes").code == 0
    assert mem.get_all(user_id="ada") == []


# -- prune and expire ------------------------------------------------------------------------------------------


def test_prune_and_expire(pgmem: Any, mem: PgMem, dsn: str) -> None:
    ran = pgmem("prune", "--older-than-days", "30")
    assert (ran.code, "2 turns" in ran.out) == (0, True), ran.err
    assert pgmem("prune", "--older-than-days", "30").out.endswith("nothing to do\n")
    ran = pgmem("prune", "--older-than-days", "30", "--drop-evidence", "--json")
    assert (ran.document["turns"], ran.document["evidence_unlinked"]) == (1, 1)
    assert [fact.value for fact in mem.facts(user_id="ada")] == ["bees", "glad"]
    assert pgmem("expire", "--json").document["facts"] == 0
    query(dsn, "UPDATE pgmem.facts SET expires_at = now() WHERE expires_at IS NOT NULL")
    ran = pgmem("expire")
    assert (ran.code, "1 facts" in ran.out) == (0, True)
    assert [fact.value for fact in mem.facts(user_id="ada")] == ["bees"]
    assert pgmem("prune").code == 2
    assert pgmem("prune", "--older-than-days", "-1").code == 2


# -- the worker ------------------------------------------------------------------------------------------------


def test_a_worker_prunes_and_expires(pgmem: Any, mem: PgMem, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query(dsn, "UPDATE pgmem.facts SET expires_at = now() WHERE expires_at IS NOT NULL")
    monkeypatch.setenv("PGMEM_PRUNE_AFTER_DAYS", "30")
    ran = pgmem("worker", "--once", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["upkeep"]["pruned"]["turns"] == 2
    assert ran.document["upkeep"]["expired"]["facts"] == 1
    assert "upkeep: expired 1 facts; pruned 2 turns" in ran.err
    assert pgmem("worker", "--once", "--json").document["upkeep"] is None  # it is not time yet


def test_a_running_worker_keeps_to_the_schedule(mem: PgMem, dsn: str) -> None:
    worker = started("worker", "--dsn", dsn, "--json", PGMEM_PRUNE_AFTER_DAYS="30", PGMEM_UPKEEP_INTERVAL_SECONDS="0.2")
    try:
        deadline = time.monotonic() + 60
        for _ in range(2):  # what ages while it runs goes in a later round
            while time.monotonic() < deadline and len(_turns(dsn)) > 2:
                time.sleep(0.05)
            assert len(_turns(dsn)) == 2
            mem.session.open("later", user_id="ada").add_turn("user", "old news", created_at=OLD)
            mem.session.get("later").end()
    finally:
        worker.send_signal(signal.SIGTERM)
        ran = ended(worker)
    assert ran.code == 0, ran.err


def _turns(dsn: str) -> list[Any]:
    return query(dsn, "SELECT id FROM pgmem.records WHERE seq IS NOT NULL")


def test_a_failing_round_is_told_kept_and_shown_by_the_doctor(pgmem: Any, mem: PgMem, dsn: str) -> None:
    assert not any("upkeep" in one["what"] for one in pgmem("doctor", "--json").document["findings"])
    query(dsn, "ALTER TABLE pgmem.injections RENAME TO injections_away")
    ran = pgmem("worker", "--once", "--json")
    query(dsn, "ALTER TABLE pgmem.injections_away RENAME TO injections")
    assert ran.code == 1
    assert "injections" in ran.document["upkeep_error"]
    seen = pgmem("doctor", "--json")
    assert seen.code == 1
    [finding] = [one for one in seen.document["findings"] if "upkeep" in one["what"]]
    assert finding["level"] == "problem"
    query(dsn, "UPDATE pgmem.upkeep SET claimed_until = now()")  # the next try is due
    assert pgmem("worker", "--once", "--json").document["upkeep_error"] is None
    assert not any("upkeep" in one["what"] for one in pgmem("doctor", "--json").document["findings"])
    assert "upkeep    last done" in pgmem("doctor").out


def test_a_worker_asks_seldom_whether_it_is_time(mem: PgMem, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def round_(rt: object, *, stopped: object) -> Iterator[None]:
        asked.append(0.0)
        yield from ()

    monkeypatch.setattr("pgmem_core.lifecycle.schedule.round_", round_)
    rounds = upkeep.Rounds(mem, lambda: False)
    for _ in range(10):
        rounds.look()
    assert len(asked) == 1
