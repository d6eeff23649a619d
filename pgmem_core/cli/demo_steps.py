"""The steps of the demo, each run in a process of its own: one JSON document on stdout."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgmem_core import demo as own
from pgmem_core.cli import output, recall
from pgmem_core.cli.importing import load
from pgmem_core.cli.place import Place
from pgmem_core.cli.reading import document
from pgmem_core.errors import InvalidArgument
from pgmem_core.ids import turn_uuid
from pgmem_core.importing import Conversation, Question, read
from pgmem_core.importing.evaluation import counted
from pgmem_core.lifecycle.loading import Counts, Target

if TYPE_CHECKING:
    from pgmem_core.client import PgMem

__all__ = ["GROUP", "POOL", "run_step"]

# Groups of our own: nothing of the user's is ever in them, so a reset may empty them.
GROUP, POOL = "pgmem-demo", "pgmem-demo-pool"
_POOL_USER = "everyone"
# Questions that are shown in full; a file may hold thousands.
_SHOWN = 8


def run_step(place: Place, step: str, *, conversation: Path | None, session_id: str | None, reset: bool) -> None:
    """Do one step and print what it did."""
    started = time.perf_counter()
    # Facts by patterns, without a model, of our own conversation alone: other files are there to measure recall.
    with place.open(extractor="patterns" if conversation is None else None) as mem:
        mem.setup()
        if reset:
            _reset(mem)
        conversations = [own.load()] if conversation is None else list(read(conversation, on_problem=lambda _: None))
        match step:
            case "store":
                result = _store(mem, conversations, session_id)
            case "ask":
                result = _ask(mem, conversations)
            case "recall":
                result = _recall(mem, conversations)
            case _:
                raise InvalidArgument(f"demo-step {step!r} is none; store, ask or recall")
    result |= {"pid": os.getpid(), "seconds": round(time.perf_counter() - started, 3)}
    output.emit(result)


def _reset(mem: PgMem) -> None:
    for group in (GROUP, POOL):
        while found := mem.session.list(group_id=group, limit=500):
            for user in {one.user_id for one in found if one.user_id is not None}:
                mem.delete_all(user_id=user, group_id=group)
            for one in mem.session.list(group_id=group, limit=500):
                mem.session.get(one.session_id, group_id=group).delete()


def _user(conversation: Conversation) -> str:
    return conversation.user_id or conversation.name


def _store(mem: PgMem, conversations: list[Conversation], session_id: str | None) -> dict[str, Any]:
    """Store one session, or all, as what it is: conversations of their users."""
    counts, titles = Counts(), []
    for one in conversations:
        sessions = tuple(s for s in one.sessions if session_id in (None, s.session_id))
        part = Conversation(one.name, one.user_id, sessions)
        titles += [session.title for session in sessions if session.title]
        counts += load(mem, lambda _, part=part: [part], Target(GROUP, _user(one))).counts  # type: ignore[misc]
    mem.form(group_id=GROUP)
    users = {_user(one) for one in conversations}
    facts = sum(len(mem.facts(user_id=user, group_id=GROUP)) for user in users)
    return {**asdict(counts), "titles": titles[:3], "facts": facts}


# -- questions -------------------------------------------------------------------------------------------------


def _ask(mem: PgMem, conversations: list[Conversation]) -> dict[str, Any]:
    """Compile a context for each question, in a session that has never been used."""
    asked: list[dict[str, Any]] = []
    known: list[dict[str, Any]] = []
    for one in conversations:
        questions = [question for question in one.questions if counted(question)]
        if not questions or len(asked) >= _SHOWN:
            continue
        session = mem.session.create(user_id=_user(one), group_id=GROUP)
        whole = sum(info.token_count for info in mem.session.list(user_id=_user(one), group_id=GROUP, limit=10_000))
        session_of = {turn.id: s.session_id for s in one.sessions for turn in s.turns}
        few = questions[: _SHOWN - len(asked)]
        known.extend(_known(session, whole))
        asked.extend(_question(session, question, session_of, whole) for question in few)
        session.delete()
    return {"questions": asked, "facts": known}


def _known(session: Any, whole: int) -> list[dict[str, Any]]:
    """Return the facts that every prompt of the user starts with, and what they cost beside the whole transcript."""
    section = session.compile_context(store_query=False).sections["semantic"]
    if not section.items:
        return []
    texts = [item.text for item in section.items]
    return [{"texts": texts, "tokens": section.token_count, "transcript_tokens": whole}]


def _question(session: Any, question: Question, session_of: dict[str, str], whole: int) -> dict[str, Any]:
    started = time.perf_counter()
    compiled = session.compile_context(question.text, store_query=False, floor=None)
    milliseconds = (time.perf_counter() - started) * 1000
    wanted = {str(turn_uuid(turn, GROUP, session_of[turn])) for turn in question.evidence}
    items = compiled.sections["episodic"].items
    floored = session.compile_context(question.text, store_query=False).sections["episodic"].items
    return {
        "question": question.text,
        "answer": question.answer,
        "evidence": len(wanted),
        "evidence_found": len(wanted & {item.id for item in items}),
        "evidence_found_with_floor": len(wanted & {item.id for item in floored}),
        "items": [{**asdict(item), "is_evidence": item.id in wanted} for item in items],
        "tokens": compiled.token_count,
        "transcript_tokens": whole,
        "percent": round(100 * compiled.token_count / whole, 1) if whole else None,
        "milliseconds": round(milliseconds, 2),
        "context": document(compiled),
    }


# -- recall ----------------------------------------------------------------------------------------------------


def _recall(mem: PgMem, conversations: list[Conversation]) -> dict[str, Any]:
    """Measure what share of the evidence is found, with conversations apart and all in one pool."""
    pool = load(mem, lambda _: conversations, Target(POOL, _POOL_USER))
    users = [_user(one) for one in conversations]
    apart = recall.measure(mem, conversations, group_id=GROUP, users=users)
    together = recall.measure(mem, conversations, group_id=POOL, users=[_POOL_USER] * len(conversations))
    return {
        "turns": sum(len(s.turns) for one in conversations for s in one.sessions),
        "pool_seconds": round(pool.seconds, 3),
        "per_conversation": apart,
        "pool": together,
    }
