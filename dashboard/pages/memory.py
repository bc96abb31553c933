"""The VMEM page: what lives there, and what is on its way."""

from typing import Any

from dash import Dash, Input, Output, State, html

from analyzer.errors import MegascopeError
from dashboard import text
from dashboard.components import fact, figure, waiting
from dashboard.context import Context
from dashboard.loading import Loaded
from dashboard.memory import map_spec, outstanding_spec
from dashboard.palette import theme
from dashboard.summary import words_spec
from dashboard.wire import wire

KEY = "vmem"
TITLE = "VMEM"


def layout(loaded: Loaded, identity: str) -> html.Div:
    """The page of one capture."""
    del identity
    used, capacity = loaded.fact("vmem", "used_bytes"), loaded.fact("vmem", "capacity_bytes")
    share = text.percent(used / capacity) if used is not None and capacity else ""
    rows = [
        html.Tr(
            [
                html.Td(text.shorten(shape or "—", 60)),
                html.Td(text.size(size)),
                html.Td(text.shorten(tag, 120)),
            ]
        )
        for tag, shape, size in loaded.allocations()[:100]
    ]
    head = html.Thead(html.Tr([html.Th(n, scope="col") for n in ("shape", "size", "what")]))
    table: Any = html.P("The dump has no VMEM report for this program.", className="muted")
    if rows:
        table = html.Div(html.Table([head, html.Tbody(rows)], className="grid"), className="table-scroll")
    return html.Div(
        [
            html.Div(
                [
                    fact("VMEM used", text.size(used), share),
                    fact("capacity", text.size(capacity), "per core"),
                ],
                className="facts",
            ),
            html.H2("What the compiler placed in VMEM"),
            waiting(figure("vmem-map"), "vmem-map-loading"),
            html.H2("On the way from HBM: issued and not yet arrived"),
            waiting(figure("vmem-flight"), "vmem-flight-loading"),
            html.H2("Allocations, largest first"),
            table,
        ],
        className="page page-vmem",
    )


def register(app: Dash, context: Context) -> None:
    """Callbacks of the page."""

    @app.callback(
        Output("vmem-map", "figure"),
        Output("vmem-flight", "figure"),
        Input("theme", "data"),
        State("url", "pathname"),
    )
    def draw(theme_name: str | None, pathname: str) -> tuple[Any, Any]:
        colours = theme(theme_name)
        try:
            loaded = context.loaded(pathname)
        except MegascopeError as error:
            return (words_spec(error.fault, colours),) * 2
        capacity = loaded.fact("vmem", "capacity_bytes")
        return (
            wire(map_spec(loaded.allocations(), capacity, colours)),
            wire(outstanding_spec(loaded.index(), colours)),
        )
