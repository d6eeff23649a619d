"""pgmem for LangChain and LangGraph."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgmem_core.formation.chains import (
        episode_summary_chain,
        extraction_chain,
        narrative_chain,
        running_summary_chain,
    )
    from pgmem_langchain.chat_history import PgMemChatMessageHistory
    from pgmem_langchain.clients import close_clients
    from pgmem_langchain.importing import ImportReport, aimport_langchain_postgres, import_langchain_postgres
    from pgmem_langchain.middleware import PgMemMiddleware
    from pgmem_langchain.retriever import PgMemRetriever
    from pgmem_langchain.store import AsyncPgMemStore, PgMemStore
    from pgmem_langchain.tools import memory_tools
    from pgmem_langchain.vectorstore import PgMemVectorStore
    from pgmem_langchain.view import aas_vectorstore, as_vectorstore

__all__ = [
    "AsyncPgMemStore",
    "ImportReport",
    "PgMemChatMessageHistory",
    "PgMemMiddleware",
    "PgMemRetriever",
    "PgMemStore",
    "PgMemVectorStore",
    "aas_vectorstore",
    "aimport_langchain_postgres",
    "as_vectorstore",
    "close_clients",
    "episode_summary_chain",
    "extraction_chain",
    "import_langchain_postgres",
    "memory_tools",
    "narrative_chain",
    "running_summary_chain",
]

# Where each name lives; imported when first used, so that what needs langgraph asks only its users for it.
_HOMES = {
    "pgmem_core.formation.chains": "episode_summary_chain extraction_chain narrative_chain running_summary_chain",
    "pgmem_langchain.chat_history": "PgMemChatMessageHistory",
    "pgmem_langchain.clients": "close_clients",
    "pgmem_langchain.importing": "ImportReport aimport_langchain_postgres import_langchain_postgres",
    "pgmem_langchain.middleware": "PgMemMiddleware",
    "pgmem_langchain.retriever": "PgMemRetriever",
    "pgmem_langchain.store": "AsyncPgMemStore PgMemStore",
    "pgmem_langchain.tools": "memory_tools",
    "pgmem_langchain.vectorstore": "PgMemVectorStore",
    "pgmem_langchain.view": "aas_vectorstore as_vectorstore",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
# Packages that the extra `langchain` brings.
_EXTRA = ("langchain", "langchain_core", "langchain_postgres", "langgraph", "langsmith")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'pgmem_langchain' has no attribute {name!r}")
        try:
            value = getattr(import_module(home), name)
        except ModuleNotFoundError as exc:
            package = (exc.name or "").partition(".")[0]
            if package not in _EXTRA:
                raise
            from pgmem_core.errors import MissingExtra

            raise MissingExtra(
                f"{name} needs the package {package.replace('_', '-')!r}; pip install 'pgmem-ai[langchain]'"
            ) from exc
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
