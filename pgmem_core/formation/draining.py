"""How a lane of background work is drained: claim, do, look again, wait for what others are at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pgmem_core.effects import Flow, pause
from pgmem_core.errors import StoreUnavailable

__all__ = ["FormReport", "Lane", "drain"]

# How long a drain waits between looks at sessions that another worker is at.
_WAIT_SECONDS = 0.02
# How often it looks again at sessions that wait and cannot be claimed.
_IDLE_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class FormReport:
    """What a drain did: turns, facts and episodes embedded and the sessions brought up to date by it; facts added or
    changed, episodes written and the sessions read for them; and the errors, by session."""

    turns: int = 0
    sessions: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    facts: int = 0
    episodes: int = 0
    formed: int = 0

    def __add__(self, other: FormReport) -> FormReport:
        return FormReport(
            self.turns + other.turns, self.sessions + other.sessions, {**self.errors, **other.errors},
            self.facts + other.facts, self.episodes + other.episodes, self.formed + other.formed,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lane:
    """One kind of work on sessions. `rest` is what belongs to no session; it returns how many records it embedded.
    `dropped`: claims that were held when the database went away, kept from one drain to the next."""

    claim: Callable[[bool], Flow[Sequence[Any]]]
    work: Callable[[Any], Flow[FormReport]]
    release: Callable[[Sequence[Any]], Flow[None]]
    backlog: Callable[[bool], Flow[tuple[int, int]]]
    dropped: list[Any]
    rest: Callable[[], Flow[int]] | None = None


def drain(lane: Lane, *, wait: bool, eager: bool, stopped: Callable[[], bool]) -> Flow[FormReport]:
    """Work until nothing can be claimed; `wait`: nor anybody is at anything. `eager` holds until something fails, so
    that what failed is tried once."""
    report, failed, idle = FormReport(), False, 0
    if lane.dropped:  # else they would wait for their leases to end: 300 s after a restart of Postgres that took 1
        back = lane.dropped[:]
        yield from lane.release(back)
        lane.dropped[:] = [one for one in lane.dropped if one not in back]
    while True:
        claims = yield from lane.claim(eager and not failed)
        for number, claimed in enumerate(claims):
            if stopped():
                yield from lane.release(claims[number:])
                return report
            try:
                done = yield from lane.work(claimed)
            except StoreUnavailable:
                lane.dropped.extend(claims[number:])
                raise
            report += done
            failed = failed or bool(done.errors)
        if claims:
            idle = 0
            continue
        if lane.rest is not None:
            report += FormReport(turns=(yield from lane.rest()))
        if not wait:
            return report
        waiting, busy = yield from lane.backlog(eager and not failed)
        # A session may wait and yet escape the claim: another worker gave it back a moment ago, or an open
        # transaction, perhaps the caller's own, holds its row.
        idle = 0 if busy else idle + 1
        if not busy and (not waiting or idle > _IDLE_ROUNDS):
            return report
        yield from pause(_WAIT_SECONDS)
