"""Moving in from langchain-postgres: everything, equal, once; killed midway and called again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_postgres import PGEngine, PGVector, PGVectorStore, PostgresChatMessageHistory

from pgmem_core import DimensionMismatch, InvalidArgument, NotFound, PgMem, StoreUnavailable
from pgmem_langchain import (
    ImportReport,
    PgMemChatMessageHistory,
    PgMemVectorStore,
    aimport_langchain_postgres,
    import_langchain_postgres,
)
from tests.fix_memory import Face, FakeEmbedder, Maker
from tests.langchain.messages import EVERY_KIND

SESSIONS = [str(uuid.UUID(int=n)) for n in range(3)]


async def move(memory: Face, dsn: str | None, table: str, **options: Any) -> ImportReport:
    if memory.face == "sync":
        return await asyncio.to_thread(import_langchain_postgres, memory.target, dsn, table, **options)
    return await aimport_langchain_postgres(memory.target, dsn, table, **options)


def read(memory: Face, session_id: str, **options: Any) -> list[BaseMessage]:
    history = PgMemChatMessageHistory(session_id, mem=memory.target, repair=False, **options)
    return history.messages


@pytest.fixture
def table(dsn: str) -> dict[str, list[BaseMessage]]:
    """A history's table with three sessions whose messages are written in turns; what each holds."""
    said: dict[str, list[BaseMessage]] = {
        SESSIONS[0]: EVERY_KIND,
        SESSIONS[1]: [m for n in range(150) for m in (HumanMessage(f"question {n}"), AIMessage("ok", id=f"r{n % 3}"))],
        SESSIONS[2]: [HumanMessage("hi"), AIMessageChunk("he", id="c") + AIMessageChunk("llo", id="c")],
    }
    with psycopg.connect(dsn) as conn:
        PostgresChatMessageHistory.create_tables(conn, "chat_history")
        for start in range(0, 300, 7):
            for session_id, messages in said.items():
                PostgresChatMessageHistory("chat_history", session_id, sync_connection=conn).add_messages(
                    messages[start : start + 7]
                )
    said[SESSIONS[2]][1] = AIMessage("hello", id="c")
    return said


async def test_a_history_moves_in_whole_equal_and_once(
    memory: Face, dsn: str, table: dict[str, list[BaseMessage]]
) -> None:
    total = sum(map(len, table.values()))
    seen: list[int] = []
    report = await move(memory, dsn, "chat_history", batch_size=50, on_batch=lambda r: seen.append(r.read))
    assert report == ImportReport("chat_history", "history", total, total, 0, 3, [])
    assert seen == [*range(50, total, 50), total]
    for session_id, messages in table.items():
        assert read(memory, session_id) == messages  # also the ids that the table held twice
    again = await move(memory, None, "chat_history")
    assert again == ImportReport("chat_history", "history", total, 0, total, 3, [])
    assert len(read(memory, SESSIONS[1])) == 300


async def test_times_and_users_move_in(memory: Face, dsn: str, table: dict[str, list[BaseMessage]]) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("UPDATE chat_history SET created_at = '2024-02-29 23:30:00-08'::timestamptz + id * interval '1 s'")
    await move(memory, dsn, "chat_history", user_id=lambda session: f"user of {session[-1]}")
    session = await memory.session.get(SESSIONS[2])
    assert session.user_id == "user of 2"
    turns = await session.turns()
    assert timedelta(0) < turns[0].created_at - datetime(2024, 3, 1, 7, 30, tzinfo=UTC) < timedelta(hours=1)
    await memory.form()
    found = await memory.search("question 7", user_id="user of 1")
    assert found[0].content == "question 7"
    assert read(memory, SESSIONS[2], user_id="user of 2") == table[SESSIONS[2]]
    assert read(memory, SESSIONS[2], user_id="user of 1") == []


