"""What the flows of one client share: the database, the embedder, the caches, the queries on their way to
becoming turns, and the one thread that works beside the turn."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from pgmem_core.database.engine import Database
from pgmem_core.database.migrate import Model
from pgmem_core.errors import ConfigurationError
from pgmem_core.facts import Extractor
from pgmem_core.ids import new_id
from pgmem_core.policy import WritePolicy
from pgmem_core.protocols import Embedder, Summarizers, Vectors
from pgmem_core.retrieval.lexical import LANGUAGES
from pgmem_core.settings import Settings
from pgmem_core.types import NewTurn, Scope

__all__ = ["PendingQuery", "Runtime"]

log = logging.getLogger(__name__)

# 1,024 query vectors of 1,536 dimensions are 6 MB.
_QUERY_CACHE = 1024


@dataclass(slots=True, eq=False)
class PendingQuery:
    """A query that compile_context was given: the user's turn, until it is durable."""

    scope: Scope
    session_id: str
    turn: NewTurn
    create: bool
    written: Future[Any] | None = field(default=None)
    # Written on a connection of the caller's: until that transaction ends, a write of our own would wait for it,
    # for ever where the caller waits for us. The thread beside the turn does, and writes what was rolled back.
    handed: bool = field(default=False)

    @property
    def durable(self) -> bool:
        return self.written is not None and self.written.done() and self.written.exception() is None


