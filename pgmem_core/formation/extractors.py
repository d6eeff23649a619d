"""The chains as what the pipeline asks for: an Extractor, and three that summarise. Sync and async over one plan."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pgmem_core.errors import ConfigurationError, ExtractionError, InvalidArgument, PgmemError
from pgmem_core.facts import Fact, FactDraft
from pgmem_core.formation import chains
from pgmem_core.formation.prompts import episode_summary, extraction, narrative, running_summary
from pgmem_core.formation.prompts.rendering import FENCE_CHARS, Piece, check_turns, split, told
from pgmem_core.formation.prompts.shape import message
from pgmem_core.formation.replies import Drafts
from pgmem_core.models.chat import as_chat_model, chat_model_name
from pgmem_core.models.texts import shorten
from pgmem_core.types import Turn

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable

__all__ = [
    "MAX_CHARS",
    "MAX_TURNS",
    "ChainExtractor",
    "EpisodeSummarizer",
    "ModelSummarizers",
    "NarrativeSummarizer",
    "RunningSummarizer",
]

logger = logging.getLogger(__name__)

# About 6,000 tokens of English, and at most as many as characters in any script: an 8k window takes the first,
# a 32k window all. Recall of facts falls long before a window is full, so more at a time is not better.
MAX_CHARS = 24_000
MAX_TURNS = 40
# Earlier turns shown again, without a number, at the head of the next request: "yes, that one".
_LEAD_TURNS = 2
# What must be left for the turns once instructions and known facts are in.
_MIN_ROOM = 2_000
# A reply that was cut off is asked for again in two halves; a model that never ends must not cost without end.
_MOST_HALVINGS = 8

T = TypeVar("T")
Plan = Generator[dict[str, Any], Any, T]


class _Chained:
    """A chain, the size of its requests, and how it is run."""

    def __init__(self, model: object, prompt: Runnable[Any, Any], version: str | None, max_chars: int) -> None:
        self.model_name = chat_model_name(model)
        self.version = version or str(getattr(prompt, "name", None) or "custom")
        self.max_chars = max_chars
        self._room = max_chars - _fixed_chars(prompt)
        if self._room * 3 // 4 < _MIN_ROOM:
            raise InvalidArgument(
                f"max_chars={max_chars} leaves {self._room} characters beside the instructions; wanted at least"
                f" {max_chars - self._room + _MIN_ROOM * 4 // 3 + 1}"
            )

    def _run(self, chain: Runnable[Any, Any], plan: Plan[T]) -> T:
        return _drive(plan, lambda request: self._asked(chain, request))

    async def _arun(self, chain: Runnable[Any, Any], plan: Plan[T]) -> T:
        return await _adrive(plan, lambda request: self._aasked(chain, request))

    def _asked(self, chain: Runnable[Any, Any], request: dict[str, Any]) -> Any:
        try:
            return chain.invoke(request)
        except Exception as exc:
            raise self._failure(exc) from exc

    async def _aasked(self, chain: Runnable[Any, Any], request: dict[str, Any]) -> Any:
        try:
            return await chain.ainvoke(request)
        except Exception as exc:
            raise self._failure(exc) from exc

    def _failure(self, exc: Exception) -> PgmemError:
        if isinstance(exc, PgmemError):
            return exc
        return ExtractionError(f"model {self.model_name!r} failed: {type(exc).__name__}: {str(exc)[:300]}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_name!r}, version={self.version!r})"


class ChainExtractor(_Chained):
    """Extracts facts with a language model (`extraction_chain`), as the `Extractor` of the pipeline.

    `model`: see `as_chat_model`, to which `options` go. `prompt`, `structured`: see `extraction_chain`. A request
    holds at most `max_turns` turns and `max_chars` characters, instructions and known facts included; more turns
    are asked in several requests, one after the other, each with the two turns before it to understand it by. If
    one request fails, so does the whole: no half of a conversation is taken for all of it.

    `version` names the prompt, `model_name` the model, for the record.
    Raises: InvalidArgument, MissingExtra.
    """

    def __init__(
        self,
        model: object,
        *,
        prompt: Runnable[Any, Any] | None = None,
        structured: bool | None = None,
        max_turns: int = MAX_TURNS,
        max_chars: int = MAX_CHARS,
        **options: Any,
    ) -> None:
        if max_turns < 1:
            raise InvalidArgument(f"max_turns={max_turns} must be at least 1")
        chat = as_chat_model(model, **options)
        ours = prompt or extraction.prompt()
        super().__init__(chat, ours, None if prompt else extraction.VERSION, max_chars)
        self.max_turns = max_turns
        self._chain = chains.extraction_chain(chat, prompt=prompt, structured=structured)

    def extract(self, turns: Sequence[Turn], known: Sequence[Fact] = ()) -> list[FactDraft]:
        """Return drafts of the facts stated in the turns. Raises: ExtractionError."""
        return self._run(self._chain, self._plan(turns, known))

    async def aextract(self, turns: Sequence[Turn], known: Sequence[Fact] = ()) -> list[FactDraft]:
        """The same, awaited."""
        return await self._arun(self._chain, self._plan(turns, known))

    def _plan(self, turns: Sequence[Turn], known: Sequence[Fact]) -> Plan[list[FactDraft]]:
        pieces = told(check_turns(turns))
        known_chars = min(chains.KNOWN_CHARS, self._room // 4)
        room = self._room - (known_chars if known else 0)
        waiting = list(split(pieces, max_turns=self.max_turns, max_chars=room, lead_turns=_LEAD_TURNS))
        drafts: list[FactDraft] = []
        lead: list[Piece] = []
        halvings = 0
        while waiting:
            batch = waiting.pop(0)
            reply: Drafts = yield {"pieces": batch, "lead": lead, "known": known, "known_chars": known_chars}
            if reply.truncated and len(batch) > 1 and halvings < _MOST_HALVINGS:
                halvings += 1
                middle = len(batch) // 2
                waiting[:0] = [batch[:middle], batch[middle:]]
                continue
            if reply.truncated:
                if not reply and not reply.dropped:
                    raise ExtractionError(
                        f"the reply of model {self.model_name!r} was cut off before its first fact;"
                        " raise its limit of output tokens"
                    )
                logger.warning("extraction: a reply was cut off; its %d complete facts are kept", len(reply))
            drafts.extend(reply)
            lead = batch[-_LEAD_TURNS:]
        return drafts


class _TurnSummarizer(_Chained):
    """Summarises turns; more than fit into one request are told piece by piece, each on the summary so far."""

    _chain: Runnable[Any, str]

    def summarize(self, turns: Sequence[Turn], previous: str | None = None) -> str:
        """Return the summary; what the turns leave of `previous` is in it.

        Turns in which nothing is said give `previous`, or "", without asking the model. Raises: ExtractionError if
        a reply is empty or cut off.
        """
        return self._run(self._chain, self._plan(turns, previous))

    async def asummarize(self, turns: Sequence[Turn], previous: str | None = None) -> str:
        """The same, awaited."""
        return await self._arun(self._chain, self._plan(turns, previous))

    def _plan(self, turns: Sequence[Turn], previous: str | None) -> Plan[str]:
        summary = previous or ""
        most = self._room // 4
        pieces = told(check_turns(turns), calls=True)
        for batch in split(pieces, max_turns=len(pieces) or 1, max_chars=self._room - most):
            reply: str = yield {"pieces": batch, "previous": shorten(summary, most - FENCE_CHARS)}
            summary = reply.strip()
        return summary


class EpisodeSummarizer(_TurnSummarizer):
    """Summarises an episode (`episode_summary_chain`), for finding it again. Arguments: see `ChainExtractor`."""

    def __init__(
        self,
        model: object,
        *,
        prompt: Runnable[Any, Any] | None = None,
        max_words: int = 120,
        max_chars: int = MAX_CHARS,
        **options: Any,
    ) -> None:
        chat = as_chat_model(model, **options)
        ours = prompt or episode_summary.prompt(max_words)
        super().__init__(chat, ours, None if prompt else episode_summary.VERSION, max_chars)
        self._chain = chains.episode_summary_chain(chat, prompt=prompt, max_words=max_words)


class RunningSummarizer(_TurnSummarizer):
    """Keeps a session's running summary (`running_summary_chain`). Arguments: see `ChainExtractor`."""

    def __init__(
        self,
        model: object,
        *,
        prompt: Runnable[Any, Any] | None = None,
        max_words: int = 250,
        max_chars: int = MAX_CHARS,
        **options: Any,
    ) -> None:
        chat = as_chat_model(model, **options)
        ours = prompt or running_summary.prompt(max_words)
        super().__init__(chat, ours, None if prompt else running_summary.VERSION, max_chars)
        self._chain = chains.running_summary_chain(chat, prompt=prompt, max_words=max_words)


