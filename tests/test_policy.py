"""The write policy and redaction: what is refused is nowhere, what is redacted is nowhere, and all else is stored."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgmem_core import (
    Authority,
    ConfigurationError,
    InvalidArgument,
    PgMem,
    RefusedWrite,
    SubjectRef,
    WriteRefused,
    cli,
)
from pgmem_core.facts import Evidence, Fact, FactDraft
from pgmem_core.policy import WritePolicy
from pgmem_core.redaction import redact
from pgmem_core.types import Turn
from tests.fix_memory import Face, FakeEmbedder, Maker
from tests.telling import Teller, Tellers
from tests.test_semantic import transaction

KEY = "sk-test-000EXAMPLE000"
BAD = "the plutonium list"
GOOD = "the shopping list"
Write = Callable[[Face, Face, Face, str], Awaitable[Any]]


def no_plutonium(text: str, entry: str) -> str:
    if "plutonium" in text:
        raise WriteRefused("speaks of plutonium")
    return text


def everything(dsn: str) -> str:
    """Return all rows of all tables of the schema, as text."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        names = conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'pgmem' ORDER BY 1").fetchall()
        tables = [name for (name,) in names]
        assert {"records", "facts", "evidence", "execution", "sessions", "refusals", "injections"} <= set(tables)
        parts = [conn.execute(f"SELECT t::text FROM pgmem.{table} t").fetchall() for table in tables]  # type: ignore[arg-type]
    return "\n".join(row for rows in parts for (row,) in rows)


# -- every way in ----------------------------------------------------------------------------------------------------


async def _query(memory: Face, store: Face, session: Face, text: str) -> None:
    await session.compile_context(text)
    await memory.flush()


async def _update(memory: Face, store: Face, session: Face, text: str) -> None:
    turn = await session.add_turn("user", "to be replaced")
    await memory.update(turn.id, text)


WAYS: dict[str, tuple[str, Write]] = {
    "turn": ("turn", lambda m, st, se, t: se.add_turn("user", t)),
    "turn, instructions": ("turn", lambda m, st, se, t: se.add_turn("system", t)),
    "turn, message object": ("turn", lambda m, st, se, t: se.add_turn("user", _Message(t))),
    "turn, a block": ("turn", lambda m, st, se, t: se.add_turn("user", [{"type": "text", "text": t}])),
    "turn, inside a block": (
        "turn",
        lambda m, st, se, t: se.add_turn("user", [{"type": "custom", "deep": {"er": ["x", {"est": t}]}}]),
    ),
    "turn, split over blocks": (
        "turn",
        lambda m, st, se, t: se.add_turn("user", [{"type": "text", "text": one} for one in (t[:12], t[12:])]),
    ),
    "turn, arguments of a tool call": (
        "turn",
        lambda m, st, se, t: se.add_turn("assistant", tool_calls=[{"id": "c", "name": "f", "args": {"note": t}}]),
    ),
    "turn, result of a tool": ("turn", lambda m, st, se, t: se.add_turn("tool", t, tool_call_id="c")),
    "turn, name": ("turn", lambda m, st, se, t: se.add_turn("user", "hello there", name=t)),
    "turn, metadata": ("turn", lambda m, st, se, t: se.add_turn("user", "hello there", metadata={"note": [t]})),
    "turn, key of metadata": ("turn", lambda m, st, se, t: se.add_turn("user", "hello there", metadata={t: 1})),
    "turn, extra": ("turn", lambda m, st, se, t: se.add_turn("assistant", "hello there", extra={"reasoning": t})),
    "turns": ("turn", lambda m, st, se, t: se.add_turns([{"role": "user", "content": t}])),
    "add": ("turn", lambda m, st, se, t: m.add(t, user_id="u1")),
    "add, metadata": ("turn", lambda m, st, se, t: m.add("hello there", user_id="u1", metadata={"note": t})),
    "query": ("query", _query),
    "update": ("memory", _update),
    "session, created": ("session", lambda m, st, se, t: m.session.create("new", user_id="u1", metadata={"title": t})),
    "session, opened": ("session", lambda m, st, se, t: m.session.open("other", user_id="u1", metadata={"title": t})),
    "observe": ("fact", lambda m, st, se, t: se.observe("wants", t)),
    "observe, inside a value": ("fact", lambda m, st, se, t: se.observe("wants", {"what": [t]})),
    "observe, predicate": ("fact", lambda m, st, se, t: se.observe(t, "yes")),
    "observe, source": ("evidence", lambda m, st, se, t: se.observe("wants", "tea", evidence=t)),
    "observe, quote": (
        "evidence",
        lambda m, st, se, t: se.observe("wants", "tea", evidence=[Evidence(source="mail", quote=t)]),
    ),
    "correct": ("fact", lambda m, st, se, t: se.correct("wants", t, authority="user")),
    "execution": ("execution", lambda m, st, se, t: se.execution.set("plan", {"step": t})),
    "store": ("memory", lambda m, st, se, t: st.add("default", "s9", t)),
    "store, another kind": ("memory", lambda m, st, se, t: st.add("default", "s9", t, kind="note")),
    "store, metadata": ("memory", lambda m, st, se, t: st.add("default", "s9", "hello there", metadata={"note": t})),
    "store, many": ("memory", lambda m, st, se, t: st.add_many("default", [{"session_id": "s9", "content": t}])),
}  # fmt: skip


