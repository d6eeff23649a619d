"""The extractor without a model: what it reads, what it leaves alone, and what it makes of the demo."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from time import perf_counter
from typing import Any

import pytest

from pgmem_core.demo import load
from pgmem_core.facts import FactDraft
from pgmem_core.formation.dates import local_time, resolve
from pgmem_core.formation.patterns import PatternExtractor
from pgmem_core.formation.phrases import clauses
from tests.acceptance.telling import USER, current
from tests.fix_memory import Face, Maker
from tests.reconciling import Facts, at, turn
from tests.test_forget import rows

EXTRACTOR = PatternExtractor()
ALLERGIES = [("allergic_to", thing) for thing in ("peanuts", "shellfish", "kiwi")]


def read(text: str, role: str = "user", **changes: Any) -> list[FactDraft]:
    return EXTRACTOR.extract([turn(0, text, role, **changes)], [])


def told(text: str) -> list[tuple[Any, ...]]:
    parts = [(one.predicate, one.value, one.action, one.replaces) for one in read(text)]
    return [part if part[3] is not None else part[:3] for part in parts]


@pytest.mark.parametrize(
    ("text", "drafts"),
    [
        ("My name is Ada Lindqvist.", [("name", "Ada Lindqvist", "assert")]),
        ("Hi, call me Ada!", [("name", "Ada", "assert")]),
        ("I live in Lisbon these days.", [("lives_in", "Lisbon", "assert")]),
        ("I've just moved to Rio de Janeiro, Brazil", [("lives_in", "Rio de Janeiro, Brazil", "assert")]),
        ("I’m based in Porto because of my job", [("lives_in", "Porto", "assert")]),
        ("I no longer live in Lisbon", [("lives_in", "Lisbon", "end")]),
        ("I don't live in Lisbon any more", [("lives_in", "Lisbon", "end")]),
        ("I never lived in Lisbon", [("lives_in", "Lisbon", "retract")]),
        ("I'm from Leeds originally.", [("from", "Leeds", "assert")]),
        ("I was born in Utrecht", [("birthplace", "Utrecht", "assert")]),
        (
            "I work at Birch Ltd and I live in York",
            [("works_at", "Birch Ltd", "assert"), ("lives_in", "York", "assert")],
        ),
        ("I joined Cedar Ltd last week", [("works_at", "Cedar Ltd", "assert")]),
        (
            "I'm a software engineer at Cedar Ltd in Leeds",
            [("occupation", "software engineer", "assert"), ("works_at", "Cedar Ltd", "assert")],
        ),
        ("I quit my job at Birch Ltd", [("works_at", "Birch Ltd", "end")]),
        ("I work as a nurse", [("occupation", "nurse", "assert")]),
        ("I love jazz!", [("likes", "jazz", "assert")]),
        ("I hate jazz", [("dislikes", "jazz", "assert")]),
        ("I don't like jazz anymore", [("likes", "jazz", "end")]),
        ("I prefer tea over coffee", [("prefers", "tea over coffee", "assert")]),
        (
            "I'm allergic to peanuts, shellfish and kiwi",
            [(one_of, thing, "assert") for one_of, thing in ALLERGIES],
        ),
        ("I'm not allergic to peanuts", [("allergic_to", "peanuts", "retract")]),
        ("I'm vegan", [("diet", "vegan", "assert")]),
        ("I'm vegetarian, not vegan", [("diet", "vegetarian", "correct", "vegan")]),
        ("I'm not vegan but vegetarian", [("diet", "vegetarian", "correct", "vegan")]),
        ("I'm no longer vegan", [("diet", "vegan", "end")]),
        ("I can't eat gluten", [("avoids", "gluten", "assert")]),
        ("I no longer eat meat", [("eats", "meat", "end"), ("avoids", "meat", "assert")]),
        ("I speak English and some Welsh", [("speaks", "English", "assert"), ("speaks", "Welsh", "assert")]),
        ("I have a dog named Rex", [("has_pet", "Rex (dog)", "assert")]),
        ("My daughter Nell is three", [("has_child", "Nell (daughter)", "assert")]),
        ("I can't take calls before 9:45", [("constraint", "can't take calls before 9:45", "assert")]),
        ("my notice period is six weeks now instead of three months", [("notice_period", "six weeks", "assert")]),
        ("My favourite colour is dark green.", [("favorite_color", "dark green", "assert")]),
        ("My birthday is 3 May", [("birthday", "3 May", "assert")]),
        ("I'm 34 years old", [("age", 34, "assert")]),
        ("I'm in the Europe/Lisbon time zone", [("timezone", "Europe/Lisbon", "assert")]),
        ("Actually, I live in Porto.", [("lives_in", "Porto", "correct")]),
        ("Actually, I moved to Porto.", [("lives_in", "Porto", "assert")]),
        ("Actually, I like tea.", [("likes", "tea", "assert")]),
        ("I live in Porto, not Lisbon", [("lives_in", "Porto", "correct", "Lisbon")]),
        (
            "I live in Lisbon. Sorry, I meant Porto, not Lisbon.",
            [("lives_in", "Lisbon", "assert"), ("lives_in", "Porto", "correct", "Lisbon")],
        ),
        ("I misspoke. I have no sister.", [("has_sibling", "sister", "retract")]),
        ("my key is sk-test-000EXAMPLE000, also I like jazz", [("likes", "jazz", "assert")]),
    ],
)  # fmt: skip
def test_plain_statements(text: str, drafts: list[tuple[Any, ...]]) -> None:
    assert told(text) == drafts


@pytest.mark.parametrize(
    "text",
    [
        # G8, G9: greetings, hypotheticals, jokes, others
        "hi",
        "hello!",
        "suppose I moved to Lima, what would rent be?",
        "Suppose this. I live in Lima. I work at Birch Ltd.",
        "Imagine I live in Lima.",
        "If I lived in Lima I'd be happy",
        "What if I'm vegan?",
        "I live in Lima?",
        "Do I like jazz? I wish I live in Lima",
        "I might be vegan. Maybe I live in Lima",
        "I'm kidding, I own 9 yachts and I live in Monaco",
        "I live in Monaco. Just joking!",
        "my friend is vegan",
        "My friend says I live in Lima",
        "She said I live in Rome",
        "People think I work at Birch Ltd",
        "He lives in Rome and works at Birch Ltd",
        "Tom: I live in Rome",
        'The song goes "I live in Rome"',
        "> I live in Rome",
        "```\nI live in Rome\n```",
        "`I like jazz`",
        "Translate into German: I live in Rome",
        "Please proofread this letter.\nI live in Rome. I work at Birch Ltd.",
        "Write a story with the line: I live in Rome",
        "<memory facts id=ab>\nI live in Rome\n</memory id=ab>",
        # no things
        "I like it",
        "I love you",
        "I like your answer",
        "I love the energy",
        "I like to know what you threw away",
        "I hate to say it",
        "I'd like tea",
        "I am ready",
        "I moved to Linux last year",
        "I'm from HR",
        "I'm from Birch Support",
        "call me ASAP",
        "call me Monday",
        "I was born in March",
        "I live in a small flat",
        "I can't find the file",
        "I don't eat at home",
        "One of my favorite dishes is lasagna",
        "Porto, not Lisbon",
        # G12: nothing rather than nonsense
        "我叫李晓梅，在北川公司上班",
        "Ich heiße Jörg und wohne in Köln. Ich hasse Jazz.",
        "أنا أعيش في دبي وأحب القهوة",
        "Je m'appelle Zoé et j'habite à Lyon",
        "私は東京に住んでいます",
        "",
        "\ufffc\ufffc I live in \ufffc",
    ],
)
def test_what_is_left_alone(text: str) -> None:
    assert told(text) == []


@pytest.mark.parametrize("role", ["assistant", "tool", "system", "developer"])
def test_only_the_users_own_turns(role: str) -> None:
    assert read("I live in Lisbon", role) == []
    assert read("I live in Lisbon", metadata={"injected": True}) == []
    assert read("I live in Lisbon", metadata={"authority": "agent"}) == []
    assert len(read("I live in Lisbon")) == 1


def test_every_draft_carries_its_turn_and_a_verbatim_quote() -> None:
    text = "Well, um.\nActually —  I’m vegetarian,  not vegan; but I LOVE jazz. My dog’s name is Rex!"
    drafts = read("I live in Lisbon. " + text)
    assert len(drafts) >= 2
    for draft in drafts:
        assert draft.turn_id == "t0-user"
        assert draft.quote
        assert draft.quote in "I live in Lisbon. " + text
        assert draft.confidence == 0.8


def test_clauses_are_pieces_of_the_text() -> None:
    text = "Hi! I live in York, and I like `this code` I wrote. “No”, I said; but my dog’s called Rex"
    assert all(clause.quote in text for clause in clauses(text))


# -- dates -------------------------------------------------------------------------------------------------------


def test_tomorrow_is_the_speakers_tomorrow() -> None:
    """G10: said at 23:30 on 28 February 2024, eight hours behind UTC; read weeks later."""
    said = datetime(2024, 2, 28, 23, 30, tzinfo=timezone(timedelta(hours=-8)))
    for one in (
        turn(0, "dentist tomorrow", created_at=said),
        turn(0, "dentist tomorrow", created_at=said.astimezone(UTC), metadata={"timezone": "-08:00"}),
        turn(0, "dentist tomorrow", created_at=said.astimezone(UTC), metadata={"timezone": "America/Los_Angeles"}),
    ):
        [draft] = EXTRACTOR.extract([one], [])
        assert (draft.predicate, draft.value) == ("appointment", "dentist on 2024-02-29")
        assert draft.valid_to == datetime(2024, 3, 1, 8, tzinfo=UTC)  # the end of that day, there
    unknown = turn(0, "dentist tomorrow", created_at=said.astimezone(UTC), metadata={"timezone": "Mars/Olympus"})
    assert local_time(unknown).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("words", "day"),
    [
        ("today", "2026-02-17"),
        ("tomorrow at 2 pm", "2026-02-18 at 14:00"),
        ("tomorrow at 2", "2026-02-18"),
        ("the day after tomorrow", "2026-02-19"),
        ("yesterday", "2026-02-16"),
        ("in two weeks", "2026-03-03"),
        ("in 3 days", "2026-02-20"),
        ("next Monday", "2026-02-23"),
        ("on Friday", "2026-02-20"),
        ("Thursday 26 February at 11:30", "2026-02-26 at 11:30"),
        ("10 May", "2026-05-10"),
        ("May 10th, 2027", "2027-05-10"),
        ("the 5th of March", "2026-03-05"),
        ("5 November", "2026-11-05"),
        ("2026-03-01 at 9am", "2026-03-01 at 09:00"),
        ("next Friday", None),  # this week's or the one after
        ("Tuesday", None),  # it is Tuesday
        ("Friday 26 February", None),  # it is a Thursday
        ("31 February", None),
        ("tomorrow at 25:00", None),
        ("3/4/2026", None),
        ("next week", None),
        ("in 999 weeks", "2045-04-11"),
    ],
)
def test_days_that_have_one_meaning(words: str, day: str | None) -> None:
    found = resolve(words, datetime(2026, 2, 17, tzinfo=UTC).date())  # a Tuesday
    assert (None if found is None else str(found)) == day


@pytest.mark.parametrize(
    ("text", "drafts"),
    [
        (
            "I have an interview with Priya Raman next Monday at 14:00",
            [("appointment", "interview with Priya Raman on 2026-03-02 at 14:00")],
        ),
        ("The project report is due by 3 April", [("deadline", "project report on 2026-04-03")]),
        ("The deadline for the grant is tomorrow", [("deadline", "the grant on 2026-03-02")]),
        ("I'm flying to Oslo on 5 March", [("appointment", "trip to Oslo on 2026-03-05")]),
        ("I had an interview yesterday", []),
        ("The interview was on 5 February", []),
        ("I have an interview with Priya", []),
    ],
)  # fmt: skip
def test_appointments(text: str, drafts: list[tuple[Any, ...]]) -> None:
    assert [(one.predicate, one.value) for one in read(text)] == drafts


def test_a_moved_appointment_ends_the_old_one_and_all_end_by_themselves() -> None:
    facts = Facts()
    for day, text in (
        (0, "The Acme interview is on 9 March at 14:00"),
        (1, "The Acme interview is now 12 March at 11:30"),
    ):
        said = turn(day, text)
        facts.read([said], *EXTRACTOR.extract([said], facts.believed))
    assert facts.values("appointment", day=2) == ["Acme interview on 2026-03-12 at 11:30"]
    assert facts.values("appointment", day=0.5) == ["Acme interview on 2026-03-09 at 14:00"]
    assert facts.values("appointment", day=13) == []


# -- through reconciliation --------------------------------------------------------------------------------------


def told_to(facts: Facts, *texts: str) -> None:
    for day, text in enumerate(texts):
        said = turn(day, text)
        done = facts.read([said], *EXTRACTOR.extract([said], facts.believed))
        assert not done.rejected, done.rejected


def test_no_sister_takes_the_sister_that_was_told() -> None:
    facts = Facts()
    told_to(facts, "I have a sister called Ann and I have a brother called Bo", "I misspoke, I have no sister")
    assert facts.values("has_sibling") == ["Bo (brother)"]
    told_to(facts, "I have a sister called Ann and I have a brother called Bo")
    assert facts.values("has_sibling") == ["Bo (brother)"]


def test_the_story_of_a_diet() -> None:
    facts = Facts()
    told_to(
        facts,
        "I'm vegan",
        "I love jazz",
        "I'm vegetarian, not vegan",
        "I hate jazz",
        "I no longer eat eggs",
        "I eat eggs",
    )
    assert facts.values("diet") == facts.values("diet", day=0.5) == ["vegetarian"]
    assert (facts.values("likes"), facts.values("dislikes")) == ([], ["jazz"])
    assert (facts.values("eats"), facts.values("avoids")) == (["eggs"], [])


def test_the_demo_conversation() -> None:
    """By hand: every fact it finds is one, and of those that are stated plainly it misses none but "we" and "also"."""
    facts = Facts()
    drafts = []
    for session in load().sessions:
        for one in session.turns:
            assert isinstance(one.content, str)
            assert one.created_at is not None
            said = replace(turn(0, one.content, one.role), id=one.id, created_at=one.created_at)
            found = EXTRACTOR.extract([said], facts.believed)
            drafts += [(one.id, draft.predicate, draft.value, draft.action) for draft in found]
            assert not facts.read([said], *found).rejected
    assert drafts == [
        ("demo-1/03", "occupation", "backend engineer", "assert"),
        ("demo-1/03", "works_at", "Corvane Insurance", "assert"),
        ("demo-1/33", "notice_period", "three months", "assert"),
        ("demo-2/07", "appointment", "Tallowmere interview on 2026-02-26 at 11:30", "assert"),
        ("demo-2/29", "notice_period", "six weeks", "assert"),
        ("demo-2/33", "appointment", "half marathon on 2026-05-10", "assert"),
        ("demo-3/01", "lives_in", "Bristol", "assert"),
        ("demo-3/07", "appointment", "Final round on 2026-03-09 at 15:00", "assert"),
    ]
    assert facts.values("notice_period", day=3) == ["six weeks"]
    assert sorted(facts.values("appointment", day=3)) == [
        "Final round on 2026-03-09 at 15:00",
        "half marathon on 2026-05-10",
    ]


# -- corrections and returns, through the whole pipeline ---------------------------------------------------------

DEAD = "SELECT count(*) FROM pgmem.tombstones WHERE lifted_at IS NULL"
NOT_VEGAN = ("I'm vegan", "I'm not vegan, I'm vegetarian")


async def say(memory: Face, *texts: str, role: str = "user", **fields: Any) -> None:
    """Each text is a turn that is read before the next is said."""
    session = await memory.session.open("s1", user_id="u1")
    for text in texts:
        await session.add_turn(role, text, **fields)
        await memory.form()


@pytest.mark.parametrize(
    ("texts", "predicate", "value", "dead"),
    [
        (NOT_VEGAN, "diet", "vegetarian", 1),
        (("I'm vegan", "I'm not vegan. I'm vegetarian."), "diet", "vegetarian", 1),
        (("I'm vegan", "I'm not vegan but vegetarian"), "diet", "vegetarian", 1),
        (("I'm vegan", "I'm not vegan, actually I'm vegetarian"), "diet", "vegetarian", 1),
        (("I'm vegan", "Sorry, I meant vegetarian, not vegan"), "diet", "vegetarian", 1),
        (("I'm vegan. Sorry, I meant vegetarian, not vegan",), "diet", "vegetarian", 1),
        (("I'm vegan. I'm not vegan, I'm vegetarian.",), "diet", "vegetarian", 1),
        (("I live in Lisbon", "No wait, it's Porto, not Lisbon"), "lives_in", "Porto", 1),
        (("I live in Lisbon", "It's not Lisbon, it's Porto"), "lives_in", "Porto", 1),
        (("I live in Lisbon", "I don't live in Lisbon, I live in Porto"), "lives_in", "Porto", 1),
        (("I'm a nurse", "I'm not a nurse, I'm a dentist"), "occupation", "dentist", 1),
        (("I'm 34 years old", "I meant 35, not 34"), "age", 35, 1),
        ((*NOT_VEGAN, "I'm not vegetarian, I'm vegan"), "diet", "vegan", 1),
        ((*NOT_VEGAN, "No, I meant vegan, not vegetarian"), "diet", "vegan", 1),
        # Nobody had claimed it, or it was over: nothing is rejected, and it may be said later.
        (("I'm vegan", "I'm not vegetarian, I'm vegan"), "diet", "vegan", 0),
        (("I'm vegan", "I'm vegan, not vegetarian"), "diet", "vegan", 0),
        (("I'm vegan", "I'm not vegetarian, I'm vegan", "I'm vegetarian"), "diet", "vegetarian", 0),
        (("I'm vegetarian", "I became vegan", "I'm not vegetarian, I'm vegan"), "diet", "vegan", 0),
        # A denial by itself is one.
        (("I'm vegan", "I'm not vegetarian", "I'm vegetarian"), "diet", "vegan", 1),
        # It changed: what it was was true.
        (("I'm vegan", "I'm not vegan, I'm vegetarian now"), "diet", "vegetarian", 0),
        # About a dish, as likely.
        (("I'm vegan", "It's vegetarian, not vegan"), "diet", "vegan", 0),
        (("I'm vegan", "I became vegetarian last year but stopped"), "diet", "vegan", 0),
        (("I'm vegan", "I meant tea, not coffee"), "diet", "vegan", 0),
    ],
)  # fmt: skip
async def test_contrasts_and_corrections(
    memory_of_patterns: Face, dsn: str, texts: tuple[str, ...], predicate: str, value: Any, dead: int
) -> None:
    await say(memory_of_patterns, *texts)
    assert await current(memory_of_patterns, predicate) == [value]
    assert rows(dsn, DEAD) == [(dead,)]


@pytest.mark.parametrize(
    "text",
    [
        "I became vegan last week.",
        "I've become vegan",
        "I went back to being vegan",
        "I'm vegan again",
        "I'm vegan now",
        "I'm now a vegan",
        "Now I'm vegan",
        "I'm vegan these days",
        "Actually, I'm vegan again, by the way.",
        "I'm no longer vegetarian, I'm vegan",
    ],
)
async def test_a_rejected_value_that_came_about_since_holds_from_then_on(memory_of_patterns: Face, text: str) -> None:
    memory = memory_of_patterns
    await say(memory, *NOT_VEGAN, text)
    session = await memory.session.get("s1")
    *_, rejected, back = await session.turns()
    for _ in range(2):
        [fact] = await memory.facts(USER, "diet")
        assert (fact.value, fact.valid_from) == ("vegan", back.created_at)
        # Before it, it stays rejected.
        assert await current(memory, "diet", valid_at=rejected.created_at) == ["vegetarian"]
        await memory.rebuild()  # every turn is read again


@pytest.mark.parametrize("text", ["I'm vegan", "I am vegan", "I'm still vegan", "Now, I'm vegan, ask me again"])
async def test_the_same_words_again_bring_nothing_back(memory_of_patterns: Face, dsn: str, text: str) -> None:
    await say(memory_of_patterns, *NOT_VEGAN, text)
    assert await current(memory_of_patterns, "diet") == ["vegetarian"]
    assert rows(dsn, DEAD) == [(1,)]


async def test_nobody_else_and_no_older_turn_brings_a_value_back(memory_of_patterns: Face, dsn: str) -> None:
    memory = memory_of_patterns
    await say(memory, "I live in Lisbon", "No wait, it's Porto, not Lisbon")
    for role in ("assistant", "tool"):
        await say(memory, "I live in Lisbon again", role=role, **({"tool_call_id": "c"} if role == "tool" else {}))
    await say(memory, "I moved back to Lisbon", role="user", metadata={"authority": "agent"})
    older = await memory.session.create(user_id="u1")
    await older.add_turn("user", "I moved back to Lisbon", created_at=datetime(2020, 1, 1, tzinfo=UTC))
    await memory.form()
    assert await current(memory, "lives_in") == ["Porto"]
    assert rows(dsn, DEAD) == [(1,)]
    await say(memory, "I moved back to Lisbon")
    assert await current(memory, "lives_in") == ["Lisbon"]
    assert rows(dsn, DEAD) == [(0,)]


async def test_what_came_back_can_be_rejected_again(memory_of_patterns: Face) -> None:
    await say(memory_of_patterns, *NOT_VEGAN, "I'm vegan again", "I'm not vegan, I'm vegetarian", "I'm vegan")
    assert await current(memory_of_patterns, "diet") == ["vegetarian"]


@pytest.mark.parametrize("authority", ["agent", "tool"])
def test_a_draft_that_calls_itself_explicit_has_its_turns_authority(authority: str) -> None:
    facts = Facts()
    told_to(facts, *NOT_VEGAN)
    draft = FactDraft("diet", "vegan", explicit=True, quote="vegan")
    said = turn(5, "vegan", "user", metadata={"authority": authority})
    facts.read([said], draft)
    assert (facts.values("diet"), facts.hits) == (["vegetarian"], 1)
    facts.read([turn(6, "vegan")], draft)
    assert facts.values("diet") == ["vegan"]


@pytest.fixture
async def memory_of_patterns(make_memory: Maker) -> Face:
    return await make_memory(extractor="patterns")


async def test_the_async_form_is_the_same() -> None:
    turns = [turn(0, "I live in Lisbon")]
    assert await EXTRACTOR.aextract(turns, []) == EXTRACTOR.extract(turns, [])
    assert at(0) == turns[0].created_at


@pytest.mark.parametrize(
    "text",
    [
        " " * 100_000 + "x",
        "<memory " * 20_000,
        "<memory id=a>" * 10_000,
        "and I " * 15_000,
        "“" * 50_000,
        "I'm a " + "a " * 20_000,
        "I live in " + "A " * 20_000,
        "I work at A & " * 5_000,
    ],
    ids=lambda text: text[:14].strip() or "spaces",
)
def test_a_hostile_turn_costs_milliseconds(text: str) -> None:
    """Unbounded, the second took 35 s and the first for ever; now each about 0.05 s."""
    started = perf_counter()
    read(text)
    assert perf_counter() - started < 2
