"""The commands and their options. What they do is imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pgmem_core.cli.place import Place

__all__ = ["app"]

app = typer.Typer(
    name="pgmem",
    help="Durable memory for LLM agents, in the Postgres you already run.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Dsn = Annotated[
    str | None, typer.Option("--dsn", metavar="URL", help="Postgres to use (or set PGMEM_DSN).", show_default=False)
]
Folder = Annotated[
    Path | None,
    typer.Option("--path", metavar="DIR", help="Embedded Postgres in this folder (.pgmem if no --dsn either)."),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--embedder", metavar="NAME", help="For example openai:text-embedding-3-small (or set PGMEM_EMBEDDER)."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else there.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Group = Annotated[str, typer.Option("--group-id", "--group", help="The tenant: nothing crosses it.")]
User = Annotated[str, typer.Option("--user-id", "--user", help="Whose memory.", show_default=False)]
AnyUser = Annotated[str | None, typer.Option("--user-id", "--user", help="Whose memory.", show_default=False)]
Subject = Annotated[
    str | None, typer.Option("--subject", metavar="KIND:ID", help="About whom or what.", show_default=False)
]
Predicate = Annotated[str | None, typer.Option("--predicate", help="This predicate alone.", show_default=False)]


@app.callback()
def _pgmem() -> None:
    pass


@app.command()
def init(
    dsn: Dsn = None, path: Folder = None, embedder: Model = None, as_json: Json = False, debug: Debug = False
) -> None:
    """Create or upgrade the schema, and register the embedder."""
    from pgmem_core.cli import serving

    serving.init(Place.of(dsn, path, embedder), as_json=as_json)


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(help="An export of pgmem, JSON Lines, message lists, a ChatGPT export, or LoCoMo.")
    ],
    user_id: Annotated[
        str | None, typer.Option("--user-id", "--user", help="Whose it is; needed where the file does not say.")
    ] = None,
    group_id: Annotated[
        str | None,
        typer.Option(
            "--group-id", "--group", help="The tenant (default: an export's own, else 'default').", show_default=False
        ),
    ] = None,
    session_prefix: Annotated[
        str, typer.Option("--session-prefix", help="Put before every session id of the file.")
    ] = "",
    dsn: Dsn = None,
    path: Folder = None,
    embedder: Model = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Store the memory or the conversations of a file. Again: adds only what is not there yet."""
    from pgmem_core.cli import importing

    importing.import_file(
        Place.of(dsn, path, embedder), file, user_id=user_id, group_id=group_id, session_prefix=session_prefix,
        as_json=as_json,
    )  # fmt: skip


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="The file to write, such as memory.jsonl; - is stdout.")],
    group_id: Group = "default",
    user_id: Annotated[
        str | None,
        typer.Option("--user-id", "--user", help="Only this user's (default: the whole group).", show_default=False),
    ] = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="Vectors too: nothing is embedded at import.")] = False,
    dsn: Dsn = None,
    path: Folder = None,
    embedder: Model = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a group's memory, or one user's, as JSON Lines that `import` reads."""
    from pgmem_core.cli import exporting

    exporting.export(
        Place.of(dsn, path, embedder), file, group_id=group_id, user_id=user_id, vectors=vectors, as_json=as_json
    )


@app.command()
def search(
    query: Annotated[str, typer.Argument()],
    user_id: User,
    group_id: Group = "default",
    k: Annotated[int, typer.Option("--k", "-k", min=1, max=1000, help="How many memories.")] = 5,
    floor: Annotated[
        str, typer.Option("--floor", help="Least relevance: a cosine, 'default' (the embedder's) or 'none'.")
    ] = "none",
    dsn: Dsn = None,
    path: Folder = None,
    embedder: Model = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Find a user's memories, and say why each was found."""
    from pgmem_core.cli import reading

    reading.search(
        Place.of(dsn, path, embedder), query, user_id=user_id, group_id=group_id, k=k, floor=floor, as_json=as_json
    )


