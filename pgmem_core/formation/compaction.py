"""Turns to episodes and a running summary, episodes and facts to the story of a user: what is due, asking for it, and
writing it.

Each stretch of a session is written in one transaction with the watermark (`sessions.summarised_through`), by
whoever still holds the lease: a worker killed anywhere leaves all of a stretch or nothing. A summary that fails, is
blank, was cut off or is longer than what it tells of changes nothing; whoever runs the flow keeps its error.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pgmem_core import screening
from pgmem_core.context import fence
from pgmem_core.database.connection import Connection
from pgmem_core.effects import Flow, consult, transact
from pgmem_core.errors import ExtractionError, PgmemError
from pgmem_core.formation import leases
from pgmem_core.formation.leases import Lease
from pgmem_core.formation.prompts.rendering import Piece, fenced_turns, render_episodes, render_known, told
from pgmem_core.ids import new_id
from pgmem_core.protocols import Summarizers
from pgmem_core.retrieval import lexical
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import episodic, narrative
from pgmem_core.tiers.episodic import Standing
from pgmem_core.tiers.narrative import Sources
from pgmem_core.tiers.plain import NewRecord
from pgmem_core.tiers.sessions import ANONYMOUS
from pgmem_core.tokens import count_message, count_tokens
from pgmem_core.turns import is_blank
from pgmem_core.types import Scope, Turn

__all__ = ["CompactReport", "compact_session", "cut", "due_through", "write_narrative"]

log = logging.getLogger(__name__)

# Turns read at a time. An episode ends at `compact_after_tokens`, seldom at this.
_LOAD_TURNS = 500
# How often a narrative is begun again because its sources changed under it.
_MOST_TRIES = 3
# A story of one short fact is longer than the fact.
_LEAST_STORY_CHARS = 400


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction wrote: episodes and the turns they tell of, versions of the running summary and of the
    user's narrative; how far the session is summarised (a seq). `note`: why nothing was written, where nothing was.
    `error`: what failed; it is tried again by itself."""

    session_id: str
    episodes: int = 0
    turns: int = 0
    running_summaries: int = 0
    narratives: int = 0
    through_seq: int = 0
    note: str = ""
    error: str | None = None


def compact_session(rt: Runtime, held: Lease, *, force: bool = False) -> Flow[CompactReport]:
    """Summarise what is due in a session; `force`: all that has not been. Then bring its user's narrative up to date.

    A long session is written stretch by stretch, each an episode, so that what was done stays done.
    Raises: ExtractionError, or whatever else of pgmem's errors a summarizer raises; what was written before it stays.
    """
    summarizers = rt.summarizers
    if summarizers is None:
        return CompactReport(held.session_id, note="no model is configured")
    most = rt.settings.compact_after_tokens
    standing = yield from transact(
        episodic.standing, held.tenant_id, held.session_id, keep_tokens=most // 4, single=True
    )
    if standing is None:
        return CompactReport(held.session_id, note="the session is gone")
    episodes = count = summaries = 0
    through, running = standing.watermark, standing.running
    target = due_through(standing, most_tokens=most, force=force)
    while through < target:
        turns = yield from transact(
            episodic.load, held.tenant_id, held.session_id, after=through, limit=_LOAD_TURNS + 1, single=True
        )
        # One more than is read at a time: whether a cut parts a call from its result, the turn behind it tells.
        last = turns[_LOAD_TURNS - 1].seq if len(turns) > _LOAD_TURNS else target
        stretch = cut(turns, through=min(target, last), most_tokens=most, open_end=not standing.ended)
        if not stretch and turns and turns[0].seq <= target:
            break  # a call that still waits for its results
        pieces = worth_telling(stretch)
        episode = None
        if pieces:
            made = yield from _summarise(summarizers, pieces, running)
            episode, running = yield from screening.screen_value(rt, held.tenant_id, made, "summary")
        end = stretch[-1].seq if stretch else target
        done = yield from transact(
            _store, held, pieces, episode, running, start=through, through=end, language=rt.settings.language
        )
        if not done:
            return CompactReport(
                held.session_id,
                episodes,
                count,
                summaries,
                0,
                through,
                "somebody else is at it, or changed it",
            )
        through = end
        if episode is not None:
            episodes, count, summaries = episodes + 1, count + len(pieces), summaries + 1
    stories = yield from write_narrative(rt, held.tenant_id, held.user_id)
    if stories:
        yield from transact(_show_story, held)
    note = "" if episodes or stories else "nothing was due"
    return CompactReport(held.session_id, episodes, count, summaries, stories, through, note)


