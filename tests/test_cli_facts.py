"""`pgmem facts`, `history` and `review` on a real Postgres."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgmem_core import Authority, BundledEmbedder, PgMem, SubjectRef, cli
from pgmem_core.facts import Evidence

CUSTOMER = SubjectRef("customer", "c-7")
LONG_AGO = datetime(2024, 3, 1, tzinfo=UTC)


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def pgmem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dsn: str) -> Any:
    """Run a command in this process, on the test's database."""
    for name in ("PGMEM_EMBEDDER", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGMEM_DSN", dsn)

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = cli.run(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def mem(dsn: str) -> Iterator[PgMem]:
    """Ada was vegan, is vegetarian, lived in Lisbon, lives in Porto; a model thinks it is Rome."""
    with PgMem(dsn, embedder=BundledEmbedder()) as one:
        session = one.session.create("s1", user_id="ada")
        said = session.add_turn("user", "I am vegan, and I live in Lisbon", name="Ada")
        session.observe("diet", "vegan", authority="user", evidence=[said])
        session.observe("lives_in", "Lisbon", authority="user", valid_from=LONG_AGO,
                        evidence=[Evidence(turn_id=said.id, quote="I live in Lisbon")])  # fmt: skip
        session.correct("diet", "vegetarian", authority="user", evidence="a phone call")
        session.observe("lives_in", "Porto", authority="user", valid_from=LONG_AGO + timedelta(days=365))
        session.observe("lives_in", "Rome", authority="agent", evidence="a guess")
        session.observe("plan", "annual", subject=CUSTOMER, authority="system", confidence=0.4)
        yield one


def facts(ran: Ran) -> list[tuple[str, Any]]:
    assert ran.code == 0
    return [(fact["predicate"], fact["value"]) for fact in ran.document["facts"]]


def test_facts_now_then_and_as_they_were_known(pgmem: Any, mem: PgMem) -> None:
    before = mem.history(SubjectRef("user", "ada"), "diet")[0].recorded_at
    assert facts(pgmem("facts", "--user", "ada", "--subject", "user:ada", "--json")) == [
        ("diet", "vegetarian"), ("lives_in", "Porto"),
    ]  # fmt: skip
    assert facts(pgmem("facts", "--user-id", "ada", "--predicate", "plan", "--json")) == [("plan", "annual")]
    assert facts(pgmem("facts", "--subject", "customer:c-7", "--json")) == [("plan", "annual")]
    assert facts(pgmem("facts", "--user", "bob", "--json")) == []
    for when in ("2024-06-01", "2024-06-01T12:00:00", "2024-06-01T12:00:00+02:00"):
        assert facts(pgmem("facts", "--user", "ada", "--valid-at", when, "--json")) == [("lives_in", "Lisbon")], when
    known = pgmem("facts", "--user", "ada", "--known-at", before.isoformat(), "--json")
    assert facts(known) == [("diet", "vegan")]
    [fact] = known.document["facts"]
    assert fact["evidence"][0]["said"]["text"] == "I am vegan, and I live in Lisbon"
    assert fact["authority"] == "user"


def test_facts_for_people(pgmem: Any, mem: PgMem) -> None:
    ran = pgmem("facts", "--user", "ada")
    assert ran.code == 0
    for part in ("diet: vegetarian", "a phone call", "customer c-7 · plan:", "0.40", "system", "3 facts"):
        assert part in " ".join(ran.out.split()), part
    assert "vegan " not in ran.out
    assert "no facts" in pgmem("facts", "--user", "bob").out


def test_history_tells_who_said_it_and_when_it_was_believed(pgmem: Any, mem: PgMem) -> None:
    ran = pgmem("history", "--user", "ada", "--predicate", "lives_in")
    assert ran.code == 0
    lisbon, _, rest = ran.out.partition("lives_in: Porto")
    assert "lives_in: Lisbon" in lisbon
    assert "said by   user" in lisbon
    assert "evidence  Ada, " in lisbon
    assert "“I live in Lisbon”" in lisbon
    assert "since 2024-03-01 00:00:00 until 2025-03-01 00:00:00" in ran.out
    assert "contested" in rest
    assert "diet" not in ran.out
    diet = pgmem("history", "--subject", "user:ada", "--predicate", "diet")
    assert "diet: vegan\n" in diet.out
    assert "session s1: “I am vegan, and I live in Lisbon”" in diet.out
    wrong, right = pgmem("history", "--user", "ada", "--predicate", "diet", "--json").document["history"]
    assert (wrong["value"], right["value"]) == ("vegan", "vegetarian")
    assert wrong["superseded_by"] == right["id"]
    assert wrong["superseded_at"] is not None
    assert "nothing was ever believed" in pgmem("history", "--user", "bob").out


def test_review_lists_and_decides(pgmem: Any, mem: PgMem) -> None:
    items = pgmem("review", "--json").document["items"]
    assert [(one["status"], one["value"]) for one in items] == [
        ("contested", "Rome"), ("low_confidence", "annual"), ("rejected", "vegan"),
    ]  # fmt: skip
    rome, annual, vegan = items
    listed = pgmem("review", "--user", "ada").out
    for part in ("contested: lives_in: Rome", "evidence  a guess", "against   lives_in: Porto", "rejected by user"):
        assert part in listed, part
    assert rome["id"] in listed
    only = pgmem("review", "--status", "low-confidence", "--json").document["items"]
    assert [one["id"] for one in only] == [annual["id"]]

    done = pgmem("review", "--confirm", rome["id"], "--by", "eve", "--note", "she called")
    assert (done.code, done.out) == (0, "confirmed by eve: user ada · lives_in: Rome\n")
    assert facts(pgmem("facts", "--user", "ada", "--predicate", "lives_in", "--json")) == [("lives_in", "Rome")]
    assert "decided   confirm by eve" in pgmem("history", "--user", "ada").out
    assert pgmem("review", "--reject", annual["id"]).code == 0
    assert facts(pgmem("facts", "--subject", "customer:c-7", "--json")) == []
    reopened = pgmem("review", "--reopen", vegan["id"], "--by", "eve", "--json").document
    assert (reopened["decision"], reopened["decided_by"]) == ("reopen", "eve")
    left = pgmem("review", "--json").document["items"]
    assert [(one["status"], one["value"]) for one in left] == [("rejected", "annual")]
    assert left[0]["decisions"][0]["decided_by"]  # the login, where no name was given
    mem.decide(left[0]["id"], "reopen", decided_by="ann", authority=Authority.user)
    assert "nothing to decide" in pgmem("review").out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("facts",), "--user-id or --subject"),
        (("history",), "--user-id or --subject"),
        (("facts", "--subject", "ada"), "kind:id"),
        (("facts", "--user", "ada", "--valid-at", "yesterday"), "--valid-at"),
        (("facts", "--user", "ada", "--known-at", "soon"), "--known-at"),
        (("review", "--status", "dubious"), "--status"),
        (("review", "--confirm", "x", "--reject", "y"), "one of"),
        (("review", "--confirm", "x"), "UUID"),
        (("review", "--confirm", "0190f5fe-0000-7000-8000-000000000000", "--authority", "agent"), "agent"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(pgmem: Any, mem: PgMem, arguments: tuple[str, ...], told: str) -> None:
    ran = pgmem(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


def test_what_is_not_there_is_told(pgmem: Any, mem: PgMem, bare_dsn: str) -> None:
    ran = pgmem("review", "--confirm", "0190f5fe-0000-7000-8000-000000000000")
    assert (ran.code, ran.out) == (1, "")
    assert "no fact or rejected value" in ran.err
    assert pgmem("facts", "--user", "ada", "--dsn", bare_dsn).code == 1  # nothing is set up there, and nothing was
    assert pgmem("facts", "--user", "ada").code == 0


def test_what_others_wrote_cannot_drive_the_terminal(pgmem: Any, mem: PgMem) -> None:
    session = mem.session.get("s1")
    session.observe("likes", "red \x1b[31m text", authority="user", evidence="mail \x1b]0;title\x07")
    for command in ("facts", "history"):
        ran = pgmem(command, "--user", "ada", "--predicate", "likes")
        assert "red" in ran.out
        assert "\x1b" not in ran.out
