"""`pgmem demo`: the parent that starts a process for each step, and what the terminal shows of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pgmem_core.cli import Interrupted, output
from pgmem_core.cli.place import Place
from pgmem_core.errors import PgmemError, StoreUnavailable
from pgmem_core.importing import Conversation, read

__all__ = ["demo"]

_ITEMS_SHOWN = 3


def demo(place: Place, conversation: Path | None, *, as_json: bool) -> None:
    """Store, restart, store, restart, store, restart, ask. Raises: Interrupted, PgmemError."""
    started = time.perf_counter()
    steps = _steps(conversation)
    console = output.console()
    if not as_json:
        where = place.path if place.path is not None else "the given DSN"
        console.print(f"pgmem demo in {where}: each step is a process of its own; memory is all they share.\n")
    document: dict[str, Any] = {"steps": []}
    with _held(place):
        for name, arguments in steps:
            if not as_json and name == "recall":
                console.print(Text("measuring recall …", style="dim"))
            result = _run(place, [name, *arguments])
            if name == "store":
                document["steps"].append(result)
                if not as_json:
                    _tell_store(console, result, len(document["steps"]))
            else:
                document[name] = result
                if not as_json:
                    (_tell_questions if name == "ask" else _tell_recall)(console, result)
    if not as_json and "ask" not in document:
        console.print("The file has no questions with evidence. Ask your own: pgmem search … --group-id pgmem-demo")
    document["seconds"] = round(time.perf_counter() - started, 3)
    if as_json:
        output.emit(document)
    else:
        console.print(f"\n{document['seconds']:.1f} s in all, {len(steps)} processes.")


def _steps(conversation: Path | None) -> list[tuple[str, list[str]]]:
    if conversation is None:
        from pgmem_core import demo as own

        sessions = [session.session_id for session in own.load().sessions]
        stores = [("store", ["--session", one, *(["--reset"] if at == 0 else [])]) for at, one in enumerate(sessions)]
        return [*stores, ("ask", [])]
    found: list[Conversation] = list(read(conversation, on_problem=lambda problem: None))
    file = ["--conversation", str(conversation)]
    steps = [("store", ["--reset", *file])]
    if any(question.evidence for one in found for question in one.questions):
        steps += [("ask", file), ("recall", file)]
    return steps


def _held(place: Place) -> AbstractContextManager[object]:
    """Keep the embedded server up from step to step: 0.4 s a start saved."""
    if place.path is None:
        return nullcontext()
    from pgmem_core.database.embedded import EmbeddedPostgres

    return EmbeddedPostgres(place.path)


def _run(place: Place, arguments: list[str]) -> dict[str, Any]:
    """Run a step in a new process and return what it printed."""
    environment = dict(os.environ)
    environment.setdefault("PYTHONWARNINGS", "ignore")  # said once, by this process, is enough
    if place.dsn is not None:
        environment["PGMEM_DSN"] = place.dsn  # not on the command line, where `ps` would show the password
        where = []
    else:
        where = ["--path", str(place.path)]
    command = [sys.executable, "-m", "pgmem_core", "demo-step", *arguments, *where]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)
    except KeyboardInterrupt:
        raise Interrupted("interrupted: the next 'pgmem demo' starts afresh") from None
    if done.returncode:
        said = done.stderr.strip().removeprefix("error: ") or f"exit code {done.returncode}"
        raise (StoreUnavailable if done.returncode == 3 else PgmemError)(said)
    sys.stderr.write(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


# -- what it looks like ----------------------------------------------------------------------------------------


def _tell_store(console: Console, result: dict[str, Any], number: int) -> None:
    title = f" “{result['titles'][0]}”" if len(result["titles"]) == 1 else ""
    sessions = f"session {number}{title}" if result["sessions"] == 1 else f"{result['sessions']} sessions"
    facts = f", {result['facts']} facts known" if result["facts"] else ""
    console.print(
        Text.assemble(
            (f"process {result['pid']:>7}  ", "dim"),
            f"{sessions}: {result['turns_new']:,} turns stored and embedded{facts}",
            (f"  {result['seconds']:.1f} s, then it ends", "dim"),
        ),
        soft_wrap=True,
    )  # fmt: skip


def _tell_questions(console: Console, result: dict[str, Any]) -> None:
    questions = result["questions"]
    console.print(
        Text.assemble((f"process {result['pid']:>7}  ", "dim"), f"a new session, {len(questions)} questions\n"),
    )
    for one in result["facts"]:
        _tell_facts(console, one)
    for number, one in enumerate(questions, start=1):
        _tell_question(console, one, number)
    if questions:
        console.print(_prompt(questions[0]))
        found = sum(one["evidence_found"] > 0 for one in questions)
        floored = sum(one["evidence_found_with_floor"] > 0 for one in questions)
        complete = sum(one["evidence_found"] == one["evidence"] for one in questions)
        share = sum(one["percent"] or 0 for one in questions) / len(questions)
        slowest = max(one["milliseconds"] for one in questions)
        middle = sorted(one["milliseconds"] for one in questions)[len(questions) // 2]
        console.print(
            f"evidence found for {found} of {len(questions)} questions (all of it for {complete});"
            f" prompts of {share:.1f} % of the whole transcript; {middle:.1f} ms each (slowest {slowest:.1f});"
            f" with the default relevance floor, which would rather show nothing, {floored} of {len(questions)}"
        )


def _tell_facts(console: Console, known: dict[str, Any]) -> None:
    """What distilling is for: what is true, in a few tokens instead of all that was said."""
    share = 100 * known["tokens"] / max(1, known["transcript_tokens"])
    console.print(
        f"what is true now, read without a model: {len(known['texts'])} facts in {known['tokens']:,} tokens, where the"
        f" whole transcript has {known['transcript_tokens']:,} ({share:.1f} %)"
    )
    for text in known["texts"]:
        console.print(Text(f"  {output.shown(text)}", style="dim"), no_wrap=True, overflow="ellipsis")
    console.print()


def _tell_question(console: Console, one: dict[str, Any], number: int) -> None:
    hit = one["evidence_found"] == one["evidence"]
    mark = Text("✓", style="bold green") if hit else Text("~" if one["evidence_found"] else "✗", style="bold yellow")
    console.print(Text.assemble((f"{number}. {output.shown(one['question'])}", "bold"), " ", mark))
    for at, item in enumerate(one["items"]):
        if at >= _ITEMS_SHOWN and not item["is_evidence"]:
            continue
        said = " ".join(output.shown(item["text"]).removeprefix("- ").split())  # starts with its date
        line = f"  {'✓' if item['is_evidence'] else ' '} {item['score']:.2f} {output.shown(item['session_id'])} {said}"
        style = "" if item["is_evidence"] else "dim"
        console.print(Text(line, style=style), no_wrap=True, overflow="ellipsis")
        console.print(Text(f"         {_why(item['parts'])}", style="dim italic"))
    console.print(
        Text(
            f"    {len(one['items'])} recalled; evidence {one['evidence_found']} of {one['evidence']};"
            f" {one['tokens']:,} of {one['transcript_tokens']:,} tokens ({one['percent']} %);"
            f" {one['milliseconds']} ms\n",
            style="dim",
        )
    )


def _why(parts: dict[str, Any]) -> str:
    lent = parts["neighbour"] + parts["episode"]
    return (
        f"words {parts['lexical']:.2f} · meaning {parts['dense']:.2f} · around {lent:.2f} · age ×{parts['decay']:.2f}"
    )


def _prompt(one: dict[str, Any]) -> Panel:
    from rich.console import Group

    from pgmem_core.cli.reading import message_lines

    lines = [
        line
        for number, message in enumerate(one["context"]["messages"])
        for line in message_lines(message, first=number == 0)
    ]
    return Panel(Group(*lines), title="the prompt of question 1, whole", title_align="left")


def _tell_recall(console: Console, result: dict[str, Any]) -> None:
    apart, pool = result["per_conversation"], result["pool"]
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("questions", justify="right")
    for unit in ("turn", "session"):
        for k in (5, 10, 20):
            table.add_column(f"{unit}@{k}" if unit == "turn" else f"sess@{k}", justify="right")
    for row in apart["pgmem"]["conversations"]:
        table.add_row(*_cells(row["name"], row))
    for name, rows in (
        ("each apart", apart["pgmem"]),
        ("  with floor", apart["pgmem_with_floor"]),
        ("  dense only", apart["dense_only"]),
        ("all in a pool", pool["pgmem"]),
        ("  with floor", pool["pgmem_with_floor"]),
        ("  dense only", pool["dense_only"]),
    ):
        table.add_row(*_cells(name, rows["overall"]), style="" if name.startswith(" ") else "bold")
    console.print(table)
    console.print(
        f"{apart['searches']:,} searches: p50 {apart['p50_ms']} ms in one conversation, {pool['p50_ms']} ms in the pool"
        f" of {result['turns']:,} turns"
    )


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    numbers = [*row["turn_recall"].values(), *row["session_recall"].values()]
    return [name, f"{row['questions']:,}", *("-" if number is None else f"{number:.3f}" for number in numbers)]