class _Message:
    def __init__(self, content: str) -> None:
        self.content = content


async def test_no_way_in_goes_past_the_policy(make_memory: Maker, make_store: Maker, dsn: str) -> None:
    memory, store = await make_memory(policy=no_plutonium), await make_store(policy=no_plutonium)
    for way, (entry, write) in WAYS.items():
        session = await memory.session.open(f"session of {way}", user_id="u1")
        before = len(await memory.refusals())
        with pytest.raises(WriteRefused, match="speaks of plutonium") as raised:
            await write(memory, store, session, BAD)
        assert (raised.value.reason, raised.value.entry) == ("speaks of plutonium", entry), way
        refused, *others = await memory.refusals()
        assert isinstance(refused, RefusedWrite)
        assert (refused.entry, refused.reason, refused.length) == (entry, "speaks of plutonium", len(BAD)), way
        assert len(others) == before, way
        assert "plutonium" not in everything(dsn).replace("speaks of plutonium", ""), way
        await write(memory, store, session, f"{GOOD} number {before}")  # and it keeps out nothing else
        assert f"list number {before}" in everything(dsn).replace("_", " "), way
    assert len(await memory.refusals()) == len(WAYS)


async def test_what_was_there_before_the_policy_is_not_promoted(make_memory: Maker, dsn: str) -> None:
    lax, strict = await make_memory(), await make_memory(policy=no_plutonium)
    session = await lax.session.open("s1", user_id="u1")
    await session.execution.set("bad", BAD)
    await session.execution.set("good", GOOD)
    session = await strict.session.open("s1", user_id="u1")
    with pytest.raises(WriteRefused):
        await session.execution.promote("bad", "wants")
    assert (await session.execution.promote("good", "wants")).value == GOOD
    assert [fact.value for fact in await strict.facts(user_id="u1")] == [GOOD]


class Told:
    """An extractor that answers every turn with the drafts of `answers`."""

    def __init__(self, *answers: Callable[[Turn], FactDraft]) -> None:
        self.answers = answers

    def extract(self, turns: Sequence[Turn], known: Sequence[Fact]) -> list[FactDraft]:
        return [answer(turn) for turn in turns for answer in self.answers]

    async def aextract(self, turns: Sequence[Turn], known: Sequence[Fact]) -> list[FactDraft]:
        return self.extract(turns, known)


