"""Chat models of LangChain and LlamaIndex, accepted as they are. Neither is imported before one is needed."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pgmem_core.errors import InvalidArgument, MissingExtra
from pgmem_core.models.extras import extras_of

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import ChatGenerationChunk, ChatResult
    from langchain_core.runnables import Runnable

__all__ = ["as_chat_model", "chat_model_name", "structured_output"]

_WANTED = "a LangChain chat model (or any Runnable), a LlamaIndex LLM or 'provider:model'"
_LLAMA_CALLS = ("chat", "achat", "stream_chat", "astream_chat", "complete", "metadata")
_LLAMA_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "developer": "developer"}


def as_chat_model(obj: object, **options: Any) -> Runnable[Any, Any]:
    """Return the object as a Runnable that takes a prompt and gives a message (or a str).

    `obj`: a LangChain chat model or any other Runnable (returned as it is), a LlamaIndex `LLM` (wrapped as a
    chat model: traced, streaming, sync and async), or "provider:model" for LangChain's `init_chat_model`, to which
    `options` such as `base_url` or `temperature` go.

    Raises: InvalidArgument, MissingExtra (naming the extra to install).
    """
    if isinstance(obj, str):
        return _from_name(obj, options)
    if options:
        names = ", ".join(sorted(options))
        raise InvalidArgument(f"unknown option {names}; options go with 'provider:model' only")
    if isinstance(obj, type):
        raise InvalidArgument(f"got the class {obj.__name__}, wanted an instance: {obj.__name__}(...)")
    if _is_runnable(obj):
        return obj  # type: ignore[return-value]
    if all(hasattr(type(obj), name) for name in _LLAMA_CALLS):
        return _wrapper()(llm=obj)
    raise InvalidArgument(f"cannot chat with {type(obj).__name__}; wanted {_WANTED}")


def chat_model_name(model: object) -> str:
    """Return the name a model goes by in messages and records, without asking it."""
    for _ in range(5):  # bindings, retries and the like hold the model inside
        inner = getattr(model, "bound", None)
        if inner is None:
            break
        model = inner
    for attribute in ("model_name", "model", "model_id"):
        name = getattr(model, attribute, None)
        if isinstance(name, str) and name.strip():
            return name
    return type(model).__name__


def structured_output(chat: Runnable[Any, Any], schema: type) -> Runnable[Any, Any] | None:
    """Return the model made to answer in the schema, as {"raw", "parsed", "parsing_error"}; None if it can't."""
    from langchain_core.language_models import BaseChatModel

    # A binding would pass its method on and lose what it has bound; it is asked in plain text.
    if not isinstance(chat, BaseChatModel):
        return None
    kind = type(chat)
    if (
        kind.with_structured_output is BaseChatModel.with_structured_output
        and kind.bind_tools is BaseChatModel.bind_tools
    ):
        return None
    try:
        return chat.with_structured_output(schema, include_raw=True)
    except (NotImplementedError, TypeError, ValueError):
        return None


def _is_runnable(obj: object) -> bool:
    # Who hands us a Runnable has imported langchain-core already.
    base = getattr(sys.modules.get("langchain_core.runnables"), "Runnable", None)
    return base is not None and isinstance(obj, base)


def _from_name(name: str, options: dict[str, Any]) -> Runnable[Any, Any]:
    provider, colon, model = name.partition(":")
    if not (provider and colon and model):
        raise InvalidArgument(f"unknown chat model {name!r}; wanted {_WANTED}: 'openai:gpt-4o-mini'")
    try:
        init: Callable[..., Any] = importlib.import_module("langchain.chat_models").init_chat_model
    except ImportError as exc:
        raise MissingExtra(
            f"{name!r} needs langchain and the package of its provider; run pip install"
            f" 'pgmem-ai[{extras_of(provider)}]', or pass a chat model object"
        ) from exc
    try:
        made: Runnable[Any, Any] = init(name, **options)
    except ImportError as exc:
        raise MissingExtra(f"{name!r}: {exc}; pgmem-ai has the extras openai, anthropic and ollama") from exc
    except (ValueError, TypeError) as exc:
        raise InvalidArgument(f"{name!r}: {exc}") from exc
    return made


