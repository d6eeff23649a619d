"""Forming memory as LangChain runnables: prompt | model | parser, one chain a prompt.

Each chain stands alone (`invoke`, `ainvoke`, `batch`, `stream`, and the async forms), composes with others, and is
traced like any runnable, under `pgmem.…` with the prompt's version among its metadata::

    facts = extraction_chain("openai:gpt-4o-mini").invoke({"turns": turns, "known": known})
    story = load_turns | episode_summary_chain(model)

What a chain is given as `model`: see `as_chat_model`. LangChain is imported when a chain is made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pgmem_core.context import fence
from pgmem_core.errors import ExtractionError, InvalidArgument
from pgmem_core.facts import Fact
from pgmem_core.formation.parsing import ThoughtFilter, read_facts, reply_text, stopped_early
from pgmem_core.formation.prompts import episode_summary, extraction, narrative, running_summary
from pgmem_core.formation.prompts.rendering import (
    Piece,
    check_turns,
    fenced_turns,
    render_episodes,
    render_known,
    told,
)
from pgmem_core.formation.prompts.shape import message, runnables
from pgmem_core.formation.replies import Drafts, drafts_of
from pgmem_core.models.chat import as_chat_model, structured_output
from pgmem_core.models.texts import clean

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable

__all__ = [
    "KNOWN_CHARS",
    "episode_summary_chain",
    "extraction_chain",
    "narrative_chain",
    "running_summary_chain",
]

# Of the known facts, about a hundred fit.
KNOWN_CHARS = 6_000


def extraction_chain(
    model: object,
    *,
    prompt: Runnable[Any, Any] | None = None,
    structured: bool | None = None,
    **options: Any,
) -> Runnable[Any, Drafts]:
    """Return the chain from turns to drafts of facts.

    In: {"turns": list of Turn, "known": list of Fact (optional)}, or the list of turns. Out: `Drafts`, a list of
    FactDraft. `prompt`: in place of ours, any runnable that makes a prompt of `conversation` (a list of messages)
    or of the rendered texts `turns` and `known`. `structured`: None asks for structured output where the model has
    it and for JSON in plain text elsewhere; False always for plain text, as servers need that speak a provider's
    protocol without its schemas; True insists. `options`: see `as_chat_model`.

    Raises: InvalidArgument, MissingExtra; when it runs: ExtractionError for a reply that cannot be read, and
    whatever the model raises.
    """
    core = runnables()
    ask = (prompt or extraction.prompt()) | _answering(as_chat_model(model, **options), structured)
    chain: Runnable[Any, Drafts] = (
        core.RunnableLambda(_extraction_input, name="render_turns")
        | core.RunnablePassthrough.assign(reply=ask)
        | core.RunnableLambda(_drafts, name="read_facts")
    )
    return _named(chain, "extraction", extraction.VERSION, prompt)


def episode_summary_chain(
    model: object, *, prompt: Runnable[Any, Any] | None = None, max_words: int = 120, **options: Any
) -> Runnable[Any, str]:
    """Return the chain from turns to the summary of an episode.

    In: {"turns": list of Turn, "previous": summary of an earlier part (optional)}, or the list of turns. Out: str;
    `stream` gives it as it is written. `prompt`: in place of ours, over `conversation` or `turns` and `previous`.

    Raises when it runs: ExtractionError if the reply is empty or was cut off. In a stream that is at its end: keep
    nothing of it before.
    """
    ours = prompt or episode_summary.prompt(max_words)
    return _prose_chain("episode_summary", episode_summary.VERSION, _summary_input, ours, prompt, model, options)


def running_summary_chain(
    model: object, *, prompt: Runnable[Any, Any] | None = None, max_words: int = 250, **options: Any
) -> Runnable[Any, str]:
    """Return the chain from {"turns": …, "previous": the summary so far} to the new one; else as the episode's."""
    ours = prompt or running_summary.prompt(max_words)
    return _prose_chain("running_summary", running_summary.VERSION, _summary_input, ours, prompt, model, options)


def narrative_chain(
    model: object, *, prompt: Runnable[Any, Any] | None = None, max_words: int = 200, **options: Any
) -> Runnable[Any, str]:
    """Return the chain from episodes and facts to the story of a subject.

    In: {"episodes": list of str (dated, if they have `created_at` as MemoryText has), "facts": list of Fact,
    "previous": the story so far}, each optional. Out and errors: as the episode's. `prompt`: in place of ours,
    over `conversation` or `previous`, `episodes` and `facts`.
    """
    ours = prompt or narrative.prompt(max_words)
    return _prose_chain("narrative", narrative.VERSION, _narrative_input, ours, prompt, model, options)


def _named(chain: Runnable[Any, Any], name: str, version: str, prompt: object | None) -> Runnable[Any, Any]:
    version = version if prompt is None else str(getattr(prompt, "name", None) or "custom")
    return chain.with_config(run_name=f"pgmem.{name}", metadata={"pgmem_prompt": version})


