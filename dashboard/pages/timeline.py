"""The timeline page: lanes, bandwidth and bubbles of one core over one step."""

from dataclasses import replace
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from analyzer.errors import MegascopeError
from dashboard import text
from dashboard.bubbles import bubble_rows
from dashboard.components import GRAPH_CONFIG, facts, legend, panel, waiting
from dashboard.context import Context
from dashboard.figures import LEGEND, View, shape_count, step_spec
from dashboard.index import TimelineIndex
from dashboard.loading import Loaded
from dashboard.pages import timeline_tools
from dashboard.palette import theme
from dashboard.summary import words_spec
from dashboard.wire import wire

KEY = "timeline"
TITLE = "Timeline"
MAX_SHAPES = 4500
BUBBLE_ROWS = 40
OPTIONAL = frozenset(("scalar",))  # lanes drawn on request only
_HEADINGS = (
    ("start", "start (µs)"),
    ("duration", "duration"),
    ("share", "of step"),
    ("layer", "layer"),
    ("phase", "phase"),
    ("cause", "cause"),
    ("source", "source"),
    ("bundles", "bundles"),
)


def layout(loaded: Loaded, identity: str) -> html.Div:
    """The page of one capture."""
    del identity
    if len(loaded.timeline) == 0:
        return panel(
            "This capture has no spans",
            "The program ran nothing that takes time, or its trace recorded no events.",
            "Check the notes of `megascope report`; for a trace, record at least one whole step.",
        )
    index = loaded.index()
    return html.Div(
        [
            facts(loaded),
            toolbar(loaded, index),
            waiting(
                dcc.Graph(id="timeline", className="timeline-graph", config=GRAPH_CONFIG, responsive=True),
                "timeline-loading",
            ),
            html.Div(id="timeline-detail", className="detail", role="status"),
            html.Div(id="timeline-note", className="note"),
            bubble_section(loaded, index.core),
            dcc.Store(id="window"),
            dcc.Store(id="selected"),
            dcc.Store(id="search-place"),
        ],
        className="page page-timeline",
    )


def toolbar(loaded: Loaded, index: TimelineIndex) -> html.Div:
    """Core, layer, whole step, and the legend."""
    layers = [
        {"label": text.shorten(band.label), "value": f"{band.start}:{band.end}"} for band in index.layers
    ]
    present = [lane.colour for lane in index.lanes]
    keys = [(k, v) for k, v in LEGEND.items() if k in present and k != "scalar"] + [("bubble", "HBM bubble")]
    return html.Div(
        [
            html.Button("Whole step", id="whole-step", title="Show the whole step (key 0)"),
            dcc.Dropdown(
                layers, id="layer-jump", placeholder="Jump to layer", className="control", disabled=not layers
            ),
            dcc.Dropdown(
                [{"label": f"core {c}", "value": c} for c in loaded.cores],
                index.core,
                id="core",
                clearable=False,
                className="control control-narrow",
                disabled=len(loaded.cores) < 2,
            ),
            dcc.Checklist(
                [{"label": "scalar", "value": "scalar"}],
                [],
                id="more-lanes",
                className="checks",
                style={} if any(lane.track == "scalar" for lane in index.lanes) else {"display": "none"},
            ),
            *timeline_tools.tools(),
            html.Button("−", id="zoom-out", title="Zoom out (key −)", **{"data-key": "-"}),
            html.Button("+", id="zoom-in", title="Zoom in (key +)", **{"data-key": "+"}),
            legend(keys),
        ],
        className="toolbar",
    )


def bubble_section(loaded: Loaded, core: int) -> html.Section:
    """The largest bubbles; a click on one zooms the timeline to it."""
    step = loaded.fact("step", "time_ps")
    rows = bubble_rows(loaded.bubbles(core), core, BUBBLE_ROWS, step)
    total = len(loaded.bubbles(core))
    heading = f"HBM bubbles of core {core}, largest first"
    if total > len(rows):
        heading += f" ({len(rows)} of {total:,})"
    if loaded.fact("hbm", "bubble_ps") is None and not rows:
        body: Any = html.P("Unknown: this capture does not show HBM transfers.", className="muted")
    elif not rows:
        body = html.P("No interval without an HBM transfer in flight was found.", className="muted")
    else:
        body = html.Div(bubble_table(rows), className="table-scroll")
    return html.Section([html.H2(heading), body], className="bubbles", id="bubbles")


