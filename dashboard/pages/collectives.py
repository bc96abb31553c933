"""The collectives page: who waits for whom, from all cores simulated together or from what one core sees."""

from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from analyzer.errors import MegascopeError
from dashboard import text
from dashboard.collectives import MEASURES, cores_bars, matrix_spec, rows, verdict
from dashboard.components import figure, grid, link, waiting
from dashboard.context import ALL_CORES, Context
from dashboard.loading import Loaded
from dashboard.palette import theme
from dashboard.summary import words_spec
from dashboard.wire import wire

KEY = "collectives"
TITLE = "Collectives"
_COLUMNS = (
    ("phase", "waiting in"),
    ("layer", "layer"),
    ("waits", "waits"),
    ("waiting", "waiting, all cores"),
    ("worst", "waits longest"),
    ("last", "waited for most"),
    ("sent", "for what is sent in"),
    ("messages", "messages"),
    ("bytes", "bytes"),
)


def layout(loaded: Loaded, identity: str) -> html.Div:
    """The page of one capture."""
    del identity
    found = loaded.exchange()
    phases = [{"label": text.shorten(p, 60) or "no phase", "value": p} for p in found.phases]
    layers = [{"label": f"layer {n}", "value": n} for n in found.layers]
    return html.Div(
        [
            html.P(id="exchange-verdict", className="verdict"),
            html.P(id="exchange-note", className="note", role="status"),
            html.Div(
                [
                    dcc.Dropdown(
                        phases,
                        id="exchange-phase",
                        placeholder="all phases",
                        className="control control-wide",
                        disabled=not phases,
                    ),
                    dcc.Dropdown(
                        layers,
                        id="exchange-layer",
                        placeholder="all layers",
                        className="control",
                        disabled=not layers,
                    ),
                    dcc.RadioItems(
                        [{"label": words, "value": key} for key, words in MEASURES.items()],
                        "waiting",
                        id="exchange-measure",
                        className="checks",
                        inline=True,
                    ),
                ],
                className="toolbar",
            ),
            html.Div(
                [
                    html.Section(
                        [html.H2("Who waits for whom"), waiting(figure("exchange"), "exchange-loading")]
                    ),
                    html.Section([html.H2("Core by core"), waiting(figure("late"), "late-loading")]),
                ],
                className="columns halves",
            ),
            html.H2("Phase by phase, the longest waits first; choose a phase to see its layers"),
            html.Div(id="exchange-table", className="table-scroll table-tall"),
            dcc.Interval(id="exchange-poll", interval=500, disabled=True),
        ],
        className="page page-collectives",
    )


def table(loaded: Loaded, identity: str, found: list[dict[str, Any]], whole: bool) -> Any:
    """The phases; each leads to its place in the timeline."""
    if not found:
        return html.P("None.", className="muted")
    core = ALL_CORES if whole else loaded.index().core
    body = []
    for row in found:
        start, end = row["window"]
        where = link(identity, "timeline", core=core, **{"from": start, "to": end})
        first = html.Td(dcc.Link(row["phase"], href=where, title="Show in the timeline"))
        body.append(html.Tr([first, *[html.Td(row[key]) for key, _ in _COLUMNS[1:]]]))
    return grid([label for _, label in _COLUMNS], body)


def notes(loaded: Loaded, whole: bool, waiting_words: str) -> str:
    """What the page rests on."""
    if whole:
        return f"All {len(loaded.cores)} cores, {loaded.provenance} together."
    if waiting_words:
        return f"Core {loaded.index().core} alone so far. {waiting_words}"
    if len(loaded.all_cores) > 1 or (loaded.fact("capture", "cores") or 1) > 1:
        return f"What core {loaded.index().core} sees; the other cores are not in this capture's timeline."
    return "One core: nobody to wait for."


def register(app: Dash, context: Context) -> None:
    """Callbacks of the page."""

    @app.callback(
        Output("exchange", "figure"),
        Output("late", "figure"),
        Output("exchange-table", "children"),
        Output("exchange-verdict", "children"),
        Output("exchange-note", "children"),
        Output("exchange-poll", "disabled"),
        Input("exchange-phase", "value"),
        Input("exchange-layer", "value"),
        Input("exchange-measure", "value"),
        Input("theme", "data"),
        Input("exchange-poll", "n_intervals"),
        State("url", "pathname"),
    )
    def show(*values: Any) -> tuple[Any, ...]:
        phase, layer, measure, theme_name, _, pathname = values
        colours = theme(theme_name)
        try:
            loaded = context.loaded(pathname)
        except MegascopeError as error:
            return (*(words_spec(error.fault, colours),) * 2, "", "", "", True)
        words = ""
        owner: Loaded | None = loaded
        try:
            owner, state = context.other(loaded, "all")
            if owner is None and state is not None:
                count = loaded.fact("capture", "cores")
                words = f"Simulating all {count} cores together: {state.seconds:.0f} s …"
        except MegascopeError as error:
            words = f"All cores together: {error.fault}. {error.cure}"
        running = owner is None
        if running and ctx.triggered_id == "exchange-poll":  # what is drawn stays until there is more
            return (*(no_update,) * 4, notes(loaded, False, words), False)
        owner = owner if owner is not None and not words else loaded
        found = owner.exchange()
        whole = len(found.seen) == len(found.cores) > 1
        some = found.where(
            phase if isinstance(phase, str) else None, layer if isinstance(layer, int) else None
        )
        chosen = measure if measure in MEASURES else "waiting"
        return (
            wire(matrix_spec(some, chosen, colours)),
            wire(cores_bars(some, colours)),
            table(loaded, context.identity(pathname), rows(some, isinstance(phase, str)), whole),
            verdict(some),
            notes(owner, whole, words),
            not running,
        )
