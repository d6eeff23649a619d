"""An export into a group's memory: every row once, however often and however far it is read.

Batches are transactions of their own. Killed on the way, the same file read again writes what is missing and leaves
the rest; workers look at a session only once all of the file is there. Rows of what was forgotten since the export
stay away, and with them the summaries and narratives that may tell of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from pgmem_core import screening
from pgmem_core.content import spoken
from pgmem_core.database import migrate
from pgmem_core.database.connection import Connection
from pgmem_core.database.migrate import Model
from pgmem_core.effects import Flow, transact
from pgmem_core.encoding import decode_json, decode_text, encode_json
from pgmem_core.errors import BadVector, DimensionMismatch, InvalidArgument, MissingExtra, PgmemError, WriteRefused
from pgmem_core.flows import store_model
from pgmem_core.importing import Problem, archive
from pgmem_core.importing.archive import Archive, Row
from pgmem_core.lifecycle.checking import check_row
from pgmem_core.models.vectors import check_vector
from pgmem_core.retrieval import lexical
from pgmem_core.runtime import Runtime
from pgmem_core.tiers import exports, plain, restoring, restoring_facts
from pgmem_core.tiers.restoring import Done, Indexed

__all__ = ["Restored", "restore"]

# Rows a transaction: what a kill can undo.
_CHUNK = 400
_ENTRY = "import"
# Of each type: its table, and what of a row is text that the write policy has a say in.
_TABLES = {
    "session": ("sessions", ("metadata",)),
    "turn": ("records", ("content", "message", "metadata")),
    "running_summary": ("running_summaries", ("content",)),
    "fact": ("facts", ("value",)),
    "tombstone": ("tombstones", ()),
    "decision": ("decisions", ("note",)),
    "record": ("records", ("content", "message", "metadata")),
    "narrative": ("narratives", ("content",)),
    "history": ("record_history", ("old_content", "new_content")),
}
_BATCHED_TABLES = {*(table for table, _ in _TABLES.values()), "subjects"}


@dataclass(slots=True)
class Restored:
    """What became of the lines of an export, by type. `forgotten` were erased here since, `dead` are values rejected
    here, `contested` contradict what is believed here. `vectors`: rows that came with a usable vector."""

    new: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    forgotten: Counter[str] = field(default_factory=Counter)
    dead: int = 0
    contested: int = 0
    vectors: int = 0


@dataclass(slots=True)
class _State:
    """What a walk through the file knows of what came before."""

    columns: dict[str, list[str]]
    models: dict[str, Model]
    sessions: list[Row] = field(default_factory=list)
    users: set[str] = field(default_factory=set)
    gaps: dict[str, int] = field(default_factory=dict)  # session: the first turn that was forgotten
    since: dict[str, datetime] = field(default_factory=dict)  # user: when the first forgotten thing was stored


def restore(
    rt: Runtime,
    found: Archive,
    group: str,
    *,
    on_problem: Callable[[Problem], None],
    on_progress: Callable[[int], None] | None,
) -> Flow[Restored]:
    """Write an export into a group. Raises: Conflict (a session of another user, or one that has gone on in both
    places), InvalidArgument (rows that this schema cannot hold), StoreUnavailable."""
    columns = yield from transact(_columns, single=True)
    state = _State(columns, (yield from _models(rt, found)))
    report = Restored()
    refused: list[WriteRefused] = []
    lines = 0
    try:
        for kind, where, rows in _batches(rt, found, on_problem, refused.append):
            try:
                done = yield from _write(rt, group, kind, rows, state, report)
            except PgmemError as exc:
                if type(exc) is not PgmemError:
                    raise
                raise InvalidArgument(
                    f"{found.source.name}, {where}: these {kind} lines cannot be stored: {exc}"
                ) from exc
            report.new[kind] += done.new
            report.known[kind] += done.known
            report.forgotten[kind] += len(done.lost)
            for session in sorted({rows[i]["session_id"] for i in done.homeless}):
                turns = f"turns of session {session!r} are left out: neither the file nor this group has the session"
                on_problem(Problem(found.source.name, where, turns))
            report.dead += done.dead
            report.contested += done.contested
            lines += len(rows)
            if on_progress is not None:
                on_progress(lines)
    finally:
        yield from screening.record(rt, group, refused)
    for at in range(0, len(state.sessions), _CHUNK):
        yield from transact(restoring.finish, group, state.sessions[at : at + _CHUNK], gaps=state.gaps)
    for user in (*sorted(state.users), None):
        yield from transact(plain.refresh_stats, group, user, report.new["turn"] + report.new["record"], single=True)
    return report


def _columns(conn: Connection) -> dict[str, list[str]]:
    return {table: exports.columns_of(conn, table) for table in sorted(_BATCHED_TABLES)}


def _models(rt: Runtime, found: Archive) -> Flow[dict[str, Model]]:
    """Return the models whose vectors can be used here: the embedder's own, and those of callers' own vectors."""
    models: dict[str, Model] = {}
    for name, dimensions, source in found.models:
        if source == "given":
            models[name] = yield from transact(migrate.register_model, name, dimensions, source="given")
            continue
        try:
            if rt.embedder.model == name:
                model = yield from store_model(rt)
                if model.dimensions == dimensions:
                    models[name] = model
        except (MissingExtra, DimensionMismatch):
            continue  # the worker's to tell; the rows are found by words until it has been
    return models


def _batches(
    rt: Runtime, found: Archive, on_problem: Callable[[Problem], None], on_refused: Callable[[WriteRefused], None]
) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield type, place and rows of consecutive lines of one type, screened."""
    kind, first, rows = "", "", list[Row]()
    for where, this, row in found.lines(on_problem):
        if rows and (this != kind or len(rows) >= _CHUNK):
            yield kind, first, rows
            rows = []
        if not rows:
            kind, first = this, where
        try:
            rows.append(check_row(this, row if rt.policy is None else _screened(rt, this, row), datetime.now(UTC)))
        except (WriteRefused, InvalidArgument) as exc:
            on_problem(Problem(found.source.name, where, str(exc)))
            if isinstance(exc, WriteRefused):
                on_refused(exc)
    if rows:
        yield kind, first, rows


