"""From what a client was given (a model, an extractor, summarizers, settings) to who forms its memory."""

from __future__ import annotations

from typing import Any

from pgmem_core.errors import ConfigurationError, InvalidArgument
from pgmem_core.facts import Extractor
from pgmem_core.protocols import Summarizers
from pgmem_core.settings import Settings

__all__ = ["choose"]


def choose(
    settings: Settings, *, model: object = None, extractor: object = None, summarizers: object = None
) -> tuple[Extractor | None, Summarizers | None]:
    """Return the extractor and the summarizers; None for what nobody was given for.

    `model`: what `as_chat_model` takes. `extractor`: an `Extractor`, or "patterns", "model", "none". `summarizers`:
    an object with `episode`, `running` and `narrative`. What is not given follows from the model, the model from the
    settings. Raises: MissingExtra, InvalidArgument, ConfigurationError.
    """
    model = settings.model if model is None else model
    chosen = settings.extractor if extractor is None else extractor
    if chosen is None:
        chosen = "none" if model is None else "model"
    if chosen == "model" and model is None:
        raise ConfigurationError("extractor='model' needs a model; pass model=..., or use extractor='patterns'")
    return _extractor(chosen, model), _summarizers(summarizers, model)


def _extractor(chosen: object, model: object) -> Extractor | None:
    if chosen == "none":
        return None
    if chosen == "patterns":
        from pgmem_core.formation.patterns import PatternExtractor

        return PatternExtractor()
    if chosen == "model":
        from pgmem_core.formation.extractors import ChainExtractor

        return ChainExtractor(model)
    if isinstance(chosen, Extractor) and not isinstance(chosen, type):
        return chosen
    raise InvalidArgument(
        f"extractor is {chosen!r:.80}; wanted an object with extract and aextract, 'patterns', 'model' or 'none'"
    )


def _summarizers(given: Any, model: object) -> Summarizers | None:
    if given is not None:
        if isinstance(given, Summarizers) and not isinstance(given, type):
            return given
        raise InvalidArgument(f"summarizers is a {type(given).__name__}; wanted episode, running and narrative")
    if model is None:
        return None
    from pgmem_core.formation.extractors import ModelSummarizers

    return ModelSummarizers(model)