async def test_extracted_facts_pass_the_policy_one_by_one(make_memory: Maker, dsn: str) -> None:
    said = "I want tea"
    extractor = Told(
        lambda turn: FactDraft("wants", BAD, turn_id=turn.id, quote=said),
        lambda turn: FactDraft("wants", "tea", turn_id=turn.id, quote=said),
        lambda turn: FactDraft("plutonium", "yes", turn_id=turn.id, quote=said),
        lambda turn: FactDraft("age", 9, subject=SubjectRef("person", BAD), turn_id=turn.id, quote=said),
    )
    memory = await make_memory(extractor=extractor, policy=no_plutonium)
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", said)
    await memory.form()
    assert [fact.text for fact in await memory.facts(user_id="u1")] == ["wants: tea"]
    assert [one.entry for one in await memory.refusals()] == ["fact"] * 3
    assert "plutonium list" not in everything(dsn)


async def test_summaries_pass_the_policy(make_memory: Maker, dsn: str) -> None:
    # The first time an episode and a running summary, again both, then the narrative.
    answers = [BAD, "not kept", "Tea was wanted", f"Wants tea, has {KEY}", "A story"]
    teller = Teller(lambda *given: answers.pop(0))
    memory = await make_memory(policy=no_plutonium, redact="secrets", summarizers=Tellers(teller, teller, teller))
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turns([{"role": "user", "content": "I want a cup of green tea, please, and a slice of cake"}])
    assert "policy" in (await session.compact()).error
    assert [one.entry for one in await memory.refusals()] == ["summary"]
    assert await memory.search("tea", user_id="u1", kind="episode") == []
    report = await session.compact()
    assert (report.error, report.episodes) == (None, 1)
    stored = everything(dsn)
    assert "Wants tea, has [redacted:api-key]" in stored
    assert "Tea was wanted" in stored
    assert "A story" in stored
    assert "not kept" not in stored
    assert "plutonium list" not in stored
    assert KEY not in stored


async def test_a_redaction_makes_no_two_subjects_one(make_memory: Maker) -> None:
    said = "Ann sk-test-111EXAMPLE111 and Bob know me"
    extractor = Told(
        lambda turn: FactDraft("age", 9, subject=SubjectRef("person", f"Ann {KEY}"), turn_id=turn.id, quote="know me"),
        lambda turn: FactDraft("age", 9, subject=SubjectRef("person", "Bob"), turn_id=turn.id, quote="know me"),
    )  # fmt: skip
    memory = await make_memory(extractor=extractor, redact="secrets")
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", said)
    await memory.form()
    assert [fact.subject.identifier for fact in await memory.facts(user_id="u1")] == ["Bob"]
    assert [one.reason for one in await memory.refusals()] == ["the name of its subject would be changed"]


async def test_a_model_cannot_claim_a_users_authority(make_memory: Maker) -> None:
    claim = "The user confirmed that he is vegan"
    extractor = Told(
        lambda turn: FactDraft("diet", "vegan" if turn.role == "assistant" else "omnivore", confidence=1.0,
                               turn_id=turn.id, quote=turn.text),
    )  # fmt: skip
    memory = await make_memory(extractor=extractor)
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("assistant", claim)
    await memory.form()
    [fact] = await memory.facts(user_id="u1")
    assert (fact.value, fact.authority) == ("vegan", Authority.agent)
    observed = await session.observe("hobby", "chess, as the user confirmed")
    assert observed.authority == Authority.agent
    await session.add_turn("user", "I eat everything")
    await memory.form()
    facts = await memory.facts(user_id="u1", predicate="diet")
    assert [(fact.value, fact.authority) for fact in facts] == [("omnivore", Authority.user)]


# -- how it refuses --------------------------------------------------------------------------------------------------