class NarrativeSummarizer(_Chained):
    """Rewrites the story of a subject (`narrative_chain`). Arguments: see `ChainExtractor`."""

    def __init__(
        self,
        model: object,
        *,
        prompt: Runnable[Any, Any] | None = None,
        max_words: int = 200,
        max_chars: int = MAX_CHARS,
        **options: Any,
    ) -> None:
        chat = as_chat_model(model, **options)
        ours = prompt or narrative.prompt(max_words)
        super().__init__(chat, ours, None if prompt else narrative.VERSION, max_chars)
        self._chain = chains.narrative_chain(chat, prompt=prompt, max_words=max_words)

    def summarize(self, episodes: Sequence[str], facts: Sequence[Fact] = (), previous: str | None = None) -> str:
        """Return the story, rewritten from what it was, the episodes (oldest first) and the facts that hold.

        Without episodes and facts it is `previous`, or "", and no model is asked. Raises: ExtractionError if a reply
        is empty or cut off.
        """
        return self._run(self._chain, self._plan(episodes, facts, previous))

    async def asummarize(self, episodes: Sequence[str], facts: Sequence[Fact] = (), previous: str | None = None) -> str:
        """The same, awaited."""
        return await self._arun(self._chain, self._plan(episodes, facts, previous))

    def _plan(self, episodes: Sequence[str], facts: Sequence[Fact], previous: str | None) -> Plan[str]:
        if isinstance(episodes, str):
            raise InvalidArgument("episodes must be a list of texts, got one str; pass [text]")
        story = previous or ""
        quarter = self._room // 4
        batches = list(_batches(episodes, quarter * 2 - FENCE_CHARS)) or ([[]] if facts else [])
        for batch in batches:
            reply: str = yield {
                "episodes": batch,
                "facts": facts,
                "known_chars": quarter,
                "previous": shorten(story, quarter - FENCE_CHARS),
            }
            story = reply.strip()
        return story


