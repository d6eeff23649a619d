"""What callers ask of a client, checked and turned into flows: arguments are refused here, before any effect."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pgmem_core import flows, reading, screening
from pgmem_core.content import read_content, searchable_text
from pgmem_core.effects import Flow, transact
from pgmem_core.encoding import encode_json
from pgmem_core.errors import InvalidArgument, NotFound
from pgmem_core.flows import SessionKey
from pgmem_core.ids import check_id, new_id
from pgmem_core.reading import ContextRequest
from pgmem_core.runtime import Runtime
from pgmem_core.storing import check_limit, record_uuid, where_of
from pgmem_core.tiers import edits, injections, plain, sessions, working
from pgmem_core.tiers.injections import Injection, Prompt
from pgmem_core.turns import check_time, is_blank
from pgmem_core.types import CompiledContext, MemoryText, Scope, ScoredMemory, SessionInfo, Turn
from pgmem_core.window import within

__all__ = ["SessionKey", "check_id"]

_TURN_KEYS = {
    "role", "content", "id", "name", "tool_calls", "tool_call_id", "metadata", "created_at", "extra",
}  # fmt: skip


def scope_of(group_id: str, user_id: str | None, agent_id: str | None, session_id: str | None) -> Scope:
    """Return the checked scope. Without a user the session is a scope of its own, never a shared one."""
    tenant = check_id(group_id, "group_id")
    agent = None if agent_id is None else check_id(agent_id, "agent_id")
    if user_id is None and session_id is not None:
        return Scope(tenant, sessions.ANONYMOUS + session_id, agent)
    return Scope(tenant, check_id(user_id), agent)


def shown_user(user_id: str) -> str | None:
    """Return the user as the caller named it, or None for a session without one."""
    return None if user_id.startswith(sessions.ANONYMOUS) else user_id


# -- sessions --------------------------------------------------------------------------------------------------


def session_key(session_id: str | None, *, group_id: str, user_id: str | None, agent_id: str | None) -> SessionKey:
    """Return the key of a session that writing may create."""
    known = str(new_id()) if session_id is None else check_id(session_id, "session_id")
    return SessionKey(scope_of(group_id, user_id, agent_id, known), known, True)


def open_session(
    rt: Runtime, key: SessionKey, metadata: Mapping[str, Any] | None, *, create_only: bool, given: Any = None
) -> Flow[SessionKey]:
    """Create the session, or get it where that is allowed."""
    kept = yield from screening.screen_value(rt, key.scope.tenant_id, dict(metadata or {}), "session")
    checked = encode_json(kept, where="metadata")
    yield from flows.ready(rt)
    yield from transact(
        sessions.open_, key.scope, key.session_id, metadata=checked, create_only=create_only, single=True, given=given
    )
    return SessionKey(key.scope, key.session_id, False)


def get_session(rt: Runtime, session_id: str, *, group_id: str, user_id: str | None) -> Flow[SessionKey]:
    """Return the key of a stored session. Raises: NotFound, also where it is another user's."""
    tenant, session = check_id(group_id, "group_id"), check_id(session_id, "session_id")
    user = None if user_id is None else check_id(user_id)
    yield from flows.ready(rt)
    scope = yield from transact(sessions.scope_of_session, tenant, session, user_id=user, single=True)
    return SessionKey(scope, session, False)


def list_sessions(
    rt: Runtime, *, group_id: str, user_id: str | None, limit: int, offset: int
) -> Flow[list[SessionInfo]]:
    tenant = check_id(group_id, "group_id")
    user = None if user_id is None else check_id(user_id)
    limit, offset = check_limit(limit), check_limit(offset, "offset")
    yield from flows.ready(rt)
    return (yield from transact(sessions.listing, tenant, user_id=user, limit=limit, offset=offset, single=True))


def session_info(rt: Runtime, key: SessionKey) -> Flow[SessionInfo]:
    yield from flows.ready(rt)
    return (yield from transact(sessions.fetch, key.scope.tenant_id, key.session_id, user_id=key.scope.user_id,
                                single=True))  # fmt: skip


def end_session(rt: Runtime, key: SessionKey, given: Any = None) -> Flow[SessionInfo]:
    yield from flows.ready(rt)
    return (yield from transact(sessions.end, key.scope.tenant_id, key.session_id, user_id=key.scope.user_id,
                                single=True, given=given))  # fmt: skip


def delete_session(rt: Runtime, key: SessionKey, given: Any = None) -> Flow[int]:
    yield from flows.ready(rt)
    rt.settle(key.scope, key.session_id, rt.pending(key.scope, key.session_id))
    return (yield from transact(sessions.delete, key.scope.tenant_id, key.session_id, user_id=key.scope.user_id,
                                given=given))  # fmt: skip


# -- turns and context -----------------------------------------------------------------------------------------


def add_turns(
    rt: Runtime, key: SessionKey, turns: Sequence[Mapping[str, Any]], connection: Any, *, aligned: bool = False
) -> Flow[list[Turn]]:
    return (yield from flows.add_turns(rt, key, turn_arguments(turns), given=connection, aligned=aligned))


