"""The list of captures, refreshed while it is open."""

import time
from typing import Any

from dash import Dash, Input, Output, dcc, html

from dashboard import text
from dashboard.components import link, panel
from dashboard.context import Context


def layout(context: Context) -> html.Div:
    """All captures, newest first within each folder."""
    return html.Div(
        [
            html.H1("Captures"),
            html.Div(listing(context), id="captures"),
            dcc.Interval(id="captures-refresh", interval=5000),
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
    head = html.Thead(html.Tr([html.Th(h, scope="col") for h in ("capture", "folder", "changed")]))
    return html.Table([head, html.Tbody(rows)], className="grid")


def register(app: Dash, context: Context) -> None:
    """Keeps the list fresh."""

    @app.callback(
        Output("captures", "children"), Input("captures-refresh", "n_intervals"), prevent_initial_call=True
    )
    def refresh(_: int) -> Any:
        return listing(context)
