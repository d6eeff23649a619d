"""PgBouncer in front of a server of the suite: transaction or session pooling, TLS to the client if asked for."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.fix_postgres import PostgresServer

__all__ = ["PROGRAM", "pgbouncer"]

PROGRAM = Path("/usr/sbin/pgbouncer")


@contextlib.contextmanager
def pgbouncer(server: PostgresServer, dsn: str, *, mode: str, pool_size: int = 4, tls: bool = False) -> Iterator[str]:
    """Yield the DSN of the same database through PgBouncer; skips where it (or openssl, for TLS) is missing."""
    if not PROGRAM.exists():
        pytest.skip("needs PgBouncer: apt-get install pgbouncer")
    if tls and shutil.which("openssl") is None:
        pytest.skip("needs the openssl program to make a certificate")
    with psycopg.connect(dsn) as conn:
        host, db_port, user, dbname = conn.info.host, conn.info.port, conn.info.user, conn.info.dbname
    if host.startswith("/") and os.geteuid() == 0:
        host = "127.0.0.1"  # the socket's directory is not for the user below to enter
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    home = Path(tempfile.mkdtemp(prefix="pgb-"))
    lines = [
        "[databases]", f"* = host={host} port={db_port} user={user}", "[pgbouncer]", "listen_addr = 127.0.0.1",
        f"listen_port = {port}",
        "unix_socket_dir =", "auth_type = any", f"pool_mode = {mode}", f"default_pool_size = {pool_size}",
        "max_client_conn = 500", f"logfile = {home / 'log'}", f"pidfile = {home / 'pid'}",
    ]  # fmt: skip
    if tls:
        command = [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-keyout", str(home / "key"), "-out", str(home / "cert"),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        lines += ["client_tls_sslmode = require", f"client_tls_key_file = {home / 'key'}",
                  f"client_tls_cert_file = {home / 'cert'}"]  # fmt: skip
    (home / "ini").write_text("\n".join(lines) + "\n")
    identity: dict[str, object] = {}
    if os.geteuid() == 0:  # PgBouncer refuses to run as root
        entry = pwd.getpwnam("nobody")
        identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": ()}
        for path in (home, *home.iterdir()):
            os.chown(path, entry.pw_uid, entry.pw_gid)
    process = subprocess.Popen(
        [str(PROGRAM), "-q", str(home / "ini")], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, cwd="/", **identity,  # type: ignore[call-overload]
    )  # fmt: skip
    try:
        through = f"postgresql://{user}@127.0.0.1:{port}/{dbname}?sslmode={'require' if tls else 'disable'}"
        deadline = time.monotonic() + 20
        while True:
            try:
                psycopg.connect(through, connect_timeout=5, prepare_threshold=None).close()
                break
            except psycopg.OperationalError as exc:
                if time.monotonic() > deadline or process.poll() is not None:
                    log = home / "log"
                    raise RuntimeError(f"PgBouncer: {exc}\n{log.read_text() if log.exists() else ''}") from exc
                time.sleep(0.02)
        yield through
    finally:
        process.terminate()
        process.wait(timeout=10)
        shutil.rmtree(home, ignore_errors=True)
