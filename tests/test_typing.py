"""The public face as a stranger's type checker sees it: what mypy --strict reveals, and what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# (expression, the type that mypy reveals, short names)
REVEALED = [
    ("mem.search('q', user_id='u')", "list[ScoredMemory]"),
    ("mem.add('text', user_id='u')", "list[Turn]"),
    ("mem.get_all(user_id='u')", "list[MemoryText]"),
    ("mem.update('id', 'text')", "MemoryText"),
    ("mem.delete('id')", "bool"),
    ("mem.delete_all(user_id='u')", "int"),
    ("mem.history('id')", "list[dict[str, Any]]"),
    ("mem.form()", "FormReport"),
    ("mem.settings.budget_tokens", "int"),
    ("PgMem.embedded('x')", "PgMem"),
    ("mem.__enter__()", "PgMem"),
    ("mem.session.create(user_id='u')", "Session"),
    ("mem.session.list(user_id='u')", "list[SessionInfo]"),
    ("session.compile_context('q')", "CompiledContext"),
    ("session.compile_context('q').messages", "list[dict[str, Any]]"),
    ("session.compile_context('q').sections", "Mapping[str, Section]"),
    ("session.add_turn('user', 'text')", "Turn"),
    ("session.turns(3)", "list[Turn]"),
    ("session.search('q')[0].parts", "ScoreParts"),
    ("session.user_id", "str | None"),
    ("rows.add('t', 's', 'text')", "str"),
    ("rows.similar('t', [0.1, 0.2])", "list[MemoryText]"),
    ("rows.similar('t', 'text')[0].score", "float | None"),
    ("rows.recent_turns('t', 's')", "list[MemoryText]"),
    ("rows.count('t')", "int"),
    ("await amem.search('q', user_id='u')", "list[ScoredMemory]"),
    ("await amem.form()", "FormReport"),
    ("AsyncPgMem.embedded('x')", "AsyncPgMem"),
    ("await amem.__aenter__()", "AsyncPgMem"),
    ("await amem.session.create()", "AsyncSession"),
    ("await asession.compile_context('q')", "CompiledContext"),
    ("await asession.add_turns([])", "list[Turn]"),
    ("await arows.add_many('t', [])", "list[str]"),
]

# (statement, the code of mypy's error)
REFUSED = [
    ("mem.search('q')", "call-arg"),  # without user_id there is no scope
    ("mem.search('q', user='u')", "call-arg"),  # A5: a misspelt scope
    ("mem.search('q', user_id=7)", "arg-type"),
    ("wrong: list[Turn] = mem.search('q', user_id='u')", "assignment"),
    ("found: list[ScoredMemory] = amem.search('q', user_id='u')", "assignment"),  # forgotten await
    ("amem.form()", "unused-coroutine"),  # and forgotten altogether
    ("turn.seq = 3", "misc"),  # values are frozen
    ("rows.similar('t')", "call-arg"),
]

_PREAMBLE = """\
from pgmem_core import *
async def check(mem: PgMem, amem: AsyncPgMem, session: Session, asession: AsyncSession, rows: MemoryStore,
                arows: AsyncMemoryStore, turn: Turn) -> None:
"""
_OFFSET = _PREAMBLE.count("\n")


@pytest.fixture(scope="module")
def told() -> dict[int, list[str]]:
    """What mypy says of each line, the lines of REVEALED first."""
    lines = [f"    reveal_type({expression})" for expression, _ in REVEALED]
    lines += [f"    {statement}" for statement, _ in REFUSED]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--no-color-output", "--no-error-summary",
         # Without our settings, which a stranger does not have; installed packages are followed in silence too.
         "--config-file=", "--cache-dir=.mypy_cache/stranger", "--follow-imports=silent",
         "-c", _PREAMBLE + "\n".join(lines) + "\n"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    said: dict[int, list[str]] = {}
    for line in done.stdout.splitlines():
        found = re.match(r"<string>:(\d+): (?:error|note): (.*)", line)
        if found:
            said.setdefault(int(found[1]) - _OFFSET - 1, []).append(found[2])
    return said


def _short(revealed: str) -> str:
    """Without the modules of names, and in one spelling of builtins and unions."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", revealed)


@pytest.mark.parametrize("number", range(len(REVEALED)), ids=[expression for expression, _ in REVEALED])
def test_revealed(told: dict[int, list[str]], number: int) -> None:
    said = told.get(number, [])
    assert len(said) == 1, said
    found = re.fullmatch(r'Revealed type is "(.*)"', said[0])
    assert found, said
    assert _short(found[1]) == REVEALED[number][1]


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=[statement for statement, _ in REFUSED])
def test_refused(told: dict[int, list[str]], number: int) -> None:
    said = told.get(len(REVEALED) + number, [])
    assert any(line.endswith(f"[{REFUSED[number][1]}]") for line in said), said
