"""`PgMemRetriever`: what a user's memory holds on a question, as LangChain documents."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field, PrivateAttr

from pgmem_core import asking
from pgmem_core.effects import Flow, arun, embed, run, transact
from pgmem_core.errors import InvalidArgument
from pgmem_core.facts import Fact, fact_text
from pgmem_core.retrieval import lexical
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import beliefs
from pgmem_core.turns import check_time, is_blank
from pgmem_core.types import Scope, ScoredMemory
from pgmem_langchain.clients import runtime_of

__all__ = ["PgMemRetriever"]

# The kinds of memory that a tier is made of.
_TIERS = {"episodic": ("turn", "episode"), "semantic": ("fact",)}
# What one call may set for itself. Whose memory it is, it may not.
_PER_CALL = (
    "k", "filter", "kinds", "tiers", "floor", "session_id", "agent_id", "after", "before", "valid_at", "known_at",
)  # fmt: skip
# The most a memory can score: words and meaning 1, neighbours 0.4, its session 0.3.
_MOST = 1.7


class PgMemRetriever(BaseRetriever):
    """Finds a user's memories by words and meaning together, best first.

    `mem`: a PgMem or an AsyncPgMem, `invoke` and `ainvoke` work on either; or `dsn`, for a client that the process
    shares. `user_id`: whose memory; without it, with a `session_id`, that of a session without a user.

    All the rest may also be given to one call, `retriever.invoke(question, k=8)`, and counts for it instead:
    `k`, at most so many; `filter`, on metadata (`{"rank": {"gte": 3}}`); `kinds` ("turn", "episode", "fact", your own)
    or `tiers` ("episodic", "semantic"); `floor`, a relevance below which nothing is found (None: none, "default": the
    embedder's); `session_id`, `agent_id`, `after`, `before`; `valid_at`, of the facts those that held then; `known_at`,
    everything as it was known then.

    A document's metadata are the memory's own and `id`, `kind`, `score` (0..1), `created_at`, `session_id`, `seq`,
    `role`, `name`; of a fact also `predicate`, `value`, `authority`, `confidence`, `valid_from`, `valid_to` and
    `evidence`, the turns and sources that it rests on.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    mem: Any = Field(default=None, exclude=True, repr=False)
    dsn: str | None = Field(default=None, exclude=True, repr=False)
    user_id: str | None = None
    group_id: str = "default"
    agent_id: str | None = None
    session_id: str | None = None
    k: int = 4
    filter: dict[str, Any] | None = None
    kinds: str | Sequence[str] | None = None
    tiers: str | Sequence[str] | None = None
    floor: float | str | None = None
    after: datetime | None = None
    before: datetime | None = None
    valid_at: datetime | None = None
    known_at: datetime | None = None

    _rt: Runtime = PrivateAttr()
    _scope: Scope = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Raises: InvalidArgument for a retriever without a user and a session, or without a client."""
        super().model_post_init(context)
        self._scope = asking.scope_of(self.group_id, self.user_id, None, self.session_id)
        self._rt = runtime_of(self.mem, self.dsn)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return run(self._find(query, kwargs), self._rt.database)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return await arun(self._find(query, kwargs), self._rt.database)

    def _find(self, query: str, given: Mapping[str, Any]) -> Flow[list[Document]]:
        if unknown := sorted(set(given) - set(_PER_CALL)):
            raise InvalidArgument(
                f"a call takes no {', '.join(map(repr, unknown))}; it may set {', '.join(_PER_CALL)}, all else is the"
                " retriever's own"
            )
        asked: dict[str, Any] = {name: given.get(name, getattr(self, name)) for name in _PER_CALL}
        # A call that names kinds means these, whatever tiers the retriever was made with, and the other way round.
        if "kinds" in given and "tiers" not in given:
            asked["tiers"] = None
        elif "tiers" in given and "kinds" not in given:
            asked["kinds"] = None
        conditions = {
            "kind": _kinds(asked["kinds"], asked["tiers"]),
            **{name: asked[name] for name in ("session_id", "agent_id", "after", "before", "filter")},
        }
        found = yield from asking.search(
            self._rt, self._scope, query, asked["k"], conditions, asked["floor"], valid_at=asked["valid_at"],
            known_at=asked["known_at"],
        )  # fmt: skip
        ids = [uuid.UUID(memory.id) for memory in found if memory.kind == "fact"]
        facts: dict[str, Fact] = {}
        if ids:
            rows = yield from transact(
                beliefs.select, self._scope.tenant_id, "f.fact_id = ANY (%(ids)s)", {"ids": ids}, single=True
            )
            facts = {fact.id: fact for fact in rows}
        documents = [_document(memory, facts.get(memory.id)) for memory in found]
        others = [name for name, value in conditions.items() if name != "kind" and value is not None]
        if asked["valid_at"] is None or others or not (conditions["kind"] is None or "fact" in conditions["kind"]):
            return documents
        past = yield from self._past(query, asked["valid_at"], asked["known_at"], set(facts))
        ranked = sorted([*documents, *past], key=lambda document: -document.metadata["score"])
        return ranked[: asked["k"]]

    def _past(self, query: str, valid_at: datetime, known_at: datetime | None, found: set[str]) -> Flow[list[Document]]:
        """Return the facts that held then and no longer do, which the index of memories has let go of."""
        if is_blank(query):
            return []
        held = yield from transact(
            beliefs.facts_of, self._scope.tenant_id, user_id=self._scope.user_id, valid_at=check_time(valid_at),
            known_at=check_time(known_at), single=True,
        )  # fmt: skip
        held = [fact for fact in held if fact.id not in found]
        if not held:
            return []
        texts = [fact_text(fact.subject, fact.predicate, fact.value, self._scope.user_id) for fact in held]
        language = self._rt.settings.language
        asked = set(lexical.query_terms(query, language=language).hashes)
        vectors = yield from embed(self._rt.embedder, [query, *texts])
        # Rows of the embedder's own length: compared by direction.
        directions = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        documents = []
        for fact, text, direction in zip(held, texts, directions[1:], strict=True):
            words = asked & set(lexical.analyse(text, language=language).hashes)
            likeness = max(0.0, float(direction @ directions[0]))
            score = (0.65 * len(words) / max(1, len(asked)) + 0.35 * likeness) * fact.confidence / _MOST
            documents.append(Document(id=fact.id, page_content=text, metadata=_of_fact(fact, score)))
        return documents


def _kinds(kinds: str | Sequence[str] | None, tiers: str | Sequence[str] | None) -> list[str] | None:
    if kinds is None and tiers is None:
        return None
    wanted = [kinds] if isinstance(kinds, str) else list(kinds or ())
    for tier in [tiers] if isinstance(tiers, str) else tiers or ():
        if tier not in _TIERS:
            raise InvalidArgument(f"tier {tier!r} cannot be searched; use {' or '.join(map(repr, _TIERS))}")
        wanted += _TIERS[tier]
    return wanted


def _document(memory: ScoredMemory, fact: Fact | None) -> Document:
    metadata: dict[str, Any] = {
        **memory.metadata,
        **({} if fact is None else _of_fact(fact, 0.0)),
        "id": memory.id,
        "kind": memory.kind,
        "score": min(1.0, memory.score / _MOST),
        "created_at": memory.created_at,
        "session_id": memory.session_id,
        "seq": memory.seq,
        "role": memory.role,
        "name": memory.name,
    }
    return Document(id=memory.id, page_content=memory.content, metadata=metadata)


def _of_fact(fact: Fact, score: float) -> dict[str, Any]:
    return {
        "id": fact.id, "kind": "fact", "score": score, "created_at": fact.last_confirmed_at, "session_id": None,
        "seq": None, "role": None, "name": None, "predicate": fact.predicate, "value": fact.value,
        "authority": fact.authority.value, "confidence": fact.confidence, "valid_from": fact.valid_from,
        "valid_to": fact.valid_to,
        "evidence": [{"turn_id": e.turn_id, "source": e.source, "quote": e.quote} for e in fact.evidence],
    }  # fmt: skip
