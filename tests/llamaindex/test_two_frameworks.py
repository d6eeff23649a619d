"""One user, one database: what LangChain's side learnt LlamaIndex's recalls, and the other way round."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.chat_engine import SimpleChatEngine

from pgmem_core import AsyncPgMem, BundledEmbedder
from pgmem_langchain import PgMemChatMessageHistory
from pgmem_langchain import PgMemRetriever as LangChainRetriever
from pgmem_llamaindex import PgMemMemory, PgMemRetriever
from tests.acceptance.telling import reading
from tests.fix_memory import Face
from tests.langchain.agents import agent_of, invoke, sent_text, thread
from tests.llamaindex.scripted import Llama, recalled, texts

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of LlamaIndex's agents


@pytest.fixture
async def joint(dsn: str) -> AsyncIterator[Face]:
    """A memory with an extractor, for both."""
    memory = Face(AsyncPgMem(dsn, embedder=BundledEmbedder(), extractor=reading()), "async")
    await memory.setup()
    yield memory
    await memory.close()


async def test_what_an_agent_of_langchain_learnt_an_engine_of_llamaindex_recalls(joint: Face) -> None:
    agent, _ = agent_of(joint, "Noted, the spare key is under the third flowerpot.")
    await invoke(
        "async", agent, "Hello. My city is Porto, and the spare key is under the third flowerpot", thread("lc")
    )
    await joint.form()
    llm = Llama(replies=["under the pot"])
    memory = PgMemMemory.from_defaults("li", user_id="ada", mem=joint.target)
    await SimpleChatEngine.from_defaults(llm=llm, memory=memory).achat("Where is the spare key?")
    [shown] = recalled(llm.asked[0])
    assert "third flowerpot" in shown
    assert "Porto" in shown.partition("<memory recalled")[0]  # the fact, and not only what was said
    stranger = Llama()
    other = PgMemMemory.from_defaults("li2", user_id="bob", mem=joint.target)
    await SimpleChatEngine.from_defaults(llm=stranger, memory=other).achat("Where is the spare key?")
    assert recalled(stranger.asked[0]) == []


async def test_what_an_agent_of_llamaindex_learnt_an_agent_of_langchain_recalls(joint: Face) -> None:
    memory = PgMemMemory.from_defaults("li", user_id="ada", mem=joint.target)
    learner = FunctionAgent(llm=Llama(replies=["Noted."]), tools=[])
    await learner.run("My city is Porto, and the spare key is under the third flowerpot", memory=memory)
    await joint.form()
    agent, model = agent_of(joint, "under the pot")
    await invoke("async", agent, "Where is the spare key?", thread("lc"))
    assert "third flowerpot" in sent_text(model.requests[0])
    assert "Porto" in sent_text(model.requests[0])


async def test_one_session_is_read_by_both(joint: Face) -> None:
    """Each reads the other's messages, and both retrievers find the same."""
    history = PgMemChatMessageHistory("joint", mem=joint.target, user_id="ada")
    await history.aadd_messages([("user", "the spare key is under the third flowerpot"), ("ai", "noted")])  # type: ignore[list-item]
    memory = PgMemMemory.from_defaults("joint", user_id="ada", mem=joint.target)
    assert texts(await memory.aget()) == ["the spare key is under the third flowerpot", "noted"]
    await SimpleChatEngine.from_defaults(llm=Llama(replies=["gladly"]), memory=memory).achat("thank you")
    assert [message.content for message in await history.aget_messages()] == [
        "the spare key is under the third flowerpot", "noted", "thank you", "gladly",
    ]  # fmt: skip
    await joint.form()
    theirs = await LangChainRetriever(mem=joint.target, user_id="ada").ainvoke("where is the spare key?")
    ours = await PgMemRetriever(joint.target, user_id="ada").aretrieve("where is the spare key?")
    assert theirs[0].page_content == ours[0].node.get_content() == "the spare key is under the third flowerpot"
