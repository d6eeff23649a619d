"""`pgmem why`: what an agent was shown for a turn, and who had said it."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pgmem_core.cli import output
from pgmem_core.cli.place import Place
from pgmem_core.tiers.injections import Injection

__all__ = ["why"]

_MOST_CHARS = 300


def why(place: Place, turn_id: str, *, group_id: str, as_json: bool) -> None:
    """Print what the injection log holds of a turn, one table a read."""
    with place.open(create=False) as mem:
        mem.check()
        found = mem.why(turn_id, group_id=group_id)
        where = place.describe(mem)
    if as_json:
        output.emit({"store": where, "turn_id": turn_id, "group_id": group_id, "shown": [asdict(one) for one in found]})
        return
    console = output.console()
    console.print(f"memory: {where}", soft_wrap=True)
    if not found:
        console.print(f"nothing was shown for turn {turn_id} in group {group_id!r}, or its log is gone", soft_wrap=True)
        return
    for known_at, shown in groupby(found, key=lambda one: one.known_at):
        console.print(f"\nshown at {known_at.isoformat()}")
        table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False)
        for name in ("tier", "score", "who"):
            table.add_column(name, no_wrap=True)
        table.add_column("memory", ratio=1)
        for one in shown:
            score = "" if one.score is None else f"{one.score:.3f}"
            table.add_row(one.tier, score, one.authority or one.role or "", Group(*_said(one)))
        console.print(table)


def _said(one: Injection) -> list[Text]:
    if one.text is not None:
        flat = " ".join(one.text.split())
        text = Text(output.shown(flat if len(flat) <= _MOST_CHARS else f"{flat[: _MOST_CHARS - 1].rstrip()}…"))
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
