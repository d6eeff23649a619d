"""Text to terms: same word, same term, whatever the writing; and no text that is too long or too odd."""

from __future__ import annotations

import random
import string
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgmem_core.errors import ConfigurationError, InvalidArgument
from pgmem_core.retrieval import lexical
from pgmem_core.retrieval.lexical import (
    LANGUAGES,
    MAX_CHARACTERS,
    MAX_COUNT,
    MAX_QUERY_CHARACTERS,
    Terms,
    analyse,
    query_terms,
)

ANY_TEXT = st.text(st.characters(), max_size=300)  # lone surrogates and control characters included


def terms(text: str, language: str = "english") -> set[int]:
    return set(analyse(text, language=language).hashes)


def finds(query: str, text: str, language: str = "english") -> bool:
    return bool(set(query_terms(query, language=language).hashes) & terms(text, language))


def test_a_hash_is_the_same_in_every_process_and_release() -> None:
    # Stored in tables: if this fails, every index written before is lost.
    assert analyse("garden").hashes == (3438023473537277487,)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("café", "cafe"),
        ("CAFÉ", "cafe\u0301"),
        ("Straße", "STRASSE"),
        ("Ünal Çelik", "unal celik"),
        ("Łódź", "lodz"),
        ("Nguyễn", "nguyen"),
        ("Ёлка", "елка"),
        ("ﬁnance", "finance"),
        ("ＡＢＣ１２３", "abc123"),
        ("soft\u00adhyphen", "softhyphen"),
        ("zero\u200dwidth\ufeff", "zerowidth"),
        ("running runs", "run run"),
        ("ｶﾞｲﾄﾞ", "ガイド"),
        ("1,200,000 euros", "1200000 euro"),
        ("tea,milk", "tea milk"),
        ('"tea" & (milk) | !x:*', "tea milk x"),
        ("a <-> b", "b"),
        ("What’s the bus & rail plan?", "bus rail plan"),
        ("they're garden's", "garden"),
        ("o’neil", "o'neil"),
    ],
)
def test_two_writings_of_one_text_have_the_same_terms(one: str, other: str) -> None:
    assert analyse(one) == analyse(other)
    assert analyse(one).hashes


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("oneil", "ask o'neil"),
        ("neil", "ask o'neil"),
        ("o'neil", "neil said"),
        ("homme", "c'est l'homme"),
        ("example.org", "mail me at ana.b+x@example.org"),
        ("ana", "mail me at ana.b+x@example.org"),
        ("pricing", "https://shop.example.org/pricing?plan=pro#top"),
        ("user", "call get_user_name()"),
        ("user", "call getUserName()"),
        ("getusername", "call getUserName()"),
        ("http", "an HTTPServer object"),
        ("4711", "see ticket#4711"),
        ("gpt4", "we use gpt4"),
        ("retry", "the --max-retry flag"),
        ("notes", "/home/ana/notes.txt"),
        ("東京", "明日東京タワーへ行きます"),
        ("タワー", "明日東京タワーへ行きます"),
        ("北川", "我叫李晓梅,在北川公司上班"),
        ("서울", "서울에서 살아요"),
        ("กาแฟ", "ฉันชอบดื่มกาแฟเย็น"),
        ("猫", "猫 と 犬"),
        ("हिन्दी", "मैं हिन्दी बोलता हूँ"),
        ("東京", "meeting in東京tomorrow"),
        ("meeting", "meeting in東京tomorrow"),
    ],
)
def test_a_text_is_found_by_its_parts(query: str, text: str) -> None:
    assert finds(query, text)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("京東", "東京タワー"),
        ("garden", "guardian"),
        ("the", "the garden"),
        ("don", "I don't mustn't garden"),
        ("हिन्द", "हद"),
        ("й", "и"),
    ],
)
def test_other_words_do_not_match(query: str, text: str) -> None:
    assert not finds(query, text)


@pytest.mark.parametrize("text", ["", " \n", "\u200b", "!", "':*", '"', "&|()", "\x00", "👍", "___", "'", "''''"])
def test_a_text_without_words_has_no_terms(text: str) -> None:
    assert analyse(text) == query_terms(text) == Terms((), (), 0)


def test_stop_words_are_dropped_unless_there_is_nothing_else() -> None:
    assert analyse("where is the garden of the house") == analyse("garden house")
    assert analyse("to be or not to be").length == 6
    assert len(query_terms("to be or not to be").hashes) == 4
    assert finds("To be, or not to be?", "to be or not to be")
    assert finds("don’t", "don't")


def test_only_english_has_stop_words() -> None:
    assert len(terms("the garden", "simple")) == 2
    assert len(terms("the garden", "porter")) == 1
    assert len(terms("der garten", "german")) == 2


def test_stemming_follows_the_language() -> None:
    assert finds("garten", "gärten", "german")
    assert finds("canciones", "canción", "spanish")
    assert finds("книга", "книги", "russian")
    assert finds("running", "runs")
    assert not finds("running", "runs", "simple")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_folds_accents_before_stemming(language: str) -> None:
    assert analyse("un café élève", language=language) == analyse("un cafe eleve", language=language)


