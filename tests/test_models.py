"""Embedders: the bundled one, those of other libraries, and what is refused from them (B13, C4, C9, C13)."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pgmem_core.errors import DimensionMismatch, EmbeddingError, InvalidArgument, MissingExtra
from pgmem_core.models import AdaptedEmbedder, BundledEmbedder, as_embedder, check_vector, check_vectors
from pgmem_core.models.texts import clean, shorten, shorten_to_tokens
from pgmem_core.protocols import Embedder, Vectors
from pgmem_core.tokens import count_tokens

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def bundled() -> BundledEmbedder:
    return BundledEmbedder()


# --- vectors


def test_good_vectors_become_float32_rows() -> None:
    for given in ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]], dtype=np.float64), [np.array([1, 2]), (3, 4)]):
        got = check_vectors(given, count=2, dimensions=2, model="m")
        assert got.dtype == np.float32
        assert got.flags.c_contiguous
        assert got.tolist() == [[1, 2], [3, 4]]
    assert check_vectors([], count=0, dimensions=None, model="m").shape == (0, 0)
    assert check_vectors([[1.0]], count=1, dimensions=None, model="m").shape == (1, 1)
    assert check_vector([3, 4], dimensions=2, model="m").tolist() == [3, 4]


def five(bad: list[Any]) -> list[list[Any]]:
    return [[1.0, 0.0], [0.0, 1.0], bad, [1.0, 1.0], [2.0, 1.0]]


@pytest.mark.parametrize(
    ("vectors", "error", "message"),
    [
        (five([0.0, NAN]), EmbeddingError, "'m': item 3 of 5 holds NaN at position 1"),
        (five([-INF, 0.0]), EmbeddingError, "item 3 of 5 holds infinity at position 0"),
        (five([1e300, 0.0]), EmbeddingError, "item 3 of 5 holds infinity"),
        (five([0.0, 0.0]), EmbeddingError, "item 3 of 5 is all zeros"),
        (five([1e30, 0.0]), EmbeddingError, "item 3 of 5 is too long or too short"),
        (five([1e-30, 0.0]), EmbeddingError, "item 3 of 5 is too long or too short"),
        (five([1.0, 2.0, 3.0]), DimensionMismatch, "item 3 of 5 has 3 dimensions, wanted 2"),
        (five(["1.0", "2.0"]), EmbeddingError, "numbers"),
        (five([None, 1.0]), EmbeddingError, "numbers"),
        (five([[1.0], [2.0]]), EmbeddingError, "item 3 of 5 is not a list of numbers"),
        (five([]), EmbeddingError, "item 3 of 5"),
        ([*five([1.0, 1.0])[:4], None], EmbeddingError, "item 5 of 5 is not a list of numbers"),
        ([[1.0, 2.0, 3.0]] * 5, DimensionMismatch, "each item has 3 dimensions, wanted 2"),
        ([[]] * 5, EmbeddingError, "empty"),
        (five([1.0, 1.0])[:4], EmbeddingError, "gave 4 vectors for 5 texts"),
        ([1.0] * 5, EmbeddingError, "shape"),
        ([[True, False]] * 5, EmbeddingError, "wanted numbers"),
        (None, EmbeddingError, "gave NoneType"),
        ("12345", EmbeddingError, "gave str"),
        (iter([]), EmbeddingError, "gave list_iterator"),
    ],
)
def test_bad_vectors_are_refused_by_item(vectors: Any, error: type[Exception], message: str) -> None:
    """C9, C4."""
    with pytest.raises(error, match=message):
        check_vectors(vectors, count=5, dimensions=2, model="m")


@pytest.mark.parametrize(
    ("vector", "error", "message"),
    [
        ([1.0, INF], EmbeddingError, "the vector holds infinity"),
        ([1.0], DimensionMismatch, "the vector has 1 dimensions, wanted 2"),
        ([[1.0, 2.0]], EmbeddingError, "flat list"),
        ([1.0, "x"], EmbeddingError, "numbers"),
    ],
)
def test_one_bad_vector(vector: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_vector(vector, dimensions=2, model="m")


# --- texts


def test_shortening_keeps_both_ends() -> None:
    text = "start " + "x" * 5_000 + " what is the tide?"
    short = shorten(text, 200)
    assert len(short) == 200
    assert short.startswith("start xxx")
    assert short.endswith("xxx what is the tide?")
    assert short.count("…") == 1
    assert shorten(text, len(text)) is text
    assert [len(shorten(text, n)) for n in range(6)] == list(range(6))


@pytest.mark.parametrize("piece", ["harbour ledger tide ", "東京の港 ", "🎉", "a", "9f3c", "\n"])
def test_shortening_reaches_the_limit_whatever_the_text(piece: str) -> None:
    """C13."""
    text = piece * (600_000 // len(piece))
    start = time.perf_counter()
    short = shorten_to_tokens(text, 8_000)
    assert time.perf_counter() - start < 1
    assert 1_000 < count_tokens(short) <= 8_000
    assert short.count("…") == 1


def test_cleaning() -> None:
    assert clean("a\x00b\ud800") == "a\ufffdb\ufffd"
    assert clean("🎉 plain") == "🎉 plain"


# --- the bundled embedder


def test_bundled_is_an_embedder(bundled: BundledEmbedder) -> None:
    assert isinstance(bundled, Embedder)
    assert (bundled.model, bundled.dimensions, bundled.local) == ("wordllama-l2-supercat-256", 256, True)
    assert as_embedder(bundled) is bundled
    assert isinstance(as_embedder("bundled"), BundledEmbedder)


def test_bundled_knows_what_is_near(bundled: BundledEmbedder) -> None:
    query, near, far = bundled.embed(["Where does she live?", "Her home is in Porto.", "The invoice is overdue."])
    assert query @ near > query @ far + 0.05


def test_bundled_equals_its_library(bundled: BundledEmbedder) -> None:
    handlers = logging.getLogger().handlers[:]
    wordllama = pytest.importorskip("wordllama")
    logging.getLogger().handlers[:] = handlers
    from pathlib import Path

    theirs = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    texts = ["The tide is high.", "Her home is in Porto; mine is not.", "東京 🎉"]
    assert np.allclose(bundled.embed(texts), theirs.embed(texts, norm=True), atol=1e-6)


AWKWARD = [
    "",
    " ",
    "\n\t",
    "\u200b",
    "🎉",
    "東京",
    "\x00",
    "\ud800",
    "<s>",
    "</s>",
    "a" * 100_000,
    "word " * 50_000,
]


def test_bundled_gives_unit_vectors_whatever_the_text(bundled: BundledEmbedder) -> None:
    """B13: never NaN, never zero."""
    vectors = check_vectors(bundled.embed(AWKWARD), count=len(AWKWARD), dimensions=256, model=bundled.model)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert bundled.embed([]).shape == (0, 256)


def test_a_blank_text_is_near_to_nothing(bundled: BundledEmbedder) -> None:
    blank, *rest = bundled.embed(["", "Her home is in Porto.", "The invoice is overdue.", "tides", "hello"])
    assert max(abs(blank @ other) for other in rest) < 0.3


def test_bundled_vectors_do_not_depend_on_the_batch(bundled: BundledEmbedder) -> None:
    texts = [f"note {n} about the harbour" * (n % 7 + 1) for n in range(600)]
    together = bundled.embed(texts)
    assert all(np.array_equal(together[n], bundled.embed([texts[n]])[0]) for n in (0, 255, 256, 599))


async def test_bundled_async_gives_the_same(bundled: BundledEmbedder) -> None:
    assert np.array_equal(await bundled.aembed(["tides"]), bundled.embed(["tides"]))


def test_bundled_is_fast_also_on_long_texts(bundled: BundledEmbedder) -> None:
    bundled.warm()
    start = time.perf_counter()
    bundled.embed(["I used to live in Lisbon, but last spring we moved to Porto."] * 1_000)
    bundled.embed(["harbour ledger tide " * 200_000] * 5)
    assert time.perf_counter() - start < 1  # 0.04 s alone on the machine


def test_bundled_refuses_one_str(bundled: BundledEmbedder) -> None:
    with pytest.raises(InvalidArgument, match=r"pass \[text\]"):
        bundled.embed("tides")


def test_bundled_loads_once_for_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    import pgmem_core.models.bundled as module

    real, loads = module._read_model, []

    def counted() -> Any:
        loads.append(1)
        return real()

    monkeypatch.setattr(module, "_read_model", counted)
    one, results = BundledEmbedder(), []
    threads = [threading.Thread(target=lambda: results.append(one.embed(["tides"]))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
    assert len(results) == 6
    assert all(np.array_equal(results[0], r) for r in results)


def test_bundled_pickles_without_its_table(bundled: BundledEmbedder) -> None:
    bundled.warm()
    data = pickle.dumps(bundled)
    assert len(data) < 500
    assert np.array_equal(pickle.loads(data).embed(["tides"]), bundled.embed(["tides"]))


FRESH = """
import logging, os, sys
from pgmem_core.models import BundledEmbedder
assert "tokenizers" not in sys.modules and "numpy" in sys.modules
one = BundledEmbedder()
many = [f"note {n}" for n in range(500)]
one.embed(many)
child = os.fork()
if child == 0:
    one.embed(many)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert logging.getLogger().handlers == []
