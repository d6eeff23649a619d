"""The shape that all prompts share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgmem_core.errors import MissingExtra

if TYPE_CHECKING:
    from langchain_core.prompts import ChatPromptTemplate

__all__ = ["over_conversation"]


def over_conversation(instructions: str, *, max_words: int | None = None) -> ChatPromptTemplate:
    """Return the instructions as a system message, then the messages given as `conversation`.

    They are message objects, not templates: a brace in them, or in what was said, is a brace. `max_words` takes the
    place of MAX_WORDS in the instructions. Raises: MissingExtra.
    """
    try:
        from langchain_core.messages import SystemMessage
        from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
    except ImportError as exc:
        raise MissingExtra(
            "forming memory with a model needs langchain-core; run pip install 'pgmem-ai[langchain]'"
        ) from exc
    words = instructions if max_words is None else instructions.replace("MAX_WORDS", str(max_words))
    return ChatPromptTemplate.from_messages([SystemMessage(words), MessagesPlaceholder("conversation")])
