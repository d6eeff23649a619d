"""The shape that all prompts share, and what of LangChain the chains are built from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgmem_core.errors import MissingExtra

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.prompts import ChatPromptTemplate

__all__ = ["message", "over_conversation", "runnables"]


def over_conversation(instructions: str, *, max_words: int | None = None) -> ChatPromptTemplate:
    """Return the instructions as a system message, then the messages given as `conversation`.

    They are message objects, not templates: a brace in them, or in what was said, is a brace. `max_words` takes the
    place of MAX_WORDS in the instructions. Raises: MissingExtra.
    """
    runnables()
    from langchain_core.messages import SystemMessage
    from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder

    words = instructions if max_words is None else instructions.replace("MAX_WORDS", str(max_words))
    return ChatPromptTemplate.from_messages([SystemMessage(words), MessagesPlaceholder("conversation")])


def message(*parts: str) -> list[BaseMessage]:
    """Return the parts that are not empty as one message of the user, for `conversation`."""
    from langchain_core.messages import HumanMessage

    return [HumanMessage("\n".join(part for part in parts if part))]


def runnables() -> Any:
    """Return `langchain_core.runnables`. Raises: MissingExtra."""
    try:
        from langchain_core import runnables
    except ImportError as exc:
        raise MissingExtra(
            "forming memory with a model needs langchain-core; run pip install 'pgmem-ai[langchain]'"
        ) from exc
    return runnables
