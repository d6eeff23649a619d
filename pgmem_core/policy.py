"""The write policy: what a text must pass before it is stored, counted, indexed, embedded or cached.

A policy is a callable `policy(text, entry) -> str`: it returns the text to store, redacted or as it is, or raises
`WriteRefused(reason)`. `entry` says what is being written: "turn" (content, blocks, tool calls, names, metadata),
"query", "memory", "fact", "evidence", "execution", "session", "summary", "import", "store", "review", or "error" (what
a model raised, kept with the session it failed on; where that is refused, its words are left out). It sees every string
of a value, keys of mappings too, one at a time. Identifiers (ids of groups, users, sessions and subjects, keys of
execution memory) are not texts: they name, and pass as they are.

A policy is called in whichever thread writes, so it must be quick and safe to share. It fails closed: when it raises
anything else, or returns no str, the write is refused as `ConfigurationError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from hashlib import blake2b
from importlib import import_module
from typing import Any

from pgmem_core.encoding import MAX_DEPTH
from pgmem_core.errors import ConfigurationError, WriteRefused
from pgmem_core.redaction import redact
from pgmem_core.settings import Settings, make_settings

__all__ = ["Policy", "WritePolicy", "refusal", "with_policy"]

Policy = Callable[[str, str], str]
_REASON_CHARS = 300
# Consecutive blocks of these are one text cut up, as streams come: what is split between them is looked for too.
_TEXT_BLOCKS = frozenset({"text", "input_text", "output_text"})


def with_policy(
    settings: Settings | None, options: dict[str, object], policy: Policy | str | None
) -> tuple[Settings, WritePolicy | None]:
    """Return settings with options laid over them, and the policy they make: the one given, else that of the setting
    `policy`, and after it the setting `redact`. None where nothing is to be screened.

    Raises: ConfigurationError, naming each bad setting, or a policy that cannot be imported.
    """
    if isinstance(policy, str):
        options, policy = {**options, "policy": policy}, None
    chosen = make_settings(settings, options)
    return chosen, _make(policy, chosen)


def _make(given: Policy | None, settings: Settings) -> WritePolicy | None:
    steps: list[Policy] = []
    if given is not None:
        if not callable(given):
            raise ConfigurationError(
                f"policy must be a callable policy(text, entry) or 'module:function', got {type(given).__name__}"
            )
        steps.append(given)
    elif settings.policy is not None:
        steps.append(_load(settings.policy))
    if settings.redact == "secrets":
        # Last, so that what the policy returns is without them as well.
        steps.append(redact)
    return WritePolicy(steps) if steps else None


def _load(path: str) -> Policy:
    module, _, name = path.partition(":")
    if not module or not name:
        raise ConfigurationError(f"policy {path!r} names no function; write it as 'package.module:function'")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as exc:
        raise ConfigurationError(
            f"policy {path!r} could not be imported: {exc}; its package must be installed, or its folder in PYTHONPATH"
        ) from exc
    if not callable(found):
        raise ConfigurationError(f"policy {path!r} is a {type(found).__name__}, not a callable policy(text, entry)")
    loaded: Policy = found
    return loaded


class WritePolicy:
    """Applies policies in order, to texts and to all texts of a value."""

    def __init__(self, steps: Sequence[Policy]) -> None:
        self._steps = tuple(steps)

    def screen(self, value: Any, entry: str) -> Any:
        """Return a screened copy of a str, or of the strings in lists, tuples, sets and mappings; all else as it is.

        Raises: WriteRefused, with what the audit keeps of the text; ConfigurationError if the policy itself failed.
        """
        return self._walk(value, entry, MAX_DEPTH, set())

    def _walk(self, value: Any, entry: str, depth: int, parents: set[int]) -> Any:
        if isinstance(value, Enum):
            return self._walk(value.value, entry, depth, parents)
        if isinstance(value, str):
            return self._text(value, entry)
        if not isinstance(value, Mapping | list | tuple | set | frozenset) or depth == 0 or id(value) in parents:
            return value  # too deep, or in itself: encoding it will say so
        parents.add(id(value))
        try:
            if isinstance(value, Mapping):
                return {
                    self._walk(key, entry, depth - 1, parents): self._walk(item, entry, depth - 1, parents)
                    for key, item in value.items()
                }
            ordered = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            return self._joined([self._walk(item, entry, depth - 1, parents) for item in ordered], entry)
        finally:
            parents.discard(id(value))

    def _joined(self, items: list[Any], entry: str) -> list[Any]:
        """Return the items, with runs of text blocks made one where only their whole text shows what is in it."""
        made: list[Any] = []
        at = 0
        while at < len(items):
            run = at
            while run < len(items) and _is_text_block(items[run]):
                run += 1
            if run - at > 1:
                whole = "".join(block["text"] for block in items[at:run])
                screened = self._text(whole, entry)
                made += items[at:run] if screened == whole else [{**items[at], "text": screened}]
                at = run
            else:
                made.append(items[at])
                at += 1
        return made

    def _text(self, text: str, entry: str) -> str:
        if not text:
            return text
        plain = str.__str__(text)
        for step in self._steps:
            try:
                screened = step(plain, entry)
            except WriteRefused as refused:
                raise refusal(str(refused.reason), text, entry) from None
            except Exception as exc:
                # Without the text of what it raised, which may quote what must not be written anywhere.
                raise ConfigurationError(
                    f"the write policy failed on this {entry}: {type(exc).__name__}; nothing was stored"
                ) from exc
            if not isinstance(screened, str):
                raise ConfigurationError(
                    f"the write policy returned {type(screened).__name__} for this {entry}; it must return the text to"
                    " store, or raise WriteRefused; nothing was stored"
                )
            plain = str.__str__(screened)
        return text if plain == text else plain


def _is_text_block(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") in _TEXT_BLOCKS and isinstance(item.get("text"), str)


def refusal(reason: str, text: str, entry: str) -> WriteRefused:
    """Return the error, with what the audit keeps of the text."""
    reason = " ".join(reason.split())[:_REASON_CHARS]
    if text and text in reason:  # the audit holds no content
        reason = "the reason quotes the text and is left out"
    refused = WriteRefused(reason, entry=entry)
    refused.content_hash = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    refused.length = len(text)
    return refused
