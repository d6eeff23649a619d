"""What the acceptance tests share: an extractor that reads plain sentences, and looks into a prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pgmem_core import Authority, CompiledContext, SubjectRef, Turn
from pgmem_core.facts import Fact, FactDraft
from tests.fix_memory import Face
from tests.test_forget import QUIET
from tests.test_formation import Told

__all__ = ["BY_USER", "USER", "context_of", "current", "found_in", "reading", "shown"]

USER = SubjectRef("user", "u1")
BY_USER: dict[str, Any] = {"authority": Authority.user}
_IS = re.compile(r"\bmy (\w+) is (?:now )?([\w-]+)(?:, not ([\w-]+))?", re.IGNORECASE)


def reading() -> Told:
    """An extractor that reads "my city is Porto", and "my city is Porto, not Lisbon" as a correction, of any role."""

    def read(turn: Turn, known: Sequence[Fact]) -> list[FactDraft]:
        return [
            FactDraft(
                found[1].lower(), found[2], action="correct" if found[3] else "assert", replaces=found[3],
                single_valued=True, turn_id=turn.id, quote=found[0],
            )
            for found in _IS.finditer(turn.text)
        ]  # fmt: skip

    return Told(read)


async def context_of(session: Face, query: str, **options: Any) -> CompiledContext:
    """A prompt with whatever comes nearest, of which nothing is stored."""
    compiled: CompiledContext = await session.compile_context(query, **{**QUIET, **options})
    return compiled


async def shown(memory: Face, query: str, *, user: str = "u1", group: str = "default", **options: Any) -> str:
    """All text of the prompt that a new session of the user compiles; the session is gone afterwards."""
    session = await memory.session.create(user_id=user, group_id=group)
    context = await context_of(session, query, **options)
    await session.delete()
    return "\n".join(str(message["content"]) for message in context.messages)


async def current(memory: Face, predicate: str, **options: Any) -> list[Any]:
    """The values of a predicate of the user that hold."""
    return sorted(fact.value for fact in await memory.facts(USER, predicate, **options))


async def found_in(
    memory: Face, word: str, query: str, *, user: str = "u1", group: str = "default", session_id: str = "s1"
) -> set[str]:
    """Which ways of asking one scope find a word."""
    place: dict[str, Any] = {"user_id": user, "group_id": group}
    about = SubjectRef("user", user)
    answers: dict[str, list[str]] = {
        "search": [one.content for one in await memory.search(query, **place)],
        "get_all": [str(one) for one in await memory.get_all(**place)],
        "facts": [fact.text for fact in await memory.facts(**place)],
        "history": [fact.text for fact in await memory.history(about, group_id=group)],
        "sessions": [str(one.metadata) for one in await memory.session.list(**place)],
        "prompt": [await shown(memory, query, user=user, group=group)],
    }
    if session_id in [one.session_id for one in await memory.session.list(**place)]:
        session = await memory.session.get(session_id, group_id=group)
        answers["turns"] = [turn.text for turn in await session.turns()]
        answers["execution"] = [str(await session.execution.all())]
    return {name for name, texts in answers.items() if any(word in text for text in texts)}
