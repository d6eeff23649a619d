"""The work behind the turn: embedding what has been said, in a drain call, a thread, or a process of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pgmem_core.database.migrate import Model
from pgmem_core.effects import Flow, pause, run, transact
from pgmem_core.errors import BadVector, DimensionMismatch, EmbeddingError, PgmemError, StoreUnavailable
from pgmem_core.flows import embed_all, ready, store_model
from pgmem_core.formation import embedding
from pgmem_core.formation.embedding import Claim, Pending
from pgmem_core.protocols import Vectors
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import plain

__all__ = ["FormReport", "Worker", "form"]

log = logging.getLogger(__name__)

_SESSIONS_AT_A_TIME = 8
# Rounds in which an embedder may fail before its texts are tried one by one.
_PATIENCE = 3
# How long form() waits between looks at sessions that another worker is at.
_WAIT_SECONDS = 0.02
# How often it looks again at sessions that wait and cannot be claimed.
_IDLE_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class FormReport:
    """What a drain did: turns and facts embedded, sessions brought up to date, the errors of those that were not."""

    turns: int = 0
    sessions: int = 0
    errors: dict[str, str] = field(default_factory=dict)

    def __add__(self, other: FormReport) -> FormReport:
        return FormReport(self.turns + other.turns, self.sessions + other.sessions, {**self.errors, **other.errors})


def form(
    rt: Runtime,
    *,
    tenant_id: str | None = None,
    wait: bool = True,
    eager: bool = True,
    stopped: Callable[[], bool] = lambda: False,
) -> Flow[FormReport]:
    """Embed all that waits. `wait`: also for what another worker is at. `eager`: also what failed lately, once.
    `stopped` is asked before each session; the rest of what was claimed is given back then.

    An embedder that fails costs nothing but time: its sessions keep their error and are tried again later.
    """
    yield from ready(rt)
    report = FormReport()
    failed: set[tuple[str, str]] = set()
    idle = 0
    while True:
        claims = yield from transact(
            embedding.claim, limit=_SESSIONS_AT_A_TIME, lease_seconds=rt.settings.worker_lease_seconds,
            tenant_id=tenant_id, eager=eager and not failed, single=True,
        )  # fmt: skip
        for number, claimed in enumerate(claims):
            if stopped():
                yield from transact(embedding.release, claims[number:], single=True)
                return report
            done = yield from _form_session(rt, claimed)
            report += done
            if done.errors:
                failed.add((claimed.tenant_id, claimed.session_id))
        if claims:
            idle = 0
            continue
        report += FormReport(turns=(yield from _form_loose(rt, tenant_id)))
        if not wait:
            return report
        waiting, busy = yield from transact(
            embedding.backlog, tenant_id=tenant_id, eager=eager and not failed, single=True
        )
        # A session may wait and yet escape the claim: another worker gave it back a moment ago, or an open
        # transaction, perhaps the caller's own, holds its row.
        idle = 0 if busy else idle + 1
        if not busy and (not waiting or idle > _IDLE_ROUNDS):
            return report
        yield from pause(_WAIT_SECONDS)


def _form_session(rt: Runtime, claimed: Claim) -> Flow[FormReport]:
    count = 0
    try:
        model = yield from store_model(rt)
        while True:
            pending, through = yield from transact(embedding.load, claimed, single=True)
            problem = None
            good, vectors = yield from _vectors_of(rt, model, pending, patient=claimed.attempts < _PATIENCE)
            if len(good) < len(pending):
                bad = ", ".join(str(turn.seq) for turn in pending if turn not in good)
                problem = f"the embedder gave no usable vector for turn {bad}: found by words only"
                log.warning("session %r: %s", claimed.session_id, problem)
            if good:
                stored = yield from transact(
                    embedding.store_vectors, claimed.tenant_id, good, vectors, model=model, single=True
                )
                count += stored
                if stored < len(good):
                    continue  # edited or deleted meanwhile: look again before stepping over them
            left = yield from transact(
                embedding.advance, claimed, through=through, problem=problem,
                lease_seconds=rt.settings.worker_lease_seconds, single=True,
            )  # fmt: skip
            if left is None:
                break  # done, or the lease had ended: then it is another worker's, or the next round's
            claimed = left
        for user in (claimed.user_id, None):
            yield from transact(plain.refresh_stats, claimed.tenant_id, user, count, single=True)
    except StoreUnavailable:
        raise
    except (PgmemError, ImportError) as exc:
        message = f"{type(exc).__name__}: {exc}"
        log.warning("session %r could not be embedded: %s", claimed.session_id, message)
        yield from transact(embedding.fail, claimed, error=message, single=True)
        return FormReport(count, 0, {claimed.session_id: message})
    return FormReport(count, 1)


def _vectors_of(
    rt: Runtime, model: Model, pending: list[Pending], *, patient: bool = True
) -> Flow[tuple[list[Pending], Vectors]]:
    """Return the turns that could be embedded, and a vector for each.

    A bad vector (NaN, infinity, zero) refuses its whole batch, so the batch is then embedded turn by turn, and only
    the turns it came from stay without one. An embedder that fails is patiently tried again as a whole; where that
    has not helped, one text it refuses may be the reason, and those that it takes singly go on without it.

    Raises: EmbeddingError where the embedder failed on every turn.
    """
    none = np.empty((0, 0), dtype=np.float32)
    if not pending:
        return [], none
    try:
        return pending, embedding.combine((yield from embed_all(rt, model, embedding.texts_of(pending))))
    except BadVector:
        if len(pending) == 1:
            return [], none
    except EmbeddingError:
        if patient or len(pending) == 1:
            raise
    good, parts = [], []
    failure: EmbeddingError | None = None
    for turn in pending:
        try:
            kept, vectors = yield from _vectors_of(rt, model, [turn], patient=patient)
        except EmbeddingError as exc:
            failure = exc
            continue
        if kept:
            good.append(turn)
            parts.append(vectors)
    if failure is not None and not good:
        raise failure
    return good, np.concatenate(parts) if parts else none


def _form_loose(rt: Runtime, tenant_id: str | None) -> Flow[int]:
    """Embed what belongs to no session's line: facts, edited notes. What fails waits for the next round."""
    count, after = 0, None
    while True:
        found = yield from transact(embedding.load_loose, tenant_id=tenant_id, after=after, single=True)
        if not found:
            return count
        try:
            model = yield from store_model(rt)
            good, vectors = yield from _vectors_of(rt, model, [pending for _, _, pending in found], patient=False)
        except (EmbeddingError, DimensionMismatch, ImportError) as exc:
            log.warning("%d facts or notes could not be embedded: %s", len(found), exc)
            return count
        tenants = {pending.id: tenant for tenant, _, pending in found}
        for tenant in sorted(set(tenants.values())):
            places = [i for i, pending in enumerate(good) if tenants[pending.id] == tenant]
            if places:
                count += yield from transact(
                    embedding.store_vectors, tenant, [good[i] for i in places], vectors[places], model=model,
                    single=True,
                )  # fmt: skip
        after = found[-1][2].id


