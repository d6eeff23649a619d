"""Lines of an export, checked beyond their types. Pure.

A file is text that anybody may have edited. What says who believed what, and with which authority, is taken at its
word: whoever may import may also state. But names stay names, keys are found anew from what they are keys of, and no
time is written that could not be read back, or that what is said from now on could never be later than.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from pgmem_core.encoding import decode_json, dumps
from pgmem_core.errors import InvalidArgument
from pgmem_core.facts import check_subject
from pgmem_core.folding import value_key
from pgmem_core.formation.claims import Limits
from pgmem_core.ids import check_id
from pgmem_core.importing.archive import Row
from pgmem_core.predicates import normalise_predicate
from pgmem_core.storing import record_uuid
from pgmem_core.tiers.beliefs import subject_id
from pgmem_core.tiers.sessions import ANONYMOUS
from pgmem_core.turns import check_time
from pgmem_core.types import ROLES, Authority, SubjectRef

__all__ = ["check_row"]

# Numbers of turns and tokens: what is counted on from here stays far from the end of a bigint.
_MOST = 2**53
# How far another machine's clock may be ahead of this one's.
_AHEAD = timedelta(days=1)
_TIMES = ("valid_from", "valid_to", "last_change", "seen_through")
# Times in the world, which may be to come; all others are of what was done here.
_WORLD = frozenset({"valid_from", "valid_to", "expires_at", "seen_through", "created_at"})
_OPEN = {"superseded_at": "infinity", "valid_to": "infinity", "valid_from": "-infinity", "last_change": "-infinity"}
_STATUSES = ("accepted", "contested", "rejected")


def check_row(kind: str, row: Row, now: datetime) -> Row:
    """Return a row of this type of line as it may be written. Raises: InvalidArgument, if it may not."""
    made = dict(row)
    _check_ids(kind, made)
    times = _times(kind, made, now)
    match kind:
        case "session":
            _check_numbers(made, "last_seq", "token_total")
            _check_mapping(made, "metadata")
        case "turn":
            _check_numbers(made, "seq", least=1)
            if made["role"] not in ROLES or made.get("kind", "turn") != "turn":
                raise InvalidArgument(f"role {made['role']!r} of a {made.get('kind')!r} is no turn's")
        case "record":
            if made["kind"] == "turn" or made.get("seq") is not None:
                raise InvalidArgument("a record that is a turn comes as a line of type 'turn'")
        case "fact":
            made |= _fact(made, times, now)
        case "tombstone":
            _check_predicate(made)
            made["subject"] = _subject(made["subject"], now)
            _check_authority(made)
    if kind in ("turn", "record"):
        _check_mapping(made, "metadata")
        _check_mapping(made, "message")
    return made


def _check_ids(kind: str, row: Row) -> None:
    for name in ("session_id", "user_id", "agent_id", "kind"):
        value = row.get(name)
        # "" is no user's, and no session's: rows of the plain store, facts that were stated in none.
        if name in row and value not in (None, ""):
            check_id(value.removeprefix(ANONYMOUS) if name == "user_id" and isinstance(value, str) else value, name)
    if kind in ("session", "turn") and not row["session_id"]:
        raise InvalidArgument(f"session_id of a {kind} is blank")


def _check_numbers(row: Row, *names: str, least: int = 0) -> None:
    for name in names:
        value = row.get(name, least)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
            raise InvalidArgument(f"{name} is {value!r:.60}, wanted a whole number from {least} to {_MOST}")


def _check_mapping(row: Row, name: str) -> None:
    if not isinstance(row.get(name), dict | None):
        raise InvalidArgument(f"{name} is a {type(row[name]).__name__}, wanted an object")


def _check_predicate(row: Row) -> None:
    if normalise_predicate(row["predicate"]) != row["predicate"]:
        raise InvalidArgument(f"predicate {row['predicate'][:80]!r} is not written as a store writes it")


def _check_authority(row: Row) -> None:
    if row.get("authority") not in Authority.__members__:
        raise InvalidArgument(f"authority {row.get('authority')!r:.60} is unknown; use one of {', '.join(Authority)}")


def _fact(row: Row, times: dict[str, datetime], now: datetime) -> Row:
    _check_predicate(row)
    _check_authority(row)
    confidence = row.get("confidence")
    if not isinstance(confidence, int | float) or isinstance(confidence, bool) or not 0 <= confidence <= 1:
        raise InvalidArgument(f"confidence is {confidence!r:.60}; it must be a number from 0 to 1")
    if row.get("status") not in _STATUSES:
        raise InvalidArgument(f"status {row.get('status')!r:.60} is unknown; use one of {', '.join(_STATUSES)}")
    for start, stop in (("valid_from", "valid_to"), ("recorded_at", "superseded_at")):
        if start in times and stop in times and times[start] >= times[stop]:
            raise InvalidArgument(f"{stop} is not after {start}")
    size, most = len(dumps(row.get("value")).encode()), Limits().max_value_bytes
    if size > most:
        raise InvalidArgument(f"value takes {size} bytes, at most {most} are allowed")
    for one in row["evidence"]:
        _times("evidence", one, now)
        if (one.get("turn_id") is None) == (one.get("source") is None):
            raise InvalidArgument("evidence leads to a turn_id or to a source, and to one of them")
        if one.get("turn_id") is not None:
            record_uuid(one["turn_id"])
    subject = _subject(row["subject"], now)
    key = "\\x" + value_key(decode_json(row.get("value"))).hex()
    return {"subject": subject, "subject_id": subject["subject_id"], "value_key": key}


def _subject(given: Row, now: datetime) -> Row:
    """Return the subject with the id that follows from its name: facts of one cannot pass as another's."""
    _times("subject", given, now)
    about, owner = SubjectRef(given["kind"], given["identifier"]), given.get("owner") or ""
    if check_subject(about) != about:
        raise InvalidArgument(f"subject.kind {about.kind[:80]!r} is not written as a store writes it")
    if owner:
        check_id(owner.removeprefix(ANONYMOUS) if isinstance(owner, str) else owner, "subject.owner")
    return {**given, "owner": owner, "subject_id": str(subject_id(about, owner))}


def _times(kind: str, row: Row, now: datetime) -> dict[str, datetime]:
    """Return the times of a row, but for open ends. Raises: InvalidArgument."""
    found: dict[str, datetime] = {}
    for name, value in row.items():
        if value is None or not (name.endswith("_at") or name in _TIMES) or value == _OPEN.get(name):
            continue
        at = found[name] = _moment(name, value)
        if (name not in _WORLD or kind == "tombstone") and at > now + _AHEAD:
            raise InvalidArgument(f"{name} {value} has not come yet")
    return found


def _moment(name: str, value: Any) -> datetime:
    try:
        at = check_time(datetime.fromisoformat(value))
    except (TypeError, ValueError, InvalidArgument) as exc:
        raise InvalidArgument(f"{name} {value!r:.60} is no time from the year 2 to 9998 with its zone") from exc
    assert at is not None
    return at
