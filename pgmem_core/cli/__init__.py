"""The command `pgmem`.

Exit codes: 0 done, 1 it could not be done (or `doctor` found something), 2 the command or a setting is wrong,
3 Postgres cannot be reached, 130 interrupted. What a person reads goes to stdout, or with --json one JSON
document; progress, logs and errors go to stderr.

Nothing heavy is imported before a command runs: `pgmem --help` answers in 0.2 s.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Sequence

from pgmem_core.errors import ConfigurationError, PgmemError, StoreUnavailable

__all__ = ["Interrupted", "main", "run"]

EXIT_FAILED, EXIT_USAGE, EXIT_UNAVAILABLE, EXIT_INTERRUPTED = 1, 2, 3, 130


class Interrupted(Exception):
    """Ctrl-C, with what is stored and how to go on."""


def main() -> None:
    """The console script: run the command of sys.argv and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; never raises for what a user can cause."""
    import typer

    from pgmem_core.cli import output
    from pgmem_core.cli.app import app

    output.prepare()
    # That token counts are estimates is news for a program that budgets by them, not for every command.
    warnings.filterwarnings("ignore", message="no tiktoken encoding")
    debug = "--debug" in arguments
    # Typer's own click or the installed one, by its version: the base of what both raise for a wrong command line.
    usage_error = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")
    try:
        code = app(args=list(arguments), prog_name="pgmem", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Exit as exc:
        return exc.exit_code
    except (Interrupted, KeyboardInterrupt, typer.Abort) as exc:
        output.note(str(exc) or "interrupted")
        return EXIT_INTERRUPTED
    except PgmemError as exc:
        output.fail(exc, debug=debug)
        if isinstance(exc, StoreUnavailable):
            return EXIT_UNAVAILABLE
        return EXIT_USAGE if isinstance(exc, ConfigurationError) else EXIT_FAILED
    except BrokenPipeError:
        # The reader of the pipe has left (`| head`): nothing to say, and nobody to say it to.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as exc:
        if isinstance(exc, usage_error):
            exc.show()  # type: ignore[attr-defined]
            return EXIT_USAGE
        output.fail(exc, debug=debug)
        return EXIT_FAILED
