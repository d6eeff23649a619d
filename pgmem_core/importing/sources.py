"""From a path to parsed JSON values with their place in the file, one at a time where the format allows.

A JSON array is read element by element and JSON Lines line by line, so an export of any size needs the memory
of its largest conversation only.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from pgmem_core.errors import InvalidArgument
from pgmem_core.importing.fields import Report

__all__ = ["Element", "Source", "elements", "sources"]

_CHUNK = 1 << 20  # characters read at a time; doubled while one element does not fit
_BOM = b"\xef\xbb\xbf"
_JSON_SPACE = " \t\r\n"
_LINE_SUFFIXES = (".jsonl", ".ndjson")


class Element(NamedTuple):
    """A parsed value and its place ("line 7", "element 3")."""

    where: str
    value: Any


class Source(NamedTuple):
    """One readable file: its name for messages, and how to open it from the start."""

    name: str
    open: Callable[[], IO[bytes]]


class _Json:
    """A decoder that notices NaN and Infinity: Python reads them, JSON and jsonb do not know them."""

    def __init__(self) -> None:
        self.constant: str | None = None
        self._decoder = json.JSONDecoder(parse_constant=self._note)

    def _note(self, name: str) -> float:
        self.constant = name
        return 0.0

    def decode(self, source: str, start: int) -> tuple[Any, int]:
        """Return the value at start and where it ends. Raises: ValueError, RecursionError."""
        self.constant = None
        return self._decoder.raw_decode(source, start)


def sources(path: Path) -> list[Source]:
    """Return what there is to read: the file, or the conversations*.json of a zip (a ChatGPT export).

    Raises: InvalidArgument, when there is no such file or the zip holds no conversations.
    """
    if not path.is_file():
        met = "is a directory" if path.is_dir() else "does not exist"
        raise InvalidArgument(f"{path} {met}, wanted a .json, .jsonl or .zip file of conversations")
    if not zipfile.is_zipfile(path):
        return [Source(str(path), partial(_file, path))]
    with zipfile.ZipFile(path) as archive:
        names = [
            name
            for name in sorted(archive.namelist())
            if Path(name).name.startswith("conversations") and name.endswith((".json", *_LINE_SUFFIXES))
        ]
    if not names:
        raise InvalidArgument(f"{path} is a zip without a conversations.json; unpack it and name the file")
    return [Source(f"{path}!{name}", partial(_member, path, name)) for name in names]


def _file(path: Path) -> IO[bytes]:
    return path.open("rb")


def _member(path: Path, name: str) -> IO[bytes]:
    with zipfile.ZipFile(path) as archive:  # the member keeps the archive's file open until it is closed
        try:
            return archive.open(name)
        except (RuntimeError, NotImplementedError) as exc:  # a password, or an unknown compression
            raise InvalidArgument(f"{path}!{name} could not be unpacked ({exc}); unpack it yourself") from exc


def elements(source: Source, report: Report) -> Iterator[Element]:
    """Yield the file's values: the elements of an array, the lines of JSON Lines, or the one object.

    Raises: InvalidArgument for what ends the reading (unreadable, not UTF-8, broken JSON inside an array,
    another format).
    """
    try:
        yield from _elements(source, report)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as exc:
        raise report.fatal("the file", f"it could not be read ({exc})") from exc


def _elements(source: Source, report: Report) -> Iterator[Element]:
    with source.open() as stream:
        first = _first_byte(stream)
    by_line = source.name.lower().endswith(_LINE_SUFFIXES)
    if first == b"" and not by_line:  # no line is a valid file of lines, no character is not valid JSON
        raise report.fatal("line 1", "the file is empty, wanted JSON")
    if by_line:
        yield from _lines(source, report)
    elif first == b"[":
        yield from _array(source, report)
    elif first == b"{":
        yield from _objects(source, report)
    else:
        with source.open() as stream:
            met = stream.read(40)
        raise report.fatal("line 1", f"the file starts with {met!r}, wanted JSON in UTF-8, starting with [ or {{")


def _first_byte(stream: IO[bytes]) -> bytes:
    head = stream.read(4096).removeprefix(_BOM).lstrip()
    while not head and (more := stream.read(4096)):
        head = more.lstrip()
    return head[:1]


def _objects(source: Source, report: Report) -> Iterator[Element]:
    """A file that starts with {: one object a line if the first line is one, else one object in all."""
    with source.open() as stream:
        lines = (line for raw in stream if (line := raw.removeprefix(_BOM).strip()))
        first, second = next(lines), next(lines, b"")
    if second and _is_object(first):
        yield from _lines(source, report)
        return
    with source.open() as stream:
        raw = stream.read()
    # Neither one object nor lines that begin with one: if the second line is one, only the first is broken.
    if second and _is_object(second) and not _is_object(raw):
        yield from _lines(source, report)
    elif (found := _parse(raw, "the object", report, fatal=True)) is not None:
        yield found


def _is_object(raw: bytes) -> bool:
    try:
        return isinstance(json.loads(raw.decode("utf-8-sig")), dict)
    except (ValueError, RecursionError):
        return False


def _lines(source: Source, report: Report) -> Iterator[Element]:
    with source.open() as stream:
        # Bytes are cut at \n only: text may hold U+2028 and its kin, which str.splitlines would cut at.
        for number, raw in enumerate(stream, start=1):
            if not raw.strip().removeprefix(_BOM):
                continue
            found = _parse(raw, f"line {number}", report, fatal=False)
            if found is not None:
                yield found


def _parse(raw: bytes, where: str, report: Report, *, fatal: bool) -> Element | None:
    """Return the one JSON value these bytes are, or report why they are not."""
    decoder = _Json()
    try:
        source = raw.decode("utf-8-sig").strip(_JSON_SPACE)
        value, end = decoder.decode(source, 0)
        if end != len(source):
            raise ValueError(f"more after the end of the JSON value, at character {end + 1}")
    except UnicodeDecodeError as exc:
        message = f"byte {raw[exc.start]:#04x} at {exc.start} is not UTF-8; save the file as UTF-8"
    except RecursionError:
        message = "the JSON is nested too deeply"
    except ValueError as exc:
        message = f"not JSON ({exc})"
    else:
        if decoder.constant is None:
            return Element(where, value)
        message = f"{decoder.constant} is not JSON; write null or a string"
    if fatal:
        raise report.fatal(where, message)
    report.problem(where, message)
    return None


def _array(source: Source, report: Report) -> Iterator[Element]:
    """Yield the elements of one array as they come in."""
    decoder = _Json()
    with io.TextIOWrapper(source.open(), encoding="utf-8-sig", newline="") as stream:
        window = _Window(stream, report)
        window.skip_space()
        window.start += 1  # the [
        number = 0
        while True:
            number += 1
            where = f"element {number}"
            window.skip_space()
            if number == 1 and window.peek() == "]":
                window.take()
                break
            value = window.value(decoder, where)
            if decoder.constant is None:
                yield Element(where, value)
            else:
                report.problem(where, f"{decoder.constant} is not JSON; write null or a string")
            if window.take() == "]":
                break
        window.skip_space()
        if window.peek():
            hint = "one value a line is read from files named .jsonl"
            raise report.fatal(f"character {window.position}", f"more after the end of the array; {hint}")


class _Window:
    """The part of a text file that is in memory; `start` is the next character to look at."""

    def __init__(self, stream: io.TextIOWrapper, report: Report) -> None:
        self._stream = stream
        self._report = report
        self._dropped = 0
        self._size = _CHUNK
        self.buffer = ""
        self.start = 0

    @property
    def position(self) -> int:
        """Characters of the file before `start`, plus one."""
        return self._dropped + self.start + 1

    def more(self) -> bool:
        """Read on, dropping what is before `start`. False at the end of the file."""
        try:
            chunk = self._stream.read(self._size)
        except UnicodeDecodeError as exc:
            where = f"after character {self._dropped + len(self.buffer)}"
            raise self._report.fatal(where, f"{exc.reason}: not UTF-8; save the file as UTF-8") from exc
        self._dropped += self.start
        self.buffer = self.buffer[self.start :] + chunk
        self.start = 0
        return chunk != ""

    def skip_space(self) -> None:
        while True:
            while self.start < len(self.buffer) and self.buffer[self.start] in _JSON_SPACE:
                self.start += 1
            if self.start < len(self.buffer) or not self.more():
                return

    def peek(self) -> str:
        return self.buffer[self.start : self.start + 1]

    def take(self) -> str:
        self.start += 1
        return self.buffer[self.start - 1]

    def value(self, decoder: _Json, where: str) -> Any:
        """Return the value at `start` and move to the comma or bracket behind it.

        A value is taken only when what follows is in sight: "12" may be the front half of "123". A failure
        may mean that the end is not read yet, so it counts only at the end of the file; each retry doubles
        the read, which keeps the total work within twice the size of the element.
        """
        self._size = _CHUNK
        while True:
            message = "the array is not closed"
            try:
                value, end = decoder.decode(self.buffer, self.start)
                while end < len(self.buffer) and self.buffer[end] in _JSON_SPACE:
                    end += 1
                if end < len(self.buffer):
                    if self.buffer[end] in ",]":
                        self.start = end
                        return value
                    message = f"{self.buffer[end]!r} at character {self._dropped + end + 1}, wanted , or ]"
            except RecursionError as exc:
                raise self._report.fatal(where, "the JSON is nested too deeply") from exc
            except json.JSONDecodeError as exc:
                message = f"not JSON ({exc.msg} at character {self._dropped + exc.pos + 1})"
            except ValueError as exc:  # an integer of more than 4,300 digits
                message = f"not JSON that Python reads ({exc})"
            if not self.more():
                raise self._report.fatal(where, f"{message}; nothing behind it can be read")
            self._size *= 2
