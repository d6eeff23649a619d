"""What pgmem asks of a model: two small protocols that any object may satisfy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Embedder", "Summarizers", "Vectors"]

Vectors = NDArray[np.float32]


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors.

    `model` names the vector space: two embedders with the same name must give comparable vectors, and the
    store refuses to compare across names. `local` says that a text takes microseconds, so the read calls it
    in place; anything else is called from a pool of threads (or awaited) under `embed_timeout_ms`.
    `min_relevance` is the floor of a read with this model: nothing is injected unless its best cosine, plus 0.25
    times the share of the query's words that one memory holds, reaches it (None: this model has no floor). It is
    what 300 memories or more need; fewer need less, a single one a third.
    """

    @property
    def model(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    @property
    def local(self) -> bool: ...

    @property
    def min_relevance(self) -> float | None: ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row a text, float32, shape (len(texts), dimensions)."""
        ...

    async def aembed(self, texts: Sequence[str]) -> Vectors:
        """The same, awaited."""
        ...


@runtime_checkable
class Summarizers(Protocol):
    """Who writes summaries: of an episode, of a session so far, and the story of a user.

    Each has `summarize(...)` and `asummarize(...)`; see `EpisodeSummarizer`, `RunningSummarizer` and
    `NarrativeSummarizer` for what they take.
    """

    @property
    def episode(self) -> Any: ...

    @property
    def running(self) -> Any: ...

    @property
    def narrative(self) -> Any: ...
