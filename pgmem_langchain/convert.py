"""LangChain messages as turns of a session, and back: the same objects, whatever their type.

What a turn has fields for goes there (role, content, name, tool calls), so that every reader of the session can use
it; all the rest of a message goes, as JSON, into the turn's `extra` under "lc". What JSON has no type for (bytes,
tuples, an artifact that is an object) is refused, by its place, before anything is written. Chunks come back as the
messages they make up, subclasses of your own as the LangChain class they extend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    BaseMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
    message_chunk_to_message,
    messages_from_dict,
)
from langchain_core.output_parsers.openai_tools import parse_tool_call

from pgmem_core.errors import InvalidArgument
from pgmem_core.ids import check_id
from pgmem_core.turns import check_role
from pgmem_core.types import Turn

__all__ = ["NO_RESULT", "as_messages", "message_of", "repair", "turn_id", "turn_of"]

NO_RESULT = "No result was recorded for this tool call."

_CLASSES: dict[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
    "function": FunctionMessage,
    "chat": ChatMessage,
}
_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}
# Where LangChain keeps what is not a role of its own.
_DEVELOPER = "__openai_role__"
# What a turn has fields of its own for, and the discriminator, which is stored beside the fields.
_OWN = frozenset({"content", "name", "type", "tool_calls", "tool_call_id"})


# -- to turns --------------------------------------------------------------------------------------------------


def as_messages(given: Iterable[Any]) -> list[BaseMessage]:
    """Return messages of final types: chunks made whole; dicts, (role, text) pairs and texts read as LangChain reads
    them. Raises: InvalidArgument, by position, for a RemoveMessage and for what is no message."""
    if isinstance(given, str | BaseMessage | dict):
        raise InvalidArgument(f"messages must be a list of messages, got one {type(given).__name__}; put it in a list")
    return [_as_message(one, f"message {number}") for number, one in enumerate(given, start=1)]


def _as_message(given: Any, where: str) -> BaseMessage:
    if not isinstance(given, BaseMessage):
        try:
            stored = isinstance(given, dict) and {"type", "data"} <= given.keys()  # as messages_to_dict writes it
            [given] = messages_from_dict([given]) if stored else convert_to_messages([given])
        except Exception as exc:
            raise InvalidArgument(
                f"{where} is of type {type(given).__name__} and cannot be read as a message: {exc}"
            ) from exc
    if isinstance(given, RemoveMessage):
        raise InvalidArgument(
            f"{where} is a RemoveMessage, an order to a graph's state and no message; delete stored ones by clear()"
        )
    if isinstance(given, BaseMessageChunk):
        given = message_chunk_to_message(given)
    if given.type not in _CLASSES or not isinstance(given, _CLASSES[given.type]):
        raise InvalidArgument(f"{where} is of the unknown type {given.type!r}; wanted one of {', '.join(_CLASSES)}")
    return given


def turn_id(message_id: str | None) -> str | None:
    """Return the id under which a message with this id is stored in a session; None if it has none.

    It stands for this session alone: a copy of the message in another session is another turn. Any id will do.
    """
    if not message_id:
        return None
    try:
        return check_id(f"lc:{message_id}")
    except InvalidArgument:
        return f"lc:sha256:{hashlib.sha256(message_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def turn_of(message: BaseMessage) -> dict[str, Any]:
    """Return the arguments of `add_turn` for a message of a final type (see `as_messages`)."""
    defaults = _defaults(type(message))
    values = message.__dict__
    fields = {
        name: values[name]
        for name in type(message).model_fields
        if name not in _OWN and values[name] != defaults.get(name)
    }
    fields.update(message.model_extra or {})
    held: dict[str, Any] = {"type": message.type}
    if fields:
        held["fields"] = fields
    content = message.content
    if isinstance(content, list) and (texts := [i for i, block in enumerate(content) if isinstance(block, str)]):
        held["texts"] = texts  # bare strings among the blocks: a turn holds them as text blocks
    turn: dict[str, Any] = {
        "role": _role(message),
        "content": content,
        "id": turn_id(message.id),
        "name": message.name,
        "extra": {"lc": held},
    }
    if isinstance(message, AIMessage):
        turn["tool_calls"] = message.tool_calls
    if isinstance(message, ToolMessage):
        turn["tool_call_id"] = message.tool_call_id
    return turn


@cache
def _defaults(kind: type[BaseMessage]) -> dict[str, Any]:
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in kind.model_fields.items()
        if not field.is_required()
    }


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        try:
            return check_role(message.role)
        except InvalidArgument:
            return "assistant"  # a role of the application's own: at least nobody's word is taken for the user's
    if message.type == "system" and message.additional_kwargs.get(_DEVELOPER) == "developer":
        return "developer"
    return _ROLES[message.type]


# -- to messages -----------------------------------------------------------------------------------------------


def message_of(turn: Turn) -> BaseMessage:
    """Return the message that a turn was stored from; for a turn written otherwise, the message of its role."""
    held = turn.extra.get("lc")
    if not isinstance(held, dict) or held.get("type") not in _CLASSES:
        return _of_role(turn)
    content: Any = turn.content
    for place in held.get("texts", ()):
        content[place] = content[place]["text"]
    kind = _CLASSES[held["type"]]
    # The empty ones anew. Left out, pydantic makes them: 0.15 ms a message, twenty times all the rest.
    values = {name: default.copy() if default in ([], {}) else default for name, default in _defaults(kind).items()}
    values.update({"content": content, "name": turn.name, **held.get("fields", {})})
    if kind is AIMessage:
        values["tool_calls"] = turn.tool_calls
    elif kind is ToolMessage:
        values["tool_call_id"] = turn.tool_call_id
    # As it was, not as a constructor would read it today: AIMessage's rewrites the tool calls it is given.
    return kind.model_construct(**values)


def _of_role(turn: Turn) -> BaseMessage:
    shared: dict[str, Any] = {"content": turn.content, "id": turn.id, "name": turn.name}
    match turn.role:
        case "user":
            return HumanMessage(**shared)
        case "assistant":
            return AIMessage(**shared, tool_calls=[_call(call) for call in turn.tool_calls])
        case "tool":
            return ToolMessage(**shared, tool_call_id=turn.tool_call_id or "")
        case "developer":
            return SystemMessage(**shared, additional_kwargs={_DEVELOPER: "developer"})
        case _:
            return SystemMessage(**shared)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call as LangChain has it; OpenAI's form has the name and the arguments under "function"."""
    if "function" in call:
        call = dict(parse_tool_call(call, partial=True, return_id=True) or {})
    return {"name": call.get("name") or "", "args": call.get("args") or {}, "id": call.get("id")}


