"""Nothing of one user, session or tenant reaches another: A4 to A8, A10 and, of the core's part, A9."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from pgmem_core import ConfigurationError, Conflict, EmbeddingError, InvalidArgument, InvalidFilter, NotFound
from pgmem_core.filters import literal_key
from tests.fix_memory import Face, FakeEmbedder, Maker

USERS = ("u1", "u2", "u3")
IDS = [
    "a-b",
    "a:b",
    "a b",
    "o'neil@example.org",
    "{x}",
    "用户1",
    "%",
    "a_b",
    "a%b",
    "../etc/passwd",
    "x" * 255,
    "ü" * 127,
]
QUOTED = "topic' = 'x' OR '1'='1"


async def fill(memory: Face, users: tuple[str, ...] = USERS) -> None:
    """Two facts a user, in the same words but for the user's own."""
    for user in users:
        session = await memory.session.create(f"session of {user}", user_id=user)
        await session.add_turn("user", f"My favourite tea is number {user}")
        await session.add_turn("user", f"My bicycle has the colour {user}")
    await memory.form()


async def texts(memory: Face, user: str, **options: Any) -> set[str]:
    return {str(text) for text in await memory.get_all(user_id=user, **options)}


def rows(dsn: str, table: str) -> int:
    with psycopg.connect(dsn) as conn:
        found = conn.execute(f"SELECT count(*) FROM pgmem.{table}").fetchone()
    assert found is not None
    return int(found[0])


# -- A4: deleting one user's memories ------------------------------------------------------------------------


async def test_a4_deleting_one_user_leaves_the_others(memory: Face, dsn: str) -> None:
    await fill(memory)
    before = rows(dsn, "postings")
    assert await memory.delete_all(user_id="u2") == 2
    assert await texts(memory, "u2") == set()
    assert await memory.search("favourite tea", user_id="u2") == []
    for user in ("u1", "u3"):
        assert await texts(memory, user) == {
            f"My favourite tea is number {user}",
            f"My bicycle has the colour {user}",
        }
        assert len(await memory.search("favourite tea", user_id=user)) == 2
    assert rows(dsn, "postings") == before * 2 // 3
    with pytest.raises(NotFound):
        await memory.session.get("session of u2")
    assert len(await (await memory.session.get("session of u1")).turns()) == 2


@pytest.mark.parametrize("nobody", [None, "", " ", {}, [], 0, False], ids=repr)
async def test_a4_an_empty_user_is_refused_and_deletes_nothing(memory: Face, nobody: Any) -> None:
    await fill(memory)
    with pytest.raises(InvalidArgument, match="user_id"):
        await memory.delete_all(user_id=nobody)
    with pytest.raises(InvalidArgument, match="group_id"):
        await memory.delete_all(user_id="u1", group_id=nobody)
    for user in USERS:
        assert len(await texts(memory, user)) == 2
    with pytest.raises(TypeError):
        await memory.delete_all()


async def test_a4_the_same_user_id_in_another_group_is_another_user(memory: Face) -> None:
    await memory.add("Tea with milk", user_id="u1", group_id="acme")
    await memory.add("Tea with lemon", user_id="u1", group_id="bolt")
    assert await memory.delete_all(user_id="u1", group_id="acme") == 1
    assert await texts(memory, "u1", group_id="acme") == set()
    assert await texts(memory, "u1", group_id="bolt") == {"Tea with lemon"}


async def test_a4_the_plain_store_deletes_by_condition_only(store: Face) -> None:
    for user in USERS:
        await store.add_many("acme", [{"session_id": user, "content": f"{user} {n}"} for n in range(2)], user_id=user)
    for empty in ({}, {"user_id": None}, {"filter": None, "session_id": None}):
        with pytest.raises(InvalidArgument, match="would empty the whole tenant"):
            await store.delete("acme", **empty)
    with pytest.raises(InvalidArgument, match="would match everything"):
        await store.delete("acme", filter={})
    for empty_id in ({"user_id": ""}, {"session_id": ""}, {"kind": ""}):
        with pytest.raises(InvalidArgument):
            await store.delete("acme", **empty_id)
    assert await store.delete("acme", []) == 0
    assert await store.count("acme") == 6
    assert await store.delete("acme", user_id="u2") == 2
    assert await store.count("acme", user_id="u2") == 0
    assert await store.count("acme") == 4


