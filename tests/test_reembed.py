"""From one embedder to another while the store is in use: both answer, nothing is lost, the old one is refused."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from pgmem_core import (
    BundledEmbedder,
    DimensionMismatch,
    EmbeddingError,
    InvalidArgument,
    MemoryStore,
    PermissionDenied,
    PgMem,
    cli,
)
from pgmem_core.lifecycle.reembedding import ReembedProgress
from tests.fix_memory import Face, FakeEmbedder, Maker

ROOT = Path(__file__).resolve().parent.parent
ANIMALS = ["ape", "bear", "cat", "dog", "elk", "fox", "gnu", "hare", "ibex", "jackal"]
TEXTS = [f"{animal} number {i}" for i, animal in enumerate(ANIMALS)]
# Shares no word with what it is near to.
QUERY = "which beast?"


def unit(dimensions: int, axis: int) -> list[float]:
    return [float(i == axis) for i in range(dimensions)]


def old(**options: Any) -> FakeEmbedder:
    """Eight dimensions, in which the query means the first animal."""
    return FakeEmbedder({QUERY: unit(8, 0), TEXTS[0]: unit(8, 0)}, dimensions=8, model="old", **options)


def new(**options: Any) -> FakeEmbedder:
    """Twelve, in which it does so too."""
    return FakeEmbedder({QUERY: unit(12, 3), TEXTS[0]: unit(12, 3)}, dimensions=12, model="new", **options)


def rows(dsn: str, sql: str, *parameters: Any) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(sql, parameters).fetchall()


def by_model(dsn: str) -> dict[str, int]:
    return dict(
        rows(
            dsn,
            """SELECT m.name, count(r.id) FROM pgmem.embedding_models m
               LEFT JOIN pgmem.records r ON r.model = m.id GROUP BY m.name""",
        )
    )


def statuses(dsn: str) -> dict[str, str]:
    return dict(rows(dsn, "SELECT name, status FROM pgmem.embedding_models"))


def indexes(dsn: str) -> set[str]:
    return {name for (name,) in rows(dsn, "SELECT indexname FROM pg_indexes WHERE indexname LIKE 'records_hnsw%%'")}


async def fill(memory: Face) -> None:
    """One session a text, so that none has a context."""
    for i, text in enumerate(TEXTS):
        await (await memory.session.open(f"s{i}", user_id="u1")).add_turn("user", text)
    await memory.form()


def meant(dsn: str, embedder: FakeEmbedder) -> list[tuple[str, float]]:
    """What a client with that embedder finds by meaning: content and cosine."""
    with PgMem(dsn, embedder=embedder) as mem:
        return [
            (one.content, one.parts.cosine)
            for one in mem.search(QUERY, user_id="u1", top_k=20)
            if one.parts.cosine is not None
        ]


async def test_both_answer_while_it_moves(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(embedder=old())
    await fill(memory)
    assert {content for content, _ in meant(dsn, old())} == set(TEXTS)
    seen: list[ReembedProgress] = []
    found: dict[str, Any] = {}

    def look(progress: ReembedProgress) -> None:
        seen.append(progress)
        if progress.moved != 4:
            return
        found["old"], found["new"] = meant(dsn, old()), meant(dsn, new())
        for name, embedder in (("old words", old()), ("new words", new())):
            with PgMem(dsn, embedder=embedder) as mem:
                found[name] = {one.content for text in TEXTS for one in mem.search(text, user_id="u1", top_k=1)}

    report = await memory.reembed(new(), batch=4, on_progress=look)
    assert [(one.moved, one.total) for one in seen] == [(0, 10), (4, 10), (8, 10), (10, 10)]
    # By meaning each finds its own rows and no others; by words both find all.
    assert len(found["old"]) == 6
    assert len(found["new"]) == 4
    assert {content for content, _ in found["old"]} | {content for content, _ in found["new"]} == set(TEXTS)
    assert found["old words"] == found["new words"] == set(TEXTS)
    assert (report.model, report.dimensions, report.moved, report.unusable) == ("new", 12, 10, 0)
    assert report.retired == ("old",)
    assert by_model(dsn) == {"old": 0, "new": 10}
    assert statuses(dsn) == {"old": "retired", "new": "active"}
    assert indexes(dsn) == {"records_hnsw_m2"}
    best = meant(dsn, new())[0]
    assert best[0] == TEXTS[0]
    assert best[1] == pytest.approx(1.0)
    # The client that was asked to move goes on with the new one.
    assert (await memory.search(QUERY, user_id="u1"))[0].parts.cosine == pytest.approx(1.0)


async def test_the_vectors_are_those_of_a_store_that_never_knew_another(make_memory: Maker, dsn: str) -> None:
    """Turns with what was said before them, silent and blank turns passed over, facts and notes as they are."""

    async def talk(memory: Face) -> None:
        session = await memory.session.open("talk", user_id="u1")
        await session.add_turn("system", "be kind")
        await session.add_turn("user", "I have a dog", name="Ann")
        await session.add_turn("assistant", "", tool_calls=[{"id": "1", "name": "look", "args": {}}])
        await session.add_turn("system", "be brief")
        await session.add_turn("user", "It is brown")
        await session.observe("pet", "dog", authority="user")
        await memory.form()

    moved, fresh = await make_memory(embedder=old()), await make_memory(embedder=new(), schema_name="fresh")
    await talk(moved)
    await talk(fresh)
    assert (await moved.reembed(new(), batch=2)).moved == 3
    stored = [
        dict(rows(dsn, f"SELECT content, embedding::text FROM {schema}.records WHERE model IS NOT NULL"))
        for schema in ("pgmem", "fresh")
    ]
    assert len(stored[0]) == 3
    assert stored[0].keys() == stored[1].keys()
    for content, vector in stored[0].items():
        assert np.allclose(numbers(vector), numbers(stored[1][content]), atol=1e-6)


def numbers(vector: str) -> list[float]:
    return [float(part) for part in vector.strip("[]").split(",")]


async def test_the_old_one_is_refused_by_name(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(embedder=old())
    stranger = await make_memory(embedder=new(), setup=False)
    await fill(memory)
    with pytest.raises(DimensionMismatch, match=r"filled by 'old'.*pgmem reembed --to new"):
        await stranger.setup()
    running = await make_memory(embedder=old())  # has been told of nothing
    plain = MemoryStore(dsn, embedder=old())
    plain.add("default", "s", "a note", kind="note")
    await memory.reembed(new())
    late = await make_memory(embedder=old(), setup=False)
    with pytest.raises(DimensionMismatch, match=r"'old' is retired.*those of 'new'.*reembed --to old"):
        await late.setup()
    session = await running.session.open("late", user_id="u1")
    await session.add_turn("user", "a lynx at last")
    report = await running.form()
    [error] = report.errors.values()
    assert "'old' is retired" in error
    assert "'new'" in error
    assert [one.content for one in await running.search("lynx", user_id="u1")][:1] == ["a lynx at last"]
    for count in (1, 20):  # one by a statement, many by COPY
        with pytest.raises(DimensionMismatch, match="'old' is retired"):
            plain.add_many("default", [{"session_id": "s", "content": "another", "kind": "note"}] * count)
    plain.close()
    await stranger.setup()  # the new one is the store's now, and embeds what the old one could not
    await stranger.form()
    assert by_model(dsn) == {"old": 0, "new": 12}


async def test_what_is_said_meanwhile_moves_too(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(embedder=old())
    await fill(memory)

    def talk(progress: ReembedProgress) -> None:
        for name, embedder in (("old", old()), ("new", new())):
            with PgMem(dsn, embedder=embedder) as mem:
                mem.session.open(f"{name}-{progress.moved}", user_id="u2").add_turn("user", f"{name} {progress.moved}")
                mem.form()

    said = 0

    def some(progress: ReembedProgress) -> None:
        nonlocal said
        if said < 3:
            said += 1
            talk(progress)

    report = await memory.reembed(new(), batch=4, on_progress=some)
    assert said == 3
    assert by_model(dsn) == {"old": 0, "new": 16}
    assert report.moved == 13  # what the new one wrote needs no move


_KILLED = """
import os, signal, sys
from pgmem_core import PgMem
from tests.test_reembed import new
embedder = new()
mem = PgMem(sys.argv[1], embedder=embedder)
def look(progress):
    if progress.moved >= 4:
        embedder.fail = lambda text: os.kill(os.getpid(), signal.SIGKILL)  # with a batch in its hands
