"""`PgMemMemoryBlock`: what pgmem remembers, as a block of LlamaIndex's own `Memory`."""

from __future__ import annotations

from typing import Any, Literal

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory.memory import BaseMemoryBlock
from pydantic import ConfigDict, Field, PrivateAttr, field_serializer

from pgmem_core import asking, transcript
from pgmem_core.errors import InvalidArgument
from pgmem_core.flows import SessionKey
from pgmem_core.ids import check_id
from pgmem_core.types import CompiledContext
from pgmem_llamaindex.convert import turn_arguments
from pgmem_llamaindex.handle import Handle, Memory
from pgmem_llamaindex.reading import Request, compiled
from pgmem_llamaindex.recalled import cut, own, parts_of, text_of

__all__ = ["PgMemMemoryBlock"]

_SESSION = "session_id"  # what `Memory` writes into the messages it hands to a block


class PgMemMemoryBlock(BaseMemoryBlock[str]):
    """What is remembered of a user, beside the queue of `Memory`: standing facts, and what is found for the newest
    message of the user. Use `Memory(…, insert_method="user")`: by default `Memory` writes blocks into the system's
    message, and what is remembered is data.

    `user_id` and `group_id` are fixed here: what another user said is never shown. Without a user the session that
    `Memory` names stands alone, and neither shows nor is shown in any other. What `Memory` flushes from its queue is
    stored as past turns of that session, recalled and learnt from; with `PgMemAsyncChatStore` behind the same `Memory`
    it is there already, so pass `accept_short_term_memory=False`.

    `priority` 0 (the default): never cut. Else `Memory` may cut it, and what was recalled last goes first.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(default="pgmem", description="The name of this block")
    user_id: str | None = Field(default=None, description="Whose memory it is; without one each session stands alone")
    group_id: str = Field(default="default", description="The group (tenant) of the user")
    agent_id: str | None = Field(default=None, description="The agent that new sessions are filed under")
    session_id: str | None = Field(default=None, description="A session of its own; None: the one that Memory names")
    recall_items: int | None = Field(default=None, ge=0, description="Most recalled items; None: the client's setting")
    recall_tokens: int | None = Field(default=None, ge=0, description="Most tokens of them; None: the client's setting")
    token_limit: int = Field(default=4_000, ge=1, description="Most tokens of the block")
    floor: float | Literal["default"] | None = Field(
        default="default", description="Relevance something must reach; None takes whatever comes nearest"
    )
    reference: dict[str, str] = Field(default_factory=dict, description="Where the memory is found again; no secret")
    _handle: Handle = PrivateAttr()

    @field_serializer("reference")
    def _written(self, _: dict[str, str]) -> dict[str, str]:
        return self._handle.reference  # the client may have been given a name since

    def __init__(self, mem: Memory | None = None, *, dsn: str | None = None, **fields: Any) -> None:
        reference = fields.pop("reference", None)
        handle = Handle.restored(reference) if reference and mem is None and dsn is None else Handle(mem, dsn)
        fields["reference"] = handle.reference
        super().__init__(**fields)
        self._handle = handle
        asking.scope_of(self.group_id, self.user_id, self.agent_id, self.session_id or "any")

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        """Return what is remembered for the user's newest message as one fenced text; "" where that is nothing."""
        query = next((one for one in reversed(messages or []) if one.role == MessageRole.USER and own(one)), None)
        if query is None:
            return ""
        request = Request(
            key=self._key(block_kwargs.get(_SESSION)), asked=None, budget=self.token_limit,
            recall_items=self.recall_items, recall_tokens=self.recall_tokens, floor=self.floor,
        )  # fmt: skip
        content = turn_arguments(query)["content"]
        context: CompiledContext = await self._handle.arun(compiled, request, content)
        return text_of(parts_of(context)) or ""

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Store messages as past turns of their session, in order; [] does nothing."""
        rows: dict[str | None, list[dict[str, Any]]] = {}
        for given in messages:
            if (message := own(given)) is not None:
                kwargs = dict(message.additional_kwargs)
                session = kwargs.pop(_SESSION, None)
                row = turn_arguments(message.model_copy(update={"additional_kwargs": kwargs}))
                rows.setdefault(session, []).append(row)
        for session, turns in rows.items():
            await self._handle.arun(transcript.add, self._key(session), turns, archived=True)

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Return the text with at least so many tokens fewer, whole entries only; None where nothing would be left."""
        return content if tokens_to_truncate <= 0 else cut(content, tokens_to_truncate)

    def _key(self, named: object) -> SessionKey:
        session = self.session_id or named
        if session is None:
            raise InvalidArgument(
                "the block knows no session; pass session_id=, or use it in a Memory, which names one"
            )
        return asking.session_key(
            check_id(session, "session_id"), group_id=self.group_id, user_id=self.user_id, agent_id=self.agent_id
        )
