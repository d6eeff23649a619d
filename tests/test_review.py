"""Review: what waits for a person, what a decision does, and the record of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgmem_core import Authority, InvalidArgument, NotFound, SubjectRef
from pgmem_core.facts import Evidence, FactDraft
from tests.fix_memory import Face, Maker
from tests.test_policy import Told
from tests.test_semantic import BY_USER, USER, prompt, transaction, values

CUSTOMER = SubjectRef("customer", "c-7")


def rows(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(statement).fetchall()  # type: ignore[arg-type]


async def texts(memory: Face, **how: Any) -> list[tuple[str, str]]:
    return [(item.status, item.text) for item in await memory.review(**how)]


async def contested(memory: Face) -> Any:
    """Ada lives in Lisbon, she says; a model thinks it is Porto."""
    session = await memory.session.open("s1", user_id="u1")
    said = await session.add_turn("user", "I live in Lisbon")
    guess = await session.add_turn("assistant", "You live in Porto, I think")
    await session.observe(
        "lives_in", "Lisbon", **BY_USER, evidence=[said], valid_from=datetime.now(UTC) - timedelta(days=900)
    )
    return await session.observe(
        "lives_in", "Porto", authority="agent", evidence=[Evidence(turn_id=guess.id, quote="live in Porto")]
    )


# -- what is listed --------------------------------------------------------------------------------------------------


async def test_contested_doubtful_and_rejected_are_listed_and_nothing_else(memory: Face) -> None:
    porto = await contested(memory)
    session = await memory.session.open("s1", user_id="u1")
    await session.observe("likes", "jazz", **BY_USER)
    await session.observe("likes", "opera", confidence=0.2)
    await session.observe("diet", "vegan", **BY_USER)
    await session.correct("diet", "vegetarian", **BY_USER)
    assert await texts(memory) == [
        ("contested", "lives_in: Porto"), ("low_confidence", "likes: opera"), ("rejected", "diet: vegan"),
    ]  # fmt: skip
    first, _, last = await memory.review("u1")
    assert (first.id, first.authority, first.subject) == (porto.id, Authority.agent, USER)
    assert [fact.value for fact in first.conflicts] == ["Lisbon"]
    assert first.evidence[0].quote == "live in Porto"
    assert ([fact.value for fact in last.conflicts], last.authority) == (["vegetarian"], Authority.user)
    for status in ("contested", "low_confidence", "rejected"):
        assert [one for one, _ in await texts(memory, status=status)] == [status]
    assert len(await memory.review(limit=2)) == 2
    assert await memory.review("u2") == []
    assert await memory.review(group_id="elsewhere") == []
    with pytest.raises(InvalidArgument, match="contested"):
        await memory.review(status="dubious")


async def test_the_bound_of_doubt_is_a_setting(make_memory: Maker) -> None:
    strict, lax = await make_memory(review_confidence=0.8), await make_memory(review_confidence=0.1)
    session = await strict.session.open("s1", user_id="u1")
    await session.observe("likes", "opera", authority="tool", confidence=0.7)
    await session.observe("likes", "jazz", confidence=0.8)
    assert await texts(strict) == [("low_confidence", "likes: opera")]
    assert await texts(lax) == []


async def test_what_is_over_is_not_listed(memory: Face) -> None:
    session = await memory.session.open("s1", user_id="u1")
    past = datetime.now(UTC) - timedelta(days=9)
    await session.observe("likes", "opera", confidence=0.2, valid_from=past, valid_to=past + timedelta(days=1))
    await session.observe("likes", "folk", confidence=0.2)
    assert await texts(memory) == [("low_confidence", "likes: folk")]


async def test_hits_on_a_rejected_value_are_counted(memory: Face) -> None:
    session = await memory.session.open("s1", user_id="u1")
    await session.retract("has_sibling", "Ada", **BY_USER)  # nobody had claimed it
    for _ in range(3):
        assert await session.observe("has_sibling", "Ada", authority="agent") is None
    [item] = await memory.review("u1")
    assert (item.status, item.value, item.hits) == ("rejected", None, 3)
    assert "Ada" not in repr(item)


# -- confirm ---------------------------------------------------------------------------------------------------------


async def test_confirming_a_contested_fact_makes_it_stand(memory: Face) -> None:
    porto = await contested(memory)
    session = await memory.session.open("s1", user_id="u1")
    fact = await memory.decide(porto.id, "confirm", decided_by="ann", note="she moved")
    assert (fact.value, fact.status, fact.authority) == ("Porto", "accepted", Authority.user)
    assert await values(memory, "lives_in") == ["Porto"]
    assert "Porto" in await prompt(session, "where do I live?")
    # What a person decided is evidence, beside what the model went by.
    assert {(one.source, one.quote) for one in fact.evidence} == {
        ("review by ann", "she moved"), (None, "live in Porto"),
    }  # fmt: skip
    history = {(one.value, one.status): one for one in await memory.history(USER, "lives_in")}
    [decided] = history["Porto", "contested"].decisions
    assert (decided.decision, decided.decided_by, decided.note) == ("confirm", "ann", "she moved")
    assert history["Porto", "contested"].superseded_by == fact.id
    assert history["Lisbon", "accepted"].decisions == ()
    # Lisbon was true until then: it is history, not a mistake.
    assert await values(memory, "lives_in", valid_at=datetime.now(UTC) - timedelta(days=9)) == ["Lisbon"]
    assert await memory.review("u1") == []
    with pytest.raises(InvalidArgument, match="superseded"):
        await memory.decide(porto.id, "confirm", decided_by="ann")


async def test_a_confirmed_value_holds_now_though_another_began_since(memory: Face) -> None:
    session = await memory.session.open("s1", user_id="u1")
    await session.observe("lives_in", "Lisbon", **BY_USER)
    porto = await session.observe("lives_in", "Porto", authority="agent")
    await session.observe("lives_in", "Rome", **BY_USER)
    fact = await memory.decide(porto.id, "confirm", decided_by="ann")
    assert fact.valid_to is None
    assert await values(memory, "lives_in") == ["Porto"]


async def test_a_system_of_record_does_not_overrule_the_user(memory: Face, dsn: str) -> None:
    porto = await contested(memory)
    with pytest.raises(InvalidArgument, match="stronger"):
        await memory.decide(porto.id, "confirm", decided_by="crm", authority="system")
    assert await values(memory, "lives_in") == ["Lisbon"]
    assert rows(dsn, "SELECT count(*) FROM pgmem.decisions") == [(0,)]
    session = await memory.session.open("s1", user_id="u1")
    await session.observe("plan", "free", subject=CUSTOMER, authority="tool")
    guess = await session.observe("plan", "annual", subject=CUSTOMER, authority="agent")
    fact = await memory.decide(guess, "confirm", decided_by="crm", authority="system")
    assert (fact.value, fact.authority) == ("annual", Authority.system)
    assert await values(memory, "plan", CUSTOMER) == ["annual"]


async def test_confirming_a_doubtful_fact_takes_it_off_the_list(make_memory: Maker) -> None:
    memory = await make_memory(review_confidence=0.9)
    session = await memory.session.open("s1", user_id="u1")
    await session.observe("likes", "opera", confidence=0.1)
    await session.observe("likes", "folk", confidence=0.1)
    opera = next(item for item in await memory.review("u1") if item.value == "opera")
    fact = await memory.decide(opera, "confirm", decided_by="ann")
    assert (fact.id, fact.authority) == (opera.id, Authority.user)
    assert 0.5 < fact.confidence < 0.9
    assert await texts(memory) == [("low_confidence", "likes: folk")]


async def test_confirming_a_rejected_value_brings_it_back(memory: Face) -> None:
    session = await memory.session.open("s1", user_id="u1")
    await session.observe("diet", "vegan", **BY_USER)
    await session.correct("diet", "vegetarian", **BY_USER)
    [vegan] = await memory.review("u1")
    with pytest.raises(InvalidArgument):
        await memory.decide(vegan, "confirm", decided_by="crm", authority="system")
    assert (await memory.decide(vegan, "confirm", decided_by="ann")).value == "vegan"
    assert await values(memory, "diet") == ["vegan"]


# -- reject and reopen -----------------------------------------------------------------------------------------------


async def test_a_rejected_fact_stays_dead_until_it_is_reopened(memory: Face, dsn: str) -> None:
    porto = await contested(memory)
    session = await memory.session.open("s1", user_id="u1")
    await memory.decide(porto.id, "reject", decided_by="ann", note="she never was there")
    assert await texts(memory) == [("rejected", "lives_in: Porto")]
    assert await session.observe("lives_in", " PORTO ", authority="agent") is None
    assert await texts(memory) == [("rejected", "lives_in: Porto")]
    assert await values(memory, "lives_in") == ["Lisbon"]
    [item] = await memory.review("u1")
    assert (item.id, item.hits) == (porto.id, 1)
    assert [one.decision for one in item.decisions] == ["reject"]

    back = await memory.decide(item, "reopen", decided_by="bob", note="ann was wrong")
    assert back.id == porto.id
    assert await memory.review("u1") == []
    assert await values(memory, "lives_in") == ["Lisbon"]  # reopening states nothing
    assert (await session.observe("lives_in", "Porto", authority="agent")).status == "contested"
    decided = next(one for one in await memory.history(USER, "lives_in") if one.id == porto.id).decisions
    assert [(one.decision, one.decided_by) for one in decided] == [("reject", "ann"), ("reopen", "bob")]
    assert decided[0].decided_at < decided[1].decided_at


async def test_rejecting_a_standing_fact_takes_it_out_of_the_prompt(memory: Face) -> None:
    session = await memory.session.open("s1", user_id="u1")
    wrong = await session.observe("lives_in", "Lisbon", **BY_USER)
    await session.observe("likes", "jazz", **BY_USER)
    await memory.form()
    assert "Lisbon" in await prompt(session, "where do I live?")
    gone = await memory.decide(wrong, "reject", decided_by="ann")
    assert gone.superseded_at is not None
    text = await prompt(session, "where do I live? what do I like?")
    assert "Lisbon" not in text
    assert "jazz" in text
    assert await values(memory, "lives_in", known_at=wrong.recorded_at) == ["Lisbon"]


async def test_a_stronger_word_stands_against_a_rejection_and_a_reopening(memory: Face, dsn: str) -> None:
    session = await memory.session.open("s1", user_id="u1")
    lisbon = await session.observe("lives_in", "Lisbon", **BY_USER)
    with pytest.raises(InvalidArgument, match="retract"):
        await memory.decide(lisbon, "reject", decided_by="crm", authority="system")
    assert await values(memory, "lives_in") == ["Lisbon"]
    await memory.decide(lisbon, "reject", decided_by="ann")
    with pytest.raises(InvalidArgument, match="reopen"):
        await memory.decide(lisbon, "reopen", decided_by="crm", authority="system")
    assert rows(dsn, "SELECT decision FROM pgmem.decisions") == [("reject",)]
    await memory.decide(lisbon, "reopen", decided_by="ann")
    assert len(rows(dsn, "SELECT decision FROM pgmem.decisions")) == 2


async def test_a_value_that_nobody_had_claimed_can_be_reopened(memory: Face) -> None:
    session = await memory.session.open("s1", user_id="u1")
    await session.retract("has_sibling", "Ada", **BY_USER)
    [item] = await memory.review("u1")
    with pytest.raises(InvalidArgument, match="never claimed"):
        await memory.decide(item, "confirm", decided_by="ann")
    assert await memory.decide(item, "reopen", decided_by="ann") is None
    assert await memory.review("u1") == []
    assert await memory.decide(item.id, "reject", decided_by="ann") is None
    assert await session.observe("has_sibling", "Ada", authority="agent") is None
    [again] = await memory.review("u1")
    assert [one.decision for one in again.decisions] == ["reopen", "reject"]
    await memory.decide(item.id, "reopen", decided_by="ann")
    assert (await session.observe("has_sibling", "Ada", authority="agent")).value == "Ada"


async def test_of_whom_a_user_alone_has_spoken(make_memory: Maker) -> None:
    max_ = SubjectRef("person", "Max")
    extractor = Told(lambda turn: FactDraft("age", 9, subject=max_, confidence=0.2, turn_id=turn.id, quote=turn.text))
    memory = await make_memory(extractor=extractor)
    for user in ("u1", "u2"):
        session = await memory.session.open(f"of {user}", user_id=user)
        await session.add_turn("user", "Max is nine")
    await memory.form()
    [mine] = await memory.review("u1")
    assert mine.subject == max_
    await memory.decide(mine, "reject", decided_by="ann")
    assert await values(memory, "age", max_, user_id="u1") == []
    assert await values(memory, "age", max_, user_id="u2") == [9]
    assert await texts(memory, user_id="u1") == [("rejected", "age: 9")]
    await memory.decide(mine, "confirm", decided_by="ann")
    assert await values(memory, "age", max_, user_id="u1") == [9]


# -- arguments, transactions, groups -----------------------------------------------------------------------------------


async def test_a_decision_is_part_of_the_callers_transaction(memory: Face, dsn: str) -> None:
    porto = await contested(memory)
    async with transaction(memory, dsn) as (conn, _):
        await memory.decide(porto, "confirm", decided_by="ann", connection=conn)
    assert await values(memory, "lives_in") == ["Lisbon"]
    assert rows(dsn, "SELECT count(*) FROM pgmem.decisions") == [(0,)]
    async with transaction(memory, dsn) as (conn, commit):
        await memory.decide(porto, "confirm", decided_by="ann", connection=conn)
        await commit()
    assert await values(memory, "lives_in") == ["Porto"]


async def test_what_cannot_be_decided(memory: Face) -> None:
    porto = await contested(memory)
    standing = (await memory.facts(USER))[0]
    with pytest.raises(InvalidArgument, match="not rejected"):
        await memory.decide(standing, "reopen", decided_by="ann")
    with pytest.raises(NotFound):
        await memory.decide(porto.id, "confirm", decided_by="ann", group_id="elsewhere")
    with pytest.raises(NotFound):
        await memory.decide("0190f5fe-0000-7000-8000-000000000000", "confirm", decided_by="ann")
    with pytest.raises(InvalidArgument, match="decision"):
        await memory.decide(porto.id, "approve", decided_by="ann")
    with pytest.raises(InvalidArgument, match="agent"):
        await memory.decide(porto.id, "confirm", decided_by="ann", authority="agent")
    with pytest.raises(InvalidArgument, match="decided_by"):
        await memory.decide(porto.id, "confirm", decided_by="")
    assert len(await memory.review("u1")) == 1


async def test_notes_pass_the_write_policy(make_memory: Maker, dsn: str) -> None:
    memory = await make_memory(redact="secrets")
    porto = await contested(memory)
    await memory.decide(porto, "reject", decided_by="ann", note="see password=hunter2 there")
    assert rows(dsn, "SELECT note FROM pgmem.decisions") == [("see password=[redacted:password] there",)]
