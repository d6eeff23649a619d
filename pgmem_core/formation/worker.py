"""The work behind the turn: embedding what has been said, in a drain call, a thread, or a process of its own."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

import numpy as np

from pgmem_core.database.migrate import Model
from pgmem_core.effects import Flow, run, transact
from pgmem_core.errors import BadVector, DimensionMismatch, EmbeddingError, PgmemError, StoreUnavailable
from pgmem_core.flows import embed_all, ready, store_model
from pgmem_core.formation import embedding, leases
from pgmem_core.formation.compaction import compact_session
from pgmem_core.formation.draining import FormReport, Lane, drain
from pgmem_core.formation.embedding import Claim, Pending
from pgmem_core.formation.extracting import extract_session
from pgmem_core.formation.leases import Due, Lease
from pgmem_core.protocols import Vectors
from pgmem_core.runtime import Runtime
from pgmem_core.screening import error_text
from pgmem_core.tiers import plain

__all__ = ["FormReport", "Worker", "embed", "form", "form_tiers"]

log = logging.getLogger(__name__)

_SESSIONS_AT_A_TIME = 8
# Rounds in which an embedder may fail before its texts are tried one by one.
_PATIENCE = 3


def form(
    rt: Runtime,
    *,
    tenant_id: str | None = None,
    session_id: str | None = None,
    wait: bool = True,
    eager: bool = True,
    all_of_it: bool = True,
    stopped: Callable[[], bool] = lambda: False,
) -> Flow[FormReport]:
    """Embed all that waits (of a group, of one session of it), then extract and summarise, then embed what that gave.

    `wait`: also for what another worker is at. `eager`: also what failed lately, once. `all_of_it`: whatever the
    setting `formation` says of when. `stopped` is asked before each session; the rest of what was claimed is given
    back then. A model that fails costs nothing but time: its sessions keep their error and are tried again later.
    """
    report = yield from embed(rt, tenant_id=tenant_id, session_id=session_id, wait=wait, eager=eager, stopped=stopped)
    formed = yield from form_tiers(
        rt, tenant_id=tenant_id, session_id=session_id, wait=wait, eager=eager, all_of_it=all_of_it, stopped=stopped
    )
    report += formed
    if formed.facts or formed.episodes:
        report += yield from embed(
            rt, tenant_id=tenant_id, session_id=session_id, wait=wait, eager=False, stopped=stopped
        )
    return report


def embed(
    rt: Runtime,
    *,
    tenant_id: str | None = None,
    session_id: str | None = None,
    wait: bool = False,
    eager: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Flow[FormReport]:
    """The lane of embedding: turns of sessions in line, then what belongs to no line."""
    yield from ready(rt)
    lane = Lane(
        claim=lambda eager: transact(
            embedding.claim, limit=_SESSIONS_AT_A_TIME, lease_seconds=rt.settings.worker_lease_seconds,
            tenant_id=tenant_id, session_id=session_id, eager=eager, single=True,
        ),
        work=lambda claimed: _embed_session(rt, claimed),
        release=lambda claims: transact(embedding.release, claims, single=True),
        backlog=lambda eager: transact(
            embedding.backlog, tenant_id=tenant_id, session_id=session_id, eager=eager, single=True
        ),
        dropped=rt.dropped["embedding"], rest=lambda: _embed_loose(rt, tenant_id),
    )  # fmt: skip
    return (yield from drain(lane, wait=wait, eager=eager, stopped=stopped))


def form_tiers(
    rt: Runtime,
    *,
    tenant_id: str | None = None,
    session_id: str | None = None,
    wait: bool = False,
    eager: bool = False,
    all_of_it: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Flow[FormReport]:
    """The lane of forming: facts from turns, episodes and summaries from sessions; nothing without a model."""
    if not rt.forms:
        return FormReport()
    yield from ready(rt)
    settings = rt.settings
    due = Due(
        extracts=rt.extractor is not None,
        summarises=rt.summarizers is not None,
        mode=settings.formation,
        debounce_seconds=settings.formation_debounce_seconds,
    )
    lane = Lane(
        # One at a time: a model takes its time, and other workers may take the next.
        claim=lambda eager: transact(
            leases.claim, due, limit=1, lease_seconds=settings.formation_lease_seconds, tenant_id=tenant_id,
            session_id=session_id, eager=eager, all_of_it=all_of_it, single=True,
        ),
        work=lambda held: _form_session(rt, held),
        release=lambda held: transact(leases.release, held, single=True),
        backlog=lambda eager: transact(
            leases.backlog, due, tenant_id=tenant_id, session_id=session_id, eager=eager, single=True
        ),
        dropped=rt.dropped["forming"],
    )  # fmt: skip
    return (yield from drain(lane, wait=wait, eager=eager, stopped=stopped))


def _form_session(rt: Runtime, held: Lease) -> Flow[FormReport]:
    facts = episodes = 0
    summarises = rt.summarizers is not None
    failed: list[Exception] = []
    try:
        if rt.extractor is not None and held.extracts:
            facts = yield from extract_session(rt, rt.extractor, held)
    except StoreUnavailable:
        raise
    except Exception as exc:  # whatever it is: summaries do not wait for a batch that no model reads
        failed.append(exc)
    try:
        if summarises:
            episodes = (yield from compact_session(rt, held, force=False)).episodes
        if not failed:
            yield from transact(leases.finish, held, formed=held.extracts, compacted=summarises, single=True)
    except StoreUnavailable:
        raise
    except Exception as exc:  # the other sessions go on, and this one's error can be seen
        failed.append(exc)
    if failed:
        message = "; ".join(error_text(rt, one) for one in failed)
        log.warning("session %r could not be formed: %s", held.session_id, message)
        yield from transact(leases.fail, held, error=message, single=True)
        return FormReport(facts=facts, episodes=episodes, errors={held.session_id: message})
    return FormReport(facts=facts, episodes=episodes, formed=1)


def _embed_session(rt: Runtime, claimed: Claim) -> Flow[FormReport]:
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
        rt.dropped["embedding"].append(claimed)  # as it is by now: each stretch renews the lease
        raise
    except (PgmemError, ImportError) as exc:
        message = error_text(rt, exc)
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


def _embed_loose(rt: Runtime, tenant_id: str | None) -> Flow[int]:
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
    """Threads that form what their process writes, soon after, and whatever else waits in the database.

    Threads in both worlds: this is CPU or network work that must not stand in an event loop's way. One embeds; a
    second, where there is a model, extracts and summarises, so that its minutes of thought keep no turn unembedded.
    """

    def __init__(self, rt: Runtime, on_round: Callable[[FormReport], None] | None = None) -> None:
        self._rt = rt
        self._on_round = on_round
        self._stop = threading.Event()
        self._wakes: list[threading.Event] = []
        self._threads: list[threading.Thread] = []
        self._pid = 0
        self._errors: dict[str, str | None] = {}

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads) and self._pid == os.getpid()

    @property
    def last_error(self) -> str | None:
        """The last round's first error, of either lane; None once a round went well."""
        return next((error for error in self._errors.values() if error is not None), None)

    def start(self) -> None:
        """Start the threads; a second call changes nothing, also after a fork."""
        if self.running:
            return
        self._prepare()
        self._threads = [
            threading.Thread(target=self._go, args=(name, lane, wake), name=f"pgmem-{name}", daemon=True)
            for (name, lane), wake in zip(self._lanes(), self._wakes, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def _prepare(self) -> None:
        self._stop = threading.Event()
        self._pid = os.getpid()
        self._wakes = [threading.Event() for _ in self._lanes()]
        self._rt.wake = self._wake

    def _wake(self) -> None:
        for wake in self._wakes:
            wake.set()

    def _lanes(self) -> list[tuple[str, Callable[..., Flow[FormReport]]]]:
        lanes: list[tuple[str, Callable[..., Flow[FormReport]]]] = [("worker", embed)]
        if self._rt.forms and self._rt.settings.formation != "manual":
            lanes.append(("formation", form_tiers))
        return lanes

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Stop after the session under way; what is left stays on the to-do list."""
        self._stop.set()
        self._wake()
        if self._pid == os.getpid():
            deadline = time.monotonic() + timeout_seconds
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        self._threads = []
        self._rt.wake = lambda: None

    def run(self) -> None:
        """Work until stopped, blocking: `start` gives it threads, `pgmem worker` a process."""
        self.start()
        for thread in self._threads:
            thread.join()

    def _go(self, name: str, lane: Callable[..., Flow[FormReport]], wake: threading.Event) -> None:
        poll = self._rt.settings.worker_poll_seconds
        wait = 0.0
        stop = self._stop
        while not stop.is_set():
            wake.wait(wait)
            wake.clear()
            if stop.is_set():
                break
            try:
                report = run(lane(self._rt, stopped=stop.is_set), self._rt.database)
                self._errors[name] = next(iter(report.errors.values()), None)
                wait = poll
                if report.facts or report.episodes:
                    self._rt.wake()  # what was formed wants embedding
                if self._on_round is not None:
                    self._on_round(report)
            except EmbeddingError as exc:
                self._errors[name] = str(exc)
                wait = poll
            except BaseException as exc:
                # The thread must outlive a database restart, and a model that raises CancelledError or SystemExit
                # (Ctrl-C comes to the main thread alone): it says so once and comes back, slower.
                if self._errors.get(name) is None:
                    log.warning("the worker could not reach its work and goes on trying: %s", exc)
                self._errors[name] = f"{type(exc).__name__}: {exc}"
                wait = min(max(wait, poll) * 2, 30.0)
