"""What the command says: text for people (or one JSON document) on stdout, everything else on stderr."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

__all__ = ["console", "day", "emit", "fail", "mask", "note", "prepare", "shown", "size"]

# Everything a terminal would obey rather than show, bidirectional overrides included: memory holds what others wrote.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_URL_PASSWORD = re.compile(r"(://[^:@/\s]*:)[^\s]*@")
_KEYWORD_PASSWORD = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)", re.IGNORECASE)


def prepare() -> None:
    """Send logs to stderr, and let no character that the terminal cannot show end the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    logger = logging.getLogger("pgmem_core")
    if not any(isinstance(handler, _StderrHandler) for handler in logging.getLogger().handlers):
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("pgmem: %(message)s"))
        handler.setLevel(logging.WARNING)
        logging.getLogger().addHandler(handler)
    logger.setLevel(logging.WARNING)


class _StderrHandler(logging.Handler):
    """Writes to the stderr of the moment."""

    def emit(self, record: logging.LogRecord) -> None:
        print(mask(self.format(record)), file=sys.stderr, flush=True)


def console(*, stderr: bool = False) -> Console:
    """Return a console: colours on a terminal, plain text of 80 columns in a pipe."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def emit(document: Any) -> None:
    """Write the one JSON document of --json."""
    text = json.dumps(document, ensure_ascii=False, indent=2, default=_as_json)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, or a terminal without Unicode
        text = json.dumps(document, ensure_ascii=True, indent=2, default=_as_json)
    print(text, flush=True)


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, tuple | frozenset | set):
        return list(value)
    return str(value)


def note(message: str) -> None:
    """Tell a person, on stderr."""
    print(f"pgmem: {message}", file=sys.stderr, flush=True)


def fail(exc: BaseException, *, debug: bool) -> None:
    """Print an error as one red line on stderr, or with its traceback."""
    if debug:
        print(mask("".join(traceback.format_exception(exc))), file=sys.stderr, flush=True)
        return
    message = " ".join(shown(str(exc)).split())
    from pgmem_core.errors import PgmemError

    if not isinstance(exc, PgmemError):
        message = f"{type(exc).__name__}: {message} (--debug shows where)"
    console(stderr=True).print(Text(f"error: {mask(message)}", style="red"), soft_wrap=True)


def mask(text: str) -> str:
    """Return text without the passwords of the DSNs in it."""
    return _KEYWORD_PASSWORD.sub(r"\1***", _URL_PASSWORD.sub(r"\1***@", text))


def shown(text: str) -> str:
    """Return text that is safe to print: controls, and half surrogate pairs, become a replacement character."""
    return _CONTROLS.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def day(when: datetime | None) -> str:
    """Return the date, in UTC."""
    return "-" if when is None else when.astimezone(UTC).strftime("%Y-%m-%d")


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
