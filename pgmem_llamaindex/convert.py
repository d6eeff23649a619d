"""`ChatMessage` to `Turn` and back, equal after the round trip.

What a turn holds, and what of a message it comes from:

===================  ==========================================================================================
role                 the message's; `function` becomes `tool`, `chatbot` and `model` become `assistant`, and the
                     message's own is kept beside
content              a str for one text block, else a list of blocks: text as `{"type": "text", "text": …}`, image,
                     audio, video and file with their bytes as base64, thinking, cache points, citable and cited text
tool_calls           `ToolCallBlock`s (else `additional_kwargs["tool_calls"]`), as OpenAI writes them, so that a window
                     keeps calls with their results
tool_call_id, name   from `additional_kwargs`
extra["llama_index"] what LlamaIndex alone knows: the rest of `additional_kwargs`, where calls stood among blocks
===================  ==========================================================================================

Only text blocks are searched and extracted. Bytes anywhere come back as bytes; an open file is read to its end and
comes back as bytes; other models (pydantic) in `additional_kwargs` come back as dicts, which is also what LlamaIndex's
own stores give. Nothing here opens a path or a URL, so a message outlives the file it points to.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from io import IOBase
from pathlib import Path, PurePath
from typing import Any

from llama_index.core.base.llms.types import (
    AudioBlock,
    CacheControl,
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from pydantic import AnyUrl, BaseModel

from pgmem_core.encoding import decode_json, dumps, encode_json
from pgmem_core.errors import InvalidArgument
from pgmem_core.types import Turn

__all__ = ["chat_message", "turn_arguments"]

OURS = "llama_index"
_ROLES = {"function": "tool", "chatbot": "assistant", "model": "assistant"}

# Block class, its name in a turn, and the fields that are called otherwise there.
_KINDS: dict[type[BaseModel], tuple[str, dict[str, str]]] = {
    TextBlock: ("text", {}),
    ImageBlock: ("image", {"image": "base64", "image_mimetype": "mime_type"}),
    AudioBlock: ("audio", {"audio": "base64"}),
    VideoBlock: ("video", {"video": "base64", "video_mimetype": "mime_type"}),
    DocumentBlock: ("file", {"data": "base64", "document_mimetype": "mime_type"}),
    ThinkingBlock: ("thinking", {"content": "thinking"}),
    CachePoint: ("cache", {}),
    CitableBlock: ("citable", {}),
    CitationBlock: ("citation", {}),
}
_CLASSES = {kind: (block, {ours: theirs for theirs, ours in names.items()}) for block, (kind, names) in _KINDS.items()}
_BYTES = {"image", "audio", "video", "data"}
_TEXTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}


# -- message to turn -------------------------------------------------------------------------------------------


def turn_arguments(message: ChatMessage) -> dict[str, Any]:
    """Return the message as the arguments of `Session.add_turn`. The message stays as it is.

    Raises: InvalidArgument for what is no ChatMessage, and for values that JSON cannot hold, naming their place.
    """
    if not isinstance(message, ChatMessage):
        raise InvalidArgument(f"a message must be a ChatMessage, got {type(message).__name__}")
    kwargs = dict(message.additional_kwargs)
    ours: dict[str, Any] = {}
    role = MessageRole(message.role).value
    turn: dict[str, Any] = {"role": _ROLES.get(role, role)}
    if turn["role"] != role:
        ours["role"] = role
    # LlamaIndex has made image blocks of them, and would make them once more of what is read back.
    if isinstance(kwargs.get("images"), list):
        kwargs.pop("images")
    for key in ("name", "tool_call_id"):
        if isinstance(kwargs.get(key), str) and kwargs[key]:
            turn[key] = kwargs.pop(key)

    blocks = [block for block in message.blocks if not isinstance(block, ToolCallBlock)]
    calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    if calls:
        turn["tool_calls"] = [_call(block) for block in calls]
        if len(blocks) + len(calls) > 1 and message.blocks[len(blocks) :] != calls:
            ours["calls_at"] = [n for n, block in enumerate(message.blocks) if isinstance(block, ToolCallBlock)]
        if plain := [n for n, block in enumerate(calls) if isinstance(block.tool_kwargs, str)]:
            ours["text_arguments"] = plain
    elif legacy := _legacy_calls(kwargs.get("tool_calls")):
        turn["tool_calls"] = legacy
        ours["calls"] = "additional_kwargs"
        kwargs.pop("tool_calls")

    if not blocks:
        # What has neither words nor calls is stored all the same: a history gives back what it was given.
        turn["content"] = "" if calls else [{"type": "text", "text": ""}]
        if not calls:
            ours["blocks"] = 0
    elif len(blocks) == 1 and type(blocks[0]) is TextBlock and blocks[0].text.strip():
        turn["content"] = blocks[0].text
    else:
        turn["content"] = [_packed_block(block) for block in blocks]
    if kwargs:
        ours["additional_kwargs"] = _packed(kwargs)
    if ours:
        turn["extra"] = {OURS: ours}
    return turn


def _call(block: ToolCallBlock) -> dict[str, Any]:
    """The call in OpenAI's form. Arguments that were text stay as they are; a dict is written as JSON."""
    given = block.tool_kwargs
    if not isinstance(given, str):
        given = dumps(encode_json(_packed(given), where=f"arguments of tool {block.tool_name!r}"))
    return {
        "id": block.tool_call_id,
        "type": "function",
        "function": {"name": block.tool_name, "arguments": given},
    }


