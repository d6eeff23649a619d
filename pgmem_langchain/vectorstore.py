"""`PgMemVectorStore`: documents in pgmem's own tables, as a LangChain vector store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from pgmem_core import documents
from pgmem_core.effects import Flow, arun, run
from pgmem_core.errors import InvalidArgument
from pgmem_core.store import MemoryStore
from pgmem_core.types import MemoryText
from pgmem_langchain.clients import runtime_of

__all__ = ["PgMemEmbeddings", "PgMemVectorStore"]


class PgMemVectorStore(VectorStore):
    """Documents with vectors, in the tables of `MemoryStore`, filtered in SQL before vectors are compared.

    `store`: a MemoryStore or AsyncMemoryStore, a PgMem or AsyncPgMem; sync and async methods work on either. Or `dsn`:
    then a store is made with `embedding` (default: the bundled embedder), which `close` closes. `group_id`, `user_id`:
    whose documents; those with a user are found by that user's `mem.search` too. `collection`: documents of one
    collection know nothing of another's, their ids neither.

    Documents are replaced by id. Filters are pgmem's: `{"rank": {"gte": 3}, "or": [...]}`, with or without a `$`.
    Scores are cosine similarity, -1..1, higher is nearer; relevance scores the same on 0..1.
    """

    def __init__(
        self,
        store: Any = None,
        *,
        dsn: str | None = None,
        embedding: Embeddings | Any = None,
        group_id: str = "default",
        user_id: str | None = None,
        collection: str = "documents",
    ) -> None:
        """Raises: InvalidArgument."""
        self._place = documents.place_of(group_id, user_id, collection)
        self._own: MemoryStore | None = None
        if dsn is not None and store is None:
            store = self._own = MemoryStore(dsn, embedder=embedding)
        elif embedding is not None:
            raise InvalidArgument("embedding goes with dsn; a store or a client that is given has its embedder")
        self._rt = runtime_of(store, None if self._own is not None else dsn)

    @property
    def embeddings(self) -> Embeddings | None:
        """The embedder, as LangChain calls one."""
        return PgMemEmbeddings(self._rt.embedder)

    def close(self) -> None:
        """Close the store that was made for a DSN; one that was given is its owner's to close."""
        if self._own is not None:
            self._own.close()

    # -- writing ---------------------------------------------------------------------------------------------

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Store texts, all or none, and return their ids; one whose id is there already takes its place.

        Raises: InvalidArgument for a blank text, or metadata that JSON cannot hold, EmbeddingError.
        """
        return run(self._put(texts, metadatas, ids, kwargs), self._rt.database)

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """The same, awaited."""
        return await arun(self._put(texts, metadatas, ids, kwargs), self._rt.database)

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """Store documents under their own ids, or those of `ids=`; see `add_texts`."""
        return run(self._put(*_columns(documents, kwargs.pop("ids", None)), kwargs), self._rt.database)

    async def aadd_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """The same, awaited."""
        return await arun(self._put(*_columns(documents, kwargs.pop("ids", None)), kwargs), self._rt.database)

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Delete documents by id; those that are not there are no error. Without ids: the whole collection."""
        _no_more(kwargs)
        run(documents.delete(self._rt, self._place, ids), self._rt.database)
        return True

    async def adelete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """The same, awaited."""
        _no_more(kwargs)
        await arun(documents.delete(self._rt, self._place, ids), self._rt.database)
        return True

    # -- reading ---------------------------------------------------------------------------------------------

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents of these ids, in their order, without those that are not there."""
        return _documents(run(documents.by_ids(self._rt, self._place, ids), self._rt.database))

    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The same, awaited."""
        return _documents(await arun(documents.by_ids(self._rt, self._place, ids), self._rt.database))

    def similarity_search(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> list[Document]:
        """Return the k documents nearest to the query, nearest first."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter, **kwargs)]

    async def asimilarity_search(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> list[Document]:
        """The same, awaited."""
        return [document for document, _ in await self.asimilarity_search_with_score(query, k, filter, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return the nearest documents with their cosine similarity, -1..1."""
        _no_more(kwargs)
        return _scored(run(documents.nearest(self._rt, self._place, query, k, filter=filter), self._rt.database))

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The same, awaited."""
        _no_more(kwargs)
        return _scored(await arun(documents.nearest(self._rt, self._place, query, k, filter=filter), self._rt.database))

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> list[Document]:
        """Return the k documents nearest to a vector of the store's embedder."""
        _no_more(kwargs)
        return _documents(run(documents.nearest(self._rt, self._place, embedding, k, filter=filter), self._rt.database))

    async def asimilarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> list[Document]:
        """The same, awaited."""
        _no_more(kwargs)
        return _documents(
            await arun(documents.nearest(self._rt, self._place, embedding, k, filter=filter), self._rt.database)
        )

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Return k of the fetch_k nearest that are near the query and unlike each other (lambda_mult 1: near alone)."""
        return self.max_marginal_relevance_search_by_vector(
            self._rt.embedder.embed([query])[0].tolist(), k, fetch_k, lambda_mult, filter, **kwargs
        )

    async def amax_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """The same, awaited."""
        [vector] = await self._rt.embedder.aembed([query])
        return await self.amax_marginal_relevance_search_by_vector(
            vector.tolist(), k, fetch_k, lambda_mult, filter, **kwargs
        )

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """The same for a vector of the store's embedder."""
        _no_more(kwargs)
        return run(self._various(embedding, k, fetch_k, lambda_mult, filter), self._rt.database)

    async def amax_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """The same, awaited."""
        _no_more(kwargs)
        return await arun(self._various(embedding, k, fetch_k, lambda_mult, filter), self._rt.database)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        # 1 for the same direction, 0.5 for unrelated, 0 for the opposite; rounding may step over the edge.
        return lambda similarity: min(1.0, max(0.0, (1 + similarity) / 2))

    # -- making ----------------------------------------------------------------------------------------------

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Make a store (keywords of the constructor) and add texts to it."""
        made = cls(embedding=None if kwargs.get("store") is not None else embedding, **kwargs)
        made.add_texts(texts, metadatas, ids=ids)
        return made

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """The same, awaited."""
        made = cls(embedding=None if kwargs.get("store") is not None else embedding, **kwargs)
        await made.aadd_texts(texts, metadatas, ids=ids)
        return made

    # -- flows -----------------------------------------------------------------------------------------------

    def _put(
        self,
        texts: Iterable[str],
        metadatas: Sequence[Mapping[str, Any]] | None,
        ids: Sequence[str | None] | None,
        more: Mapping[str, Any],
    ) -> Flow[list[str]]:
        _no_more(more)
        texts = list(texts)
        metadatas = [{}] * len(texts) if metadatas is None else [one or {} for one in metadatas]
        ids = [None] * len(texts) if ids is None else list(ids)
        if not len(texts) == len(metadatas) == len(ids):
            raise InvalidArgument(f"got {len(texts)} texts, {len(metadatas)} metadatas and {len(ids)} ids; one each")
        return (yield from documents.put(self._rt, self._place, texts, metadatas, ids))

    def _various(
        self, embedding: list[float], k: int, fetch_k: int, lambda_mult: float, filter: Mapping[str, Any] | None
    ) -> Flow[list[Document]]:
        found = yield from documents.nearest(self._rt, self._place, embedding, max(k, fetch_k), filter=filter)
        if not found:
            return []
        vectors = yield from documents.vectors_of(self._rt, self._place, found)
        chosen = maximal_marginal_relevance(np.array(embedding), vectors, k=k, lambda_mult=lambda_mult)
        return _documents([found[place] for place in chosen])


class PgMemEmbeddings(Embeddings):
    """pgmem's embedder with LangChain's methods."""

    def __init__(self, embedder: Any) -> None:
        self._embedder = embedder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(x) for x in row] for row in self._embedder.embed(texts)]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(x) for x in row] for row in await self._embedder.aembed(texts)]

    async def aembed_query(self, text: str) -> list[float]:
        return (await self.aembed_documents([text]))[0]


def _columns(
    given: Sequence[Document], ids: Sequence[str | None] | None
) -> tuple[list[str], list[dict[str, Any]], list[str | None]]:
    own = [document.id for document in given] if ids is None else list(ids)
    return [document.page_content for document in given], [document.metadata for document in given], own


def _documents(found: Iterable[MemoryText]) -> list[Document]:
    return [_document(text) for text in found]


def _scored(found: Iterable[MemoryText]) -> list[tuple[Document, float]]:
    return [(_document(text), float(text.score or 0.0)) for text in found]


def _document(text: MemoryText) -> Document:
    return Document(id=documents.own_id(text), page_content=str(text), metadata=text.metadata)


def _no_more(unknown: Mapping[str, Any]) -> None:
    if unknown:
        raise InvalidArgument(f"unknown argument {', '.join(map(repr, sorted(unknown)))}")
