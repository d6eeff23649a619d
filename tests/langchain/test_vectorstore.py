"""Documents in pgmem's tables as a LangChain vector store, and langchain-postgres' own store on a view of memories."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from pgmem_core import InvalidArgument, InvalidFilter, MemoryStore, PgMem
from pgmem_langchain import PgMemVectorStore
from tests.fix_memory import Face, FakeEmbedder, Maker


def unit(x: float, y: float) -> list[float]:
    return [x, y, 0, 0, 0, 0, 0, 0]


COMPASS = {
    "north": unit(1, 0), "nearly": unit(0.9, 0.1), "east": unit(0, 1), "south": unit(-1, 0), "west": unit(0, -1),
}  # fmt: skip


class Shelf:
    """A vector store used as its face says."""

    def __init__(self, memory: Face, **options: Any) -> None:
        self.store = PgMemVectorStore(memory.target, **options)
        self._sync = memory.face == "sync"

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._sync:
                return await asyncio.to_thread(getattr(self.store, name), *args, **kwargs)
            return await getattr(self.store, f"a{name}")(*args, **kwargs)

        return call


def texts(found: list[Document]) -> list[str]:
    return [document.page_content for document in found]


@pytest.fixture
async def compass(make_memory: Maker) -> Shelf:
    shelf = Shelf(await make_memory(embedder=FakeEmbedder(COMPASS)))
    await shelf.add_texts(list(COMPASS), [{"rank": n} for n in range(5)], ids=list(COMPASS))
    return shelf


async def test_the_nearest_come_first_with_their_similarity(compass: Shelf) -> None:
    found = await compass.similarity_search_with_score("north", 5)
    assert texts([document for document, _ in found])[:2] == ["north", "nearly"]
    assert [round(score, 2) for _, score in found] == [1.0, 0.99, 0.0, 0.0, -1.0]
    assert found[0][0] == Document(id="north", page_content="north", metadata={"rank": 0})
    assert texts(await compass.similarity_search_by_vector(COMPASS["south"], k=1)) == ["south"]
    assert await compass.similarity_search("north", k=0) == []


async def test_c10_relevance_is_between_0_and_1_without_a_warning(compass: Shelf) -> None:
    found = await compass.similarity_search_with_relevance_scores("north", 5)
    assert [round(score, 2) for _, score in found] == [1.0, 1.0, 0.5, 0.5, 0.0]
    retriever = compass.store.as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.9, "k": 5}
    )
    assert texts(await retriever.ainvoke("north")) == ["north", "nearly"]


async def test_variety(compass: Shelf) -> None:
    assert texts(await compass.max_marginal_relevance_search("north", k=2, fetch_k=5, lambda_mult=1.0)) == [
        "north", "nearly",
    ]  # fmt: skip
    found = await compass.max_marginal_relevance_search("north", k=2, fetch_k=5, lambda_mult=0.1)
    assert texts(found) == ["north", "south"]
    narrow = await compass.max_marginal_relevance_search("north", k=2, filter={"rank": {"in": [2, 4]}})
    assert sorted(texts(narrow)) == ["east", "west"]


FILTERS: list[tuple[dict[str, Any], set[str]]] = [
    ({"rank": {"gte": 3}}, {"ten", "tags"}),
    ({"rank": {"$gte": 3}}, {"ten", "tags"}),
    ({"rank": {"in": []}}, set()),
    ({"rank": {"$nin": [2, 10]}}, {"null", "none", "tags"}),
    ({"$or": [{"rank": 2}, {"flag": True}]}, {"two", "ten"}),
    ({"not": {"rank": {"gte": 3}}}, {"two", "null", "none"}),
    ({"rank": None}, {"null"}),
    ({"flag": "true"}, set()),
    ({"tags": "vip"}, {"tags"}),
    ({"place.city": "Porto"}, {"none"}),
]


async def test_c11_filters(make_memory: Maker) -> None:
    shelf = Shelf(await make_memory(embedder=FakeEmbedder()))
    rows: dict[str, dict[str, Any]] = {
        "two": {"rank": 2}, "ten": {"rank": 10, "flag": True}, "null": {"rank": None},
        "none": {"place": {"city": "Porto"}}, "tags": {"rank": 3, "tags": ["vip"]},
    }  # fmt: skip
    await shelf.add_texts(list(rows), list(rows.values()))
    for filter, wanted in FILTERS:
        assert set(texts(await shelf.similarity_search("two", k=10, filter=filter))) == wanted, filter


async def test_c11_what_is_not_supported_raises(compass: Shelf) -> None:
    with pytest.raises(InvalidFilter, match="like"):
        await compass.similarity_search("north", filter={"rank": {"$like": "x%"}})
    with pytest.raises(InvalidArgument, match="'fliter'"):
        await compass.similarity_search("north", fliter={})


AWKWARD = [
    "a-b", "a:b", "a b", "o'neil@example.org", "{x}", "用户1", "7", "x" * 200, "0b0e8f0e-3f5e-4a0f-8d41-0c6e0f3f0b11",
]  # fmt: skip


async def test_a7_any_id_in_any_place(make_memory: Maker) -> None:
    memory = await make_memory(embedder=FakeEmbedder())
    for id in AWKWARD:
        places = [
            Shelf(memory), Shelf(memory, collection="other"), Shelf(memory, user_id=id), Shelf(memory, group_id=id),
        ]  # fmt: skip
        for n, shelf in enumerate(places):
            assert await shelf.add_texts([f"text {n}"], ids=[id]) == [id]
        for n, shelf in enumerate(places):
            assert await shelf.get_by_ids([id, "absent"]) == [Document(id=id, page_content=f"text {n}")]
            assert texts(await shelf.similarity_search("text 0", k=10)) == [f"text {n}"]
        await places[0].delete([id, "absent"])
        assert await places[0].get_by_ids([id]) == []
        assert [len(await shelf.get_by_ids([id])) for shelf in places[1:]] == [1, 1, 1]
        await places[1].delete()
        assert await places[1].similarity_search("text", k=10) == []
        assert len(await places[2].similarity_search("text", k=10)) == 1


async def test_a_document_takes_the_place_of_the_one_with_its_id(compass: Shelf) -> None:
    assert await compass.add_documents([
        Document("east", id="north"), Document("west", id="a", metadata={"v": 1}), Document("south", id="a"),
    ]) == ["north", "a", "a"]  # fmt: skip
    assert await compass.get_by_ids(["a", "north"]) == [Document("south", id="a"), Document("east", id="north")]
    assert len(await compass.similarity_search("north", k=100)) == 6


async def test_documents_without_ids_get_some_and_are_found_by_them(compass: Shelf) -> None:
    made = await compass.add_texts(["north", "north"])
    assert len(set(made)) == 2
    assert [document.id for document in await compass.get_by_ids(made[::-1])] == made[::-1]


async def test_what_is_unfit_is_refused_and_nothing_stored(compass: Shelf) -> None:
    calls: list[tuple[list[Any], dict[str, Any], str]] = [
        ([["a", " "]], {}, "document 2 of 2: the content of this document is blank"),
        ([["a"], [{"x": b"y"}]], {}, r'metadata\["x"\] is of type bytes'),
        ([["a"], [{"pgmem:id": 1}]], {}, "'pgmem:id'"),
        ([["a", "b"], [{}]], {}, "2 texts, 1 metadatas and 2 ids"),
        ([["a"]], {"ids": [""]}, "id is ''"),
    ]
    for given, named, said in calls:
        with pytest.raises(InvalidArgument, match=said):
            await compass.add_texts(*given, **named)
    assert len(await compass.similarity_search("north", k=100)) == 5


async def test_b2_b3_awkward_text_in_one_document_spoils_no_other(compass: Shelf) -> None:
    odd = Document("a\x00b \\u0000", id="odd", metadata={"k\x00": ["\x00", float("inf")], "u": "\\u0000"})
    await compass.add_documents([odd])
    assert await compass.get_by_ids(["odd"]) == [odd]
    assert len(await compass.similarity_search("north", k=10)) == 6
    assert texts(await compass.similarity_search("north", k=1, filter={"rank": 2})) == ["east"]


async def test_a_users_documents_are_part_of_his_memory(make_memory: Maker) -> None:
    memory = await make_memory()
    await Shelf(memory, user_id="u1", collection="handbook").add_texts(["The boat house opens at six."], ids=["p1"])
    [found] = await memory.search("when does the boat house open?", user_id="u1")
    assert (found.content, found.kind, found.session_id) == ("The boat house opens at six.", "document", "handbook")
    assert await memory.search("boat house", user_id="u2") == []


async def test_eight_writers_of_the_same_documents(make_memory: Maker) -> None:
    memory = await make_memory(embedder=FakeEmbedder())
    shelf = Shelf(memory)
    names = [f"d{n}" for n in range(12)]
    orders = [names, names[::-1]] * 4
    await asyncio.gather(*(shelf.add_texts([f"{w} {n}" for n in order], ids=order) for w, order in enumerate(orders)))
    found = await shelf.get_by_ids(names)
    assert [document.id for document in found] == names


def test_a_dsn_and_an_embedding_are_enough(dsn: str) -> None:
    embedding = DeterministicFakeEmbedding(size=16)
    made = PgMemVectorStore.from_texts(["foo", "bar"], embedding, [{"n": 1}, {"n": 2}], ids=["1", "2"], dsn=dsn)
    try:
        assert texts(made.similarity_search("bar", k=1)) == ["bar"]
        assert made.embeddings is not None
        assert made.embeddings.embed_query("foo") == pytest.approx(embedding.embed_query("foo"), abs=1e-6)
    finally:
        made.close()


def test_what_it_is_made_of_is_checked(dsn: str) -> None:
    with PgMem(dsn, embedder=FakeEmbedder()) as mem:
        for arguments, said in [
            ({"store": mem, "embedding": object()}, "embedding goes with dsn"),
            ({"store": mem, "user_id": ""}, "user_id"),
            ({"store": mem, "collection": None}, "collection must be a string"),
            ({"store": "postgresql://x/y"}, "a DSN goes into dsn="),
        ]:
            with pytest.raises(InvalidArgument, match=said):
                PgMemVectorStore(**arguments)  # type: ignore[arg-type]


class TestConformance(VectorStoreIntegrationTests):
    """LangChain's own tests of vector stores, sync and async on one sync store."""

    @pytest.fixture
    def vectorstore(self, dsn: str) -> Iterator[VectorStore]:
        with MemoryStore(dsn, embedder=self.get_embeddings()) as store:
            yield PgMemVectorStore(store)