class Worker:
    """A thread that forms what its process writes, soon after, and whatever else waits in the database.

    A thread in both worlds: embedding is CPU or network work that must not stand in an event loop's way.
    """

    def __init__(self, rt: Runtime, on_round: Callable[[FormReport], None] | None = None) -> None:
        self._rt = rt
        self._on_round = on_round
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self.last_error: str | None = None

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and self._pid == os.getpid()

    def start(self) -> None:
        """Start the thread; a second call changes nothing, also after a fork."""
        if self.running:
            return
        self._wake, self._stop = threading.Event(), threading.Event()
        self._pid = os.getpid()
        self._rt.wake = self._wake.set
        self._thread = threading.Thread(target=self.run, name="pgmem-worker", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Stop after the session under way; what is left stays on the to-do list."""
        self._stop.set()
        self._wake.set()
        if self.running and self._thread is not None:
            self._thread.join(timeout_seconds)
        self._thread = None
        self._rt.wake = lambda: None

    def run(self) -> None:
        """Work until stopped. Blocking: `start` gives it a thread, `pgmem worker` a process."""
        poll = self._rt.settings.worker_poll_seconds
        wait = 0.0
        while not self._stop.is_set():
            self._wake.wait(wait)
            self._wake.clear()
            if self._stop.is_set():
                break
            try:
                report = run(form(self._rt, wait=False, eager=False, stopped=self._stop.is_set), self._rt.database)
                self.last_error = next(iter(report.errors.values()), None)
                wait = poll
                if self._on_round is not None:
                    self._on_round(report)
            except EmbeddingError as exc:
                self.last_error = str(exc)
                wait = poll
            except Exception as exc:
                # The thread must outlive a database restart: it says so once and comes back, slower.
                if self.last_error is None:
                    log.warning("the worker could not reach its work and goes on trying: %s", exc)
                self.last_error = f"{type(exc).__name__}: {exc}"
                wait = min(max(wait, poll) * 2, 30.0)
