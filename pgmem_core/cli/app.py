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
Group = Annotated[str, typer.Option("--group-id", help="The tenant: nothing crosses it.")]
User = Annotated[str, typer.Option("--user-id", help="Whose memory.", show_default=False)]


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
    file: Annotated[Path, typer.Argument(help="pgmem JSON Lines, message lists, a ChatGPT export, or LoCoMo.")],
    user_id: Annotated[
        str | None, typer.Option("--user-id", help="Whose it is; needed where the file does not say.")
    ] = None,
    group_id: Group = "default",
    session_prefix: Annotated[
        str, typer.Option("--session-prefix", help="Put before every session id of the file.")
    ] = "",
    dsn: Dsn = None,
    path: Folder = None,
    embedder: Model = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Store the conversations of a file. Again: adds only what is not there yet."""
    from pgmem_core.cli import importing

    importing.import_file(
        Place.of(dsn, path, embedder), file, user_id=user_id, group_id=group_id, session_prefix=session_prefix,
        as_json=as_json,
    )  # fmt: skip


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
def worker(
    once: Annotated[bool, typer.Option("--once", help="Do what waits, then exit.")] = False,
    dsn: Dsn = None,
    path: Folder = None,
    embedder: Model = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Do the work behind the turns, until SIGTERM or Ctrl-C. Any number of workers may run."""
    from pgmem_core.cli import serving

    serving.work(Place.of(dsn, path, embedder), once=once, as_json=as_json)


@app.command()
def doctor(
    dsn: Dsn = None, path: Folder = None, embedder: Model = None, as_json: Json = False, debug: Debug = False
) -> None:
    """Examine the database. Exit code 1 if something is wrong; each finding says what to do."""
    from pgmem_core.cli import serving

    if not serving.doctor(Place.of(dsn, path, embedder), as_json=as_json):
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