# -- LlamaIndex ------------------------------------------------------------------------------------------------


@functools.cache
def _wrapper() -> Callable[..., BaseChatModel]:
    """Return the class that makes a LangChain chat model of a LlamaIndex LLM."""
    try:
        from langchain_core.language_models import BaseChatModel
        from langchain_core.messages import AIMessage, AIMessageChunk
        from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
    except ImportError as exc:
        raise MissingExtra(
            "forming memory with a LlamaIndex LLM needs langchain-core; run pip install 'pgmem-ai[langchain]'"
        ) from exc

    def chunk_of(response: Any) -> ChatGenerationChunk:
        message = AIMessageChunk(content=response.delta or "", response_metadata=_metadata(response))
        return ChatGenerationChunk(message=message)

    def result_of(response: Any) -> ChatResult:
        message = AIMessage(content=response.message.content or "", response_metadata=_metadata(response))
        return ChatResult(generations=[ChatGeneration(message=message)])

    class LlamaIndexChatModel(BaseChatModel):
        """A LlamaIndex LLM as a LangChain chat model. Text goes in and comes out; tools are not bound."""

        llm: Any

        @property
        def _llm_type(self) -> str:
            return "llama-index"

        @property
        def model_name(self) -> str:
            """The name LlamaIndex knows the model by."""
            name = getattr(self.llm.metadata, "model_name", None)
            return name if isinstance(name, str) and name != "unknown" else type(self.llm).__name__

        @property
        def _identifying_params(self) -> dict[str, Any]:
            return {"model_name": self.model_name}

        def _generate(
            self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
        ) -> ChatResult:
            return result_of(self.llm.chat(_llama_messages(messages), **_with_stop(stop, kwargs)))

        async def _agenerate(
            self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
        ) -> ChatResult:
            return result_of(await self.llm.achat(_llama_messages(messages), **_with_stop(stop, kwargs)))

        def _stream(
            self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
        ) -> Iterator[ChatGenerationChunk]:
            for response in self.llm.stream_chat(_llama_messages(messages), **_with_stop(stop, kwargs)):
                chunk = chunk_of(response)
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

        async def _astream(
            self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
        ) -> AsyncIterator[ChatGenerationChunk]:
            async for response in await self.llm.astream_chat(_llama_messages(messages), **_with_stop(stop, kwargs)):
                chunk = chunk_of(response)
                if run_manager:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    return LlamaIndexChatModel


def _llama_messages(messages: Sequence[BaseMessage]) -> list[Any]:
    types = importlib.import_module("llama_index.core.base.llms.types")
    return [
        types.ChatMessage(role=types.MessageRole(_LLAMA_ROLES.get(message.type, "user")), content=_text(message))
        for message in messages
    ]


def _text(message: BaseMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "\n".join(block if isinstance(block, str) else str(block.get("text") or "") for block in message.content)


def _with_stop(stop: list[str] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**kwargs, "stop": stop} if stop else kwargs


def _metadata(response: Any) -> dict[str, Any]:
    """Why the model stopped, wherever its provider's own answer says it."""
    found: dict[str, Any] = {}
    raw = getattr(response, "raw", None)
    choices = _get(raw, "choices")
    places = [raw, getattr(response, "additional_kwargs", None)]
    if isinstance(choices, list | tuple) and choices:
        places.append(choices[0])
    for place in places:
        for name in ("finish_reason", "stop_reason", "done_reason"):
            reason = _get(place, name)
            if isinstance(reason, str):
                found[name] = reason
    return found


def _get(place: Any, name: str) -> Any:
    return place.get(name) if isinstance(place, dict) else getattr(place, name, None)
