"""pgmem: durable memory for LLM agents, in the Postgres your team already runs."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgmem_core.client import AsyncPgMem, PgMem
    from pgmem_core.errors import (
        BadVector,
        Busy,
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
        WriteRefused,
    )
    from pgmem_core.facts import Evidence, Extractor, Fact, FactDraft, ReviewItem
    from pgmem_core.formation.compaction import CompactReport
    from pgmem_core.formation.draining import FormReport
    from pgmem_core.formation.extractors import ChainExtractor, ModelSummarizers
    from pgmem_core.formation.patterns import PatternExtractor
    from pgmem_core.lifecycle.expiry import ExpireReport
    from pgmem_core.lifecycle.exporting import ExportReport
    from pgmem_core.lifecycle.forgetting import ForgetReport
    from pgmem_core.lifecycle.importing import ImportReport
    from pgmem_core.lifecycle.pruning import PruneReport
    from pgmem_core.lifecycle.rebuilding import RebuildReport
    from pgmem_core.lifecycle.reembedding import ReembedProgress, ReembedReport
    from pgmem_core.models.bundled import BundledEmbedder
    from pgmem_core.protocols import Embedder, Summarizers
    from pgmem_core.session import AsyncSession, Session
    from pgmem_core.settings import Settings
    from pgmem_core.store import AsyncMemoryStore, MemoryStore
    from pgmem_core.tiers.injections import Injection, Prompt
    from pgmem_core.types import (
        Authority,
        CompiledContext,
        Item,
        MemoryText,
        RefusedWrite,
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
    "Busy",
    "ChainExtractor",
    "CompactReport",
    "CompiledContext",
    "ConfigurationError",
    "Conflict",
    "DimensionMismatch",
    "Embedder",
    "EmbeddingError",
    "Evidence",
    "ExpireReport",
    "ExportReport",
    "ExtractionError",
    "Extractor",
    "Fact",
    "FactDraft",
    "ForgetReport",
    "FormReport",
    "ImportReport",
    "Injection",
    "InvalidArgument",
    "InvalidFilter",
    "Item",
    "MemoryStore",
    "MemoryText",
    "MissingExtra",
    "ModelSummarizers",
    "NotFound",
    "PatternExtractor",
    "PermissionDenied",
    "PgMem",
    "PgmemError",
    "Prompt",
    "PruneReport",
    "RebuildReport",
    "ReembedProgress",
    "ReembedReport",
    "RefusedWrite",
    "ReviewItem",
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
    "Summarizers",
    "Turn",
    "WriteRefused",
]

# Where each name lives. Imported when first used: `import pgmem_core` and `pgmem --help` take 20 ms, not 600.
_HOMES = {
    "pgmem_core.client": "AsyncPgMem PgMem",
    "pgmem_core.errors": (
        "BadVector Busy ConfigurationError Conflict DimensionMismatch EmbeddingError ExtractionError "
        "InvalidArgument InvalidFilter MissingExtra NotFound PermissionDenied PgmemError "
        "SchemaError StoreUnavailable WriteRefused"
    ),
    "pgmem_core.facts": "Evidence Extractor Fact FactDraft ReviewItem",
    "pgmem_core.formation.compaction": "CompactReport",
    "pgmem_core.formation.draining": "FormReport",
    "pgmem_core.formation.extractors": "ChainExtractor ModelSummarizers",
    "pgmem_core.formation.patterns": "PatternExtractor",
    "pgmem_core.lifecycle.expiry": "ExpireReport",
    "pgmem_core.lifecycle.exporting": "ExportReport",
    "pgmem_core.lifecycle.forgetting": "ForgetReport",
    "pgmem_core.lifecycle.importing": "ImportReport",
    "pgmem_core.lifecycle.pruning": "PruneReport",
    "pgmem_core.lifecycle.rebuilding": "RebuildReport",
    "pgmem_core.lifecycle.reembedding": "ReembedProgress ReembedReport",
    "pgmem_core.models.bundled": "BundledEmbedder",
    "pgmem_core.protocols": "Embedder Summarizers",
    "pgmem_core.session": "AsyncSession Session",
    "pgmem_core.settings": "Settings",
    "pgmem_core.store": "AsyncMemoryStore MemoryStore",
    "pgmem_core.tiers.injections": "Injection Prompt",
    "pgmem_core.types": (
        "Authority CompiledContext Item MemoryText RefusedWrite Scope ScoredMemory ScoreParts Section SessionInfo "
        "SubjectRef Turn"
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