class Runtime:
    """Shared state of one client. Safe to use from many threads; a forked child starts afresh."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        embedder: Embedder | None,
        *,
        extractor: Extractor | None = None,
        summarizers: Summarizers | None = None,
        policy: WritePolicy | None = None,
    ) -> None:
        if settings.language not in LANGUAGES:
            raise ConfigurationError(
                f"bad settings: language {settings.language!r} has no stemmer; use one of {', '.join(LANGUAGES)}"
            )
        self.database = database
        self.settings = settings
        self._embedder = embedder
        self._own_embedder = embedder is not None
        self.extractor = extractor
        self.summarizers = summarizers
        self.policy = policy
        self.ready = False
        self.models: dict[str, Model] = {}
        self._queries: OrderedDict[tuple[str, str | bytes], Vectors] = OrderedDict()
        self._pending: dict[tuple[str, str, str], list[PendingQuery]] = {}
        self._lock = threading.Lock()
        self._beside: ThreadPoolExecutor | None = None
        self._aside: ThreadPoolExecutor | None = None
        self._behind = 0
        self._pid = os.getpid()
        self.wake: Callable[[], None] = lambda: None
        self.uncounted: dict[tuple[str, str], int] = {}  # records added since their scope was counted
        self.dropped: dict[str, list[Any]] = {"embedding": [], "forming": []}  # see `formation.draining.Lane`

    @property
    def embedder(self) -> Embedder:
        """The embedder given, or the bundled one. Raises: MissingExtra if neither is there."""
        if self._embedder is None:
            from pgmem_core.models.bundled import BundledEmbedder

            self._embedder = BundledEmbedder()
        return self._embedder

    @property
    def embedder_known(self) -> bool:
        """True once an embedder was given or the bundled one was found."""
        return self._embedder is not None

    @property
    def has_own_embedder(self) -> bool:
        return self._own_embedder

    def adopt(self, embedder: Embedder) -> None:
        """Go on with another embedder, whose vectors the store's are now."""
        self._embedder, self._own_embedder = embedder, True
        self.models.clear()

    @property
    def forms(self) -> bool:
        """True if somebody is there to extract facts or to write summaries."""
        return self.extractor is not None or self.summarizers is not None

    def screen(self, value: Any, entry: str) -> Any:
        """Return what the write policy makes of a text, or of the texts in a value: a screened copy. Without a
        policy the value itself. Raises: WriteRefused; `screening` records it."""
        return value if self.policy is None else self.policy.screen(value, entry)

    # -- query vectors ---------------------------------------------------------------------------------------

    def cached_query(self, text: str) -> Vectors | None:
        key = (self.embedder.model, self._cache_key(text))
        self._check_fork()
        with self._lock:
            vector = self._queries.get(key)
            if vector is not None:
                self._queries.move_to_end(key)
            return vector

    def cache_query(self, text: str, vector: Vectors) -> None:
        self._check_fork()
        with self._lock:
            self._queries[(self.embedder.model, self._cache_key(text))] = vector
            while len(self._queries) > _QUERY_CACHE:
                self._queries.popitem(last=False)

    def _cache_key(self, text: str) -> str | bytes:
        # A query of a million characters must not stay in memory because its vector does; nor one that a policy
        # might not have let in.
        if len(text) <= 256 and self.policy is None:
            return text
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest()

    def forget_queries(self) -> None:
        """Forget the texts of the query cache."""
        with self._lock:
            self._queries.clear()

    # -- queries on their way to becoming turns --------------------------------------------------------------

    def pending(self, scope: Scope, session_id: str) -> list[PendingQuery]:
        """Return the queries of a user's session that are not durable yet, oldest first; forget the durable ones."""
        self._check_fork()
        key = _pending_key(scope, session_id)
        with self._lock:
            waiting = [query for query in self._pending.get(key, ()) if not query.durable]
            if waiting:
                self._pending[key] = waiting
            else:
                self._pending.pop(key, None)
            return list(waiting)

    def add_pending(self, query: PendingQuery) -> None:
        self._check_fork()
        with self._lock:
            self._pending.setdefault(_pending_key(query.scope, query.session_id), []).append(query)

    def is_pending(self, query: PendingQuery) -> bool:
        with self._lock:
            return query in self._pending.get(_pending_key(query.scope, query.session_id), ())

    def rename(self, query: PendingQuery, turn: NewTurn) -> bool:
        """Give a query an id of its own instead of the one of `turn`; False if another thread has done so."""
        with self._lock:
            if query.turn is not turn:
                return False
            query.turn = replace(turn, id=new_id(), given_id=False)
            return True

    def settle(self, scope: Scope, session_id: str, queries: list[PendingQuery]) -> None:
        """Forget queries that another write made durable, or that nobody may write any more."""
        self._check_fork()
        key = _pending_key(scope, session_id)
        with self._lock:
            left = [q for q in self._pending.get(key, ()) if q not in queries]
            if left:
                self._pending[key] = left
            else:
                self._pending.pop(key, None)

    def all_pending(self) -> list[PendingQuery]:
        self._check_fork()
        with self._lock:
            return [query for queries in self._pending.values() for query in queries if not query.durable]

    # -- beside the turn -------------------------------------------------------------------------------------

    def beside(self, work: Callable[[], Any]) -> Future[Any]:
        """Run work on the thread beside the turn; failures are logged, never raised into the turn."""
        self._check_fork()
        with self._lock:
            if self._beside is None:
                # One thread, so writes keep their order. The interpreter waits for it at exit.
                self._beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pgmem-beside")
            future = self._beside.submit(work)
            self._behind += 1
        future.add_done_callback(_log_failure)
        future.add_done_callback(self._one_less)
        return future

    @property
    def behind(self) -> int:
        """How many works wait beside the turn, the one under way included."""
        return self._behind

    def _one_less(self, future: Future[Any]) -> None:
        with self._lock:
            self._behind = max(0, self._behind - 1)

    def aside(self, work: Callable[[], Any]) -> Future[Any]:
        """Run work that may take minutes on a thread of its own, so that no write waits behind it. Work that has not
        begun when the client closes is dropped: it must stand in the database that it is to be done."""
        self._check_fork()
        with self._lock:
            if self._aside is None:
                self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pgmem-aside")
            future = self._aside.submit(work)
        future.add_done_callback(_log_failure)
        return future

    def close(self) -> None:
        """Finish what is under way beside the turn and stop its threads."""
        self._check_fork()
        with self._lock:
            beside, self._beside = self._beside, None
            aside, self._aside = self._aside, None
        if beside is not None:
            beside.shutdown(wait=True)
        if aside is not None:
            aside.shutdown(wait=True, cancel_futures=True)

    def _check_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()
            self._beside = self._aside = None
            self._behind = 0
            self._pending = {}  # the parent's to write


def _pending_key(scope: Scope, session_id: str) -> tuple[str, str, str]:
    # With the user: two may ask in a session of one name before the first of them has made it his.
    return scope.tenant_id, scope.user_id, session_id


def _log_failure(future: Future[Any]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        log.warning("work beside the turn failed: %s: %s", type(error).__name__, error)
