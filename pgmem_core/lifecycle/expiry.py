"""Expiry: what has come to its own end. Reads pass over it at once; here its space is given back, and it is written
down when it ended.

A fact whose time to live is over was true until then: its valid time closes (`ended_as` "ended"), as if somebody had
said so, and it can be asked for with `valid_at`. What was called wrong stays dead all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pgmem_core.effects import Flow, transact
from pgmem_core.flows import ready
from pgmem_core.ids import check_id
from pgmem_core.lifecycle.pruning import prune_injections, tenants
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import execution, items, semantic

__all__ = ["ExpireReport", "expire"]

# Facts ended in one transaction: about 1 ms each, under their subjects' locks.
_FACTS = 100
_ROWS = 1000


@dataclass(frozen=True, slots=True)
class ExpireReport:
    """What has ended: facts whose time to live was over, entries of execution memory (also those that an ended
    session left behind), items of the key-value store, and prompts logged longer ago than is set."""

    facts: int = 0
    execution: int = 0
    items: int = 0
    injections: int = 0


def expire(rt: Runtime, *, group_id: str | None, stopped: Callable[[], bool] = lambda: False) -> Flow[ExpireReport]:
    """End what is over, of one group or of all. `stopped` is asked between batches."""
    tenant = None if group_id is None else check_id(group_id, "group_id")
    yield from ready(rt)
    facts = entries = things = injections = 0
    of = [tenant] if tenant is not None else (yield from transact(tenants, single=True))
    for one in of:
        while not stopped():
            count = yield from transact(semantic.expire, one, most=_FACTS, language=rt.settings.language)
            facts += count
            if count == 0:
                break
        while not stopped():
            count = yield from transact(execution.expire, one, limit=_ROWS, single=True)
            entries += count
            if count < _ROWS:
                break
        while not stopped():
            count = yield from transact(items.sweep, one, limit=_ROWS, single=True)
            things += count
            if count < _ROWS:
                break
        injections += yield from prune_injections(rt, one, stopped=stopped)
    return ExpireReport(facts, entries, things, injections)
