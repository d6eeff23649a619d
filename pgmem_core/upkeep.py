"""What keeps a memory in order, as `PgMem` and `AsyncPgMem` inherit it: moving, copying, cleaning."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import IO, Any

from pgmem_core import asking, reviewing
from pgmem_core.effects import arun, run
from pgmem_core.facts import Fact, ReviewItem, ReviewStatus, Verdict
from pgmem_core.lifecycle import expiry, exporting, forgetting, importing, pruning, rebuilding, reembedding
from pgmem_core.lifecycle.expiry import ExpireReport
from pgmem_core.lifecycle.exporting import ExportReport
from pgmem_core.lifecycle.forgetting import ForgetReport
from pgmem_core.lifecycle.importing import ImportReport
from pgmem_core.lifecycle.pruning import PruneReport
from pgmem_core.lifecycle.rebuilding import RebuildReport
from pgmem_core.lifecycle.reembedding import ReembedProgress, ReembedReport
from pgmem_core.runtime import Runtime
from pgmem_core.tiers.injections import Injection, Prompt
from pgmem_core.types import Authority, RefusedWrite, SubjectRef

__all__ = ["AsyncUpkeep", "Upkeep"]


class Upkeep:
    """The blocking form; it has the words."""

    _rt: Runtime

    def forget(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        subject: SubjectRef | None = None,
        turn_id: str | uuid.UUID | None = None,
        group_id: str = "default",
        connection: Any = None,
    ) -> ForgetReport:
        """Erase a user, a session, a turn, or what is known of a subject, with everything that was made of it.

        Exactly one target. In one transaction go its turns, vectors, words, earlier texts, facts (superseded ones
        too) with evidence and quotes, episodes, the summaries and narratives that may tell of it, execution memory,
        and the log of the prompts that showed it. Where other turns of a session stay, its summaries are written
        anew. Of a `subject` (everywhere in the group) the facts and rejected values go; the turns are those of who
        spoke. An audit row without content stays, and hashes: an older export, or an old turn read again, does not
        bring it back, while what is said from now on is new. Query vectors cached by other processes, whose keys may
        be the words of a query, go with those processes. Items of the key-value store belong to no user, and stay; so
        does an episode of a turn that was pruned before, until its session is forgotten.

        Raises: InvalidArgument (no target, two, or a blank id; nothing is erased).
        """
        return run(forgetting.forget(
            self._rt, user_id=user_id, session_id=session_id, subject=subject, turn_id=turn_id, group_id=group_id,
            given=connection,
        ), self._rt.database)  # fmt: skip

    def prune(
        self,
        older_than_days: float,
        *,
        keep_evidence: bool = True,
        force: bool = False,
        group_id: str | None = None,
        batch: int = 1000,
    ) -> PruneReport:
        """Delete turns said longer ago than that, in transactions of `batch` turns; of one group, or of all.

        Facts, rejected values, episodes and summaries stay. So do the window of an open session, with its
        instructions; turns that facts or summaries are still to be formed from (`force`: those go too); and turns
        that are evidence. With keep_evidence=False these go as well, and the evidence keeps its quote and names the
        turn as its source. Prompts logged longer ago than `injections_days` go in any case. Raises: InvalidArgument.
        """
        return run(pruning.prune(
            self._rt, older_than_days, keep_evidence=keep_evidence, force=force, group_id=group_id, batch=batch
        ), self._rt.database)  # fmt: skip

    def expire(self, *, group_id: str | None = None) -> ExpireReport:
        """End what has come to its own end, in one group or in all: facts and entries of execution memory whose time
        to live is over, what ended sessions left behind, prompts logged longer ago than `injections_days`.

        Reads pass over all of it already. A fact that has expired was true until then: `valid_at` still finds it.
        """
        return run(expiry.expire(self._rt, group_id=group_id), self._rt.database)

    def rebuild(self, *, group_id: str | None = None, batch: int = 200) -> RebuildReport:
        """Make again what is missing of all that is made of the turns, in one group or in all: words, vectors and their
        index, and with a model or an extractor facts, episodes, summaries and narratives. Waits until it is done.

        For when a table or an index was lost, or the setting `language` was changed. Every turn is read by the model
        again; what is there stays as it is, and a value called wrong stays dead. Facts that programs stated are in no
        turn: an export is their copy. Killed or failed on the way: call it again. `batch`: records a transaction.
        Raises: InvalidArgument, PermissionDenied (an index is missing, and this role does not own the tables).
        """
        return run(rebuilding.rebuild(self._rt, group_id=group_id, batch=batch), self._rt.database)

    def reembed(
        self, to: Any, *, batch: int = 256, on_progress: Callable[[ReembedProgress], None] | None = None
    ) -> ReembedReport:
        """Move the whole store over to another embedder while it is read and written, and go on with that one.

        `to`: what PgMem takes as embedder. Until the end both embedders answer, each by meaning for its own rows and
        by words for the other's; then the old one is refused by name. Killed or failed on the way: call it again.
        Needs the tables' owner; `batch`: rows at a time. Raises: PermissionDenied, EmbeddingError, DimensionMismatch.
        """
        return run(reembedding.reembed(self._rt, to, batch=batch, on_progress=on_progress), self._rt.database)

    def review(
        self,
        user_id: str | None = None,
        group_id: str = "default",
        status: ReviewStatus | None = None,
        limit: int = 100,
    ) -> list[ReviewItem]:
        """Return what waits for a person to decide, newest first of each: facts contested by a weaker voice, facts
        less sure than the setting `review_confidence`, and rejected values.

        `status`: "contested", "low_confidence" or "rejected" alone. `user_id`: of that user's memory alone.
        """
        return run(reviewing.review(self._rt, group_id, user_id=user_id, status=status, limit=limit), self._rt.database)

    def decide(
        self,
        target: str | uuid.UUID | ReviewItem | Fact,
        decision: Verdict,
        *,
        decided_by: str,
        note: str | None = None,
        authority: Authority | str = Authority.user,
        group_id: str = "default",
        connection: Any = None,
    ) -> Fact | None:
        """Decide about what `review` lists, and return the fact as it is afterwards, if there is one.

        "confirm": it is true, and what cannot hold beside it gives way. "reject": it never was; its value stays dead.
        "reopen": a rejection was wrong; the value may be believed when it is stated again. `decided_by`: who, for the
        record, which `history` shows. `authority`: "user" for a person's word, "system" for a system of record.

        Raises: NotFound, InvalidArgument (a stronger authority stands against it; nothing is written).
        """
        return run(reviewing.decide(
            self._rt, group_id, target, decision, decided_by=decided_by, note=note, authority=authority,
            given=connection,
        ), self._rt.database)  # fmt: skip

    def refusals(self, group_id: str = "default", limit: int = 100) -> list[RefusedWrite]:
        """Return what the write policy refused, newest first: when, why and what kind of write, never the text."""
        return run(reviewing.refused_writes(self._rt, group_id, limit), self._rt.database)

    def why(self, turn_id: str | uuid.UUID, *, group_id: str = "default") -> list[Injection]:
        """Return everything an agent was shown for a turn besides the conversation itself, in the order of the reads
        and then as it was shown: what, when, its score, who said it, and what its text says today (None: erased, or
        never kept). [] where nothing was shown, or the log has been pruned. Raises: InvalidArgument.
        """
        return run(asking.why(self._rt, group_id, turn_id), self._rt.database)

    def prompts(
        self,
        user_id: str | None = None,
        group_id: str = "default",
        *,
        session_id: str | None = None,
        limit: int = 20,
    ) -> list[Prompt]:
        """Return the prompts that showed an agent some memory, newest first: of a user, of a session, or of the whole
        group. Each has the id of the question's turn, for `why`, and what was shown. Raises: InvalidArgument.
        """
        return run(
            asking.prompts(self._rt, group_id, user_id=user_id, session_id=session_id, limit=limit), self._rt.database
        )

    def export(
        self,
        to: str | os.PathLike[str] | IO[str],
        *,
        group_id: str = "default",
        user_id: str | None = None,
        vectors: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> ExportReport:
        """Write a group's memory, or one user's, as JSON Lines, as of one moment: sessions and turns, facts with both
        clocks and their evidence, tombstones, episodes, summaries, narratives and history. Not execution memory, nor
        what agents were shown.

        `to`: a path, which gets the file whole or not at all, or an open text file. Without `vectors` the importing
        store makes its own. `on_progress` is told the lines written.
        """
        return run(exporting.export(
            self._rt, to, group_id=group_id, user_id=user_id, vectors=vectors, on_progress=on_progress
        ), self._rt.database)  # fmt: skip

    def import_(
        self,
        path: str | os.PathLike[str],
        *,
        group_id: str | None = None,
        user_id: str | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> ImportReport:
        """Store an export, or conversations in any format that `pgmem_core.importing` reads; each thing once.

        `group_id` None: an export's own group, "default" for conversations. `user_id`: whose conversations those are
        that do not say. Killed on the way: import it again. What came without vectors is embedded by the worker, or by
        `form()`. Raises: InvalidArgument, Conflict.
        """
        return run(importing.import_(
            self._rt, path, group_id=group_id, user_id=user_id, on_progress=on_progress
        ), self._rt.database)  # fmt: skip


class AsyncUpkeep:
    """The same, to await."""

    _rt: Runtime

    async def forget(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        subject: SubjectRef | None = None,
        turn_id: str | uuid.UUID | None = None,
        group_id: str = "default",
        connection: Any = None,
    ) -> ForgetReport:
        return await arun(forgetting.forget(
            self._rt, user_id=user_id, session_id=session_id, subject=subject, turn_id=turn_id, group_id=group_id,
            given=connection,
        ), self._rt.database)  # fmt: skip

    async def prune(
        self,
        older_than_days: float,
        *,
        keep_evidence: bool = True,
        force: bool = False,
        group_id: str | None = None,
        batch: int = 1000,
    ) -> PruneReport:
        return await arun(pruning.prune(
            self._rt, older_than_days, keep_evidence=keep_evidence, force=force, group_id=group_id, batch=batch
        ), self._rt.database)  # fmt: skip

    async def expire(self, *, group_id: str | None = None) -> ExpireReport:
        return await arun(expiry.expire(self._rt, group_id=group_id), self._rt.database)

    async def rebuild(self, *, group_id: str | None = None, batch: int = 200) -> RebuildReport:
        return await arun(rebuilding.rebuild(self._rt, group_id=group_id, batch=batch), self._rt.database)

    async def reembed(
        self, to: Any, *, batch: int = 256, on_progress: Callable[[ReembedProgress], None] | None = None
    ) -> ReembedReport:
        return await arun(reembedding.reembed(self._rt, to, batch=batch, on_progress=on_progress), self._rt.database)

    async def review(
        self,
        user_id: str | None = None,
        group_id: str = "default",
        status: ReviewStatus | None = None,
        limit: int = 100,
    ) -> list[ReviewItem]:
        return await arun(
            reviewing.review(self._rt, group_id, user_id=user_id, status=status, limit=limit), self._rt.database
        )

    async def decide(
        self,
        target: str | uuid.UUID | ReviewItem | Fact,
        decision: Verdict,
        *,
        decided_by: str,
        note: str | None = None,
        authority: Authority | str = Authority.user,
        group_id: str = "default",
        connection: Any = None,
    ) -> Fact | None:
        return await arun(reviewing.decide(
            self._rt, group_id, target, decision, decided_by=decided_by, note=note, authority=authority,
            given=connection,
        ), self._rt.database)  # fmt: skip

    async def refusals(self, group_id: str = "default", limit: int = 100) -> list[RefusedWrite]:
        return await arun(reviewing.refused_writes(self._rt, group_id, limit), self._rt.database)

    async def why(self, turn_id: str | uuid.UUID, *, group_id: str = "default") -> list[Injection]:
        return await arun(asking.why(self._rt, group_id, turn_id), self._rt.database)

    async def prompts(
        self,
        user_id: str | None = None,
        group_id: str = "default",
        *,
        session_id: str | None = None,
        limit: int = 20,
    ) -> list[Prompt]:
        return await arun(
            asking.prompts(self._rt, group_id, user_id=user_id, session_id=session_id, limit=limit), self._rt.database
        )

    async def export(
        self,
        to: str | os.PathLike[str] | IO[str],
        *,
        group_id: str = "default",
        user_id: str | None = None,
        vectors: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> ExportReport:
        return await arun(exporting.export(
            self._rt, to, group_id=group_id, user_id=user_id, vectors=vectors, on_progress=on_progress
        ), self._rt.database)  # fmt: skip

    async def import_(
        self,
        path: str | os.PathLike[str],
        *,
        group_id: str | None = None,
        user_id: str | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> ImportReport:
        return await arun(importing.import_(
            self._rt, path, group_id=group_id, user_id=user_id, on_progress=on_progress
        ), self._rt.database)  # fmt: skip
