"""pgmem: durable memory for LLM agents, in the Postgres your team already runs."""

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
