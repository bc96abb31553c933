"""The list of captures, refreshed while it is open."""

import time
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboard import text
from dashboard.components import grid, link, panel
from dashboard.context import Context


def layout(context: Context) -> html.Div:
    """All captures, newest first within each folder."""
    return html.Div(
        [
            html.H1("Captures"),
            html.Div(listing(context), id="captures"),
            dcc.Interval(id="captures-refresh", interval=5000),
            dcc.Store(id="captures-seen", data=_signature(context)),
        ],
        className="page page-captures",
    )


def listing(context: Context) -> Any:
    """The table of captures, or what to do if there is none."""
    entries = context.library.entries()
    if not entries:
        places = ", ".join(text.shorten(p, 200) for p in context.library.paths)
        return panel(
            "No captures yet",
            f"Looked in {places}.",
            "Make one with megascope compile mlp --topology 2x2x1 -o CAPTURE; it appears here by itself.",
        )
    rows = [
        html.Tr(
            [
                html.Td(dcc.Link(text.shorten(e.path.name), href=link(e.id, "overview"))),
                html.Td(text.shorten(e.path.parent, 120), className="muted"),
                html.Td(
                    time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e.modified)) if e.modified else "gone"
                ),
            ]
        )
        for e in entries
    ]
    return grid(("capture", "folder", "changed"), rows)


def _signature(context: Context) -> list[list[Any]]:
    return [[e.id, e.modified] for e in context.library.entries()]


def register(app: Dash, context: Context) -> None:
    """Keeps the list fresh."""

    @app.callback(
        Output("captures", "children"),
        Output("captures-seen", "data"),
        Input("captures-refresh", "n_intervals"),
        State("captures-seen", "data"),
        prevent_initial_call=True,
    )
    def refresh(_: int, seen: Any) -> tuple[Any, Any]:
        # Left alone where nothing changed: a list that is drawn anew loses focus and clicks.
        found = _signature(context)
        return (no_update, no_update) if found == seen else (listing(context), found)
