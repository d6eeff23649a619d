"""How much of the evidence a retrieval finds: pure arithmetic over ranked turns.

turn recall@k
    the share of a question's evidence turns among the first k ranked, averaged over the questions.
session recall@k
    the share of questions for which at least one session that holds evidence is among the sessions of the
    first k ranked turns.

Questions without evidence in the conversation are not counted, nor are those of a category outside
`CATEGORIES` (LoCoMo's category 5 asks for what was never said). A question without a category counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pgmem_core.errors import InvalidArgument
from pgmem_core.importing.types import Conversation, Question

__all__ = ["CATEGORIES", "Evaluation", "RankedTurn", "Row", "counted", "evaluate"]

CATEGORIES = ("1", "2", "3", "4")


class RankedTurn(NamedTuple):
    """One retrieved turn and the session it is from. A plain pair of strings will do."""

    turn_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Row:
    """Recall over some questions. `turn_recall[i]` and `session_recall[i]` (0..1) belong to the i-th k; they
    are NaN where no question was counted."""

    name: str
    questions: int
    turn_recall: tuple[float, ...]
    session_recall: tuple[float, ...]

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, in the order of `Evaluation.header`."""
        numbers = (*self.turn_recall, *self.session_recall)
        return (self.name, str(self.questions), *("–" if math.isnan(n) else f"{n:.3f}" for n in numbers))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One row a conversation, and `overall`, the mean over all questions (not over conversations)."""

    ks: tuple[int, ...]
    rows: tuple[Row, ...]
    overall: Row

    def header(self) -> tuple[str, ...]:
        """Return the names of the columns of `Row.cells`."""
        turn = (f"turn@{k}" for k in self.ks)
        session = (f"session@{k}" for k in self.ks)
        return ("conversation", "questions", *turn, *session)


def counted(question: Question, *, categories: Sequence[str] = CATEGORIES) -> bool:
    """Whether a question takes part."""
    return bool(question.evidence) and (question.category is None or question.category in categories)


def evaluate(
    results: Iterable[tuple[Conversation, Sequence[Sequence[tuple[str, str]]]]],
    *,
    ks: Sequence[int] = (5, 10, 20),
    categories: Sequence[str] = CATEGORIES,
) -> Evaluation:
    """Score conversations with their rankings.

    A ranking is the (turn id, session id) pairs retrieved for a question, best first; there is one for each
    of `conversation.questions`, in their order. It is not looked at for questions that are not counted, so it
    may be empty there. Raises: InvalidArgument, when the numbers differ or a k is below 1.
    """
    depths = tuple(ks)
    if not depths or min(depths) < 1:
        raise InvalidArgument(f"ks is {depths!r}, wanted one or more integers of at least 1")
    rows: list[Row] = []
    everything: list[_Scores] = []
    for conversation, rankings in results:
        if len(rankings) != len(conversation.questions):
            raise InvalidArgument(
                f"{len(rankings)} rankings for {len(conversation.questions)} questions of "
                f"{conversation.name!r}, wanted one for each, in order"
            )
        session_of = {turn.id: session.session_id for session in conversation.sessions for turn in session.turns}
        scores = [
            _score(question, ranking, session_of, depths)
            for question, ranking in zip(conversation.questions, rankings, strict=True)
            if counted(question, categories=categories)
        ]
        rows.append(_row(conversation.name, scores, depths))
        everything.extend(scores)
    return Evaluation(depths, tuple(rows), _row("overall", everything, depths))


class _Scores(NamedTuple):
    turns: list[float]
    sessions: list[float]


def _score(
    question: Question, ranking: Sequence[tuple[str, str]], session_of: dict[str, str], ks: Sequence[int]
) -> _Scores:
    evidence = set(question.evidence)
    right_sessions = {session_of[turn_id] for turn_id in evidence if turn_id in session_of}
    turns: list[float] = []
    sessions: list[float] = []
    for k in ks:
        first = ranking[:k]
        turns.append(len(evidence & {turn_id for turn_id, _ in first}) / len(evidence))
        sessions.append(float(not right_sessions.isdisjoint(session_id for _, session_id in first)))
    return _Scores(turns, sessions)


def _row(name: str, scores: Sequence[_Scores], ks: Sequence[int]) -> Row:
    if not scores:
        nothing = (math.nan,) * len(ks)
        return Row(name, 0, nothing, nothing)
    return Row(
        name,
        len(scores),
        tuple(math.fsum(column) / len(scores) for column in zip(*(s.turns for s in scores), strict=True)),
        tuple(math.fsum(column) / len(scores) for column in zip(*(s.sessions for s in scores), strict=True)),
    )
