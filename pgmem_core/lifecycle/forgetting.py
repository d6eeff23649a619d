"""Forgetting: real erasure of a user, a session, a subject or a turn, in one transaction.

What was made of it goes with it, what holds no content stays: an audit row, and hashes by which an older export or a
second reading of an old turn is told that it comes too late. Ids that can be guessed can be recognised in them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgmem_core.database.connection import Connection
from pgmem_core.effects import Flow, blocking, transact
from pgmem_core.errors import InvalidArgument
from pgmem_core.facts import check_subject
from pgmem_core.flows import ready
from pgmem_core.ids import check_id
from pgmem_core.runtime import PendingQuery, Runtime
from pgmem_core.storing import record_uuid
from pgmem_core.tiers import erasing, erasures
from pgmem_core.tiers.erasures import Key, Target, subject_name
from pgmem_core.tiers.sessions import ANONYMOUS, user_subject
from pgmem_core.types import Scope, SubjectRef

__all__ = ["ForgetReport", "forget"]

# Writing a query takes milliseconds; one that hangs must not hang the erasure with it.
_IN_FLIGHT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """What an erasure did. `rows`: how many went, by kind (turns, facts, vectors …, 0 where there were none).

    `erasure_id` names its audit row. What was said of the target until `erased_at` stays away.
    """

    erasure_id: str
    group_id: str
    target: Target
    rows: Mapping[str, int]
    erased_at: datetime

    @property
    def total(self) -> int:
        """Rows of all kinds: 0 where nothing was known of the target."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class _Order:
    """What to erase, checked. `key` names it; subject and record_id are its other forms."""

    tenant_id: str
    key: Key
    subject: SubjectRef | None = None
    record_id: uuid.UUID | None = None

    def concerns(self, query: PendingQuery) -> bool:
        """True if a query on its way to becoming a turn belongs to what is erased."""
        if query.scope.tenant_id != self.tenant_id:
            return False
        match self.key:
            case ("user", user_id):
                return query.scope.user_id == user_id
            case ("session", session_id):
                return query.session_id == session_id
            case ("turn", _):
                return query.turn.id == self.record_id
            case _:
                return False


def forget(
    rt: Runtime,
    *,
    user_id: str | None,
    session_id: str | None,
    subject: SubjectRef | None,
    turn_id: str | uuid.UUID | None,
    group_id: str,
    given: Any,
) -> Flow[ForgetReport]:
    """Erase exactly one target. Raises: InvalidArgument, before anything is erased."""
    order = _order(group_id, user_id=user_id, session_id=session_id, subject=subject, turn_id=turn_id)
    yield from ready(rt)
    for query in rt.all_pending():
        if order.concerns(query):
            rt.settle(query.scope, query.session_id, [query])
    if given is None:  # what is being written beside a turn now would be stored after the erasure
        barrier = rt.beside(lambda: None)
        yield from blocking(lambda: wait([barrier], _IN_FLIGHT_SECONDS))
    report = yield from transact(_erase, order, given=given)
    rt.forget_queries()
    rt.wake()  # summaries that told of it are to be written anew
    return report


def _order(
    group_id: str,
    *,
    user_id: str | None,
    session_id: str | None,
    subject: SubjectRef | None,
    turn_id: str | uuid.UUID | None,
) -> _Order:
    tenant = check_id(group_id, "group_id")
    given = {"user_id": user_id, "session_id": session_id, "subject": subject, "turn_id": turn_id}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise InvalidArgument(
            f"forget takes exactly one of {', '.join(given)}, got {' and '.join(named) or 'none'}; nothing was erased"
        )
    if user_id is not None:
        return _Order(tenant, ("user", check_id(user_id)))
    if session_id is not None:
        return _Order(tenant, ("session", check_id(session_id, "session_id")))
    if turn_id is not None:
        record_id = record_uuid(turn_id)
        return _Order(tenant, ("turn", str(record_id)), record_id=record_id)
    if not isinstance(subject, SubjectRef):
        raise InvalidArgument(f"subject must be a SubjectRef, got {type(subject).__name__}")
    about = check_subject(subject)
    return _Order(tenant, ("subject", subject_name(about)), subject=about)


def _erase(conn: Connection, order: _Order) -> ForgetReport:
    tenant, (target, one) = order.tenant_id, order.key
    erasures.serialise(conn, tenant, erasing=True)
    counts: erasing.Counts = {}
    keys: list[Key] = [order.key]
    if target == "user":
        about = user_subject(Scope(tenant, one))
        keys.append(("subject", subject_name(about)))
        erasures.mark_parts(conn, tenant, user_id=one)
        _, counts = erasing.user(conn, tenant, one, about)
    elif target == "session":
        erasures.mark_parts(conn, tenant, session_id=one)
        found = erasing.session(conn, tenant, one, user_id=None, calls=True)
        # Of a session without a user nothing is left of its scope: facts that it alone could read.
        rest = erasing.user(conn, tenant, ANONYMOUS + one, SubjectRef("session", one))[1]
        counts = _sum(rest, found[1] if found is not None else {})
    elif order.subject is not None:
        counts = erasing.subject(conn, tenant, order.subject)
    elif order.record_id is not None:
        erasures.mark_parts(conn, tenant, record_id=order.record_id)
        counts = erasing.turn(conn, tenant, order.record_id)
    at = erasures.mark(conn, tenant, keys)
    return ForgetReport(erasures.record(conn, tenant, order.key, counts, at), tenant, target, counts, at)


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> erasing.Counts:
    return {kind: one.get(kind, 0) + other.get(kind, 0) for kind in (*one, *(k for k in other if k not in one))}
