"""The read of a turn, and the search: what memory holds for a query, now or as it was known then."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pgmem_core import context, screening
from pgmem_core.content import Content, read_content, searchable_text
from pgmem_core.database import migrate
from pgmem_core.database.migrate import Model
from pgmem_core.effects import EmbedTimeout, Flow, blocking, embed, run, transact
from pgmem_core.errors import Conflict, DimensionMismatch, EmbeddingError, MissingExtra, NotFound
from pgmem_core.flows import SessionKey, ready, write_queries, write_query
from pgmem_core.ids import turn_uuid
from pgmem_core.models.vectors import check_vector
from pgmem_core.protocols import Vectors
from pgmem_core.retrieval import hybrid, lexical
from pgmem_core.runtime import PendingQuery, Runtime
from pgmem_core.tiers import injections
from pgmem_core.tiers.injections import Shown
from pgmem_core.tiers.plain import Where
from pgmem_core.tokens import count_message
from pgmem_core.turns import is_blank, new_turn
from pgmem_core.types import CompiledContext, Scope, ScoredMemory
from pgmem_core.window import newest_user

__all__ = ["ContextRequest", "compile_context", "search", "settle_log"]

log = logging.getLogger(__name__)

# Of the best score. On LoCoMo it keeps 7.3 of 8 items and costs 0.006 of recall@8 (0.5: 0.020); in a small store,
# where everything is a candidate, it is what leaves the chit-chat out.
_LEAST_SHARE = 0.45
# Writes waiting beside the turn (a locked row, a slow database) from which on prompts are not logged: an entry holds
# its prompt, 30 kB at the default budget.
_MOST_BEHIND = 500


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """What compile_context was asked. `known_at` None: now, and it is an agent's turn. `log`: whether what is shown
    goes to the injection log; not where the same is shown again."""

    key: SessionKey
    query: object
    query_id: str | uuid.UUID | None
    injected_context: Sequence[str]
    instructions: str | None
    budget_tokens: int
    recall_items: int
    recall_tokens: int
    where: Where
    store_query: bool
    floor: float | str | None
    valid_at: datetime | None = None
    known_at: datetime | None = None
    log: bool = True
    # The turns that the caller's own prompt shows, first to last: see `hybrid.read`. The budget is memory's alone then.
    held: Sequence[str | uuid.UUID] | None = None
    query_turn: Mapping[str, Any] = field(default_factory=dict)  # what else the query's turn holds


def compile_context(rt: Runtime, request: ContextRequest) -> Flow[CompiledContext]:
    """Read memory into a prompt. One query embedding, one round trip; writes nothing on the turn."""
    started = time.perf_counter()
    key, settings = request.key, rt.settings
    body: Content = "" if request.query is None else read_content(request.query)
    if request.store_query:  # it is the user's turn: what is shown of it now is what the window will show
        body = yield from screening.screen_value(
            rt, key.scope.tenant_id, body, "query", advice="store_query=False asks without storing"
        )
        more = yield from screening.screen_value(rt, key.scope.tenant_id, dict(request.query_turn), "query")
        request = replace(request, query_turn=more)
    yield from ready(rt)
    # Asked again before the last query was written: it must be in this window, in its order.
    yield from write_queries(rt, [query for query in rt.pending(key.scope, key.session_id) if not query.handed])

    notes: list[str] = []
    timings: dict[str, float] = {}
    shown: Shown | None = None
    if request.known_at is not None:
        shown = yield from _shown(rt, request, request.known_at, notes)
        if shown is not None and request.query is None:
            body = shown.query or ""
    text = searchable_text(body)
    query = yield from _query(
        rt, "" if shown is not None else text, notes, limit=2 * request.recall_items, floor=request.floor
    )
    query = replace(query, valid_at=request.valid_at, known_at=request.known_at if shown is None else shown.known_at)
    timings["embed_ms"] = _ms(started)
    timings["words_only"] = float(query.vector is None and bool(query.terms))
    held = [turn_uuid(one, key.scope.tenant_id, key.session_id) for one in request.held or ()]
    alone = request.held is not None if shown is None else "held" in shown.frame
    reading = time.perf_counter()
    found = yield from transact(
        hybrid.read, key.scope, key.session_id, query, request.where,
        window_tokens=_window_tokens(rt, request), window_turns=settings.window_turns, shown=shown,
        held=held if alone else None, single=True,
    )  # fmt: skip
    timings["read_ms"] = _ms(reading)
    if not found.exists and not key.create:
        raise NotFound(f"no session {key.session_id!r} in group {key.scope.tenant_id!r}; create it with session.create")
    if found.exists and found.user_id != key.scope.user_id:
        raise Conflict(
            f"session {key.session_id!r} belongs to another user; open it with the user_id that created it, or use"
            " another session id"
        )

    compiling = time.perf_counter()
    asked = not is_blank(text) or (isinstance(body, list) and bool(body))
    last = found.window[-1] if found.window else None
    same = asked and last is not None and last.role == "user" and last.content == body
    query_id = None if shown is None else shown.turn_id
    turn_id: Callable[[], uuid.UUID] | None = None
    if same and last is not None:
        query_id = last.id  # written already, by the caller or by another process that compiled the same query
    elif asked and request.store_query:
        pending = _pending_query(rt, key, body, request, found.last_seq)
        query_id = str(pending.turn.id)
        turn_id = lambda: pending.turn.id  # noqa: E731  # writing it may have to give it another
        rt.add_pending(pending)
        pending.written = rt.beside(lambda: run(write_query(rt, pending), rt.database))
    frame = _frame(rt, request, found, body if asked and not same else None) if shown is None else dict(shown.frame)
    result = context.compile(
        context.ContextInput(
            session_id=key.session_id,
            query=body if asked and not same else None,
            query_id=query_id,
            window=found.window,
            pinned=found.pinned,
            recalled=found.recalled,
            injected=request.injected_context,
            instructions=request.instructions,
            budget_tokens=frame["budget_tokens"],
            recall_tokens=frame["recall_tokens"],
            recall_items=frame["recall_items"],
            least_share=frame["least_share"],
            timings=timings,
            notes=[*notes, *found.notes],
            facts=found.facts,
            execution=found.execution,
            prefix_at=found.prefix_at,
            prefix_tokens=frame["prefix_tokens"],
            narrative=found.narrative,
            summary=found.summary,
            known_at=found.known_at,
        )
    )
    if shown is not None and injections.hash_of(result.messages) != shown.messages_hash:
        result = replace(result, notes=(*result.notes, _DIFFERENT))
    if request.known_at is None and request.log and settings.log_injections:
        if turn_id is None:
            turn_id = _turn_of(key, request, query_id, found)
        _log(rt, request, result, turn_id, frame)
    timings["compile_ms"] = _ms(compiling)
    timings["total_ms"] = _ms(started)
    return result


# -- as it was -------------------------------------------------------------------------------------------------

_DIFFERENT = (
    "not the bytes that were shown then: something has been erased or edited since, execution memory was shown, or"
    " the instructions or injected_context given now are not those given then"
)


def _shown(rt: Runtime, request: ContextRequest, known_at: datetime, notes: list[str]) -> Flow[Shown | None]:
    """Return what the log says of the turn that is asked about, if it was logged by then."""
    notes.append(f"as it was known at {known_at.isoformat()}: without execution memory, which keeps no past")
    if request.query_id is None:
        return None
    key = request.key
    turn_id = turn_uuid(request.query_id, key.scope.tenant_id, key.session_id)
    yield from settle_log(rt)
    shown = yield from transact(injections.find, key.scope, key.session_id, turn_id, known_at, single=True)
    if shown is None:
        notes.append(f"nothing was logged for turn {request.query_id} by then: compiled from what was known")
    return shown


def settle_log(rt: Runtime) -> Flow[None]:
    """Wait for what this process is writing beside the turn: the log is read after it."""
    yield from blocking(lambda: rt.beside(lambda: None).result())


def _frame(rt: Runtime, request: ContextRequest, found: hybrid.Found, asked: Content | None) -> dict[str, Any]:
    """Return what a prompt is made of besides memory, as the log keeps it. asked: the query, if it is not in the
    window."""
    budget, alone = request.budget_tokens, request.held is not None
    frame = {
        "from": found.window[0].seq if found.window else found.last_seq + 1,
        "through": found.last_seq,
        "prefix_at": None if found.prefix_at is None else found.prefix_at.isoformat(),
        "asked": asked is not None,
        "budget_tokens": budget + count_message(asked) if alone and asked is not None else budget,
        "recall_tokens": request.recall_tokens,
        "recall_items": request.recall_items,
        "prefix_tokens": min(rt.settings.prefix_tokens, budget // (4 if alone else 8)),
        "least_share": 0.0 if request.floor is None else _LEAST_SHARE,
    }
    return {**frame, "held": True} if alone else frame


def _turn_of(
    key: SessionKey, request: ContextRequest, query_id: str | None, found: hybrid.Found
) -> Callable[[], uuid.UUID] | None:
    """Return the turn that a prompt was compiled for: the query, or the question in the window it is to answer."""
    if query_id is not None:
        known = uuid.UUID(query_id)
    elif request.query_id is not None:  # the caller stores it, under this id
        known = turn_uuid(request.query_id, key.scope.tenant_id, key.session_id)
    elif request.query is None and (newest := newest_user(found.window, found.pinned)) is not None:
        known = uuid.UUID(newest.id)
    else:
        return None
    return lambda: known


def _log(
    rt: Runtime,
    request: ContextRequest,
    result: CompiledContext,
    turn_id: Callable[[], uuid.UUID] | None,
    frame: dict[str, Any],
) -> None:
    """Log what was shown, beside the turn, if anything but the window was and there is a turn it was shown for."""
    if turn_id is None or not any(
        item.kind != "turn" or tier != "working" for tier, section in result.sections.items() for item in section.items
    ):
        return
    if rt.behind >= _MOST_BEHIND:
        log.warning("a prompt of session %r is not logged: %d writes wait already", result.session_id, rt.behind)
        return
    messages = [dict(message) for message in result.messages]  # the caller may change those it was given
    lengths = {context.external_id(text): len(text) for text in request.injected_context}

    def write() -> None:
        entry = injections.entry_of(result, turn_id(), messages=messages, frame=frame, lengths=lengths)
        run(transact(injections.record, request.key.scope, entry, single=True), rt.database)

    rt.beside(write)


# -- what to look for ------------------------------------------------------------------------------------------


def _ms(since: float) -> float:
    return round((time.perf_counter() - since) * 1000, 3)


def _window_tokens(rt: Runtime, request: ContextRequest) -> int:
    # Constant from turn to turn, whatever the query's length, so that the window starts at the same turn.
    budget = request.budget_tokens
    prefix = min(rt.settings.prefix_tokens, budget // 8)
    return max(1, budget // 4, budget - prefix - request.recall_tokens - budget // 8)


def _pending_query(rt: Runtime, key: SessionKey, body: Content, request: ContextRequest, last_seq: int) -> PendingQuery:
    turn = new_turn(
        tenant_id=key.scope.tenant_id, session_id=key.session_id, language=rt.settings.language, role="user",
        content=body, id=request.query_id, provisional=True, after_seq=last_seq, **request.query_turn,
    )  # fmt: skip
    return PendingQuery(key.scope, key.session_id, turn, key.create)


def _query(rt: Runtime, text: str, notes: list[str], *, limit: int, floor: float | str | None) -> Flow[hybrid.Query]:
    """Return what to look for: the words of text, and its vector if the embedder answers in time."""
    settings = rt.settings
    blank = is_blank(text)
    if not blank and floor is not None and lexical.is_small_talk(text, language=settings.language):
        notes.append("nothing recalled: the query is small talk")
        blank = True
    vector: Vectors | None = None
    model: Model | None = None
    if not blank and limit > 0:
        try:
            model = yield from _known_model(rt)
            if model is None:
                notes.append("found by words only: nothing has been embedded yet")
            else:
                vector = yield from _query_vector(rt, model, text)
        except EmbedTimeout as exc:
            notes.append(f"found by words only: {exc}")
        except (EmbeddingError, DimensionMismatch, MissingExtra) as exc:
            notes.append(f"found by words only: {exc}")
            log.warning("a query was read by words only: %s", exc)
    grows = False
    if floor == "default":
        floor = settings.relevance_floor
        if floor is None and model is not None:
            floor, grows = rt.embedder.min_relevance, True
    return hybrid.Query(
        terms=() if blank else lexical.query_terms(text, language=settings.language).hashes,
        vector=vector,
        model=model,
        limit=0 if blank else limit,
        half_life_days=settings.half_life_days,
        recency_share=settings.recency_share,
        fact_half_life_days=settings.fact_half_life_days,
        floor=None if isinstance(floor, str) else floor,
        floor_grows=grows,
    )


def _known_model(rt: Runtime) -> Flow[Model | None]:
    """Return the embedder's model if the store has it; never asks a remote embedder anything."""
    name = rt.embedder.model
    if name not in rt.models:
        found = yield from transact(migrate.find_model, name, single=True)
        if found is None:
            return None
        rt.models[name] = found
    return rt.models[name]


