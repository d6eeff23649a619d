"""The command `pgmem` on a real Postgres: what it prints, what it stores, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgmem_core import PgMem, cli
from pgmem_core.cli import output
from pgmem_core.database import health
from pgmem_core.database.health import Health, ModelHealth, Server

ROOT = Path(__file__).resolve().parent.parent


class Ran:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def pgmem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command in this process."""
    for name in ("PGMEM_DSN", "PGMEM_EMBEDDER", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = cli.run(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Ran(code, captured.out, captured.err)

    return run


def started(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PGMEM_")}
    return subprocess.Popen(
        [sys.executable, "-m", "pgmem_core", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd or ROOT,
        env={**env, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def ended(process: subprocess.Popen[str], timeout: float = 60) -> Ran:
    out, err = process.communicate(timeout=timeout)
    return Ran(process.returncode, out, err)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Two sessions of one user, with all that a turn can hold."""
    file = tmp_path / "chats.jsonl"
    call = {"id": "c1", "name": "book", "args": {"city": "Porto"}}
    lines: list[dict[str, Any]] = [
        {"type": "session", "session_id": "s1", "user_id": "ada", "title": "Moving",
         "created_at": "2026-01-05T10:00:00Z"},
        {"type": "turn", "session_id": "s1", "id": "t1", "role": "user", "name": "Ada",
         "content": "I am moving to Porto.", "created_at": "2026-01-05T10:00:00Z", "metadata": {"mood": "glad"}},
        {"type": "turn", "session_id": "s1", "id": "t2", "role": "assistant", "tool_calls": [call],
         "created_at": "2026-01-05T10:00:05Z"},
        {"type": "turn", "session_id": "s1", "id": "t3", "role": "tool", "tool_call_id": "c1", "content": "booked",
         "created_at": "2026-01-05T10:00:06Z"},
        {"type": "turn", "session_id": "s1", "id": "t4", "role": "system", "content": "Be brief."},
        {"type": "session", "session_id": "s2", "user_id": "ada"},
        {"type": "turn", "session_id": "s2", "id": "u1", "role": "user", "content": "My sister keeps bees in Braga."},
        {"type": "turn", "session_id": "s2", "id": "u2", "role": "assistant", "content": "How many hives has she?"},
    ]  # fmt: skip
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def many(tmp_path: Path, sessions: int = 24, turns: int = 60) -> Path:
    """A file that takes seconds to import."""
    file = tmp_path / "many.jsonl"
    with file.open("w", encoding="utf-8") as out:
        for s in range(sessions):
            for t in range(turns):
                words = " ".join(f"word{(s * 31 + t * 7 + w) % 997}" for w in range(20))
                line = {"type": "turn", "session_id": f"s{s}", "id": f"t{s}-{t}", "role": ("user", "assistant")[t % 2],
                        "content": f"Number {t} of {s}: {words}"}  # fmt: skip
                out.write(json.dumps(line) + "\n")
    return file


@pytest.fixture
def query(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield lambda sql: conn.execute(sql).fetchall()


def assert_whole(query: Any, *, sessions: int, turns: int) -> None:
    """Every session has all its turns, in the file's order and without a gap, each with its vector and words."""
    rows = query(
        "SELECT session_id, count(*), min(seq), max(seq), bool_and(model IS NOT NULL),"
        " array_agg(split_part(content, ' ', 2)::int ORDER BY seq) FROM pgmem.records GROUP BY session_id"
    )
    assert len(rows) == sessions
    for session, count, first, last, embedded, order in rows:
        assert (count, first, last, embedded) == (turns, 1, turns, True), session
        assert order == list(range(turns)), session
    [(dirty,)] = query("SELECT count(*) FROM pgmem.sessions WHERE dirty OR embedded_through < last_seq")
    assert dirty == 0
    [(without,)] = query(
        "SELECT count(*) FROM pgmem.records r WHERE NOT EXISTS (SELECT FROM pgmem.postings p"
        " WHERE p.tenant_id = r.tenant_id AND p.user_key = r.user_key AND p.record_id = r.id)"
    )
    assert without == 0


# -- the frame -------------------------------------------------------------------------------------------------


def test_help_is_quick_and_brings_nothing_heavy() -> None:
    code = (
        "import sys; from pgmem_core.cli import run; assert run(['--help']) == 0;"
        "print([m for m in ('sqlalchemy', 'psycopg', 'numpy', 'tiktoken', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.rstrip().endswith("[]")
    for command in ("demo", "init", "import", "search", "context", "worker", "doctor"):
        assert re.search(rf"\b{command}\b", done.stdout)
    assert "demo-step" not in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("serch", "x"),
        ("search", "x"),
        ("search", "x", "--user-id", "u", "--k", "0"),
        ("search", "x", "--user-id", "u", "--floor", "high"),
        ("init", "--dsn", "postgresql://h/d", "--path", "p"),
        ("init", "--dsn", "mysql://h/d"),
        ("search", "x", "--user-id", "u", "--path", "/nonexistent/memory"),
    ],
)
def test_a_wrong_command_line_is_told_and_exits_with_2(pgmem: Any, arguments: tuple[str, ...]) -> None:
    ran = pgmem(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert "rror" in ran.err


@pytest.mark.parametrize("command", [("init",), ("doctor",), ("worker", "--once"), ("search", "q", "--user-id", "u")])
def test_d14_an_unreachable_server_exits_with_3_and_hides_the_password(pgmem: Any, command: tuple[str, ...]) -> None:
    ran = pgmem(*command, "--dsn", "postgresql://me:s3cr3t@127.0.0.1:1/app", "--json")
    assert ran.code == 3
    assert ran.out == ""
    assert "s3cr3t" not in ran.err
    assert "127.0.0.1:1/app" in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_debug_shows_the_traceback_without_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["init", "--dsn", "postgresql://me:s3cr3t@127.0.0.1:1/app", "--debug"]) == 3
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "s3cr3t" not in err


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("at postgresql://u:p@ss@h:5/d end", "at postgresql://u:***@h:5/d end"),
        ("host=h password=pw user=u", "host=h password=*** user=u"),
        ("host=h password='a b' user=u", "host=h password=*** user=u"),
        ("nothing secret: a@b", "nothing secret: a@b"),
    ],
)
def test_passwords_are_masked(given: str, wanted: str) -> None:
    assert output.mask(given) == wanted


def test_what_others_wrote_cannot_drive_the_terminal() -> None:
    assert output.shown("a\x1b[31mb\u202ec\x00\n\td\r\ne") == "a�[31mb�c�\n\td\ne"


def test_a_reader_that_leaves_is_no_error(pgmem: Any, dsn: str, chats: Path) -> None:
    pgmem("import", str(chats), "--dsn", dsn)
    process = started("doctor", "--dsn", dsn)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) in (0, 1)


# -- init ------------------------------------------------------------------------------------------------------


def test_init_sets_up_and_says_what(pgmem: Any, dsn: str) -> None:
    first = pgmem("init", "--dsn", dsn, "--json")
    assert first.code == 0
    assert first.document["schema_version_before"] == 0
    assert first.document["schema_version"] >= 3
    assert first.document["pgvector"].startswith("0.")
    assert first.document["embedder"] == {"model": "wordllama-l2-supercat-256", "dimensions": 256, "id": "m1"}
    again = pgmem("init", "--dsn", dsn)
    assert again.code == 0
    assert "up to date" in again.out
    assert "wordllama-l2-supercat-256" in again.out
    assert "\x1b" not in again.out


def test_the_dsn_may_come_from_the_environment(pgmem: Any, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGMEM_DSN", dsn)
    assert pgmem("init", "--json").document["schema_version_before"] == 0
    assert pgmem("doctor", "--json").document["healthy"] is True


def test_without_a_place_the_memory_is_in_the_working_folder(tmp_path: Path, chats: Path) -> None:
    ran = ended(started("import", str(chats), cwd=tmp_path))
    assert ran.code == 0, ran.err
    assert "memory: .pgmem (embedded Postgres" in ran.out
    assert (tmp_path / ".pgmem" / "pgdata").is_dir()
    found = ended(started("search", "bees", "--user-id", "ada", "--json", cwd=tmp_path))
    assert found.document["results"][0]["content"] == "My sister keeps bees in Braga."


# -- import ----------------------------------------------------------------------------------------------------


def test_import_keeps_everything_and_adds_nothing_twice(pgmem: Any, dsn: str, chats: Path) -> None:
    first = pgmem("import", str(chats), "--dsn", dsn, "--json").document
    assert (first["sessions"], first["sessions_new"], first["turns_new"], first["turns_known"]) == (2, 2, 6, 0)
    assert first["embedded"] == 4  # not the tool call without words, not the system turn
    assert first["problems"] == []
    again = pgmem("import", str(chats), "--dsn", dsn, "--json").document
    assert (again["sessions_new"], again["turns_new"], again["turns_known"], again["embedded"]) == (0, 0, 6, 0)
    with PgMem(dsn) as mem:
        session = mem.session.get("s1", user_id="ada")
        told, called, result, system = session.turns()
        assert (told.name, told.content, told.metadata) == ("Ada", "I am moving to Porto.", {"mood": "glad"})
        assert told.created_at.isoformat() == "2026-01-05T10:00:00+00:00"
        assert called.tool_calls == [{"id": "c1", "name": "book", "args": {"city": "Porto"}}]
        assert (result.role, result.tool_call_id, system.role) == ("tool", "c1", "system")
        info = session.info()
        assert info.metadata == {"title": "Moving"}
        assert info.created_at.isoformat() == "2026-01-05T10:00:00+00:00"
        assert info.embedded_through == 4


def test_import_makes_the_same_vectors_as_the_worker(pgmem: Any, dsn: str, chats: Path, query: Any) -> None:
    pgmem("import", str(chats), "--dsn", dsn)
    by_import = dict(query("SELECT id, embedding::text FROM pgmem.records"))
    query("UPDATE pgmem.records SET model = NULL, embedding = NULL RETURNING 1")
    query("UPDATE pgmem.sessions SET embedded_through = 0, dirty = true RETURNING 1")
    assert pgmem("worker", "--once", "--dsn", dsn, "--json").document["turns"] == 4
    by_worker = dict(query("SELECT id, embedding::text FROM pgmem.records"))
    assert {k for k, v in by_import.items() if v} == {k for k, v in by_worker.items() if v}
    for turn, vector in by_import.items():
        if vector is not None:
            assert json.loads(vector) == pytest.approx(json.loads(by_worker[turn]), abs=1e-5)


def test_import_goes_on_with_a_file_that_has_grown(pgmem: Any, dsn: str, chats: Path) -> None:
    pgmem("import", str(chats), "--dsn", dsn)
    more = {"type": "turn", "session_id": "s2", "id": "u3", "role": "user", "content": "Eleven hives."}
    with chats.open("a", encoding="utf-8") as out:
        out.write(json.dumps(more) + "\n")
    ran = pgmem("import", str(chats), "--dsn", dsn, "--json").document
    assert (ran["turns_new"], ran["turns_known"], ran["embedded"]) == (1, 6, 1)


def test_user_group_and_prefix_are_the_callers(pgmem: Any, dsn: str, chats: Path) -> None:
    where = ("--dsn", dsn, "--json")
    pgmem("import", str(chats), *where)
    pgmem("import", str(chats), *where, "--user-id", "bo", "--group-id", "acme")
    other = pgmem("import", str(chats), *where, "--user-id", "bo")
    assert other.code == 1  # the sessions are ada's
    assert "belongs to another user" in other.err
    assert pgmem("import", str(chats), *where, "--user-id", "bo", "--session-prefix", "bo/").document["turns_new"] == 6
    with PgMem(dsn) as mem:
        assert {one.session_id for one in mem.session.list(user_id="bo")} == {"bo/s1", "bo/s2"}
        assert {one.session_id for one in mem.session.list(user_id="bo", group_id="acme")} == {"s1", "s2"}


def test_nothing_is_stored_of_a_file_that_cannot_be_read_to_its_end(pgmem: Any, dsn: str, tmp_path: Path) -> None:
    nobodys = tmp_path / "nobodys.json"
    nobodys.write_text('[{"role": "user", "content": "hello"}]', encoding="utf-8")
    strange = tmp_path / "strange.csv"
    strange.write_text("a,b\n1,2\n", encoding="utf-8")
    for file, said in ((nobodys, "--user-id"), (strange, "wanted JSON"), (tmp_path / "none.json", "does not exist")):
        ran = pgmem("import", str(file), "--dsn", dsn)
        assert ran.code == 2
        assert said in ran.err
        assert ran.out == ""
    assert pgmem("import", str(nobodys), "--dsn", dsn, "--user-id", "u", "--json").document["turns_new"] == 1


def test_what_is_left_out_is_counted_and_named(pgmem: Any, dsn: str, chats: Path) -> None:
    with chats.open("a", encoding="utf-8") as out:
        out.write("{broken\n")
        out.write('{"type": "turn", "session_id": "s2", "id": "u9", "role": "user", "content": "   "}\n')
    ran = pgmem("import", str(chats), "--dsn", dsn)
    assert ran.code == 0
    assert "problems  2 left out" in ran.out
    assert "line 9" in ran.out
    assert "u9" in ran.out


def test_long_sessions_keep_their_order(pgmem: Any, dsn: str, tmp_path: Path, query: Any) -> None:
    ran = pgmem("import", str(many(tmp_path, 2, 700)), "--user-id", "u", "--dsn", dsn, "--json").document
    assert (ran["turns_new"], ran["embedded"]) == (1400, 1400)
    assert_whole(query, sessions=2, turns=700)


def test_import_survives_sigkill(dsn: str, tmp_path: Path, query: Any) -> None:
    file = str(many(tmp_path))
    process = started("import", file, "--user-id", "u", "--dsn", dsn)
    _wait_for_turns(query, 300)
    process.kill()
    ended(process)
    [(before,)] = query("SELECT count(*) FROM pgmem.records")
    assert 300 <= before < 1440
    ran = ended(started("import", file, "--user-id", "u", "--dsn", dsn, "--json"))
    assert ran.code == 0, ran.err
    [(now,)] = query("SELECT count(*) FROM pgmem.records")
    assert now == 1440
    assert ran.document["turns_known"] >= before
    assert ran.document["turns_new"] + ran.document["turns_known"] == 1440
    assert_whole(query, sessions=24, turns=60)


def test_ctrl_c_ends_an_import_between_batches(dsn: str, tmp_path: Path, query: Any) -> None:
    file = str(many(tmp_path))
    process = started("import", file, "--user-id", "u", "--dsn", dsn, "--json")
    _wait_for_turns(query, 300)
    process.send_signal(signal.SIGINT)
    ran = ended(process)
    assert ran.code == 130, ran.err
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert "Run the same command again" in ran.err
    [(before, sessions)] = query("SELECT count(*), count(DISTINCT session_id) FROM pgmem.records")
    assert before < 1440
    assert before == 60 * sessions  # whole batches of whole sessions
    again = ended(started("import", file, "--user-id", "u", "--dsn", dsn, "--json"))
    assert again.document["turns_new"] == 1440 - before
    assert_whole(query, sessions=24, turns=60)


def _wait_for_turns(query: Any, most: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if query("SELECT count(*) FROM pgmem.records")[0][0] >= most:
                return
        except psycopg.errors.UndefinedTable:
            pass
        time.sleep(0.01)
    raise AssertionError("the import stored nothing")


# -- search, context -------------------------------------------------------------------------------------------


def test_search_tells_where_a_memory_is_from_and_why(pgmem: Any, dsn: str, chats: Path) -> None:
    pgmem("import", str(chats), "--dsn", dsn)
    found = pgmem("search", "who keeps bees?", "--user-id", "ada", "--dsn", dsn, "--k", "2", "--json").document
    best = found["results"][0]
    assert (best["session_id"], best["role"]) == ("s2", "user")
    assert best["parts"]["bm25"] > 0
    assert "words" in best["why"]
    assert len(found["results"]) == 2
    shown = pgmem("search", "Porto", "--user-id", "ada", "--dsn", dsn)
    assert "2026-01-05" in shown.out
    assert "Ada: I am moving to" in shown.out
    assert "meaning" in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines()[1:])
    assert pgmem("search", "bees", "--user-id", "nobody", "--dsn", dsn, "--json").document["results"] == []
    assert "nothing for user 'nobody'" in pgmem("search", "bees", "--user-id", "nobody", "--dsn", dsn).out


def test_search_with_a_floor_shows_nothing_that_has_nothing_to_do_with_it(pgmem: Any, dsn: str, chats: Path) -> None:
    pgmem("import", str(chats), "--dsn", dsn)
    asked = ("search", "quarterly revenue of the shipping division", "--user-id", "ada", "--dsn", dsn, "--json")
    assert pgmem(*asked).document["results"] != []
    assert pgmem(*asked, "--floor", "default").document["results"] == []
    assert pgmem(*asked, "--floor", "0.99").document["results"] == []


def test_context_shows_the_prompt_and_writes_nothing(pgmem: Any, dsn: str, chats: Path, query: Any) -> None:
    pgmem("import", str(chats), "--dsn", dsn)
    before = query("SELECT (SELECT count(*) FROM pgmem.sessions), (SELECT count(*) FROM pgmem.records)")
    asked = ("context", "Where do the bees live?", "--user-id", "ada", "--dsn", dsn, "--floor", "none")
    document = pgmem(*asked, "--json").document
    assert document["messages"][-1] == {"role": "user", "content": "Where do the bees live?"}
    assert "Braga" in json.dumps(document["messages"])
    assert document["sections"]["episodic"]["token_count"] > 0
    assert re.fullmatch(r"[0-9a-f]{64}", document["prefix_hash"])
    assert document["timings"]["total_ms"] > 0
    shown = pgmem(*asked, "--session", "s1")
    assert shown.code == 0
    assert "I am moving to Porto." in shown.out  # the window of the session
    assert "prefix hash" in shown.out
    assert query("SELECT (SELECT count(*) FROM pgmem.sessions), (SELECT count(*) FROM pgmem.records)") == before


def test_context_of_a_session_that_is_not_there_or_anothers(pgmem: Any, dsn: str, chats: Path) -> None:
    pgmem("import", str(chats), "--dsn", dsn)
    for arguments in (("--session", "s9", "--user-id", "ada"), ("--session", "s1", "--user-id", "bo")):
        ran = pgmem("context", "q", "--dsn", dsn, *arguments)
        assert ran.code == 1
        assert "no session" in ran.err


# -- worker ----------------------------------------------------------------------------------------------------


def test_worker_once_drains(pgmem: Any, dsn: str) -> None:
    mem = PgMem(dsn)
    mem.session.open("s", user_id="u").add_turn("user", "The kettle is blue.")
    mem.close()
    ran = pgmem("worker", "--once", "--dsn", dsn, "--json")
    assert ran.code == 0
    assert ran.document["turns"] == 1
    assert ran.document["sessions_waiting"] == 0
    assert "0 turns of 0 sessions wait" in pgmem("worker", "--once", "--dsn", dsn).out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_works_until_it_is_asked_to_stop(dsn: str, query: Any, number: int) -> None:
    mem = PgMem(dsn)
    mem.setup()
    process = started("worker", "--dsn", dsn, "--json", PGMEM_WORKER_POLL_SECONDS="0.05")
    mem.session.open("s", user_id="u").add_turn("user", "The kettle is blue.")
    mem.close()
    deadline = time.monotonic() + 30
    while query("SELECT count(*) FROM pgmem.records WHERE model IS NOT NULL") == [(0,)]:
        assert time.monotonic() < deadline, "nothing was embedded"
        time.sleep(0.02)
    process.send_signal(number)
    ran = ended(process)
    assert ran.code == 0, ran.err
    assert ran.document["turns"] == 1
    assert "embedded 1 turns" in ran.err


def test_a_worker_that_stops_gives_back_what_it_had_not_begun(dsn: str, query: Any) -> None:
    from pgmem_core.effects import run
    from pgmem_core.formation import worker

    mem = PgMem(dsn)
    for name in "abcd":
        mem.session.open(name, user_id="u").add_turn("user", f"The {name} kettle is blue.")
    asked = iter([False, True])
    report = run(worker.form(mem._rt, stopped=lambda: next(asked)), mem._rt.database)
    mem.close()
    assert report.sessions == 1
    assert query("SELECT count(*), count(claimed_until) FROM pgmem.sessions WHERE dirty") == [(3, 0)]


# -- doctor ----------------------------------------------------------------------------------------------------


def test_doctor_of_a_healthy_database(pgmem: Any, dsn: str, chats: Path) -> None:
    pgmem("import", str(chats), "--dsn", dsn)
    ran = pgmem("doctor", "--dsn", dsn)
    assert ran.code == 0
    assert "nothing is wrong" in ran.out
    assert "index valid" in ran.out
    document = pgmem("doctor", "--dsn", dsn, "--json").document
    assert document["healthy"] is True
    assert document["server"]["encoding"] == "UTF8"
    assert document["pgvector_schema"] == "public"
    assert [(model["id"], model["rows"], model["index_valid"]) for model in document["models"]] == [("m1", 4, True)]
    assert document["memories"] == 6
    assert document["postings_bytes_per_memory"] > 0
    assert document["behind_pooler"] is False
    assert document["backlog"]["turns"] == 0


def test_doctor_of_an_empty_database_sets_nothing_up(pgmem: Any, bare_dsn: str) -> None:
    ran = pgmem("doctor", "--dsn", bare_dsn)
    assert ran.code == 1
    assert "problem: schema pgmem is missing" in ran.out
    assert "problem: pgvector is not in this database" in ran.out
    assert "do: pgmem init" in ran.out
    with psycopg.connect(bare_dsn) as conn:
        assert conn.execute("SELECT to_regnamespace('pgmem')").fetchone() == (None,)


def test_doctor_finds_indexes_that_do_not_serve(pgmem: Any, dsn: str, query: Any) -> None:
    pgmem("init", "--dsn", dsn)
    query("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'pgmem.records_hnsw_m1'::regclass RETURNING 1")
    ran = pgmem("doctor", "--dsn", dsn)
    assert ran.code == 1
    assert "REINDEX INDEX CONCURRENTLY pgmem.records_hnsw_m1;" in ran.out
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("DROP INDEX pgmem.records_hnsw_m1")
    found = pgmem("doctor", "--dsn", dsn, "--json")
    assert found.code == 1
    [problem] = [one for one in found.document["findings"] if one["level"] == "problem"]
    assert "has no index" in problem["what"]
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SET search_path = public")
        conn.execute(problem["remedy"])  # what it says to do can be done, and helps
    assert pgmem("doctor", "--dsn", dsn).code == 0


def test_doctor_finds_work_that_waits_and_work_that_fails(pgmem: Any, dsn: str, query: Any) -> None:
    mem = PgMem(dsn)
    mem.session.open("s", user_id="u").add_turn("user", "The kettle is blue.")
    mem.close()
    waiting = pgmem("doctor", "--dsn", dsn)
    assert waiting.code == 0  # to wait is no fault
    assert "hint: 1 turn(s) of 1 session(s) wait" in waiting.out
    query("UPDATE pgmem.sessions SET attempts = 3, last_error = 'EmbeddingError: no key' RETURNING 1")
    failing = pgmem("doctor", "--dsn", dsn)
    assert failing.code == 1
    assert "'s' in group 'default' failed 3 time(s): EmbeddingError: no key" in failing.out
    assert pgmem("worker", "--once", "--dsn", dsn).code == 0
    assert pgmem("doctor", "--dsn", dsn).code == 0


def test_doctor_of_a_schema_from_the_future(pgmem: Any, dsn: str, query: Any) -> None:
    pgmem("init", "--dsn", dsn)
    query("INSERT INTO pgmem.schema_migrations (version, name) VALUES (9999, 'later') RETURNING 1")
    ran = pgmem("doctor", "--dsn", dsn)
    assert ran.code == 1
    assert "9999" in ran.out
    assert "upgrade" in ran.out


def _health(**changes: Any) -> Health:
    server = Server("18.4", 180004, "UTF8", "app", "me", 1)
    plain: dict[str, Any] = {
        "server": server, "schema": "pgmem", "schema_version": 3, "newest_version": 3, "pgvector": "0.8.5",
        "pgvector_schema": "public", "behind_pooler": False, "pooler": "none",
        "models": [ModelHealth("m1", "wl", 256, "embedder", 5, "records_hnsw_m1", True, 1)],
    }  # fmt: skip
    return Health(**{**plain, **changes})


@pytest.mark.parametrize(
    ("changes", "level", "remedy"),
    [
        ({"server": Server("13.1", 130001, "UTF8", "a", "me", 1)}, "problem", "upgrade the server"),
        ({"server": Server("18.4", 180004, "LATIN1", "a", "me", 1)}, "problem", "ENCODING 'UTF8'"),
        ({"pgvector": "0.7.4"}, "problem", "ALTER EXTENSION vector UPDATE;"),
        ({"schema_version": 2}, "problem", "pgmem init"),
        ({"behind_pooler": True}, "hint", "PGMEM_POOLER=pgbouncer"),
        ({"models": []}, "hint", "pgmem init --embedder"),
        (
            {"models": [ModelHealth("m1", "big", 3072, "given", 5, None, False, 0)]},
            "problem",
            "halfvec(3072)) halfvec_cosine_ops",
        ),
    ],
)
def test_each_finding_says_what_to_do(changes: dict[str, Any], level: str, remedy: str) -> None:
    [found] = health.findings(_health(**changes))
    assert found.level == level
    assert remedy in found.remedy


def test_no_finding_where_nothing_is_wrong() -> None:
    assert health.findings(_health()) == []
    assert health.findings(_health(behind_pooler=True, pooler="pgbouncer")) == []
    huge = ModelHealth("m1", "huge", 8000, "given", 5, None, False, 0)  # more than any index holds
    assert health.findings(_health(models=[huge])) == []
