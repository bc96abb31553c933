"""The overview page: the verdict, the bandwidth, where the step went, and what to look at first."""

from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from analyzer.errors import MegascopeError
from dashboard import text
from dashboard.components import facts, figure, grid, link, panel, waiting
from dashboard.context import Context
from dashboard.loading import Loaded
from dashboard.palette import theme
from dashboard.places import window_of
from dashboard.summary import METRICS, cells, gauge_spec, heat_spec, parts_spec, words_spec
from dashboard.tokens import tokens_per_second, tokens_spec
from dashboard.wire import wire

KEY = "overview"
TITLE = "Overview"
TOP = 5


def layout(loaded: Loaded, identity: str) -> html.Div:
    """The page of one capture."""
    if not loaded.report:
        return panel("Nothing is known about this capture", "Its report is empty.", "Capture it again.")
    verdict = loaded.fact("step", "verdict")
    return html.Div(
        [
            html.P(_sentence(loaded, verdict), className="verdict", id="verdict"),
            facts(loaded),
            html.Div(
                [
                    html.Section(
                        [
                            html.H2("HBM bandwidth used"),
                            waiting(figure("gauge"), "gauge-loading"),
                            html.H2("What the step waits for (its critical path)"),
                            waiting(figure("parts"), "parts-loading"),
                            html.H2("Tokens per second"),
                            *_tokens(loaded),
                        ],
                        className="column-left",
                    ),
                    html.Section(
                        [
                            html.Div(
                                [
                                    html.H2("Where the step goes (click a cell to see it in the timeline)"),
                                    dcc.RadioItems(
                                        [
                                            {"label": f"{n} ({u})", "value": k}
                                            for k, (n, u) in METRICS.items()
                                        ],
                                        "time",
                                        id="heat-metric",
                                        inline=True,
                                        className="checks",
                                    ),
                                ],
                                className="heading",
                            ),
                            waiting(
                                figure("heat"),
                                "heat-loading",
                            ),
                            html.H2("Top findings"),
                            top_findings(loaded, identity),
                        ],
                        className="column-right",
                    ),
                ],
                className="columns",
            ),
            notes(loaded),
        ],
        className="page page-overview",
    )


def _sentence(loaded: Loaded, verdict: str | None) -> str:
    kernel = text.shorten(loaded.title, 40)
    step = text.duration(loaded.fact("step", "time_ps"))
    return f"{kernel}: a step takes {step} ({loaded.provenance}); {verdict or 'what bounds it is unknown'}."


def _tokens(loaded: Loaded) -> list[Any]:
    """The slider and the figure, or why there is none."""
    if tokens_per_second(loaded.fact("step", "time_ps"), loaded.fact("capture", "batch"), 1) is None:
        words = "Unknown: the capture does not say its batch size."
        return [html.P(words, className="muted")]
    label = html.Label("accepted tokens per step", htmlFor="acceptance", className="muted")
    slider = dcc.Slider(1, 8, 1, value=1, id="acceptance", marks={i: str(i) for i in range(1, 9)})
    row = html.Div([label, html.Div(slider, className="slider")], className="slider-row")
    return [row, waiting(figure("tokens"), "tokens-loading")]


def top_findings(loaded: Loaded, identity: str) -> Any:
    """The first findings, each with a link to where it happens."""
    found = loaded.fact("findings") or []
    if not found:
        return html.P(loaded.findings_unknown or "No rule found anything.", className="muted")
    rows = []
    for finding in found[:TOP]:
        window = window_of(loaded, finding)
        title = text.shorten(finding.get("title") or "", 90)
        if window:
            where = link(identity, "timeline", **{"from": window[0], "to": window[1]})
            title = dcc.Link(title, href=where, className="finding-link")
        rows.append(
            html.Tr(
                [
                    html.Td(str(finding.get("id") or "")),
                    html.Td(title),
                    html.Td(text.duration(finding.get("time_ps"))),
                    html.Td(_saving(finding)),
                    html.Td(text.place(finding.get("source") or text.UNKNOWN), className="cell-source"),
                ]
            )
        )
    names = ("id", "finding", "time", "could save", "source")
    more = f" All {len(found)} are on the findings page." if len(found) > TOP else ""
    return html.Div(
        [
            html.Div(grid(names, rows), className="table-scroll"),
            html.P(f"Times are {loaded.provenance}.{more}", className="note"),
        ]
    )


def _saving(finding: dict[str, Any]) -> str:
    saving = finding.get("saving_ps")
    return "not estimated" if saving is None else f"up to {text.duration(saving)}"


def notes(loaded: Loaded) -> html.Details:
    """Choices made and things unknown, as the analyzer states them."""
    lines = [html.Li(text.shorten(n, 400)) for n in loaded.fact("notes") or []]
    return html.Details([html.Summary(f"Notes ({len(lines)})"), html.Ul(lines)], className="notes")


def register(app: Dash, context: Context) -> None:
    """Callbacks of the page."""

    @app.callback(
        Output("gauge", "figure"),
        Output("parts", "figure"),
        Input("theme", "data"),
        State("url", "pathname"),
    )
    def draw(theme_name: str | None, pathname: str) -> tuple[Any, Any]:
        colours = theme(theme_name)
        try:
            report = context.loaded(pathname).report
        except MegascopeError as error:
            return (words_spec(error.fault, colours),) * 2
        return wire(gauge_spec(report, colours)), wire(parts_spec(report, colours))

    @app.callback(
        Output("tokens", "figure"),
        Input("acceptance", "value"),
        Input("theme", "data"),
        State("url", "pathname"),
    )
    def draw_tokens(acceptance: float | None, theme_name: str | None, pathname: str) -> Any:
        try:
            report = context.loaded(pathname).report
        except MegascopeError as error:
            return words_spec(error.fault, theme(theme_name))
        return wire(tokens_spec(report, float(acceptance or 1), theme(theme_name)))

    @app.callback(
        Output("heat", "figure"),
        Input("heat-metric", "value"),
        Input("theme", "data"),
        State("url", "pathname"),
    )
    def draw_heat(metric: str, theme_name: str | None, pathname: str) -> Any:
        try:
            loaded = context.loaded(pathname)
        except MegascopeError as error:
            return words_spec(error.fault, theme(theme_name))
        found, title = cells(loaded.report, loaded.index().phases)
        return wire(heat_spec(found, title, metric if metric in METRICS else "time", theme(theme_name)))

    @app.callback(
        Output("url", "href"), Input("heat", "clickData"), State("url", "pathname"), prevent_initial_call=True
    )
    def go(click: dict[str, Any] | None, pathname: str) -> Any:
        window = str((click or {}).get("points", [{}])[0].get("customdata") or "")
        start, _, end = window.partition(":")
        if not (start.isdigit() and end.isdigit()):
            return no_update
        return link(context.identity(pathname), "timeline", **{"from": start, "to": end})
