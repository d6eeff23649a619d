"""What importing the adapter costs and says, and what it does where langchain-core is all there is."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pgmem_langchain

# The packages beside langchain-core are hidden, as if they had not been installed.
_HIDE = """
import sys
from importlib.abc import MetaPathFinder

class Hide(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hide())
"""
_OTHERS = ("langchain", "langgraph", "langchain_postgres", "langchain_tests", "asyncpg")


def python(code: str, *arguments: str, hidden: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _HIDE.format(hidden=hidden) + code, *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_importing_it_says_nothing_and_loads_no_framework() -> None:
    out = python("import pgmem_langchain; print([m for m in sys.modules if m.startswith('lang')])")
    assert out.strip() == "[]"


def test_every_name_is_there_and_gives_no_warning() -> None:
    assert set(pgmem_langchain.__all__) <= set(dir(pgmem_langchain))
    tree = ast.parse(Path(pgmem_langchain.__file__).read_text("utf-8"))
    declared = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("pgmem_langchain.", "pgmem_core.formation."))
        for alias in node.names
    }
    assert declared == set(pgmem_langchain.__all__)
    for name in pgmem_langchain.__all__:
        assert getattr(pgmem_langchain, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'PgMemOracle'"):
        pgmem_langchain.PgMemOracle  # noqa: B018
    python("from pgmem_langchain import PgMemChatMessageHistory, PgMemRetriever, PgMemVectorStore")


def test_all_of_each_module_is_there() -> None:
    for name in ("chat_history", "clients", "convert", "importing", "retriever", "vectorstore", "view"):
        module: Any = importlib.import_module(f"pgmem_langchain.{name}")
        assert [one for one in module.__all__ if not hasattr(module, one)] == []


def test_with_langchain_core_alone_history_retriever_and_vector_store_work(dsn: str) -> None:
    out = python(
        """
from langchain_core.messages import AIMessage, HumanMessage
from pgmem_langchain import PgMemChatMessageHistory, PgMemRetriever, PgMemVectorStore, close_clients
history = PgMemChatMessageHistory("s", dsn=sys.argv[1], user_id="u1")
history.add_messages([HumanMessage("I keep bees on the roof"), AIMessage("How many hives?")])
print([message.text for message in history.messages])
print(PgMemRetriever(dsn=sys.argv[1], user_id="u1", k=1).invoke("bees on the roof")[0].page_content)
store = PgMemVectorStore(dsn=sys.argv[1])
store.add_texts(["a hive"])
print(store.similarity_search("hive", k=1)[0].page_content)
store.close()
close_clients()
""",
        dsn,
        hidden=_OTHERS,
    )
    assert out.splitlines() == [
        "['I keep bees on the roof', 'How many hives?']", "I keep bees on the roof", "a hive",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "hidden", "package"),
    [
        ("as_vectorstore", _OTHERS, "langchain-postgres"),
        ("PgMemMiddleware", _OTHERS, "langchain"),
        ("memory_tools", _OTHERS, "langgraph"),
        ("PgMemChatMessageHistory", (*_OTHERS, "langchain_core"), "langchain-core"),
    ],
)
def test_what_needs_more_names_the_extra(name: str, hidden: tuple[str, ...], package: str) -> None:
    out = python(
        f"""
import pgmem_langchain
from pgmem_core import MissingExtra
try:
    from pgmem_langchain import {name}
except MissingExtra as exc:
    print(exc)
""",
        hidden=hidden,
    )
    assert out.strip() == f"{name} needs the package '{package}'; pip install 'pgmem-ai[langchain]'"
