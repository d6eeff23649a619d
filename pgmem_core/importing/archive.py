"""A memory as a file: JSON Lines that `pgmem export` writes and `pgmem import` reads back.

The first line says what it is, the last one how many there are of each kind; between them is a row a line, told
apart by "type", with the columns of its table::

    {"type": "memory", "version": 1, "group_id", "user_id", "exported_at", "vectors", "models"}
    {"type": "session", "session_id", "user_id", "created_at", "last_seq", "formed_through", …}
    {"type": "turn", "id", "session_id", "seq", "role", "content", "message", "metadata", "created_at", …}
    {"type": "running_summary", …}
    {"type": "fact", "fact_id", …, "subject": {…}, "evidence": [{…}, …]}
    {"type": "tombstone", …, "subject": {…}}
    {"type": "decision", …}
    {"type": "record", "id", "kind", …, ["turns": the ids that an episode tells of]}
    {"type": "narrative", …}
    {"type": "history", …}
    {"type": "end", "counts": {"session": 1, …}}

With vectors, a turn or record also has "model" (a name) and "vector": its float32 numbers, big-endian, in base64.
What Postgres cannot hold is escaped as it is stored (`pgmem_core.encoding`). Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pgmem_core.errors import InvalidArgument
from pgmem_core.importing.fields import FieldError, Report, describe
from pgmem_core.importing.sources import Source, elements, sources
from pgmem_core.importing.types import Problem

__all__ = ["KINDS", "Archive", "Row", "end_line", "is_archive", "numbers", "open_archive", "row_line", "start_line"]

VERSION = 1
Row = dict[str, Any]

# What a line of each type must have, and as what.
KINDS: dict[str, dict[str, type]] = {
    "session": {"session_id": str, "user_id": str, "last_seq": int},
    "turn": {"id": uuid.UUID, "session_id": str, "user_id": str, "seq": int, "role": str, "content": str},
    "running_summary": {"session_id": str, "version": int, "content": str, "through_seq": int},
    "fact": {"fact_id": uuid.UUID, "user_id": str, "predicate": str, "value_key": bytes, "subject": dict,
             "evidence": list, "recorded_at": str},
    "tombstone": {"subject": dict, "predicate": str, "value_key": bytes, "created_at": str},
    "decision": {"decision_id": uuid.UUID, "fact_id": uuid.UUID},
    "record": {"id": uuid.UUID, "session_id": str, "user_id": str, "kind": str, "content": str},
    "narrative": {"user_id": str, "version": int, "content": str, "created_at": str},
    "history": {"record_id": uuid.UUID, "version": int, "user_id": str},
}  # fmt: skip
_SUBJECT = {"subject_id": uuid.UUID, "kind": str, "identifier": str}
_WORDS = {uuid.UUID: "a UUID", int: "a whole number", dict: "an object", list: "a list", bytes: "32 bytes as \\x…"}
_KEY = re.compile(r"\\x[0-9a-f]{64}")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Archive:
    """A file that is one, and what its first line says. `lines()` reads the rest."""

    source: Source
    group_id: str
    user_id: str | None
    exported_at: str
    models: tuple[tuple[str, int, str], ...]
    """Name, dimensions and source of the models that vectors in it are of."""

    def lines(self, on_problem: Callable[[Problem], None] | None = None) -> Iterator[tuple[str, str, Row]]:
        """Yield place ("line 7"), type and row of each line. One that is not what it should be is a problem, and left
        out; so is the missing end of a file that was cut off. Raises: InvalidArgument, where no on_problem is given.
        """
        report = Report(self.source.name, on_problem)
        counts: Counter[str] = Counter()
        where, promised = "line 1", None
        for where, value in elements(self.source, report):
            if promised is not None:
                report.problem(where, "it comes after the end of the export and is left out")
                continue
            kind = value.get("type") if isinstance(value, dict) else None
            if kind == "memory":
                if where != "line 1":
                    report.problem(where, "another export starts here; put each into a file of its own")
                continue
            if kind == "end":
                promised = value.get("counts")
                continue
            try:
                yield where, str(kind), _checked(kind, value)
            except FieldError as fault:
                report.problem(where, fault)
            counts[str(kind)] += 1
        if promised is None:
            report.problem(where, "the file ends before its end: it was cut off, and what followed is missing")
        elif promised != counts:
            report.problem(where, f"the export had {_tell(promised)}, the file has {_tell(counts)}")


def is_archive(path: Path) -> bool:
    """True if the file begins as an export does. Raises: InvalidArgument if there is no such file."""
    return _head(sources(path)) is not None


def open_archive(path: Path) -> Archive:
    """Return the export in a file. Raises: InvalidArgument if it is none, or from a newer pgmem."""
    found = sources(path)
    head = _head(found)
    if head is None:
        raise InvalidArgument(f"{path} is no export of pgmem: its first line would be {{'type': 'memory', …}}")
    version = head.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise InvalidArgument(
            f"{path} is an export of version {version!r}, this pgmem reads {VERSION}; upgrade pgmem-ai"
        )
    group_id, user_id, models = head.get("group_id"), head.get("user_id"), head.get("models", [])
    if not isinstance(group_id, str) or not isinstance(user_id, str | None):
        raise InvalidArgument(f"{path}, line 1: 'group_id' is {describe(group_id)}, wanted a string")
    try:
        known = tuple((str(one["name"]), int(one["dimensions"]), str(one["source"])) for one in models)
    except (TypeError, KeyError, ValueError):
        raise InvalidArgument(f"{path}, line 1: 'models' is {describe(models)}, wanted names and dimensions") from None
    return Archive(found[0], group_id, user_id, str(head.get("exported_at")), known)


def _head(found: list[Source]) -> Row | None:
    with found[0].open() as stream:
        try:
            value = json.loads(stream.readline(1 << 20).decode("utf-8-sig"))
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) and value.get("type") == "memory" else None


def _checked(kind: object, value: Any) -> Row:
    if not isinstance(value, dict):
        raise FieldError(f"it is {describe(value)}, wanted an object")
    if not isinstance(kind, str) or kind not in KINDS:
        raise FieldError(f"'type' is {describe(kind)}, wanted one of {', '.join(KINDS)}")
    _wanted(value, KINDS[kind])
    if "subject" in KINDS[kind]:
        _wanted(value["subject"], _SUBJECT)
    for one in value.get("evidence", ()):
        if not isinstance(one, dict):
            raise FieldError(f"evidence is {describe(one)}, wanted an object")
        _wanted(one, {"evidence_id": uuid.UUID})
    for one in value.get("turns") or ():
        _wanted({"turns": one}, {"turns": uuid.UUID})
    if any(_UNSTORABLE.search(text) for text in _strings(value)):
        raise FieldError("it holds U+0000 or half of a surrogate pair, which an export never does")
    return {key: one for key, one in value.items() if key != "type"}


def _wanted(value: Row, keys: dict[str, type]) -> None:
    for key, wanted in keys.items():
        met = value.get(key)
        if wanted is uuid.UUID or wanted is bytes:
            good = isinstance(met, str) and (_is_uuid(met) if wanted is uuid.UUID else bool(_KEY.fullmatch(met)))
        else:
            good = isinstance(met, wanted) and not isinstance(met, bool)
        if not good:
            raise FieldError(f"{key!r} is {describe(met)}, wanted {_WORDS.get(wanted, 'a string')}")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def numbers(vector: object) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the numbers of a "vector". Raises: ValueError."""
    if not isinstance(vector, str):
        raise ValueError(f"it is {describe(vector)}")
    return np.frombuffer(base64.b64decode(vector, validate=True), dtype=">f4").astype(np.float32)


def _tell(counts: object) -> str:
    if not isinstance(counts, dict):
        return describe(counts)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())) or "nothing"


# -- writing ---------------------------------------------------------------------------------------------------


def start_line(
    *, group_id: str, user_id: str | None, exported_at: str, vectors: bool, models: list[tuple[str, int, str]]
) -> str:
    """Return the first line, with its newline."""
    return _line(
        {
            "type": "memory", "version": VERSION, "group_id": group_id, "user_id": user_id, "exported_at": exported_at,
            "vectors": vectors,
            "models": [{"name": name, "dimensions": size, "source": source} for name, size, source in models],
        }
    )  # fmt: skip


def row_line(kind: str, row: str) -> str:
    """Return the line of a row that is JSON already."""
    return f'{{"type":"{kind}",{row[1:]}\n'


def end_line(counts: dict[str, int]) -> str:
    """Return the last line."""
    return _line({"type": "end", "counts": counts})


def _line(value: Row) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
