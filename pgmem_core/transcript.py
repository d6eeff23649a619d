"""The flows of a session's turns as a list that its keeper may cut: what message stores of frameworks ask for.

`turns` are mappings with the arguments of `Session.add_turn` as keys. See `tiers.transcript` for what active, archived
and withdrawn mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pgmem_core import asking, flows
from pgmem_core.effects import Flow, transact
from pgmem_core.flows import SessionKey
from pgmem_core.ids import check_id
from pgmem_core.runtime import Runtime
from pgmem_core.storing import check_limit
from pgmem_core.tiers import sessions, transcript
from pgmem_core.tiers.transcript import Status
from pgmem_core.types import Turn

__all__ = ["Status", "add", "archive_oldest", "assign", "count", "keys", "listing", "withdraw"]


def listing(
    rt: Runtime, key: SessionKey, *, status: Status | None = "active", limit: int | None = None, offset: int = 0
) -> Flow[list[Turn]]:
    """Return the session's turns that stand so (None: active and archived), oldest first; [] for a session that is
    not there, or another user's."""
    limit = None if limit is None else check_limit(limit)
    offset = check_limit(offset, "offset")
    yield from _written(rt, key)
    return (yield from transact(
        transcript.listing, key.scope, key.session_id, status=status, limit=limit, offset=offset, single=True
    ))  # fmt: skip


def count(rt: Runtime, key: SessionKey, *, status: Status | None = "active") -> Flow[int]:
    """Return how many turns stand so."""
    yield from _written(rt, key)
    return (yield from transact(transcript.count, key.scope, key.session_id, status=status, single=True))


def keys(rt: Runtime, group_id: str, user_id: str | None) -> Flow[list[str]]:
    """Return the ids of the user's sessions that hold turns (without a user: of those without one), oldest first."""
    tenant = check_id(group_id, "group_id")
    user = None if user_id is None else check_id(user_id)
    yield from flows.ready(rt)
    return (yield from transact(transcript.keys, tenant, user_id=user, anonymous=sessions.ANONYMOUS, single=True))


def add(rt: Runtime, key: SessionKey, turns: Sequence[Mapping[str, Any]], *, archived: bool = False) -> Flow[None]:
    """Append turns, all or none; `archived`: out of the window at once. Raises as `Session.add_turns`."""
    if not archived:
        yield from asking.add_turns(rt, key, turns, None)
        return
    new = yield from flows.new_turns(rt, key, asking.turn_arguments(turns))
    if new:
        yield from _written(rt, key)
        yield from transact(transcript.add, key.scope, key.session_id, new, create=key.create, archived=True)
        rt.wake()


def assign(rt: Runtime, key: SessionKey, turns: Sequence[Mapping[str, Any]], *, archived: bool = False) -> Flow[None]:
    """Make these the session's active (or archived) turns: the common beginning stays, what follows is withdrawn and
    the rest appended, in one transaction. The same list again changes nothing; [] clears the session, no other.

    Raises: InvalidArgument (nothing is changed then), Conflict.
    """
    new = yield from flows.new_turns(rt, key, asking.turn_arguments(turns))
    yield from _written(rt, key)
    yield from transact(transcript.assign, key.scope, key.session_id, new, create=key.create, archived=archived)
    rt.wake()


def withdraw(
    rt: Runtime,
    key: SessionKey,
    *,
    status: Status | None = "active",
    limit: int | None = None,
    place: int | None = None,
) -> Flow[list[Turn]]:
    """Take turns back and return them: all that stand so, the oldest `limit`, or the one at `place` (from the end
    where negative; none where there is no such place)."""
    limit = None if limit is None else check_limit(limit)
    yield from _written(rt, key)
    return (yield from transact(
        transcript.withdraw_all, key.scope, key.session_id, status=status, limit=limit, place=place
    ))  # fmt: skip


def archive_oldest(rt: Runtime, key: SessionKey, number: int) -> Flow[list[Turn]]:
    """Archive the oldest active turns and return them."""
    number = check_limit(number, "n")
    yield from _written(rt, key)
    return (yield from transact(transcript.archive_oldest, key.scope, key.session_id, number))


def _written(rt: Runtime, key: SessionKey) -> Flow[None]:
    """Make the session's pending queries durable first, so that the list holds them."""
    yield from flows.ready(rt)
    yield from flows.write_queries(rt, [query for query in rt.pending(key.scope, key.session_id) if not query.handed])
