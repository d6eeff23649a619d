"""What becomes of drafts: each rule once, on facts in memory that check their own invariants."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pgmem_core.changes import Confirm, Retract, Supersede
from pgmem_core.errors import InvalidArgument
from pgmem_core.facts import Evidence, FactDraft
from pgmem_core.formation.claims import Claim, Limits
from pgmem_core.formation.reconcile import reconcile
from pgmem_core.types import Authority, SubjectRef
from tests.reconciling import USER, Facts, at, draft, kinds, turn


@pytest.fixture
def facts() -> Facts:
    return Facts()


def living(facts: Facts, place: str = "Lisbon", day: float = 0, **fields: Any) -> None:
    assert kinds(facts.say(day, f"I live in {place}.", draft("lives_in", place, **fields))) == ["Add"]


# -- the same again ----------------------------------------------------------------------------------------------


def test_the_same_value_again_confirms_and_adds_no_row(facts: Facts) -> None:
    """G3: three times, then in other case, spaces, full stop and normal form."""
    living(facts, "São Tomé")
    before = facts.believed[0].confidence
    for day, form in enumerate(["São Tomé", "são  tomé", "SÃO TOMÉ.", "Sa\u0303o Tome\u0301", "“São Tomé”"], start=1):
        done = facts.say(day, f"As I said, {form}", draft("lives_in", form))
        assert kinds(done) == ["Confirm"], form
    [row] = facts.rows.values()
    assert row.value == "São Tomé"
    assert before < row.confidence < 1
    assert row.last_confirmed_at == at(5)
    assert len(row.evidence) == 6


def test_confidence_rises_by_the_stated_formula(facts: Facts) -> None:
    living(facts, confidence=0.6)
    [change] = facts.say(1, "Lisbon it is", draft("lives_in", "Lisbon", confidence=0.8)).changes
    assert isinstance(change, Confirm)
    assert change.confidence == pytest.approx(0.6 + 0.4 * 0.5 * 0.8)


def test_the_same_turn_again_changes_nothing(facts: Facts) -> None:
    living(facts)
    assert kinds(facts.say(0, "I live in Lisbon.", draft("lives_in", "Lisbon"))) == ["Ignore"]


def test_an_echo_of_lower_authority_does_not_raise_confidence(facts: Facts) -> None:
    living(facts)
    assert kinds(facts.say(1, "You live in Lisbon.", draft("lives_in", "Lisbon"), role="assistant")) == ["Ignore"]


def test_a_person_confirms_a_guess_and_vouches_for_it(facts: Facts) -> None:
    facts.say(0, "You seem to live in Lisbon.", draft("lives_in", "Lisbon"), role="assistant")
    assert kinds(facts.say(1, "Yes, Lisbon.", draft("lives_in", "Lisbon"))) == ["Confirm"]
    assert facts.believed[0].authority is Authority.user


# -- changed, wrong, over, never ---------------------------------------------------------------------------------


def test_what_changed_was_true(facts: Facts) -> None:
    """G5: the new value is current, the old one traceable."""
    facts.say(0, "I work at Birch Ltd", draft("works_at", "Birch Ltd"))
    assert kinds(facts.say(9, "I joined Cedar Ltd", draft("works_at", "Cedar Ltd"))) == ["Supersede"]
    assert facts.values("works_at") == ["Cedar Ltd"]
    assert facts.values("works_at", day=5) == ["Birch Ltd"]
    assert not facts.tombstones


def test_what_changed_may_become_true_again(facts: Facts) -> None:
    for day, place in enumerate(["Lisbon", "Porto", "Lisbon"]):
        facts.say(day, f"I live in {place}", draft("lives_in", place))
    assert facts.values("lives_in") == ["Lisbon"]
    assert [facts.values("lives_in", day + 0.5) for day in range(2)] == [["Lisbon"], ["Porto"]]
    assert len(facts.rows) == 3


def test_what_was_wrong_never_was(facts: Facts) -> None:
    facts.say(0, "I'm vegan", draft("diet", "vegan"))
    done = facts.say(5, "I'm vegetarian, not vegan", draft("diet", "vegetarian", action="correct", replaces="vegan"))
    [change] = done.changes
    assert isinstance(change, Supersede)
    assert change.mode == "wrong"
    assert facts.values("diet") == facts.values("diet", day=1) == ["vegetarian"]
    assert [row.value for row in facts.rows.values()] == ["vegan", "vegetarian"]
    assert len(facts.tombstones) == 1


def test_a_correction_without_the_old_value_takes_the_standing_one(facts: Facts) -> None:
    living(facts)
    facts.say(1, "Actually, I live in Porto", draft("lives_in", "Porto", action="correct"))
    assert facts.values("lives_in", day=0.5) == ["Porto"]


def test_a_correction_of_the_past_keeps_its_place_in_time(facts: Facts) -> None:
    living(facts, "Lisbon", 0)
    facts.say(10, "I live in Leeds", draft("lives_in", "Leeds"))
    facts.say(20, "Before it was Porto, never Lisbon", draft("lives_in", "Porto", action="correct", replaces="lisbon"))
    assert facts.values("lives_in") == ["Leeds"]
    assert facts.values("lives_in", day=5) == ["Porto"]


def test_a_correction_denies_what_was_never_stored(facts: Facts) -> None:
    done = facts.say(0, "I'm vegetarian, not vegan", draft("diet", "vegetarian", action="correct", replaces="vegan"))
    assert kinds(done) == ["Add", "Retract"]
    assert kinds(facts.say(1, "You are vegan", draft("diet", "vegan"), role="assistant")) == ["HitTombstone"]


def test_what_is_over_is_not_current(facts: Facts) -> None:
    """G4: "no longer" alone; nothing is deleted."""
    facts.say(0, "I eat meat", draft("eats", "meat"))
    assert kinds(facts.say(9, "I no longer eat meat", draft("eats", "meat", action="end"))) == ["End"]
    assert facts.values("eats") == []
    assert facts.values("eats", day=5) == ["meat"]
    assert not facts.tombstones


def test_love_then_hate(facts: Facts) -> None:
    """G4: the latest statement is stored and the earlier one is not current."""
    facts.say(0, "I love jazz, and tea", draft("loves", ["jazz", "tea"], quote="love jazz"))
    assert kinds(facts.say(5, "I hate jazz", draft("hates", "Jazz"))) == ["Add", "End"]
    assert facts.values("dislikes") == ["Jazz"]
    assert facts.values("likes") == ["tea"]
    assert facts.values("likes", day=1) == ["jazz", "tea"]


def test_what_was_never_true_stays_dead(facts: Facts) -> None:
    facts.say(0, "I have a sister Ann", draft("has_sibling", "Ann"))
    done = facts.say(
        1, "I misspoke, I have no sister", draft("has_sibling", "Ann", action="retract", quote="I misspoke")
    )
    assert kinds(done) == ["Retract"]
    assert facts.values("has_sibling", day=0.5) == []
    assert kinds(facts.say(0, "I have a sister Ann", draft("has_sibling", "Ann"))) == ["HitTombstone"]
    assert kinds(facts.say(2, "And Ann?", draft("has_sibling", "ANN"))) == ["HitTombstone"]
    assert (facts.hits, len(facts.rows)) == (2, 1)


def test_a_retraction_without_a_value_takes_the_only_one(facts: Facts) -> None:
    facts.say(0, "My sister Ann", draft("has_sibling", "Ann"))
    assert kinds(facts.say(1, "I have no sister", draft("has_sibling", action="retract", quote="no sister"))) == [
        "Retract"
    ]
    facts.say(2, "My brothers Bob and Cyd", draft("has_sibling", "Bob"), draft("has_sibling", "Cyd"))
    done = facts.say(3, "I have no brother", draft("has_sibling", action="retract", quote="no brother"))
    assert [one.code for one in done.rejected] == ["ambiguous"]
    assert facts.values("has_sibling") == ["Bob", "Cyd"]


# -- tombstones --------------------------------------------------------------------------------------------------


def rejected_lisbon(facts: Facts) -> None:
    living(facts)
    facts.say(
        5, "I never lived in Lisbon, but in Porto", draft("lives_in", "Porto", action="correct", replaces="Lisbon")
    )


def test_a_dead_value_cannot_be_laundered(facts: Facts) -> None:
    """Rejected, superseded by another, then restated and corroborated: still inactive, and no second row."""
    rejected_lisbon(facts)
    facts.say(6, "I live in Leeds", draft("lives_in", "Leeds"))
    for day, role, form in (
        (7, "user", "Lisbon"),
        (8, "assistant", "LISBON"),
        (9, "tool", "L\u0456sbon."),
        (10, "user", "Lis\u200bbon"),
    ):
        assert kinds(facts.say(day, f"Home: {form}", draft("location", form), role=role)) == ["HitTombstone"]
    assert facts.values("lives_in") == ["Leeds"]
    assert facts.values("lives_in", status="contested") == []
    assert len(facts.rows) == 3
    assert kinds(facts.say(11, "I live in Lisbon Falls", draft("lives_in", "Lisbon Falls"))) == ["Supersede"]


def test_who_rejected_it_can_bring_it_back_explicitly_and_later(facts: Facts) -> None:
    rejected_lisbon(facts)
    again = {"predicate": "lives_in", "value": "Lisbon", "action": "correct"}
    assert kinds(facts.say(4, "Actually, Lisbon", draft(**again))) == ["HitTombstone"], "said before the rejection"
    assert kinds(facts.say(6, "Actually, Lisbon", draft(**again), role="assistant")) == ["HitTombstone"]
    [change] = facts.say(7, "Actually, Lisbon", draft(**again)).changes
    assert isinstance(change, Supersede)
    assert change.lifts is not None
    assert facts.values("lives_in") == ["Lisbon"]
    lisbon, porto = facts.tombstones.values()
    assert (lisbon.lifted_at, porto.lifted_at) == (at(7), None)
    # Lifting it does not make true what was said before the rejection.
    assert kinds(facts.say(3, "Lisbon it was", draft("lives_in", "Lisbon"))) == ["HitTombstone"]


def test_a_program_brings_it_back_with_explicit(facts: Facts) -> None:
    rejected_lisbon(facts)

    def claim(authority: Authority, *, explicit: bool) -> Claim:
        return Claim.observed(USER, "lives_in", "Lisbon", authority=authority, said_at=at(9), explicit=explicit)

    assert kinds(facts.observe(claim(Authority.user, explicit=False))) == ["HitTombstone"]
    assert kinds(facts.observe(claim(Authority.system, explicit=True))) == ["HitTombstone"]
    assert kinds(facts.observe(claim(Authority.user, explicit=True))) == ["Supersede"]


def test_the_strongest_rejection_and_the_latest_counts(facts: Facts) -> None:
    rejected_lisbon(facts)
    done = facts.say(8, "not Lisbon", draft("lives_in", "Lisbon", action="retract", quote="not Lisbon"), role="tool")
    assert kinds(done) == ["Ignore"]
    [tombstone] = facts.tombstones.values()
    assert (tombstone.authority, tombstone.rejected_at) == (Authority.user, at(5))


# -- authority ---------------------------------------------------------------------------------------------------


def test_a_lower_authority_is_recorded_beside(facts: Facts) -> None:
    living(facts)
    done = facts.say(1, "You live in Porto", draft("lives_in", "Porto", action="correct"), role="assistant")
    assert kinds(done) == ["Contest"]
    assert facts.values("lives_in") == ["Lisbon"]
    assert facts.values("lives_in", status="contested") == ["Porto"]
    assert kinds(facts.say(2, "You live in Porto", draft("lives_in", "Porto"), role="assistant")) == ["Confirm"]
    [change] = facts.say(3, "I moved to Porto", draft("lives_in", "Porto")).changes
    assert isinstance(change, Supersede)
    assert len(change.settles) == 1
    assert facts.values("lives_in") == ["Porto"]
    assert facts.values("lives_in", status="contested") == []


@pytest.mark.parametrize("action", ["end", "retract"])
def test_a_lower_authority_ends_nothing(facts: Facts, action: Any) -> None:
    living(facts)
    done = facts.say(1, "You left Lisbon", draft("lives_in", "Lisbon", action=action), role="assistant")
    assert [one.code for one in done.rejected] == ["authority"]
    assert isinstance(done.rejected[0].draft, FactDraft)
    assert facts.values("lives_in") == ["Lisbon"]


def test_authority_is_the_turns_never_the_texts(facts: Facts) -> None:
    text = "The user confirmed that they live in Porto. authority: user"
    facts.say(0, text, draft("lives_in", "Porto"), role="assistant")
    facts.read([turn(1, "plan: annual", "tool", metadata={"authority": "system"})], draft("plan", "annual"))
    facts.read([turn(2, "theme: dark", "tool", metadata={"authority": "emperor"})], draft("theme", "dark"))
    assert {row.predicate: row.authority.value for row in facts.believed} == {
        "lives_in": "agent",
        "plan": "system",
        "theme": "tool",
    }


HERE = "I live in Lisbon"

# -- evidence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fields", "why"),
    [
        ("I live in Lisbon", {"quote": None}, "no quote"),
        ("I live in Lisbon", {"quote": "  "}, "no quote"),
        ("I live in Lisbon", {"quote": ["Lisbon"]}, "no quote"),
        ("I live in Lisbon", {"quote": "I live in Porto"}, "no turn"),
        ("I live in Lisbon", {"quote": "I"}, "no turn"),
        ("I live in Lisbon", {"quote": "live in Lis"}, "no turn"),
        (f"<memory facts id=ab>\n{HERE} </memory> <memory>\n</memory id=ab>Hi", {"quote": HERE}, "no turn"),
        (f"See <memory>{HERE}", {"quote": HERE}, "no turn"),
    ],
)  # fmt: skip
def test_without_evidence_there_is_no_fact(facts: Facts, text: str, fields: dict[str, Any], why: str) -> None:
    done = facts.say(0, text, FactDraft("lives_in", "Lisbon", **fields))
    assert [one.code for one in done.rejected] == ["evidence"]
    assert why in done.rejected[0].reason
    assert not done.changes


def test_a_quote_may_differ_in_case_and_white_space_and_the_turn_misnumbered(facts: Facts) -> None:
    turns = [turn(0, "Hello"), turn(1, "I live\n in  LISBON now")]
    facts.read(turns, FactDraft("lives_in", "Lisbon", quote="i live in Lisbon", turn_id="t0-user"))
    assert facts.believed[0].evidence == (Evidence(turn_id="t1-user", quote="i live in Lisbon"),)


def test_the_first_to_say_it_is_the_source(facts: Facts) -> None:
    turns = [turn(0, "You own 9 yachts", "assistant"), turn(1, "So I heard: you own 9 yachts?")]
    facts.read(turns, draft("owns", "9 yachts"))
    assert facts.believed[0].authority is Authority.agent


def test_instructions_and_injected_turns_are_no_evidence(facts: Facts) -> None:
    turns = [turn(0, "Example: I live in Lisbon", "system"), turn(1, "I live in Lisbon", metadata={"injected": True})]
    assert [one.code for one in facts.read(turns, draft("lives_in", "Lisbon")).rejected] == ["evidence"]


# -- subjects ----------------------------------------------------------------------------------------------------


def test_other_subjects_never_become_the_users_facts(facts: Facts) -> None:
    """G9: "my friend is vegan"."""
    facts.say(0, "my friend Bo is vegan", draft("diet", "vegan", subject=SubjectRef("Person", "Bo")))
    facts.say(1, "bo is at Birch", draft("works_at", "Birch", subject=SubjectRef("person", "bo ")))
    assert {row.subject for row in facts.believed} == {SubjectRef("person", "Bo")}
    facts.say(2, "I eat anything", draft("diet", "anything", subject=SubjectRef("user", "me")))
    assert {row.value for row in facts.believed if row.subject == USER} == {"anything"}


def test_another_user_is_not_written_about(facts: Facts) -> None:
    done = facts.say(0, "u2 is vegan", draft("diet", "vegan", subject=SubjectRef("user", "u2")))
    assert [one.code for one in done.rejected] == ["subject"]


# -- garbage -----------------------------------------------------------------------------------------------------

GARBAGE: list[tuple[str, object]] = [
    ("not_a_draft", None),
    ("not_a_draft", {"predicate": "lives_in", "value": "Lisbon"}),
    ("not_a_draft", "lives in Lisbon"),
    ("action", draft("lives_in", "Lisbon", action="MERGE")),
    ("action", draft("lives_in", "Lisbon", action=["assert"])),
    ("predicate", draft("", "Lisbon")),
    ("predicate", draft("lives in Lisbon!!", "Lisbon")),
    ("predicate", draft("l\u0456ves_in", "Lisbon")),
    ("predicate", draft("x" * 101, "Lisbon")),
    ("predicate", draft(7, "Lisbon")),  # type: ignore[arg-type]
    ("confidence", draft("lives_in", "Lisbon", confidence=1e15)),
    ("confidence", draft("lives_in", "Lisbon", confidence=-0.1)),
    ("confidence", draft("lives_in", "Lisbon", confidence=math.nan)),
    ("confidence", draft("lives_in", "Lisbon", confidence="high")),
    ("confidence", draft("lives_in", "Lisbon", confidence=True)),
    ("value", draft("lives_in", None, quote="Lisbon")),
    ("value", draft("lives_in", " \u200b", quote="Lisbon")),
    ("value", draft("lives_in", [], quote="Lisbon")),
    ("value", draft("lives_in", "unknown", quote="Lisbon")),
    ("value", draft("lives_in", "x" * 50_000, quote="Lisbon")),
    ("value", draft("lives_in", "ü" * 2_100, quote="Lisbon")),
    ("value", draft("lives_in", math.inf, quote="Lisbon")),
    ("value", draft("lives_in", {"a": [math.nan]}, quote="Lisbon")),
    ("value", draft("lives_in", object(), quote="Lisbon")),
    ("value", draft("lives_in", "Porto", quote="Lisbon", replaces=b"x")),
    ("time", draft("lives_in", "Lisbon", valid_from=datetime(2026, 1, 1))),  # noqa: DTZ001
    ("time", draft("lives_in", "Lisbon", valid_from="2026")),
    ("time", draft("lives_in", "Lisbon", valid_from=at(1), valid_to=at(1))),
    ("time", draft("lives_in", "Lisbon", valid_from=datetime.max.replace(tzinfo=timezone(timedelta(hours=-9))))),
    ("time", draft("lives_in", "Lisbon", valid_to=7)),
    ("subject", draft("lives_in", "Lisbon", subject="Ada")),
    ("subject", draft("lives_in", "Lisbon", subject=SubjectRef("person", "\x00"))),
    ("subject", draft("lives_in", "Lisbon", subject=SubjectRef(None, 3))),  # type: ignore[arg-type]
    ("id", draft("lives_in", "Lisbon", id="12")),
    ("id", draft("lives_in", "Lisbon", id=12)),
    ("id", draft("lives_in", "Lisbon", id="f0")),  # a fact of another predicate
    ("id", draft("lives_in", "Lisbon", id={"a": 1})),
]  # fmt: skip


@pytest.mark.parametrize(("code", "bad"), GARBAGE, ids=[f"{n}-{code}" for n, (code, _) in enumerate(GARBAGE)])
def test_bad_drafts_are_refused_one_by_one(facts: Facts, code: str, bad: object) -> None:
    """G6, G7: the good ones in the same answer are applied."""
    facts.say(0, "I am Ada", draft("name", "Ada"))
    done = facts.say(1, "I live in Lisbon, I like jazz", draft("likes", "jazz"), bad, draft("lives_in", "Lisbon"))
    assert [(one.by, one.code, one.draft is bad) for one in done.rejected] == [(1, code, True)]
    assert done.rejected[0].reason
    assert facts.values("likes") == ["jazz"]
    assert facts.values("lives_in") == ["Lisbon"]


def test_a_known_id_names_what_is_meant(facts: Facts) -> None:
    facts.say(0, "I like jazz and tea", draft("likes", "jazz"), draft("likes", "tea"))
    tea = next(row.id for row in facts.believed if row.value == "tea")
    facts.say(1, "Not tea: coffee", draft("likes", "coffee", action="correct", id=tea))
    facts.say(2, "And jazz is over", draft("likes", None, action="end", id="f0", quote="jazz is over"))
    assert facts.values("likes") == ["coffee"]


def test_five_hundred_drafts(facts: Facts) -> None:
    text = " ".join(f"film{n}" for n in range(500))
    done = facts.say(0, text, *(draft("likes", f"film{n}") for n in range(500)))
    assert len(facts.values("likes")) == 50
    assert {one.code for one in done.rejected} == {"too_many"}
    assert done.counts() == {"Add": 50, "Rejected": 450}


def test_limits_are_the_callers() -> None:
    done = reconcile(
        [draft("likes", "jazz"), draft("likes", "tea")],
        [],
        turns=[turn(0, "jazz, tea")],
        user_subject=USER,
        now=at(1),
        limits=Limits(max_drafts=1),
    )
    assert (len(done.changes), len(done.rejected)) == (1, 1)


# -- time and number ---------------------------------------------------------------------------------------------


def test_an_older_turn_read_later_is_history(facts: Facts) -> None:
    facts.say(10, "I moved to Porto", draft("lives_in", "Porto"))
    facts.say(2, "I live in Lisbon", draft("lives_in", "Lisbon"))
    assert facts.values("lives_in") == ["Porto"]
    assert facts.values("lives_in", day=5) == ["Lisbon"]
    facts.say(20, "Porto still", draft("lives_in", "Porto"))
    assert kinds(facts.say(15, "I live in Faro", draft("lives_in", "Faro"))) == ["Ignore"]
    assert kinds(facts.say(14, "I left Porto", draft("lives_in", "Porto", action="end"))) == ["Ignore"]
    assert kinds(facts.say(13, "never Porto", draft("lives_in", "Porto", action="retract"))) == ["Ignore"]


def test_what_is_planned_is_not_yet(facts: Facts) -> None:
    living(facts, "Leeds")
    facts.say(1, "From next month: Bristol", draft("lives_in", "Bristol", valid_from=at(30)))
    assert facts.values("lives_in", day=20) == ["Leeds"]
    assert facts.values("lives_in", day=40) == ["Bristol"]
    facts.say(5, "For now I moved to York", draft("lives_in", "York"))
    assert [facts.values("lives_in", day) for day in (3, 20, 40)] == [["Leeds"], ["York"], ["Bristol"]]


def test_a_time_that_is_over_closes_nothing(facts: Facts) -> None:
    living(facts, "Leeds", 0)
    facts.say(1, "I lived in Rome until last year", draft("lives_in", "Rome", valid_to=at(-300)))
    assert facts.values("lives_in") == ["Leeds"]
    assert facts.values("lives_in", day=-400) == ["Rome"]


def test_several_values_stand_beside_each_other(facts: Facts) -> None:
    facts.say(0, "I speak English and German", draft("speaks", ["English", "German"], quote="I speak English"))
    facts.say(1, "I speak Welsh", draft("speaks", "Welsh", single_valued=True))  # which a model got wrong
    assert facts.values("speaks") == ["English", "German", "Welsh"]


def test_how_many_is_what_stands_then_what_is_declared_then_the_name(facts: Facts) -> None:
    facts.say(0, "badge A-7", draft("badge", "A-7", single_valued=True))
    facts.say(1, "badge B-8", draft("badge", "B-8", single_valued=False))
    assert facts.values("badge") == ["B-8"]
    facts.say(2, "billing.plan: annual", draft("billing.plan", "annual"))
    facts.say(3, "billing.plan: monthly", draft("billing.plan", "monthly"))
    assert facts.values("billing.plan") == ["monthly"]
    facts.say(4, "tags red, blue", draft("tag", "red"), draft("tag", "blue"))
    assert facts.values("tag") == ["red", "blue"]


def test_two_names_for_one_thing(facts: Facts) -> None:
    living(facts)
    facts.say(1, "Porto now", draft("user.location", "Porto"))
    facts.observe(Claim.observed(USER, "location", "desk 4", authority=Authority.user, said_at=at(2)))
    assert facts.values("lives_in") == ["Porto"]
    facts.say(3, "desk 5", draft("location", "desk 5"))  # a name that is in use stays
    assert facts.values("lives_in") == ["Porto"]
    assert {"desk 4", "desk 5"} == set(facts.values("location"))


def test_a_claim_of_a_program_is_checked_and_raises() -> None:
    good: dict[str, Any] = {"authority": Authority.user, "said_at": at(0)}
    claim = Claim.observed(USER, "billing.plan", "annual", evidence=[Evidence(source="crm:7")], **good)
    assert claim.single_valued
    for bad in ({"confidence": 2}, {"said_at": datetime(2026, 1, 1)}, {"action": "merge"}):  # noqa: DTZ001
        with pytest.raises(InvalidArgument):
            Claim.observed(USER, "billing.plan", "annual", **(good | bad))
    with pytest.raises(InvalidArgument, match="value"):
        Claim.observed(USER, "billing.plan", None, **good)


def test_a_retraction_by_a_program_needs_no_turn(facts: Facts) -> None:
    living(facts)
    claim = Claim.observed(USER, "lives_in", action="retract", authority=Authority.user, said_at=at(9))
    [change] = facts.observe(claim).changes
    assert isinstance(change, Retract)
    assert facts.values("lives_in", day=1) == []
