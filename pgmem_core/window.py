"""The live window: which turns of a session fit, and the messages that a provider accepts of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgmem_core.types import Turn

__all__ = ["NO_RESULT", "fit", "newest_user", "repair", "within"]

NO_RESULT = "(no result was recorded for this tool call)"


def newest_user(window: Sequence[Turn], pinned: Sequence[Turn]) -> Turn | None:
    """Return the last user turn of pinned and window together, if there is one."""
    for turn in reversed([*pinned, *window]):
        if turn.role == "user":
            return turn
    return None


def fit(pinned: Sequence[Turn], window: Sequence[Turn], budget: int, *, keep: Turn | None) -> list[Turn]:
    """Return pinned and the newest turns that fit, in order; `keep` always; never starting with a tool's result."""
    head: list[Turn] = []
    if keep is not None:
        budget -= keep.token_count
    for turn in reversed(pinned):  # newest instruction first; the same instruction once
        if turn is keep:
            head.insert(0, turn)
        elif turn.token_count <= budget and all(turn.text != other.text for other in head):
            head.insert(0, turn)
            budget -= turn.token_count
    kept: list[Turn] = []
    for turn in reversed(window):
        if turn is keep:
            kept.insert(0, turn)
        elif turn.token_count <= budget:
            budget -= turn.token_count
            kept.insert(0, turn)
        else:
            if keep is not None and keep in window and keep not in kept:
                kept.insert(0, keep)
            break
    # Results whose call is gone would be refused by providers.
    while kept and kept[0].role == "tool":
        kept.pop(0)
    return [*head, *kept]


def within(turns: Sequence[Turn], budget_tokens: int | None, most: int) -> list[Turn]:
    """Return the newest of turns (oldest first) within a budget and a count, tool calls with their results.

    The newest user turn is kept even where it is over the budget alone.
    """
    newest = newest_user(turns, ())
    if newest is None or most == 0:
        chosen = list(turns[len(turns) - most :]) if most else []
    else:
        chosen = list(turns[-most:])
        if newest not in chosen:
            chosen = [newest, *chosen[1:]]
    return fit((), chosen, 1 << 60 if budget_tokens is None else budget_tokens, keep=newest if most else None)


def repair(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as a provider accepts them: every tool call directly followed by its results.

    A result that came late moves behind its call, one that never came is said to be missing, a result without
    its call is left out. What is stored stays as it is.
    """
    # Some models count their calls anew in every reply ("0", "1"): a result belongs to the last call of its id.
    results: dict[tuple[int, str], dict[str, Any]] = {}
    called: dict[str, int] = {}
    for place, message in enumerate(messages):
        called.update((call["id"], place) for call in message.get("tool_calls") or () if call.get("id") is not None)
        call_id = message.get("tool_call_id")
        if message["role"] == "tool" and call_id in called:
            results[called[call_id], call_id] = message
    repaired: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            if not message.get("tool_call_id"):
                repaired.append(message)
            continue
        repaired.append(message)
        for call in message.get("tool_calls") or ():
            call_id = call.get("id")
            if call_id is not None:
                missing = {"role": "tool", "content": NO_RESULT, "tool_call_id": call_id}
                repaired.append(results.get((place, call_id), missing))
    return repaired
