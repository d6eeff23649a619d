"""`PgMemMemory`: what `get` gives and `put` keeps, in both forms, on real Postgres."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.workflow import Context, JsonSerializer
from pydantic import ValidationError

from pgmem_core import AsyncPgMem, BundledEmbedder, Conflict, InvalidArgument, PgMem
from pgmem_core.errors import StoreUnavailable
from pgmem_core.tokens import count_message
from pgmem_llamaindex import PgMemMemory, turn_arguments
from pgmem_llamaindex.recalled import Part, cut, is_recalled, text_of
from tests.fix_memory import Face, FakeEmbedder, Maker
from tests.fix_postgres import PostgresServer
from tests.llamaindex.fix_llamaindex import contents, mixed
from tests.llamaindex.scripted import Both, call, recalled, texts

__all__ = ["mixed"]

ROOT = Path(__file__).resolve().parent.parent.parent
NOTE = "My bicycle is green and stands in the yard"
QUESTION = "What colour is my bicycle?"


def user(content: str) -> ChatMessage:
    return ChatMessage(role="user", content=content)


def assistant(content: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=content)


async def known(memory: Face, note: str = NOTE, user_id: str = "u") -> None:
    """The user said something in another session."""
    session = await memory.session.open(f"earlier-{user_id}", user_id=user_id)
    await session.add_turn("user", note)
    await memory.form()


async def believe(memory: Face, predicate: str, value: str) -> None:
    """Something is known of the user."""
    session = await memory.session.open("facts", user_id="u")
    await session.observe(predicate, value)


async def remember(memory: Face, **fields: Any) -> Both:
    await known(memory)
    return Both(memory, user_id="u", **fields)


# -- what get gives --------------------------------------------------------------------------------------------


async def test_messages_come_back_as_they_were_put(memory: Face) -> None:
    chat = Both(memory)
    told = [user("hello"), assistant("hi"), ChatMessage(role="user", content="bye", additional_kwargs={"k": [1]})]
    assert await chat.get() == await chat.get_all() == []
    await chat.put(told[0])
    await chat.put_messages(told[1:])
    assert await chat.get() == await chat.get_all() == told


async def test_what_is_remembered_stands_before_the_question_that_is_put(memory: Face) -> None:
    chat = await remember(memory)
    await chat.put_messages([user("hello"), assistant("hi"), user(QUESTION)])
    given = await chat.get()
    [shown] = recalled(given)
    assert NOTE in shown
    assert texts(given) == ["hello", "hi", shown, QUESTION]
    assert given[2].role == MessageRole.USER
    assert given[2].additional_kwargs == {}  # some integrations send them on to the provider


async def test_and_at_the_end_where_the_question_is_not_put_yet(memory: Face) -> None:
    chat = await remember(memory)
    await chat.put_messages([user("hello"), assistant("hi")])
    given = await chat.get(input=QUESTION)
    assert texts(given) == ["hello", "hi", *recalled(given)]
    assert NOTE in recalled(given)[0]
    # Asked, answered, and asked once more in the same words: it is not put yet either.
    await chat.put_messages([user(QUESTION), assistant("green")])
    given = await chat.get(input=QUESTION)
    assert texts(given) == ["hello", "hi", QUESTION, "green", *recalled(given)]
    assert NOTE in recalled(given)[0]


async def test_a_question_whose_tools_are_at_work_is_put(memory: Face) -> None:
    chat = await remember(memory)
    lookup = call("look")
    result = ChatMessage(role="tool", content="in the yard", additional_kwargs={"tool_call_id": "call-look"})
    await chat.put_messages([user(QUESTION), lookup, result])
    given = await chat.get(input=QUESTION)
    assert texts(given) == [*recalled(given), QUESTION, "", "in the yard"]
    assert NOTE in recalled(given)[0]


@pytest.mark.parametrize(
    "asked",
    [
        QUESTION,
        ChatMessage(role="user", content=QUESTION),
        ChatMessage(role="user", blocks=[TextBlock(text=QUESTION), ImageBlock(url="https://example.org/a.png")]),
        [TextBlock(text=QUESTION)],
    ],
    ids=["text", "message", "text and image", "blocks"],
)
async def test_a_question_in_any_form(memory: Face, asked: Any) -> None:
    chat = await remember(memory)
    assert NOTE in recalled(await chat.get(input=asked))[0]


async def test_a_greeting_stays_first(memory: Face) -> None:
    chat = Both(memory)
    await chat.put_messages([ChatMessage(role="system", content="Be kind."), assistant("Welcome!"), user("hello")])
    assert texts(await chat.get()) == ["Be kind.", "Welcome!", "hello"]


@pytest.mark.parametrize("asked", [None, "", " \n", [], [ImageBlock(url="https://example.org/a.png")]])
async def test_a_question_without_words_recalls_nothing(memory: Face, asked: Any) -> None:
    chat = await remember(memory)
    assert await chat.get(input=asked) == []
    assert recalled(await chat.get(input=QUESTION))


async def test_nothing_is_added_where_nothing_is_relevant(memory: Face) -> None:
    chat = await remember(memory)
    await chat.put(user("Explain the offside rule of football to a beginner"))
    assert recalled(await chat.get()) == []
    await chat.put(user(QUESTION))
    assert len(recalled(await chat.get())) == 1


async def test_facts_that_stand_are_told_with_every_question(memory: Face) -> None:
    await believe(memory, "diet", "vegan")
    chat = Both(memory, user_id="u")
    assert await chat.get() == []  # no question yet
    await chat.put(user("Explain the offside rule"))
    [shown] = recalled(await chat.get())
    assert "vegan" in shown
    assert shown.count("<memory facts ") == 1


async def test_standing_facts_and_recalled_turns_are_one_message(memory: Face) -> None:
    await believe(memory, "diet", "vegan")
    chat = await remember(memory)
    await chat.put(user(QUESTION))
    [shown] = recalled(await chat.get())
    assert shown.index("vegan") < shown.index(NOTE)


async def test_another_users_memory_is_never_shown(memory: Face) -> None:
    await known(memory, user_id="someone else")
    stranger = Both(memory, user_id="u")
    await stranger.put(user(QUESTION))
    assert recalled(await stranger.get()) == []
    own = Both(memory, "s2", user_id="someone else")
    await own.put(user(QUESTION))
    assert NOTE in recalled(await own.get())[0]
    other_group = Both(memory, "s3", user_id="someone else", group_id="other")
    await other_group.put(user(QUESTION))
    assert recalled(await other_group.get()) == []
    with pytest.raises(Conflict, match="another user"):
        await Both(memory, "s2", user_id="u").get()


async def test_returned_messages_are_copies(memory: Face) -> None:
    chat = await remember(memory)
    await chat.put(user(QUESTION))
    for _ in range(2):
        for message in await chat.get():
            message.blocks[0].text = "overwritten"
            message.additional_kwargs["k"] = 1
    assert texts(await chat.get())[-1] == QUESTION
    assert "overwritten" not in str(await chat.get())


async def test_the_same_is_shown_until_the_user_says_something_new(make_memory: Maker, dsn: str) -> None:
    """One search, one embedding and one entry of the injection log a turn, however often an agent asks."""
    embedder = FakeEmbedder({NOTE: [1.0] * 8, QUESTION: [1.0] * 8})
    memory = await make_memory(embedder=embedder)
    chat = await remember(memory)
    await chat.put(user(QUESTION))
    first = await chat.get()
    assert embedder.texts.count(QUESTION) == 1
    await known(memory, "My bicycle was stolen from the yard, it was green")
    embedder.texts.clear()
    again = [await chat.get(), await chat.get(input=QUESTION), await chat.get()]
    assert again == [first] * 3
    assert embedder.texts == []
    await chat.put_messages([assistant("green"), user(QUESTION + " Really?")])
    assert "stolen" in recalled(await chat.get())[0]
    await memory.close()
    with psycopg.connect(dsn) as conn:
        assert conn.execute("SELECT count(*) FROM pgmem.injections").fetchone() == (2,)


async def test_what_was_forgotten_is_not_shown_for_long(memory: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = await remember(memory)
    await chat.put(user(QUESTION))
    assert recalled(await chat.get())
    await (await memory.session.get("earlier-u")).delete()
    monkeypatch.setattr("pgmem_llamaindex.reading._MEMO_SECONDS", 0.0)
    assert recalled(await chat.get()) == []


async def test_another_process_may_write_in_between(memory: Face) -> None:
    chat, other = await remember(memory), Both(memory, user_id="u")
    await chat.put(user("Explain the offside rule of football to a beginner"))
    assert recalled(await chat.get()) == []
    await other.put(user(QUESTION))
    given = await chat.get()
    assert texts(given)[-2:] == [*recalled(given), QUESTION]
    assert NOTE in recalled(given)[0]


@pytest.mark.parametrize("put", [True, False])
async def test_system_first(memory: Face, put: bool) -> None:
    chat = await remember(memory, insert_method="system")
    await chat.put_messages([user("hello"), assistant("hi"), *([user(QUESTION)] if put else [])])
    given = await chat.get(input=QUESTION)
    [shown] = recalled(given)
    assert (given[0].role, given[0].content) == (MessageRole.SYSTEM, shown)
    assert texts(given)[1:] == ["hello", "hi", QUESTION][: 2 + put]


@pytest.mark.parametrize("put", [True, False])
async def test_merged_into_the_newest_user_message(memory: Face, put: bool) -> None:
    chat = await remember(memory, insert_method="merge")
    await chat.put_messages([user("hello"), assistant("hi"), *([user(QUESTION), assistant("well")] if put else [])])
    given = await chat.get(input=None if put else QUESTION)
    assert [message.role.value for message in given] == ["user", "assistant"] * (1 + put)
    [shown] = recalled(given)
    assert texts(given)[-2] == f"{shown}\n{QUESTION if put else 'hello'}"


async def test_a_question_that_was_redacted_is_still_the_question(make_memory: Maker) -> None:
    memory = await make_memory(redact="secrets")
    chat = await remember(memory)
    asked = "My key is AKIAIOSFODNN7EXAMPLE. " + QUESTION
    await chat.put(user(asked))
    given = await chat.get(input=asked)  # as agents do
    assert texts(given)[:-1] == recalled(given)
    assert NOTE in recalled(given)[0]
    assert QUESTION in texts(given)[-1]
    assert "AKIAIOSFODNN7EXAMPLE" not in str(given)


async def test_recall_within_its_bounds(memory: Face) -> None:
    session = await memory.session.create(user_id="u")
    await session.add_turns([{"role": "user", "content": f"My bicycle number {n} is green"} for n in range(30)])
    await memory.form()
    for most, options in [(3, {"recall_items": 3}), (8, {}), (0, {"recall_items": 0}), (0, {"recall_tokens": 0})]:
        chat = Both(memory, None, user_id="u", **options)
        await chat.put(user(QUESTION))
        shown = recalled(await chat.get())
        assert sum(text.count("\n- ") for text in shown) == most
    low = Both(memory, None, user_id="u", floor=None)
    await low.put(user("Explain the offside rule of football to a beginner"))
    assert recalled(await low.get())


# -- the window ------------------------------------------------------------------------------------------------


def cost(messages: list[ChatMessage]) -> int:
    rows = [turn_arguments(message) for message in messages]
    return sum(count_message(row["content"], row.get("tool_calls"), row.get("name")) for row in rows)


@pytest.mark.parametrize("spent", [0, 99, 100, 5_000])
async def test_the_newest_user_message_is_kept_however_long(memory: Face, spent: int) -> None:
    """F2."""
    long = "walnut " * 3_000
    chat = Both(memory, token_limit=100)
    await chat.put_messages([user("hello"), assistant("hi"), user(long)])
    assert texts(await chat.get(initial_token_count=spent)) == [long]
    await chat.put(assistant("I see"))
    await chat.put(user("short"))
    # Not ["I see", "short"], for which there is room: some providers refuse a history that begins with a reply.
    assert texts(await chat.get(initial_token_count=spent)) == ["short"]


async def test_the_window_begins_where_the_provider_accepts_it(memory: Face) -> None:
    """F3, F7: calls with their results, at every limit."""
    told = []
    for n in range(6):
        made = ToolCallBlock(tool_call_id=f"c{n}", tool_name="look", tool_kwargs={"n": n})
        told += [
            user(f"question {n}"),
            ChatMessage(role="assistant", blocks=[made], additional_kwargs={}),
            ChatMessage(role="tool", content=f"result {n} " * 5, additional_kwargs={"tool_call_id": f"c{n}"}),
            assistant(f"answer {n}"),
        ]
    writer = Both(memory)
    await writer.put_messages([ChatMessage(role="system", content="Be short."), *told])
    for limit in range(10, 500, 35):
        given = await Both(memory, token_limit=limit).get()
        assert given[-1].role != MessageRole.TOOL
        assert next(message.role for message in given if message.role != MessageRole.SYSTEM) == MessageRole.USER
        calls: set[str | None] = set()
        for before, message in zip([None, *given], given, strict=False):
            if message.role == MessageRole.TOOL:
                assert message.additional_kwargs["tool_call_id"] in calls
                assert before is not None
                assert before.role in (MessageRole.ASSISTANT, MessageRole.TOOL)
            calls = {b.tool_call_id for b in message.blocks if isinstance(b, ToolCallBlock)} or calls
        assert "question 5" in texts(given)
        assert cost(given) <= max(limit, cost([user("question 5")]))
    assert await Both(memory, token_limit=5_000).get() == [ChatMessage(role="system", content="Be short."), *told]


async def test_calls_and_pictures_and_thoughts_are_counted(memory: Face) -> None:
    """F4."""
    heavy = [
        call("write", text="walnut " * 5_000),
        ChatMessage(role="assistant", blocks=[ThinkingBlock(content="walnut " * 5_000), TextBlock(text="so")]),
        ChatMessage(role="assistant", blocks=[ImageBlock(image=b"\x89PNG" * 100_000), TextBlock(text="look")]),
    ]
    for n, message in enumerate(heavy):
        chat = Both(memory, f"s{n}", token_limit=700)
        await chat.put_messages([user("before"), message, user("after")])
        assert texts(await chat.get()) == ["after"]
        roomy = Both(memory, f"s{n}", token_limit=12_000)
        assert len(await roomy.get()) >= 3


async def test_instructions_stay_first_and_once(memory: Face) -> None:
    """F5."""
    rule = ChatMessage(role="system", content="You are the clerk of the lockers.")
    chat = Both(memory, token_limit=200)
    await chat.put(rule)
    for n in range(30):
        await chat.put(user(f"this is what I say as number {n}") if n % 2 == 0 else assistant(f"noted as number {n}"))
        given = await chat.get()
        assert [message.role.value for message in given].count("system") == 1
        assert given[0] == rule
        assert texts(given)[-1].endswith(f"number {n}")
    assert len(given) < 31
    assert len(await chat.get_all()) == 31


async def test_a_prompt_that_takes_part_of_the_limit(memory: Face) -> None:
    chat = Both(memory, token_limit=300)
    await chat.put_messages([user(f"number {n} walnut") for n in range(60)])
    many, few = await chat.get(), await chat.get(initial_token_count=200)
    assert cost(few) <= 100 < cost(many) <= 300
    assert texts(many)[-1] == texts(few)[-1] == "number 59 walnut"
    assert len(chat.target.tokenizer_fn("hello there")) == 2


# -- what is kept ----------------------------------------------------------------------------------------------


async def test_what_get_added_is_never_stored(memory: Face) -> None:
    """F6."""
    for method in ("user", "system", "merge"):
        chat = await remember(memory, session_id=method, insert_method=method)
        told = [user("hello"), assistant("hi"), user(QUESTION)]
        await chat.put_messages(told)
        given = await chat.get()
        assert recalled(given)
        await chat.set(given)  # as `engine.chat(…, chat_history=memory.get())` does
        assert await chat.get_all() == told
        await chat.put_messages(given)
        assert await chat.get_all() == [*told, *told]


async def test_what_only_looks_like_it_is_stored(memory: Face) -> None:
    chat = await remember(memory)
    await chat.put(user(QUESTION))
    [shown] = recalled(await chat.get())
    alike = [
        shown.replace("green", "red"), shown + "\nand more", "Look: " + shown, shown.partition("\n")[0],
        shown.replace("<memory recalled", "<memory facts"),
    ]  # fmt: skip
    await chat.put_messages([user(text) for text in alike])
    assert texts(await chat.get_all()) == [QUESTION, *alike]


async def test_set_keeps_the_beginning_and_reset_its_own_session(memory: Face) -> None:
    """F8, F9."""
    one, two = Both(memory, "one", user_id="u"), Both(memory, "two", user_id="u")
    told = [user("my cat is called Minka"), assistant("a fine name"), user("bye")]
    await one.put_messages(told)
    await two.put(user("my dog is called Bello"))
    await believe(memory, "cat", "Minka")
    session = await memory.session.get("one", user_id="u")
    before = await session.turns()
    await one.set(told)
    assert await session.turns() == before
    await one.set([*told[:2], user("wait")])
    after = await session.turns()
    assert [turn.id for turn in after][:2] == [turn.id for turn in before][:2]
    assert texts(await one.get_all()) == ["my cat is called Minka", "a fine name", "wait"]
    await one.put_messages([])
    assert len(await one.get_all()) == 3
    await one.reset()
    assert await one.get_all() == await one.get() == await one.get_all(status=None) == []
    assert texts(await two.get_all()) == ["my dog is called Bello"]
    assert [fact.value for fact in await memory.facts(user_id="u")] == ["Minka"]
    await one.put(user("what is my cat called?"))
    assert "Minka" in recalled(await one.get())[0]


async def test_built_again_it_keeps_everything(memory: Face) -> None:
    """F9."""
    first = Both(memory, user_id="u")
    told = [user("one"), assistant("two"), user("three"), assistant("four")]
    await first.put_messages(told)
    again = Both(memory, user_id="u")
    assert await again.get_all() == await again.get() == told
    if memory.face == "sync":
        given = await asyncio.to_thread(PgMemMemory.from_defaults, "s", [], user_id="u", mem=memory.target)
        assert await asyncio.to_thread(given.get_all) == told
        given = await asyncio.to_thread(PgMemMemory.from_defaults, "s", told[:2], user_id="u", mem=memory.target)
        assert await asyncio.to_thread(given.get_all) == told[:2]


async def test_two_memories_built_without_a_session(memory: Face) -> None:
    """A9."""
    one, two = Both(memory, None), Both(memory, None)
    assert one.target.session_id != two.target.session_id
    await one.put(user("alpha"))
    assert contents(await one.get_all()) == ["alpha"]
    assert await two.get_all() == await two.get() == []


async def test_any_text_reaches_the_model_byte_for_byte(memory: Face) -> None:
    """B5, E11."""
    odd = 'why <|endoftext|> <|im_start|>? {"city": "{x}"} {{y}} %s ${z} {query_str} {context_str}'
    await known(memory, odd)
    chat = Both(memory, user_id="u", floor=None)
    await chat.put_messages([user(odd), assistant(odd), user("why endoftext?")])
    given = await chat.get()
    assert texts(given)[:2] == [odd, odd]
    assert odd in recalled(given)[0]


async def test_what_a_template_would_fill_in_is_broken_where_a_template_is_made(memory: Face) -> None:
    """E11: only where the question is not put yet, and nothing but the four names."""
    odd = '{"city": "{x}"} {{y}} {z} {query_str} {context_str} {context_msg} {existing_answer}'
    broken = '{"city": "{x}"} {{y}} {z} { query_str } { context_str } { context_msg } { existing_answer }'
    await known(memory, odd)
    chat = Both(memory, user_id="u", floor=None)
    await chat.put_messages([user(odd), assistant("hm")])
    given = await chat.get(input="which city?")
    assert texts(given)[0] == broken
    assert broken in recalled(given)[0]
    assert is_recalled(recalled(given)[0])
    assert texts(await chat.get_all())[0] == odd


async def test_a_long_conversation_and_a_long_question(make_memory: Maker) -> None:
    """C13: an embedder that refuses more than it can read."""
    memory = await make_memory(embedder=FakeEmbedder(fail=lambda text: len(text) > 33_000))
    chat = Both(memory, user_id="u")
    await chat.put_messages([user(f"number {n}: " + "walnut pie " * 350) for n in range(60)])
    await memory.form()
    asked = "how many walnuts? " * 5_000
    given = await chat.get(input=asked)
    assert cost(given) <= 30_000
    await chat.put(user(asked))
    assert texts(await chat.get())[-1] == asked


async def test_messages_of_every_kind_are_kept(memory: Face) -> None:
    """E10."""
    picture = ImageBlock(image=b"\x89PNG" * 50_000, image_mimetype="image/png")
    told = [
        ChatMessage(role="user", blocks=[TextBlock(text="see"), picture]),
        ChatMessage(role="assistant", blocks=[ThinkingBlock(content="hm"), TextBlock(text="I see")]),
        call("look", where="yard"),
        ChatMessage(role="tool", content="green", additional_kwargs={"tool_call_id": "call-look", "name": "look"}),
        ChatMessage(role="assistant", content=None),
        ChatMessage(role="user", content="and?", additional_kwargs={"usage": {"tokens": 3}}),
    ]
    chat = Both(memory)
    await chat.put_messages(told)
    assert await chat.get_all() == told
    assert await chat.get() == told


# -- where it is kept ------------------------------------------------------------------------------------------


async def test_it_is_true_and_has_no_length(memory: Face) -> None:
    chat = Both(memory).target
    assert chat
    assert not hasattr(chat, "__len__")
    with pytest.raises(ValidationError):
        PgMemMemory.from_defaults(mem=memory.target, token_limit=0)
    with pytest.raises(TypeError):
        PgMemMemory.from_defaults(mem=memory.target, user="ada")  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="input must be"):
        await Both(memory).get(input=5)
    with pytest.raises(InvalidArgument, match="session_id"):
        PgMemMemory.from_defaults(" ", mem=memory.target)


def test_copies_and_pickles_lead_to_the_same_memory(dsn: str) -> None:
    with PgMem(dsn) as mem:
        memory = PgMemMemory.from_defaults("s", user_id="u", mem=mem, token_limit=77, floor=None)
        memory.put(user("hello"))
        for made in (copy.copy(memory), copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))):
            assert made.get_all() == [user("hello")]
            assert (made.session_id, made.user_id, made.token_limit, made.floor) == ("s", "u", 77, None)


_LATER = """
import asyncio, json, sys
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.workflow import Context, JsonSerializer
from tests.llamaindex.scripted import Llama, texts

