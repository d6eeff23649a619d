"""Which extras a model named by its provider needs."""

from __future__ import annotations

__all__ = ["extras_of"]

_PROVIDERS = ("openai", "anthropic", "ollama")


def extras_of(provider: str) -> str:
    """Return what goes between the brackets of `pip install 'pgmem-ai[...]'`."""
    return f"langchain,{provider}" if provider in _PROVIDERS else "langchain"
