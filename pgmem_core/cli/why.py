"""`pgmem why`: what an agent was shown for a turn or in a session, and who had said it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pgmem_core.cli import output
from pgmem_core.cli.place import Place
from pgmem_core.errors import InvalidArgument
from pgmem_core.tiers.injections import Injection, Prompt

__all__ = ["why"]

_MOST_CHARS = 300


def why(
    place: Place,
    turn_id: str | None,
    *,
    session_id: str | None,
    user_id: str | None,
    last: bool,
    limit: int,
    group_id: str,
    as_json: bool,
) -> None:
    """Print what the injection log holds of a turn, or of the newest prompts, one table a read.

    Raises: InvalidArgument, where it is neither or both.
    """
    wide = last or session_id is not None or user_id is not None
    if wide and turn_id is not None:
        raise InvalidArgument("a turn is of one session and user; leave --session, --user and --last out")
    if not wide and turn_id is None:
        raise InvalidArgument("name a turn's id, or ask for --last, --session ID or --user ID, which tell turns' ids")
    with place.open(create=False) as mem:
        mem.check()
        where = place.describe(mem)
        if turn_id is not None:
            _of_turn(mem.why(turn_id, group_id=group_id), turn_id, where, group_id=group_id, as_json=as_json)
            return
        found = mem.prompts(user_id, group_id, session_id=session_id, limit=1 if last else limit)
    asked = {"group_id": group_id, "session_id": session_id, "user_id": user_id}
    if as_json:
        output.emit({"store": where, **asked, "prompts": [asdict(one) for one in found]})
    else:
        _tell(found, where, asked)


def _of_turn(found: list[Injection], turn_id: str, where: str, *, group_id: str, as_json: bool) -> None:
    if as_json:
        output.emit({"store": where, "turn_id": turn_id, "group_id": group_id, "shown": [asdict(one) for one in found]})
        return
    console = output.console()
    console.print(f"memory: {where}", soft_wrap=True)
    if not found:
        console.print(
            f"nothing was shown for turn {turn_id} in group {group_id!r}, or its log is gone; --last and --session ID"
            " tell the ids of turns",
            soft_wrap=True,
        )
        return
    for known_at, shown in groupby(found, key=lambda one: one.known_at):
        console.print(f"\nshown at {known_at.isoformat()}")
        console.print(_table(list(shown)))


def _tell(found: Sequence[Prompt], where: str, asked: dict[str, Any]) -> None:
    console = output.console()
    console.print(f"memory: {where}", soft_wrap=True)
    if not found:
        of = ", ".join(f"{name.removesuffix('_id')} {value!r}" for name, value in asked.items() if value is not None)
        console.print(Text(output.shown(f"no prompt of {of} showed any memory, or its log is gone")), soft_wrap=True)
    for one in found:
        question = "(the question is gone)" if one.question is None else f"“{_short(one.question)}”"
        head = f"turn {one.turn_id} · session {one.session_id} · {one.known_at.isoformat()}"
        console.print()
        console.print(Text(output.shown(head), style="bold"), soft_wrap=True)
        console.print(Text(output.shown(question)), soft_wrap=True)
        console.print(_table(one.shown))


def _table(shown: Sequence[Injection]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False)
    for name in ("tier", "score", "who"):
        table.add_column(name, no_wrap=True)
    table.add_column("memory", ratio=1)
    for one in shown:
        score = "" if one.score is None else f"{one.score:.3f}"
        table.add_row(one.tier, score, one.authority or one.role or "", Group(*_said(one)))
    return table


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _MOST_CHARS else f"{flat[: _MOST_CHARS - 1].rstrip()}…"


def _said(one: Injection) -> list[Text]:
    if one.text is not None:
        text = Text(output.shown(_short(one.text)))
    elif one.kind == "external":
        text = Text(f"{one.length} characters, sha256 {one.id}… (not kept)")
    else:
        text = Text(f"{output.shown(one.id)} ({'not kept' if one.kind == 'execution' else 'erased'})")
    lines = [text, Text(output.shown(one.why), style="dim")]
    for evidence in one.evidence:
        source = evidence.source if evidence.turn_id is None else f"turn {evidence.turn_id}"
        quote = f": “{evidence.quote}”" if evidence.quote else ""
        lines.append(Text(output.shown(f"from {source}{quote}"), style="dim"))
    return lines