def _query_vector(rt: Runtime, model: Model, text: str) -> Flow[Vectors]:
    cached = rt.cached_query(text)
    if cached is not None:
        return cached

    def keep(vectors: Vectors) -> None:
        rt.cache_query(text, check_vector(vectors[0], dimensions=model.dimensions, model=model.name))

    vectors = yield from embed(rt.embedder, [text], timeout_seconds=rt.settings.embed_timeout_ms / 1000, on_late=keep)
    keep(vectors)
    found = rt.cached_query(text)
    assert found is not None
    return found


def search(
    rt: Runtime,
    scope: Scope,
    query: object,
    where: Where,
    *,
    limit: int,
    floor: float | str | None,
    valid_at: datetime | None = None,
    known_at: datetime | None = None,
) -> Flow[list[ScoredMemory]]:
    """Return a user's best memories for a query, best first; [] for a blank one. `valid_at`: of the facts those that
    held then; `known_at`: all as it was known then."""
    text = searchable_text(read_content(query))
    if is_blank(text) or limit < 1:
        return []
    yield from ready(rt)
    notes: list[str] = []
    wanted = yield from _query(rt, text, notes, limit=limit, floor=floor)
    wanted = replace(wanted, valid_at=valid_at, known_at=known_at)
    return (yield from transact(hybrid.search, scope, wanted, where, single=True))