def due_through(standing: Standing, *, most_tokens: int, force: bool = False) -> int:
    """Return the seq through which a session is due to be summarised; its watermark if nothing is due.

    An ended session is due to its end, another as far as was asked for, and, if more than most_tokens of turns are
    not summarised, all but the newest quarter of those. Pure.
    """
    if force or standing.ended:
        return standing.last_seq
    through = max(standing.watermark, min(standing.asked_through, standing.last_seq))
    if standing.tokens > most_tokens:
        kept_from = standing.last_seq if standing.kept_from is None else standing.kept_from
        through = max(through, kept_from - 1)
    return through


def cut(turns: Sequence[Turn], *, through: int, most_tokens: int, open_end: bool) -> list[Turn]:
    """Return the turns, from the first, that make the next episode: through a seq and within most_tokens, though at
    least one. It ends before a user's turn where it can, and never between a tool call and its results; open_end:
    the results of the last calls may still come. [] if that leaves nothing. Pure.
    """
    inside = sum(turn.seq <= through for turn in turns)
    if not inside:
        return []
    end, tokens = 0, 0
    while end < inside and (end == 0 or tokens + turns[end].token_count <= most_tokens):
        tokens += turns[end].token_count
        end += 1
    if end < inside:
        # Begin the next one with a question, if this one stays at least half as long.
        end = next((n for n in range(end, end // 2, -1) if turns[n].role == "user"), end)
    whole = end
    while whole and _splits(turns, whole, open_end):
        whole -= 1
    if not whole:  # one call and its results, longer than an episode should be
        whole = next((n for n in range(end, len(turns) + 1) if not _splits(turns, n, open_end)), 0)
    return list(turns[:whole])


def _splits(turns: Sequence[Turn], end: int, open_end: bool) -> bool:
    """True if a cut before turns[end] parts a tool call from its results."""
    if end < len(turns):
        return turns[end].role == "tool"
    results: set[str | None] = set()
    for turn in reversed(turns):
        if turn.role == "tool":
            results.add(turn.tool_call_id)
            continue
        # Without ids a result counts for whatever call it follows.
        waiting = [call for call in turn.tool_calls if call.get("id") not in results]
        return open_end and bool(waiting) and not (results and None in results)
    return False


def worth_telling(turns: Sequence[Turn]) -> list[Piece]:
    """Return what was said in the turns; [] if that is nothing but greetings and thanks."""
    pieces = told(turns, calls=True)
    return pieces if any(not lexical.is_pleasantry(piece.text) for piece in pieces) else []


def _summarise(summarizers: Summarizers, pieces: Sequence[Piece], running: str | None) -> Flow[tuple[str, str]]:
    """Return the summary of an episode, and the running summary that includes it."""
    turns = [piece.turn for piece in pieces]
    most = len(fenced_turns(pieces))
    episode = yield from _ask("episode", summarizers.episode, turns, most_chars=most)
    longer = yield from _ask("running", summarizers.running, turns, running, most_chars=most + len(running or ""))
    return episode, longer


def _ask(kind: str, summarizer: Any, *given: Any, most_chars: int) -> Flow[str]:
    """Ask for a summary. Raises: ExtractionError if it fails, is blank, or is longer than most_chars."""
    try:
        text = yield from consult(lambda: summarizer.summarize(*given), lambda: summarizer.asummarize(*given))
    except PgmemError:
        raise
    except Exception as exc:
        raise ExtractionError(
            f"the {kind} summarizer ({type(summarizer).__name__}) failed: {type(exc).__name__}: {str(exc)[:300]}"
        ) from exc
    if not isinstance(text, str):
        raise ExtractionError(f"the {kind} summarizer returned a {type(text).__name__}, wanted a str; nothing is kept")
    if is_blank(text):
        raise ExtractionError(f"the {kind} summary is blank; nothing is kept. Try again, or another model")
    if len(text) > most_chars:
        raise ExtractionError(
            f"the {kind} summary has {len(text)} characters, what it tells of {most_chars}; nothing is kept. Try again,"
            " or another model"
        )
    return text.strip()


def _store(
    conn: Connection,
    held: Lease,
    pieces: Sequence[Piece],
    episode: str | None,
    running: str | None,
    *,
    start: int,
    through: int,
    language: str,
) -> bool:
    """Write a stretch and move the watermark; False, and nothing is written, where the lease has ended, the session
    was summarised meanwhile, or one of the turns is not what was read."""
    marks = leases.hold(conn, held)
    if marks is None or marks[1] != start:
        return False
    if episode is not None and running is not None:
        turns = [piece.turn for piece in pieces]
        scope = Scope(held.tenant_id, held.user_id, held.agent_id)
        record = _episode(held.session_id, turns, episode, language)
        if not episodic.add_episode(conn, scope, record, turns):
            return False
        episodic.add_running(
            conn, held.tenant_id, held.session_id, running, through=through, token_count=count_tokens(running)
        )
    episodic.advance(conn, held.tenant_id, held.session_id, through=through, told=episode is not None)
    return True


def _episode(session_id: str, turns: Sequence[Turn], text: str, language: str) -> NewRecord:
    terms = lexical.analyse(text, language=language)
    return NewRecord(
        id=new_id(), session_id=session_id, kind="episode", text=text,
        metadata={"from_seq": turns[0].seq, "through_seq": turns[-1].seq}, token_count=count_message(text),
        created_at=max(turn.created_at for turn in turns), terms=terms.hashes, term_counts=terms.counts,
        term_total=terms.length,
    )  # fmt: skip


def _show_story(conn: Connection, held: Lease) -> None:
    """Let the session that led to a new narrative show it: its prefix changes in these seconds anyway."""
    if leases.hold(conn, held) is not None:
        conn.query(
            f"""UPDATE {conn.schema}.sessions SET prefix_at = clock_timestamp()
                WHERE tenant_id = %(tenant)s AND session_id = %(session)s""",
            {"tenant": held.tenant_id, "session": held.session_id},
        )


# -- the narrative ---------------------------------------------------------------------------------------------


def write_narrative(rt: Runtime, tenant_id: str, user_id: str) -> Flow[int]:
    """Rewrite a user's narrative from what it was, the episodes it has not seen, and the facts; return how many
    versions were written (0: there is nothing new). A session without a user has no story beyond its own.

    Raises: ExtractionError, or what the summarizer raises; the narrative stays as it was.
    """
    if rt.summarizers is None or not user_id or user_id.startswith(ANONYMOUS):
        return 0
    written = lost = 0
    while True:
        sources = yield from transact(narrative.read, tenant_id, user_id)
        if sources is None:
            return written
        # Withdrawn ones first: left out they could not be told from what merely is not said again.
        facts = [*sources.withdrawn, *sources.facts]
        text = yield from _ask(
            "narrative", rt.summarizers.narrative, list(sources.episodes), facts, sources.previous,
            most_chars=max(_LEAST_STORY_CHARS, _told_chars(sources)),
        )  # fmt: skip
        text = yield from screening.screen_value(rt, tenant_id, text, "summary")
        if (yield from transact(narrative.write, tenant_id, user_id, sources, text)):
            written += 1
            if not sources.more:
                return written
            continue
        lost += 1
        if lost == _MOST_TRIES:
            raise ExtractionError(
                f"what the narrative is made of changed {lost} times while it was written; it stays as it was"
            )


def _told_chars(sources: Sources) -> int:
    facts = render_known([*sources.facts, *sources.withdrawn], 1 << 30, numbered=False)
    return len(fence("story-so-far", sources.previous or "")) + len(render_episodes(sources.episodes)) + len(facts)
