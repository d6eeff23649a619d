"""`PgMemRetriever`: a user's memories as nodes, for query engines and `ContextChatEngine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import MetadataFilters

from pgmem_core import asking, believing
from pgmem_core.effects import Flow
from pgmem_core.facts import Evidence, Fact
from pgmem_core.runtime import Runtime
from pgmem_core.storing import check_limit, where_of
from pgmem_core.types import Scope, ScoredMemory
from pgmem_llamaindex.filtering import translated
from pgmem_llamaindex.handle import Handle, Memory

__all__ = ["PgMemRetriever"]

# What a model is shown of a node besides its text: when it was said, and by whom.
_SHOWN = ("created_at", "role", "name", "valid_from", "valid_to")


class PgMemRetriever(BaseRetriever):
    """Retrieves what pgmem remembers of a user: turns, episodes, facts, and notes of your own kinds.

    `mem`: a PgMem or AsyncPgMem, or `dsn`: see `Handle`. `similarity_top_k`: at most so many nodes. `filters`:
    LlamaIndex's `MetadataFilters` on the metadata of memories (see `filtering`), or a dict of `pgmem_core.filters`.
    `kinds`, `session_id`, `agent_id`, `after`, `before`: more conditions; times are aware and half-open. `floor`: the
    relevance that something must reach at all; "default" is the embedder's own, None takes whatever comes nearest.

    A node's `score` is that of `mem.search` (0 to 1.7, higher is better); its metadata are the memory's own, and: `id`,
    `kind`, `score`, `created_at`, `session_id`, `seq`, `role`, `name`, and of a fact `authority`, `confidence`,
    `valid_from`, `valid_to` and `evidence` (ids of turns, or sources). Times are ISO 8601 in UTC. A key of the memory's
    own that is called like one of these is found under "metadata.<key>".

    Raises: InvalidArgument, InvalidFilter (at construction).
    """

    def __init__(
        self,
        mem: Memory | None = None,
        *,
        user_id: str,
        dsn: str | None = None,
        group_id: str = "default",
        similarity_top_k: int = 4,
        filters: MetadataFilters | Mapping[str, Any] | None = None,
        kinds: str | Sequence[str] | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        floor: float | str | None = "default",
        **options: Any,
    ) -> None:
        self._handle = Handle(mem, dsn)
        self._scope = asking.scope_of(group_id, user_id, None, None)
        self.similarity_top_k = check_limit(similarity_top_k, "similarity_top_k")
        self._conditions: dict[str, Any] = {
            "kind": kinds, "session_id": session_id, "agent_id": agent_id, "after": after, "before": before,
            "filter": translated(filters),
        }  # fmt: skip
        where_of(**self._conditions)  # refused here, not at the first question
        self._floor = floor
        super().__init__(**options)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._handle.run(_nodes, *self._asked(query_bundle))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await self._handle.arun(_nodes, *self._asked(query_bundle))

    def _asked(self, query: QueryBundle) -> tuple[Scope, str, int, dict[str, Any], float | str | None]:
        return self._scope, query.query_str, self.similarity_top_k, self._conditions, self._floor

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._handle!r}, user_id={self._scope.user_id!r})"


def _nodes(
    rt: Runtime, scope: Scope, query: str, top_k: int, conditions: Mapping[str, Any], floor: float | str | None
) -> Flow[list[NodeWithScore]]:
    found = yield from asking.search(rt, scope, query, top_k, conditions, floor)
    facts = yield from believing.by_ids(rt, scope.tenant_id, [one.id for one in found if one.kind == "fact"])
    return [NodeWithScore(node=_node(one, facts.get(one.id)), score=one.score) for one in found]


def _node(memory: ScoredMemory, fact: Fact | None) -> TextNode:
    ours: dict[str, Any] = {
        "id": memory.id,
        "kind": memory.kind,
        "score": round(memory.score, 6),
        "created_at": memory.created_at.isoformat(),
        "session_id": memory.session_id,
        "seq": memory.seq,
        "role": memory.role,
        "name": memory.name,
    }
    if fact is not None:
        ours |= {
            "authority": fact.authority.value,
            "confidence": fact.confidence,
            "valid_from": _iso(fact.valid_from),
            "valid_to": _iso(fact.valid_to),
            "evidence": [_pointer(one) for one in fact.evidence],
        }
    ours = {key: value for key, value in ours.items() if value is not None}
    own = {f"metadata.{key}" if key in ours else key: value for key, value in memory.metadata.items()}
    metadata = {**own, **ours}
    hidden = [key for key in metadata if key not in _SHOWN]
    return TextNode(
        id_=memory.id, text=memory.content, metadata=metadata, excluded_llm_metadata_keys=hidden,
        excluded_embed_metadata_keys=list(metadata),
    )  # fmt: skip


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _pointer(evidence: Evidence) -> str:
    return evidence.turn_id or evidence.source or ""
