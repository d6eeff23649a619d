"""How much of the evidence `mem.search` finds, beside what vectors alone would: the same questions, the same run."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pgmem_core.content import read_content, searchable_text, spoken
from pgmem_core.ids import turn_uuid
from pgmem_core.importing import Conversation
from pgmem_core.importing.evaluation import Evaluation, Row, counted, evaluate

if TYPE_CHECKING:
    from pgmem_core.client import PgMem

__all__ = ["measure"]

_KS = (5, 10, 20)
Rankings = list[list[tuple[str, str]]]


def measure(
    mem: PgMem, conversations: Sequence[Conversation], *, group_id: str, users: Sequence[str]
) -> dict[str, Any]:
    """Return recall@5/10/20 of turns and of sessions, and milliseconds a search.

    A conversation's questions are asked of its user. Three rankings: pgmem's (no floor), pgmem's with the
    embedder's floor, and cosine alone over each turn by itself, among all turns of the same user.
    """
    times: list[float] = []
    plain, floored, dense = [], [], []
    matrices: dict[str, _Dense] = {}
    for user in dict.fromkeys(users):
        matrices[user] = _Dense(mem, [one for one, whose in zip(conversations, users, strict=True) if whose == user])
    for one, user in zip(conversations, users, strict=True):
        names = _names(conversations, users, user, group_id)
        plain.append((one, _search(mem, one, names, times, user_id=user, group_id=group_id, floor=None)))
        floored.append((one, _search(mem, one, names, [], user_id=user, group_id=group_id, floor="default")))
        dense.append((one, matrices[user].rank(one)))
    p50 = statistics.median(times) if times else math.nan
    return {
        "pgmem": _as_document(evaluate(plain, ks=_KS)),
        "pgmem_with_floor": _as_document(evaluate(floored, ks=_KS)),
        "dense_only": _as_document(evaluate(dense, ks=_KS)),
        "p50_ms": None if math.isnan(p50) else round(p50, 2),
        "searches": len(times),
    }


def _names(
    conversations: Sequence[Conversation], users: Sequence[str], user: str, group_id: str
) -> dict[str, tuple[str, str]]:
    """Return the file's (turn id, session id) by the id of the stored turn."""
    return {
        str(turn_uuid(turn.id, group_id, session.session_id)): (turn.id, session.session_id)
        for one, whose in zip(conversations, users, strict=True)
        if whose == user
        for session in one.sessions
        for turn in session.turns
    }


def _search(
    mem: PgMem,
    one: Conversation,
    names: dict[str, tuple[str, str]],
    times: list[float],
    *,
    user_id: str,
    group_id: str,
    floor: str | None,
) -> Rankings:
    rankings: Rankings = []
    for question in one.questions:
        if not counted(question):
            rankings.append([])
            continue
        started = time.perf_counter()
        found = mem.search(question.text, user_id=user_id, group_id=group_id, top_k=max(_KS), floor=floor)
        times.append((time.perf_counter() - started) * 1000)
        rankings.append([names[hit.id] for hit in found if hit.id in names])
    return rankings


class _Dense:
    """What a vector column and cosine alone would rank: each turn with its speaker, nothing around it."""

    def __init__(self, mem: PgMem, conversations: Sequence[Conversation]) -> None:
        self._embedder = mem._rt.embedder
        self._names: list[tuple[str, str]] = []
        texts = []
        for one in conversations:
            for session in one.sessions:
                for turn in session.turns:
                    self._names.append((turn.id, session.session_id))
                    texts.append(spoken(searchable_text(read_content(turn.content)), turn.name))
        self._matrix = self._unit(texts)

    def _unit(self, texts: Sequence[str]) -> Any:
        size = 256
        parts = [self._embedder.embed(texts[at : at + size]) for at in range(0, len(texts), size)]
        vectors = np.concatenate(parts) if parts else np.zeros((0, self._embedder.dimensions), dtype=np.float32)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    def rank(self, one: Conversation) -> Rankings:
        asked = [question for question in one.questions if counted(question)]
        scores = self._unit([question.text for question in asked]) @ self._matrix.T
        ranked = iter(np.argsort(-scores, axis=1, kind="stable")[:, : max(_KS)])
        return [[self._names[at] for at in next(ranked)] if counted(question) else [] for question in one.questions]


def _as_document(found: Evaluation) -> dict[str, Any]:
    return {
        "overall": _row(found.overall, found.ks),
        "conversations": [_row(row, found.ks) for row in found.rows],
    }


def _row(row: Row, ks: Sequence[int]) -> dict[str, Any]:
    def by_k(numbers: Sequence[float]) -> dict[str, float | None]:
        return {str(k): None if math.isnan(number) else round(number, 4) for k, number in zip(ks, numbers, strict=True)}

    return {
        "name": row.name,
        "questions": row.questions,
        "turn_recall": by_k(row.turn_recall),
        "session_recall": by_k(row.session_recall),
    }