async def test_a4_one_memory_is_deleted_only_for_its_own_user_and_group(memory: Face) -> None:
    [turn] = await memory.add("Tea with milk", user_id="u1")
    assert await memory.delete(turn.id, user_id="u2") is False
    assert await memory.delete(turn.id, group_id="another") is False
    assert await texts(memory, "u1") == {"Tea with milk"}
    assert await memory.delete(turn.id, user_id="u1") is True
    assert await texts(memory, "u1") == set()
    with pytest.raises(InvalidArgument, match="memory id ''"):
        await memory.delete("")


# -- A5: scoped answers ----------------------------------------------------------------------------------------


async def test_a5_every_road_to_a_users_memories_gives_only_theirs(memory: Face) -> None:
    await fill(memory)
    own = {"My favourite tea is number u2", "My bicycle has the colour u2"}
    session = await memory.session.create("new", user_id="u2")
    question = "favourite tea number, bicycle colour"
    assert {found.content for found in await memory.search(question, user_id="u2")} == own
    assert {found.content for found in await session.search(question)} == own
    assert await texts(memory, "u2") == own
    context = await session.compile_context(question, floor=None, store_query=False)
    recalled = context.sections["episodic"].items
    assert {item.text.partition(": ")[2] for item in recalled} == own
    assert "u1" not in str(context.messages)
    assert "u3" not in str(context.messages)
    assert [info.session_id for info in await memory.session.list(user_id="u2")] == ["new", "session of u2"]
    # The other users are there to be found.
    assert len(await memory.search(question, user_id="u1")) == 2


async def test_a5_a_misspelt_parameter_raises(memory: Face, store: Face) -> None:
    await fill(memory)
    session = await memory.session.get("session of u1")
    for call in (
        memory.search("tea", user="u1"),
        memory.search("tea", user_id="u1", userid="u2"),
        memory.search("tea", user_id="u1", filters={"user_id": "u2"}),
        memory.search("tea"),
        memory.get_all(),
        memory.get_all(user="u1"),
        memory.session.open("s", userid="u1"),
        session.search("tea", user_id="u2"),
        session.compile_context("tea", user_id="u2"),
        store.similar("default", "tea", user="u1"),
        store.count("default", userid="u1"),
    ):
        with pytest.raises(TypeError):
            await call
    with pytest.raises(InvalidArgument, match="unknown key 'user_id'"):
        await store.add_many("default", [{"session_id": "s", "content": "tea", "user_id": "u2"}])
    with pytest.raises(InvalidArgument, match="unknown key 'user_id'"):
        await session.add_turns([{"role": "user", "content": "tea", "user_id": "u2"}])
    for wrong in (None, "", " ", 7, b"u1"):
        with pytest.raises(InvalidArgument, match="user_id"):
            await memory.search("tea", user_id=wrong)
        if wrong is not None:
            with pytest.raises(InvalidArgument, match="user_id"):
                await store.similar("default", "tea", user_id=wrong)


async def test_a5_the_plain_store_compares_within_the_tenant_and_the_user(make_store: Maker) -> None:
    store = await make_store(embedder=FakeEmbedder(dimensions=2, vectors={"q": [1, 0]}))
    for tenant in ("acme", "bolt"):
        for user in USERS:
            await store.add(tenant, "s", f"{tenant} {user}", [1, 0], user_id=user, kind="note")
    assert {str(one) for one in await store.similar("acme", "q", user_id="u2")} == {"acme u2"}
    assert {str(one) for one in await store.similar("acme", [1, 0], user_id="u2")} == {"acme u2"}
    assert {str(one) for one in await store.similar("acme", "q")} == {f"acme {user}" for user in USERS}
    assert await store.similar("none", "q") == []
    assert await store.recent_turns("none", "s") == []


# -- A6: nothing is left over from the user before --------------------------------------------------------------


