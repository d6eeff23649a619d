"""The register of checks that show what a setting does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.fix_memory import Maker

__all__ = ["Check", "Shown"]

Check = Callable[[Maker, str], Awaitable[None]]
"""Shows the effect of settings on memories that it makes; the str is the DSN of their database."""


class Shown:
    """Checks, each with the settings it shows. `checks`: by their names, to parametrize with."""

    def __init__(self) -> None:
        self.settings: list[str] = []
        self.checks: dict[str, Check] = {}

    def __call__(self, *names: str) -> Callable[[Check], Check]:
        """Say which settings a check shows the effect of."""

        def register(check: Check) -> Check:
            self.settings += names
            self.checks["-".join(names)] = check
            return check

        return register
