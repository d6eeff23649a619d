"""Messages of LlamaIndex as turns of a session, and back: equal, whatever they hold."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_index.core.base.llms.types import (
    AudioBlock,
    CacheControl,
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.schema import ImageDocument
from pydantic import BaseModel

from pgmem_core.errors import InvalidArgument
from pgmem_core.tiers.working import turn_of_row
from pgmem_core.turns import new_turn
from pgmem_core.types import Turn
from pgmem_llamaindex import chat_message, turn_arguments
from tests.fix_memory import Face, FakeEmbedder, Maker

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def stored(message: ChatMessage) -> Turn:
    """The turn as the database gives it back: through JSON, as jsonb holds it."""
    new = new_turn(tenant_id="t", session_id="s", language="english", **turn_arguments(message))
    held = json.loads(json.dumps(new.message, allow_nan=False)) if new.message else None
    now = datetime.now(UTC)
    return turn_of_row((new.id, "s", 1, new.role, new.text, held, new.metadata, new.token_count, now))


def back(message: ChatMessage) -> ChatMessage:
    return chat_message(stored(message))


# -- every block there is --------------------------------------------------------------------------------------

BLOCKS: list[Any] = [
    TextBlock(text="I live in Porto"),
    TextBlock(text=""),
    TextBlock(text=" \n "),
    TextBlock(text='{"city": "{x}"} {{y}} %s ${z} \x00 <|endoftext|> \ud83d'),
    ImageBlock(image=PNG, detail="high"),
    ImageBlock(image=b"no picture at all"),
    ImageBlock(url="https://example.org/a b.png"),
    ImageBlock(url="data:image/png;base64," + base64.b64encode(PNG).decode()),
    ImageBlock(),
    AudioBlock(audio=b"RIFF....WAVEfmt ", format="wav"),
    AudioBlock(url="https://example.org/said.mp3"),
    VideoBlock(video=b"\x00\x01moving", video_mimetype="video/mp4", fps=24),
    VideoBlock(url="https://example.org/seen.mp4"),
    DocumentBlock(data=b"%PDF-1.7 ...", title="The lease", document_mimetype="application/pdf"),
    DocumentBlock(data=b"\x04\xcc", title="which base64 makes look like a BMP"),
    DocumentBlock(url="https://example.org/lease.pdf"),
    DocumentBlock(path="somewhere/lease.pdf"),
    ThinkingBlock(content="hm", num_tokens=3, additional_information={"signature": b"\xff\x00", "n": 1}),
    ThinkingBlock(),
    CachePoint(cache_control=CacheControl(type="ephemeral", ttl="1h")),
    CitableBlock(title="t", source="s", content=[TextBlock(text="cited"), ImageBlock(image=PNG)]),
    CitableBlock(title="t", source="s", content=[DocumentBlock(data=b"d"), TextBlock(text="")]),
    CitationBlock(title="t", source="s", cited_content=TextBlock(text="quoted"), additional_location_info={"page": 3}),
    ToolCallBlock(tool_call_id="c1", tool_name="search", tool_kwargs={"q": "tea", "n": [1, 2.5, None, {"x": True}]}),
    ToolCallBlock(tool_name="search", tool_kwargs='{"q": "not parsed"}'),
    ToolCallBlock(tool_call_id="c2", tool_name="search", tool_kwargs="not even JSON {"),
    ToolCallBlock(tool_name="noop"),
]  # fmt: skip


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: repr(block)[:60])
def test_a_block_comes_back_equal(block: Any) -> None:
    message = ChatMessage(role="assistant", blocks=[block])
    before = message.model_copy(deep=True)
    again = back(message)
    assert again == before
    assert [type(one) for one in again.blocks] == [type(block)]
    assert message == before  # and the message given is as it was


def test_a_path_comes_back_though_the_file_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(PNG)
    message = ChatMessage(blocks=[ImageBlock(path=file), DocumentBlock(path=file), AudioBlock(path=file)])
    turn = stored(message)
    file.unlink()
    assert chat_message(turn) == message


def test_an_open_file_comes_back_as_its_bytes() -> None:
    stream = BytesIO(PNG)
    stream.read(4)
    [block] = back(ChatMessage(blocks=[ImageBlock(image=stream)])).blocks
    assert isinstance(block, ImageBlock)
    assert block.resolve_image().read() == PNG


words = st.text(st.characters(codec=None), max_size=20)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
names = words | st.sampled_from(["$bytes", "$$bytes", "$float"])
plain = st.recursive(
    st.none() | st.booleans() | numbers | words | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
binary = st.binary(max_size=24)
leaf = (
    st.builds(TextBlock, text=words)
    | st.builds(ImageBlock, image=binary, detail=st.none() | words)
    | st.builds(DocumentBlock, data=binary, title=st.none() | words)
)
blocks = (
    leaf
    | st.builds(AudioBlock, audio=binary, format=st.none() | words)
    | st.builds(VideoBlock, video=binary, fps=st.none() | st.integers(0, 99))
    | st.builds(
        ThinkingBlock, content=st.none() | words, additional_information=st.dictionaries(words, plain, max_size=2)
    )
    | st.builds(CachePoint, cache_control=st.builds(CacheControl, type=words))
    | st.builds(CitableBlock, title=words, source=words, content=st.lists(leaf, max_size=2))
    | st.builds(
        CitationBlock, title=words, source=words, cited_content=st.builds(TextBlock, text=words),
        additional_location_info=st.dictionaries(words, st.integers(0, 9), max_size=2),
    )
    | st.builds(
        ToolCallBlock, tool_call_id=st.none() | words, tool_name=words,
        tool_kwargs=st.dictionaries(words, plain, max_size=3) | words | st.just('{"a": 1}'),
    )
)  # fmt: skip
kwargs = st.dictionaries(
    words | st.sampled_from(["name", "tool_call_id", "tool_calls", "refusal", "llama_index"]), plain, max_size=3
)
messages = st.builds(
    ChatMessage, role=st.sampled_from(list(MessageRole)), blocks=st.lists(blocks, max_size=4), additional_kwargs=kwargs
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages)
def test_any_message_comes_back_equal(message: ChatMessage) -> None:
    assert back(message) == message
    # And once more: what was read back is stored as what it was.
    assert turn_arguments(back(message)) == turn_arguments(message)


@pytest.mark.parametrize("role", list(MessageRole), ids=lambda role: role.value)
def test_every_role_is_mapped_and_comes_back(role: MessageRole) -> None:
    message = ChatMessage(role=role, content="said")
    turn = stored(message)
    assert turn.role == {"function": "tool", "chatbot": "assistant", "model": "assistant"}.get(role.value, role.value)
    assert back(message) == message


def test_what_shows_nothing_is_kept_apart() -> None:
    nothing = [
        ChatMessage(role="assistant"),
        ChatMessage(role="assistant", content=""),
        ChatMessage(role="assistant", blocks=[TextBlock(text=""), TextBlock(text="")]),
    ]
    assert [back(message) for message in nothing] == nothing
    assert [back(message).content for message in nothing] == [None, "", "\n"]


# -- tool calls ------------------------------------------------------------------------------------------------


def test_f7_a_call_without_content_is_a_turn_with_a_call() -> None:
    call = ToolCallBlock(tool_call_id="c1", tool_name="search", tool_kwargs={"q": "tea"})
    message = ChatMessage(role="assistant", blocks=[call])
    assert message.content is None
    turn = stored(message)
    assert (turn.text, turn.content) == ("", "")
    assert turn.tool_calls == [
        {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q":"tea"}'}}
    ]
    assert back(message) == message


def test_calls_in_openais_old_place_are_calls_of_the_turn_and_go_back_there() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "tea"}'}}]
    message = ChatMessage(role="assistant", content=None, additional_kwargs={"tool_calls": calls, "x": 1})
    turn = stored(message)
    assert turn.tool_calls == calls
    assert back(message) == message

    class Call(BaseModel):
        id: str
        type: str
        function: dict[str, str]

    told = ChatMessage(role="assistant", content=None, additional_kwargs={"tool_calls": [Call(**calls[0])]})
    assert stored(told).tool_calls == calls
    assert back(told).additional_kwargs == {"tool_calls": calls}


def test_a_tools_result_knows_its_call_and_its_tool() -> None:
    message = ChatMessage(role="tool", content="42", additional_kwargs={"tool_call_id": "c1", "name": "search"})
    turn = stored(message)
    assert (turn.role, turn.tool_call_id, turn.name, turn.text) == ("tool", "c1", "search", "42")
    assert back(message) == message


def test_calls_stay_where_they_stood_among_other_blocks() -> None:
    call = ToolCallBlock(tool_call_id="c1", tool_name="search")
    other = ToolCallBlock(tool_call_id="c2", tool_name="search", tool_kwargs="text")
    text = TextBlock(text="let me look")
    for order in ([call, text], [text, call], [call, text, other], [ThinkingBlock(content="h"), call, text, other]):
        message = ChatMessage(role="assistant", blocks=order)
        assert back(message) == message


def test_turns_that_others_wrote_are_read() -> None:
    def turn(**fields: Any) -> Turn:
        new = new_turn(tenant_id="t", session_id="s", language="english", **{"content": None, **fields})
        return turn_of_row((new.id, "s", 1, new.role, new.text, new.message, {}, 1, datetime.now(UTC)))

    langchain = {"name": "search", "args": {"q": "tea"}, "id": "c1", "type": "tool_call"}
    assert chat_message(turn(role="ai", tool_calls=[langchain])) == ChatMessage(
        role="assistant", blocks=[ToolCallBlock(tool_call_id="c1", tool_name="search", tool_kwargs={"q": "tea"})]
    )
    url = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    made = chat_message(turn(role="user", content=["look", url, {"type": "server_tool_use"}], name="Ada"))
    assert [type(block) for block in made.blocks] == [TextBlock, ImageBlock]
    assert made.additional_kwargs == {"name": "Ada"}
    assert chat_message({"role": "user", "content": "a dict will do"}) == ChatMessage(content="a dict will do")


# -- what JSON has no word for ---------------------------------------------------------------------------------


def test_b14_what_json_has_no_word_for_comes_back_in_its_documented_form_or_is_refused_by_name() -> None:
    moment = datetime(2024, 2, 29, 7, 30, tzinfo=UTC)
    kept = {"at": moment, "id": UUID(int=7), "price": Decimal("1.5"), "raw": b"\x00\xff", "pair": (1, 2)}
    assert back(ChatMessage(content="x", additional_kwargs=kept)).additional_kwargs == {
        "at": "2024-02-29T07:30:00.000000Z", "id": str(UUID(int=7)), "price": 1.5, "raw": b"\x00\xff", "pair": [1, 2],
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match="odd"):
        stored(ChatMessage(content="x", additional_kwargs={"odd": object()}))
    with pytest.raises(InvalidArgument, match="odd"):
        stored(ChatMessage(blocks=[ToolCallBlock(tool_name="t", tool_kwargs={"odd": object()})]))


def test_images_that_llamaindex_made_blocks_of_are_not_doubled() -> None:
    message = ChatMessage(content="look", additional_kwargs={"images": [ImageDocument(image=base64.b64encode(PNG))]})
    assert len(message.blocks) == 2
    again = back(message)
    assert again.blocks == message.blocks
    assert again.additional_kwargs == {}
    assert ChatMessage.model_validate(again.model_dump()).blocks == message.blocks


@pytest.mark.parametrize("odd", ["text", None, {"role": "user", "content": "x"}], ids=repr)
def test_what_is_no_message_is_refused(odd: Any) -> None:
    with pytest.raises(InvalidArgument, match="ChatMessage"):
        turn_arguments(odd)


# -- in the database -------------------------------------------------------------------------------------------


async def test_e10_only_words_are_searched_and_everything_comes_back(make_memory: Maker) -> None:
    embedder = FakeEmbedder()
    memory: Face = await make_memory(embedder=embedder)
    session = await memory.session.create("s", user_id="u")
    picture = base64.b64encode(b"\x89PNG" + b"\x07" * 2_250_000)  # 3 MB
    said = [
        ChatMessage(blocks=[TextBlock(text="my bicycle is green"), ImageBlock(image=picture)]),
        ChatMessage(
            role="assistant",
            blocks=[
                ThinkingBlock(content="secretreasoning"),
                TextBlock(text="a fine colour"),
                CitableBlock(title="t", source="s", content=[TextBlock(text="passage given to the model")]),
                ToolCallBlock(tool_call_id="c", tool_name="paint", tool_kwargs={"colour": "vermilion"}),
            ],
            additional_kwargs={"usage": {"tokens": 12}, "blob": b"\x00"},
        ),
    ]
    await session.add_turns([turn_arguments(message) for message in said])
    assert [chat_message(turn) for turn in await session.turns()] == said
    await memory.form()
    words = " ".join(embedder.texts)
    assert "my bicycle is green" in words
    assert "a fine colour" in words
    assert not [hidden for hidden in ("secretreasoning", "vermilion", "passage given", "BwcHBw") if hidden in words]
    best, *_ = await memory.search("bicycle", user_id="u", kind="turn")
    assert best.content == "my bicycle is green"
    assert (await session.turns())[0].token_count < 2_000
