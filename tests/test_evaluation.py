"""Recall of ranked turns against questions with evidence."""

from __future__ import annotations

import math

import pytest

from pgmem_core.errors import InvalidArgument
from pgmem_core.importing import Conversation, ImportedSession, ImportedTurn, Question
from pgmem_core.importing.evaluation import Evaluation, RankedTurn, counted, evaluate


def conversation(*questions: Question, name: str = "c") -> Conversation:
    """Sessions s0 (t0..t4), s1 (t5..t9), s2 (t10..t14)."""
    sessions = tuple(
        ImportedSession(f"s{s}", None, None, None, tuple(ImportedTurn(f"t{s * 5 + n}", "user", "x") for n in range(5)))
        for s in range(3)
    )
    return Conversation(name, None, sessions, questions)


def ranking(*numbers: int) -> list[RankedTurn]:
    return [RankedTurn(f"t{n}", f"s{n // 5}") for n in numbers]


def test_turn_and_session_recall_at_each_k() -> None:
    asked = Question("?", ("t0", "t7"))
    found = evaluate([(conversation(asked), [ranking(8, 1, 0, 12, 7)])], ks=(1, 2, 3, 5))
    assert found.overall.turn_recall == (0.0, 0.0, 0.5, 1.0)
    assert found.overall.session_recall == (1.0, 1.0, 1.0, 1.0), "t8 is of s1, where t7 is"


def test_session_recall_needs_one_right_session() -> None:
    asked = Question("?", ("t14",))
    found = evaluate([(conversation(asked), [ranking(0, 5, 10)])], ks=(1, 2, 3))
    assert found.overall.turn_recall == (0.0, 0.0, 0.0)
    assert found.overall.session_recall == (0.0, 0.0, 1.0)


def test_only_answerable_questions_with_evidence_count() -> None:
    questions = [
        Question("a", ("t0",), "1"),
        Question("b", ("t0",), "4"),
        Question("c", ("t0",)),
        Question("adversarial", ("t0",), "5"),
        Question("no evidence", (), "1"),
    ]
    assert [counted(q) for q in questions] == [True, True, True, False, False]
    rankings = [ranking(0), ranking(1), ranking(0), [], []]
    found = evaluate([(conversation(*questions), rankings)])
    assert found.overall.questions == 3
    assert found.overall.turn_recall == pytest.approx((2 / 3,) * 3)
    only_five = evaluate([(conversation(*questions), rankings)], categories=("5",))
    assert (only_five.overall.questions, only_five.overall.turn_recall[0]) == (2, 0.5)


def test_overall_is_the_mean_over_questions_not_over_conversations() -> None:
    hit, miss = Question("hit", ("t0",)), Question("miss", ("t1",))
    many = conversation(hit, hit, hit, name="many")
    one = conversation(miss, name="one")
    found = evaluate([(many, [ranking(0)] * 3), (one, [ranking(0)])])
    assert [(row.name, row.questions, row.turn_recall[0]) for row in found.rows] == [
        ("many", 3, 1.0),
        ("one", 1, 0.0),
    ]
    assert (found.overall.questions, found.overall.turn_recall[0]) == (4, 0.75)


def test_a_turn_counts_once_however_often_it_is_ranked_or_named() -> None:
    asked = Question("?", ("t0", "t0", "t1"))
    found = evaluate([(conversation(asked), [ranking(0, 0, 0)])], ks=(3,))
    assert found.overall.turn_recall == (0.5,)


def test_short_and_empty_rankings() -> None:
    asked = Question("?", ("t0",))
    found = evaluate([(conversation(asked, asked), [[], ranking(0)])])
    assert found.overall.turn_recall == (0.5, 0.5, 0.5)
    assert found.overall.session_recall == (0.5, 0.5, 0.5)


def test_plain_pairs_will_do() -> None:
    found = evaluate([(conversation(Question("?", ("t0",))), [[("t0", "s0")]])])
    assert found.overall.turn_recall == (1.0, 1.0, 1.0)


def test_table() -> None:
    found = evaluate([(conversation(Question("?", ("t0", "t1", "t2"))), [ranking(0)]), (conversation(name="e"), [])])
    assert found.header() == (
        *("conversation", "questions", "turn@5", "turn@10", "turn@20"),
        *("session@5", "session@10", "session@20"),
    )
    assert found.rows[0].cells() == ("c", "1", "0.333", "0.333", "0.333", "1.000", "1.000", "1.000")
    assert found.rows[1].cells() == ("e", "0", "–", "–", "–", "–", "–", "–")
    assert found.overall.cells()[0] == "overall"


def test_nothing_to_score() -> None:
    found = evaluate([])
    assert isinstance(found, Evaluation)
    assert (found.rows, found.overall.questions) == ((), 0)
    assert all(math.isnan(value) for value in found.overall.turn_recall)


def test_misuse_is_refused() -> None:
    asked = conversation(Question("?", ("t0",)), Question("!", ("t1",)))
    with pytest.raises(InvalidArgument, match="1 rankings for 2 questions of 'c'"):
        evaluate([(asked, [ranking(0)])])
    for ks in ((), (0,), (5, -1)):
        with pytest.raises(InvalidArgument, match="at least 1"):
            evaluate([], ks=ks)