assert not {"wordllama", "requests"} & set(sys.modules)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_bundled_in_a_fresh_process_leaves_no_trace_and_survives_a_fork() -> None:
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_bundled_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"pgmem-ai\[embedded\]"):
        BundledEmbedder().embed(["tides"])


# --- adapters


class Recorder:
    """Vectors by rule: (length, number of spaces + 1, 1)."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()

    def _rows(self, texts: Sequence[str]) -> list[list[float]]:
        self.batches.append(list(texts))
        self.threads.add(threading.get_ident())
        for text in texts:
            if count_tokens(text) > 8_192:
                raise ValueError("maximum context length is 8192 tokens")
        return [[float(len(t)), t.count(" ") + 1.0, 1.0] for t in texts]


class LangChainLike(Recorder):
    model = "lc-model"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._rows(texts)

    def embed_query(self, text: str) -> list[float]:
        raise AssertionError("queries and documents go the same way")

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return self._rows(texts)


class LlamaIndexLike(Recorder):
    model_name = "li-model"

    def get_text_embedding_batch(self, texts: list[str], show_progress: bool = False) -> list[list[float]]:
        return self._rows(texts)

    async def aget_text_embedding_batch(self, texts: list[str], show_progress: bool = False) -> list[list[float]]:
        await asyncio.sleep(0)
        return self._rows(texts)


class Plain(Recorder):
    """An Embedder without its async form."""

    model = "plain-model"

    @property
    def dimensions(self) -> int:
        raise AssertionError("asked before it was needed")

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.array(self._rows(texts), dtype=np.float64)


KINDS = [(LangChainLike, "lc-model"), (LlamaIndexLike, "li-model")]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("kind", "name"), KINDS)
async def test_models_of_other_libraries(kind: Callable[[], Recorder], name: str, mode: str) -> None:
    inner = kind()
    embedder = as_embedder(inner, batch_size=2)
    assert (embedder.model, embedder.local, embedder.min_relevance) == (name, False, None)
    assert isinstance(embedder, Embedder)
    inner.batches.clear()
    texts = ["a", "b c", "", "d e f", "  "]
    got = await embedder.aembed(texts) if mode == "async" else embedder.embed(texts)
    assert got.dtype == np.float32
    assert got.tolist() == [[1, 1, 1], [3, 2, 1], [1, 0, 0], [5, 3, 1], [1, 0, 0]]
    assert inner.batches == [["a", "b c"], ["d e f"]]  # blanks are never sent
    assert embedder.dimensions == 3
    assert len(inner.batches) == 2  # learnt, not probed


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_dimensions_are_probed_once_and_late(mode: str) -> None:
    inner = LangChainLike()
    embedder = as_embedder(inner)
    assert isinstance(embedder, AdaptedEmbedder)
    assert inner.batches == []
    size = await embedder.adimensions() if mode == "async" else embedder.dimensions
    assert size == embedder.dimensions == await embedder.adimensions() == 3
    assert inner.batches == [["dimensions?"]]


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_only_blank_texts(mode: str) -> None:
    embedder = as_embedder(LangChainLike())
    got = await embedder.aembed(["", " "]) if mode == "async" else embedder.embed(["", " "])
    assert got.tolist() == [[1, 0, 0], [1, 0, 0]]
    assert embedder.embed([]).shape == (0, 3)


def test_nothing_at_all_asks_nothing() -> None:
    inner = LangChainLike()
    assert as_embedder(inner).embed([]).shape[0] == 0
    assert inner.batches == []


async def test_a_model_without_an_async_form_runs_in_a_thread() -> None:
    inner = Plain()
    embedder = as_embedder(inner)
    assert isinstance(embedder, AdaptedEmbedder)
    assert (await embedder.aembed(["a b"])).tolist() == [[3, 2, 1]]
    assert inner.threads.isdisjoint({threading.get_ident()})


def test_overrides() -> None:
    embedder = as_embedder(LangChainLike(), model="my-space", dimensions=3)
    assert (embedder.model, embedder.dimensions) == ("my-space", 3)
    renamed = as_embedder(BundledEmbedder(), model="my-words")
    assert (renamed.model, renamed.dimensions, renamed.local) == ("my-words", 256, True)
    assert renamed.embed(["tides"]).shape == (1, 256)


def test_a_wrong_size_names_both_numbers() -> None:
    """C4."""
    with pytest.raises(DimensionMismatch, match="has 3 dimensions, wanted 768"):
        as_embedder(LangChainLike(), dimensions=768).embed(["a"])


def test_names_are_never_a_default_shared_by_many() -> None:
    class Fancy(LlamaIndexLike):
        model_name = "unknown"

    assert as_embedder(Fancy()).model == "Fancy"


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_long_texts_are_shortened_and_sent(mode: str) -> None:
    """C13: a model that raises above 8,192 tokens."""
    inner = LangChainLike()
    embedder = as_embedder(inner)
    text = "We talked about the harbour and its tides. " * 4_000 + "So when is high tide?"
    assert count_tokens(text) > 30_000
    got = await embedder.aembed([text, "short"]) if mode == "async" else embedder.embed([text, "short"])
    assert got.shape == (2, 3)
    [[sent, short]] = inner.batches
    assert 7_000 < count_tokens(sent) <= 8_000
    assert sent.startswith("We talked")
    assert sent.endswith("So when is high tide?")
    assert short == "short"
    with pytest.raises(EmbeddingError, match="'lc-model' failed on 1 texts: ValueError: maximum context") as caught:
        as_embedder(inner, max_tokens=None).embed([text])
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, 2.0]], "gave 1 vectors for 2 texts"),
        ([[1.0], [NAN]], "item 2 of 2 holds NaN"),
        (None, "NoneType"),
    ],
)
async def test_what_a_model_gives_is_checked(rows: Any, message: str, mode: str) -> None:
    """C9."""

    async def aembed(_: list[str]) -> Any:
        return rows

    embedder = AdaptedEmbedder(lambda _: rows, aembed, model="m")
    with pytest.raises(EmbeddingError, match=message):
        await embedder.aembed(["a", "b"]) if mode == "async" else embedder.embed(["a", "b"])


async def test_cancelling_is_not_an_embedding_error() -> None:
    async def never(_: list[str]) -> Any:
        await asyncio.sleep(60)

    embedder = AdaptedEmbedder(lambda _: [], never, model="m")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(embedder.aembed(["a"]), 0.01)


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (object(), "cannot embed with object; wanted an Embedder, a LangChain"),
        (None, "cannot embed with NoneType"),
        (LangChainLike, r"got the class LangChainLike, wanted an instance: LangChainLike\(...\)"),
        ("text-embedding-3-small", "unknown embedder 'text-embedding-3-small'.*openai:"),
        ("openai:", "unknown embedder"),
        ("", "unknown embedder"),
    ],
)
def test_what_cannot_embed_is_refused(obj: object, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        as_embedder(obj)


def test_misspelt_options_are_refused() -> None:
    """C14."""
    with pytest.raises(InvalidArgument, match="unknown option modle"):
        as_embedder(LangChainLike(), modle="x")
    with pytest.raises(InvalidArgument, match="unknown option dim"):
        as_embedder("bundled", dim=64)
    with pytest.raises(InvalidArgument, match="batch_size=0"):
        as_embedder(LangChainLike(), batch_size=0)
    with pytest.raises(InvalidArgument, match=r"pass \[text\]"):
        as_embedder(LangChainLike()).embed("a text")


def fake_langchain(monkeypatch: pytest.MonkeyPatch, init: Callable[..., object] | None) -> None:
    """Stands in for the optional package; None: it is not installed."""
    module: types.ModuleType | None = None
    if init:
        module = types.ModuleType("langchain.embeddings")
        module.__dict__["init_embeddings"] = init
        monkeypatch.setitem(sys.modules, "langchain", types.ModuleType("langchain"))
    monkeypatch.setitem(sys.modules, "langchain.embeddings", module)


def test_names_go_through_langchain(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def init(name: str, **options: object) -> object:
        asked.append((name, options))
        return LangChainLike()

    fake_langchain(monkeypatch, init)
    embedder = as_embedder("ollama:nomic-embed-text:v1", base_url="http://localhost:1")
    assert asked == [("ollama:nomic-embed-text:v1", {"base_url": "http://localhost:1"})]
    assert embedder.model == "nomic-embed-text:v1"
    assert embedder.embed(["a b"]).tolist() == [[3, 2, 1]]


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (
            ImportError("install langchain-openai"),
            MissingExtra,
            "'openai:x': install langchain-openai; pgmem-ai has",
        ),
        (ValueError("provider nope"), InvalidArgument, "'openai:x': provider nope"),
    ],
)
def test_faults_of_names(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, error: type[Exception], message: str
) -> None:
    def init(name: str, **options: object) -> object:
        raise fault

    fake_langchain(monkeypatch, init)
    with pytest.raises(error, match=message):
        as_embedder("openai:x")


def test_names_without_langchain(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_langchain(monkeypatch, None)
    with pytest.raises(MissingExtra, match=r"'openai:x' needs langchain .*'pgmem-ai\[langchain,openai\]'"):
        as_embedder("openai:x")


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_real_langchain_model(mode: str) -> None:
    fake = pytest.importorskip("langchain_core.embeddings").DeterministicFakeEmbedding(size=12)
    embedder = as_embedder(fake)
    got = await embedder.aembed(["a", "b"]) if mode == "async" else embedder.embed(["a", "b"])
    assert got.shape == (2, 12)
    assert embedder.model == "DeterministicFakeEmbedding"


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_real_llama_index_model(mode: str) -> None:
    mock = pytest.importorskip("llama_index.core.embeddings").MockEmbedding(embed_dim=6)
    embedder = as_embedder(mock)
    got = await embedder.aembed(["a", "b"]) if mode == "async" else embedder.embed(["a", "b"])
    assert got.shape == (2, 6)
    assert embedder.model == "MockEmbedding"
