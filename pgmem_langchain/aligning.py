"""Which messages of a conversation a session holds already. Pure.

With a checkpointer messages keep their ids, and ids decide. A client without one sends its history again with every
request, and each message gets a new id each time: then role, content and the ids of tool calls decide.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage

from pgmem_core.content import searchable_text
from pgmem_core.types import Turn
from pgmem_langchain.convert import message_of

__all__ = ["SOURCE_KEY", "Alignment", "align", "spoken"]

# Where LangChain says which feature put a message into the conversation that nobody in it wrote: a summary, a
# notification, and what we inject ourselves.
SOURCE_KEY = "lc_source"


def spoken(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages that somebody said: no orders to the state, and none that a feature put there. A tool's
    result always counts: without it the call that it answers would stand alone."""
    return [
        message
        for message in messages
        if isinstance(message, ToolMessage)
        or not (isinstance(message, RemoveMessage) or SOURCE_KEY in message.additional_kwargs)
    ]


@dataclass(frozen=True, slots=True)
class Alignment:
    """`settled`: so many messages from the first are the session's past; what follows is new. `held`: the ids of the
    stored turns among them."""

    settled: int
    held: list[str]


def align(messages: Sequence[BaseMessage], stored: Sequence[Turn]) -> Alignment:
    """Return which messages (all that a run was given) are those of `stored` (the session's last turns, in order).

    The past is what comes before the last message that is stored: one in between that is not was refused or erased,
    and does not come back with the next request. The same words at another place are new: a repeated "ok" that was
    answered is a turn of its own, one that was not yet answered is the same request, sent again.
    """
    places = {held: place for place, turn in enumerate(stored) if (held := message_of(turn).id) is not None}
    known = [(number, places[message.id]) for number, message in enumerate(messages) if message.id in places]
    if not known:
        return _by_content(messages, stored)
    # Messages that a client keeps as objects have ids of an earlier request, those it made anew have none.
    number, place = known[-1]
    rest = _by_content(messages[number + 1 :], stored[place + 1 :])
    return Alignment(number + 1 + rest.settled, [stored[place].id for _, place in known] + rest.held)


def _by_content(messages: Sequence[BaseMessage], stored: Sequence[Turn]) -> Alignment:
    sent = [_key(message) for message in messages]
    past = [_key(message_of(turn)) for turn in stored]
    if not sent or not past:
        return Alignment(0, [])
    # Ending where the session ends, as much as possible; else ending earlier: the client never saw the last reply.
    for last, least in ((past[-1], 1), (None, 2)):
        for size in range(len(sent), 0, -1):
            if last is not None and sent[size - 1] != last:
                continue
            pairs = _common(sent[:size], past)
            if len(pairs) >= max(least, (size + 1) // 2) and pairs[-1][0] == size - 1:
                if last is not None and pairs[-1][1] != len(past) - 1:
                    continue
                return Alignment(size, [stored[place].id for _, place in pairs])
    return Alignment(0, [])


def _common(sent: Sequence[Any], past: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the places of what both have in common, in order; turned round, so that the newest of equals count."""
    matcher = SequenceMatcher(None, sent[::-1], past[::-1], autojunk=False)
    pairs = [
        (len(sent) - 1 - block.a - step, len(past) - 1 - block.b - step)
        for block in matcher.get_matching_blocks()
        for step in range(block.size)
    ]
    return pairs[::-1]


def _key(message: BaseMessage) -> tuple[Any, ...]:
    """Return what makes a message the same whoever brings it: clients keep texts, not the blocks around them."""
    content: Any = message.content
    if isinstance(content, list):
        blocks = [{"type": "text", "text": one} if isinstance(one, str) else one for one in content]
        plain = all(block.get("type") == "text" for block in blocks)
        content = searchable_text(blocks) if plain else json.dumps(blocks, sort_keys=True, default=str)
    calls = tuple(call["id"] for call in message.tool_calls) if isinstance(message, AIMessage) else ()
    return message.type, content, calls, getattr(message, "tool_call_id", None)