async def test_a6_a_failed_write_of_one_user_shows_nothing_of_another(make_memory: Maker) -> None:
    embedder = FakeEmbedder(fail=lambda text: "broken" in text)
    memory = await make_memory(embedder=embedder)
    await memory.add("My locker is number forty", user_id="test_user")
    await memory.form()
    assert len(await memory.search("locker number", user_id="test_user")) == 1
    await memory.add("broken", user_id="test_user1")
    report = await memory.form()
    assert len(report.errors) == 1
    assert "out of order" in next(iter(report.errors.values()))
    # The same words as before: their vector is cached, their results must not be.
    assert [found.content for found in await memory.search("locker number", user_id="test_user1", floor=None)] in (
        [],
        ["broken"],
    )
    session = await memory.session.create(user_id="test_user1")
    context = await session.compile_context("locker number", floor=None)
    assert "forty" not in str(context.messages)
    assert len(await memory.search("locker number", user_id="test_user")) == 1


async def test_a6_a_failed_write_of_the_plain_store_stores_nothing(make_store: Maker) -> None:
    store = await make_store(embedder=FakeEmbedder(fail=lambda text: "broken" in text))
    await store.add("acme", "s", "My locker is number forty", user_id="test_user")
    with pytest.raises(EmbeddingError, match="out of order"):
        await store.add("acme", "s", "broken locker", user_id="test_user1")
    with pytest.raises(EmbeddingError, match="out of order"):
        await store.add_many(
            "acme", [{"session_id": "s", "content": text} for text in ("fine", "broken")], user_id="test_user1"
        )
    assert await store.similar("acme", "My locker is number forty", user_id="test_user1") == []
    assert await store.count("acme", user_id="test_user1") == 0
    assert len(await store.similar("acme", "My locker is number forty", user_id="test_user")) == 1


async def test_a6_parallel_users_each_see_their_own(memory: Face) -> None:
    async def one(user: str) -> set[str]:
        session = await memory.session.create(user_id=user)
        await session.add_turn("user", f"My favourite tea is number {user}")
        return {found.content for found in await session.search("favourite tea")}

    users = [f"user-{n}" for n in range(12)]
    found = await asyncio.gather(*(one(user) for user in users))
    assert found == [{f"My favourite tea is number {user}"} for user in users]


# -- A7: ids of any shape ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IDS, ids=lambda name: name if len(name) < 30 else f"{name[0]}x{len(name)}")
async def test_a7_any_id_round_trips_in_every_place(memory: Face, name: str) -> None:
    await memory.session.create("other", user_id="other", group_id=name)
    await memory.add("Tea with lemon", user_id="other", group_id=name)
    session = await memory.session.create(name, user_id=name, group_id=name, agent_id=name)
    turn = await session.add_turn("user", "Tea with milk", id=name)
    await memory.form()
    assert session.id == session.user_id == session.group_id == name
    [found] = await memory.search("tea", user_id=name, group_id=name, agent_id=name, session_id=name)
    assert found.content == "Tea with milk"
    assert found.session_id == name
    assert await texts(memory, name, group_id=name, session_id=name) == {"Tea with milk"}
    assert (await session.add_turn("user", "Tea with milk", id=name)).id == turn.id
    [info] = await memory.session.list(user_id=name, group_id=name)
    assert (info.session_id, info.user_id, info.group_id, info.agent_id) == (name,) * 4
    assert await memory.delete_all(user_id=name, group_id=name) == 1
    assert await memory.search("tea", user_id=name, group_id=name) == []
    assert await texts(memory, "other", group_id=name) == {"Tea with lemon"}


@pytest.mark.parametrize("name", IDS[:8])
async def test_a7_any_id_round_trips_through_the_plain_store(store: Face, name: str) -> None:
    await store.add(name, name, "Tea with milk", kind=name, user_id=name)
    await store.add(name, "other", "Tea with lemon", kind="other", user_id="other")
    assert [str(one) for one in await store.similar(name, "tea", kind=name, user_id=name, session_id=name)] == [
        "Tea with milk"
    ]
    assert await store.delete(name, user_id=name) == 1
    assert await store.count(name) == 1