def _legacy_calls(value: object) -> list[dict[str, Any]] | None:
    """The calls that older integrations leave in `additional_kwargs`, if that is what they are."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        return None
    calls = [_packed(call) for call in value]
    return calls if all(isinstance(call, dict) and ("function" in call or "name" in call) for call in calls) else None


def _packed_block(block: BaseModel) -> dict[str, Any]:
    if type(block) not in _KINDS:
        raise InvalidArgument(
            f"a block of class {type(block).__name__} is not one of LlamaIndex's own; wanted TextBlock,"
            " ImageBlock, AudioBlock, VideoBlock, DocumentBlock, ThinkingBlock and the like"
        )
    kind, names = _KINDS[type(block)]
    packed: dict[str, Any] = {"type": kind}
    for field in type(block).model_fields:
        value = getattr(block, field)
        if field == "block_type" or value is None:
            continue
        name = names.get(field, field)
        if isinstance(value, IOBase):
            value.seek(0)
            value = base64.b64encode(value.read())
        if field in _BYTES and isinstance(value, bytes):
            packed.update(_media(value))
        elif isinstance(value, BaseModel) and type(value) in _KINDS:
            packed[name] = _packed_block(value)
        elif isinstance(value, list) and isinstance(block, CitableBlock):
            packed[name] = [_packed_block(item) for item in value]
        else:
            packed[name] = _packed(value)
    if isinstance(block, DocumentBlock) and isinstance(block.path, PurePath):
        packed["path_type"] = "path"  # it may be a str as well
    return packed


def _media(value: bytes) -> dict[str, str]:
    """LlamaIndex keeps bytes as base64 already; what is not stays apart, so that it comes back as it was."""
    try:
        base64.b64decode(value, validate=True)
        return {"base64": value.decode("ascii")}
    except (binascii.Error, ValueError):
        return {"bytes": base64.b64encode(value).decode("ascii")}


def _packed(value: Any) -> Any:
    """The value with bytes as `{"$bytes": base64}` (a dict of that one key gets another `$`), paths, URLs and other
    models as JSON."""
    if isinstance(value, bytes | bytearray):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, PurePath | AnyUrl):
        return str(value)
    if isinstance(value, BaseModel):
        return _packed(value.model_dump())
    if isinstance(value, Mapping):
        packed = {key: _packed(item) for key, item in value.items()}
        only = next(iter(packed)) if len(packed) == 1 else None
        if isinstance(only, str) and only.lstrip("$") == "bytes" and only.startswith("$"):
            return {f"${only}": packed[only]}
        return packed
    if isinstance(value, list | tuple):
        return [_packed(item) for item in value]
    return value


# -- turn to message -------------------------------------------------------------------------------------------


def chat_message(turn: Turn | Mapping[str, Any]) -> ChatMessage:
    """Return a new message of a turn, or of a role/content dict such as those of `CompiledContext.messages`.

    Turns that others wrote are read too: tool calls of either shape become `ToolCallBlock`s, and a block that
    LlamaIndex has no class for is left out.
    """
    if isinstance(turn, Turn):
        content, extra = turn.content, turn.extra
        role, calls, name, call_id = turn.role, turn.tool_calls, turn.name, turn.tool_call_id
    else:
        content, extra = turn.get("content") or "", turn.get("extra") or {}
        role, calls = turn["role"], turn.get("tool_calls") or []
        name, call_id = turn.get("name"), turn.get("tool_call_id")
    ours = extra.get(OURS) or {}
    kwargs: dict[str, Any] = _unpacked(ours.get("additional_kwargs") or {})
    if call_id is not None:
        kwargs["tool_call_id"] = call_id
    if name is not None:
        kwargs["name"] = name

    blocks: list[BaseModel] = []
    if isinstance(content, list):
        blocks += [block for one in content if (block := _block(one)) is not None]
        if ours.get("blocks") == 0:
            blocks = []
    elif content or not calls:
        blocks.append(TextBlock(text=content))
    if ours.get("calls") == "additional_kwargs":
        kwargs["tool_calls"] = _unpacked(list(calls))
    else:
        plain = ours.get("text_arguments") or []
        made = [_call_block(call, n in plain) for n, call in enumerate(calls)]
        places = ours.get("calls_at") or range(len(blocks), len(blocks) + len(made))
        for place, block in zip(places, made, strict=False):
            blocks.insert(place, block)
    # Built without validation, which would open paths, guess types anew and double images.
    return ChatMessage.model_construct(
        role=MessageRole(ours.get("role") or role), blocks=blocks, additional_kwargs=kwargs
    )


def _call_block(call: Mapping[str, Any], plain: bool) -> ToolCallBlock:
    function = call.get("function") or {}
    name = function.get("name") or call.get("name") or ""
    given: Any = function["arguments"] if "arguments" in function else call.get("args", call.get("input", {}))
    if isinstance(given, str) and not plain:
        try:
            parsed = json.loads(given)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict):
            given = _unpacked(decode_json(parsed))
    return ToolCallBlock.model_construct(
        block_type="tool_call", tool_call_id=call.get("id"), tool_name=name, tool_kwargs=given
    )


def _block(packed: Mapping[str, Any] | str) -> BaseModel | None:
    if isinstance(packed, str):
        return TextBlock(text=packed)
    kind = str(packed.get("type", "text"))
    if kind in _TEXTS:
        return TextBlock(text=str(packed.get(_TEXTS[kind]) or ""))
    if kind == "image_url":
        place = packed.get("image_url")
        return ImageBlock(url=place.get("url") if isinstance(place, Mapping) else place)
    if kind == "reasoning":
        return ThinkingBlock(content=packed.get("reasoning") or packed.get("text"))
    if kind not in _CLASSES:
        return None
    block, names = _CLASSES[kind]
    media = next(iter(_BYTES & set(block.model_fields)), None)
    fields: dict[str, Any] = {}
    for name, value in packed.items():
        field = names.get(name, name)
        if media and name in ("bytes", "base64", "data"):
            fields[media] = base64.b64decode(value) if name == "bytes" else str(value).encode("ascii", "ignore")
        elif field in block.model_fields:
            fields[field] = value
    return _built(block, fields, packed.get("path_type") == "path")


def _built(block: type[BaseModel], fields: dict[str, Any], path: bool) -> BaseModel:
    """The block with every field in the class its validators would have given it."""
    if block is TextBlock:
        fields.setdefault("text", "")
    if isinstance(fields.get("url"), str) and block is not DocumentBlock:
        fields["url"] = AnyUrl(fields["url"])
    if fields.get("path") is not None and (path or block is not DocumentBlock):
        fields["path"] = Path(fields["path"])
    if block is CachePoint:
        fields["cache_control"] = CacheControl(**fields["cache_control"])
    if block is CitableBlock:
        fields["content"] = [made for one in fields["content"] if (made := _block(one)) is not None]
    if block is CitationBlock:
        fields["cited_content"] = _block(fields["cited_content"])
    if block is ThinkingBlock:
        fields["additional_information"] = _unpacked(fields.get("additional_information") or {})
    return block.model_construct(**fields)


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1:
            [(only, item)] = value.items()
            if only == "$bytes" and isinstance(item, str):
                return base64.b64decode(item)
            if only.startswith("$$") and only.lstrip("$") == "bytes":
                return {only[1:]: _unpacked(item)}
        return {key: _unpacked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    return value
