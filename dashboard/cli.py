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
        *,
        port: int = typer.Option(8791, min=0, max=65535, help="Port to listen on; 0 takes a free one."),
        host: str = typer.Option(
            "127.0.0.1", help="Address to listen on; another one than this machine's own asks for a token."
        ),
        chip: str | None = typer.Option(None, help="Chip, for dumps that do not say theirs, e.g. tpu7x."),
        html: Annotated[
            Path | None,
            typer.Option(
                help="Write a page to this file instead of serving it; folders are made.",
                metavar="FILE",
            ),
        ] = None,
        page: Annotated[
            str, typer.Option(help="The page that --html writes, as its address names it.", metavar="PAGE")
        ] = "timeline",
    ) -> None:
        """Look at captures in a browser, or write one to a self-contained HTML file."""
        if html is not None:
            write(captures, html, chip, page)
            return
        from dashboard.serve import serve

        serve(captures, host, port, chip)


def write(captures: list[Path], html: Path, chip: str | None = None, page: str = "timeline") -> None:
    """Write a page of a capture to a file; the diff page takes two captures.

    Raises:
        UsageError: there is no such page, or it takes another number of captures.
        InputError: the file cannot be written.
    """
    from functools import partial

    from analyzer.errors import UsageError
    from analyzer.output import write_output
    from dashboard.app import PAGES, create_app
    from dashboard.export_page import export_page
    from dashboard.headless import Asked
    from dashboard.library import identify
    from dashboard.loading import load, what_if_report

    module = next((m for m in PAGES if page == m.KEY), None)
    if module is None:
        raise UsageError(f"--page {page}", "no such page", f"Pages: {', '.join(m.KEY for m in PAGES)}")
    wanted = 2 if page == "diff" else 1
    if len(captures) != wanted:
        words = f"of the page {page} takes {text_of(wanted)}, {len(captures)} were given"
        raise UsageError("--html", words, f"Give {text_of(wanted)}.")
    loader = partial(load, chip=chip)
    app = create_app(captures, loader=loader, what_if=partial(what_if_report, chip=chip))
    asked = Asked(values={"diff-other": identify(captures[-1])})
    made = export_page(app, loader(captures[0]), identify(captures[0]), module, asked)
    write_output(html, made.encode("utf-8", "replace"))
    typer.echo(f"wrote {html}", err=True)


def text_of(captures: int) -> str:
    """`one capture`, `two captures`."""
    return "one capture" if captures == 1 else "two captures"