async def test_a7_ids_that_look_alike_stay_apart(memory: Face) -> None:
    names = ["7", "07", "7 ", " 7", "a", "A", "café", "cafe\u0301", "%", "_", "a_b", "axb"]
    for name in names:
        await memory.add(f"Tea of [{name}]", user_id=name)
    for name in names:
        assert await texts(memory, name) == {f"Tea of [{name}]"}


@pytest.mark.parametrize("number", [7, 7.0, True, b"7"], ids=repr)
async def test_a7_numbers_are_refused_as_ids(memory: Face, number: Any) -> None:
    await memory.add("Tea", user_id="7")
    for call in (
        memory.add("Milk", user_id=number),
        memory.search("tea", user_id=number),
        memory.get_all(user_id=number),
        memory.delete_all(user_id=number),
        memory.session.create(number, user_id="7"),
        memory.session.open("s", user_id=number),
    ):
        with pytest.raises(InvalidArgument, match="must be a string"):
            await call
    assert await texts(memory, "7") == {"Tea"}


# -- A8: keys and names are data ---------------------------------------------------------------------------------


async def test_a8_a_quote_in_a_filter_key_is_a_key(memory: Face) -> None:
    await memory.add("Tea of another tenant", user_id="u1", group_id="bolt", metadata={"topic": "x"})
    await memory.add("Tea one", user_id="u1", metadata={"topic": "x"})
    await memory.add("Tea two", user_id="u1", metadata={QUOTED: "y"})
    session = await memory.session.create(user_id="u1")
    key = literal_key(QUOTED)
    assert [found.content for found in await memory.search("tea", user_id="u1", filter={key: "y"})] == ["Tea two"]
    assert await texts(memory, "u1", filter={key: "y"}) == {"Tea two"}
    assert await memory.search("tea", user_id="u1", filter={key: "x"}) == []
    context = await session.compile_context("tea", filter={key: "y"}, floor=None)
    assert [item.text.partition(": ")[2] for item in context.sections["episodic"].items] == ["Tea two"]
    assert len(await memory.search("tea", user_id="u1", filter={"topic": "x"})) == 1


@pytest.mark.parametrize(
    "key", [QUOTED, 'a" ? (1 == 1) || "', "$.a", "a') OR true --", "a\\", "%(user)s", "%s", "\x00", ":tenant", "{}"]
)
async def test_a8_hostile_keys_and_values_match_nothing_and_show_no_sql(memory: Face, store: Face, key: str) -> None:
    await store.add("default", "s", "Tea one", user_id="u1", metadata={"topic": "x"})
    await store.add("bolt", "s", "Tea two", user_id="u1", metadata={"topic": "x"})
    refusals: list[str] = []
    for filter in ({key: "y"}, {literal_key(key): "y"}, {"topic": key}, {"topic": {"in": [key]}}):
        try:
            found = await memory.search("tea", user_id="u1", filter=filter)
            assert await store.count("default", filter=filter) == 0
            assert await store.delete("default", filter=filter) == 0
            assert found == []
        except InvalidFilter as exc:
            refusals.append(str(exc))
    assert not any("SELECT" in refusal or "syntax" in refusal for refusal in refusals)
    assert len(refusals) < 4
    assert await store.count("default", filter={"topic": "x"}) == 1
    assert await store.count("bolt") == 1


@pytest.mark.parametrize("name", [QUOTED, 'a"b', "a; drop schema public", "pg_catalog", "", "A", "x" * 64])
async def test_a8_hostile_schema_and_language_names_are_refused(make_memory: Maker, name: str) -> None:
    with pytest.raises(ConfigurationError, match="schema_name"):
        await make_memory(schema_name=name)
    with pytest.raises(ConfigurationError, match="language"):
        await make_memory(language=name)
    with pytest.raises(ConfigurationError, match="unknown setting order_by"):
        await make_memory(order_by=name)


