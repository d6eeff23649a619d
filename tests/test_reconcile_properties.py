"""What holds whatever is said, in whatever order, by whom. The store checks its invariants after each change."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgmem_core.changes import Confirm, Contest, End, HitTombstone, Ignore, Retract, Supersede
from pgmem_core.facts import FactDraft, outranks, strength
from pgmem_core.folding import value_key
from pgmem_core.formation.evidence import authority_of
from pgmem_core.types import Authority, Turn
from tests.reconciling import Facts, at, turn

PREDICATES = ("diet", "likes", "dislikes", "badge")
VALUES = ("vegan", "Vegan.", "vegetarian", "meat", "fish")
WHERE = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

days = st.integers(0, 12)
moments = st.none() | st.builds(at, st.integers(-5, 25))


@st.composite
def statements(draw: st.DrawFn) -> tuple[Turn, FactDraft]:
    """A turn and the one draft that was read in it."""
    value = draw(st.sampled_from(VALUES))
    start, stop = draw(st.just(None) | moments), draw(st.none() | st.none() | moments)
    if start is not None and stop is not None and stop <= start:
        stop = None
    role = draw(st.sampled_from(("user", "assistant", "tool")))
    number = draw(st.integers(0, 999))
    said = turn(draw(days), f"{value} {number}", role, id=f"t{number}")
    action: Any = draw(st.sampled_from(("assert", "assert", "assert", "correct", "end", "retract")))
    return said, FactDraft(
        predicate=draw(st.sampled_from(PREDICATES)),
        value=None if action in ("end", "retract") and draw(st.booleans()) else value,
        action=action,
        replaces=draw(st.none() | st.sampled_from(VALUES)) if action == "correct" else None,
        single_valued=draw(st.sampled_from((None, True, False))),
        confidence=draw(st.none() | st.floats(0, 1)),
        valid_from=start,
        valid_to=stop,
        turn_id=said.id,
        quote=said.text,
    )


stories = st.lists(statements(), min_size=1, max_size=10, unique_by=lambda one: one[0].id)
# Each statement at a time of its own, so that its order is what the drafts say and not how they were listed.
distinct = st.lists(
    statements(), min_size=1, max_size=8, unique_by=(lambda one: one[0].created_at, lambda one: one[0].id)
)


def read_all(facts: Facts, story: list[tuple[Turn, FactDraft]]) -> None:
    facts.read([said for said, _ in story], *(draft for _, draft in story))


def state(facts: Facts) -> list[Any]:
    """Return what is believed, without the ids and the order in which it came."""
    rows = sorted(
        (
            row.predicate,
            str(row.value),
            row.authority.value,
            row.status,
            str(row.valid_from),
            str(row.valid_to),
            round(row.confidence, 5),
            row.single_valued,
        )
        for row in facts.believed
    )
    stones = facts.tombstones.items()
    return rows + sorted((place[1], stone.authority.value, str(stone.rejected_at)) for place, stone in stones)


@WHERE
@given(story=stories, cuts=st.lists(st.integers(0, 10)))
def test_invariants_hold_however_it_is_cut_into_batches(story: list[tuple[Turn, FactDraft]], cuts: list[int]) -> None:
    """Never two values of a single-valued predicate at once, never a dead value alive: `Facts.check`."""
    facts = Facts()
    edges = sorted({0, len(story), *(cut for cut in cuts if cut < len(story))})
    for first, last in itertools.pairwise(edges):
        read_all(facts, story[first:last])


@WHERE
@given(story=distinct, who=st.sampled_from(("the user says anything", "anybody asserts")))
def test_the_same_again_adds_nothing(story: list[tuple[Turn, FactDraft]], who: str) -> None:
    """Promised for one statement a time, each for its own time on, of one speaker or without denials."""
    plain = [(said, replace(draft, valid_from=None, valid_to=None)) for said, draft in story]
    if who == "the user says anything":
        plain = [(replace(said, role="user"), draft) for said, draft in plain]
    else:
        plain = [(said, replace(draft, action="assert", value=draft.value or "meat")) for said, draft in plain]
    facts = Facts()
    read_all(facts, plain)
    before = state(facts)
    for _ in range(2):
        done = facts.read([said for said, _ in plain], *(draft for _, draft in plain))
        assert {type(change) for change in done.changes} <= {Confirm, Ignore, HitTombstone}, done.changes
        assert state(facts) == before


@WHERE
@given(story=distinct, seed=st.integers())
def test_the_order_of_the_drafts_does_not_matter(story: list[tuple[Turn, FactDraft]], seed: int) -> None:
    one, other = Facts(), Facts()
    read_all(one, story)
    shuffled = random.Random(seed).sample(story, len(story))
    other.read([said for said, _ in story], *(draft for _, draft in shuffled))
    assert state(one) == state(other)


@WHERE
@given(story=stories)
def test_a_lower_authority_takes_nothing_from_a_higher_one(story: list[tuple[Turn, FactDraft]]) -> None:
    facts = Facts()
    for said, draft in story:
        before = {row.id: row for row in facts.believed}
        facts.read([said], draft)
        speaker = authority_of(said)
        assert speaker is not None
        for row_id, row in before.items():
            now = facts.rows[row_id]
            if row.status == "accepted" and outranks(row.authority, speaker):
                assert replace(now, evidence=()) == replace(row, evidence=()), f"{speaker} changed {row}"


@WHERE
@given(story=stories)
def test_what_the_user_rejected_no_one_else_revives(story: list[tuple[Turn, FactDraft]]) -> None:
    facts = Facts()
    facts.say(-1, "I am no vegan", FactDraft("diet", "vegan", action="retract", quote="I am no vegan"))
    assert len(facts.tombstones) == 1
    for said, draft in story:
        explicit = draft.action == "correct" and said.role == "user"
        facts.read([said], replace(draft, action="assert", value=draft.value or "vegan") if explicit else draft)
    assert all(row.value_key != value_key("vegan") for row in facts.believed if row.predicate == "diet")


@WHERE
@given(story=stories)
def test_nothing_is_lost_but_by_retraction_or_correction(story: list[tuple[Turn, FactDraft]]) -> None:
    """Without "correct" and "retract", whatever was accepted from a user is still believed, for its time."""
    facts = Facts()
    gentle = [(said, replace(draft, action="assert")) for said, draft in story if draft.value is not None]
    for said, draft in gentle:
        done = facts.read([said], draft)
        for change in done.changes:
            assert not isinstance(change, Retract)
            assert not (isinstance(change, Supersede) and change.mode == "wrong")
            if isinstance(change, Contest):
                stronger = facts.rows.get(change.against)  # None: a ref, the row that this draft inserted
                assert strength(stronger.authority if stronger else Authority.user) >= strength(change.new.authority)
            if isinstance(change, End):
                assert facts.rows[change.fact_id].predicate in ("likes", "dislikes")
    accepted = [row for row in facts.rows.values() if row.authority is Authority.user and row.status == "accepted"]
    assert all(row.superseded_at is None for row in accepted)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
JUNK: st.SearchStrategy[Any] = st.builds(
    FactDraft,
    predicate=st.text() | st.integers() | st.none(),
    value=JSON,
    subject=st.none() | st.text(),
    action=st.sampled_from(["assert", "end", "MERGE", None, 3]),
    replaces=JSON,
    single_valued=st.none() | st.text(),
    confidence=st.none() | st.floats() | st.text(),
    valid_from=st.none() | st.datetimes() | st.text(),
    valid_to=st.none() | st.datetimes(timezones=st.timezones()),
    turn_id=st.none() | st.integers(),
    quote=st.none() | st.text() | st.just("I live in Lisbon"),
    id=st.none() | JSON,
)


@WHERE
@given(junk=st.lists(JUNK | JSON, max_size=8))
def test_garbage_never_raises(junk: list[object]) -> None:
    facts = Facts()
    done = facts.say(0, "I live in Lisbon", *junk, FactDraft("lives_in", "Porto", quote="I live in Lisbon"))
    assert {one.by for one in done.rejected} | {change.by for change in done.changes} >= set(range(len(junk) + 1))
