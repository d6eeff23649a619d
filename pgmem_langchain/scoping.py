"""Whose memory a run of a graph reads and writes, by what the application gave the run; never by what a model says."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.config import get_config

from pgmem_core import asking
from pgmem_core.errors import InvalidArgument
from pgmem_core.flows import SessionKey
from pgmem_core.ids import MAX_ID_BYTES

__all__ = ["RunScope", "configurable_of", "given", "scope_of_run"]

# How LangGraph joins the names of nested steps, "tools:<task>|model:<task>": more than one is a run within a step.
_NESTS = "|"


@dataclass(frozen=True, slots=True)
class RunScope:
    """The session that a run writes, in the memory it reads. `nested`: another agent's step runs it, and what the
    human messages say in it was written by that agent's model."""

    key: SessionKey
    nested: bool


def configurable_of(config: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return the `configurable` of a config, or of the run that is under way; {} outside of one."""
    if config is None:
        try:
            config = get_config()
        except RuntimeError:
            return {}
    found = config.get("configurable")
    return found if isinstance(found, Mapping) else {}


def given(name: str, context: object, configurable: Mapping[str, Any]) -> Any:
    """Return what the run was given under a name: in its context (a mapping, or any object with attributes), else in
    its `configurable`; None if in neither."""
    value = context.get(name) if isinstance(context, Mapping) else getattr(context, name, None)
    return configurable.get(name) if value is None else value


def scope_of_run(
    context: object,
    configurable: Mapping[str, Any],
    *,
    user_id: str | None = None,
    group_id: str = "default",
    session_id: str | None = None,
) -> RunScope:
    """Return the scope of a run: each part by its context, else by its `configurable`, else as given here.

    Raises: InvalidArgument if nothing names the thread, or an id is none.
    """
    thread = None
    for source in (context, configurable):
        for name in ("session_id", "thread_id"):
            if thread is None:
                thread = given(name, source, {})
    thread = session_id if thread is None else str(thread) if isinstance(thread, uuid.UUID) else thread
    if thread is None:
        raise InvalidArgument(
            'no thread: pass config={"configurable": {"thread_id": ...}} to the run, or context={"thread_id": ...};'
            " without one, conversations of different people would share a memory"
        )
    found_user, found_group = given("user_id", context, configurable), given("group_id", context, configurable)
    key = asking.session_key(
        asking.check_id(thread, "thread_id"),
        group_id=group_id if found_group is None else found_group,
        user_id=user_id if found_user is None else found_user,
        agent_id=None,
    )
    # The last part is the step itself, and differs from hook to hook.
    outer, _, _ = str(configurable.get("checkpoint_ns") or "").rpartition(_NESTS)
    if not outer:
        return RunScope(key, nested=False)
    # The scope stays the thread's: also without a user, the nested run reads what its thread remembers.
    return RunScope(SessionKey(key.scope, _child(key.session_id, outer), True), nested=True)


def _child(thread: str, namespace: str) -> str:
    name = f"{thread}/{namespace}"
    if len(name.encode()) <= MAX_ID_BYTES:
        return name
    return f"nested:{hashlib.sha256(name.encode()).hexdigest()}"