async def test_a8_hostile_text_in_every_other_place_is_text(memory: Face, store: Face) -> None:
    session = await memory.session.create(QUOTED, user_id=QUOTED, group_id=QUOTED)
    await session.add_turn("user", QUOTED, name=QUOTED, metadata={QUOTED: QUOTED}, id=QUOTED)
    [found] = await memory.search(QUOTED, user_id=QUOTED, group_id=QUOTED, kind="turn")
    assert (found.content, found.name, found.metadata) == (QUOTED, QUOTED, {QUOTED: QUOTED})
    assert await memory.search(QUOTED, user_id=QUOTED, group_id=QUOTED, kind=QUOTED) == []
    assert await memory.search(QUOTED, user_id=QUOTED, group_id="x' OR '1'='1") == []
    assert await store.similar(QUOTED, QUOTED, kind=QUOTED) == []


# -- A9, A10: sessions ----------------------------------------------------------------------------------------------


async def test_a9_sessions_without_an_id_are_never_the_same(memory: Face) -> None:
    first = await memory.session.create()
    second = await memory.session.create()
    assert first.id != second.id
    await first.add_turn("user", "alpha")
    assert await second.turns() == []
    assert await second.search("alpha") == []
    assert (await second.compile_context("alpha", floor=None)).messages[1:] == [{"role": "user", "content": "alpha"}]
    assert [turn.text for turn in await first.turns()] == ["alpha"]
    assert [found.content for found in await first.search("alpha")] == ["alpha"]


@pytest.mark.parametrize("name", ["ticket#4711", "+4912345", "thread/1?x=y", "0", "None", "ひ" * 85])
async def test_a10_any_string_is_a_session_id(memory: Face, store: Face, name: str) -> None:
    session = await memory.session.open(name, user_id="u1")
    await session.add_turn("user", "alpha")
    again = await memory.session.open(name, user_id="u1")
    assert [turn.text for turn in await again.turns()] == ["alpha"]
    assert [turn.text for turn in await (await memory.session.get(name)).turns()] == ["alpha"]
    assert [str(text) for text in await store.recent_turns("default", name)] == ["alpha"]


@pytest.mark.parametrize("name", ["", "  ", None, 7], ids=repr)
async def test_a10_no_session_id_is_refused(memory: Face, store: Face, name: Any) -> None:
    for call in (
        memory.session.open(name, user_id="u1"),
        memory.session.get(name),
        store.add("default", name, "alpha"),
        store.recent_turns("default", name),
    ):
        with pytest.raises(InvalidArgument, match="session_id"):
            await call
    if name is not None:  # None mints a new one
        for call in (memory.session.create(name), memory.add("alpha", user_id="u1", session_id=name)):
            with pytest.raises(InvalidArgument, match="session_id"):
                await call
    assert await memory.session.list() == []


async def test_another_users_session_is_neither_read_nor_written(memory: Face) -> None:
    mine = await memory.session.create("thread", user_id="u1")
    await mine.add_turn("user", "alpha")
    with pytest.raises(Conflict, match="another user"):
        await memory.session.open("thread", user_id="u2")
    with pytest.raises(Conflict, match="another user"):
        await memory.session.open("thread")
    with pytest.raises(NotFound):
        await memory.session.get("thread", user_id="u2")
    with pytest.raises(Conflict, match="another user"):
        await memory.add("beta", user_id="u2", session_id="thread")
    with pytest.raises(NotFound):
        await memory.session.get("thread", group_id="bolt")
    # The same name in another group is another session.
    theirs = await memory.session.create("thread", user_id="u2", group_id="bolt")
    assert await theirs.turns() == []
    assert [turn.text for turn in await mine.turns()] == ["alpha"]


async def test_a_handle_outlived_by_its_session_reads_nothing_of_the_next_owner(memory: Face) -> None:
    old = await memory.session.create("thread", user_id="u1")
    await old.delete()
    new = await memory.session.create("thread", user_id="u2")
    await new.add_turn("user", "alpha")
    assert await old.turns() == []
    assert await old.window() == []
    with pytest.raises((Conflict, NotFound)):
        await old.compile_context("alpha")
    with pytest.raises((Conflict, NotFound)):
        await old.add_turn("user", "beta")
    with pytest.raises(NotFound):
        await old.info()
    with pytest.raises(NotFound):
        await old.end()
    assert await old.delete() == 0
    assert [turn.text for turn in await new.turns()] == ["alpha"]
