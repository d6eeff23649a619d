"""E1: turns come back in the order in which they were written, whatever the clock says."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgmem_core import Turn
from tests.fix_memory import Face

FROZEN = datetime(2026, 3, 29, 1, 59, 59, tzinfo=UTC)


def numbered(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user" if n % 2 == 0 else "assistant", "content": f"message {n}", **more} for n in range(count)]


async def every_read(memory: Face, session_id: str) -> list[str]:
    """Read the session on every road, twice; return its texts if all roads agree."""
    session = await memory.session.get(session_id)
    whole: list[Turn] = await session.turns()
    texts = [turn.text for turn in whole]
    assert [turn.seq for turn in whole] == list(range(1, len(whole) + 1))
    assert await session.turns() == whole
    assert await session.window(max_turns=2000) == whole
    assert [turn.text for turn in await session.turns(7)] == texts[-7:]
    paged: list[Turn] = []
    while len(paged) < len(whole):
        paged = [*await session.turns(60, before_seq=paged[0].seq if paged else None), *paged]
    assert paged == whole
    context = await session.compile_context(budget_tokens=100_000)
    again = await session.compile_context(budget_tokens=100_000)
    shown = [message["content"] for message in context.messages[1:]]
    assert shown == texts[-len(shown) :]
    assert len(shown) >= min(100, len(texts))
    assert again.messages == context.messages
    return texts


@pytest.mark.parametrize("clock", [None, FROZEN], ids=["own clock", "frozen clock"])
async def test_e1_a_batch_keeps_its_order(memory: Face, store: Face, clock: datetime | None) -> None:
    session = await memory.session.create("s", user_id="u1")
    written = await session.add_turns(numbered(200, created_at=clock))
    want = [f"message {n}" for n in range(200)]
    assert [(turn.seq, turn.text) for turn in written] == list(enumerate(want, start=1))
    assert await every_read(memory, "s") == want
    assert [str(text) for text in await store.recent_turns("default", "s", 300)] == want
    await memory.form()
    assert await every_read(memory, "s") == want


async def test_e1_quick_single_writes_keep_their_order_with_a_frozen_clock(memory: Face) -> None:
    session = await memory.session.create("s", user_id="u1")
    for turn in numbered(200, created_at=FROZEN):
        await session.add_turn(**turn)
    assert await every_read(memory, "s") == [f"message {n}" for n in range(200)]
    assert {turn.created_at for turn in await session.turns()} == {FROZEN}


async def test_e1_a_clock_set_back_changes_no_order(memory: Face) -> None:
    session = await memory.session.create("s", user_id="u1")
    for n, turn in enumerate(numbered(30)):
        await session.add_turn(**turn, created_at=FROZEN - timedelta(hours=n))
    await session.add_turn("user", "the last")
    assert await every_read(memory, "s") == [*(f"message {n}" for n in range(30)), "the last"]


async def test_e1_ids_of_any_order_change_no_order(memory: Face) -> None:
    session = await memory.session.create("s", user_id="u1")
    ids = [f"{n * 7919 % 101:08x}-0000-4000-8000-000000000000" for n in range(40)]
    await session.add_turns([{**turn, "id": id} for turn, id in zip(numbered(40), ids, strict=True)])
    assert await every_read(memory, "s") == [f"message {n}" for n in range(40)]
    assert [turn.id for turn in await session.turns()] == ids


async def test_e1_four_writers_each_keep_their_order(memory: Face) -> None:
    await memory.session.create("s", user_id="u1")

    async def write(writer: int) -> None:
        session = await memory.session.get("s")
        for n in range(20):
            await session.add_turn("user", f"{writer} {n}", created_at=FROZEN)
        await session.add_turns([{"role": "user", "content": f"{writer} {n}"} for n in range(20, 40)])

    await asyncio.gather(*(write(writer) for writer in range(4)))
    texts = await every_read(memory, "s")
    by_writer: dict[str, list[int]] = defaultdict(list)
    for text in texts:
        name, _, number = text.partition(" ")
        by_writer[name].append(int(number))
    assert by_writer == {str(writer): list(range(40)) for writer in range(4)}
    # A batch is one block: no other writer's turn is inside.
    for writer in range(4):
        start = texts.index(f"{writer} 20")
        assert texts[start : start + 20] == [f"{writer} {n}" for n in range(20, 40)]


async def test_e1_a_retried_batch_with_new_turns_keeps_what_was_written_first(memory: Face) -> None:
    session = await memory.session.create("s", user_id="u1")
    turns = [{**turn, "id": f"m{n}"} for n, turn in enumerate(numbered(6))]
    await session.add_turns(turns[:4])
    again = await session.add_turns(turns)
    assert [turn.seq for turn in again] == [1, 2, 3, 4, 5, 6]
    assert await every_read(memory, "s") == [f"message {n}" for n in range(6)]


async def test_e1_queries_and_replies_stay_in_the_order_of_the_conversation(memory: Face) -> None:
    session = await memory.session.create("s", user_id="u1")
    want: list[str] = []
    for n in range(15):
        context = await session.compile_context(f"question {n}")
        assert [message["content"] for message in context.messages[1:] if message["role"] != "system"] == [
            *want,
            f"question {n}",
        ]
        await session.add_turn("assistant", f"answer {n}")
        want += [f"question {n}", f"answer {n}"]
    assert await every_read(memory, "s") == want


async def test_e1_what_was_added_by_the_plain_verbs_lists_newest_first(memory: Face) -> None:
    await memory.add([f"message {n}" for n in range(50)], user_id="u1")
    listed = [str(text) for text in await memory.get_all(user_id="u1")]
    assert listed == [f"message {n}" for n in reversed(range(50))]
    paged = [str(text) for at in range(0, 50, 7) for text in await memory.get_all(user_id="u1", limit=7, offset=at)]
    assert paged == listed


async def test_e1_a_frozen_clock_lists_in_the_order_of_writing(memory: Face) -> None:
    await memory.add(numbered(50, created_at=FROZEN, id=None), user_id="u1")
    session = await memory.session.create("s", user_id="u2")
    ids = [f"{n * 7919 % 101:08x}-0000-4000-8000-000000000000" for n in range(20)]
    await session.add_turns([{**t, "created_at": FROZEN, "id": id} for t, id in zip(numbered(20), ids, strict=True)])
    assert [str(text) for text in await memory.get_all(user_id="u1")] == [f"message {n}" for n in reversed(range(50))]
    assert [str(text) for text in await memory.get_all(user_id="u2")] == [f"message {n}" for n in reversed(range(20))]