mem.reembed(embedder, batch=2, on_progress=look)
"""


async def test_killed_and_gone_on(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(embedder=old())
    await fill(memory)
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", _KILLED, dsn], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert by_model(dsn) == {"old": 6, "new": 4}
    assert statuses(dsn) == {"old": "active", "new": "target"}
    assert len(meant(dsn, old())) == 6  # both still answer
    assert len(meant(dsn, new())) == 4
    going_on = new()
    report = await memory.reembed(going_on, batch=2)
    assert report.moved == 6
    assert not set(going_on.texts) & set(meant_texts(dsn, 4))  # what had been moved is not embedded again
    assert by_model(dsn) == {"old": 0, "new": 10}
    assert statuses(dsn) == {"old": "retired", "new": "active"}


def meant_texts(dsn: str, count: int) -> list[str]:
    return [text for (text,) in rows(dsn, "SELECT content FROM pgmem.records ORDER BY tenant_id, id LIMIT %s", count)]


async def test_an_embedder_that_fails_stops_it_and_loses_nothing(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(embedder=old())
    await fill(memory)
    down = new(fail=lambda text: text.startswith("gnu"))
    with pytest.raises(EmbeddingError, match="out of order"):
        await memory.reembed(down, batch=1)
    assert by_model(dsn) == {"old": 4, "new": 6}
    assert await memory.search(QUERY, user_id="u1")  # its own embedder is the old one still
    assert (await memory.reembed(new(), batch=1)).moved == 4
    assert by_model(dsn) == {"old": 0, "new": 10}


async def test_a_text_without_a_usable_vector_is_found_by_words(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(embedder=old())
    await fill(memory)
    zero = new()
    zero.vectors[TEXTS[3]] = [0.0] * 12
    report = await memory.reembed(zero)
    assert (report.moved, report.unusable) == (10, 1)
    assert by_model(dsn) == {"old": 0, "new": 9}
    assert (await memory.search(TEXTS[3], user_id="u1"))[0].content == TEXTS[3]


async def test_there_and_back(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(embedder=old())
    await fill(memory)
    before = dict(rows(dsn, "SELECT content, embedding::text FROM pgmem.records"))
    await memory.reembed(new())
    report = await memory.reembed(old())
    assert report.retired == ("new",)
    assert statuses(dsn) == {"old": "active", "new": "retired"}
    assert dict(rows(dsn, "SELECT content, embedding::text FROM pgmem.records")) == before
    assert indexes(dsn) == {"records_hnsw_m1"}
    again = await memory.reembed(old())
    assert (again.moved, again.retired) == (0, ())


async def test_a_change_of_mind_on_the_way(make_memory: Maker, dsn: str) -> None:
    """The first target becomes one more to move away from."""
    memory = await make_memory(embedder=old())
    await fill(memory)
    with pytest.raises(EmbeddingError):
        await memory.reembed(new(fail=lambda text: text.startswith("gnu")), batch=1)
    third = FakeEmbedder(dimensions=5, model="third")
    report = await memory.reembed(third, batch=3)
    assert set(report.retired) == {"old", "new"}
    assert by_model(dsn) == {"old": 0, "new": 0, "third": 10}


async def test_two_at_once(make_memory: Maker, dsn: str) -> None:
    memory, other = await make_memory(embedder=old()), await make_memory(embedder=old())
    await fill(memory)
    reports = await asyncio.gather(memory.reembed(new(), batch=2), other.reembed(new(), batch=2))
    assert by_model(dsn) == {"old": 0, "new": 10}
    assert statuses(dsn) == {"old": "retired", "new": "active"}
    assert sum(report.moved for report in reports) >= 10


async def test_an_empty_store_and_vectors_that_are_a_callers_own(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(embedder=new())
    assert (await memory.reembed(new())).moved == 0
    assert statuses(dsn) == {"new": "active"}
    with MemoryStore(dsn) as store:
        store.add("default", "s", "mine", embedding=unit(3, 0), kind="note")
    third = FakeEmbedder(dimensions=5, model="third")
    await fill(memory)
    assert (await memory.reembed(third)).moved == 10
    assert by_model(dsn) == {"new": 0, "given": 1, "third": 10}
    with MemoryStore(dsn) as store:
        assert [str(text) for text in store.similar("default", unit(3, 0), 1)] == ["mine"]


async def test_it_needs_the_owner(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(embedder=old())
    await fill(memory)
    role = f"plain_{os.getpid()}"
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {role} LOGIN")
        try:
            conn.execute(f"GRANT USAGE ON SCHEMA pgmem TO {role}")
            conn.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA pgmem TO {role}")
            plain = await make_memory(dsn=dsn.replace("postgres@", f"{role}@"), embedder=old())
            with pytest.raises(PermissionDenied, match=r"does not own.*pgmem reembed --to new.*owner"):
                await plain.reembed(new())
            assert statuses(dsn) == {"old": "active"}
            await plain.close()
        finally:
            conn.execute(f"DROP OWNED BY {role}")
            conn.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("batch", [0, -1, 10_001, True, 2.5])
async def test_a_batch_that_is_none(memory: Face, batch: Any) -> None:
    with pytest.raises(InvalidArgument, match="batch"):
        await memory.reembed(new(), batch=batch)


# -- on the command line ---------------------------------------------------------------------------------------


@pytest.fixture
def pgmem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    for name in ("PGMEM_DSN", "PGMEM_EMBEDDER", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_command_moves_and_the_doctor_tells(dsn: str, pgmem: Callable[..., tuple[int, str, str]]) -> None:
    with PgMem(dsn, embedder=old()) as mem:
        for i, text in enumerate(TEXTS):
            mem.session.open(f"s{i}", user_id="u1").add_turn("user", text)
        mem.form()
        with pytest.raises(EmbeddingError):
            mem.reembed(new(fail=lambda text: text.startswith("elk")), batch=1)
    code, out, _ = pgmem("doctor", "--dsn", dsn)
    assert code == 0
    assert "m2 new, 12 dimensions, 4 rows, target, index valid" in out
    assert "moved to 'new': 4 rows (40%), 6 are another" in out
    assert "pgmem reembed --to new" in out
    code, out, err = pgmem("reembed", "--to", "bundled", "--dsn", dsn)
    assert code == 0, err
    assert "moved     10 rows" in out
    assert "retired   old, new" in out
    code, out, _ = pgmem("doctor", "--dsn", dsn)
    assert code == 0
    assert "m1 old, 8 dimensions, 0 rows, retired, no index" in out
    assert "moved to" not in out
    bundled = BundledEmbedder()
    with PgMem(dsn, embedder=bundled) as mem:
        assert mem.search("a wild animal", user_id="u1")[0].parts.cosine is not None
    code, _, err = pgmem("reembed", "--to", "nonsense", "--dsn", dsn)
    assert code == 2
    assert "nonsense" in err
