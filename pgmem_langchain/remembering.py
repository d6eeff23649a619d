"""The flows of an agent's turn: what is new in its messages, storing it, and what memory has for the newest of them."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from pgmem_core import asking, flows
from pgmem_core.content import read_content, searchable_text
from pgmem_core.effects import Flow
from pgmem_core.errors import InvalidArgument, PgmemError, WriteRefused
from pgmem_core.formation.evidence import AUTHORITY_KEY
from pgmem_core.ids import turn_uuid
from pgmem_core.runtime import Runtime
from pgmem_core.turns import is_blank
from pgmem_core.types import Authority, CompiledContext
from pgmem_langchain.aligning import align, spoken
from pgmem_langchain.convert import as_messages, turn_id, turn_of
from pgmem_langchain.scoping import RunScope

__all__ = ["Exchange", "Exchanges", "Remembered", "compile_for", "flush", "store", "unsettled"]

log = logging.getLogger(__name__)

# An exchange that is found no more is read again as of then and gives the same, so its text need not stay long: what
# was forgotten in the meantime is not shown again. A read costs 3 ms.
_KEEP_SECONDS = 60.0
_MOST_EXCHANGES = 512
_RECALLED = re.compile(r"<memory [a-z-]+ id=(\w+)>\n.*?\n</memory id=\1>", re.DOTALL)
_NOT_AGAIN = "(recalled from memory)"
# Of the messages that a request shows the first few say where it begins; some of them may not be stored.
_FIRST = 32


@dataclass(frozen=True, slots=True)
class Remembered:
    """What memory has for a human message. `prefix`: what always holds, with the note on how to take it; `tail`: what
    is relevant, fenced, or None; `query_id`: the turn that the message is."""

    prefix: str
    tail: str | None
    query_id: str
    known_at: datetime


@dataclass(slots=True)
class Exchange:
    """A human message and what follows it in one run. `stored`: ids of messages that need no more writing."""

    message_id: str | None
    remembered: Remembered | None = None
    stored: set[str] = field(default_factory=set)
    used_at: float = field(default_factory=time.monotonic)

    @property
    def ids(self) -> dict[str, str]:
        """What a graph's state holds of it."""
        if self.remembered is None or self.message_id is None:
            return {}
        return {
            "message_id": self.message_id,
            "query_id": self.remembered.query_id,
            "known_at": self.remembered.known_at.isoformat(),
        }


class Exchanges:
    """The exchanges under way in this process. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[Any, ...], Exchange] = OrderedDict()

    def new(self, scope: RunScope, message_id: str | None) -> Exchange:
        """Return a new exchange, in the place of one of the same message."""
        exchange = Exchange(message_id)
        with self._lock:
            self._held[_place(scope, message_id)] = exchange
            while len(self._held) > _MOST_EXCHANGES:
                self._held.popitem(last=False)
        return exchange

    def get(self, scope: RunScope, message_id: str | None) -> Exchange | None:
        """Return the exchange of a message, if it was used a short while ago."""
        now = time.monotonic()
        with self._lock:
            found = self._held.get(_place(scope, message_id))
            if found is None or now - found.used_at > _KEEP_SECONDS:
                return None
            found.used_at = now
            self._held.move_to_end(_place(scope, message_id))
            return found

    def drop(self, scope: RunScope, message_id: str | None) -> None:
        """Forget the exchange of a message."""
        with self._lock:
            self._held.pop(_place(scope, message_id), None)


def _place(scope: RunScope, message_id: str | None) -> tuple[Any, ...]:
    return scope.key.scope, scope.key.session_id, message_id


# -- writing ---------------------------------------------------------------------------------------------------


def unsettled(
    rt: Runtime, scope: RunScope, state: Mapping[str, Any]
) -> Flow[tuple[list[BaseMessage], list[str] | None]]:
    """Return the messages that the session may not hold yet, and the ids of the turns that the others are, where they
    had to be looked up."""
    messages = spoken(state["messages"])
    places = {message.id: number for number, message in enumerate(state["messages"])}
    turn = state.get("pgmem_turn") or {}
    for name, step in (("through", 1), ("message_id", 0)):
        if turn.get(name) in places:
            first = places[turn[name]] + step
            return [message for message in messages if places[message.id] >= first], None
    if not messages:
        return [], []
    # Tool steps are stored and often not sent again: up to four turns for each message.
    turns = yield from asking.turns(rt, scope.key, 4 * len(messages) + 8, None)
    found = align(messages, turns)
    return messages[found.settled :], found.held


def store(rt: Runtime, scope: RunScope, exchange: Exchange, messages: Sequence[BaseMessage]) -> Flow[list[PgmemError]]:
    """Store messages that the exchange does not have as stored; return why some of them were refused, by the write
    policy or because no turn can hold them."""
    fresh = [message for message in spoken(messages) if message.id not in exchange.stored]
    refused: list[PgmemError] = []
    turns: list[dict[str, Any]] = []
    for message in fresh:
        try:
            turns.append(_turn(scope, as_messages([message])[0]))
        except InvalidArgument as exc:
            refused.append(exc)
    while turns:
        try:
            yield from asking.add_turns(rt, scope.key, turns, None)
            break
        except WriteRefused as exc:
            refused.append(exc)
            del turns[(exc.position or 1) - 1]
        except InvalidArgument as exc:
            # Something that JSON has no type for, such as a tool's artifact: what was said is kept without it.
            plain = [_plain(turn) for turn in turns]
            if plain != turns:
                log.warning("stored without what cannot be stored: %s", exc)
                turns = plain
            else:
                refused += yield from _one_by_one(rt, scope, turns)
                break
    exchange.stored.update(str(message.id) for message in fresh)
    return refused


def _one_by_one(rt: Runtime, scope: RunScope, turns: Sequence[Mapping[str, Any]]) -> Flow[list[PgmemError]]:
    refused: list[PgmemError] = []
    for turn in turns:
        try:
            yield from asking.add_turns(rt, scope.key, [turn], None)
        except (InvalidArgument, WriteRefused) as exc:
            refused.append(exc)
    return refused


def flush(rt: Runtime, scope: RunScope) -> Flow[bool]:
    """Make the session's pending queries durable; True once they are."""
    pending = rt.pending(scope.key.scope, scope.key.session_id)
    yield from flows.write_queries(rt, [query for query in pending if not query.handed])
    return True


