"""Models by name, with their providers' own clients, against a local server: what works, and what fails without loss;
and the chains composed with an application's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from pgmem_core import Authority, ExtractionError, PgMem, SubjectRef
from pgmem_core.facts import Evidence
from pgmem_core.formation.extractors import ChainExtractor
from pgmem_core.models.chat import as_chat_model
from pgmem_langchain import episode_summary_chain, extraction_chain, narrative_chain, running_summary_chain
from tests.fix_memory import Face, Maker
from tests.langchain.providers import Provider, provider
from tests.langchain.test_extras import _OTHERS, python
from tests.scripted import Scripted, turns

PACKAGES = {"openai": "langchain_openai", "anthropic": "langchain_anthropic", "ollama": "langchain_ollama"}
SAID = "I have moved to Porto"
FACT = {
    "subject": "user", "predicate": "lives_in", "value": "Porto", "action": "assert", "turn": 1,
    "quote": SAID, "confidence": 0.9,
}  # fmt: skip
FACTS = json.dumps({"facts": [FACT]})


@pytest.fixture
def llm() -> Iterator[Provider]:
    with provider() as one:
        yield one


@pytest.fixture(params=list(PACKAGES))
def name(request: pytest.FixtureRequest) -> str:
    """A provider whose client is installed."""
    pytest.importorskip(PACKAGES[request.param], reason=f"needs the extra {request.param}")
    return str(request.param)


def options_of(name: str, llm: Provider) -> dict[str, Any]:
    """What an application passes with the name: another address, its key, and no patience."""
    if name == "ollama":
        return {"base_url": llm.base_url(name), "client_kwargs": {"timeout": 0.5}}
    return {"base_url": llm.base_url(name), "api_key": "k", "timeout": 0.5, "max_retries": 0}


def model_of(name: str, llm: Provider) -> Any:
    return as_chat_model(f"{name}:little-one", **options_of(name, llm))


# -- what works --------------------------------------------------------------------------------------------------


async def test_facts_are_extracted(name: str, llm: Provider) -> None:
    llm.default = FACTS
    chain = extraction_chain(f"{name}:little-one", **options_of(name, llm))
    for drafts in (chain.invoke(turns(SAID)), await chain.ainvoke(turns(SAID))):
        assert [(one.predicate, one.value, one.quote) for one in drafts] == [("lives_in", "Porto", SAID)]
    assert [body["model"] for body in llm.asked] == ["little-one"] * 2
    assert SAID in json.dumps(llm.asked[0]["messages"])
    # In the provider's own way of asking for structured output.
    asked_for = {"openai": "response_format", "anthropic": "tools", "ollama": "format"}[name]
    assert "predicate" in json.dumps(llm.asked[0][asked_for])


async def test_summaries_stream(name: str, llm: Provider) -> None:
    llm.default = "The user has moved to Porto."
    chain = episode_summary_chain(f"{name}:little-one", **options_of(name, llm))
    assert chain.invoke(turns(SAID)) == llm.default
    pieces = list(chain.stream(turns(SAID)))
    apieces = [piece async for piece in chain.astream(turns(SAID))]
    assert pieces == apieces == ["The ", "user ", "has ", "moved ", "to ", "Porto."]


def test_a_name_alone_finds_its_server_by_the_environment(
    name: str, llm: Provider, monkeypatch: pytest.MonkeyPatch, dsn: str
) -> None:
    llm.default = FACTS
    for variable in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "OLLAMA_HOST"):
        monkeypatch.setenv(variable, llm.base_url(variable.partition("_")[0].lower()))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    with PgMem(dsn, model=f"{name}:little-one", formation="manual") as mem:
        mem.session.create("s1", user_id="ada").add_turn("user", SAID)
        assert mem.form().facts == 1
        [fact] = mem.facts(user_id="ada")
    assert (fact.value, fact.authority) == ("Porto", Authority.user)


# -- what fails --------------------------------------------------------------------------------------------------

FAILURES: dict[str, str | int | float] = {
    "too many requests": 429,
    "a broken server": 500,
    "silence": 5.0,
    "no JSON": "I am sorry, I cannot do that.",
    "half of the JSON": FACTS[: len(FACTS) // 2],
}


@pytest.mark.parametrize("failure", list(FAILURES))
async def test_a_failure_is_an_extraction_error(name: str, llm: Provider, failure: str) -> None:
    extractor = ChainExtractor(model_of(name, llm))
    llm.answers += [FAILURES[failure]] * 4
    with pytest.raises(ExtractionError):
        extractor.extract(turns(SAID), [])
    llm.answers[:] = [FAILURES[failure]] * 4
    with pytest.raises(ExtractionError):
        await extractor.aextract(turns(SAID), [])
    llm.answers.clear()
    llm.default = FACTS
    assert [draft.value for draft in extractor.extract(turns(SAID), [])] == ["Porto"]


async def test_failures_lose_nothing(make_memory: Maker, name: str, llm: Provider) -> None:
    memory = await make_memory(model=model_of(name, llm), formation="manual")
    session = await memory.session.create("s1", user_id="ada")
    await session.add_turn("user", SAID)
    for failure in (429, 500, "I am sorry, I cannot do that."):
        llm.answers[:] = [failure] * 4
        report = await memory.form()
        assert list(report.errors) == ["s1"]
        assert report.facts == 0
        assert await memory.facts(user_id="ada") == []
        assert [turn.text for turn in await session.turns()] == [SAID]
    llm.answers.clear()
    llm.default = FACTS
    assert (await memory.form()).facts == 1
    assert [fact.value for fact in await memory.facts(user_id="ada")] == ["Porto"]


async def test_a_stream_that_breaks_off_keeps_nothing(name: str, llm: Provider) -> None:
    chain = episode_summary_chain(f"{name}:little-one", **options_of(name, llm))
    for failure in (429, 500):
        llm.answers[:] = [failure]
        with pytest.raises(Exception, match=r"(?s).*") as caught:
            list(chain.stream(turns(SAID)))
        assert type(caught.value).__module__.split(".")[0].removeprefix("langchain_") in (name, "httpx")
    llm.answers[:] = [""]
    with pytest.raises(ExtractionError, match="empty"):
        list(chain.stream(turns(SAID)))


# -- composed with an application's own ----------------------------------------------------------------------------


async def test_history_then_extraction_then_store(memory: Face, face: str) -> None:
    session = await memory.session.create("s1", user_id="ada")
    await session.add_turn("user", SAID)

    def load(session_id: str) -> Any:
        return memory.target.session.get(session_id).turns()

    async def aload(session_id: str) -> Any:
        return await (await memory.target.session.get(session_id)).turns()

    def each(drafts: Any) -> list[tuple[str, Any, Any]]:
        return [(one.predicate, one.value, Evidence(turn_id=one.turn_id, quote=one.quote)) for one in drafts]

    def keep(drafts: Any) -> list[Any]:
        where = session.target
        return [where.observe(p, v, evidence=e, authority="user") for p, v, e in each(drafts)]

    async def akeep(drafts: Any) -> list[Any]:
        where = session.target
        return [await where.observe(p, v, evidence=e, authority="user") for p, v, e in each(drafts)]

    def refuse(_: Any) -> Any:
        raise AssertionError("the other form was called")

    history = RunnableLambda(load if face == "sync" else refuse, aload)
    store = RunnableLambda(keep if face == "sync" else refuse, akeep)
    chain = history | extraction_chain(Scripted(replies=[FACTS] * 2)) | store
    [fact] = chain.invoke("s1") if face == "sync" else await chain.ainvoke("s1")
    assert (fact.predicate, fact.value, fact.authority) == ("lives_in", "Porto", "user")
    assert fact.evidence[0].quote == SAID
    assert [one.value for one in await memory.facts(SubjectRef("user", "ada"))] == ["Porto"]


def test_extraction_needs_langchain_core_alone() -> None:
    out = python(
        """
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from pgmem_langchain import extraction_chain
from tests.scripted import turns
chain = extraction_chain(GenericFakeChatModel(messages=iter([AIMessage(sys.argv[1])])))
print([draft.value for draft in chain.invoke(turns(sys.argv[2]))])
""",
        FACTS,
        SAID,
        hidden=_OTHERS,
    )
    assert out.strip() == "['Porto']"


def test_every_chain_is_here() -> None:
    said = "A talk of Porto."
    chains = [episode_summary_chain, running_summary_chain]
    assert [make(Scripted(replies=[said])).invoke(turns(SAID)) for make in chains] == [said] * 2
    assert narrative_chain(Scripted(replies=[said])).invoke({"episodes": ["moved"]}) == said