class ModelSummarizers:
    """All three over one model, as `Summarizers`. Arguments: see `ChainExtractor`."""

    def __init__(self, model: object, *, max_chars: int = MAX_CHARS, **options: Any) -> None:
        chat = as_chat_model(model, **options)
        self.episode = EpisodeSummarizer(chat, max_chars=max_chars)
        self.running = RunningSummarizer(chat, max_chars=max_chars)
        self.narrative = NarrativeSummarizer(chat, max_chars=max_chars)

    def __repr__(self) -> str:
        return f"ModelSummarizers({self.episode.model_name!r})"


def _batches(episodes: Sequence[str], room: int) -> Generator[list[str], None, None]:
    batch: list[str] = []
    spent = 0
    for episode in episodes:
        # The line's head, and two characters for each line break.
        cost = len(episode) + 2 * episode.count("\n") + 16
        if cost > room:
            episode = " ".join(shorten(episode, room - 16).split())
            cost = len(episode) + 16
        if batch and spent + cost > room:
            yield batch
            batch, spent = [], 0
        batch.append(episode)
        spent += cost
    if batch:
        yield batch


def _fixed_chars(prompt: Runnable[Any, Any]) -> int:
    """Return the characters of the prompt with nothing in it."""
    empty = dict.fromkeys(("turns", "known", "previous", "episodes", "facts"), "")
    try:
        made = prompt.invoke({**empty, "conversation": message("")})
    except Exception as exc:
        raise ConfigurationError(
            f"the prompt could not be rendered: {type(exc).__name__}: {str(exc)[:300]}; it may use the variables"
            f" conversation, {', '.join(empty)}"
        ) from exc
    messages = made.to_messages() if hasattr(made, "to_messages") else []
    return sum(len(each.text) for each in messages) if messages else len(str(made))


def _drive(plan: Plan[T], ask: Callable[[dict[str, Any]], Any]) -> T:
    try:
        request = next(plan)
        while True:
            request = plan.send(ask(request))
    except StopIteration as done:
        value: T = done.value
        return value


async def _adrive(plan: Plan[T], ask: Callable[[dict[str, Any]], Awaitable[Any]]) -> T:
    try:
        request = next(plan)
        while True:
            request = plan.send(await ask(request))
    except StopIteration as done:
        value: T = done.value
        return value
