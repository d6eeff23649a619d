"""Where the memory is: a DSN, or an embedded Postgres in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgmem_core.errors import ConfigurationError

if TYPE_CHECKING:
    from pgmem_core.client import PgMem

__all__ = ["DEFAULT_PATH", "Place"]

DEFAULT_PATH = ".pgmem"
_DSN_VARIABLE = "PGMEM_DSN"
_EMBEDDER_VARIABLE = "PGMEM_EMBEDDER"


@dataclass(frozen=True, slots=True)
class Place:
    """Exactly one of `dsn` and `path` is set."""

    dsn: str | None
    path: Path | None
    embedder: str | None = None

    @classmethod
    def of(
        cls, dsn: str | None, path: Path | None, embedder: str | None = None, *, default: str = DEFAULT_PATH
    ) -> Place:
        """Return the place that the options and the environment name; `default` in the working folder if none.

        An option goes before the environment. Raises: ConfigurationError if both options are given.
        """
        if dsn is not None and path is not None:
            raise ConfigurationError("--dsn and --path were both given; a memory is in one place, name one")
        if dsn is None and path is None:
            dsn = os.environ.get(_DSN_VARIABLE) or None
        if dsn is not None:
            return cls(dsn, None, embedder or os.environ.get(_EMBEDDER_VARIABLE) or None)
        return cls(None, path or Path(default), embedder or os.environ.get(_EMBEDDER_VARIABLE) or None)

    @contextmanager
    def open(self, *, create: bool = True, **options: Any) -> Iterator[PgMem]:
        """Yield a client, without its worker thread, and close it.

        create: an embedded server that does not exist yet is made; else it is refused, for a search should not
        leave an empty database behind. options: further arguments of PgMem.
        Raises: ConfigurationError, MissingExtra, StoreUnavailable.
        """
        if self.path is not None and not create and not (self.path / "pgdata").is_dir():
            raise ConfigurationError(
                f"there is no memory in {self.path}; run 'pgmem init' or 'pgmem import' first, or name another place"
                " with --path or --dsn"
            )
        from pgmem_core.client import PgMem

        if self.path is not None:
            mem = PgMem.embedded(self.path, embedder=self.embedder, **options)
        else:
            mem = PgMem(self.dsn, embedder=self.embedder, **options)
        try:
            yield mem
        finally:
            mem.close()

    def describe(self, mem: PgMem) -> str:
        """Return where it is, for people; no password."""
        if self.path is not None:
            return f"{self.path} (embedded Postgres; --dsn or {_DSN_VARIABLE} names another)"
        return mem.dsn
