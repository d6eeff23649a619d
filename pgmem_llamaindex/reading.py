"""The read behind `PgMemMemory.get`: what of the session is shown, and what is remembered besides."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from pgmem_core import asking, reading, transcript
from pgmem_core.content import searchable_text
from pgmem_core.effects import Flow
from pgmem_core.errors import InvalidArgument, WriteRefused
from pgmem_core.flows import SessionKey
from pgmem_core.reading import ContextRequest
from pgmem_core.runtime import Runtime
from pgmem_core.storing import where_of
from pgmem_core.tokens import count_message
from pgmem_core.transcript import Status
from pgmem_core.types import CompiledContext, Turn
from pgmem_core.window import fit, newest_user
from pgmem_llamaindex.convert import turn_arguments
from pgmem_llamaindex.recalled import parts_of, text_of

__all__ = ["Content", "Input", "Memo", "Request", "Seen", "asked_of", "compiled", "listed", "read"]

Content = str | list[dict[str, Any]]
Input = str | ChatMessage | Sequence[Any] | None

# What was shown is found anew after so long: what was forgotten in the meantime is not shown again.
_MEMO_SECONDS = 60.0
_INSTRUCTING = (MessageRole.SYSTEM.value, MessageRole.DEVELOPER.value)


@dataclass(frozen=True, slots=True)
class Memo:
    """What was shown for a question: the newest user turn then, the question's text, whether it was among the turns,
    and the text that was added."""

    turn_id: str | None
    asked: str
    waiting: bool
    shown: str | None
    at: float = field(default_factory=time.monotonic)

    def answers(self, turn: Turn | None, asked: str) -> bool:
        """Return whether it is of this question, and not too old."""
        return (self.turn_id, self.asked) == (_id(turn), asked) and time.monotonic() - self.at <= _MEMO_SECONDS


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be read. `asked`: the question's content, None where it is the newest user turn. `newest`: that turn,
    if it is known. `unsaved`: turns that are to be written first. `budget`: tokens of all that is shown."""

    key: SessionKey
    asked: Content | None
    budget: int
    recall_items: int | None
    recall_tokens: int | None
    floor: float | str | None
    newest: Turn | None = None
    memo: Memo | None = None
    unsaved: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found. `waiting`: the question is not among the turns. `saved`: how many unsaved turns were written."""

    turns: list[Turn]
    newest: Turn | None
    waiting: bool
    memo: Memo | None
    saved: int


def read(rt: Runtime, request: Request) -> Flow[Seen]:
    """Read the session's turns and what is remembered: one round trip where the newest user turn is known, else two.

    What was shown for a question is shown again until there is another: neither searched anew nor logged twice.
    """
    newest, memo, asked = request.newest, request.memo, _as_stored(rt, request.asked)
    if request.unsaved:
        for turn in (yield from asking.add_turns(rt, request.key, request.unsaved, None)):
            newest = turn if turn.role == "user" else newest
    if newest is None:
        newest = newest_user((yield from compiled(rt, request, None)).turns, ())
    while True:
        query = _query(asked, newest)
        text = "" if query is None else searchable_text(query)
        if memo is not None and not memo.answers(newest, text):
            memo = None
        context = yield from compiled(rt, request, query if memo is None else None)
        waiting = asked is not None and not _open(context.turns, asked)
        found = newest_user(context.turns, ())
        if _id(found) != _id(newest):
            newest = found  # another process has put one since, or taken them back
        elif memo is not None and memo.waiting != waiting:
            memo = None
        else:
            break
    if query is not None and memo is None:
        memo = Memo(_id(newest), text, waiting, text_of(parts_of(context), templated=waiting))
    cost = 0 if memo is None or memo.shown is None else count_message(memo.shown)
    instructions = [turn for turn in context.turns if turn.role in _INSTRUCTING]
    said = [turn for turn in context.turns if turn.role not in _INSTRUCTING]
    turns = fit(instructions, said, request.budget - cost, keep=None if waiting else newest)
    return Seen(_from_a_user(turns), newest, waiting, memo, len(request.unsaved))


def _from_a_user(turns: Sequence[Turn]) -> list[Turn]:
    """Return turns without those before the first of a user, where the session's beginning is not among them: some
    providers refuse a history that begins with a reply."""
    head = [turn for turn in turns if turn.role in _INSTRUCTING]
    said = [turn for turn in turns if turn.role not in _INSTRUCTING]
    first = next((n for n, turn in enumerate(said) if turn.role == "user"), None)
    if first is not None and said[0].seq > 1 + len(head):
        said = said[first:]
    return [*head, *said]


def compiled(rt: Runtime, request: Request, query: Content | None) -> Flow[CompiledContext]:
    """Compile what is remembered for a query; without one nothing is searched, and nothing logged."""
    settings = rt.settings
    items = settings.recall_items if request.recall_items is None else request.recall_items
    tokens = settings.recall_tokens if request.recall_tokens is None else request.recall_tokens
    most = request.budget // 4 if request.recall_tokens is None else request.budget
    return (yield from reading.compile_context(rt, ContextRequest(
        key=request.key, query=query, query_id=None, injected_context=(), instructions=None,
        budget_tokens=request.budget, recall_items=0 if query is None else items, recall_tokens=min(tokens, most),
        where=where_of(), store_query=False, floor=request.floor, log=query is not None,
    )))  # fmt: skip


def listed(rt: Runtime, key: SessionKey, status: Status | None, unsaved: Sequence[dict[str, Any]]) -> Flow[list[Turn]]:
    """Return the session's turns that stand so, after those that are to be written first."""
    if unsaved:
        yield from asking.add_turns(rt, key, unsaved, None)
    return (yield from transcript.listing(rt, key, status=status))


def asked_of(given: Input) -> Content | None:
    """Return the question as a turn's content, None where nothing was asked. Raises: InvalidArgument."""
    if given is None or (isinstance(given, str) and not given.strip()):
        return None
    if isinstance(given, str):
        return given
    if not isinstance(given, ChatMessage | Sequence):
        raise InvalidArgument(f"input must be a text, a ChatMessage or blocks, got {type(given).__name__}")
    message = given if isinstance(given, ChatMessage) else ChatMessage(role=MessageRole.USER, blocks=list(given))
    content: Content = turn_arguments(message)["content"]
    return content if message.blocks else None


def _id(turn: Turn | None) -> str | None:
    return None if turn is None else turn.id


def _as_stored(rt: Runtime, asked: Content | None) -> Content | None:
    """Return the question as the write policy leaves it: as it stands among the turns."""
    try:
        screened: Content | None = rt.screen(asked, "turn")
        return screened
    except WriteRefused:
        return asked


def _query(asked: Content | None, newest: Turn | None) -> Content | None:
    """Return what to look for, as it stands in the window where it does."""
    if newest is not None and (asked is None or _same(newest, asked)):
        return newest.content
    return asked


def _same(turn: Turn, content: Content) -> bool:
    # Agents ask with the text of the message alone.
    if turn.content == content:
        return True
    text = " ".join(searchable_text(content).split())
    return bool(text) and text == " ".join(turn.text.split())


def _open(turns: Sequence[Turn], asked: Content) -> bool:
    """Return whether the question is the newest user turn and has had no answer but calls of tools."""
    for turn in reversed(turns):
        if turn.role == "user":
            return _same(turn, asked)
        if turn.role != "tool" and not turn.tool_calls:
            return False
    return False
