"""Compaction that a caller asks for: `session.compact()` waits for it, `compact_async()` leaves it to others."""

from __future__ import annotations

import logging

from pgmem_core.effects import Flow, pause, run, transact
from pgmem_core.flows import SessionKey, ready, write_queries
from pgmem_core.formation import worker
from pgmem_core.formation.compaction import CompactReport
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import episodic, narrative

__all__ = ["CompactReport", "compact", "compact_later"]

log = logging.getLogger(__name__)

# What is left after them stays on the list, for a worker.
_ROUNDS = 10
_WAIT_SECONDS = 0.05
_NO_MODEL = "no summary was written: no model is configured; pass model=... or summarizers=... to the client"


def _ask(rt: Runtime, key: SessionKey) -> Flow[int]:
    """Put the session on the workers' list, with its pending queries; return how far it is summarised."""
    yield from ready(rt)
    yield from write_queries(rt, [query for query in rt.pending(key.scope, key.session_id) if not query.handed])
    return (
        yield from transact(episodic.ask, key.scope.tenant_id, key.session_id, user_id=key.scope.user_id, single=True)
    )


def compact(rt: Runtime, key: SessionKey) -> Flow[CompactReport]:
    """Embed, extract and summarise all of a session now, and say what was written. Raises: NotFound."""
    tenant, session = key.scope.tenant_id, key.session_id
    before = yield from _ask(rt, key)
    stories = yield from transact(narrative.newest, tenant, key.scope.user_id, single=True)
    formed = yield from worker.form(rt, tenant_id=tenant, session_id=session)
    after = yield from transact(episodic.written, tenant, session, after=before, single=True)
    if after is None:
        return CompactReport(session, note="the session is gone")
    newest = yield from transact(narrative.newest, tenant, key.scope.user_id, single=True)
    note = ""
    if rt.summarizers is None:
        note = _NO_MODEL
    elif not after.episodes and after.error is None:
        note = "nothing is new" if after.through == before else "nothing was said that is worth telling"
    return CompactReport(
        session, len(after.episodes), after.turns, after.running, max(0, newest - stories), after.through, note,
        formed.errors.get(session) or after.error,
    )  # fmt: skip


def compact_later(rt: Runtime, key: SessionKey) -> Flow[None]:
    """Put the session on the list, and have it done beside: by the worker if one runs here, else by a thread of its
    own. Raises: NotFound."""
    yield from _ask(rt, key)
    rt.wake()
    rt.aside(lambda: run(_beside(rt, key), rt.database))


def _beside(rt: Runtime, key: SessionKey) -> Flow[None]:
    tenant, session = key.scope.tenant_id, key.session_id
    for _ in range(_ROUNDS):
        report = yield from worker.form(rt, tenant_id=tenant, session_id=session, wait=False)
        for error in report.errors.values():
            log.warning("session %r could not be compacted and is tried again: %s", session, error)
        left = yield from transact(
            episodic.unclaimed, tenant, session, summarises=rt.summarizers is not None, single=True
        )
        if not left:
            return
        yield from pause(_WAIT_SECONDS)  # a turn was just being written, and its row is passed over
