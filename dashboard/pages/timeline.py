"""The timeline page: lanes, bandwidth and bubbles of one core over one step."""

from contextlib import suppress
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from analyzer.errors import MegascopeError
from dashboard import text
from dashboard.beside import anchors
from dashboard.bubbles import bubble_rows
from dashboard.components import facts, grid, legend, panel
from dashboard.context import ALL_CORES, Context
from dashboard.figures import LEGEND
from dashboard.index import TimelineIndex
from dashboard.loading import Loaded
from dashboard.pages import timeline_tools
from dashboard.post import repeats
from dashboard.slices import DEFAULT_KINDS, KINDS

KEY = "timeline"
TITLE = "Timeline"
BUBBLE_ROWS = 40
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
            html.Div(id="timeline", className="timeline-graph"),
            html.Div(id="timeline-detail", className="detail", role="status"),
            html.Div(id="timeline-note", className="note"),
            bubble_section(loaded, index.core),
            dcc.Store(id="window"),
            dcc.Store(id="selected"),
            dcc.Store(id="clicked"),
            dcc.Store(id="drawn-core"),
            dcc.Store(id="stretch"),
            dcc.Store(id="search-place"),
        ],
        className="page page-timeline",
    )


def toolbar(loaded: Loaded, index: TimelineIndex) -> html.Div:
    """Core, layer, whole step, and the legend."""
    # Where the kernel names no layers, the repeats of its phases serve.
    layers = [
        {"label": text.shorten(band.label), "value": f"{band.start}:{band.end}"} for band in repeats(index)
    ]
    present = [lane.colour for lane in index.lanes]
    keys = [(k, v) for k, v in LEGEND.items() if k in present and k != "scalar"] + [("bubble", "HBM bubble")]
    return html.Div(
        [
            html.Button("Whole step", id="whole-step", title="Show the whole step (key 0)"),
            dcc.Dropdown(
                layers,
                id="layer-jump",
                placeholder="To layer" if index.layers else "To repeat",
                className="control",
                disabled=not layers,
            ),
            dcc.Dropdown(
                cores_of(loaded),
                index.core,
                id="core",
                clearable=False,
                className="control control-narrow",
                disabled=len(loaded.all_cores) < 2,
            ),
            *accounts(loaded),
            dcc.Checklist(
                [{"label": "scalar", "value": "scalar"}],
                [],
                id="more-lanes",
                className="checks",
                style={} if any(lane.track == "scalar" for lane in index.lanes) else {"display": "none"},
            ),
            dcc.Checklist(
                [{"label": label, "value": key} for key, label, _, _ in KINDS],
                list(DEFAULT_KINDS),
                id="kinds",
                className="checks",
                style={"display": "none"},
                inline=True,
            ),
            *timeline_tools.tools(),
            html.Button("−", id="zoom-out", title="Zoom out (key −)", **{"data-key": "-"}),
            html.Button("+", id="zoom-in", title="Zoom in (key +)", **{"data-key": "+"}),
            legend(keys),
        ],
        className="toolbar",
    )


def cores_of(loaded: Loaded) -> list[dict[str, Any]]:
    """Choices of a core, and all of them side by side."""
    cores = [{"label": f"core {c}", "value": c} for c in loaded.all_cores]
    return cores if len(cores) < 2 else [{"label": "all cores", "value": ALL_CORES}, *cores]


def accounts(loaded: Loaded) -> list[Any]:
    """Choice between what was measured and what the model says, where there are both."""
    both = "model" in loaded.others
    names = (("trace", "trace"), ("model", "model"), ("both", "both"))
    shown = {} if both else {"display": "none"}
    return [
        dcc.RadioItems(
            [{"label": label, "value": value} for label, value in names],
            "both" if both else "trace",
            id="account",
            className="checks",
            inline=True,
            style=shown,
        ),
        html.Div(dcc.Dropdown([], id="align", placeholder="align at step", className="control"), style=shown),
    ]


def bubble_section(loaded: Loaded, core: int) -> html.Section:
    """The largest bubbles; a click on one zooms the timeline to it."""
    step = loaded.fact("step", "time_ps")
    rows = bubble_rows(loaded.bubbles(core), core, BUBBLE_ROWS, step)
    total = len(loaded.bubbles(core))
    heading = f"HBM bubbles of core {core}, largest first"
    if total > len(rows):
        heading += f" ({len(rows)} of {total:,})"
    if loaded.bubbles_unknown and not rows:
        body: Any = html.P(loaded.bubbles_unknown, className="muted")
    elif not rows:
        body = html.P("No interval without an HBM transfer in flight was found.", className="muted")
    else:
        body = html.Div(bubble_table(rows), className="table-scroll")
    return html.Section([html.H2(heading), body], className="bubbles", id="bubbles")


def bubble_table(rows: list[dict[str, Any]]) -> html.Table:
    """A table whose rows carry the window to show."""
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
        cells += [
            html.Td(row[key], className=f"cell-{key}", title=row["path" if key == "source" else key])
            for key, _ in _HEADINGS[1:]
        ]
        body.append(html.Tr(cells, className="bubble-row"))
    return grid([label for _, label in _HEADINGS], body)


def register(app: Dash, context: Context) -> None:
    """Callbacks of the page."""
    timeline_tools.register(app, context)
    app.clientside_callback(
        ClientsideFunction("megascope", "window"),
        Output("window", "data"),
        Input("whole-step", "n_clicks"),
        Input("layer-jump", "value"),
        Input({"type": "zoom", "index": ALL}, "n_clicks"),
        State("url", "search"),
    )
    app.clientside_callback(
        ClientsideFunction("megascope", "draw"),
        Output("timeline-note", "children"),
        Input("window", "data"),
        Input("core", "value"),
        Input("theme", "data"),
        Input("more-lanes", "value"),
        Input("selected", "data"),
        Input("measure", "value"),
        Input("kinds", "value"),
        Input("account", "value"),
        Input("align", "value"),
        State("url", "pathname"),
    )
    app.clientside_callback(
        ClientsideFunction("megascope", "core"),
        Output("core", "value"),
        Input("url", "search"),
        State("core", "options"),
    )
    app.clientside_callback(
        ClientsideFunction("megascope", "kinds"),
        Output("kinds", "style"),
        Input("core", "value"),
    )

    @app.callback(
        Output("bubbles", "children"),
        Output("align", "options"),
        Input("drawn-core", "data"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    def follow(core: int, pathname: str) -> tuple[Any, Any]:
        """Bubbles of the core that is drawn, and where trace and model of it can be aligned."""
        section: Any = no_update
        places: Any = no_update
        with suppress(MegascopeError):
            loaded = context.loaded(pathname)
            owner, _ = context.of_core(loaded, core)
            if owner is not None:
                section = bubble_section(owner, owner.index(core).core).children
            modelled, _ = context.other(loaded, "model")
            places = []
            if modelled is not None and modelled is not loaded:
                places = anchors(loaded.index(core), modelled.index(core))
        return section, places
