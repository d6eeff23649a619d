"""A plan that is half finished in one session is nowhere in another's context, in whatever order things happen."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgmem_core import AsyncPgMem, BundledEmbedder, NotFound, PgMem
from tests.fix_memory import Face
from tests.test_forget import QUIET

SESSIONS = 3
_NUMBERS = itertools.count()
_WHO = st.integers(0, SESSIONS - 1)
_KEY = st.sampled_from(["plan", "step", "tool_result"])
_STEP = st.one_of(
    st.tuples(st.just("set"), _WHO, _KEY),
    st.tuples(st.just("clear"), _WHO, st.none() | _KEY),
    st.tuples(st.just("end"), _WHO),
    st.tuples(st.just("promote"), _WHO, _KEY),
    st.tuples(st.just("say"), _WHO),
    st.tuples(st.just("form"), _WHO),
    st.tuples(st.just("compile"), _WHO),
    st.tuples(st.just("open"), _WHO),  # a session of today, after all the others
)


class Play:
    """Three sessions of one user and a model of them: what each is doing, and what was promoted, by its mark."""

    def __init__(self, memory: Face) -> None:
        self.memory = memory
        self.user = f"u{next(_NUMBERS)}"
        self.sessions: list[Face] = []
        self.doing: list[dict[str, str] | None] = []
        self.promoted: set[str] = set()
        self.ever: set[str] = set()
        self.seen_own = 0

    async def begin(self) -> None:
        for who in range(SESSIONS):
            await self.open()
            await self.step("set", who, "plan")

    async def open(self) -> None:
        self.sessions.append(await self.memory.session.create(user_id=self.user))
        self.doing.append({})

    async def step(self, kind: str, who: int, *more: Any) -> None:
        session, live = self.sessions[who], self.doing[who]
        match kind, more:
            case "set", (key,):
                mark = f"mark{next(_NUMBERS):06}"
                self.ever.add(mark)
                if live is None:
                    with pytest.raises(NotFound):
                        await session.execution.set(key, [mark])
                else:
                    await session.execution.set(key, {"half finished plan": [mark]})
                    live[key] = mark
            case "clear", (key,):
                gone = [name for name in live or {} if key in (None, name)]
                assert await session.execution.clear(key) == len(gone)
                for name in gone:
                    (live or {}).pop(name)
            case "end", ():
                await session.end()
                self.doing[who] = None
            case "promote", (key,):
                if live is None or key not in live:
                    with pytest.raises(NotFound):
                        await session.execution.promote(key, "finding")
                else:
                    await session.execution.promote(key, f"finding_{len(self.promoted)}")
                    self.promoted.add(live[key])
            case "say", ():
                if live is not None:
                    await session.add_turn("user", f"What is the half finished plan, please, number {who}?")
            case "form", ():
                await self.memory.form()
            case "open", ():
                await self.open()
            case _:
                await self.look(who)

    async def look(self, who: int) -> None:
        """Compile a session's context: it shows what the session is doing, and of the others what was promoted."""
        context = await self.sessions[who].compile_context("the half finished plan, its marks and steps", **QUIET)
        own = self.doing[who] or {}
        items = [item.text for item in context.sections["execution"].items]
        assert len(items) == len(own)
        text = str(context.messages)
        for key, mark in own.items():
            assert any(item.startswith(f"- {key}: ") and mark in item for item in items)
            assert mark in text  # the control: its own is there
            self.seen_own += 1
        # Nothing else that was ever set: of another, cleared, overwritten, of an ended session.
        assert {mark for mark in self.ever if mark in text} <= set(own.values()) | self.promoted


async def play(memory: Face, steps: list[tuple[Any, ...]]) -> int:
    """Do the steps, then look at every session; return how often one saw its own."""
    game = Play(memory)
    await game.begin()
    for kind, who, *more in steps:
        await game.step(kind, who, *more)
    for who in range(len(game.sessions)):
        await game.look(who)
    found = str(await memory.search("half finished plan, its marks and steps", user_id=game.user, top_k=50))
    assert {mark for mark in game.ever if mark in found} <= game.promoted
    return game.seen_own


@pytest.fixture(params=["sync", "async"])
def stage(request: pytest.FixtureRequest, dsn: str) -> Iterator[Callable[[list[tuple[Any, ...]]], int]]:
    """Runs the steps on one memory, in an event loop that outlives them."""
    with asyncio.Runner() as runner:
        made = (PgMem if request.param == "sync" else AsyncPgMem)(dsn, embedder=BundledEmbedder())
        memory = Face(made, request.param)
        runner.run(memory.setup())
        yield lambda steps: runner.run(play(memory, steps))
        runner.run(memory.close())


def test_no_interleaving_shows_a_plan_to_another_session(stage: Callable[[list[tuple[Any, ...]]], int]) -> None:
    seen = []

    @given(steps=st.lists(_STEP, min_size=12, max_size=20))
    @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def run(steps: list[tuple[Any, ...]]) -> None:
        seen.append(stage(steps))

    run()
    assert sum(seen) > 40  # the sessions did see what was their own


def test_an_old_sessions_plan_is_not_in_a_new_one(stage: Callable[[list[tuple[Any, ...]]], int]) -> None:
    steps = [("set", 0, "plan"), ("compile", 0), ("set", 1, "step"), ("promote", 1, "step"), ("form", 0),
             ("open", 0), ("compile", 2), ("end", 0), ("compile", 1)]  # fmt: skip
    assert stage(steps) >= 3
