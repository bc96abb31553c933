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
            "127.0.0.1", help="Address to listen on; another one than 127.0.0.1 asks for a token."
        ),
    ) -> None:
        """Look at captures in a browser."""
        from dashboard.serve import serve

        serve(captures, host, port)
