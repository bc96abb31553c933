"""The verb `dashboard`."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `megascope dashboard` to the application."""

    @app.command()
    def dashboard(
        captures: Annotated[
            list[Path], typer.Argument(help="Captures, or folders of captures.", metavar="CAPTURE...")
        ],
        port: int = typer.Option(8791, min=0, max=65535, help="Port to listen on; 0 takes a free one."),
        host: str = typer.Option(
            "127.0.0.1", help="Address to listen on; another one than this machine's own asks for a token."
        ),
        chip: str | None = typer.Option(None, help="Chip, for dumps that do not say theirs, e.g. tpu7x."),
        html: Annotated[
            Path | None,
            typer.Option(
                help="Write the timeline to this file instead of serving it; folders are made.",
                metavar="FILE",
            ),
        ] = None,
    ) -> None:
        """Look at captures in a browser, or write one to a self-contained HTML file."""
        if html is not None:
            write(captures, html, chip)
            return
        from dashboard.serve import serve

        serve(captures, host, port, chip)


def write(captures: list[Path], html: Path, chip: str | None = None) -> None:
    """Write the timeline page of the one capture given to a file.

    Raises:
        UsageError: more than one capture.
        InputError: the file cannot be written.
    """
    from analyzer.errors import UsageError
    from dashboard.export import write_html
    from dashboard.loading import load

    if len(captures) != 1:
        raise UsageError("--html", f"writes one capture, {len(captures)} were given", "Give one capture.")
    write_html(load(captures[0], chip), html)
    typer.echo(f"wrote {html}", err=True)
