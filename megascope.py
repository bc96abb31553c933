"""The front door: one Typer application that mounts the verbs of the packages.

Every verb imports what it needs when it runs, so `megascope --help` answers at once.
"""

import errno
import importlib
import itertools
import os
import sys
from typing import NoReturn

import typer

from analyzer.errors import INPUT, INTERNAL, InputError, MegascopeError
from analyzer.reports import OUTSIDE_FORMATS

__version__ = "0.1.0"

# Modules that add their verbs to the application, in the order --help shows them.
VERB_MODULES = (
    "megakernels.cli",
    "profiler.cli",
    "analyzer.cli",
    "analyzer.show_cli",
    "analyzer.simulate_cli",
    "analyzer.export_cli",
    "dashboard.cli",
    "agents.cli",
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"megascope {__version__}")
        raise typer.Exit


def build_app() -> typer.Typer:
    """The `megascope` command with every verb mounted."""
    app = typer.Typer(
        name="megascope",
        help="See inside a TPU megakernel, before you have a TPU and after.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def options(
        version: bool = typer.Option(
            False, "--version", callback=_version, is_eager=True, help="Print the version."
        ),
    ) -> None:
        del version

    OUTSIDE_FORMATS["html"] = "dashboard.export:report_html"
    for module in VERB_MODULES:
        importlib.import_module(module).register(app)
    return app


def main() -> None:
    """Run the command; errors the user can cause print one line and set the exit code."""
    try:
        _refuse_empty(sys.argv[1:])
        try:
            build_app()()
        finally:
            sys.stdout.flush()  # so that a full disk or a closed pipe shows here, not after us
    except MegascopeError as error:
        print(f"megascope: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _drop_output()
        sys.exit(0)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer makes it 1, which says here: a gate failed
            sys.exit(0)
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            _internal(error)
        print(f"megascope: {error.filename or 'output'}: {error.strerror}. Make room first.", file=sys.stderr)
        _drop_output()
        sys.exit(INPUT)
    except Exception as error:
        _internal(error)


def _drop_output() -> None:
    """What is still buffered goes nowhere: Python would try to write it again, and say so, at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse_empty(arguments: list[str]) -> None:
    """An empty path would mean the current folder: a report on something that nobody named.

    Raises:
        InputError: an argument that belongs to no option is empty.
    """
    for before, argument in itertools.pairwise(arguments):
        if not argument and not before.startswith("-"):
            raise InputError(
                f"the argument behind {before!r}", "is empty", "Give a path; is a shell variable not set?"
            )


def _internal(error: Exception) -> NoReturn:
    """Say that the fault is ours; with MEGASCOPE_DEBUG, where."""
    if os.environ.get("MEGASCOPE_DEBUG"):
        raise error
    print(
        f"megascope: internal error: {type(error).__name__}: {error}. "
        "Please report it with the command you ran; MEGASCOPE_DEBUG=1 shows where it happened.",
        file=sys.stderr,
    )
    sys.exit(INTERNAL)


if __name__ == "__main__":
    main()
