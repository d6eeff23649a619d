"""Embedding models of other libraries, accepted as they are."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pgmem_core.errors import EmbeddingError, InvalidArgument, MissingExtra, PgmemError
from pgmem_core.models.bundled import BundledEmbedder
from pgmem_core.models.extras import extras_of
from pgmem_core.models.texts import blank_vector, clean, is_blank, shorten_to_tokens
from pgmem_core.models.vectors import check_vectors
from pgmem_core.protocols import Embedder, Vectors

__all__ = ["AdaptedEmbedder", "as_embedder"]

# OpenAI's limit is 8,192 tokens a text, by a tokenizer that need not be ours.
MAX_TOKENS = 8_000
BATCH_SIZE = 128
_PROBE = "dimensions?"

_WANTED = "an Embedder, a LangChain Embeddings, a LlamaIndex BaseEmbedding or 'provider:model'"


def as_embedder(
    obj: object,
    *,
    model: str | None = None,
    dimensions: int | None = None,
    batch_size: int = BATCH_SIZE,
    max_tokens: int | None = MAX_TOKENS,
    **options: Any,
) -> Embedder:
    """Return the object as an Embedder.

    `obj`: an Embedder (returned as it is, unless `model` or `dimensions` is given), a LangChain `Embeddings`,
    a LlamaIndex `BaseEmbedding`, "bundled", or "provider:model" for LangChain's `init_embeddings`, to which
    `options` such as `base_url` go. `model` names the vector space where the object's own name would not do,
    `dimensions` saves the probe (one text, embedded when the size is first asked for). Texts are sent
    `batch_size` at a time; one of more than `max_tokens` is shortened to its beginning and its end (None:
    sent whole).

    Raises: InvalidArgument, MissingExtra.
    """
    if batch_size < 1 or (max_tokens is not None and max_tokens < 1):
        raise InvalidArgument(f"batch_size={batch_size} and max_tokens={max_tokens} must be at least 1")
    if isinstance(obj, str) and obj != "bundled":
        model = model or obj.partition(":")[2]
        obj = _from_name(obj, options)
    elif options:
        names = ", ".join(sorted(options))
        raise InvalidArgument(f"unknown option {names}; options go with 'provider:model' only")
    elif obj == "bundled":
        obj = BundledEmbedder()
    if isinstance(obj, type):
        raise InvalidArgument(f"got the class {obj.__name__}, wanted an instance: {obj.__name__}(...)")
    if _is_embedder(obj) and model is None and dimensions is None:
        return obj  # type: ignore[return-value]
    embed, aembed = _calls(obj)
    return AdaptedEmbedder(
        embed,
        aembed,
        model=model or _name_of(obj),
        dimensions=dimensions or _size_of(obj),
        local=bool(getattr(obj, "local", False)),
        min_relevance=getattr(obj, "min_relevance", None),
        batch_size=batch_size,
        max_tokens=max_tokens,
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """`filled`: the places of the texts that are not blank. `batches`: these texts, ready to send."""

    count: int
    filled: list[int]
    batches: list[list[str]]


class AdaptedEmbedder:
    """An Embedder over two functions, sync and async, that take a list of texts and give rows of numbers.

    What comes back is checked (see `check_vectors`); what goes wrong is an EmbeddingError with the provider's
    own error as its cause. Blank texts are never sent; they get the first unit vector.
    """

    def __init__(
        self,
        embed: Callable[[list[str]], Any],
        aembed: Callable[[list[str]], Awaitable[Any]] | None = None,
        *,
        model: str,
        dimensions: int | None = None,
        local: bool = False,
        min_relevance: float | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens: int | None = MAX_TOKENS,
    ) -> None:
        self._embed, self._aembed = embed, aembed
        self._model, self._dimensions = model, dimensions
        self._local, self._min_relevance = local, min_relevance
        self._batch_size, self._max_tokens = batch_size, max_tokens

    @property
    def model(self) -> str:
        return self._model

    @property
    def dimensions(self) -> int:
        """The size of a vector; embeds one text to learn it if it was not given and nothing was embedded."""
        if self._dimensions is None:
            self.embed([_PROBE])
        assert self._dimensions is not None
        return self._dimensions

    async def adimensions(self) -> int:
        """The same, without blocking the loop."""
        if self._dimensions is None:
            await self.aembed([_PROBE])
        return self.dimensions

    @property
    def local(self) -> bool:
        return self._local

    @property
    def min_relevance(self) -> float | None:
        return self._min_relevance

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row a text, float32, shape (len(texts), dimensions). Raises: EmbeddingError."""
        plan = self._plan(texts)
        return self._assemble(plan, [self._call(batch) for batch in plan.batches])

    async def aembed(self, texts: Sequence[str]) -> Vectors:
        """The same, awaited; a model without an async form runs in a thread."""
        # Shortening a long text takes 5 to 50 ms of counting.
        plan = await asyncio.to_thread(self._plan, texts) if _is_long(texts) else self._plan(texts)
        return self._assemble(plan, [await self._acall(batch) for batch in plan.batches])

    def _call(self, batch: list[str]) -> Vectors:
        try:
            rows = self._embed(batch)
        except Exception as exc:
            raise self._failure(exc, batch) from exc
        return self._checked(rows, batch)

    async def _acall(self, batch: list[str]) -> Vectors:
        if self._aembed is None:
            return await asyncio.to_thread(self._call, batch)
        try:
            rows = await self._aembed(batch)
        except Exception as exc:
            raise self._failure(exc, batch) from exc
        return self._checked(rows, batch)

    def _plan(self, texts: Sequence[str]) -> _Plan:
        if isinstance(texts, str):
            raise InvalidArgument("embed takes a list of texts, got one str; pass [text]")
        filled = [n for n, text in enumerate(texts) if not is_blank(text)]
        ready = [self._ready(texts[n]) for n in filled]
        if texts and not ready and self._dimensions is None:
            ready = [_PROBE]  # blank texts need to know how many dimensions to have
        batches = [ready[at : at + self._batch_size] for at in range(0, len(ready), self._batch_size)]
        return _Plan(len(texts), filled, batches)

    def _ready(self, text: str) -> str:
        text = clean(text)
        return text if self._max_tokens is None else shorten_to_tokens(text, self._max_tokens, self._model)

    def _checked(self, rows: Any, batch: list[str]) -> Vectors:
        vectors = check_vectors(rows, count=len(batch), dimensions=self._dimensions, model=self._model)
        self._dimensions = vectors.shape[1]
        return vectors

    def _assemble(self, plan: _Plan, found: list[Vectors]) -> Vectors:
        if len(plan.filled) == plan.count and found:
            return np.concatenate(found)
        size = self._dimensions or 0
        result = np.empty((plan.count, size), dtype=np.float32)
        if plan.count:
            result[:] = blank_vector(size)
        if plan.filled:
            result[plan.filled] = np.concatenate(found)
        return result

    def _failure(self, exc: Exception, batch: list[str]) -> PgmemError:
        if isinstance(exc, PgmemError):
            return exc
        reason = f"{type(exc).__name__}: {exc}"
        return EmbeddingError(f"embedder {self._model!r} failed on {len(batch)} texts: {reason[:500]}")

    def __repr__(self) -> str:
        return f"AdaptedEmbedder({self._model!r}, dimensions={self._dimensions})"


