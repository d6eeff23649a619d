"""How many tokens a text or a message takes in a model's context, without ever asking the network.

Counts come from tiktoken: the model's encoding where its name is known, else `o200k_base`. tiktoken would
download an encoding on first use; we load it only from a folder that holds it already (`TIKTOKEN_CACHE_DIR`,
`DATA_GYM_CACHE_DIR`, tiktoken's own temporary folder, or the one inside an installed llama-index-core), or
when `PGMEM_TIKTOKEN_DOWNLOAD=1` allows the download. Else `estimate_tokens` answers, and one `PgmemWarning`
says so.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiktoken import Encoding

__all__ = [
    "AUDIO_TOKENS",
    "FILE_TOKENS",
    "IMAGE_TOKENS",
    "MESSAGE_OVERHEAD_TOKENS",
    "VIDEO_TOKENS",
    "PgmemWarning",
    "count_message",
    "count_tokens",
    "estimate_tokens",
    "warm",
]

MESSAGE_OVERHEAD_TOKENS = 4  # role and delimiters, as in OpenAI's own counting recipe
IMAGE_TOKENS = 765  # 1024 x 1024 in high detail; the providers' range for one picture is 85 to 1,600
AUDIO_TOKENS = 960  # half a minute at 32 tokens a second
VIDEO_TOKENS = 2_630  # ten seconds at 263 tokens a second
FILE_TOKENS = 1_500  # about one page of a PDF, when its text is not in the block

_DEFAULT = "o200k_base"
_BLOBS = "https://openaipublic.blob.core.windows.net/encodings"
# What tiktoken would download, and the hash without which it would delete a cached file and download anew.
_FILES = {
    "o200k_base": ("o200k_base.tiktoken", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
    "cl100k_base": (
        "cl100k_base.tiktoken",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "p50k_base": ("p50k_base.tiktoken", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"),
    "r50k_base": ("r50k_base.tiktoken", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"),
}
_FILES["o200k_harmony"] = _FILES["o200k_base"]
_FILES["p50k_edit"] = _FILES["p50k_base"]

# tiktoken before 0.9 takes quadratic time on a long run of one letter: 20,000 characters at most at a time.
_SLICE_CHARS = 20_000
# Above this, counting takes 10 ms of a turn and more: 20 evenly spaced samples answer for the whole.
_EXACT_CHARS = 200_000
_SAMPLES, _SAMPLE_CHARS = 20, 5_000


class PgmemWarning(UserWarning):
    """pgmem goes on, but less well than it could; the text says what to do."""


def count_tokens(text: str, model: str | None = None) -> int:
    """Return the number of tokens of the text; special tokens such as `<|endoftext|>` count as the plain text
    they are.

    `model` is a provider's name for a chat model ("gpt-4o", "openai:gpt-4o"); an unknown one is counted with
    `o200k_base`. Above 200,000 characters the count is an estimate from 100,000 of them.
    """
    if not text:
        return 0
    count = _counter(model)
    if len(text) <= _SLICE_CHARS:
        return count(text)
    if len(text) <= _EXACT_CHARS:
        return sum(count(text[at : at + _SLICE_CHARS]) for at in range(0, len(text), _SLICE_CHARS))
    step = (len(text) - _SAMPLE_CHARS) / (_SAMPLES - 1)
    starts = [int(n * step) for n in range(_SAMPLES)]
    sampled = sum(count(text[at : at + _SAMPLE_CHARS]) for at in starts)
    return round(sampled * len(text) / (_SAMPLES * _SAMPLE_CHARS))


def count_message(
    content: str | Sequence[Mapping[str, Any] | str] | None,
    tool_calls: Sequence[Mapping[str, Any]] | None = None,
    name: str | None = None,
    model: str | None = None,
) -> int:
    """Return what one chat message costs: its text, reasoning and tool calls, constants for images, sound,
    video and files (never their base64), and 4 tokens of its own.

    Blocks may be LangChain's, LlamaIndex's or a provider's; unknown ones count as their JSON.
    """
    total = MESSAGE_OVERHEAD_TOKENS
    if isinstance(content, str):
        total += count_tokens(content, model)
    elif content is not None:
        total += sum(_count_block(block, model) for block in content)
    if tool_calls:
        total += sum(count_tokens(_compact(call), model) for call in tool_calls)
    if name:
        total += count_tokens(name, model) + 1
    return total


def warm() -> bool:
    """Load the default encoding now (0.4 s), not on the first turn. Returns False if none is at hand."""
    return _encoding(_DEFAULT) is not None


# --- blocks

_CONSTANTS = {
    "image": IMAGE_TOKENS,
    "image_url": IMAGE_TOKENS,
    "input_image": IMAGE_TOKENS,
    "audio": AUDIO_TOKENS,
    "input_audio": AUDIO_TOKENS,
    "video": VIDEO_TOKENS,
}
_FILE_BLOCKS = frozenset({"file", "input_file", "document", "text-plain", "media"})
_REASONING_BLOCKS = frozenset({"thinking", "reasoning", "redacted_thinking", "reasoning_content"})
_TEXT_BLOCKS = frozenset({"text", "input_text", "output_text", ""})
# A string this long without a space is base64, which a provider reads as a file and not as text.
_BLOB_CHARS = 2_000


def _count_block(block: Mapping[str, Any] | str, model: str | None) -> int:
    if isinstance(block, str):
        return count_tokens(block, model)
    kind = str(block.get("type") or block.get("block_type") or "")
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    if kind in _FILE_BLOCKS:
        return _count_file(block, model)
    if kind in _REASONING_BLOCKS:
        return sum(count_tokens(text, model) for text in _texts(block))
    text, inner = block.get("text"), block.get("content")
    if isinstance(text, str) and kind in _TEXT_BLOCKS:
        return count_tokens(text, model)
    if isinstance(inner, Sequence) and not isinstance(inner, str):  # tool results, cited passages
        return sum(_count_block(item, model) for item in inner if isinstance(item, Mapping | str))
    blobs: list[str] = []
    return count_tokens(_compact(_without_blobs(block, blobs)), model) + FILE_TOKENS * len(blobs)


def _count_file(block: Mapping[str, Any], model: str | None) -> int:
    media = str(block.get("mime_type") or "").partition("/")[0]
    if media in _CONSTANTS:
        return _CONSTANTS[media]
    source = block.get("source")
    plain = source.get("data") if isinstance(source, Mapping) and source.get("type") == "text" else None
    texts = list(_texts(plain or block.get("text") or block.get("content")))
    return sum(count_tokens(text, model) for text in texts) if texts else FILE_TOKENS


def _without_blobs(value: Any, blobs: list[str], depth: int = 20) -> Any:
    if isinstance(value, str) and len(value) > _BLOB_CHARS and not re.search(r"\s", value[:_BLOB_CHARS]):
        blobs.append(value)
        return ""
    if depth and isinstance(value, Mapping):
        return {key: _without_blobs(item, blobs, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_without_blobs(item, blobs, depth - 1) for item in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    """The texts of a reasoning block, however its provider nests them; signatures are not part of it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key in ("text", "thinking", "reasoning", "reasoning_content", "summary", "content", "data"):
            yield from _texts(value.get(key))
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _compact(value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (TypeError, ValueError, RecursionError):  # keys that are not strings, circles
        return repr(value)


# --- encodings

_lock = threading.Lock()
_encodings: dict[str, Encoding | None] = {}
_warned = False


def _counter(model: str | None) -> Callable[[str], int]:
    encoding = _encoding(_encoding_name(model))
    if encoding is None:
        return estimate_tokens
    return lambda text: len(encoding.encode_ordinary(text))


def _encoding_name(model: str | None) -> str:
    if not model:
        return _DEFAULT
    from tiktoken.model import encoding_name_for_model

    for name in (model, model.rpartition(":")[2], model.rpartition("/")[2]):
        try:
            return encoding_name_for_model(name)
        except KeyError:
            continue
    return _DEFAULT


def _encoding(name: str) -> Encoding | None:
    """The encoding, or the nearest one at hand, or None after one warning."""
    try:
        return _encodings[name]
    except KeyError:
        pass
    with _lock:
        if name not in _encodings:
            candidates = dict.fromkeys((name, _DEFAULT, "cl100k_base"))
            found = (_encodings.get(each) or _load(each) for each in candidates)
            _encodings[name] = next((encoding for encoding in found if encoding), None)
    if _encodings[name] is None:
        _warn_once()
    return _encodings[name]


def _load(name: str) -> Encoding | None:
    """Load one encoding without the network. Called under the lock: it lends tiktoken an environment."""
    import tiktoken
    from tiktoken.registry import ENCODINGS

    if name in ENCODINGS:
        return ENCODINGS[name]
    if name in _FILES:
        for folder in _folders():
            if _holds(folder, *_FILES[name]):
                return _load_from(folder, name)
    if os.environ.get("PGMEM_TIKTOKEN_DOWNLOAD") == "1":
        try:
            return tiktoken.get_encoding(name)
        except Exception:  # whatever the network raises: the estimate answers
            return None
    return None


def _load_from(folder: Path, name: str) -> Encoding | None:
    import tiktoken

    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    try:
        return tiktoken.get_encoding(name)
    finally:
        if before is None:
            del os.environ["TIKTOKEN_CACHE_DIR"]
        else:
            os.environ["TIKTOKEN_CACHE_DIR"] = before


def _folders() -> Iterator[Path]:
    given = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if given:
        yield Path(given)
    elif given is None:
        yield Path(tempfile.gettempdir()) / "data-gym-cache"
    try:
        # Finding it imports the namespace package `llama_index` only, which holds no code.
        spec = importlib.util.find_spec("llama_index.core")
    except (ImportError, ValueError):
        return
    if spec is not None and spec.origin:
        yield Path(spec.origin).parent / "_static" / "tiktoken_cache"


def _holds(folder: Path, file_name: str, sha256: str) -> bool:
    """True if tiktoken would accept the file; it deletes one that is broken, and turns to the network."""
    key = hashlib.sha1(f"{_BLOBS}/{file_name}".encode(), usedforsecurity=False).hexdigest()
    try:
        return hashlib.sha256((folder / key).read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def _warn_once() -> None:
    global _warned
    if _warned:
        return
    _warned = True  # first: under `-W error` the warning raises, and must not do so on each turn
    warnings.warn(
        "no tiktoken encoding is cached on this machine, so token counts are estimates, rather too high; "
        "set TIKTOKEN_CACHE_DIR to a folder that holds o200k_base, install llama-index-core, "
        "or set PGMEM_TIKTOKEN_DOWNLOAD=1 to let tiktoken download it",
        PgmemWarning,
        stacklevel=4,
    )


# --- the estimate

_PIECES = re.compile(
    r"""(?P<word>(?<![A-Za-z0-9])[A-ZÀ-Þ]?[a-zß-\u024f\u1e00-\u1eff]+)
      | (?P<upper>(?<![A-Za-z0-9])[A-ZÀ-Þ]+)
      | (?P<glued>[A-ZÀ-Þ]?[a-zß-\u024f\u1e00-\u1eff]+|[A-ZÀ-Þ]+)
      | (?P<digits>[0-9]{1,3})
      | (?P<line>\s*\n)
      | (?P<number_gap>[ ](?=[0-9]))
      | (?P<gap>[ ](?=\S))
      | (?P<space>[^\S\n]+)
      | (?P<sign>[!-/:-@\[-`{-~\u00a1-\u00bf\u2010-\u206f]+)
      | (?P<alphabet>[\u0370-\u07ff]+)
      | (?P<brahmic>[\u0900-\u0eff\u10a0-\u10ff]+)
      | (?P<hangul>[\uac00-\ud7af]+)
      | (?P<cjk>[\u3000-\u9fff\uf900-\ufaff\uff00-\uffef]+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
# Tokens of the first character, of each further one, and of each beyond a length at which words break up.
# Fitted to o200k_base from above over 30 kinds of text.
_RATES: dict[str, tuple[float, float, int, float]] = {
    "word": (1.0, 0.02, 10, 0.5),
    "upper": (1.0, 0.25, 8, 0.58),
    "glued": (1.0, 0.36, 8, 0.58),
    "digits": (1.0, 0.0, 3, 0.0),
    "line": (1.0, 0.02, 64, 0.02),
    "number_gap": (1.0, 0.0, 1, 0.0),
    "gap": (0.0, 0.0, 1, 0.0),
    "space": (1.0, 0.016, 64, 0.016),
    "sign": (1.0, 0.6, 64, 0.67),
    "alphabet": (1.0, 0.4, 12, 0.5),
    "brahmic": (1.0, 0.45, 64, 0.5),
    "hangul": (1.0, 0.75, 64, 0.75),
    "cjk": (1.0, 0.9, 64, 0.9),
    "other": (1.5, 0.0, 1, 0.0),
}


def estimate_tokens(text: str) -> int:
    """Return about how many o200k_base tokens the text has, from its kinds of characters alone.

    A Latin word counts about 1 up to ten letters, and 0.5 for each further; three digits 1; a sign 0.6 to 1;
    a letter of another alphabet 0.4 to 0.5; Hangul 0.75; other CJK 0.9; the rest 1.5. Rather too high than
    too low: 1.15 times the real count on English, 1.3 on code, 1.2 on JSON, 1.0 on base64 and hex, 1.3 on
    Chinese, 0.93 (Vietnamese) to 1.6 (Hindi) on ten other languages; only rare characters in a row, which no
    prose has, go under, by half.
    """
    total = 0.0
    for piece in _PIECES.finditer(text):
        first, each, limit, beyond = _RATES[piece.lastgroup or "other"]
        length = piece.end() - piece.start()
        total += first + each * (min(length, limit) - 1)
        if length > limit:
            total += beyond * (length - limit)
    return max(1, round(total)) if text else 0