def _screened(rt: Runtime, kind: str, row: Row) -> Row:
    """Return a copy as the write policy lets it pass; what is derived of a text it changed is derived anew."""
    made = dict(row)
    for name in _TABLES[kind][1]:
        if row.get(name) is not None:
            made[name] = encode_json(rt.screen(decode_json(row[name]), _ENTRY), where=name)
    if made.get("content") != row.get("content"):
        made.pop("vector", None)
    if kind == "fact":
        made["evidence"] = [
            {**one, **{key: rt.screen(one[key], _ENTRY) for key in ("source", "quote") if one.get(key) is not None}}
            for one in row["evidence"]
        ]
    return made


def _write(rt: Runtime, group: str, kind: str, rows: list[Row], state: _State, report: Restored) -> Flow[Done]:
    operation: Callable[..., Done]
    match kind:
        case "session":
            operation = restoring.sessions
        case "turn" | "record":
            indexed = yield from _indexed(rt, group, rows, state, report)
            operation = restoring.turns if kind == "turn" else restoring.records
            done = yield from transact(operation, group, state.columns, indexed)
            _note_lost(kind, rows, done, state)
            state.users |= {row["user_id"] for i, row in enumerate(rows) if i not in done.lost}
            return done
        case "running_summary":
            operation = partial(restoring.summaries, gaps=state.gaps)
        case "fact":
            operation = restoring_facts.facts
        case "tombstone":
            operation = restoring_facts.tombstones
        case "decision":
            operation = restoring_facts.decisions
        case "narrative":
            operation = partial(restoring.narratives, gaps=state.since)
        case _:
            operation = restoring.history
    done = yield from transact(operation, group, state.columns, rows)
    _note_lost(kind, rows, done, state)
    if kind == "session":
        state.sessions += [row for i, row in enumerate(rows) if i not in done.lost]
    return done


def _note_lost(kind: str, rows: Sequence[Row], done: Done, state: _State) -> None:
    if kind not in ("turn", "record", "fact"):
        return
    for i in done.lost:
        row = rows[i]
        if kind == "turn":
            state.gaps[row["session_id"]] = min(row["seq"], state.gaps.get(row["session_id"], row["seq"]))
        at = datetime.fromisoformat(row["recorded_at"])
        state.since[row["user_id"]] = min(at, state.since.get(row["user_id"], at))


def _indexed(rt: Runtime, group: str, rows: list[Row], state: _State, report: Restored) -> Flow[list[Indexed]]:
    """Return records with their terms, found anew as this store's language has them, and the vectors of the file."""
    known = yield from transact(restoring.known_records, group, [row["id"] for row in rows], single=True)
    made = []
    for row in rows:
        one = Indexed(row)
        if row["id"] not in known:
            if row.get("term_total"):  # what had none is a pleasantry, or nothing to be found
                name = (row.get("message") or {}).get("name")
                text = spoken(decode_text(row["content"]), name and decode_text(name))
                terms = lexical.analyse(text, language=rt.settings.language)
                one = replace(one, terms=terms.hashes, counts=terms.counts, length=terms.length)
            model = state.models.get(row.get("model") or "")
            if model is not None and row.get("vector") is not None:
                try:
                    vector = check_vector(archive.numbers(row["vector"]), dimensions=model.dimensions, model=model.name)
                except (ValueError, BadVector, DimensionMismatch):
                    pass  # found by words, and by meaning once the worker has made one
                else:
                    one = replace(one, model=model.id, vector=vector)
                    report.vectors += 1
        made.append(one)
    return made
