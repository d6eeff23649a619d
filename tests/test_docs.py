"""The documentation is run: every python block, every notebook; its links, its tables, its promises.

Blocks marked `python` run in order, one process a file, in an empty directory, warnings as errors, on a fresh
database whose DSN is in the environment's `PGMEM_DSN`. A block marked `output` right after one is what it prints.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import pgmem_core
from pgmem_core import Settings
from tests.fix_postgres import scratch

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LANGUAGES = {"python", "output", "bash", "sql", "text"}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `line` is the line number of its first line of content."""

    language: str
    line: int
    text: str


def blocks_of(text: str) -> list[Block]:
    """Return the fenced blocks of a page. Raises: ValueError for one that is not closed."""
    found, lines = [], text.splitlines()
    start = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
        else:
            body = "\n".join(lines[start + 1 : number])
            found.append(Block(lines[start].removeprefix("```").strip(), start + 2, body))
            start = None
    if start is not None:
        raise ValueError(f"line {start + 1}: this block is not closed")
    return found


# Runs the blocks it is given, in one namespace, and says what each printed. Line numbers in tracebacks are the
# page's own.
_DRIVER = """
import contextlib, io, json, pathlib, sys
path, blocks = json.loads(pathlib.Path(sys.argv[1]).read_text("utf-8"))
space, printed = {"__name__": "__main__"}, []
for line, text in blocks:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\\n" * (line - 1) + text, path, "exec"), space)
    printed.append(out.getvalue())
pathlib.Path(sys.argv[2]).write_text(json.dumps(printed), "utf-8")
"""


def run_blocks(page: str, blocks: list[Block], folder: Path, dsn: str) -> list[str]:
    """Run blocks in `folder` and return what each printed; raises AssertionError with the traceback."""
    given, told, home = folder / "blocks.json", folder / "printed.json", folder / "home"
    home.mkdir()
    given.write_text(json.dumps([page, [(block.line, block.text) for block in blocks]]), "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _DRIVER, str(given), str(told)],
        cwd=home, env={**os.environ, "PGMEM_DSN": dsn, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    printed: list[str] = json.loads(told.read_text("utf-8"))
    return printed


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that others may pass through: as root, the embedded server runs as another user."""
    made = Path(tempfile.mkdtemp(prefix="pgm-", dir=scratch()))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _pages_with_code() -> list[Path]:
    return [page for page in PAGES if "```python" in page.read_text("utf-8")]


@pytest.mark.parametrize("page", _pages_with_code(), ids=_name)
def test_code_runs_and_prints_what_the_page_says(page: Path, folder: Path, dsn: str) -> None:
    blocks = blocks_of(page.read_text("utf-8"))
    code = [block for block in blocks if block.language == "python"]
    printed = dict(zip([block.line for block in code], run_blocks(_name(page), code, folder, dsn), strict=True))
    pairs = [(before, block) for before, block in pairwise(blocks) if block.language == "output"]
    said = {block.line: block.text.splitlines() for _, block in pairs}
    assert {block.line: printed[before.line].splitlines() for before, block in pairs} == said


def test_the_front_page_and_the_quickstart_have_code() -> None:
    assert {"README.md", "docs/quickstart.md"} <= {_name(page) for page in _pages_with_code()}


def test_a_block_that_fails_is_reported_with_its_line(folder: Path, dsn: str) -> None:
    page = "one\n\n```python\nx = 1\n```\n\n```python\nprint(x)\nraise RuntimeError('no')\n```\n"
    with pytest.raises(AssertionError, match=r'(?s)"page.md", line 9.*RuntimeError: no'):
        run_blocks("page.md", blocks_of(page), folder, dsn)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_block_says_its_language(page: Path) -> None:
    blocks = blocks_of(page.read_text("utf-8"))
    assert [f"{block.line}: {block.language!r}" for block in blocks if block.language not in LANGUAGES] == []
    # An output that follows no code would be compared with nothing.
    languages = ["", *[block.language for block in blocks]]
    assert all(before == "python" for before, here in pairwise(languages) if here == "output")


# -- links -----------------------------------------------------------------------------------------------------


def _anchors(page: Path) -> set[str]:
    """The anchors GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _broken(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in _anchors(there)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    assert _broken(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title: here\n[a](#a-title-here) [b](other.md) [c](#elsewhere) [d](https://example.org)\n")
    assert _broken(page) == ["other.md", "#elsewhere"]


# -- what is said of settings, versions, decisions -------------------------------------------------------------


def _settings_table() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text, flags=re.M)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in rows}


def test_the_settings_table_lists_every_setting_with_its_default() -> None:
    table = _settings_table()
    assert set(table) == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        default, meaning = table[name]
        assert default == f"`{field.default!r}`".replace("'", '"'), name
        assert len(meaning) > 10, name


def test_the_changelog_begins_with_this_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    found = re.search(r"^## (\S+)", changes, flags=re.M)
    assert found is not None
    assert found[1] in ("Unreleased", pgmem_core.__version__)
    assert f'\nversion = "{pgmem_core.__version__}"\n' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_decisions_are_numbered_without_gaps_and_one_page_long() -> None:
    notes = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [note.name[:4] for note in notes] == [f"{number:04}" for number in range(1, len(notes) + 1)]
    for note in notes:
        text = note.read_text("utf-8")
        assert text.startswith(f"# {int(note.name[:4])}. "), note.name
        assert len(text.split()) <= 600, note.name


def test_the_make_targets_of_the_front_page_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    named = set(re.findall(r"\bmake ([a-z]+)", (ROOT / "README.md").read_text("utf-8")))
    assert {"demo", "test"} <= named
    assert {target for target in named if not re.search(rf"^{target}:", makefile, flags=re.M)} == set()


# -- notebooks -------------------------------------------------------------------------------------------------


def _read(notebook: Path) -> Any:
    import nbformat

    return nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=_name)
def test_notebook_is_kept_without_output(notebook: Path) -> None:
    cells = [cell for cell in _read(notebook).cells if cell.cell_type == "code"]
    assert cells
    assert [cell.source for cell in cells if cell.outputs or cell.execution_count is not None] == []


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=_name)
def test_notebook_runs_from_top_to_bottom(notebook: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PGMEM_DSN", raising=False)
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
    opened = _read(notebook)
    NotebookClient(opened, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    loud = [output for cell in opened.cells for output in cell.get("outputs", ()) if output.get("name") == "stderr"]
    assert loud == []


def test_there_is_a_notebook() -> None:
    assert [_name(one) for one in NOTEBOOKS]