# -- facts -----------------------------------------------------------------------------------------------------


def _answering(chat: Runnable[Any, Any], structured: bool | None) -> Runnable[Any, Any]:
    """Return the model made to answer in the reply's schema where it can, else as it is."""
    bound = None if structured is False else structured_output(chat, extraction.ExtractionReply)
    if bound is not None:
        # Some models only say when they are called that they cannot.
        return bound.with_fallbacks([chat], exceptions_to_handle=(NotImplementedError,))
    if structured:
        raise InvalidArgument(
            f"{type(chat).__name__} has no structured output; leave structured=None to ask for JSON in plain text"
        )
    return chat


def _extraction_input(given: Any) -> dict[str, Any]:
    """Return what prompt and parser need. `pieces`, `lead` and `known_chars` come from who splits long input."""
    fields = given if isinstance(given, Mapping) else {"turns": given}
    pieces: Sequence[Piece] = fields["pieces"] if "pieces" in fields else told(check_turns(fields.get("turns")))
    known: Sequence[Fact] = fields.get("known") or ()
    turns = fenced_turns(pieces, fields.get("lead", ()))
    known_text = render_known(known, fields.get("known_chars", KNOWN_CHARS))
    return {
        "pieces": pieces,
        "facts": known,
        "strict": "pieces" not in fields,
        "turns": turns,
        "known": known_text,
        "conversation": message(known_text, turns),
    }


def _drafts(state: Mapping[str, Any]) -> Drafts:
    read = read_facts(state["reply"])
    if read.truncated and not read.entries and state["strict"]:
        raise ExtractionError("the model's reply was cut off before its first fact; give it fewer turns at a time")
    return drafts_of(read, state["pieces"], state["facts"])


# -- prose -----------------------------------------------------------------------------------------------------


def _prose_chain(
    name: str,
    version: str,
    prepare: Callable[[Any], dict[str, Any]],
    prompt: Runnable[Any, Any],
    given: object | None,
    model: object,
    options: dict[str, Any],
) -> Runnable[Any, str]:
    core = runnables()
    chain: Runnable[Any, str] = (
        core.RunnableLambda(prepare, name="render_input")
        | prompt
        | as_chat_model(model, **options)
        | core.RunnableGenerator(_prose, _aprose, name="read_prose")
    )
    return _named(chain, name, version, given)


def _summary_input(given: Any) -> dict[str, Any]:
    fields = given if isinstance(given, Mapping) else {"turns": given}
    if "pieces" in fields:
        pieces: Sequence[Piece] = fields["pieces"]
    else:
        pieces = told(check_turns(fields.get("turns")), calls=True)
    previous = _fenced("summary-so-far", fields.get("previous"))
    turns = fenced_turns(pieces)
    return {"turns": turns, "previous": previous, "conversation": message(previous, turns)}


def _narrative_input(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"wanted a dict with episodes, facts and previous, got {type(given).__name__}")
    previous = _fenced("story-so-far", given.get("previous"))
    episodes = render_episodes(given.get("episodes") or ())
    facts = render_known(given.get("facts") or (), given.get("known_chars", KNOWN_CHARS), numbered=False)
    return {
        "previous": previous,
        "episodes": episodes,
        "facts": facts,
        "conversation": message(previous, episodes, facts),
    }


def _fenced(kind: str, text: str | None) -> str:
    return fence(kind, clean(text)) if text and text.strip() else ""


class _Prose:
    """Reads a reply piece by piece; refuses it at its end if it was not whole."""

    def __init__(self) -> None:
        self._sieve = ThoughtFilter()
        self._stopped: str | None = None
        self._said = False

    def feed(self, chunk: object) -> str:
        self._stopped = stopped_early(chunk) or self._stopped
        return self._noted(self._sieve.feed(reply_text(chunk)))

    def close(self) -> str:
        return self._noted(self._sieve.close())

    def check(self) -> None:
        if self._stopped:
            raise ExtractionError(
                f"the model's reply was cut off ({self._stopped}); nothing of it is kept. Raise its limit of output"
                " tokens, or give it less at a time"
            )
        if not self._said:
            raise ExtractionError("the model's reply is empty; nothing is kept. Try again, or another model")

    def _noted(self, text: str) -> str:
        self._said = self._said or bool(text.strip())
        return text


def _prose(chunks: Iterator[object]) -> Iterator[str]:
    reader = _Prose()
    for chunk in chunks:
        if text := reader.feed(chunk):
            yield text
    if text := reader.close():
        yield text
    reader.check()


async def _aprose(chunks: AsyncIterator[object]) -> AsyncIterator[str]:
    reader = _Prose()
    async for chunk in chunks:
        if text := reader.feed(chunk):
            yield text
    if text := reader.close():
        yield text
    reader.check()
