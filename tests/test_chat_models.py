"""Chat models of other libraries, taken as they are."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata
from llama_index.core.llms import CustomLLM, MockLLM
from pydantic import Field

from pgmem_core.errors import InvalidArgument, MissingExtra
from pgmem_core.formation.parsing import stopped_early
from pgmem_core.models.chat import as_chat_model, chat_model_name
from tests.scripted import Scripted

SAID = '{"city": "{x}"} {{y}} %s ${z}'
ASK = [SystemMessage("be brief"), HumanMessage(SAID)]


class Llama(CustomLLM):
    """A LlamaIndex LLM with an async form of its own. `asked`: what it was given."""

    text: str = "Ana moved to Porto"
    finish: str = "stop"
    asked: list[list[ChatMessage]] = Field(default_factory=list)
    awaited: int = 0

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="little-llama")

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        raise NotImplementedError

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _answer(self, messages: Any, **fields: Any) -> ChatResponse:
        self.asked.append(list(messages))
        return self._response(self.text, **fields)

    def _response(self, text: str, **fields: Any) -> ChatResponse:
        raw = {"choices": [{"finish_reason": self.finish}]}
        return ChatResponse(message=ChatMessage(role="assistant", content=text), raw=raw, **fields)

    def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        return self._answer(messages)

    async def achat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        self.awaited += 1
        return self._answer(messages)

    def stream_chat(self, messages: Any, **kwargs: Any) -> Any:
        self.asked.append(list(messages))
        for word in self.text.split(" "):
            yield self._response(self.text, delta=word + " ")
        yield self._response(self.text, delta=None)

    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        self.awaited += 1

        async def stream() -> Any:
            for response in self.stream_chat(messages):
                yield response

        return stream()


def test_a_langchain_model_and_any_runnable_are_taken_as_they_are() -> None:
    model = Scripted(replies=["hi"])
    assert as_chat_model(model) is model
    bound = model.bind(temperature=0)
    assert as_chat_model(bound) is bound
    function: Any = RunnableLambda(lambda _: AIMessage("hi"))
    assert as_chat_model(function) is function


async def test_a_llamaindex_model_becomes_a_chat_model_with_all_its_ways() -> None:
    llm = Llama()
    model = as_chat_model(llm)
    assert model.invoke(ASK).content == llm.text
    assert (await model.ainvoke(ASK)).content == llm.text
    assert llm.awaited == 1
    assert [chunk.content for chunk in model.stream(ASK)][:2] == ["Ana ", "moved "]
    assert "".join([str(chunk.content) async for chunk in model.astream(ASK)]).strip() == llm.text
    assert llm.awaited == 2
    assert [reply.content for reply in model.batch([ASK, ASK])] == [llm.text] * 2
    for messages in llm.asked:
        assert [str(message.role.value) for message in messages] == ["system", "user"]
        assert [message.content for message in messages] == [message.content for message in ASK]


def test_a_llamaindex_model_says_why_it_stopped() -> None:
    model = as_chat_model(Llama(finish="length"))
    assert stopped_early(model.invoke(ASK)) == "length"
    assert "length" in [stopped_early(chunk) for chunk in model.stream(ASK)]
    assert stopped_early(as_chat_model(Llama()).invoke(ASK)) is None


async def test_llamaindexs_own_mock_works() -> None:
    model = as_chat_model(MockLLM())
    assert SAID in model.invoke(ASK).content
    assert SAID in (await model.ainvoke(ASK)).content
    assert SAID in "".join(str(chunk.content) for chunk in model.stream(ASK))


def test_a_string_goes_to_init_chat_model_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []

    def init(name: str, **options: Any) -> Scripted:
        got.append((name, options))
        if name.startswith("nobody:"):
            raise ValueError("Unsupported provider='nobody'")
        if name.startswith("openai:"):
            raise ImportError("Unable to import langchain_openai")
        return Scripted(replies=["hi"])

    module = types.ModuleType("langchain.chat_models")
    module.init_chat_model = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "langchain", types.ModuleType("langchain"))
    monkeypatch.setitem(sys.modules, "langchain.chat_models", module)
    model = as_chat_model("ollama:qwen3:4b", base_url="http://localhost:11434", temperature=0)
    assert model.invoke("hello").content == "hi"
    assert got == [("ollama:qwen3:4b", {"base_url": "http://localhost:11434", "temperature": 0})]
    with pytest.raises(MissingExtra, match="openai, anthropic and ollama"):
        as_chat_model("openai:gpt-4o-mini")
    with pytest.raises(InvalidArgument, match="Unsupported provider"):
        as_chat_model("nobody:x")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    with pytest.raises(MissingExtra, match=r"pip install 'pgmem-ai\[langchain,openai\]'"):
        as_chat_model("openai:gpt-4o-mini")


@pytest.mark.parametrize(
    ("given", "message"),
    [("gpt-4o", "wanted"), ("openai:", "openai:gpt-4o-mini"), ("", "unknown chat model"), (7, "cannot chat with int"),
     (None, "NoneType"), (Llama, "wanted an instance"), (object(), "LlamaIndex LLM")],
)  # fmt: skip
def test_what_cannot_chat_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        as_chat_model(given)


def test_options_are_refused_where_they_would_go_nowhere() -> None:
    with pytest.raises(InvalidArgument, match="temperature"):
        as_chat_model(Scripted(replies=["hi"]), temperature=0)


def test_models_are_known_by_their_names() -> None:
    assert chat_model_name(as_chat_model(Llama())) == "little-llama"
    assert chat_model_name(as_chat_model(MockLLM())) == "MockLLM"
    assert chat_model_name(Scripted(replies=[]).bind(stop=["x"])) == "Scripted"


def test_neither_framework_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, pgmem_core, pgmem_core.models.chat, pgmem_core.formation.extractors as e;"
        "assert not {'langchain_core', 'langchain', 'llama_index'} & set(sys.modules), sorted(sys.modules);"
        "sys.modules['langchain_core'] = None\n"
        "from pgmem_core.errors import MissingExtra\n"
        "class L: chat = achat = stream_chat = astream_chat = complete = metadata = None\n"
        "try: e.ChainExtractor(L())\n"
        "except MissingExtra as exc: assert 'pgmem-ai[langchain]' in str(exc)\n"
        "else: raise SystemExit('no error')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