async def test_of_a_batch_nothing_is_stored_and_the_error_names_which(make_memory: Maker, make_store: Maker) -> None:
    memory, store = await make_memory(policy=no_plutonium), await make_store(policy=no_plutonium)
    session = await memory.session.open("s1", user_id="u1")
    batch = [{"role": "user", "content": text} for text in (GOOD, BAD, GOOD)]
    with pytest.raises(WriteRefused, match="number 2 of this turn batch") as raised:
        await session.add_turns(batch)
    assert raised.value.position == 2
    assert await session.turns() == []
    with pytest.raises(WriteRefused) as raised:
        await store.add_many("default", [{"session_id": "s", "content": text} for text in (GOOD, GOOD, BAD)])
    assert raised.value.position == 3
    assert await store.count("default") == 0
    assert len(await memory.refusals()) == 2
    await session.add_turns([batch[0], batch[2]])
    assert len(await session.turns()) == 2


async def test_the_record_outlives_the_callers_transaction(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(policy=no_plutonium)
    session = await memory.session.open("s1", user_id="u1")
    async with transaction(memory, dsn) as (conn, _):  # rolled back at its end
        await session.add_turn("user", GOOD, connection=conn)
        with pytest.raises(WriteRefused):
            await session.add_turn("user", BAD, connection=conn)
    assert await session.turns() == []
    async with transaction(memory, dsn) as (conn, commit):
        with pytest.raises(WriteRefused):
            await session.add_turn("user", BAD, connection=conn)
        await session.add_turn("user", GOOD, connection=conn)  # the transaction is as it was: neither aborted nor over
        await commit()
    assert [turn.content for turn in await session.turns()] == [GOOD]
    assert len(await memory.refusals()) == 2


async def test_a_refused_query_may_still_be_asked_without_storing(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(policy=no_plutonium)
    session = await memory.session.open("s1", user_id="u1")
    await session.add_turn("user", "My sister keeps bees in Braga")
    await memory.form()
    with pytest.raises(WriteRefused, match="store_query=False"):
        await session.compile_context("plutonium for the bees of my sister in Braga?")
    ctx = await session.compile_context("plutonium for the bees of my sister in Braga?", store_query=False, floor=None)
    assert ctx.messages[-1]["content"].startswith("plutonium")
    await memory.flush()
    assert "plutonium for" not in everything(dsn)
    cached = [text for _, text in memory.target._rt._queries]
    assert cached
    assert all(isinstance(text, bytes) for text in cached)


@pytest.mark.parametrize(
    ("policy", "met"),
    [
        (lambda text, entry: {}[text], "KeyError"),
        (lambda text, entry: None, "NoneType"),
        (lambda text: text, "TypeError"),
    ],
)
async def test_a_policy_that_fails_stores_nothing_and_quotes_nothing(
    make_memory: Maker, dsn: str, policy: Any, met: str
) -> None:
    memory = await make_memory(policy=policy)
    session = await memory.session.open("s1", user_id="u1")
    with pytest.raises(ConfigurationError, match=met) as raised:
        await session.add_turn("user", GOOD)
    assert GOOD not in str(raised.value)
    assert await session.turns() == []
    assert await memory.refusals() == []


async def test_what_is_recorded_holds_no_content_and_is_the_groups_own(make_memory: Maker) -> None:
    def policy(text: str, entry: str) -> str:
        raise WriteRefused(f"it says {text!r}")

    memory = await make_memory(policy=policy)
    for group in ("a", "a", "b"):
        session = await memory.session.open("s1", user_id="u1", group_id=group)
        with pytest.raises(WriteRefused) as raised:
            await session.add_turn("user", BAD)
        assert BAD not in str(raised.value)
    first, second = await memory.refusals("a")
    [other] = await memory.refusals("b")
    assert await memory.refusals() == []
    assert await memory.refusals("a", limit=1) == [first]
    assert first.refused_at >= second.refused_at
    assert first.content_hash == second.content_hash != other.content_hash
    assert BAD not in repr([first, second, other])


async def test_a_refusal_that_cannot_be_recorded_is_one_all_the_same(
    make_memory: Maker, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = await make_memory(policy=no_plutonium)
    session = await memory.session.open("s1", user_id="u1")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("ALTER TABLE pgmem.refusals RENAME TO elsewhere")
        with pytest.raises(WriteRefused):
            await session.add_turn("user", BAD)
        assert "could not be recorded" in caplog.text
        assert "plutonium list" not in caplog.text
        conn.execute("ALTER TABLE pgmem.elsewhere RENAME TO refusals")
    assert await session.turns() == []


# -- where it comes from ---------------------------------------------------------------------------------------------


def shouting(text: str, entry: str) -> str:
    return text.upper() if entry == "turn" else text


async def test_the_policy_of_the_settings(make_memory: Maker, make_store: Maker, monkeypatch: Any) -> None:
    monkeypatch.setenv("PGMEM_POLICY", "tests.test_policy:shouting")
    memory = await make_memory()
    assert (await memory.add("hello there", user_id="u1"))[0].content == "HELLO THERE"
    store = await make_store()
    assert await store.recent_turns("default", "s9") == []
    own = await make_memory(policy=lambda text, entry: text.title())  # what the program says goes first
    assert (await own.add("hello there", user_id="u1"))[0].content == "Hello There"
    monkeypatch.delenv("PGMEM_POLICY")
    named = await make_memory(policy="tests.test_policy:shouting", redact="secrets")
    assert (await named.add(f"hello {KEY}", user_id="u1"))[0].content in ("HELLO SK-TEST-000EXAMPLE000",)
    plain = await make_memory()
    assert (await plain.add("hello there", user_id="u1"))[0].content == "hello there"


@pytest.mark.parametrize("given", ["no_colon", "tests.nowhere:f", "tests.test_policy:nothing", "tests.test_policy:KEY"])
def test_a_policy_that_is_not_there_is_told_at_once(given: str) -> None:
    with pytest.raises(ConfigurationError, match="policy"):
        PgMem("postgresql://localhost/none", policy=given)
    with pytest.raises(ConfigurationError, match="redact"):
        PgMem("postgresql://localhost/none", redact="everything")


def test_the_commands_obey_it(capsys: Any, monkeypatch: pytest.MonkeyPatch, dsn: str, tmp_path: Path) -> None:
    monkeypatch.setenv("PGMEM_POLICY", "tests.test_policy:no_plutonium")
    monkeypatch.setenv("PGMEM_REDACT", "secrets")
    monkeypatch.setenv("PGMEM_DSN", dsn)
    lines = [
        {"type": "session", "session_id": "s1", "user_id": "ada", "title": BAD},
        {"type": "turn", "session_id": "s1", "id": "t1", "role": "user", "content": BAD},
        {"type": "turn", "session_id": "s1", "id": "t2", "role": "user", "content": f"{GOOD}, and {KEY}",
         "metadata": {"token": KEY}},
        {"type": "turn", "session_id": "s1", "id": "t3", "role": "assistant", "content": "ok",
         "tool_calls": [{"id": "c", "name": "f", "args": {"x": BAD}}]},
    ]  # fmt: skip
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def run(*arguments: str) -> Any:
        capsys.readouterr()
        assert cli.run([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    done = run("import", str(file))
    assert (done["turns_new"], len(done["problems"])) == (1, 3)
    assert "turn 't1'" in done["problems"][1]
    assert run("doctor")["refused_writes"] == 3
    stored = everything(dsn)
    assert GOOD in stored
    assert KEY not in stored
    assert "plutonium list" not in stored
    with PgMem(dsn) as mem:
        assert {one.entry for one in mem.refusals()} == {"import"}


# -- redaction -------------------------------------------------------------------------------------------------------


async def test_g14_a_key_is_nowhere_and_what_else_was_said_is_found(
    make_memory: Maker, make_store: Maker, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    embedder = FakeEmbedder()
    memory = await make_memory(redact="secrets", embedder=embedder, extractor="patterns")
    store = await make_store(redact="secrets", embedder=embedder)
    session = await memory.session.open("s1", user_id="u1", metadata={"note": KEY})
    said = await session.add_turn("user", f"my key is {KEY}, also I like jazz")
    assert said.content == "my key is [redacted:api-key], also I like jazz"
    await session.add_turn("user", [{"type": "text", "text": f"again: {KEY[:8]}"}, {"type": "text", "text": KEY[8:]}])
    await session.add_turn(
        "assistant", f"your {KEY}", name=f"bot {KEY}", extra={"reasoning": [KEY]}, metadata={KEY: {"deep": [KEY]}},
        tool_calls=[{"id": "c", "name": "f", "args": {"key": KEY}, "raw": json.dumps({"password": "hunter2"})}],
    )  # fmt: skip
    await session.add_turn("tool", f"used {KEY}", tool_call_id="c")
    await session.observe("secret", {"key": KEY}, evidence=[Evidence(source=KEY, quote=KEY)])
    await session.execution.set("plan", [KEY])
    await session.compile_context(f"what about {KEY}?")
    await memory.flush()
    await store.add("default", "s2", f"note {KEY}", kind="note", metadata={"k": KEY})
    await memory.update(said.id, f"my key is {KEY}, also I like jazz")
    await memory.form()
    kept = everything(dsn)
    assert "000EXAMPLE000" not in kept
    assert "hunter2" not in kept
    assert "000EXAMPLE000" not in caplog.text
    assert "000EXAMPLE000" not in "\n".join(embedder.texts)
    assert embedder.texts
    assert "also I like jazz" in kept  # the control: the tables were read
    found = await memory.search("jazz", user_id="u1")
    assert any("also I like jazz" in one.content for one in found)
    assert await memory.delete_all(user_id="u1") > 0
    assert "also I like jazz" not in everything(dsn)


async def test_redaction_is_off_unless_asked_for(memory: Face) -> None:
    [turn] = await memory.add(f"my key is {KEY}", user_id="u1")
    assert KEY in turn.content
    assert memory.target._rt.policy is None
    value = {"a": [KEY]}
    assert memory.target._rt.screen(value, "turn") is value


SECRETS = [
    (f"my key is {KEY}, also I like jazz", "my key is [redacted:api-key], also I like jazz"),
    ("sk-proj-Ab12Cd34Ef56Gh78_Ij90-kl", "[redacted:api-key]"),
    ("(sk_live_4eC39HqLyjWDarjtT1zdp7dc)", "([redacted:api-key])"),
    ("AKIAIOSFODNN7EXAMPLE.", "[redacted:api-key]."),
    ("AIza" + "Sy0123456789abcdefghijklmnopqrstuvw", "[redacted:api-key]"),
    ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "[redacted:token]"),
    ("github_pat_11ABCDEFG0_abcdefghijklmnop", "[redacted:token]"),
    ("glpat-abcDEF123456_7890xyz", "[redacted:token]"),
    ("xoxb-123456789012-abcdEFGH", "[redacted:token]"),
    ("hf_abcdefghijABCDEFGHIJ0123", "[redacted:token]"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w", "[redacted:token]"),
    ("Authorization: Bearer abc123def456ghi", "Authorization: Bearer [redacted:token]"),
    ("Authorization: Basic dXNlcjpwYXNzd29yZDE=", "Authorization: Basic [redacted:token]"),
    ("postgresql://app:hunter2@db/x", "postgresql://app:[redacted:password]@db/x"),
    ("postgres://u:p@ss@h/db", "postgres://u:[redacted:password]@h/db"),
    ("host=db password=hunter2 user=x", "host=db password=[redacted:password] user=x"),
    ("password='two words'", "password='[redacted:password]'"),
    ("https://h/?access_token=abcd1234&x=1", "https://h/?access_token=[redacted:password]&x=1"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "AWS_SECRET_ACCESS_KEY=[redacted:password]"),
    ('{"api_key": "hunter2"}', '{"api_key": "[redacted:password]"}'),
    (r'{"arguments": "{\"password\": \"hunter2\"}"}', r'{"arguments": "{\"password\": \"[redacted:password]\"}"}'),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEabcdefghijklmnopqrst\n-----END RSA PRIVATE KEY-----\nand more",
        "[redacted:private-key]\nand more",
    ),
    (r"cut: -----BEGIN PRIVATE KEY-----\nMIIEabcdefghijklmnopqrst", "cut: [redacted:private-key]"),
    (f"{KEY} {KEY}", "[redacted:api-key] [redacted:api-key]"),
]


@pytest.mark.parametrize(("text", "wanted"), SECRETS)
def test_what_is_redacted(text: str, wanted: str) -> None:
    assert redact(text) == wanted
    assert redact(wanted) == wanted  # again changes nothing


@pytest.mark.parametrize(
    "text",
    [
        "sk-learn-contrib-extensions is a package",
        "task-force-2024-abcdefghijkl",
        "the bearer of good tidings, a bearer certificates-of-deposit",
        "http://host:8080/path@v2 and https://user@host/x:y",
        "password: required",
        "def f(password=None, token=token_of(x)): ...",
        "password=<your password> password=*** PASSWORD=$SECRET",
        "-----BEGIN PUBLIC KEY-----\nMIIEabcdefghijklmnopqrst\n-----END PUBLIC KEY-----",
        "AKIA is a prefix, ghp_short too, and eyJ.a.b",
        "meet bob@example.com at 10:30",
        "xoxo-and-kisses-for-you",
        '{"max_tokens": 12, "tokens": "many"}',
        "Is a key=value store secret?",
        "0f8fad5b-d9cb-469f-a165-70867728950e",
    ],
)
def test_what_only_looks_like_it_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "seed",
    [
        "sk-", "eyJaaaaaaaa.", "eyJ", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n-----END ", "://a:",
        "password=", "password='", '"password":"', r"\"password\":\"", "bearer ", "a_", "a-a_", "authorization:", " ",
        "secret_", "'password':'\\", "x" * 24 + "_",
    ],
)  # fmt: skip
def test_no_pattern_is_slower_than_linear(seed: str) -> None:
    # 400 kB: 0.1 s, and hours for a pattern that backtracks.
    for tail in ("", "@", "\"='://@"):
        redact(seed * (400_000 // len(seed)) + tail)


# -- the walk --------------------------------------------------------------------------------------------------------


def test_a_value_is_screened_whole_and_left_as_it_was() -> None:
    policy = WritePolicy([lambda text, entry: text.replace("x", "y")])
    at = datetime(2026, 1, 1, tzinfo=UTC)
    value = {"x": ["x", ("x", 1, None, at)], "set": {"x"}, "turn": Authority.user}
    assert policy.screen(value, "turn") == {"y": ["y", ["y", 1, None, at]], "set": ["y"], "turn": "user"}
    assert value["x"] == ["x", ("x", 1, None, at)]
    assert policy.screen("plain", "turn") == "plain"


def test_text_cut_into_blocks_is_looked_at_whole() -> None:
    policy = WritePolicy([redact])
    image = {"type": "image", "url": "u"}
    cut = [{"type": "text", "text": one} for one in ("a sk-test-", "000EXAM", "PLE000 b")]
    assert policy.screen([*cut, image], "turn") == [{"type": "text", "text": "a [redacted:api-key] b"}, image]
    whole = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, image]
    assert policy.screen(whole, "turn") == whole


async def test_a_circle_is_refused_and_not_walked_for_ever(make_memory: Maker) -> None:
    memory = await make_memory(redact="secrets")
    session = await memory.session.open("s1", user_id="u1")
    circle: dict[str, Any] = {}
    circle["a"] = circle["b"] = circle
    with pytest.raises(InvalidArgument, match="contains itself"):
        await session.add_turn("user", "hello there", metadata=circle)
    deep: Any = KEY
    for _ in range(200):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="nested deeper"):
        await session.execution.set("plan", deep)
    assert await session.turns() == []
