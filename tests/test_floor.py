"""The floor: a question gets its memory, also from a store of three; what has nothing to do with it gets nothing."""

from __future__ import annotations

import pytest

from pgmem_core.retrieval import lexical
from tests.fix_memory import Face, FakeEmbedder, Maker

BEES = ("My sister keeps bees in Braga", "I play the cello", "I am allergic to walnuts")
PERSON = (
    "I moved to Lisbon in May",
    "My cat is called Miso",
    "I work as a nurse on night shifts",
    "I prefer window seats on trains",
    "My birthday is 4 March",
    "I am learning Portuguese",
)
UNRELATED = (
    "What is the capital of Mongolia?",
    "Explain the second law of thermodynamics",
    "How do I rebase a git branch onto main?",
    "kubectl pod stuck in CrashLoopBackOff",
    "Convert 37 degrees Celsius to Fahrenheit",
    "When was the Treaty of Westphalia signed?",
)
SMALL_TALK = ("ok", "thanks!", "Please go on", "good morning", "sounds good", "what?", "how are you?", "yes, next")


async def _fill(memory: Face, texts: tuple[str, ...], user: str) -> None:
    for text in texts:
        await memory.add(text, user_id=user)


async def _injected(memory: Face, query: str, user: str, **options: object) -> list[str]:
    session = await memory.session.create(user_id=user)
    found = await session.compile_context(query, store_query=False, **options)
    return [item.text for item in found.sections["episodic"].items]


@pytest.mark.parametrize(
    ("texts", "query", "answer"),
    [
        (BEES, "Where do the bees live?", "Braga"),
        (BEES, "What instrument do I play?", "cello"),
        (BEES, "Which nuts must I avoid?", "walnuts"),
        (PERSON, "What's my cat's name?", "Miso"),
        (PERSON, "When was I born?", "4 March"),
        (PERSON, "Which language am I studying?", "Portuguese"),
    ],
)
async def test_a_small_store_answers_a_question_in_other_words(
    memory: Face, texts: tuple[str, ...], query: str, answer: str
) -> None:
    await _fill(memory, texts, "u")
    await memory.form()
    assert any(answer in text for text in await _injected(memory, query, "u"))


async def test_what_has_nothing_to_do_with_a_store_gets_nothing_from_it(memory: Face) -> None:
    await _fill(memory, BEES, "three")
    await _fill(memory, PERSON, "six")
    await memory.form()
    for query in UNRELATED:
        for user in ("three", "six"):
            assert await _injected(memory, query, user) == [], query
            assert await _injected(memory, query, user, floor=None), "no floor lets everything through"


async def test_one_memory_alone_is_injected_for_its_question_only(memory: Face) -> None:
    await memory.add("My sister keeps bees in Braga", user_id="u")
    await memory.form()
    assert await _injected(memory, "Where does my sister live?", "u")
    assert await _injected(memory, "kubectl pod stuck in CrashLoopBackOff", "u") == []


async def test_the_floor_rises_with_the_store(memory: Face) -> None:
    # The same memory, as far from the query as before: enough among three, not among two hundred.
    query = "Which instrument should somebody learn first?"
    await _fill(memory, BEES, "small")
    session = await memory.session.create(user_id="large")
    await session.add_turns([{"role": "user", "content": f"Invoice {n} was paid on day {n}"} for n in range(200)])
    await _fill(memory, BEES, "large")
    await memory.form()
    assert await _injected(memory, query, "small")
    assert await _injected(memory, query, "large") == []
    assert await _injected(memory, "What instrument do I play?", "large"), "a nearer one still gets through"


async def test_small_talk_gets_nothing_unless_there_is_no_floor(memory: Face) -> None:
    await _fill(memory, ("Good morning, thanks, that sounds good", "Yes, ok, go on with the next one"), "u")
    await memory.form()
    session = await memory.session.create(user_id="u")
    for query in SMALL_TALK:
        found = await session.compile_context(query, store_query=False)
        assert found.sections["episodic"].items == (), query
        assert any("small talk" in note for note in found.notes)
        assert await _injected(memory, query, "u", floor=-1.0) == [], "whatever the number"
        assert await _injected(memory, query, "u", floor=None), query
        assert await memory.search(query, user_id="u"), "search has no floor unless it is given one"


async def test_by_words_only_one_word_of_two_is_enough_and_one_of_three_is_not(memory: Face) -> None:
    await _fill(memory, BEES, "u")  # nothing is embedded yet
    assert any("Braga" in text for text in await _injected(memory, "Where do the bees live?", "u"))
    assert await _injected(memory, "Which bees dance better?", "u") == []
    assert await _injected(memory, "Which bees dance better?", "u", floor=None)


async def test_an_embedder_without_a_floor_has_none(make_memory: Maker) -> None:
    known = {"I play the cello": [1.0, 0, 0], "What is the capital of Mongolia?": [0, 1.0, 0]}
    memory = await make_memory(embedder=FakeEmbedder(known, dimensions=3))
    await memory.add("I play the cello", user_id="u")
    await memory.form()
    assert await _injected(memory, "What is the capital of Mongolia?", "u")
    assert await _injected(memory, "What is the capital of Mongolia?", "u", floor=0.1) == []
    assert await _injected(memory, "thanks!", "u") == []


@pytest.mark.parametrize("query", [*SMALL_TALK, "Let's continue", "No, never mind.", "can you help me?", "Why?", "?!"])
def test_small_talk_is_recognised(query: str) -> None:
    assert lexical.is_small_talk(query)


@pytest.mark.parametrize(
    "query",
    [
        "Who am I?", "What am I good at?", "Where were we?",  # about the speaker
        "good news about the cat?", "Nell's first night", "stop words",  # content beside them
        "okra", "goodness",  # no words of the list
        "数据", "guten Morgen",
        "ok " * 100,  # a paste
    ],
)  # fmt: skip
def test_a_question_is_not_small_talk(query: str) -> None:
    assert not lexical.is_small_talk(query)


def test_small_talk_is_known_in_english_only() -> None:
    assert lexical.is_small_talk("ok thanks", language="porter")
    assert not lexical.is_small_talk("ok thanks", language="german")
    assert not lexical.is_small_talk("ok thanks", language="simple")
