"""The embedder that needs no service: a static English model of 256 dimensions, in the wheel of wordllama."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pgmem_core.errors import EmbeddingError, InvalidArgument, MissingExtra
from pgmem_core.models.texts import blank_vector, clean, is_blank, shorten
from pgmem_core.protocols import Vectors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["BundledEmbedder"]

_DIMENSIONS = 256
_WEIGHTS = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER = Path("tokenizers", "l2_supercat_tokenizer_config.json")
# Texts a call of the tokenizer: bounds its memory.
_BATCH = 256


class BundledEmbedder:
    """Mean of static word vectors (WordLlama, distilled from Llama 2), L2-normalised.

    15 to 20 µs a text of one sentence; 0.1 s and 34 MB to load, which the first `embed` or `warm` does,
    without a download. Threads may share it. Of a text longer than 16,000 characters (4,000 tokens, 4 ms) the
    first three quarters of that and the last are read. A blank text gets the first unit vector. It knows
    English; other languages are better served by another model.
    """

    max_chars = 16_000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: tuple[Tokenizer, Vectors] | None = None

    @property
    def model(self) -> str:
        return "wordllama-l2-supercat-256"

    @property
    def dimensions(self) -> int:
        return _DIMENSIONS

    @property
    def local(self) -> bool:
        return True

    @property
    def min_relevance(self) -> float | None:
        # See docs/decisions/0005-recall-recipe.md for what it lets through and what it costs.
        return 0.44

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one unit vector a text, float32, shape (len(texts), 256). Raises: MissingExtra."""
        if isinstance(texts, str):
            raise InvalidArgument("embed takes a list of texts, got one str; pass [text]")
        tokenizer, table = self._load()
        result = np.empty((len(texts), _DIMENSIONS), dtype=np.float32)
        for at in range(0, len(texts), _BATCH):
            batch = [clean(shorten(text, self.max_chars)) for text in texts[at : at + _BATCH]]
            for n, encoding in enumerate(tokenizer.encode_batch_fast(batch, add_special_tokens=False), at):
                result[n] = _pool(table, encoding.ids, batch[n - at])
        return result

    async def aembed(self, texts: Sequence[str]) -> Vectors:
        """The same, in place: a thread would take longer to start than a text to embed."""
        return self.embed(texts)

    def warm(self) -> None:
        """Load the model now rather than on the first text."""
        self._load()

    def _load(self) -> tuple[Tokenizer, Vectors]:
        if self._loaded is None:
            with self._lock:
                if self._loaded is None:
                    self._loaded = _read_model()
        return self._loaded

    def __repr__(self) -> str:
        return f"BundledEmbedder({self.model!r})"

    def __reduce__(self) -> tuple[type[BundledEmbedder], tuple[()]]:
        return BundledEmbedder, ()


def _pool(table: Vectors, ids: list[int], text: str) -> Vectors:
    if is_blank(text):
        return blank_vector(_DIMENSIONS)
    total = table.take(ids, axis=0).sum(axis=0)  # 3 µs; the mean differs by a factor only
    length = float(np.linalg.norm(total))
    return total / length if length > 1e-6 else blank_vector(_DIMENSIONS)


def _read_model() -> tuple[Tokenizer, Vectors]:
    # The files only, not the package: importing it takes 0.15 s, adds a handler to the root logger and brings
    # an HTTP client that would download.
    spec = importlib.util.find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise MissingExtra(
            "the bundled embedder needs wordllama; run pip install 'pgmem-ai[embedded]', or pass embedder=..."
        )
    from safetensors import safe_open
    from tokenizers import Tokenizer

    folder = Path(spec.origin).parent
    for file in (_WEIGHTS, _TOKENIZER):
        if not (folder / file).is_file():
            raise EmbeddingError(
                f"wordllama is installed without {file.as_posix()}; reinstall it, or pass embedder=..."
            )
    tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    with safe_open(folder / _WEIGHTS, framework="np") as file:
        table = np.ascontiguousarray(file.get_tensor("embedding.weight"), dtype=np.float32)
    return tokenizer, table