@app.command()
def context(
    query: Annotated[str, typer.Argument()],
    user_id: User,
    session: Annotated[
        str | None, typer.Option("--session", help="A stored session (default: a new one).", show_default=False)
    ] = None,
    group_id: Group = "default",
    budget_tokens: Annotated[int | None, typer.Option("--budget-tokens", help="Tokens of the whole prompt.")] = None,
    floor: Annotated[
        str, typer.Option("--floor", help="Least relevance: a cosine, 'default' (the embedder's) or 'none'.")
    ] = "default",
    dsn: Dsn = None,
    path: Folder = None,
    embedder: Model = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the prompt that an agent would get for a query. Stores nothing."""
    from pgmem_core.cli import reading

    reading.context(
        Place.of(dsn, path, embedder), query, user_id=user_id, session_id=session, group_id=group_id,
        budget_tokens=budget_tokens, floor=floor, as_json=as_json,
    )  # fmt: skip


@app.command()
def facts(
    user_id: AnyUser = None,
    subject: Subject = None,
    predicate: Predicate = None,
    valid_at: Annotated[
        str | None, typer.Option("--valid-at", metavar="TIME", help="What held then (UTC, or with its zone).")
    ] = None,
    known_at: Annotated[str | None, typer.Option("--known-at", metavar="TIME", help="As it was believed then.")] = None,
    group_id: Group = "default",
    dsn: Dsn = None,
    path: Folder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what is true, now or then, on whose word and by what evidence."""
    from pgmem_core.cli import facts as cli_facts

    cli_facts.facts(
        Place.of(dsn, path), user_id=user_id, subject=subject, predicate=predicate, valid_at=valid_at,
        known_at=known_at, group_id=group_id, as_json=as_json,
    )  # fmt: skip


@app.command()
def history(
    user_id: AnyUser = None,
    subject: Subject = None,
    predicate: Predicate = None,
    group_id: Group = "default",
    dsn: Dsn = None,
    path: Folder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show everything that was ever believed, who said it, and when."""
    from pgmem_core.cli import facts as cli_facts

    cli_facts.history(
        Place.of(dsn, path), user_id=user_id, subject=subject, predicate=predicate, group_id=group_id, as_json=as_json
    )


@app.command()
def review(
    user_id: AnyUser = None,
    confirm: Annotated[str | None, typer.Option("--confirm", metavar="ID", help="It is true.")] = None,
    reject: Annotated[str | None, typer.Option("--reject", metavar="ID", help="It never was; it stays dead.")] = None,
    reopen: Annotated[str | None, typer.Option("--reopen", metavar="ID", help="Its rejection was wrong.")] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides (default: your login).")] = None,
    note: Annotated[str | None, typer.Option("--note", help="Why, for the record.")] = None,
    authority: Annotated[str, typer.Option("--authority", help="user, or system for a system of record.")] = "user",
    status: Annotated[
        str | None, typer.Option("--status", help="contested, low_confidence or rejected alone.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 100,
    group_id: Group = "default",
    dsn: Dsn = None,
    path: Folder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List contested, doubtful and rejected facts, or decide about one."""
    from pgmem_core.cli import facts as cli_facts

    place, chosen = Place.of(dsn, path), {"confirm": confirm, "reject": reject, "reopen": reopen}
    if any(chosen.values()):
        cli_facts.decide(place, chosen, by=by, note=note, authority=authority, group_id=group_id, as_json=as_json)
    else:
        cli_facts.review(place, user_id=user_id, group_id=group_id, status=status, limit=limit, as_json=as_json)


@app.command()
def why(
    turn_id: Annotated[
        str | None,
        typer.Argument(help="The id of a turn: of the question that the agent answered.", show_default=False),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="ID", help="The prompts of a session, newest first.", show_default=False),
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest one (of the --session, of the --user).")] = False,
    user_id: AnyUser = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many prompts.")] = 10,
    group_id: Group = "default",
    dsn: Dsn = None,
    path: Folder = None,
    embedder: Model = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what an agent was shown for a turn, or in a session: what, when, why, and who said it."""
    from pgmem_core.cli import why as told

    place = Place.of(dsn, path, embedder)
    told.why(
        place, turn_id, session_id=session, user_id=user_id, last=last, limit=limit, group_id=group_id, as_json=as_json
    )


@app.command()
def worker(
    once: Annotated[bool, typer.Option("--once", help="Do what waits, then exit.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="NAME", help="Forms facts and summaries: openai:gpt-4o-mini (or set PGMEM_MODEL)."
        ),
    ] = None,
    extractor: Annotated[
        str | None, typer.Option("--extractor", metavar="NAME", help="'patterns' forms facts without a model.")
    ] = None,
    dsn: Dsn = None,
    path: Folder = None,
    embedder: Model = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Do the work behind the turns, until SIGTERM or Ctrl-C. Any number of workers may run."""
    from pgmem_core.cli import serving

    serving.work(Place.of(dsn, path, embedder), once=once, as_json=as_json, model=model, extractor=extractor)


@app.command()
def forget(
    user_id: AnyUser = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="A session.", show_default=False)
    ] = None,
    subject: Subject = None,
    turn: Annotated[str | None, typer.Option("--turn", metavar="ID", help="A turn.", show_default=False)] = None,
    group_id: Annotated[str, typer.Option("--group-id", "--group", help="The tenant: nothing crosses it.")] = "default",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dsn: Dsn = None,
    path: Folder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Erase a user, a session, a subject's facts or a turn, with all that was made of it. No export brings it back."""
    from pgmem_core.cli import upkeep

    upkeep.forget(
        Place.of(dsn, path), {"user_id": user_id, "session_id": session, "subject": subject, "turn_id": turn},
        group_id=group_id, yes=yes, as_json=as_json,
    )  # fmt: skip


@app.command()
def prune(
    older_than_days: Annotated[float, typer.Option("--older-than-days", min=0, help="Turns said longer ago go.")],
    group_id: Annotated[
        str | None, typer.Option("--group-id", "--group", help="Of this group alone.", show_default=False)
    ] = None,
    drop_evidence: Annotated[
        bool, typer.Option("--drop-evidence", help="Also turns that facts rest on; their quotes stay.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also turns that facts or summaries are still to be formed from.")
    ] = False,
    dsn: Dsn = None,
    path: Folder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Delete old turns. Facts, summaries and the live windows stay; so do turns that are evidence."""
    from pgmem_core.cli import upkeep

    upkeep.prune(
        Place.of(dsn, path), older_than_days, keep_evidence=not drop_evidence, force=force, group_id=group_id,
        as_json=as_json,
    )  # fmt: skip


@app.command()
def expire(
    group_id: Annotated[
        str | None, typer.Option("--group-id", "--group", help="Of this group alone.", show_default=False)
    ] = None,
    dsn: Dsn = None,
    path: Folder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """End facts and scratch whose time to live is over, and delete old records of what agents were shown."""
    from pgmem_core.cli import upkeep

    upkeep.expire(Place.of(dsn, path), group_id=group_id, as_json=as_json)


@app.command()
def rebuild(
    group_id: Annotated[
        str | None, typer.Option("--group-id", "--group", help="Of this group alone.", show_default=False)
    ] = None,
    dsn: Dsn = None,
    path: Folder = None,
    embedder: Model = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make again what is missing of what is made of the turns: words, vectors, facts, summaries."""
    from pgmem_core.cli import upkeep

    upkeep.rebuild(Place.of(dsn, path, embedder), group_id=group_id, as_json=as_json)


@app.command()
def reembed(
    to: Annotated[
        str, typer.Option("--to", metavar="NAME", help="For example openai:text-embedding-3-large, or bundled.")
    ],
    batch: Annotated[int, typer.Option("--batch", min=1, max=10_000, help="Rows at a time.")] = 256,
    dsn: Dsn = None,
    path: Folder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Move the store over to another embedder while it is in use. Stopped or killed: run it again."""
    from pgmem_core.cli import moving

    moving.reembed(Place.of(dsn, path, to), to, batch=batch, as_json=as_json)


@app.command()
def doctor(
    explain: Annotated[bool, typer.Option("--explain", help="Also show how Postgres plans a read.")] = False,
    user_id: Annotated[
        str | None,
        typer.Option("--user-id", "--user", help="Whose read (default: of whom most is stored).", show_default=False),
    ] = None,
    group_id: Annotated[
        str | None, typer.Option("--group-id", "--group", help="In this tenant.", show_default=False)
    ] = None,
    analyze: Annotated[bool, typer.Option("--analyze", help="Run what is explained, for its times.")] = False,
    dsn: Dsn = None,
    path: Folder = None,
    embedder: Model = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Examine the database. Exit code 1 if something is wrong; each finding says what to do."""
    from pgmem_core.cli import serving

    if not serving.doctor(
        Place.of(dsn, path, embedder), as_json=as_json, explain=explain or analyze, group_id=group_id, user_id=user_id,
        analyze=analyze,
    ):  # fmt: skip
        raise typer.Exit(1)


@app.command()
def demo(
    conversation: Annotated[
        Path | None,
        typer.Option("--conversation", metavar="FILE", help="Any file that `import` reads, instead of our own."),
    ] = None,
    dsn: Dsn = None,
    path: Annotated[
        Path | None, typer.Option("--path", metavar="DIR", help="Embedded Postgres in this folder (.pgmem-demo).")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Three conversations, a restart after each, then questions. No key, no network."""
    from pgmem_core.cli import demo as demonstration

    demonstration.demo(Place.of(dsn, path, default=".pgmem-demo"), conversation, as_json=as_json)


@app.command("demo-step", hidden=True)
def demo_step(
    step: Annotated[str, typer.Argument()],
    conversation: Annotated[Path | None, typer.Option("--conversation")] = None,
    session: Annotated[str | None, typer.Option("--session")] = None,
    reset: Annotated[bool, typer.Option("--reset")] = False,
    dsn: Dsn = None,
    path: Folder = None,
    debug: Debug = False,
) -> None:
    from pgmem_core.cli import demo_steps

    demo_steps.run_step(
        Place.of(dsn, path, default=".pgmem-demo"), step, conversation=conversation, session_id=session, reset=reset
    )