def _is_long(texts: Sequence[str]) -> bool:
    return sum(map(len, texts)) > 20_000


def _has(obj: object, *names: str) -> bool:
    # Asked of the class, so that a property that asks the model is not evaluated.
    return all(hasattr(type(obj), name) or name in getattr(obj, "__dict__", {}) for name in names)


def _is_embedder(obj: object) -> bool:
    return _has(obj, "embed", "aembed", "model", "dimensions", "local", "min_relevance")


def _calls(obj: Any) -> tuple[Callable[[list[str]], Any], Callable[[list[str]], Awaitable[Any]] | None]:
    for name in ("embed_documents", "get_text_embedding_batch", "embed"):
        if callable(getattr(obj, name, None)) and (name != "embed" or _has(obj, "model", "dimensions")):
            return getattr(obj, name), getattr(obj, f"a{name}", None)
    raise InvalidArgument(f"cannot embed with {type(obj).__name__}; wanted {_WANTED}")


def _name_of(obj: object) -> str:
    for attribute in ("model", "model_name", "model_id"):
        name = getattr(obj, attribute, None)
        # LlamaIndex's default, which would make one vector space of many.
        if isinstance(name, str) and name.strip() and name != "unknown":
            return name
    return type(obj).__name__


def _size_of(obj: object) -> int | None:
    if isinstance(getattr(type(obj), "dimensions", None), property):
        return None  # it may ask the model; the first vectors will tell
    size = getattr(obj, "dimensions", None)
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None


def _from_name(name: str, options: dict[str, Any]) -> object:
    provider, colon, model = name.partition(":")
    if not (provider and colon and model):
        raise InvalidArgument(f"unknown embedder {name!r}; wanted {_WANTED}: 'openai:text-embedding-3-small'")
    try:
        init: Callable[..., object] = importlib.import_module("langchain.embeddings").init_embeddings
    except ImportError as exc:
        raise MissingExtra(
            f"{name!r} needs langchain and the package of its provider; run pip install"
            f" 'pgmem-ai[{extras_of(provider)}]', or pass an embeddings object"
        ) from exc
    try:
        return init(name, **options)
    except ImportError as exc:
        raise MissingExtra(f"{name!r}: {exc}; pgmem-ai has the extras openai and ollama") from exc
    except ValueError as exc:
        raise InvalidArgument(f"{name!r}: {exc}") from exc
