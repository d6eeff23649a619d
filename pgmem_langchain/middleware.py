"""`PgMemMiddleware`: memory for `create_agent`."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from langchain.agents.middleware import AgentMiddleware, AgentState, ExtendedModelResponse, ModelRequest, ModelResponse
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.runtime import Runtime
from langgraph.types import Command

from pgmem_core.effects import Flow, arun, run
from pgmem_core.errors import ConfigurationError, Conflict, InvalidArgument
from pgmem_core.storing import check_limit
from pgmem_langchain.clients import runtime_of
from pgmem_langchain.prompting import human_of, with_memory
from pgmem_langchain.remembering import Exchange, Exchanges, Remembered, compile_for, flush, store, unsettled
from pgmem_langchain.scoping import RunScope, configurable_of, scope_of_run

__all__ = ["PgMemMiddleware", "PgMemState"]

log = logging.getLogger(__name__)

T = TypeVar("T")
OnError = Literal["raise", "degrade"]
_ModelResult = ModelResponse[Any] | AIMessage | ExtendedModelResponse[Any]


class PgMemState(AgentState[Any]):
    """What the middleware keeps in a graph's state: ids, no content.

    `pgmem_turn`: which human message memory was read for (`message_id`), as which turn (`query_id`), when
    (`known_at`), and up to which message the conversation is stored (`through`).
    """

    pgmem_turn: NotRequired[Annotated[dict[str, str], PrivateStateAttr]]


class PgMemMiddleware(AgentMiddleware[PgMemState, Any, Any]):
    """Remembers what is said to an agent, and shows it what is relevant, call by call.

    `mem`: a PgMem or an AsyncPgMem, either serves `invoke` and `ainvoke`; or `dsn`, for a client that the process
    shares. Put it first among the middleware: it then sees what was said before others change it, and is asked once
    however often they retry.

    Whose memory: `user_id`, `group_id` and the thread (`session_id` or `thread_id`) by the run's context (a mapping
    or any object with such attributes), else by its `configurable`, else `user_id` and `group_id` as given here. A run
    without a thread is refused. Without a user a thread remembers itself only.

    Memory is read once for a human message. What always holds (facts, narrative) joins the system message as its last
    block, what is relevant to the message stands before it as one fenced data message; both in the request to the
    model only, never in the state. `k`: at most so many recalled items; `budget_tokens`: what memory may add to a
    request, in tokens (the agent's own prompt, messages and tools are not counted). Messages that the request shows are
    not recalled.

    `on_error`: "degrade" answers without memory where the database fails, logs it and counts it in `failures`; "raise"
    raises. A missing thread, and a thread of another user, always raise. What the write policy refuses is not stored,
    logged and counted; the agent goes on.
    """

    state_schema = PgMemState

    def __init__(
        self,
        mem: Any = None,
        *,
        dsn: str | None = None,
        user_id: str | None = None,
        group_id: str = "default",
        k: int = 8,
        budget_tokens: int = 1_600,
        on_error: OnError = "degrade",
    ) -> None:
        """Raises: InvalidArgument."""
        super().__init__()
        if on_error not in ("raise", "degrade"):
            raise InvalidArgument(f"on_error must be 'raise' or 'degrade', got {on_error!r}")
        self._rt = runtime_of(mem, dsn)
        self._user_id = user_id
        self._group_id = group_id
        self._k = check_limit(k, "k")
        self._budget_tokens = check_limit(budget_tokens, "budget_tokens")
        self._on_error = on_error
        self._exchanges = Exchanges()
        self._lock = threading.Lock()
        self._failures: Counter[str] = Counter()

    @property
    def failures(self) -> Mapping[str, int]:
        """How often memory could not be read ("read") or written ("write"), and how many messages the write policy
        refused ("refused"), since the middleware was made."""
        with self._lock:
            return dict(self._failures)

    # -- hooks -----------------------------------------------------------------------------------------------

    def before_agent(self, state: PgMemState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Read memory for the newest human message. On resuming an interrupted run it does not run again."""
        return run(self._begin(state, self._scope(runtime)), self._rt.database)

    async def abefore_agent(self, state: PgMemState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """The same, awaited."""
        return await arun(self._begin(state, self._scope(runtime)), self._rt.database)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> _ModelResult:
        """Show the model what is remembered, and store what was said since the last call and what it replies."""
        scope = self._scope(request.runtime)
        exchange, update = run(self._resume(request.state, scope), self._rt.database)
        response = _with_ids(handler(with_memory(request, exchange)))
        run(self._store(exchange, scope, response.result), self._rt.database)
        return _updating(response, update)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> _ModelResult:
        """The same, awaited. A caller that goes away once the reply is there does not take it along."""
        scope = self._scope(request.runtime)
        exchange, update = await arun(self._resume(request.state, scope), self._rt.database)
        response = _with_ids(await handler(with_memory(request, exchange)))
        writing = asyncio.wrap_future(
            self._rt.beside(lambda: run(self._store(exchange, scope, response.result), self._rt.database))
        )
        writing.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        await asyncio.shield(writing)
        return _updating(response, update)

    def after_agent(self, state: PgMemState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Store what is not stored yet."""
        return run(self._end(state, self._scope(runtime)), self._rt.database)

    async def aafter_agent(self, state: PgMemState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """The same, awaited."""
        return await arun(self._end(state, self._scope(runtime)), self._rt.database)

    # -- flows -----------------------------------------------------------------------------------------------

    def _scope(self, runtime: Runtime[Any]) -> RunScope:
        return scope_of_run(runtime.context, configurable_of(), user_id=self._user_id, group_id=self._group_id)

    def _begin(self, state: Mapping[str, Any], scope: RunScope) -> Flow[dict[str, Any] | None]:
        exchange = yield from self._start(state, scope)
        return None if exchange.remembered is None else {"pgmem_turn": exchange.ids}

    def _start(self, state: Mapping[str, Any], scope: RunScope) -> Flow[Exchange]:
        """Store what came before the newest human message, and read memory for it, which is being stored by that."""
        human = human_of(state["messages"])
        exchange = self._exchanges.new(scope, None if human is None else human.id)
        found = yield from self._guarded("read", unsettled(self._rt, scope, state))
        if found is None:
            return exchange
        fresh, held = found
        pending = bool(fresh) and fresh[-1] is human
        yield from self._store(exchange, scope, fresh[:-1] if pending else fresh)
        if human is None:
            return exchange
        exchange.remembered = yield from self._guarded(
            "read", self._read(exchange, scope, state["messages"], human, held, pending)
        )
        return exchange

    def _read(
        self,
        exchange: Exchange,
        scope: RunScope,
        messages: Sequence[BaseMessage],
        human: BaseMessage,
        held: Sequence[str] | None,
        pending: bool,
    ) -> Flow[Remembered]:
        remembered, refused, stored = yield from compile_for(
            self._rt, scope, messages, human, k=self._k, budget_tokens=self._budget_tokens, held=held, pending=pending
        )
        if refused is not None:
            self._count("refused", refused)
        if stored or refused is not None:
            exchange.stored.add(str(human.id))
        return remembered

    def _resume(self, state: Mapping[str, Any], scope: RunScope) -> Flow[tuple[Exchange, dict[str, str] | None]]:
        """Return the exchange that a model call belongs to, after storing what was said in it since the last call.

        It is in the process's cache, or is read again as of when it was read, or (a human message that came while the
        agent was at work) is a new one: then also what the state is to hold of it.
        """
        messages, turn = state["messages"], state.get("pgmem_turn") or {}
        human = human_of(messages)
        message_id = turn.get("message_id") if human is None else human.id
        exchange = self._exchanges.get(scope, message_id)
        if exchange is None and message_id != turn.get("message_id"):
            exchange = yield from self._start(state, scope)
            return exchange, exchange.ids if exchange.remembered is not None else None
        if exchange is None:
            exchange = self._exchanges.new(scope, message_id)
            if message_id is not None:
                exchange.remembered = yield from self._guarded("read", self._again(scope, messages, human, turn))
        yield from self._store_rest(exchange, scope, state)
        return exchange, None

    def _again(
        self, scope: RunScope, messages: Sequence[BaseMessage], human: BaseMessage | None, turn: Mapping[str, str]
    ) -> Flow[Remembered]:
        remembered, _, _ = yield from compile_for(
            self._rt, scope, messages, human, k=self._k, budget_tokens=self._budget_tokens, held=None, pending=False,
            query_id=turn["query_id"], known_at=datetime.fromisoformat(turn["known_at"]),
        )  # fmt: skip
        return remembered

    def _end(self, state: Mapping[str, Any], scope: RunScope) -> Flow[dict[str, Any] | None]:
        messages, turn = state["messages"], state.get("pgmem_turn") or {}
        human = human_of(messages)
        message_id = turn.get("message_id") if human is None else human.id
        exchange = self._exchanges.get(scope, message_id) or self._exchanges.new(scope, message_id)
        stored = yield from self._store_rest(exchange, scope, state)
        flushed = yield from self._guarded("write", flush(self._rt, scope))
        self._exchanges.drop(scope, message_id)
        if not (stored and flushed and messages):
            return None
        return {"pgmem_turn": {**turn, "through": str(messages[-1].id)}}

    def _store_rest(self, exchange: Exchange, scope: RunScope, state: Mapping[str, Any]) -> Flow[bool]:
        """Store what the state holds and the session does not; True if it holds all now."""
        turn = state.get("pgmem_turn") or {}
        if exchange.ids and turn.get("message_id") != exchange.message_id:
            state = {**state, "pgmem_turn": exchange.ids}
        found = yield from self._guarded("write", unsettled(self._rt, scope, state))
        if found is None:
            return False
        return (yield from self._store(exchange, scope, found[0]))

    def _store(self, exchange: Exchange, scope: RunScope, messages: Sequence[BaseMessage]) -> Flow[bool]:
        refused = yield from self._guarded("write", store(self._rt, scope, exchange, messages))
        for error in refused or ():
            self._count("refused", error)
        return refused is not None

    def _guarded(self, what: str, flow: Flow[T]) -> Generator[Any, Any, T | None]:
        """Run a flow; where it fails and the agent is to go on without memory, log, count and return None."""
        try:
            return (yield from flow)
        except Exception as exc:
            # Of a thread of another's, or a policy that is none, the next attempt would say the same.
            lasting = isinstance(exc, ConfigurationError | Conflict) and not isinstance(exc, InvalidArgument)
            if lasting or self._on_error == "raise":
                raise
            self._count(what, exc)
            return None

    def _count(self, what: str, error: Exception) -> None:
        with self._lock:
            self._failures[what] += 1
        told = {"read": "answered without memory", "write": "not stored yet", "refused": "not stored"}[what]
        log.warning("%s: %s: %s", told, type(error).__name__, error)


def _with_ids(response: ModelResponse[Any]) -> ModelResponse[Any]:
    """Return a response whose messages have ids: under which they are stored is under which the state has them."""
    if all(message.id is not None for message in response.result):
        return response
    return replace(
        response,
        result=[m if m.id is not None else m.model_copy(update={"id": str(uuid.uuid4())}) for m in response.result],
    )


def _updating(response: ModelResponse[Any], update: dict[str, str] | None) -> _ModelResult:
    if update is None:
        return response
    return ExtendedModelResponse(model_response=response, command=Command(update={"pgmem_turn": update}))
