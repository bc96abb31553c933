"""The VMEM page: what lives there, and what is on its way."""

from typing import Any

from dash import Dash, Input, Output, State, ctx, html, no_update

from analyzer.errors import MegascopeError
from dashboard import text
from dashboard.components import fact, figure, grid, waiting
from dashboard.context import Context
from dashboard.loading import Loaded
from dashboard.memory import map_spec, outstanding_spec
from dashboard.palette import theme
from dashboard.summary import words_spec
from dashboard.vmem_map import vmem_spec
from dashboard.wire import wire

KEY = "vmem"
TITLE = "VMEM"
ZOOMING: dict[str, Any] = {"displayModeBar": False, "responsive": True, "scrollZoom": False}


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
    table: Any = html.P("The dump has no VMEM report for this program.", className="muted")
    if rows:
        table = html.Div(grid(("shape", "size", "what"), rows), className="table-scroll")
    return html.Div(
        [
            html.Div(
                [
                    fact("VMEM used", text.size(used), share),
                    fact("capacity", text.size(capacity), "per core"),
                ],
                className="facts",
            ),
            html.H2("What lies where, and how long: copied data from its first byte to its last use"),
            waiting(figure("vmem-time", ZOOMING), "vmem-time-loading"),
            html.P(vmem_words(loaded), className="note"),
            html.H2("What the compiler placed in VMEM"),
            waiting(figure("vmem-map"), "vmem-map-loading"),
            html.H2("On the way from HBM: issued and not yet arrived"),
            waiting(figure("vmem-flight"), "vmem-flight-loading"),
            html.H2("Allocations, largest first"),
            table,
        ],
        className="page page-vmem",
    )


def vmem_words(loaded: Loaded) -> str:
    """What the map over time rests on, in one line."""
    found = loaded.occupancy()
    if found is None:
        return "No table of copied data: the capture is a trace, or its program was not simulated."
    held = loaded.fact("vmem", "residency", "peak_bytes")
    return (
        f"Core {loaded.index().core}, {loaded.provenance}: {text.count(len(found.stays), 'stay')} of copied "
        f"data, at most {text.size(held)} at once. What the program computes into VMEM is not followed, "
        "so this is a lower bound. Drag to zoom, double-click for the whole step."
    )


def _window(change: Any) -> tuple[int, int] | None:
    """The stretch a zoom chose, in ps; None for the whole step."""
    try:
        low, high = sorted(float(change[f"xaxis.range[{k}]"]) for k in (0, 1))
    except (TypeError, KeyError, ValueError):
        return None
    return (round(low * 1e6), round(high * 1e6)) if high > low else None


def register(app: Dash, context: Context) -> None:
    """Callbacks of the page."""

    @app.callback(
        Output("vmem-time", "figure"),
        Input("vmem-time", "relayoutData"),
        Input("theme", "data"),
        State("url", "pathname"),
    )
    def over_time(change: Any, theme_name: str | None, pathname: str) -> Any:
        if ctx.triggered_id == "vmem-time" and not (
            isinstance(change, dict) and {"xaxis.range[0]", "xaxis.autorange"} & set(change)
        ):
            return no_update
        colours = theme(theme_name)
        try:
            loaded = context.loaded(pathname)
        except MegascopeError as error:
            return words_spec(error.fault, colours)
        index = loaded.index()
        view = loaded.view(colours, _window(change), columns=900)
        return wire(vmem_spec(loaded.occupancy(index.core), index, view))

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