async def main():
    llm = Llama(replies=["later"])
    agent = FunctionAgent(llm=llm, tools=[])
    ctx = Context.from_dict(agent, json.load(sys.stdin), serializer=JsonSerializer())
    await agent.run("and now?", ctx=ctx)
    memory = await ctx.store.get("memory")
    print(json.dumps([texts(llm.asked[0]), texts(await memory.aget_all())]))

asyncio.run(main())
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_workflow_goes_on_in_a_new_process(secret_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run, to_dict, new process, from_dict, run: the secret stays in the environment. There without a cached
    tokenizer (B6)."""
    from llama_index.core.agent.workflow import FunctionAgent

    from tests.llamaindex.scripted import Llama

    monkeypatch.setenv("AGENT_DATABASE", secret_dsn)
    memory = PgMemMemory.from_defaults("s", user_id="u", dsn="env:AGENT_DATABASE", token_limit=9_000)
    agent = FunctionAgent(llm=Llama(replies=["first"]), tools=[])
    ctx: Context[Any] = Context(agent)
    try:
        await agent.run("hello", ctx=ctx, memory=memory)
        written = json.dumps(ctx.to_dict(serializer=JsonSerializer()))
        assert "s3cret" not in written
        assert "AGENT_DATABASE" in written
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", _LATER], input=written, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TIKTOKEN_CACHE_DIR": "/nowhere"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        asked, stored = json.loads(done.stdout)
        assert asked == ["hello", "first", "and now?"]
        assert stored == ["hello", "first", "and now?", "later"] == texts(await memory.aget_all())
        assert done.stderr.count("PgmemWarning") <= 1
    finally:
        await memory._handle.rt.database.aclose()
        from pgmem_llamaindex import close_memories

        close_memories()


@pytest.fixture
def secret_dsn(dsn: str) -> str:
    """The same database with a password in its DSN, which a server that trusts does not look at."""
    joint = "&" if "?" in dsn else "?"
    return f"{dsn}{joint}password=s3cret"


async def test_one_object_in_two_loops(dsn: str) -> None:
    """D8."""
    mem = AsyncPgMem(dsn, embedder=BundledEmbedder())
    memory = PgMemMemory.from_defaults("s", mem=mem)

    def use(text: str) -> list[str]:
        async def main() -> list[str]:
            await memory.aput(user(text))
            given = texts(await memory.aget())
            await mem.close()
            return given

        return asyncio.run(main())

    assert await asyncio.to_thread(use, "one") == ["one"]
    assert await asyncio.to_thread(use, "two") == ["one", "two"]
    assert texts(memory.get_all()) == ["one", "two"]  # the blocking form, in this loop
    await mem.close()


async def test_many_blocking_calls_in_a_running_loop(mixed: Face, dsn: str) -> None:
    """D9: connections do not add up."""
    memory = PgMemMemory.from_defaults("s", mem=mixed.target)

    def open_connections(conn: psycopg.Connection) -> int:
        row = conn.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()").fetchone()
        assert row is not None
        return int(row[0])

    with psycopg.connect(dsn, autocommit=True) as conn:
        memory.put(user("hello"))
        memory.get()
        before = open_connections(conn)
        for _ in range(100):
            memory.put(assistant("hi"))
            memory.get()
        assert open_connections(conn) <= before + 1
    assert len(await memory.aget_all()) == 101


# -- without the database --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_no_reply_is_lost_to_a_database_that_is_away(
    own_server: PostgresServer, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D16: `on_error` says whether to raise or to go on; going on is counted, logged, and made up for."""
    where = own_server.dsn("postgres")
    memory = Face((PgMem if form == "sync" else AsyncPgMem)(where, embedder=BundledEmbedder()), form)
    await memory.setup()
    try:
        strict, lenient = Both(memory, "strict"), Both(memory, "lenient", on_error="degrade")
        for chat in (strict, lenient):
            await chat.put(user("hello"))
            assert texts(await chat.get()) == ["hello"]
        await asyncio.to_thread(own_server.stop)
        with pytest.raises(StoreUnavailable):
            await strict.get()
        with pytest.raises(StoreUnavailable):
            await strict.put(user("lost"))
        with caplog.at_level(logging.WARNING, "pgmem_llamaindex"):
            assert texts(await lenient.get()) == ["hello"]
            await lenient.put_messages([assistant("hi"), user("still there?")])
            assert texts(await lenient.get()) == ["hi", "still there?"]
        assert (strict.target.failures, lenient.target.failures) == (0, 3)
        assert len([record for record in caplog.records if "lenient" in record.getMessage()]) == 3
        await asyncio.to_thread(own_server.start)
        other = Both(memory, "lenient")
        assert texts(await other.get_all()) == ["hello"]
        assert texts(await lenient.get_all()) == ["hello", "hi", "still there?"] == texts(await lenient.get())
        await lenient.put(assistant("yes"))
        assert texts(await other.get_all()) == ["hello", "hi", "still there?", "yes"]
        assert texts(await strict.get_all()) == ["hello"]
    finally:
        await memory.close()


# -- the text --------------------------------------------------------------------------------------------------


def test_a_text_is_cut_entry_by_entry_from_its_end() -> None:
    parts = [Part("facts", ("- one", "- two")), Part("recalled", ("- three\n  more", "- four"))]
    whole = text_of(parts)
    assert whole is not None
    assert is_recalled(whole)
    assert text_of([]) is None
    shorter = cut(whole, 1)
    assert shorter is not None
    assert is_recalled(shorter)
    assert "three\n  more" in shorter
    assert "four" not in shorter
    assert "<memory recalled" not in (cut(whole, 30) or "")
    assert cut(whole, 10_000) is None
    assert cut("not ours", 1) is None
