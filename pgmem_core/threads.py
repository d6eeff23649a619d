"""The process's few threads: a pool for remote query embeddings, made on first use, again after a fork."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

__all__ = ["embedding_pool"]

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_pool_pid = 0


def embedding_pool() -> ThreadPoolExecutor:
    """Return the pool. 16 threads: that many hung requests before a query waits for a place (and then times
    out by the same limit, since the wait counts)."""
    global _pool, _pool_pid
    with _lock:
        if _pool is None or _pool_pid != os.getpid():
            _pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="pgmem-embed")
            _pool_pid = os.getpid()
        return _pool


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