def turn_arguments(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the mappings as arguments of `new_turn`. Raises: InvalidArgument, naming the bad one by its position."""
    given = []
    for number, turn in enumerate(turns):
        if not isinstance(turn, Mapping):
            raise InvalidArgument(f"turn {number + 1} must be a mapping, got {type(turn).__name__}")
        unknown = sorted(set(turn) - _TURN_KEYS)
        if unknown:
            raise InvalidArgument(
                f"turn {number + 1} has unknown key {', '.join(map(repr, unknown))}; a turn takes {sorted(_TURN_KEYS)}"
            )
        if "role" not in turn:
            raise InvalidArgument(f"turn {number + 1} has no role")
        given.append({"content": None, **turn})
    return given


def turns(rt: Runtime, key: SessionKey, limit: int | None, before_seq: int | None) -> Flow[list[Turn]]:
    if limit is not None:
        limit = check_limit(limit)
    if before_seq is not None:
        before_seq = check_limit(before_seq, "before_seq")
    yield from _flush(rt, key)
    return (
        yield from transact(
            working.recent,
            key.scope.tenant_id,
            key.session_id,
            limit=limit,
            before_seq=before_seq,
            user_id=key.scope.user_id,
            single=True,
        )
    )


def window(rt: Runtime, key: SessionKey, budget_tokens: int | None, max_turns: int | None) -> Flow[list[Turn]]:
    if max_turns is not None:
        max_turns = check_limit(max_turns, "max_turns")
    if budget_tokens is not None:
        budget_tokens = check_limit(budget_tokens, "budget_tokens")
    yield from _flush(rt, key)
    most = rt.settings.window_turns if max_turns is None else max_turns
    # A cut that falls among tool results needs the call before it: look a little further back.
    recent = yield from transact(
        working.recent, key.scope.tenant_id, key.session_id, limit=most + 50, user_id=key.scope.user_id, archived=False,
        single=True,
    )  # fmt: skip
    return within(recent, budget_tokens, most)


def _flush(rt: Runtime, key: SessionKey) -> Flow[None]:
    """Make the session's pending queries durable, so that what is read next holds them."""
    yield from flows.ready(rt)
    yield from flows.write_queries(rt, [query for query in rt.pending(key.scope, key.session_id) if not query.handed])


def compile_context(
    rt: Runtime,
    key: SessionKey,
    query: object,
    *,
    query_id: str | uuid.UUID | None,
    injected_context: Sequence[str],
    instructions: str | None,
    budget_tokens: int | None,
    recall_items: int | None,
    recall_tokens: int | None,
    kinds: Sequence[str] | None,
    filter: Mapping[str, Any] | None,
    store_query: bool,
    floor: float | str | None,
    valid_at: datetime | None,
    known_at: datetime | None,
    held: Sequence[str | uuid.UUID] | None = None,
    query_turn: Mapping[str, Any] | None = None,
) -> Flow[CompiledContext]:
    settings = rt.settings
    if isinstance(injected_context, str):
        injected_context = [injected_context]
    for number, text in enumerate(injected_context, start=1):
        if not isinstance(text, str):
            raise InvalidArgument(f"injected_context entry {number} must be a str, got {type(text).__name__}")
    if isinstance(floor, str) and floor != "default":
        raise InvalidArgument(f"floor must be a number, None or 'default', got {floor!r}")
    budget = settings.budget_tokens if budget_tokens is None else check_limit(budget_tokens, "budget_tokens")
    items = settings.recall_items if recall_items is None else check_limit(recall_items, "recall_items")
    # A small budget is shared out in proportion; what the caller asks for is taken at its word.
    tokens = (
        min(settings.recall_tokens, budget // 4)
        if recall_tokens is None
        else min(check_limit(recall_tokens, "recall_tokens"), budget)
    )
    request = ContextRequest(
        key=key,
        query=query,
        query_id=query_id,
        injected_context=[text for text in injected_context if not is_blank(text)],
        instructions=instructions,
        budget_tokens=budget,
        recall_items=items,
        recall_tokens=tokens,
        where=where_of(kind=kinds, filter=filter),
        store_query=store_query and known_at is None,
        floor=floor,
        valid_at=check_time(valid_at, "valid_at"),
        known_at=check_time(known_at, "known_at"),
        held=held,
        query_turn=query_turn or {},
    )
    return (yield from reading.compile_context(rt, request))


def why(rt: Runtime, group_id: str, turn_id: str | uuid.UUID) -> Flow[list[Injection]]:
    """Return what the injection log holds of a turn, with what is left of the texts."""
    tenant, identity = check_id(group_id, "group_id"), record_uuid(turn_id)
    yield from flows.ready(rt)
    yield from reading.settle_log(rt)
    return (yield from transact(injections.of_turn, tenant, identity))


def prompts(
    rt: Runtime, group_id: str, *, user_id: str | None, session_id: str | None, limit: int
) -> Flow[list[Prompt]]:
    """Return what the injection log holds of a session, a user or the group, newest first."""
    tenant, limit = check_id(group_id, "group_id"), check_limit(limit)
    user = None if user_id is None else check_id(user_id)
    session = None if session_id is None else check_id(session_id, "session_id")
    yield from flows.ready(rt)
    yield from reading.settle_log(rt)
    return (yield from transact(injections.newest, tenant, session_id=session, user_id=user, limit=limit))


# -- the plain verbs -------------------------------------------------------------------------------------------


def search(
    rt: Runtime,
    scope: Scope,
    query: object,
    k: int,
    conditions: Mapping[str, Any],
    floor: float | str | None,
    *,
    valid_at: datetime | None = None,
    known_at: datetime | None = None,
) -> Flow[list[ScoredMemory]]:
    k = check_limit(k, "k")
    if isinstance(floor, str) and floor != "default":
        raise InvalidArgument(f"floor must be a number, None or 'default', got {floor!r}")
    where = where_of(**conditions)
    return (yield from reading.search(
        rt, scope, query, where, limit=k, floor=floor, valid_at=check_time(valid_at, "valid_at"),
        known_at=check_time(known_at, "known_at"),
    ))  # fmt: skip


def add_messages(
    rt: Runtime,
    messages: object,
    *,
    scope: Scope,
    session_id: str | None,
    metadata: Mapping[str, Any] | None,
    given: Any = None,
) -> Flow[list[Turn]]:
    """Store a text, a message or a list of messages as turns of a session."""
    rows: list[dict[str, Any]] = []
    if isinstance(messages, str | Mapping) or hasattr(messages, "content"):
        messages = [messages]
    if not isinstance(messages, Iterable):
        raise InvalidArgument(f"messages must be a text, a message or a list of them, got {type(messages).__name__}")
    for message in messages:
        if isinstance(message, Mapping):
            rows.append(
                {
                    "role": "user",
                    **message,
                    "metadata": {**(metadata or {}), **(message.get("metadata") or {})},
                }
            )
        elif isinstance(message, str):
            rows.append({"role": "user", "content": message, "metadata": metadata})
        else:
            role = getattr(message, "role", None) or getattr(message, "type", None) or "user"
            rows.append({"role": getattr(role, "value", role), "content": message, "metadata": metadata})
    session = str(new_id()) if session_id is None else check_id(session_id, "session_id")
    return (yield from add_turns(rt, SessionKey(scope, session, True), rows, given))


def get_all(
    rt: Runtime, scope: Scope, *, limit: int, offset: int, conditions: Mapping[str, Any]
) -> Flow[list[MemoryText]]:
    limit, offset = check_limit(limit), check_limit(offset, "offset")
    where = where_of(user_id=scope.user_id, **conditions)
    yield from flows.ready(rt)
    return (yield from transact(plain.listing, scope.tenant_id, where, limit=limit, offset=offset, single=True))


def update(
    rt: Runtime, group_id: str, memory_id: str | uuid.UUID, content: object, user_id: str | None, given: Any = None
) -> Flow[MemoryText]:
    """Replace a memory's text; what it was stays in its history. Its meaning is embedded anew off the turn."""
    tenant, record_id = check_id(group_id, "group_id"), record_uuid(memory_id)
    body = yield from screening.screen_value(rt, tenant, read_content(content), "memory")
    text = searchable_text(body)
    if is_blank(text):
        raise InvalidArgument("the new text is blank; delete the memory instead")
    user = None if user_id is None else check_id(user_id)
    yield from flows.ready(rt)
    found = yield from transact(
        edits.update, tenant, record_id, text, user_id=user, language=rt.settings.language, given=given
    )
    if found is None:
        raise NotFound(f"no memory {memory_id} in group {group_id!r}")
    rt.wake()
    return found


def delete(
    rt: Runtime, group_id: str, memory_id: str | uuid.UUID, user_id: str | None, given: Any = None
) -> Flow[bool]:
    tenant, record_id = check_id(group_id, "group_id"), record_uuid(memory_id)
    user = None if user_id is None else check_id(user_id)
    yield from flows.ready(rt)
    return (yield from transact(edits.delete, tenant, record_id, user_id=user, given=given))


def delete_all(rt: Runtime, scope: Scope, given: Any = None) -> Flow[int]:
    """Delete everything of one user."""
    yield from flows.ready(rt)
    for query in rt.all_pending():
        if query.scope.tenant_id == scope.tenant_id and query.scope.user_id == scope.user_id:
            rt.settle(query.scope, query.session_id, [query])
    return (yield from transact(edits.delete_user, scope.tenant_id, scope.user_id, given=given))


def history(rt: Runtime, group_id: str, memory_id: str | uuid.UUID, user_id: str | None) -> Flow[list[dict[str, Any]]]:
    tenant, record_id = check_id(group_id, "group_id"), record_uuid(memory_id)
    user = None if user_id is None else check_id(user_id)
    yield from flows.ready(rt)
    return (yield from transact(edits.history, tenant, record_id, user_id=user, single=True))
