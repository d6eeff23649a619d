"""`pgmem demo`, as a newcomer runs it: a folder, no key, no network, and real restarts."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pgmem_core import PgMem
from pgmem_core.cli import demo

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PGMEM_", "FORCE_COLOR"))}
    done = subprocess.run(
        [sys.executable, "-m", "pgmem_core", "demo", *arguments], capture_output=True, text=True, check=False, cwd=cwd,
        timeout=120, env={**env, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_remembers_across_restarts(tmp_path: Path) -> None:
    first = json.loads(run("--json", cwd=tmp_path))
    pids = [step["pid"] for step in (*first["steps"], first["ask"])]
    assert len(set(pids)) == 4
    assert os.getpid() not in pids
    assert [step["turns_new"] for step in first["steps"]] == [34, 34, 30]
    questions = first["ask"]["questions"]
    assert len(questions) == 8
    assert sum(one["evidence_found"] > 0 for one in questions) >= 6
    for one in questions:
        assert 0 < one["tokens"] < one["transcript_tokens"]
        assert one["percent"] < 25
        assert one["items"], one["question"]
        for item in one["items"]:
            assert item["session_id"] in ("demo-1", "demo-2", "demo-3")
            assert item["created_at"].startswith("2026-0")
            assert item["parts"]["lexical"] + item["parts"]["dense"] > 0
        assert one["context"]["messages"][-1]["content"] == one["question"]

    with PgMem.embedded(tmp_path / ".pgmem-demo") as mem:  # somebody's own data, beside the demo's
        mem.add("I like jazz.", user_id="ada", session_id="mine")

    shown = run(cwd=tmp_path)  # the second run, for people
    assert "\x1b" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if not line.startswith("process "))
    assert len(set(re.findall(r"^process +(\d+)", shown, re.MULTILINE))) == 4
    for one in questions:
        assert one["question"] in shown
    assert "✓" in shown
    assert "the prompt of question 1, whole" in shown
    found = re.search(r"evidence found for (\d) of 8 questions", shown)
    assert found is not None
    assert int(found[1]) == sum(one["evidence_found"] > 0 for one in questions)

    with PgMem.embedded(tmp_path / ".pgmem-demo") as mem:
        assert mem.get_all(user_id="ada") == ["I like jazz."]
        assert {info.session_id for info in mem.session.list(group_id="pgmem-demo")} == {"demo-1", "demo-2", "demo-3"}


def test_the_demo_on_a_dsn_leaves_nothing_in_the_folder(dsn: str, tmp_path: Path) -> None:
    shown = run("--dsn", dsn, cwd=tmp_path)
    found = re.search(r"evidence found for (\d) of 8 questions", shown)
    assert found is not None
    assert int(found[1]) >= 6
    assert dsn not in shown
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two conversations with questions that the words alone answer."""
    file = tmp_path / "small.jsonl"
    lines: list[dict[str, Any]] = []
    for name, thing in (("kim", "kettle"), ("lou", "lantern")):
        lines.append({"type": "conversation", "name": name, "user_id": name})
        for n in range(30):
            text = f"The {thing} is painted blue." if n == 17 else f"Nothing much happened on day {n}, {name} said."
            lines.append({"type": "turn", "session_id": f"{name}-{n // 10}", "id": f"{name}{n}", "role": "user",
                          "content": text})  # fmt: skip
        lines.append({"type": "question", "text": f"What colour is the {thing} painted?", "evidence": [f"{name}17"]})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def test_recall_of_a_file_with_questions(dsn: str, small: Path, tmp_path: Path) -> None:
    document = json.loads(run("--json", "--dsn", dsn, "--conversation", str(small), cwd=tmp_path))
    for part in ("per_conversation", "pool"):
        overall = document["recall"][part]["pgmem"]["overall"]
        assert overall["questions"] == 2
        assert overall["turn_recall"] == {"5": 1.0, "10": 1.0, "20": 1.0}
        assert overall["session_recall"]["10"] == 1.0
        assert [row["name"] for row in document["recall"][part]["pgmem"]["conversations"]] == ["kim", "lou"]
        assert 0 <= document["recall"][part]["dense_only"]["overall"]["turn_recall"]["5"] <= 1
        assert document["recall"][part]["p50_ms"] > 0
    console = Console(width=80, record=True, file=io.StringIO())
    demo._tell_recall(console, document["recall"])
    shown = console.export_text()
    assert re.search(r"each apart +2 +1\.000 +1\.000 +1\.000", shown)
    assert "dense only" in shown
    assert "all in a pool" in shown


def test_a_file_without_questions_is_shown_too(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "plain.json"
    file.write_text('[{"role": "user", "content": "I live in Porto."}]', encoding="utf-8")
    shown = run("--dsn", dsn, "--conversation", str(file), cwd=tmp_path)
    assert "1 turns stored" in shown
    assert "no questions" in shown
