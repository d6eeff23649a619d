"""`python -m pgmem_core`: the command `pgmem`."""

from __future__ import annotations

from pgmem_core.cli import main

if __name__ == "__main__":
    main()