def _turn(scope: RunScope, message: BaseMessage) -> dict[str, Any]:
    """Return the turn of a message. In a nested run nobody's word is the user's: a model wrote the human messages. What
    a tool recalled is not stored a second time: it would be found twice, and outlive the forgetting of the first."""
    turn = turn_of(message)
    if isinstance(message, ToolMessage) and isinstance(message.content, str):
        turn["content"] = _RECALLED.sub(_NOT_AGAIN, message.content)
    if scope.nested and turn["role"] == "user":
        turn["metadata"] = {AUTHORITY_KEY: Authority.agent.value}
        turn["name"] = turn["name"] or "agent"
    return turn


def _plain(turn: Mapping[str, Any]) -> dict[str, Any]:
    fields = turn["extra"]["lc"].get("fields", {})
    kept = {name: value for name, value in fields.items() if name in ("id", "status") and isinstance(value, str)}
    return {**turn, "extra": {"lc": {**turn["extra"]["lc"], "fields": kept}}}


# -- reading ---------------------------------------------------------------------------------------------------


def compile_for(
    rt: Runtime,
    scope: RunScope,
    messages: Sequence[BaseMessage],
    human: BaseMessage | None,
    *,
    k: int,
    budget_tokens: int,
    held: Sequence[str] | None,
    pending: bool,
    query_id: str | None = None,
    known_at: datetime | None = None,
) -> Flow[tuple[Remembered, WriteRefused | None, bool]]:
    """Return what memory has for a human message, what the write policy said if it refused that, and whether the
    message is being stored (a blank one is no query).

    `messages`: what the request will show, whose turns are not recalled; `held`: their turns, where they have other
    ids. `pending`: the message is being stored by this. `query_id` and `known_at`: read it again as of then.
    """
    turn = {"content": None, "id": None} if human is None else _turn(scope, as_messages([human])[0])
    others = [turn_id(message.id) for message in spoken(messages) if message is not human]
    asked = query_id or turn["id"]
    arguments: dict[str, Any] = {
        "query_id": asked,
        "injected_context": (),
        "instructions": None,
        "budget_tokens": budget_tokens,
        "recall_items": k,
        "recall_tokens": min(rt.settings.recall_tokens, budget_tokens // 2),
        "kinds": None,
        "filter": None,
        "floor": "default",
        "valid_at": None,
        "known_at": known_at,
        "held": [one for one in (held if held is not None else others) if one][:_FIRST],
        "query_turn": {name: turn[name] for name in ("name", "extra", "metadata") if turn.get(name)},
    }
    refused = None
    try:
        ctx = yield from asking.compile_context(rt, scope.key, turn["content"], store_query=pending, **arguments)
    except WriteRefused as exc:
        refused = exc
        ctx = yield from asking.compile_context(rt, scope.key, turn["content"], store_query=False, **arguments)
    assert ctx.known_at is not None
    if ctx.query_id is None and asked is not None:
        asked = str(turn_uuid(asked, scope.key.scope.tenant_id, scope.key.session_id))
    return (
        Remembered(
            prefix="\n\n".join(message["content"] for message in ctx.prefix),
            tail=_tail(ctx, turn["content"]),
            query_id=ctx.query_id or str(asked),
            known_at=ctx.known_at,
        ),
        refused,
        pending and refused is None and ctx.query_id is not None,
    )


def _tail(ctx: CompiledContext, query: object) -> str | None:
    """Return the recalled data of a context without a window: what stands between the prefix and the query."""
    rest = ctx.messages[ctx.prefix_message_count :]
    body = "" if query is None else read_content(query)
    blank = query is not None and is_blank(searchable_text(body)) and not (isinstance(body, list) and body)
    if len(rest) == 2 or (len(rest) == 1 and blank):
        return str(rest[0]["content"])
    return None
