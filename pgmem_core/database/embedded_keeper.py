"""The keeper of an embedded server: starts Postgres, waits until nobody holds it, stops it.

Run as a script by `embedded.py` (`python -I -S`, standard library only: 12 ms to start, 8 MB while it waits),
so that a server ends with its last holder even if that one was killed and could tell nobody. Holders have a
shared lock on the file `holders`; the kernel drops it whatever way a process ends. The keeper blocks on the
exclusive lock, at no cost, and has it when the last holder is gone. Anybody who comes while the server
shuts down waits for the keeper to let go of it.

Arguments: lock directory, descriptor of the locked `server` file (-1: adopt a running server), descriptor of
the locked `keeper` file, pid to adopt (0: none), user id, group id (-1: as we are), then Postgres' command.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

# A fast shutdown writes a checkpoint; past this an immediate one leaves the rest to crash recovery.
_FAST_SECONDS = 60.0
_IMMEDIATE_SECONDS = 5.0
# How often the keeper of an adopted server, which is no child of its own, looks whether it still lives.
_ADOPTED_POLL_SECONDS = 0.5


def main(arguments: list[str]) -> NoReturn:
    locks, *numbers = arguments[:6]
    server_lock, keeper_lock, pid, user, group = (int(number) for number in numbers)
    command = arguments[6:]
    if os.fork():  # not the starter's child: it need not reap us, and Ctrl-C in its terminal is not for us
        os._exit(0)
    os.setsid()
    os.set_inheritable(keeper_lock, False)
    holders = os.open(os.path.join(locks, "holders"), os.O_RDWR)
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    child = not pid
    if child:
        pid = _launch(command, user, group)
        os.close(server_lock)  # from here on only Postgres and its children hold it
    try:
        signal.signal(signal.SIGTERM, _leave)
        if child:
            signal.signal(signal.SIGCHLD, lambda *_: _leave() if _reaped(pid) else None)
            if _reaped(pid):  # it failed before the handler was there
                _leave()
        _wait_for_last_holder(holders, locks, blocking=child)
    except _LeaveError:
        pass
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _stop(pid, locks, child=child)
    for part in command:
        # A socket directory outside the home is made anew at each start.
        if part.startswith("unix_socket_directories=/tmp/pgmem-"):
            with contextlib.suppress(OSError):
                os.rmdir(part.partition("=")[2])
    # In this order: who gets hold of the server next must not take us for its keeper.
    fcntl.flock(keeper_lock, fcntl.LOCK_UN)
    fcntl.flock(holders, fcntl.LOCK_UN)
    os._exit(0)


class _LeaveError(Exception):
    """Postgres ended by itself, or we were asked to end it."""


def _leave(_signal: int = 0, _frame: FrameType | None = None) -> NoReturn:
    raise _LeaveError


def _reaped(pid: int) -> bool:
    """Whether our child has ended (also when that was found out before)."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _launch(command: list[str], user: int, group: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        os.umask(0o077)
        if user >= 0:
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
        for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)
        os.execv(command[0], command)
    except OSError as exc:
        sys.stderr.write(f"could not run {command[0]}: {exc}\n")
        sys.stderr.flush()
    os._exit(127)


def _wait_for_last_holder(holders: int, locks: str, *, blocking: bool) -> None:
    if blocking:
        fcntl.flock(holders, fcntl.LOCK_EX)
        return
    while _alive(locks):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(holders, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_ADOPTED_POLL_SECONDS)


def _stop(pid: int, locks: str, *, child: bool) -> None:
    def ended() -> bool:
        return _reaped(pid) if child else not _alive(locks)

    for name, seconds in (
        (signal.SIGINT, _FAST_SECONDS),
        (signal.SIGQUIT, _IMMEDIATE_SECONDS),
        (signal.SIGKILL, _IMMEDIATE_SECONDS),
    ):
        if ended():
            return
        os.kill(pid, name)
        deadline = time.monotonic() + seconds
        while not ended() and time.monotonic() < deadline:
            time.sleep(0.002)


def _alive(locks: str) -> bool:
    probe = os.open(os.path.join(locks, "server"), os.O_RDWR)
    try:
        fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(probe)
    return False


if __name__ == "__main__":
    main(sys.argv[1:])
