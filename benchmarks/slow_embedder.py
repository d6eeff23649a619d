"""What a slow embedder costs the read: its time limit, no more, and the read says that it went by words.

    python -m benchmarks.slow_embedder [--dsn DSN]

A remote embedder that sleeps two seconds; p50 and p99 of compile_context beside `embed_timeout_ms`, sync and async.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from pgmem_core import AsyncPgMem, BundledEmbedder, PgMem
from pgmem_core.database.embedded import EmbeddedPostgres

LIMIT_MS = 150


class Sleepy(BundledEmbedder):
    """The bundled embedder as a remote one that has fallen asleep."""

    seconds = 0.0

    @property
    def local(self) -> bool:
        return False

    def embed(self, texts: Sequence[str]) -> Any:
        time.sleep(self.seconds)
        return super().embed(texts)

    async def aembed(self, texts: Sequence[str]) -> Any:
        await asyncio.sleep(self.seconds)
        return super().embed(texts)


def show(name: str, totals: list[float], words_only: int) -> None:
    p50, p99 = np.percentile(totals, [50, 99])
    print(f"{name:6} p50 {p50:.1f} ms, p99 {p99:.1f} ms, limit {LIMIT_MS} ms + {p99 - LIMIT_MS:.1f} ms;"
          f" by words only, and said so: {words_only} of {len(totals)}")  # fmt: skip


async def run_async(dsn: str, runs: int) -> None:
    async with AsyncPgMem(dsn, embedder=Sleepy(), embed_timeout_ms=LIMIT_MS) as mem:
        session = await mem.session.create(user_id="u1")
        Sleepy.seconds = 2.0
        totals, words = [], 0
        for i in range(runs):
            started = time.perf_counter()
            ctx = await session.compile_context(f"async question {i} about jazz", store_query=False)
            totals.append((time.perf_counter() - started) * 1000)
            words += int(ctx.timings["words_only"] == 1.0 and any("longer than" in note for note in ctx.notes))
        Sleepy.seconds = 0.0
    show("async", totals, words)


def main() -> None:
    """Run both forms and print them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", default=None)
    parser.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = None if options.dsn else EmbeddedPostgres(f"{folder}/pg")
        dsn = options.dsn or (server.start() if server else "")
        with PgMem(dsn, embedder=Sleepy(), embed_timeout_ms=LIMIT_MS) as mem:
            session = mem.session.create(user_id="u1")
            session.add_turns([{"role": "user", "content": f"I like jazz number {i}"} for i in range(50)])
            mem.form()
            Sleepy.seconds = 2.0
            totals, words = [], 0
            for i in range(options.runs):
                started = time.perf_counter()
                ctx = session.compile_context(f"question {i} about jazz", store_query=False)
                totals.append((time.perf_counter() - started) * 1000)
                words += int(ctx.timings["words_only"] == 1.0 and any("longer than" in note for note in ctx.notes))
            Sleepy.seconds = 0.0
        show("sync", totals, words)
        asyncio.run(run_async(dsn, options.runs))
        if server is not None:
            server.release()


if __name__ == "__main__":
    main()
