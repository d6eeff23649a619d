"""`read`: each value of the file goes to the reader of its shape."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pgmem_core.importing import chatgpt, fields, locomo, messages
from pgmem_core.importing.fields import Ids, Report
from pgmem_core.importing.records import RECORD_TYPES, Assembler
from pgmem_core.importing.sources import Source, elements, sources
from pgmem_core.importing.types import Conversation, Problem

__all__ = ["read"]

_WANTED = (
    "wanted a pgmem record ('type'), a message ('role', 'content'), an object with 'messages', "
    "a ChatGPT conversation ('mapping') or a LoCoMo sample ('conversation')"
)


def read(
    path: str | os.PathLike[str],
    *,
    on_problem: Callable[[Problem], None] | None = None,
    user_id: str | None = None,
) -> Iterator[Conversation]:
    """Yield the conversations of a file, in its order.

    on_problem: called for each part that is left out; without it the first such part raises.
    user_id: who is to get what does not say whose it is; messages that say another user end the reading.
    Raises: InvalidArgument, naming file, place, what was met and what is wanted; at once when there is no
    such file, else when the reading gets there.
    """
    return _read(sources(Path(path)), on_problem, user_id)


def _read(
    found: list[Source], on_problem: Callable[[Problem], None] | None, user_id: str | None
) -> Iterator[Conversation]:
    ids = Ids()
    for source in found:
        yield from _conversations(source, Report(source.name, on_problem), ids, user_id)


def _conversations(source: Source, report: Report, ids: Ids, user_id: str | None) -> Iterator[Conversation]:
    records = Assembler(report, ids)
    loose: list[tuple[str, Any]] = []  # messages without a list around them: one conversation, or as many as they say
    for where, value in elements(source, report):
        if isinstance(value, dict) and value.get("type") == "memory":
            raise report.fatal(where, "it is an export of a whole memory: import it with import_() or 'pgmem import'")
        if isinstance(value, dict) and messages.is_message(value) and not _is_record(value):
            loose.append((where, value))
            continue
        yield from _of_element(where, value, records, report, ids, user_id)
    yield from records.finish()
    yield from messages.conversations(loose, report, ids, given_user=user_id)


def _is_record(value: dict[str, Any]) -> bool:
    kind = value.get("type")
    return isinstance(kind, str) and kind in RECORD_TYPES


def _of_element(
    where: str, value: Any, records: Assembler, report: Report, ids: Ids, user_id: str | None
) -> Iterator[Conversation]:
    single: Conversation | None = None
    if isinstance(value, list):
        numbered = ((f"{where}, message {n}", message) for n, message in enumerate(value, start=1))
        yield from messages.conversations(numbered, report, ids, given_user=user_id)
    elif not isinstance(value, dict):
        report.problem(where, f"it is {fields.describe(value)}, {_WANTED}")
    elif _is_record(value):
        yield from records.feed(where, value)
    elif "mapping" in value:
        single = chatgpt.conversation(value, where, report, ids)
    elif locomo.is_sample(value):
        single = locomo.conversation(value, where, report, ids)
    elif "messages" in value:
        yield from messages.from_object(value, where, report, ids, given_user=user_id)
    else:
        keys = ", ".join(map(repr, list(value)[:6])) or "no keys"
        report.problem(where, f"it is an object with {keys}, {_WANTED}")
    if single is not None:
        yield single
