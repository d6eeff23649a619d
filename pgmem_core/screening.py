"""What the flows do with the write policy: screen before they write, and record a refusal before it is raised."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from pgmem_core.content import read_content
from pgmem_core.effects import Flow, transact
from pgmem_core.errors import InvalidArgument, PgmemError, WriteRefused
from pgmem_core.facts import FactDraft
from pgmem_core.ids import new_id
from pgmem_core.policy import refusal
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import refusals
from pgmem_core.types import SubjectRef

__all__ = ["error_text", "record", "screen_drafts", "screen_rows", "screen_value", "screened"]

log = logging.getLogger(__name__)

T = TypeVar("T")
# Of a turn, a message or a row: what names and dates it, rather than says something.
_NAMING = frozenset({"id", "role", "kind", "session_id", "created_at", "embedding"})


def screened(rt: Runtime, tenant_id: str, work: Callable[[], T], *, advice: str = "") -> Flow[T]:
    """Return work(), which screens texts and writes nothing. Raises: WriteRefused, which is recorded then.

    The record is made in a transaction of its own, so that it stays when the caller's rolls back.
    """
    try:
        return work()
    except WriteRefused as exc:
        refused = exc
    yield from record(rt, tenant_id, [refused])
    if advice:
        raise _again(refused, refused.position, advice)
    raise refused


def screen_value(rt: Runtime, tenant_id: str, value: T, entry: str, *, advice: str = "") -> Flow[T]:
    """Return a screened copy of a value, or the value itself where nothing screens."""
    if rt.policy is None:
        return value
    kept: T = yield from screened(rt, tenant_id, lambda: rt.screen(value, entry), advice=advice)
    return kept


def screen_rows(
    rt: Runtime, tenant_id: str, rows: Sequence[Mapping[str, Any]], entry: str
) -> Flow[Sequence[Mapping[str, Any]]]:
    """Return screened copies of turns or rows given as mappings; a refusal names which of several it was."""
    if rt.policy is None:
        return rows
    return (
        yield from screened(
            rt, tenant_id, lambda: [_row(rt, row, entry, n, len(rows)) for n, row in enumerate(rows, start=1)]
        )
    )


def _row(rt: Runtime, row: Mapping[str, Any], entry: str, number: int, total: int) -> dict[str, Any]:
    made = dict(row)
    try:
        for key, value in row.items():
            if key == "content":
                try:
                    value = read_content(value)  # a message object's own words
                except InvalidArgument:
                    continue  # whoever makes a turn of it says so, and where
            if key not in _NAMING:
                made[key] = rt.screen(value, entry)
    except WriteRefused as refused:
        raise _again(refused, number if total > 1 else None) from None
    return made


def _again(refused: WriteRefused, position: int | None, advice: str = "") -> WriteRefused:
    made = WriteRefused(refused.reason, entry=refused.entry, position=position, advice=advice)
    made.content_hash, made.length = refused.content_hash, refused.length
    return made


def screen_drafts(rt: Runtime, tenant_id: str, drafts: Sequence[object]) -> Flow[list[object]]:
    """Return an extractor's drafts, screened; those that are refused are recorded and left out.

    A draft whose subject's name would be changed is left out too: under another name it would be about another.
    """
    if rt.policy is None:
        return list(drafts)
    kept: list[object] = []
    refused: list[WriteRefused] = []
    for draft in drafts:
        if not isinstance(draft, FactDraft):
            continue  # nothing else becomes a fact
        try:
            if isinstance(draft.subject, SubjectRef) and (
                rt.screen(draft.subject.identifier, "fact") != draft.subject.identifier
            ):
                raise refusal("the name of its subject would be changed", draft.subject.identifier, "fact")
            kept.append(replace(draft, **{name: rt.screen(getattr(draft, name), "fact") for name in _DRAFT_TEXTS}))
        except WriteRefused as exc:
            log.warning("a proposed fact was refused by the write policy: %s", exc.reason)
            refused.append(exc)
    yield from record(rt, tenant_id, refused)
    return kept


_DRAFT_TEXTS = tuple(one.name for one in fields(FactDraft) if one.name in ("predicate", "value", "replaces", "quote"))


def error_text(rt: Runtime, exc: BaseException) -> str:
    """Return an error as it may be kept and logged: a model's may quote what it was given, or with which key."""
    try:
        return str(rt.screen(f"{type(exc).__name__}: {exc}", "error"))
    except PgmemError:
        return f"{type(exc).__name__} (the write policy refused its words)"


def record(rt: Runtime, tenant_id: str, refused: Sequence[WriteRefused]) -> Flow[None]:
    """Record refusals, best effort: a database that cannot take them changes nothing about the refusal."""
    if not refused:
        return
    try:
        yield from transact(refusals.add, tenant_id, [(new_id(), one) for one in refused], single=True)
    except PgmemError as exc:
        log.warning("a refused write could not be recorded: %s", exc)