@pytest.mark.parametrize("language", ["klingon", "", "English", "simple; DROP TABLE x"])
def test_an_unknown_language_is_refused_with_the_known_ones(language: str) -> None:
    for function in (analyse, query_terms):
        with pytest.raises(ConfigurationError, match=r"simple, .*english.*yiddish") as caught:
            function("x", language=language)
        assert repr(language) in str(caught.value)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    for function in (analyse, query_terms):
        with pytest.raises(InvalidArgument, match=str(limit)):
            function("x", limit=limit)


def test_terms_come_most_frequent_first_then_in_order() -> None:
    found = analyse("cherry apple banana apple banana date")
    assert found.hashes == analyse("apple banana cherry date").hashes
    assert found.counts == (2, 2, 1, 1)
    assert found.length == 6


def test_the_limit_keeps_the_most_frequent_and_the_whole_length() -> None:
    found = analyse("cherry apple banana apple banana date", limit=2)
    assert found.hashes == analyse("apple banana").hashes
    assert found.length == 6


def test_a_count_fits_a_smallint() -> None:
    found = analyse("ox " * (MAX_CHARACTERS // 3))
    assert found.counts == (MAX_COUNT,)
    assert found.length == MAX_CHARACTERS // 3


def _distinct_words(count: int) -> str:
    pick = random.Random(7)
    return " ".join("".join(pick.choices(string.ascii_lowercase, k=6)) for _ in range(count))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(_distinct_words(400_000), id="400k distinct words"),
        pytest.param("garden " * 430_000, id="3 MB of one word"),
        pytest.param("a" * 3_000_000, id="one word of 3 MB"),
        pytest.param("東京駅" * 300_000, id="one run of Han"),
        pytest.param("\ufdfa" * 200_000, id="18 characters each under NFKC"),
        pytest.param("o'" * 500_000, id="apostrophes"),
        pytest.param("aB" * 500_000, id="camel"),
        pytest.param("e\u0301\u0301\u0301" * 200_000, id="stacked accents"),
        pytest.param("1,000," * 200_000, id="thousands"),
    ],
)
def test_b8_no_text_is_too_long(text: str) -> None:
    started = time.perf_counter()
    found = analyse(text)
    asked = query_terms(text)
    assert time.perf_counter() - started < 2  # the slowest takes 0.13 s
    assert 1 <= len(found.hashes) <= 4096
    assert 1 <= len(asked.hashes) <= 64
    assert finds(text, text)


def test_c13_a_long_query_keeps_its_two_ends() -> None:
    middle = " ".join(f"filler{number}" for number in range(20_000))
    asked = query_terms(f"aardvark question {middle} what about zebras")
    assert len(middle) > MAX_QUERY_CHARACTERS
    assert len(asked.hashes) == 64
    assert terms("aardvark zebra question") <= set(asked.hashes)
    assert not terms("filler10000") & set(asked.hashes)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_query_of_many_words_keeps_the_first_and_the_last(limit: int) -> None:
    words = [f"w{number}" for number in range(10)]
    asked = query_terms(" ".join(words), limit=limit)
    kept = words[: limit - limit // 2] + words[len(words) - limit // 2 :]
    assert asked.hashes == analyse(" ".join(kept)).hashes


def test_stemmers_are_not_shared_between_threads() -> None:
    seen: list[object] = []
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        lexical._word_terms.cache_clear()  # a cached word needs no stemmer
        analyse(f"gardening {threading.get_ident()}ing")
        seen.append(lexical._stemmers.english)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4
    assert len({id(stemmer) for stemmer in seen}) == 4


@settings(max_examples=300, deadline=None)
@given(text=ANY_TEXT, language=st.sampled_from(["english", "simple", "german", "arabic"]))
def test_any_text_gives_well_formed_terms(text: str, language: str) -> None:
    found = analyse(text, language=language)
    assert len(found.hashes) == len(found.counts) == len(set(found.hashes))
    assert all(-(2**63) <= term < 2**63 for term in found.hashes)
    assert list(found.counts) == sorted(found.counts, reverse=True)
    assert sum(found.counts) == found.length
    assert query_terms(text, language=language, limit=4096) == found


@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.sampled_from(["tea", "Milk", "O'Neil", "café", "東京", "gpt4", "7"]), min_size=1, max_size=8))
@pytest.mark.parametrize("separator", [" ", ", ", " & ", "|", "\n", '" "', ":*", " <-> ", "(", "\t", "!", "\u3000"])
def test_b9_punctuation_is_a_separator_and_nothing_else(separator: str, words: list[str]) -> None:
    assert query_terms(separator.join(words)) == query_terms(" ".join(words))


@settings(max_examples=200, deadline=None)
@given(text=ANY_TEXT, limit=st.integers(1, 20))
def test_a_smaller_limit_is_a_prefix(text: str, limit: int) -> None:
    whole = analyse(text)
    some = analyse(text, limit=limit)
    assert some == Terms(whole.hashes[:limit], whole.counts[:limit], whole.length)
