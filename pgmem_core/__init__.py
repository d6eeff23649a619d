"""pgmem: durable memory for LLM agents, in the Postgres your team already runs."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgmem_core.client import AsyncPgMem, PgMem
    from pgmem_core.errors import (
        BadVector,
        ConfigurationError,
        Conflict,
        DimensionMismatch,
        EmbeddingError,
        ExtractionError,
        InvalidArgument,
        InvalidFilter,
        MissingExtra,
        NotFound,
        PermissionDenied,
        PgmemError,
        SchemaError,
        StoreUnavailable,
    )
    from pgmem_core.formation.worker import FormReport
    from pgmem_core.models.bundled import BundledEmbedder
    from pgmem_core.protocols import Embedder
    from pgmem_core.session import AsyncSession, Session
    from pgmem_core.settings import Settings
    from pgmem_core.store import AsyncMemoryStore, MemoryStore
    from pgmem_core.types import (
        Authority,
        CompiledContext,
        Item,
        MemoryText,
        Scope,
        ScoredMemory,
        ScoreParts,
        Section,
        SessionInfo,
        SubjectRef,
        Turn,
    )

__version__ = "0.1.0"

__all__ = [
    "AsyncMemoryStore",
    "AsyncPgMem",
    "AsyncSession",
    "Authority",
    "BadVector",
    "BundledEmbedder",
    "CompiledContext",
    "ConfigurationError",
    "Conflict",
    "DimensionMismatch",
    "Embedder",
    "EmbeddingError",
    "ExtractionError",
    "FormReport",
    "InvalidArgument",
    "InvalidFilter",
    "Item",
    "MemoryStore",
    "MemoryText",
    "MissingExtra",
    "NotFound",
    "PermissionDenied",
    "PgMem",
    "PgmemError",
    "SchemaError",
    "Scope",
    "ScoreParts",
    "ScoredMemory",
    "Section",
    "Session",
    "SessionInfo",
    "Settings",
    "StoreUnavailable",
    "SubjectRef",
    "Turn",
]

# Where each name lives. Imported when first used: `import pgmem_core` and `pgmem --help` take 20 ms, not 600.
_HOMES = {
    "pgmem_core.client": "AsyncPgMem PgMem",
    "pgmem_core.errors": (
        "BadVector ConfigurationError Conflict DimensionMismatch EmbeddingError ExtractionError "
        "InvalidArgument InvalidFilter MissingExtra NotFound PermissionDenied PgmemError "
        "SchemaError StoreUnavailable"
    ),
    "pgmem_core.formation.worker": "FormReport",
    "pgmem_core.models.bundled": "BundledEmbedder",
    "pgmem_core.protocols": "Embedder",
    "pgmem_core.session": "AsyncSession Session",
    "pgmem_core.settings": "Settings",
    "pgmem_core.store": "AsyncMemoryStore MemoryStore",
    "pgmem_core.types": (
        "Authority CompiledContext Item MemoryText Scope ScoredMemory ScoreParts Section SessionInfo SubjectRef Turn"
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'pgmem_core' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