def bubble_table(rows: list[dict[str, Any]]) -> html.Table:
    """A table whose rows carry the window to show."""
    head = html.Thead(html.Tr([html.Th(label, scope="col") for _, label in _HEADINGS]))
    body = []
    for number, row in enumerate(rows):
        start, end = row["window"]
        first = html.Button(
            row["start"],
            id={"type": "zoom", "index": f"{start}:{end}:{number}"},
            className="row-button",
            title="Zoom to this bubble",
        )
        cells = [html.Td(first)]
        cells += [html.Td(row[key], className=f"cell-{key}", title=row[key]) for key, _ in _HEADINGS[1:]]
        body.append(html.Tr(cells, className="bubble-row"))
    return html.Table([head, html.Tbody(body)], className="grid")


def register(app: Dash, context: Context) -> None:
    """Callbacks of the page."""
    timeline_tools.register(app, context)
    app.clientside_callback(
        ClientsideFunction("megascope", "window"),
        Output("window", "data"),
        Input("timeline", "relayoutData"),
        Input("whole-step", "n_clicks"),
        Input("layer-jump", "value"),
        Input({"type": "zoom", "index": ALL}, "n_clicks"),
        State("url", "search"),
        State("window", "data"),
    )

    @app.callback(
        Output("timeline", "figure"),
        Output("timeline-note", "children"),
        Input("window", "data"),
        Input("core", "value"),
        Input("theme", "data"),
        Input("more-lanes", "value"),
        Input("selected", "data"),
        Input("measure", "value"),
        State("url", "pathname"),
    )
    def draw(*values: Any) -> tuple[Any, Any]:
        window, core, theme_name, more, selected, measuring, pathname = values
        try:
            loaded = context.loaded(pathname)
        except MegascopeError as error:
            return words_spec(f"{error.fault}. {error.cure}", theme(theme_name)), ""
        view = loaded.view(
            theme(theme_name),
            parse_window(window),
            margin=0.5,
            max_shapes=MAX_SHAPES,
            hidden=OPTIONAL - set(more or ()),
            selected=selected if isinstance(selected, int) else None,
            measuring=bool(measuring),
        )
        return draw_window(loaded, core, view)

    @app.callback(
        Output("bubbles", "children"),
        Input("core", "value"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    def other_core(core: int, pathname: str) -> Any:
        try:
            return bubble_section(context.loaded(pathname), core).children
        except MegascopeError:
            return no_update


def parse_window(window: Any) -> tuple[int, int] | None:
    """The window a browser sent, or None for the whole step if it makes no sense."""
    try:
        start, end = int(window["start"]), int(window["end"])
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    return (start, end) if start < end else None


def draw_window(loaded: Loaded, core: int | None, view: View) -> tuple[dict[str, Any], str]:
    """(figure for the wire, note under it)."""
    index = loaded.index(core)
    if view.window:
        room = (index.end - index.start) // 20 + 1
        start, end = max(view.window[0], index.start - room), min(view.window[1], index.end + room)
        view = replace(view, window=(start, end) if start < end else None)
    spec = step_spec(index, view, loaded.bubbles(index.core))
    start, end = view.visible(index)
    spec["layout"]["xaxis"]["uirevision"] = f"{start}:{end}"
    spans = sum(len(lane.all) for lane in index.lanes)
    note = (
        f"Core {index.core}: {text.duration(end - start)} shown, {shape_count(spec['data']):,} marks for "
        f"{spans:,} spans of the step. Drag or scroll to zoom, double-click for all of it, keys ← → + − 0. "
        "Marks that stand for several spans are as tall as the share of time they were busy."
    )
    return wire(spec), note
