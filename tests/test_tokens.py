"""Token counts: plain text whatever it says (B5), no network ever (B6), every kind of block (F4)."""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import tiktoken.registry

from pgmem_core import tokens
from pgmem_core.tokens import PgmemWarning, count_message, count_tokens, estimate_tokens

HAVE_ENCODING = tokens.warm()
needs_encoding = pytest.mark.skipif(not HAVE_ENCODING, reason="no tiktoken encoding is cached here")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing loaded, nothing cached, and a network that fails the test."""

    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "create_connection", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(tokens, "_encodings", {})
    monkeypatch.setattr(tokens, "_warned", False)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setattr(tokens, "_folders", lambda: iter([tmp_path]))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))


@needs_encoding
@pytest.mark.parametrize("text", ["why do <|endoftext|> and <|im_start|> appear?", "<|endoftext|>", "\ud800 half"])
def test_special_tokens_and_halves_count_as_text(text: str) -> None:
    """B5."""
    assert 2 <= count_tokens(text) <= 40
    assert count_tokens("<|endoftext|>") > 3  # the special token itself would be 1


@needs_encoding
def test_counts_are_tiktokens() -> None:
    assert count_tokens("") == 0
    assert count_tokens("hello world") == 2
    assert count_tokens("hello world", "gpt-4o") == 2
    text = "Xin chào, tôi sống ở Hà Nội. " * 20
    assert count_tokens(text, "gpt-4") > count_tokens(text, "openai:gpt-4o") == count_tokens(text)


@needs_encoding
@pytest.mark.parametrize("model", ["my-local-13b", "ollama:llama3.1", "", "claude-sonnet-4-5", "ft:gpt-4o:a"])
def test_unknown_models_are_counted_too(model: str) -> None:
    """B6."""
    assert count_tokens("hello world", model) == 2


@pytest.mark.usefixtures("offline")
def test_offline_one_warning_and_an_estimate() -> None:
    """B6."""
    question = "What did we decide about the harbour?"
    with pytest.warns(PgmemWarning, match="TIKTOKEN_CACHE_DIR") as caught:
        counts = {count_tokens(question, "my-local-13b"), count_tokens(question, "gpt-4")}
    assert len(caught) == 1
    assert counts == {estimate_tokens(question)} == {8}
    assert tokens.warm() is False


@pytest.mark.usefixtures("offline")
def test_a_warning_made_an_error_raises_once_only() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PgmemWarning):
            count_tokens("hello")
        assert count_tokens("hello") == 1


@pytest.mark.usefixtures("offline")
def test_a_broken_cache_file_is_neither_used_nor_deleted(tmp_path: Path) -> None:
    broken = tmp_path / "fb374d419588a4632f3f557e76b4b70aebbca790"
    broken.write_bytes(b"half a downl")
    with pytest.warns(PgmemWarning):
        assert count_tokens("hello") == 1
    assert broken.read_bytes() == b"half a downl"


@pytest.mark.usefixtures("offline")
def test_a_failed_download_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(name: str) -> None:
        asked.append(name)
        raise OSError("no route to host")

    monkeypatch.setenv("PGMEM_TIKTOKEN_DOWNLOAD", "1")
    monkeypatch.setattr(tiktoken, "get_encoding", refuse)
    with pytest.warns(PgmemWarning):
        assert count_tokens("hello") == count_tokens("hello") == 1
    assert asked == ["o200k_base", "cl100k_base"]


IN_A_FRESH_PROCESS = """
import os, sys
before = dict(os.environ)
from pgmem_core.tokens import count_tokens, warm
assert "tiktoken" not in sys.modules, "loaded at import"
print(count_tokens("hello world " * 3), warm())
assert dict(os.environ) == before, "the environment was changed"
assert "llama_index.core" not in sys.modules, "llama_index was imported"
"""


@pytest.mark.skipif(not list(tokens._folders())[1:], reason="llama-index-core is not installed")
def test_the_cache_of_an_installed_llama_index_is_used_without_a_trace() -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_A_FRESH_PROCESS],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("7 True\n", "")


@pytest.mark.parametrize("text", ["a" * 3_000_000, "word " * 600_000, "\n" * 3_000_000, "東" * 1_000_000])
def test_very_long_texts_take_no_time(text: str) -> None:
    count_tokens("load")
    start = time.perf_counter()
    count = count_tokens(text)
    assert time.perf_counter() - start < 2
    assert len(text) / 1_500 < count <= len(text)


@needs_encoding
def test_slices_and_samples_stay_close_to_the_whole() -> None:
    encoding = tiktoken.get_encoding("o200k_base") if "o200k_base" in tiktoken.registry.ENCODINGS else None
    if encoding is None:
        pytest.skip("o200k_base is not the encoding at hand")
    rng = random.Random(7)
    words = ["harbour", "the", "a", "decision", "of", "Antwerp", "ledger", "42", "(approx.)", "naïve", "東京"]
    for length in (30_000, 150_000, 900_000):
        text = " ".join(rng.choices(words, k=length // 5))
        real = len(encoding.encode_ordinary(text))
        assert count_tokens(text) == pytest.approx(real, rel=0.02)


RNG = random.Random(1)
KINDS = {
    "english": "I used to live in Lisbon, but last spring we moved to Porto for my wife's new job. " * 20,
    "code": Path(tokens.__file__).read_text(encoding="utf-8"),
    "json": json.dumps([{"user_id": f"u_{n}", "amount": n / 7, "createdAt": "2024-02-03"} for n in range(9)]),
    "base64": base64.b64encode(RNG.randbytes(6_000)).decode(),
    "hex": RNG.randbytes(6_000).hex(),
    "digits": "".join(RNG.choices("0123456789", k=5_000)),
    "punctuation": "".join(RNG.choices("!@#$%^&*()_+-=[]{}|;:,.<>?/~`", k=3_000)),
    "capitals": "THE QUICK BROWN FOX JUMPS OVER ERRORS. " * 20,
    "chinese": "我叫李晓梅，在北川公司上班。昨天我们去了海边，天气非常好。" * 20,
    "japanese": "私は東京に住んでいて、毎朝コーヒーを飲みます。" * 20,
    "korean": "저는 서울에 살고 있고 매일 아침 커피를 마십니다." * 20,
    "german": "Ich wohne in München; die Überprüfung der Datenbankverbindungen erfolgt regelmäßig." * 20,
    "russian": "Я живу в Москве и каждое утро пью кофе." * 20,
    "arabic": "أعيش في القاهرة وأشرب القهوة كل صباح." * 20,
    "hindi": "मैं दिल्ली में रहता हूँ और हर सुबह चाय पीता हूँ।" * 20,
    "vietnamese": "Xin chào, tôi sống ở Hà Nội và mỗi sáng uống cà phê." * 20,
    "emoji": "🎉😀🚀🔥✨" * 50,
}


@needs_encoding
@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_is_rather_high_than_low(kind: str) -> None:
    real = count_tokens(KINDS[kind], "gpt-4o")
    assert 0.9 < estimate_tokens(KINDS[kind]) / real < 1.7


def test_messages_and_blocks() -> None:
    """F4, F7."""
    assert count_message("") == count_message(None) == count_message([]) == 4
    text = "one two three four five"
    n = count_tokens(text)
    assert count_message(text) == count_message([text]) == count_message([{"type": "text", "text": text}]) == n + 4
    assert count_message([{"block_type": "text", "text": text}]) == n + 4
    assert count_message(text, name="ada") == n + 4 + 1 + count_tokens("ada")


@pytest.mark.parametrize(
    ("block", "constant"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}, 765),
        ({"type": "image", "source": {"data": "A" * 3_000_000}}, 765),
        ({"block_type": "image", "image": "A" * 3_000_000}, 765),
        ({"type": "input_audio", "input_audio": {"data": "A" * 9_000}}, 960),
        ({"type": "video", "base64": "A" * 9_000}, 2_630),
        ({"type": "media", "mime_type": "video/mp4", "data": "A" * 9_000}, 2_630),
        ({"type": "file", "base64": "A" * 9_000, "mime_type": "application/pdf"}, 1_500),
        ({"block_type": "document", "data": "A" * 9_000}, 1_500),
    ],
)
def test_pictures_sound_and_files_cost_a_stated_constant(block: dict[str, Any], constant: int) -> None:
    assert count_message([block]) == constant + 4


THOUGHT = "First I compare the two harbours, then I look at the tides. " * 40


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": THOUGHT, "signature": "x" * 5_000},
        {"type": "reasoning", "reasoning": THOUGHT},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": THOUGHT}]},
        {"block_type": "thinking", "content": THOUGHT},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": THOUGHT}]},
        {"type": "tool_result", "tool_use_id": "t", "content": THOUGHT},
        {"type": "text-plain", "text": THOUGHT},
        {"type": "document", "source": {"type": "text", "data": THOUGHT}},
        {"type": "tool_use", "name": "tides", "input": {"note": THOUGHT}},
        {"type": "from_tomorrow", "wrapped": {"note": THOUGHT, "data": "A" * 5}},
    ],
)
def test_text_inside_blocks_is_counted(block: dict[str, Any]) -> None:
    """F4."""
    assert 1 <= count_message([block]) / count_tokens(THOUGHT) < 1.2


def test_unknown_blocks_do_not_count_their_base64() -> None:
    block = {"type": "non_standard", "value": {"data": "QUJD" * 500_000}}
    assert 1_500 < count_message([block]) < 1_600


def test_tool_calls_cost_their_arguments() -> None:
    """F4: one call with a long argument."""
    words = " ".join(RNG.choices(["harbour", "ledger", "tide", "ship"], k=5_000))
    call = {"name": "save", "args": {"text": words}, "id": "call_1", "type": "tool_call"}
    assert 1 <= count_message("", tool_calls=[call]) / count_tokens(words) < 1.05
    assert count_message(None, tool_calls=[{"name": "x", "args": {1: object()}}]) > 4


def test_circles_and_odd_keys_are_counted_by_their_repr() -> None:
    circle: dict[Any, Any] = {("a", 1): 2}
    circle["self"] = circle
    assert count_message("", tool_calls=[circle]) > 4
    assert count_message([circle]) > 4