async def test_a_conversation_goes_on_where_it_was(memory: Face, dsn: str, table: dict[str, list[BaseMessage]]) -> None:
    await move(memory, dsn, "chat_history")
    history = PgMemChatMessageHistory(SESSIONS[2], mem=memory.target)
    await history.aadd_messages([HumanMessage("more"), AIMessage("yes")])
    assert [m.text for m in await history.aget_messages()] == ["hi", "hello", "more", "yes"]
    report = await move(memory, dsn, "chat_history")
    assert report.stored == 0
    assert len(await history.aget_messages()) == 4


async def test_a_row_that_is_no_message_is_named_and_the_rest_moves_in(memory: Face, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        PostgresChatMessageHistory.create_tables(conn, "odd")
        rows: Sequence[Any] = [
            {"type": "human", "data": {"content": "hi", "type": "human"}},
            {"type": "oracle", "data": {"content": "?"}},
            {"nothing": True},
            {"type": "ai", "data": {"content": "hey", "type": "ai"}},
        ]
        for row in rows:
            conn.execute("INSERT INTO odd (session_id, message) VALUES (%s, %s)", [SESSIONS[0], json.dumps(row)])
    report = await move(memory, dsn, "odd")
    assert (report.read, report.stored, report.known, len(report.failed)) == (4, 2, 0, 2)
    assert report.failed[0].startswith("row 2: message 1 is of type dict and cannot be read")
    assert report.failed[1].startswith("row 3: ")
    assert read(memory, SESSIONS[0]) == [HumanMessage("hi"), AIMessage("hey")]


_KILLED = """
import os, signal, sys
from pgmem_core import PgMem
from pgmem_langchain import import_langchain_postgres
from tests.fix_memory import FakeEmbedder

def on_batch(report):
    print(report.stored, flush=True)
    if report.read >= 120:
        os.kill(os.getpid(), signal.SIGKILL)

import_langchain_postgres(PgMem(sys.argv[1], embedder=FakeEmbedder()), sys.argv[1], sys.argv[2], batch_size=40,
                          on_batch=on_batch)
"""


def killed(dsn: str, name: str) -> int:
    """Run the import in a process that dies after its third batch; how many rows it had stored."""
    done = subprocess.run([sys.executable, "-c", _KILLED, dsn, name], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    return int(done.stdout.split()[-1])


def test_killed_midway_and_called_again(dsn: str, table: dict[str, list[BaseMessage]]) -> None:
    assert killed(dsn, "chat_history") == 120
    with PgMem(dsn, embedder=FakeEmbedder()) as mem:
        histories = {one: PgMemChatMessageHistory(one, mem=mem, repair=False) for one in table}
        assert sum(len(history.messages) for history in histories.values()) == 120
        report = import_langchain_postgres(mem, dsn, "chat_history", batch_size=70)
        assert (report.known, report.stored, report.failed) == (120, report.read - 120, [])
        for session_id, messages in table.items():
            assert histories[session_id].messages == messages


# -- documents -------------------------------------------------------------------------------------------------

EMBEDDING = DeterministicFakeEmbedding(size=8)
DOCUMENTS = [
    Document(f"walnut {n}", id=str(uuid.UUID(int=n)), metadata={"rank": n, "tags": ["a"], "deep": {"x": None}})
    for n in range(130)
]


def _collection(dsn: str) -> str:
    store = PGVector(EMBEDDING, connection=dsn.replace("postgresql://", "postgresql+psycopg://"),
                     collection_name="nuts", use_jsonb=True)  # fmt: skip
    other = PGVector(EMBEDDING, connection=store._engine, collection_name="bolts", use_jsonb=True)
    store.add_documents(DOCUMENTS)
    other.add_documents([Document("a bolt", id="b")])
    store._engine.dispose()
    return "nuts"


def _store(dsn: str) -> str:
    engine = PGEngine.from_connection_string(dsn.replace("postgresql://", "postgresql+psycopg://"))
    engine.init_vectorstore_table("nut_shelf", 8)
    store = PGVectorStore.create_sync(engine, EMBEDDING, "nut_shelf")
    store.add_documents(DOCUMENTS)
    assert engine._loop is not None
    asyncio.run_coroutine_threadsafe(engine._pool.dispose(), engine._loop).result()
    return "nut_shelf"


@pytest.fixture(params=[_collection, _store], ids=["PGVector", "PGVectorStore"])
def shelf(request: pytest.FixtureRequest, dsn: str) -> str:
    return str(request.param(dsn))


@pytest.mark.filterwarnings("ignore:PGVector")
@pytest.mark.parametrize("reuse", [False, True])
async def test_documents_move_in_whole_equal_and_once(make_memory: Maker, dsn: str, shelf: str, reuse: bool) -> None:
    memory = await make_memory(embedder=EMBEDDING)
    report = await move(memory, dsn, shelf, batch_size=50, reuse_vectors=reuse)
    assert (report.read, report.stored, report.known, report.failed) == (130, 130, 0, [])
    store = PgMemVectorStore(memory.target, collection=shelf)
    assert await store.aget_by_ids([str(document.id) for document in DOCUMENTS]) == DOCUMENTS
    assert await store.asimilarity_search("walnut 7", k=1, filter={"rank": {"lt": 10}}) == [DOCUMENTS[7]]
    [(_, score)] = await store.asimilarity_search_with_score("walnut 7", k=1)
    assert score == pytest.approx(1.0, abs=1e-5)
    again = await move(memory, None, shelf)
    assert (again.read, again.stored, again.known) == (130, 0, 130)


def test_documents_killed_midway(dsn: str) -> None:
    name = _store(dsn)
    assert killed(dsn, name) == 120
    with PgMem(dsn, embedder=FakeEmbedder()) as mem:
        report = import_langchain_postgres(mem, dsn, name, batch_size=70)
        assert (report.known, report.stored) == (120, 10)
        assert PgMemVectorStore(mem, collection=name).get_by_ids([str(d.id) for d in DOCUMENTS]) == DOCUMENTS


async def test_vectors_of_another_size_are_not_taken_for_ours(make_memory: Maker, dsn: str) -> None:
    name = _store(dsn)
    memory = await make_memory(embedder=FakeEmbedder(dimensions=5))
    with pytest.raises(DimensionMismatch):
        await move(memory, dsn, name, reuse_vectors=True)
    assert (await move(memory, dsn, name, user_id="u1", collection="nuts", group_id="acme")).stored == 130
    assert len(await memory.get_all(user_id="u1", group_id="acme", limit=200)) == 130


# -- what cannot be read ---------------------------------------------------------------------------------------


async def test_what_is_not_there_or_something_else_is_said(memory: Face, dsn: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("CREATE TABLE other (x int); CREATE TABLE langchain_pg_embedding (collection_id uuid)")
    with pytest.raises(NotFound, match="no table and no PGVector collection of the name 'absent'"):
        await move(memory, dsn, "absent")
    with pytest.raises(InvalidArgument, match="table 'other' has the columns x: neither"):
        await move(memory, dsn, "other")
    with pytest.raises(InvalidArgument, match="name the collection instead"):
        await move(memory, dsn, "langchain_pg_embedding")
    with pytest.raises(NotFound):
        await move(memory, dsn, 'x"; DROP TABLE other; --')
    with pytest.raises(StoreUnavailable):
        await move(memory, "postgresql://nobody@127.0.0.1:1/x", "chat_history")
    with pytest.raises(InvalidArgument, match="batch_size"):
        await move(memory, dsn, "other", batch_size=0)


def test_a_tool_message_keeps_its_artifact(dsn: str) -> None:
    message = ToolMessage("x", tool_call_id="c", artifact={"rows": [1, 2.5, None]})
    with psycopg.connect(dsn) as conn:
        PostgresChatMessageHistory.create_tables(conn, "h")
        PostgresChatMessageHistory("h", SESSIONS[0], sync_connection=conn).add_messages([message])
    with PgMem(dsn, embedder=FakeEmbedder()) as mem:
        import_langchain_postgres(mem, dsn, "h")
        assert PgMemChatMessageHistory(SESSIONS[0], mem=mem).messages == [message]
