"""What forming costs the turn: nothing. An extractor and summarizers that sleep ten seconds, beside none at all.

    python -m benchmarks.slow_formation [--dsn DSN]

Two clients on one server take turns at `compile_context` and `add_turn`: one whose worker extracts and summarises with
a model that sleeps, one whose worker only embeds. Prints p50 of each and the ratio (aim: at most 1.2).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from pgmem_core import PgMem
from pgmem_core.database.embedded import EmbeddedPostgres
from pgmem_core.facts import Fact, FactDraft
from pgmem_core.types import Turn

SECONDS = 10.0


class SleepyExtractor:
    """Finds nothing, slowly."""

    calls = 0

    def extract(self, turns: Sequence[Turn], known: Sequence[Fact]) -> list[FactDraft]:
        SleepyExtractor.calls += 1
        time.sleep(SECONDS)
        return []

    async def aextract(self, turns: Sequence[Turn], known: Sequence[Fact]) -> list[FactDraft]:
        await asyncio.sleep(SECONDS)
        return []


class _Sleeper:
    calls = 0

    def summarize(self, *given: Any, **named: Any) -> str:
        _Sleeper.calls += 1
        time.sleep(SECONDS)
        return "They talked about jazz."

    async def asummarize(self, *given: Any, **named: Any) -> str:
        await asyncio.sleep(SECONDS)
        return "They talked about jazz."


class SleepySummarizers:
    """Say one thing, slowly."""

    episode = running = narrative = _Sleeper()


def main() -> None:
    """Run both clients in turns and print them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", default=None)
    parser.add_argument("--seconds", type=float, default=40.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = None if options.dsn else EmbeddedPostgres(f"{folder}/pg")
        dsn = options.dsn or (server.start() if server else "")
        times: dict[str, list[float]] = {"plain read": [], "slow read": [], "plain write": [], "slow write": []}
        plain = PgMem(dsn, schema_name="plain")
        slow = PgMem(
            dsn, schema_name="slow", extractor=SleepyExtractor(), summarizers=SleepySummarizers(),
            formation_debounce_seconds=0.0, compact_after_tokens=200,
        )  # fmt: skip
        with plain, slow:
            sessions = {"plain": plain.session.create(user_id="u"), "slow": slow.session.create(user_id="u")}
            until, turn = time.monotonic() + options.seconds, 0
            while time.monotonic() < until:
                turn += 1
                for name, session in sessions.items() if turn % 2 else reversed(sessions.items()):
                    started = time.perf_counter()
                    session.compile_context(f"question {turn} about jazz")
                    read = time.perf_counter()
                    session.add_turn("assistant", f"answer {turn}: jazz is played at the club on Rua {turn}")
                    written = time.perf_counter()
                    if turn > 20:
                        times[f"{name} read"].append((read - started) * 1000)
                        times[f"{name} write"].append((written - read) * 1000)
                time.sleep(0.02)
        for what in ("read", "write"):
            a, b = (float(np.median(times[f"{name} {what}"])) for name in ("plain", "slow"))
            print(f"{what:5} p50 {a:.2f} ms without a model, {b:.2f} ms with one asleep: ratio {b / a:.2f}")
        print(f"{turn} turns; the extractor was asked {SleepyExtractor.calls} times, the summarizers {_Sleeper.calls}")
        if server is not None:
            server.release()


if __name__ == "__main__":
    main()
