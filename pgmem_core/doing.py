"""`session.execution`: what the agent is doing right now. `Execution` blocks, `AsyncExecution` is awaited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pgmem_core import believing
from pgmem_core.believing import EvidenceLike
from pgmem_core.effects import arun, run
from pgmem_core.facts import Fact
from pgmem_core.types import Authority, SubjectRef

if TYPE_CHECKING:
    from pgmem_core.flows import SessionKey
    from pgmem_core.runtime import Runtime

__all__ = ["AsyncExecution", "Execution"]


class Execution:
    """Keyed JSON values of one session: plan, steps, tool results, scratch.

    Shown in this session's context only, gone when its time to live or the session ends, never recalled elsewhere
    and never a fact unless `promote` makes it one.
    """

    def __init__(self, rt: Runtime, key: SessionKey) -> None:
        self._rt = rt
        self._key = key

    def set(self, key: str, value: Any, *, ttl_seconds: float | None = None, connection: Any = None) -> None:
        """Set a key to a JSON value, for ttl_seconds or until the session ends. Raises: NotFound, InvalidArgument."""
        run(
            believing.put(self._rt, self._key, key, value, ttl_seconds=ttl_seconds, given=connection), self._rt.database
        )

    def get(self, key: str, default: Any = None) -> Any:
        """Return a key's value, or default if it is not set or has expired."""
        return run(believing.get(self._rt, self._key, key, default), self._rt.database)

    def all(self) -> dict[str, Any]:
        """Return every live key with its value, in the order of the keys."""
        return run(believing.get_all(self._rt, self._key), self._rt.database)

    def clear(self, key: str | None = None, *, connection: Any = None) -> int:
        """Remove a key, or all of them; return how many there were."""
        return run(believing.clear(self._rt, self._key, key, connection), self._rt.database)

    def promote(
        self,
        key: str,
        predicate: str,
        *,
        subject: SubjectRef | None = None,
        authority: Authority | str = Authority.agent,
        evidence: Sequence[EvidenceLike] | EvidenceLike = (),
        connection: Any = None,
    ) -> Fact | None:
        """Make a fact of a key's value, with evidence; the key stays. Raises: NotFound."""
        return run(
            believing.promote(
                self._rt, self._key, key, predicate, subject=subject, authority=authority, evidence=evidence,
                given=connection,
            ),
            self._rt.database,
        )  # fmt: skip


class AsyncExecution:
    """`Execution` to await; see there."""

    def __init__(self, rt: Runtime, key: SessionKey) -> None:
        self._rt = rt
        self._key = key

    async def set(self, key: str, value: Any, *, ttl_seconds: float | None = None, connection: Any = None) -> None:
        await arun(
            believing.put(self._rt, self._key, key, value, ttl_seconds=ttl_seconds, given=connection), self._rt.database
        )

    async def get(self, key: str, default: Any = None) -> Any:
        return await arun(believing.get(self._rt, self._key, key, default), self._rt.database)

    async def all(self) -> dict[str, Any]:
        return await arun(believing.get_all(self._rt, self._key), self._rt.database)

    async def clear(self, key: str | None = None, *, connection: Any = None) -> int:
        return await arun(believing.clear(self._rt, self._key, key, connection), self._rt.database)

    async def promote(
        self,
        key: str,
        predicate: str,
        *,
        subject: SubjectRef | None = None,
        authority: Authority | str = Authority.agent,
        evidence: Sequence[EvidenceLike] | EvidenceLike = (),
        connection: Any = None,
    ) -> Fact | None:
        return await arun(
            believing.promote(
                self._rt, self._key, key, predicate, subject=subject, authority=authority, evidence=evidence,
                given=connection,
            ),
            self._rt.database,
        )  # fmt: skip
