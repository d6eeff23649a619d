"""The public face for tests: one body runs the blocking form and the awaited one.

::

    async def test_it(memory):                       # runs twice: sync, async
        session = await memory.session.create("s1", user_id="u1")
        await session.add_turn("user", "I like jazz")
        assert "jazz" in (await memory.search("music", user_id="u1"))[0].content

`memory` is a PgMem or AsyncPgMem, `store` a MemoryStore or AsyncMemoryStore, both on the fresh database of `dsn`,
both set up, no worker running (`await memory.form()` does its work). Every method is awaited, whichever form
is behind it; properties are read plainly. The blocking form runs in a thread, so `asyncio.gather` is parallel in
both. `memory.target` is the object itself, `memory.face` says "sync" or "async". `make_memory(**options)` and
`make_store(**options)` give more of them (`dsn=` another database), closed when the test ends.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

from pgmem_core import AsyncMemoryStore, AsyncPgMem, BundledEmbedder, MemoryStore, PgMem

__all__ = ["Face", "FakeEmbedder", "Maker", "face", "make_memory", "make_store", "memory", "store"]


# One for all: it takes 0.1 s to load.
_BUNDLED = BundledEmbedder()


class Face:
    """Wraps any object of the public face: its methods become awaitable, what they return is wrapped likewise."""

    def __init__(self, target: Any, face: str) -> None:
        self.target = target
        self.face = face

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if not callable(value):
            return self._wrapped(value)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.face == "sync":
                return self._wrapped(await asyncio.to_thread(value, *args, **kwargs))
            result = value(*args, **kwargs)
            return self._wrapped(await result if inspect.isawaitable(result) else result)

        return call

    def _wrapped(self, value: Any) -> Any:
        # Clients, sessions and the like hold the runtime; what they return (turns, contexts, texts) does not.
        return Face(value, self.face) if hasattr(value, "_rt") else value

    def __repr__(self) -> str:
        return f"Face({self.target!r})"


class FakeEmbedder:
    """Known vectors for known texts, an own direction for each other text. `texts`: all it was ever given."""

    local = True
    min_relevance = None

    def __init__(
        self,
        vectors: Mapping[str, Sequence[float]] | None = None,
        *,
        dimensions: int = 8,
        model: str = "fake",
        fail: Callable[[str], bool] = lambda text: False,
    ) -> None:
        self.vectors = dict(vectors or {})
        self.dimensions = dimensions
        self.model = model
        self.fail = fail
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        self.texts += texts
        for text in texts:
            if self.fail(text):
                raise RuntimeError("the embedder is out of order")
        rows = [self.vectors[text] if text in self.vectors else self._direction(text) for text in texts]
        return np.array(rows, dtype=np.float32).reshape(len(texts), self.dimensions)

    async def aembed(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        return self.embed(texts)

    def _direction(self, text: str) -> list[float]:
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        found = np.random.default_rng(int.from_bytes(digest, "big")).normal(size=self.dimensions)
        return [float(x) for x in found]


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> str:
    """Which form the test runs in."""
    return str(request.param)


Maker = Callable[..., Awaitable[Face]]
"""The type of `make_memory` and `make_store`."""


@pytest.fixture
async def make_memory(face: str, dsn: str) -> AsyncIterator[Maker]:
    """Returns a coroutine that opens one more memory, set up, with the given arguments of PgMem."""
    opened: list[Face] = []

    async def make(*, setup: bool = True, **options: Any) -> Face:
        where = options.pop("dsn", dsn)
        options.setdefault("embedder", _BUNDLED)
        one = Face((PgMem if face == "sync" else AsyncPgMem)(where, **options), face)
        opened.append(one)
        if setup:
            await one.setup()
        return one

    yield make
    for one in opened:
        await one.close()


@pytest.fixture
async def make_store(face: str, dsn: str) -> AsyncIterator[Maker]:
    """Returns a coroutine that opens one more store, set up, with the given arguments of MemoryStore."""
    opened: list[Face] = []

    async def make(*, setup: bool = True, **options: Any) -> Face:
        where = options.pop("dsn", dsn)
        one = Face((MemoryStore if face == "sync" else AsyncMemoryStore)(where, **options), face)
        if "embedder" not in options:  # the default, loaded once; passing it would reserve "given" vectors for it
            one.target._rt._embedder = _BUNDLED
        opened.append(one)
        if setup:
            await one.setup()
        return one

    yield make
    for one in opened:
        await one.close()


@pytest.fixture
async def memory(make_memory: Maker) -> Face:
    """A memory with the bundled embedder, sync and async."""
    return await make_memory()


@pytest.fixture
async def store(make_store: Maker) -> Face:
    """A plain store with the bundled embedder, sync and async."""
    return await make_store()
