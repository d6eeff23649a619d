"""The retriever: nodes with their story, every operator of MetadataFilters, engines; LlamaIndex models in the core."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import CustomLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import MetadataMode
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from pydantic import Field

from pgmem_core import InvalidArgument, InvalidFilter, SubjectRef
from pgmem_core.filters import compile_filter
from pgmem_llamaindex import PgMemChatStore, PgMemRetriever
from pgmem_llamaindex.filtering import translated
from tests.fix_memory import Face, Maker
from tests.llamaindex.fix_llamaindex import mixed

__all__ = ["mixed"]

WHEN = datetime(2024, 2, 29, 7, 30, tzinfo=UTC)


class Llama(CustomLLM):
    """Answers with `text`. `asked`: what it was given, every prompt as one text."""

    text: str = "noted"
    asked: list[str] = Field(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="little-llama", is_chat_model=True)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self.asked.append(prompt)
        return CompletionResponse(text=self.text)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        yield self.complete(prompt)

    def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        self.asked.append("\n".join(f"{message.role.value}: {message.content}" for message in messages))
        return ChatResponse(message=ChatMessage(role="assistant", content=self.text))


async def retrieve(memory: Face, query: str, **options: Any) -> list[Any]:
    retriever = PgMemRetriever(memory.target, **{"user_id": "u", **options})
    if memory.face == "async":
        return await retriever.aretrieve(query)
    return await asyncio.to_thread(retriever.retrieve, query)


async def fill(memory: Face) -> Any:
    session = await memory.session.create("s", user_id="u")
    turn = await session.add_turn(
        "user", "My bicycle is green and I ride it to work", name="Ada", created_at=WHEN,
        metadata={"topic": "sport", "kind": "of mine", "rank": 3},
    )  # fmt: skip
    await session.add_turn("assistant", "Cycling to work keeps you fit")
    await session.add_turn("user", "My flat is in Lisbon", metadata={"topic": "home"})
    await memory.form()
    return turn


# -- nodes -----------------------------------------------------------------------------------------------------


async def test_a_node_tells_where_a_memory_is_from(memory: Face) -> None:
    turn = await fill(memory)
    nodes = await retrieve(memory, "what colour is the bicycle?", similarity_top_k=2)
    assert 1 <= len(nodes) <= 2
    best = nodes[0]
    assert best.node.node_id == turn.id
    assert best.node.get_content(MetadataMode.NONE) == turn.text
    assert best.node.metadata == {
        "id": turn.id, "kind": "turn", "score": round(best.score, 6), "created_at": WHEN.isoformat(),
        "session_id": "s", "seq": 1, "role": "user", "name": "Ada", "topic": "sport", "rank": 3,
        "metadata.kind": "of mine",
    }  # fmt: skip
    assert best.score == (await memory.search("what colour is the bicycle?", user_id="u"))[0].score
    shown = best.node.get_content(MetadataMode.LLM)
    assert "2024-02-29" in shown
    assert "Ada" in shown
    assert turn.id not in shown


async def test_a_fact_brings_its_evidence_and_its_times(memory: Face) -> None:
    turn = await fill(memory)
    session = await memory.session.get("s")
    fact = await session.observe(
        "bicycle.colour", "green", authority="user", evidence=[turn, "the shop's invoice"], valid_from=WHEN
    )
    await memory.form()
    [node] = await retrieve(memory, "bicycle colour green", kinds="fact")
    assert node.node.node_id == fact.id
    met = node.node.metadata
    assert (met["kind"], met["authority"], met["valid_from"]) == ("fact", "user", WHEN.isoformat())
    assert met["evidence"] == [turn.id, "the shop's invoice"]
    assert "valid_to" not in met


async def test_conditions_bound_what_is_found(memory: Face) -> None:
    await fill(memory)
    other = await memory.session.create("s2", user_id="u")
    await other.add_turn("user", "My second bicycle is red", created_at=datetime(2020, 1, 1, tzinfo=UTC))
    stranger = await memory.session.create("s3", user_id="stranger")
    await stranger.add_turn("user", "My bicycle is stolen")
    await memory.form()

    async def found(**options: Any) -> set[str]:
        return {node.node.text for node in await retrieve(memory, "bicycle", floor=None, similarity_top_k=9, **options)}

    assert "My second bicycle is red" in await found()
    assert not [text for text in await found() if "stolen" in text]
    assert await found(session_id="s2") == {"My second bicycle is red"}
    assert await found(before=datetime(2021, 1, 1, tzinfo=UTC)) == {"My second bicycle is red"}
    assert "My second bicycle is red" not in await found(after=datetime(2021, 1, 1, tzinfo=UTC))
    assert await found(kinds=["episode"]) == set()
    assert await found(group_id="elsewhere") == set()
    assert await retrieve(memory, "bicycle", similarity_top_k=0) == []
    assert await retrieve(memory, " \n") == []


@pytest.mark.parametrize(
    "options",
    [
        {"user_id": ""}, {"user_id": None}, {"similarity_top_k": -1}, {"similarity_top_k": "4"}, {"kinds": [""]},
        {"after": WHEN.replace(tzinfo=None)}, {"filters": {"x": {"near": 1}}}, {"filters": "topic"}, {"session_id": ""},
    ],
    ids=repr,
)  # fmt: skip
def test_a_bad_argument_is_refused_at_construction(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        PgMemRetriever(dsn="env:NOWHERE", **{"user_id": "u", **options})
    with pytest.raises(TypeError):
        PgMemRetriever(dsn="env:NOWHERE", user_id="u", top_k=3)
    assert PgMemRetriever(dsn="env:NOWHERE", user_id="u").similarity_top_k == 4


# -- MetadataFilters -------------------------------------------------------------------------------------------

ROWS: dict[str, dict[str, Any]] = {
    "two": {"rank": 2, "tags": ["a", "b"], "title": "Tax return", "e.g": 1},
    "ten": {"rank": 10, "tags": ["b", "c"], "title": "tax, again", "flag": True},
    "none": {"rank": None, "tags": [], "title": "100%_\\ (sic)", "flag": "true"},
    "bare": {"title": ""},
}
Op, Join = FilterOperator, FilterCondition


def one(key: str, operator: FilterOperator, value: Any) -> MetadataFilter:
    return MetadataFilter(key=key, operator=operator, value=value)


FILTERS: list[tuple[Any, str]] = [
    (one("rank", Op.EQ, 10), "ten"),
    (one("rank", Op.GT, 2), "ten"),
    (one("rank", Op.GTE, 2), "two ten"),
    (one("rank", Op.GTE, 3), "ten"),
    (one("rank", Op.LT, 10), "two"),
    (one("rank", Op.LTE, 10), "two ten"),
    (one("rank", Op.NE, 10), "two none bare"),
    (one("rank", Op.EQ, "10"), ""),
    (one("rank", Op.EQ, None), "none"),
    (one("rank", Op.IN, [2, 3, 10]), "two ten"),
    (one("rank", Op.IN, []), ""),
    (one("rank", Op.NIN, [2]), "ten none bare"),
    (one("rank", Op.NIN, []), "two ten none bare"),
    (one("tags", Op.CONTAINS, "b"), "two ten"),
    (one("tags", Op.ANY, ["a", "c"]), "two ten"),
    (one("tags", Op.ANY, []), ""),
    (one("tags", Op.ALL, ["a", "b"]), "two"),
    (one("tags", Op.ALL, []), "two ten none bare"),
    (one("tags", Op.IS_EMPTY, None), "none bare"),
    (one("rank", Op.IS_EMPTY, None), "none bare"),
    (one("title", Op.IS_EMPTY, None), "bare"),
    (one("nothing", Op.IS_EMPTY, None), "two ten none bare"),
    (one("title", Op.TEXT_MATCH, "ax"), "two ten"),
    (one("title", Op.TEXT_MATCH, "Tax"), "two"),
    (one("title", Op.TEXT_MATCH_INSENSITIVE, "TAX"), "two ten"),
    (one("title", Op.TEXT_MATCH, "%_\\ (s"), "none"),
    (one("title", Op.TEXT_MATCH, ".*"), ""),
    (one("title", Op.TEXT_MATCH, '"') , ""),
    (one("title", Op.TEXT_MATCH, "\x00"), ""),
    (one("e.g", Op.EQ, 1), "two"),
    (one("flag", Op.EQ, "true"), "none"),
    (one("topic' = 'x' OR '1'='1", Op.EQ, "y"), ""),
    (MetadataFilters(filters=[one("rank", Op.EQ, 2), one("rank", Op.EQ, 10)], condition=Join.OR), "two ten"),
    (MetadataFilters(filters=[one("rank", Op.EQ, 2), one("rank", Op.EQ, 10)], condition=Join.NOT), "none bare"),
    (MetadataFilters(filters=[one("rank", Op.GT, 1), one("tags", Op.CONTAINS, "c")]), "ten"),
    (
        MetadataFilters(
            filters=[
                one("title", Op.TEXT_MATCH, "ax"),
                MetadataFilters(
                    filters=[one("tags", Op.CONTAINS, "a"), one("flag", Op.IS_EMPTY, None)], condition=Join.NOT
                ),
            ]
        ),
        "ten",
    ),
    ({"flag": True}, "ten"),
    ({"not": {"title": {"contains": "ax"}}}, "none bare"),
    ({"title": {"empty": False}}, "two ten none"),
    (None, "two ten none bare"),
    (MetadataFilters(filters=[]), "two ten none bare"),
]  # fmt: skip


async def test_c11_every_operator_finds_the_right_memories(memory: Face) -> None:
    session = await memory.session.create("s", user_id="u")
    await session.add_turns(
        [{"role": "user", "content": f"the record named {name}", "metadata": row} for name, row in ROWS.items()]
    )
    await memory.form()
    wrong = []
    for given, wanted in FILTERS:
        filters = MetadataFilters(filters=[given]) if isinstance(given, MetadataFilter) else given
        nodes = await retrieve(memory, "the record named", filters=filters, floor=None, similarity_top_k=9)
        found = {node.node.text.rpartition(" ")[2] for node in nodes}
        if found != set(wanted.split()):
            wrong.append((given, found, wanted))
    assert wrong == []
    assert {given.operator for given, _ in FILTERS if isinstance(given, MetadataFilter)} == set(FilterOperator)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (one("rank", Op.EQ, [1, 2]), "'rank' =="),
        (one("rank", Op.IN, 1), "'rank' in takes a list"),
        (one("rank", Op.GT, None), "gt takes"),
        (one("tags", Op.ALL, "a"), "'tags' all takes a list"),
        (one("title", Op.TEXT_MATCH, 3), "contains takes a string"),
        (one("kind", Op.EQ, "fact"), "kinds="),
        (one("created_at", Op.GT, "2024"), "after="),
        (MetadataFilters(filters=[MetadataFilters(filters=[])]), "without filters"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused_by_name(given: Any, named: str) -> None:
    filters = MetadataFilters(filters=[given]) if isinstance(given, MetadataFilter) else given
    with pytest.raises(InvalidFilter, match=named):
        compile_filter(translated(filters))


def test_an_operator_that_nobody_knows_yet_is_refused() -> None:
    strange = one("rank", Op.EQ, 1).model_copy(update={"operator": type("Op", (), {"value": "near"})()})
    with pytest.raises(InvalidFilter, match="'rank' near"):
        translated(MetadataFilters(filters=[strange]))


# -- engines ---------------------------------------------------------------------------------------------------


async def test_in_a_query_engine(memory: Face) -> None:
    await fill(memory)
    llm = Llama(text="It is green.")
    retriever = PgMemRetriever(memory.target, user_id="u")
    engine = RetrieverQueryEngine(retriever, get_response_synthesizer(llm=llm))
    question = "what colour is the bicycle?"
    answer: Any = await (
        engine.aquery(question) if memory.face == "async" else asyncio.to_thread(engine.query, question)
    )
    assert str(answer) == "It is green."
    assert "My bicycle is green" in llm.asked[0]
    assert answer.source_nodes[0].node.metadata["session_id"] == "s"


async def test_in_a_context_chat_engine_with_the_chat_store(mixed: Face) -> None:
    await fill(mixed)
    llm = Llama(text="Green.")
    store = PgMemChatStore(mixed.target, user_id="u")
    engine = ContextChatEngine.from_defaults(
        retriever=PgMemRetriever(mixed.target, user_id="u"), llm=llm,
        memory=ChatMemoryBuffer.from_defaults(chat_store=store, chat_store_key="chat", token_limit=3000),
    )  # fmt: skip
    assert str(engine.chat("what colour is the bicycle?")) == "Green."
    assert "My bicycle is green" in llm.asked[0]
    await engine.achat("and where is my flat?")
    assert "My flat is in Lisbon" in llm.asked[1]
    assert "what colour is the bicycle?" in llm.asked[1]
    said = [(message.role.value, message.content) for message in store.get_messages("chat")]
    assert said == [
        ("user", "what colour is the bicycle?"), ("assistant", "Green."), ("user", "and where is my flat?"),
        ("assistant", "Green."),
    ]  # fmt: skip


# -- models of LlamaIndex in the core ----------------------------------------------------------------------------


class Directions(BaseEmbedding):
    """Two directions: what has to do with wheels, and the rest."""

    asked: list[str] = Field(default_factory=list)

    def _get_text_embedding(self, text: str) -> list[float]:
        self.asked.append(text)
        return [1.0, 0.1] if any(word in text for word in ("bicycle", "tandem")) else [0.1, 1.0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


async def test_an_embedding_model_of_llamaindex_is_an_embedder(make_memory: Maker) -> None:
    model = Directions(model_name="directions")
    memory: Face = await make_memory(embedder=model)
    await fill(memory)
    assert any("My bicycle is green" in text for text in model.asked)
    # No word in common: found by meaning alone.
    [best, *_] = await retrieve(memory, "tandem", floor=None)
    assert best.node.text.startswith("My bicycle is green")
    other: Face = await make_memory(embedder=MockEmbedding(embed_dim=3), schema_name="other")
    await fill(other)
    assert await other.search("bicycle", user_id="u")


async def test_an_llm_of_llamaindex_extracts_the_facts(make_memory: Maker) -> None:
    llm = Llama(
        text='{"facts": [{"action": "assert", "subject": "user", "predicate": "home.city", "value": "Lisbon",'
        ' "turn": 1, "quote": "My flat is in Lisbon"}]}'
    )
    memory: Face = await make_memory(model=llm)
    session = await memory.session.create("s", user_id="u")
    turn = await session.add_turn("user", "My flat is in Lisbon")
    await memory.form()
    assert any("My flat is in Lisbon" in asked for asked in llm.asked)
    facts = await memory.facts(SubjectRef("user", "u"))
    assert [(fact.predicate, fact.value) for fact in facts] == [("home.city", "Lisbon")]
    assert [one.turn_id for one in facts[0].evidence] == [turn.id]
    [node, *_] = await retrieve(memory, "home city", kinds="fact", floor=None)
    assert node.node.metadata["evidence"] == [turn.id]
