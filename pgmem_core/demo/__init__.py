"""The conversation that `pgmem demo` shows: Ada's job hunt, three evenings of early 2026, eight questions.

The text is ours. It is in pgmem's own format, nested, so `pgmem import` reads the file as well.
"""

from __future__ import annotations

from pathlib import Path

from pgmem_core.importing import Conversation, read

__all__ = ["PATH", "load"]

PATH = Path(__file__).with_name("conversation.json")


def load() -> Conversation:
    """Return the demo: user "ada", sessions "demo-1" to "demo-3", questions with their evidence."""
    [conversation] = read(PATH)
    return conversation
