"""pgmem for LlamaIndex: memory for chat engines and agents, chat stores, a retriever."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgmem_llamaindex.block import PgMemMemoryBlock
    from pgmem_llamaindex.chat_store import PgMemAsyncChatStore, PgMemChatStore
    from pgmem_llamaindex.convert import chat_message, turn_arguments
    from pgmem_llamaindex.handle import close_memories, register_memory
    from pgmem_llamaindex.memory import PgMemMemory
    from pgmem_llamaindex.retriever import PgMemRetriever

__all__ = [
    "PgMemAsyncChatStore",
    "PgMemChatStore",
    "PgMemMemory",
    "PgMemMemoryBlock",
    "PgMemRetriever",
    "chat_message",
    "close_memories",
    "register_memory",
    "turn_arguments",
]

# Where each name lives; imported when first used.
_HOMES = {
    "pgmem_llamaindex.block": "PgMemMemoryBlock",
    "pgmem_llamaindex.chat_store": "PgMemAsyncChatStore PgMemChatStore",
    "pgmem_llamaindex.convert": "chat_message turn_arguments",
    "pgmem_llamaindex.handle": "close_memories register_memory",
    "pgmem_llamaindex.memory": "PgMemMemory",
    "pgmem_llamaindex.retriever": "PgMemRetriever",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'pgmem_llamaindex' has no attribute {name!r}")
        try:
            value = getattr(import_module(home), name)
        except ModuleNotFoundError as exc:
            if (exc.name or "").partition(".")[0] != "llama_index":
                raise
            from pgmem_core.errors import MissingExtra

            raise MissingExtra(f"{name} needs llama-index-core; pip install 'pgmem-ai[llamaindex]'") from exc
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
