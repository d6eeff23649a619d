"""Summarizers without a model that say what a test tells them to, and what compaction has left in the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from pgmem_core import Turn
from tests.fix_memory import Face

TALK = [
    ("user", "I am planning a trip to Porto in May with my sister Nell, by train if we can."),
    ("assistant", "Porto in May is mild; the train from Lisbon takes about three hours. Shall I look up hotels?"),
    ("user", "Yes please, something near the river, at most 120 euros a night, and no carpets: I am allergic."),
    ("assistant", "Casa do Cais is by the river, 95 euros, with wooden floors. I noted the allergy."),
]


class Teller:
    """Three summarizers in one, without a model. `asked`: what each call was given. `say`: what it answers."""

    def __init__(self, say: Callable[..., str] | None = None) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self._say = say or (lambda *given: f"Summary {len(self.asked)}: " + words(given[0])[:60])

    def summarize(self, *given: Any) -> str:
        self.asked.append(given)
        return self._say(*given)

    async def asummarize(self, *given: Any) -> str:
        return self.summarize(*given)


def words(given: Sequence[Any]) -> str:
    return " ".join(one.text if isinstance(one, Turn) else str(one) for one in given)


class Tellers:
    """`Summarizers` of three tellers."""

    def __init__(self, episode: Any = None, running: Any = None, narrative: Any = None) -> None:
        self.episode = episode or Teller()
        self.running = running or Teller()
        self.narrative = narrative or Teller()


def quoting() -> Tellers:
    """They tell by quoting what they were given."""
    return Tellers(*[Teller(lambda given, *_: "Told: " + words(given)[:600]) for _ in range(3)])


class Flaky(Teller):
    """Fails until `well` is set."""

    well = False

    def summarize(self, *given: Any) -> str:
        if not self.well:
            self.asked.append(given)
            raise RuntimeError("the model is out of order")
        return super().summarize(*given)


def rows(dsn: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(sql, values).fetchall()


def episodes(dsn: str) -> list[tuple[str, str, int, int]]:
    """User, content, from_seq, through_seq of every episode, in order."""
    return rows(
        dsn,
        """SELECT user_id, content, (metadata->>'from_seq')::int, (metadata->>'through_seq')::int
           FROM pgmem.records WHERE kind = 'episode' ORDER BY session_id, 3""",
    )


def told(dsn: str) -> list[int]:
    """The seqs of the turns that episodes are linked to."""
    return [
        seq
        for (seq,) in rows(
            dsn,
            """SELECT t.seq FROM pgmem.episode_turns e JOIN pgmem.records t ON t.tenant_id = e.tenant_id
               AND t.id = e.turn_id ORDER BY t.seq""",
        )
    ]


def state(dsn: str, session: str = "s1") -> dict[str, Any]:
    names = "summarised_through, uncompacted, forming_attempts, forming_error, forming_retry_at > now()"
    [row] = rows(dsn, f"SELECT {names} FROM pgmem.sessions WHERE session_id = %s", session)
    return dict(zip(("through", "uncompacted", "attempts", "error", "waits"), row, strict=True))


async def talk(memory: Face, session_id: str = "s1", user_id: str = "u1", **place: Any) -> Face:
    session = await memory.session.open(session_id, user_id=user_id, **place)
    await session.add_turns([{"role": role, "content": text} for role, text in TALK])
    return session  # type: ignore[no-any-return]
