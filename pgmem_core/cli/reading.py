"""`pgmem search` and `pgmem context`: what memory holds for a query, and the prompt it becomes."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pgmem_core import asking
from pgmem_core.cli import output
from pgmem_core.cli.place import Place
from pgmem_core.errors import InvalidArgument
from pgmem_core.session import Session
from pgmem_core.types import CompiledContext, Item, ScoredMemory

__all__ = ["context", "panel", "search"]


def _floor(given: str) -> float | str | None:
    if given in ("none", ""):
        return None
    if given == "default":
        return given
    try:
        return float(given)
    except ValueError:
        raise InvalidArgument(f"--floor is {given!r}; give a number from -1 to 1, 'default' or 'none'") from None


def search(place: Place, query: str, *, user_id: str, group_id: str, k: int, floor: str, as_json: bool) -> None:
    """Print the best k memories of a user for a query."""
    least = _floor(floor)
    with place.open(create=False) as mem:
        mem.check()
        started = time.perf_counter()
        found = mem.search(query, user_id=user_id, group_id=group_id, top_k=k, floor=least)
        milliseconds = (time.perf_counter() - started) * 1000
        where = place.describe(mem)
    if as_json:
        output.emit(
            {
                "store": where, "query": query, "user_id": user_id, "group_id": group_id,
                "milliseconds": round(milliseconds, 2), "results": [_as_document(one) for one in found],
            }
        )  # fmt: skip
        return
    console = output.console()
    console.print(f"memory: {where}", soft_wrap=True)
    if not found:
        why = "" if least is None else " (--floor may have held it back)"
        console.print(f"nothing for user {user_id!r} in group {group_id!r}{why}", soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False)
    for name in ("score", "session", "date"):
        table.add_column(name, no_wrap=True)
    table.add_column("memory", ratio=1)
    for one in found:
        said = f"{one.name or one.role or one.kind}: {_brief(one.content, 300)}"
        table.add_row(
            f"{one.score:.3f}", Text(output.shown(one.session_id), overflow="ellipsis"), output.day(one.created_at),
            Group(Text(output.shown(said)), Text(one.parts.why(), style="dim")),
        )  # fmt: skip
    console.print(table)
    console.print(f"{len(found)} found in {milliseconds:.1f} ms")


def _as_document(one: ScoredMemory) -> dict[str, Any]:
    return {**asdict(one), "why": one.parts.why()}


def _brief(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1].rstrip()}…"


def context(
    place: Place,
    query: str,
    *,
    user_id: str,
    session_id: str | None,
    group_id: str,
    budget_tokens: int | None,
    floor: str,
    as_json: bool,
) -> None:
    """Print the compiled context of a query, and the account of it. Writes nothing."""
    least = _floor(floor)
    with place.open(create=False) as mem:
        mem.check()
        if session_id is not None:
            session = mem.session.get(session_id, group_id=group_id, user_id=user_id)
        else:  # a session that only this reading knows: nothing is written for it
            session = Session(mem._rt, asking.session_key(None, group_id=group_id, user_id=user_id, agent_id=None))
        compiled = session.compile_context(query, budget_tokens=budget_tokens, store_query=False, floor=least)
        where = place.describe(mem)
    if as_json:
        output.emit({"store": where, **document(compiled)})
        return
    console = output.console()
    console.print(f"memory: {where}", soft_wrap=True)
    console.print(panel(compiled))
    for note in compiled.notes:
        console.print(f"note: {output.shown(note)}", soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("section")
    table.add_column("items", justify="right")
    table.add_column("tokens", justify="right")
    for tier, section in compiled.sections.items():
        if section.items:
            table.add_row(tier, str(len(section)), f"{section.token_count:,}")
    table.add_row("whole prompt", "", f"{compiled.token_count:,} of {compiled.budget_tokens:,}")
    console.print(table)
    for item in compiled.sections["episodic"].items if "episodic" in compiled.sections else ():
        console.print(
            Text(f"{item.score or 0:.3f} {item.session_id} {output.day(item.created_at)}  {item.why}", style="dim"),
            soft_wrap=True,
        )
    timings = " · ".join(
        f"{name.removesuffix('_ms').replace('_', ' ')} {value:.1f}" for name, value in compiled.timings.items()
        if name.endswith("_ms")
    )  # fmt: skip
    console.print(f"milliseconds: {timings}")
    console.print(f"prefix hash: {compiled.prefix_hash}", soft_wrap=True)


def panel(compiled: CompiledContext, title: str = "the prompt") -> Panel:
    """Return the messages as they would be sent, boxed."""
    parts: list[Text] = []
    for number, message in enumerate(compiled.messages):
        parts.extend(message_lines(message, first=number == 0))
    return Panel(Group(*parts), title=title, title_align="left")


def message_lines(message: dict[str, Any], *, first: bool) -> list[Text]:
    """Return one message: its role, then its content."""
    content = message.get("content") or ""
    body = content if isinstance(content, str) else str(content)
    lines = [] if first else [Text("")]
    lines.append(Text(str(message.get("role")), style="bold"))
    lines.append(Text(output.shown(body)))
    lines.extend(Text(output.shown(f"tool call: {call}"), style="dim") for call in message.get("tool_calls", ()))
    return lines


def document(compiled: CompiledContext) -> dict[str, Any]:
    """Return a compiled context as JSON."""
    return {
        "messages": compiled.messages,
        "sections": {
            tier: {"token_count": section.token_count, "items": [_item(item) for item in section.items]}
            for tier, section in compiled.sections.items()
        },
        "token_count": compiled.token_count,
        "budget_tokens": compiled.budget_tokens,
        "prefix_hash": compiled.prefix_hash,
        "timings": dict(compiled.timings),
        "notes": list(compiled.notes),
        "session_id": compiled.session_id,
    }


def _item(item: Item) -> dict[str, Any]:
    return asdict(item)
