"""`pgmem facts`, `history` and `review`: what is believed, since when and on whose word, and a person's say in it."""

from __future__ import annotations

import getpass
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pgmem_core.cli import output
from pgmem_core.cli.place import Place
from pgmem_core.client import PgMem
from pgmem_core.effects import run, transact
from pgmem_core.errors import InvalidArgument
from pgmem_core.facts import REVIEW_STATUSES, VERDICTS, Evidence, Fact, ReviewItem, render_value
from pgmem_core.tiers import working
from pgmem_core.types import SubjectRef, Turn

__all__ = ["decide", "facts", "history", "review", "subject_of"]

_QUOTE_CHARS = 160


def subject_of(given: str | None) -> SubjectRef | None:
    """Return the subject of the command line, kind:id. Raises: InvalidArgument."""
    if given is None:
        return None
    kind, colon, identifier = given.partition(":")
    if not colon or not kind or not identifier:
        raise InvalidArgument(f"--subject is {given!r}; write it as kind:id, for example customer:c-7")
    return SubjectRef(kind, identifier)


def _moment(given: str | None, option: str) -> datetime | None:
    """Return a time of the command line; one without a zone is UTC, a date alone its first moment."""
    if given is None:
        return None
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidArgument(
            f"{option} is {given!r}; write it as 2026-02-28 or 2026-02-28T14:30:00+01:00 (UTC where no zone is named)"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def facts(
    place: Place,
    *,
    user_id: str | None,
    subject: str | None,
    predicate: str | None,
    valid_at: str | None,
    known_at: str | None,
    group_id: str,
    as_json: bool,
) -> None:
    """Print the facts that hold, or held, as they are believed, or were. Raises: InvalidArgument, NotFound."""
    about = subject_of(subject)
    valid, known = _moment(valid_at, "--valid-at"), _moment(known_at, "--known-at")
    if about is None and user_id is None:
        raise InvalidArgument("name whose facts: --user-id or --subject kind:id")
    with place.open(create=False) as mem:
        mem.check()
        found = mem.facts(about, predicate, user_id=user_id, group_id=group_id, valid_at=valid, known_at=known)
        turns = _turns(mem, group_id, found)
        where = place.describe(mem)
    if as_json:
        output.emit(
            {
                "store": where, "group_id": group_id, "user_id": user_id, "subject": subject, "valid_at": valid,
                "known_at": known, "facts": [_document(fact, turns) for fact in found],
            }
        )  # fmt: skip
        return
    console = output.console()
    console.print(f"memory: {where}", soft_wrap=True)
    if not found:
        console.print("no facts")
        return
    table = _table("fact", "said by", "sure", "holds", "known since")
    for fact in found:
        table.add_row(
            Group(Text(output.shown(_line(fact, user_id))), *_supports(fact.evidence, turns)), str(fact.authority),
            f"{fact.confidence:.2f}", _span(fact.valid_from, fact.valid_to), _time(fact.recorded_at),
        )  # fmt: skip
    console.print(table)
    console.print(f"{len(found)} facts")


def history(
    place: Place, *, user_id: str | None, subject: str | None, predicate: str | None, group_id: str, as_json: bool
) -> None:
    """Print everything that was ever believed about a subject, oldest first. Raises: InvalidArgument."""
    about = subject_of(subject)
    if about is None:
        if user_id is None:
            raise InvalidArgument("name whose history: --user-id or --subject kind:id")
        about = SubjectRef("user", user_id)
    with place.open(create=False) as mem:
        mem.check()
        found = mem.history(about, predicate, group_id=group_id, user_id=user_id)
        turns = _turns(mem, group_id, found)
        where = place.describe(mem)
    if as_json:
        output.emit(
            {
                "store": where, "group_id": group_id, "subject": asdict(about),
                "history": [_document(fact, turns) for fact in found],
            }
        )  # fmt: skip
        return
    console = output.console()
    console.print(f"memory: {where}", soft_wrap=True)
    if not found:
        console.print("nothing was ever believed")
        return
    for fact in found:
        state = "" if fact.status == "accepted" else f", {fact.status}"
        console.print(Text(output.shown(_line(fact, user_id)), style="bold"), soft_wrap=True)
        console.print(f"  said by   {fact.authority}, {fact.confidence:.2f} sure{state}")
        console.print(f"  holds     {_span(fact.valid_from, fact.valid_to)}")
        console.print(f"  believed  {_span(fact.recorded_at, fact.superseded_at)}")
        for line in _supports(fact.evidence, turns, "  "):
            console.print(line, soft_wrap=True)
        for one in fact.decisions:
            note = f": {one.note}" if one.note else ""
            console.print(
                Text(output.shown(f"  decided   {one.decision} by {one.decided_by}, {_time(one.decided_at)}{note}")),
                soft_wrap=True,
            )
        console.print(Text(f"  id        {fact.id}", style="dim"), soft_wrap=True)


def review(place: Place, *, user_id: str | None, group_id: str, status: str | None, limit: int, as_json: bool) -> None:
    """Print what waits for a person to decide."""
    wanted = None if status is None else status.replace("-", "_")
    if wanted is not None and wanted not in REVIEW_STATUSES:
        raise InvalidArgument(f"--status is {status!r}; use one of {', '.join(REVIEW_STATUSES)}")
    with place.open(create=False) as mem:
        mem.check()
        found = mem.review(user_id, group_id, wanted, limit)
        turns = _turns(mem, group_id, found)
        where = place.describe(mem)
    if as_json:
        output.emit({"store": where, "group_id": group_id, "items": [_document(item, turns) for item in found]})
        return
    console = output.console()
    console.print(f"memory: {where}", soft_wrap=True)
    if not found:
        console.print("nothing to decide")
        return
    for item in found:
        sure = "" if item.confidence is None or item.status == "rejected" else f", {item.confidence:.2f} sure"
        hits = f", stated {item.hits} times since" if item.hits else ""
        did = "rejected by" if item.status == "rejected" else "said by"
        console.print(Text(output.shown(f"{item.status}: {_line(item, user_id)}"), style="bold"), soft_wrap=True)
        console.print(f"  {did} {item.authority}, {_time(item.at)}{sure}{hits}")
        for line in _supports(item.evidence, turns, "  "):
            console.print(line, soft_wrap=True)
        for fact in item.conflicts:
            console.print(
                Text(output.shown(f"  against   {_line(fact, user_id)}, said by {fact.authority} ({fact.id})")),
                soft_wrap=True,
            )
        console.print(Text(f"  id        {item.id}", style="dim"), soft_wrap=True)
    console.print(f"{len(found)} to decide: pgmem review --confirm ID, --reject ID or --reopen ID", soft_wrap=True)


def decide(
    place: Place,
    chosen: dict[str, str | None],
    *,
    by: str | None,
    note: str | None,
    authority: str,
    group_id: str,
    as_json: bool,
) -> None:
    """Do and record one decision; `chosen` has the id under "confirm", "reject" or "reopen"."""
    named = [verdict for verdict in VERDICTS if chosen.get(verdict) is not None]
    if len(named) != 1:
        raise InvalidArgument("give one of --confirm, --reject and --reopen: a decision is about one thing")
    [verdict] = named
    target = str(chosen[verdict])
    who = by or getpass.getuser()
    with place.open(create=False) as mem:
        mem.check()
        fact = mem.decide(target, verdict, decided_by=who, note=note, authority=authority, group_id=group_id)
        where = place.describe(mem)
    if as_json:
        output.emit(
            {
                "store": where, "target": target, "decision": verdict, "decided_by": who,
                "fact": None if fact is None else _document(fact, {}),
            }
        )  # fmt: skip
        return
    console = output.console()
    did = {"confirm": "confirmed", "reject": "rejected", "reopen": "reopened"}[verdict]
    console.print(
        Text(output.shown(f"{did} by {who}: {'a value' if fact is None else _line(fact, None)}")), soft_wrap=True
    )
    if verdict == "reopen":
        console.print("it may be believed again when it is next stated")


# -- how it looks --------------------------------------------------------------------------------------------------


def _turns(mem: PgMem, group_id: str, found: Iterable[Fact | ReviewItem]) -> dict[str, Turn]:
    """Return the turns that support what was found."""
    ids = sorted({one.turn_id for item in found for one in item.evidence if one.turn_id is not None})
    if not ids:
        return {}
    wanted = [uuid.UUID(one) for one in ids]
    return run(transact(working.by_ids, group_id, wanted, single=True), mem._rt.database)


def _document(item: Fact | ReviewItem, turns: dict[str, Turn]) -> dict[str, Any]:
    made = asdict(item)
    for one in made["evidence"]:
        turn = turns.get(one["turn_id"] or "")
        one["said"] = None if turn is None else {
            "role": turn.role, "name": turn.name, "at": turn.created_at, "session_id": turn.session_id,
            "text": turn.text,
        }  # fmt: skip
    return made


def _line(item: Fact | ReviewItem, user_id: str | None) -> str:
    own = item.subject.kind == "user" and item.subject.identifier == user_id
    whose = "" if own else f"{item.subject.kind} {item.subject.identifier} · "
    if item.value is None and isinstance(item, ReviewItem):
        return whose + item.text
    return f"{whose}{item.predicate}: {_brief(render_value(item.value), 300)}"


def _supports(evidence: Sequence[Evidence], turns: dict[str, Turn], indent: str = "") -> list[Text]:
    lines = []
    for one in evidence:
        turn = turns.get(one.turn_id or "")
        quote = one.quote or ("" if turn is None else turn.text)
        if turn is not None:
            who = f"{turn.name or turn.role}, {output.day(turn.created_at)}, session {turn.session_id}"
        else:
            who = one.source or f"turn {one.turn_id}"
        said = f": “{_brief(quote, _QUOTE_CHARS)}”" if quote else ""
        lines.append(Text(output.shown(f"{indent}{'evidence  ' if indent else ''}{who}{said}"), style="dim"))
    return lines


def _brief(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1].rstrip()}…"


def _time(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _span(start: datetime | None, stop: datetime | None) -> str:
    if start is None and stop is None:
        return "always"
    since = "" if start is None else f"since {_time(start)}"
    return since if stop is None else f"{since} until {_time(stop)}".strip()


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, ratio=1 if number == 0 else None, no_wrap=False)
    return table
