"""The ChatGPT export, conversations.json: a tree of messages of which the shown branch is read.

Left out, as they are no part of what was said: hidden messages, empty ones, the model's thoughts, and the
profile and memory that were put before the chat. Code and its output keep their text, with the kind in
`metadata["content_type"]`; images become `{"type": "image", "url": <asset pointer>}`, as the export does not
carry their bytes beside the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pgmem_core.importing import fields
from pgmem_core.importing.fields import FieldError, Ids, Report
from pgmem_core.importing.types import Conversation, ImportedSession, ImportedTurn

__all__ = ["conversation"]

_ROLES = ("user", "assistant", "system", "tool")
_NOT_SAID = {
    "thoughts",
    "reasoning_recap",
    "user_editable_context",
    "model_editable_context",
}
# Where the text of the other kinds is; the first that is a string counts.
_TEXT_KEYS = ("text", "result", "content", "summary")


def conversation(value: dict[str, Any], where: str, report: Report, ids: Ids) -> Conversation | None:
    """Return the shown branch of one exported chat, or None when nothing in it was said."""
    try:
        nodes = fields.mapping(value, "mapping")
        title = fields.text(value, "title")
        created_at = fields.instant(value, "create_time")
        session_id = fields.identifier(value, "conversation_id", "id")
    except FieldError as fault:
        report.problem(where, fault)
        return None
    if session_id is None:
        session_id = ids.session(title, created_at.isoformat() if created_at else None, sorted(nodes))
    turns: dict[str, ImportedTurn] = {}
    for node_id, node in _branch(nodes, value.get("current_node"), where, report):
        try:
            turn = _turn(node_id, node)
        except FieldError as fault:
            report.problem(f"{where}, node {node_id!r}", fault)
            continue
        if turn is None:
            continue
        if turn.id in turns:
            report.problem(f"{where}, node {node_id!r}", f"message id {turn.id!r} is used twice in this chat")
            continue
        turns[turn.id] = turn
    if not turns:
        return None
    session = ImportedSession(session_id, None, title, created_at, tuple(turns.values()))
    return Conversation(title or session_id, None, (session,))


def _branch(nodes: dict[str, Any], current: Any, where: str, report: Report) -> list[tuple[str, dict[str, Any]]]:
    """Return the nodes from the root down to the current one (without one: the newest leaf)."""
    if not isinstance(current, str) or current not in nodes:
        current = _newest_leaf(nodes)
    branch: dict[str, dict[str, Any]] = {}
    while isinstance(current, str):
        node = nodes.get(current)
        if current in branch or not isinstance(node, dict):
            met = "its own ancestor" if current in branch else "no node of the mapping"
            report.problem(f"{where}, node {current!r}", f"it is {met}; the chat above it is left out")
            break
        branch[current] = node
        current = node.get("parent")
    return list(reversed(branch.items()))


def _newest_leaf(nodes: dict[str, Any]) -> str | None:
    leaves = [
        (_time_of(node), number, node_id)
        for number, (node_id, node) in enumerate(nodes.items())
        if isinstance(node, dict) and not node.get("children")
    ]
    return max(leaves)[2] if leaves else None


def _time_of(node: dict[str, Any]) -> float:
    message = node.get("message")
    when = message.get("create_time") if isinstance(message, dict) else None
    return float(when) if isinstance(when, float | int) and abs(when) < 1e15 else 0.0


def _turn(node_id: str, node: dict[str, Any]) -> ImportedTurn | None:
    message = fields.mapping(node, "message")
    metadata = fields.mapping(message, "metadata")
    if not message or metadata.get("is_visually_hidden_from_conversation"):
        return None
    body = fields.mapping(message, "content")
    kind = fields.text(body, "content_type") or "text"
    if kind in _NOT_SAID:
        return None
    content = _content(kind, body)
    if not content:
        return None
    author = fields.mapping(message, "author")
    role = author.get("role")
    if role not in _ROLES:
        raise FieldError(f"the author's role is {fields.describe(role)}, wanted one of {', '.join(_ROLES)}")
    recipient = fields.text(message, "recipient")
    kept = {
        "content_type": kind if kind not in ("text", "multimodal_text") else None,
        "language": body.get("language") if kind == "code" else None,
        "recipient": recipient if recipient != "all" else None,
        "model": metadata.get("model_slug"),
    }
    return ImportedTurn(
        id=fields.identifier(message, "id") or node_id,
        role=role,
        content=content,
        name=fields.text(author, "name"),
        created_at=fields.instant(message, "create_time"),
        metadata={key: value for key, value in kept.items() if isinstance(value, str)},
    )


def _content(kind: str, body: dict[str, Any]) -> str | list[dict[str, Any]]:
    if kind in ("text", "multimodal_text"):
        blocks = [block for part in fields.items(body, "parts") for block in _blocks(part)]
        if all(block["type"] == "text" for block in blocks):
            return "\n".join(block["text"] for block in blocks)
        return blocks
    for key in _TEXT_KEYS:
        if isinstance(found := body.get(key), str):
            return found if found.strip() else ""
    raise FieldError(f"content type {kind!r} holds no text, wanted one of {', '.join(_TEXT_KEYS)}")


def _blocks(part: object) -> Iterator[dict[str, Any]]:
    if isinstance(part, str):
        if part.strip():
            yield {"type": "text", "text": part}
        return
    if not isinstance(part, dict):
        raise FieldError(f"a part is {fields.describe(part)}, wanted a string or an object")
    if isinstance(part.get("text"), str):  # an audio transcription
        if part["text"].strip():
            yield {"type": "text", "text": part["text"]}
        return
    kind = str(part.get("content_type"))
    pointer = part.get("asset_pointer")
    block: dict[str, Any] = {"type": "image" if "image" in kind else "audio" if "audio" in kind else "file"}
    if isinstance(pointer, str):
        block["url"] = pointer
    made = part.get("metadata")
    drawn = made.get("dalle") if isinstance(made, dict) else None
    if isinstance(drawn, dict) and isinstance(drawn.get("prompt"), str) and drawn["prompt"]:
        block["alt"] = drawn["prompt"]
    yield block
