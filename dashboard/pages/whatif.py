"""The what-if page: the same program on a machine with other numbers, simulated in the background."""

from typing import Any

from dash import ALL, Dash, Input, Output, State, dcc, html

from analyzer.errors import MegascopeError
from dashboard import changes, text
from dashboard.components import error_panel, panel
from dashboard.context import Context
from dashboard.loading import Loaded
from dashboard.pages.difference import change_table

KEY = "whatif"
TITLE = "What-if"
FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)
UNCHANGED = FACTORS.index(1.0)
# (label, parameters of the machine model, whether 0 makes sense, what a larger factor means)
KNOBS: tuple[tuple[str, tuple[str, ...], bool, str], ...] = (
    ("HBM bandwidth", ("hbm.bandwidth",), False, "more is faster"),
    ("HBM latency", ("hbm.latency",), True, "more is slower"),
    ("MXU cycles per push and product", ("mxu.push", "mxu.matmul"), True, "more is slower"),
    ("clock of the core", ("issue.clock",), False, "more is faster"),
    ("latency of remote copies", ("ici.sibling.latency", "ici.link.latency"), True, "more is slower"),
    (
        "bandwidth of remote copies",
        ("ici.sibling.bandwidth", "ici.link.bandwidth", "ici.send.bandwidth"),
        False,
        "more is faster",
    ),
)


def layout(loaded: Loaded, identity: str) -> html.Div:
    """The page of one capture."""
    del identity
    if loaded.provenance == "measured":
        return panel(
            "What-if needs a modelled capture",
            "This step was measured; a measurement cannot be rerun with other numbers.",
            "Open the compile capture of the same kernel.",
        )
    sliders = [
        html.Div(
            [
                html.Label(f"{label} ({direction})", className="knob-label"),
                dcc.Slider(
                    0 if zero else 1,
                    len(FACTORS) - 1,
                    step=1,
                    value=UNCHANGED,
                    id={"type": "knob", "index": i},
                    marks={k: f"×{f:g}" for k, f in enumerate(FACTORS) if zero or f},
                    allow_direct_input=False,
                ),
            ],
            className="knob",
        )
        for i, (label, _, zero, direction) in enumerate(KNOBS)
    ]
    return html.Div(
        [
            html.Div(
                [
                    html.Section(
                        [
                            html.H2("The machine"),
                            *sliders,
                            html.H2("Without a phase: as if it took no time and moved nothing"),
                            dcc.Dropdown(
                                phases(loaded),
                                [],
                                id="whatif-without",
                                multi=True,
                                placeholder="nothing left out",
                                disabled=not phases(loaded),
                            ),
                            html.P(html.Button("Back to the model", id="whatif-reset")),
                        ]
                    ),
                    html.Section(
                        [
                            html.H2("The step"),
                            html.Div(id="whatif-body", role="status", **{"aria-live": "polite"}),
                        ]
                    ),
                ],
                className="columns",
            ),
            dcc.Interval(id="whatif-poll", interval=400, disabled=True),
        ],
        className="page page-whatif",
    )


def phases(loaded: Loaded) -> list[dict[str, str]]:
    """Phases of the step that can be left out, in the order of the report; values are their paths."""
    rows = loaded.fact("phases") or []
    paths = dict.fromkeys(str(row["phase"]) for row in rows if isinstance(row, dict) and row.get("phase"))
    outer = [p.rsplit("/", k)[0] for p in paths for k in range(p.count("/"), 0, -1)]
    names = sorted(dict.fromkeys([*paths, *outer]))
    return [{"label": text.shorten(p, 60), "value": p} for p in names]


def overrides(values: list[Any]) -> dict[str, str]:
    """Machine parameters to change, from the positions of the sliders; nonsense means unchanged."""
    out: dict[str, str] = {}
    for (_, parameters, zero, _), value in zip(KNOBS, values, strict=False):
        if not isinstance(value, int) or not 0 <= value < len(FACTORS) or value == UNCHANGED:
            continue
        factor = FACTORS[value]
        if factor or zero:
            out |= dict.fromkeys(parameters, f"x{factor:g}" if factor else "0")
    return out


def words(values: list[Any], without: tuple[str, ...] = ()) -> str:
    """The changes in words."""
    parts = [
        f"{label} ×{FACTORS[v]:g}"
        for (label, _, _, _), v in zip(KNOBS, values, strict=False)
        if isinstance(v, int) and 0 <= v < len(FACTORS) and v != UNCHANGED
    ]
    left_out = [f"without {text.shorten(p, 40)}" for p in without]
    return ", ".join([*parts, *left_out])


def _first_large(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def register(app: Dash, context: Context) -> None:
    """Callbacks of the page."""

    @app.callback(
        Output({"type": "knob", "index": ALL}, "value"),
        Output("whatif-without", "value"),
        Input("whatif-reset", "n_clicks"),
        State({"type": "knob", "index": ALL}, "value"),
        prevent_initial_call=True,
    )
    def reset(_: Any, values: list[Any]) -> tuple[list[int], list[str]]:
        return [UNCHANGED] * len(values), []

    @app.callback(
        Output("whatif-body", "children"),
        Output("whatif-poll", "disabled"),
        Input({"type": "knob", "index": ALL}, "value"),
        Input("whatif-without", "value"),
        Input("whatif-poll", "n_intervals"),
        State("url", "pathname"),
    )
    def show(values: list[Any], left_out: Any, _: Any, pathname: str) -> tuple[Any, bool]:
        changed = overrides(values)
        try:
            loaded = context.loaded(pathname)
        except MegascopeError as error:
            return error_panel(error), True
        known = {choice["value"] for choice in phases(loaded)}
        without = tuple(sorted(str(p) for p in left_out or [] if p in known))
        if not changed and not without:
            step = text.duration(loaded.fact("step", "time_ps"))
            return [
                html.P(f"The step takes {step} ({loaded.provenance}).", className="verdict"),
                html.P(
                    "Move a slider or leave out a phase: the program is simulated again, so changed.",
                    className="muted",
                ),
            ], True
        key = (loaded.serial, tuple(sorted(changed.items())), without)
        state = context.jobs.ask(key, lambda: context.what_if(loaded.path, changed, without))
        if not state.done:
            queue = f", {text.count(state.waiting, 'job')} before it" if state.waiting else ""
            return [
                html.P(
                    f"Simulating {words(values, without)}: {state.seconds:.0f} s{queue} …",
                    className="verdict",
                ),
                html.Progress(className="progress"),
            ], False
        if state.error is not None:
            failure = state.error if isinstance(state.error, Exception) else RuntimeError(str(state.error))
            return error_panel(failure), True
        from analyzer.diff import compare

        try:
            diff = compare(loaded.report, state.result, force=True)
        except MegascopeError as error:
            return error_panel(error), True
        return [
            html.P(
                _first_large(words(values, without)) + ": " + changes.headline(diff),
                className="verdict",
                id="whatif-verdict",
            ),
            html.P("Modelled both times; only what is named above differs.", className="note"),
            change_table(diff, "model", "what if"),
        ], True