# -- as a provider accepts them --------------------------------------------------------------------------------


def repair(messages: Sequence[BaseMessage], *, cut: bool = False) -> list[BaseMessage]:
    """Return messages in which every tool call that the conversation has passed by is followed by its results.

    A result that came late moves behind its call; for one that never came stands a ToolMessage that says so. Calls at
    the very end wait for their results yet, and are left alone. `cut`: results whose call is not among the messages
    (it was left out of the window) are left out too. What is stored stays as it is.
    """
    # Some models count their calls anew in every reply ("0", "1"): a result belongs to the last call of its id.
    called: dict[str, int] = {}
    owner: dict[int, int] = {}  # place of a result: place of its call
    results: dict[int, list[int]] = {}
    for place, message in enumerate(messages):
        called.update((call_id, place) for call_id, _ in _calls(message))
        if isinstance(message, ToolMessage) and message.tool_call_id in called:
            owner[place] = called[message.tool_call_id]
            results.setdefault(owner[place], []).append(place)
    last = max((i for i, m in enumerate(messages) if not isinstance(m, ToolMessage)), default=-1)
    repaired: list[BaseMessage] = []
    for place, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if place not in owner and not cut:
                repaired.append(message)
            continue
        repaired.append(message)
        answers = [messages[i] for i in results.get(place, ())]
        repaired.extend(answers)
        if place < last:
            answered = {answer.tool_call_id for answer in answers if isinstance(answer, ToolMessage)}
            repaired.extend(
                ToolMessage(NO_RESULT, tool_call_id=call_id, name=name, status="error")
                for call_id, name in _calls(message)
                if call_id not in answered
            )
    return repaired


def _calls(message: BaseMessage) -> list[tuple[str, str | None]]:
    """Return id and name of a message's tool calls, of those too whose arguments could not be read: providers are
    sent both."""
    if not isinstance(message, AIMessage):
        return []
    both = [*message.tool_calls, *message.invalid_tool_calls]
    return [(str(call["id"]), call.get("name")) for call in both if call.get("id") is not None]
