"""Every kind of LangChain message with every field, as hypothesis strategies and as one list."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

__all__ = ["EVERY_KIND", "messages"]

# Lone surrogates and NUL included: pgmem's own rule stores them.
_text = st.text(st.characters(), max_size=12)
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_object = st.dictionaries(_text, _json, max_size=3)
_ids = st.none() | st.text(max_size=20) | st.uuids().map(str) | st.just("run--" + "x" * 400)
_block = (
    st.builds(lambda text: {"type": "text", "text": text}, _text)
    | st.builds(lambda text: {"type": "reasoning", "reasoning": text, "extras": {"signature": "c2ln"}}, _text)
    | st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, _text)
    | st.builds(lambda data: {"type": "image", "base64": data, "mime_type": "image/png"}, _text)
    | st.builds(lambda args: {"type": "tool_use", "id": "t1", "name": "look", "input": args}, _object)
    | _object
)
_content = _text | st.lists(_text | _block, max_size=4)
_call = st.builds(
    lambda name, args, id: {"name": name, "args": args, "id": id, "type": "tool_call"},
    _text,
    _object,
    st.none() | _text,
)
_invalid = st.builds(
    lambda name, args, id, error: {"name": name, "args": args, "id": id, "error": error, "type": "invalid_tool_call"},
    st.none() | _text, st.none() | _text, st.none() | _text, st.none() | _text,
)  # fmt: skip
_usage = st.none() | st.builds(
    lambda i, o, cached: {
        "input_tokens": i, "output_tokens": o, "total_tokens": i + o, "input_token_details": {"cache_read": cached},
    },
    st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6),
)  # fmt: skip

_shared = {
    "content": _content, "id": _ids, "name": st.none() | _text, "additional_kwargs": _object,
    "response_metadata": _object,
}  # fmt: skip


def _of(kind: type[BaseMessage], **fields: Any) -> st.SearchStrategy[BaseMessage]:
    return st.fixed_dictionaries({**_shared, **fields}).map(lambda values: kind(**values))


messages: st.SearchStrategy[BaseMessage] = st.one_of(
    _of(HumanMessage),
    _of(SystemMessage),
    _of(
        AIMessage, tool_calls=st.lists(_call, max_size=2), invalid_tool_calls=st.lists(_invalid, max_size=2),
        usage_metadata=_usage,
    ),
    _of(ToolMessage, tool_call_id=_text, artifact=_json, status=st.sampled_from(["success", "error"])),
    _of(FunctionMessage, name=_text),
    _of(ChatMessage, role=st.sampled_from(["critic", "user", "assistant", "system", ""]) | _text),
)  # fmt: skip

EVERY_KIND: list[BaseMessage] = [
    SystemMessage("Answer in French."),
    SystemMessage("Be brief.", additional_kwargs={"__openai_role__": "developer"}),
    HumanMessage(
        ["Look:", {"type": "text", "text": "what is this?"},
         {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}],
        id="h-1", name="Ada",
    ),
    AIMessage(
        [{"type": "reasoning", "reasoning": "A cat, surely."}, {"type": "text", "text": "Let me see."},
         {"type": "tool_use", "id": "c1", "name": "look", "input": {"deep": [1, 2.5, None]}}],
        tool_calls=[{"name": "look", "args": {"deep": [1, 2.5, None]}, "id": "c1", "type": "tool_call"}],
        invalid_tool_calls=[
            {"name": "look", "args": '{"deep": ', "id": "c2", "error": "cut off", "type": "invalid_tool_call"}
        ],
        usage_metadata={
            "input_tokens": 12, "output_tokens": 5, "total_tokens": 17, "input_token_details": {"cache_read": 3},
        },
        response_metadata={"model_name": "m", "finish_reason": "tool_calls"},
        id="run--5b2c-0", additional_kwargs={"refusal": None},
    ),
    ToolMessage("a cat", tool_call_id="c1", artifact={"boxes": [[1, 2], [3, 4]]}, name="look", status="success"),
    ToolMessage([{"type": "text", "text": "no such call"}], tool_call_id="c2", status="error"),
    ChatMessage(content="I object.", role="critic"),
    FunctionMessage(content="42", name="answer"),
    AIMessage("A cat.", id="0b0e8f0e-3f5e-4a0f-8d41-0c6e0f3f0b11"),
    AIMessage(""),  # a stream that was broken off before its first word
    HumanMessage([]),
]  # fmt: skip
