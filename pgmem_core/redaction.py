r"""Patterns for keys, tokens and passwords. `redact` puts a mark where one stood: `[redacted:api-key]`.

===============  ===============================================================================================
mark             what it stands for
===============  ===============================================================================================
`api-key`        `sk-…` (OpenAI, Anthropic and their kin), `sk_live_…`, AWS `AKIA…`/`ASIA…`, Google `AIza…`
`token`          GitHub `ghp_…`, `github_pat_…`, GitLab `glpat-…`, Slack `xoxb-…`, Hugging Face `hf_…`, npm `npm_…`,
                 PyPI `pypi-…`, Google `ya29.…`, JSON Web Tokens, what follows `Bearer` or `Authorization: Basic`
`private-key`    a PEM block, also a cut-off one, also with its line ends written as `\n`
`password`       the password of a URL, and the value of `password=`, `"api_key": "…"` and the like
===============  ===============================================================================================

A key is told from words by its prefix, its length and a digit in it; a bare password in a sentence cannot be told.
Every pattern is linear in the text: what repeats is bounded or possessive.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["redact"]

_NEW = r"(?<![A-Za-z0-9])"
# How far from its BEGIN a block's END is looked for; a PEM of RSA with 16,384 bits takes 12.7 kB.
_PEM_CHARS = 16_384
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,60}-----")
_PEM_BODY = re.compile(r"(?:(?:\s|\\[rn])*+[A-Za-z0-9+/=]{16,}+)*+")

_HEAD = re.compile(r"(?i)(\bbearer\s{1,9}|\bauthorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?basic\s{1,9})([\w.~+/=-]{12,}+)")
# An "@" in the password is against the rules of URLs and in use all the same.
_URL = re.compile(r"(://[^\s:/@?#\"'<>]{0,256}+:)([^\s/?#\"'<>]{1,256})(?=@)")
_NAMES = (
    r"(?:[a-z0-9]{1,24}[_-]){0,4}?(?:password|passwd|passphrase|pwd|secret|token|credential|api[_-]?key|access[_-]?key"
    r"|secret[_-]?key|private[_-]?key)"
)
_QUOTED = re.compile(rf"(?i)(([\"']){_NAMES}\2\s{{0,9}}:\s{{0,9}}([\"']))((?:\\.|(?!\3)[^\\]){{1,4096}}+)(?=\3)")
# The same in JSON inside JSON, as arguments of tool calls come.
_ESCAPED = re.compile(rf"(?i)(\\\"{_NAMES}\\\"\s{{0,9}}:\s{{0,9}}\\\")([^\"\\]{{1,4096}}+)(?=\\\")")
_ASSIGNED = re.compile(
    rf"(?i)((?<![A-Za-z0-9_-]){_NAMES}\s{{0,3}}=\s{{0,3}})('(?:\\.|[^'\\\n]){{1,4096}}+'|\"(?:\\.|[^\"\\\n]){{1,4096}}+\""
    r"|[^\s&;,'\"()<>]{1,4096}+(?!\())"
)
# What stands where a password would, and is none.
_PLACEHOLDER = re.compile(
    r"(?i)[\"']?(?:[<{\[]|\$[A-Z_{(]|%[(s]|\*{2}|\.{2}|x{3}|none\b|null\b|true\b|false\b|str\b|string\b|os\.|env\b|getpass|process\."
    r"|your[ _-]|\d{0,2}[\"']?$)"
)

_KEYS = (
    ("api-key", ("sk-",), re.compile(_NEW + r"sk-([A-Za-z0-9_-]{16,}+)"), True),
    ("api-key", ("k_live_", "k_test_"), re.compile(_NEW + r"[srp]k_(?:live|test)_([A-Za-z0-9]{10,}+)"), True),
    ("api-key", ("AKIA", "ASIA"), re.compile(_NEW + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"), False),
    ("api-key", ("AIza",), re.compile(_NEW + r"AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"), False),
    ("token", ("gh",), re.compile(_NEW + r"gh[pousr]_[A-Za-z0-9]{20,}+"), False),
    ("token", ("github_pat_",), re.compile(_NEW + r"github_pat_[A-Za-z0-9_]{20,}+"), False),
    ("token", ("glpat-",), re.compile(_NEW + r"glpat-[A-Za-z0-9_-]{16,}+"), False),
    ("token", ("xox", "xapp"), re.compile(_NEW + r"(?:xox[a-z]|xapp)-([A-Za-z0-9-]{10,}+)"), True),
    ("token", ("hf_", "npm_"), re.compile(_NEW + r"(?:hf|npm)_([A-Za-z0-9]{20,}+)"), False),
    ("token", ("pypi-",), re.compile(_NEW + r"pypi-[A-Za-z0-9_-]{40,}+"), False),
    ("token", ("ya29.",), re.compile(_NEW + r"ya29\.[A-Za-z0-9_-]{20,}+"), False),
    (
        "token",
        ("eyJ",),
        re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+"),
        False,
    ),
)


def redact(text: str, entry: str = "") -> str:
    """Return the text with a mark in place of each key, token and password.

    A write policy by its signature. 6 µs for a sentence without one.
    """
    if "PRIVATE KEY" in text:
        text = _pem(text)
    if "://" in text and "@" in text:
        text = _URL.sub(r"\1[redacted:password]", text)
    if "=" in text:
        text = _ASSIGNED.sub(_value, text)
    if ":" in text and ('"' in text or "'" in text):
        text = _QUOTED.sub(_quoted, text)
        text = _ESCAPED.sub(_value, text) if '\\"' in text else text
    for mark, hints, pattern, mixed in _KEYS:
        if any(hint in text for hint in hints):
            text = pattern.sub(_key(f"[redacted:{mark}]", mixed), text)
    # Last: a key that follows "Bearer" says more by its own mark.
    return _HEAD.sub(_bearer, text)


def _key(mark: str, mixed: bool) -> Callable[[re.Match[str]], str]:
    def replace(found: re.Match[str]) -> str:
        return found[0] if mixed and not _random(found[1]) else mark

    return replace


def _random(text: str) -> bool:
    """True if it has a run of ten letters and digits with a digit in it: "scikit-learn-extra" has none."""
    return any(any(c.isdigit() for c in run) for run in re.findall(r"[A-Za-z0-9]{10,}+", text))


def _bearer(found: re.Match[str]) -> str:
    return f"{found[1]}[redacted:token]" if any(c.isdigit() for c in found[2]) else found[0]


def _value(found: re.Match[str]) -> str:
    value = found[2]
    if _PLACEHOLDER.match(value):
        return found[0]
    quote = value[0] if value[0] in "'\"" else ""
    return f"{found[1]}{quote}[redacted:password]{quote}"


def _quoted(found: re.Match[str]) -> str:
    return found[0] if _PLACEHOLDER.match(found[4]) else f"{found[1]}[redacted:password]"


def _pem(text: str) -> str:
    parts: list[str] = []
    done = 0
    last_end = text.rfind("-----END ")
    for found in _PEM.finditer(text):
        if found.start() < done:
            continue
        stop = None
        if found.end() <= last_end:
            at = text.find("-----END ", found.end(), found.end() + _PEM_CHARS)
            closing = _PEM_END.match(text, at) if at >= 0 else None
            stop = closing.end() if closing else None
        if stop is None:  # cut off: what looks like key material goes
            body = _PEM_BODY.match(text, found.end())
            stop = body.end() if body else found.end()
        parts += [text[done : found.start()], "[redacted:private-key]"]
        done = stop
    return "".join([*parts, text[done:]])
