"""Every benchmark, one after the other: `python -m benchmarks [NAME ...]`."""

from __future__ import annotations

import importlib
import sys

NAMES = ("core_latency", "slow_embedder", "slow_formation", "langchain_peers", "store_peers")


def main() -> None:
    """Run the benchmarks named on the command line, or all."""
    wanted = sys.argv[1:] or list(NAMES)
    unknown = sorted(set(wanted) - set(NAMES))
    if unknown:
        raise SystemExit(f"unknown benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    for name in wanted:
        print(f"== {name}", flush=True)
        sys.argv = [name]
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
