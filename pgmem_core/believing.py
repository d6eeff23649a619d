"""The flows of semantic and execution memory: what is true, who said so, and what the agent is doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from pgmem_core import screening
from pgmem_core.changes import Confirm, Ignore
from pgmem_core.database.connection import Connection
from pgmem_core.effects import Flow, transact
from pgmem_core.encoding import encode_json
from pgmem_core.errors import InvalidArgument, NotFound
from pgmem_core.facts import Evidence, Fact, check_subject
from pgmem_core.flows import SessionKey, ready, write_queries
from pgmem_core.formation.claims import Claim
from pgmem_core.formation.reconcile import settle
from pgmem_core.ids import check_id
from pgmem_core.predicates import normalise_predicate
from pgmem_core.runtime import Runtime
from pgmem_core.storing import record_uuid
from pgmem_core.tiers import beliefs, execution, semantic
from pgmem_core.tiers.semantic import Place, Settled
from pgmem_core.tiers.sessions import user_subject
from pgmem_core.turns import check_time
from pgmem_core.types import Authority, SubjectRef, Turn

__all__ = ["EvidenceLike", "clear", "facts", "get", "get_all", "history", "observe", "promote", "put"]

EvidenceLike = Turn | Evidence | str
_MOST_TTL_SECONDS = 100 * 365 * 86400.0  # a hundred years; an interval has an end


def _evidence(given: Sequence[EvidenceLike] | EvidenceLike, session_id: str) -> list[Evidence]:
    if isinstance(given, Turn | Evidence | str):
        given = [given]
    if not isinstance(given, Sequence):
        raise InvalidArgument(f"evidence must be turns, Evidence or the name of a source, got {type(given).__name__}")
    made = []
    for one in given:
        if isinstance(one, Turn):
            made.append(Evidence(turn_id=one.id))
        elif isinstance(one, Evidence):
            if one.turn_id is None and not one.source:
                raise InvalidArgument("evidence needs a turn_id or a source: what supports the fact")
            made.append(one if one.turn_id is None else replace(one, turn_id=str(record_uuid(one.turn_id))))
        elif isinstance(one, str):
            made.append(Evidence(source=one))
        else:
            raise InvalidArgument(f"evidence must be turns, Evidence or the name of a source, got {type(one).__name__}")
    # Every fact leads to a source: where none is named, the call in this session is it.
    return made or [Evidence(source=f"call in session {session_id}")]


def _screened(rt: Runtime, evidence: list[Evidence]) -> list[Evidence]:
    return [
        replace(one, source=rt.screen(one.source, "evidence"), quote=rt.screen(one.quote, "evidence"))
        for one in evidence
    ]


def observe(
    rt: Runtime,
    key: SessionKey,
    predicate: str,
    value: Any,
    *,
    action: Literal["assert", "correct", "end", "retract"],
    subject: SubjectRef | None,
    authority: Authority | str,
    evidence: Sequence[EvidenceLike] | EvidenceLike,
    replaces: Any = None,
    valid_from: datetime | None = None,
    valid_to: datetime | None = None,
    confidence: float | None = None,
    single_valued: bool | None = None,
    explicit: bool = False,
    ttl_seconds: float | None = None,
    given: Any = None,
) -> Flow[Fact | None]:
    """State something about a subject, and return the fact that stands for it afterwards, if one does."""
    _check_ttl(ttl_seconds)
    try:
        who = Authority(authority)
    except ValueError:
        raise InvalidArgument(f"authority {authority!r} is unknown; use one of {', '.join(Authority)}") from None
    about = user_subject(key.scope) if subject is None else check_subject(subject)
    cites = _evidence(evidence, key.session_id)
    if rt.policy is not None:
        given_texts = (predicate, value, replaces)
        predicate, value, replaces, cites = yield from screening.screened(
            rt, key.scope.tenant_id, lambda: (*(rt.screen(one, "fact") for one in given_texts), _screened(rt, cites))
        )
    claim = Claim.observed(
        about,
        predicate,
        value,
        authority=who,
        said_at=datetime.now(UTC),
        evidence=cites,
        action=action,
        replaces=replaces,
        single_valued=single_valued,
        confidence=confidence,
        valid_from=check_time(valid_from, "valid_from"),
        valid_to=check_time(valid_to, "valid_to"),
        explicit=explicit or action == "correct",
    )
    yield from ready(rt)
    # The query of this very turn may be the evidence, and on its way to the database still. On the caller's own
    # transaction it cannot be waited for: that may hold the session's lock.
    cited = {one.turn_id for one in claim.evidence}
    if given is None and any(str(query.turn.id) in cited for query in rt.pending(key.scope, key.session_id)):
        yield from write_queries(rt, [one for one in rt.pending(key.scope, key.session_id) if not one.handed])
    # A user's own facts are that user's memory, whoever's session states them.
    owner = replace(key.scope, user_id=about.identifier) if about.kind == "user" else key.scope
    place = Place(owner, key.session_id, rt.settings.language)
    settled = yield from transact(_settle, place, claim, ttl_seconds, given=given)
    rt.wake()
    if settled.reconciled.rejected:
        raise InvalidArgument(settled.reconciled.rejected[0].reason)
    # The first change is about the claim itself; the rest is what it closes, settles or buries.
    fact_id = settled.fact_ids[0] if settled.fact_ids else None
    if fact_id is None:
        return None
    return (yield from transact(beliefs.fetch, key.scope.tenant_id, fact_id, single=True, given=given))


def _settle(conn: Connection, place: Place, claim: Claim, ttl_seconds: float | None) -> Settled:
    # Said when the lock was had, by the database's clock: whoever writes last says last, however clocks differ.
    settled = semantic.settle(
        conn,
        place,
        [claim.subject],
        lambda current, dead, now: settle([replace(claim, said_at=now)], current, tombstones=dead),
    )
    if ttl_seconds is not None and settled.fact_ids and settled.fact_ids[0] is not None:
        semantic.limit(
            conn, place.scope.tenant_id, settled.fact_ids[0], ttl_seconds,
            new=not isinstance(settled.reconciled.changes[0], Confirm | Ignore),
        )  # fmt: skip
    return settled


def _check_ttl(ttl_seconds: float | None) -> None:
    if ttl_seconds is not None and (
        not isinstance(ttl_seconds, int | float)
        or isinstance(ttl_seconds, bool)
        or not 0 < ttl_seconds <= _MOST_TTL_SECONDS
    ):
        raise InvalidArgument(
            f"ttl_seconds must be a number greater than 0 and at most {_MOST_TTL_SECONDS:.0f}, got {ttl_seconds!r};"
            " leave it out for no limit"
        )


def by_ids(rt: Runtime, group_id: str, ids: Sequence[str]) -> Flow[dict[str, Fact]]:
    """Return the facts of recalled memories by id, with their evidence; other ids are passed over."""
    if not ids:
        return {}
    tenant = check_id(group_id, "group_id")
    yield from ready(rt)
    return (yield from transact(beliefs.by_ids, tenant, ids, single=True))


def facts(
    rt: Runtime,
    group_id: str,
    *,
    subject: SubjectRef | None,
    user_id: str | None,
    predicate: str | None,
    valid_at: datetime | None,
    known_at: datetime | None,
) -> Flow[list[Fact]]:
    """Return the facts believed (at known_at) to hold (at valid_at)."""
    tenant = check_id(group_id, "group_id")
    if subject is None and user_id is None:
        raise InvalidArgument("facts needs a subject or a user_id: whom to ask about")
    about = None if subject is None else check_subject(subject)
    user = None if user_id is None else check_id(user_id)
    name = None if predicate is None else normalise_predicate(predicate)
    valid, known = check_time(valid_at, "valid_at"), check_time(known_at, "known_at")
    yield from ready(rt)
    return (
        yield from transact(
            beliefs.facts_of,
            tenant,
            subject=about,
            user_id=user,
            predicate=name,
            valid_at=valid,
            known_at=known,
            single=True,
        )
    )


def history(
    rt: Runtime, group_id: str, subject: SubjectRef, predicate: str | None, user_id: str | None = None
) -> Flow[list[Fact]]:
    """Return everything that was ever believed about a subject, in the order in which it was recorded."""
    tenant, about = check_id(group_id, "group_id"), check_subject(subject)
    name = None if predicate is None else normalise_predicate(predicate)
    user = None if user_id is None else check_id(user_id)
    yield from ready(rt)
    return (yield from transact(beliefs.history, tenant, about, name, user_id=user, single=True))


# -- execution memory ------------------------------------------------------------------------------------------


def put(
    rt: Runtime, key: SessionKey, name: str, value: Any, *, ttl_seconds: float | None, given: Any = None
) -> Flow[None]:
    """Set a key of the session. Raises: NotFound if there is no such session, or it has ended."""
    name = check_id(name, "key")
    _check_ttl(ttl_seconds)
    kept = yield from screening.screen_value(rt, key.scope.tenant_id, value, "execution")
    stored = encode_json(kept, where=f"execution[{name!r}]")
    yield from ready(rt)
    done = yield from transact(
        execution.put,
        key.scope,
        key.session_id,
        name,
        stored,
        ttl_seconds=ttl_seconds,
        single=True,
        given=given,
    )
    if not done:
        raise NotFound(f"no open session {key.session_id!r}: execution memory lives as long as its session")


def get(rt: Runtime, key: SessionKey, name: str, default: Any) -> Flow[Any]:
    name = check_id(name, "key")
    yield from ready(rt)
    found = yield from transact(execution.fetch, key.scope, key.session_id, name, single=True)
    return found[0] if found else default


def get_all(rt: Runtime, key: SessionKey) -> Flow[dict[str, Any]]:
    yield from ready(rt)
    return (yield from transact(execution.fetch_all, key.scope, key.session_id, single=True))


def clear(rt: Runtime, key: SessionKey, name: str | None, given: Any = None) -> Flow[int]:
    name = None if name is None else check_id(name, "key")
    yield from ready(rt)
    return (yield from transact(execution.clear, key.scope, key.session_id, name, single=True, given=given))


def promote(
    rt: Runtime,
    key: SessionKey,
    name: str,
    predicate: str,
    *,
    subject: SubjectRef | None,
    authority: Authority | str,
    evidence: Sequence[EvidenceLike] | EvidenceLike,
    given: Any = None,
) -> Flow[Fact | None]:
    """Make a fact of an execution entry, explicitly; the entry stays. Raises: NotFound."""
    yield from ready(rt)
    found = yield from transact(
        execution.fetch, key.scope, key.session_id, check_id(name, "key"), single=True, given=given
    )
    if not found:
        raise NotFound(f"execution memory of session {key.session_id!r} has no key {name!r}")
    source = evidence or [Evidence(source=f"execution memory of session {key.session_id}, key {name}")]
    return (
        yield from observe(
            rt, key, predicate, found[0], action="assert", subject=subject, authority=authority, evidence=source,
            given=given,
        )
    )  # fmt: skip
