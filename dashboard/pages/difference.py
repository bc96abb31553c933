"""The diff page: this capture against another one."""

from typing import Any

from dash import Dash, Input, Output, State, dcc, html

from analyzer.errors import MegascopeError
from dashboard import changes, text
from dashboard.components import error_panel, figure, grid, panel, waiting
from dashboard.context import Context
from dashboard.loading import Loaded
from dashboard.palette import theme
from dashboard.summary import words_spec
from dashboard.wire import wire

KEY = "diff"
TITLE = "Diff"


def layout(loaded: Loaded, identity: str) -> html.Div:
    """The page of one capture; the other one is chosen on it."""
    del loaded
    return html.Div(
        [
            html.Div(
                [
                    html.H2("This capture (before) against"),
                    dcc.Dropdown(
                        [], id="diff-other", placeholder="another capture (after)", className="control-other"
                    ),
                    dcc.Store(id="diff-self", data=identity),
                ],
                className="toolbar",
            ),
            waiting(html.Div(id="diff-body"), "diff-loading"),
        ],
        className="page page-diff",
    )


def change_table(diff: dict[str, Any], before: str = "before", after: str = "after") -> html.Div:
    """The figures of a diff; better and worse differ by a word as well as by colour."""
    body = []
    for row in changes.rows(diff):
        verdict = {True: "better", False: "worse", None: ""}[row["better"]]
        body.append(
            html.Tr(
                [
                    html.Td(row["what"]),
                    html.Td(row["before"]),
                    html.Td(row["after"]),
                    html.Td(
                        [row["change"], html.Span(f" {verdict}", className=f"verdict-{verdict or 'none'}")]
                    ),
                ]
            )
        )
    return html.Div(grid(("", before, after, "change"), body), className="table-frame")


def findings_table(diff: dict[str, Any]) -> html.Div:
    """Findings that came and went."""
    found = diff["findings"]
    rows = []
    for state in ("appeared", "disappeared"):
        rows += [
            html.Tr(
                [
                    html.Td(state),
                    html.Td(str(f["id"])),
                    html.Td(text.shorten(f["title"], 100)),
                    html.Td(text.duration(f["time_ps"])),
                    html.Td(text.place(f["source"] or text.UNKNOWN), className="cell-source"),
                ]
            )
            for f in found[state][:20]
        ]
    if not rows:
        return html.P("The same findings in both.", className="muted")
    return html.Div(grid(("", "id", "finding", "time", "source"), rows), className="table-frame")


def register(app: Dash, context: Context) -> None:
    """Callbacks of the page."""

    @app.callback(Output("diff-other", "options"), Input("diff-self", "data"))
    def choices(identity: str) -> list[dict[str, str]]:
        return [
            {"label": text.shorten(e.path.name, 60), "value": e.id}
            for e in context.library.entries()
            if e.id != identity
        ]

    @app.callback(Output("diff-body", "children"), Input("diff-other", "value"), State("url", "pathname"))
    def show(other: str | None, pathname: str) -> Any:
        if not other:
            if len(context.library.entries()) < 2:
                return panel(
                    "There is only one capture here",
                    "Start the dashboard with two captures, or with the folder that holds them:",
                    "megascope dashboard BEFORE AFTER",
                )
            return html.P("Choose the capture to compare with.", className="muted")
        from analyzer.diff import compare

        try:
            one, two = context.loaded(pathname), context.library.get(other)
            diff = compare(one.report, two.report, force=True)
        except MegascopeError as error:
            return error_panel(error)
        obstacles = [text.shorten(o, 200) for o in diff["obstacles"]]
        warnings = [html.P(f"Not quite comparable: {o}", className="warning") for o in obstacles]
        names = [text.shorten(context.library.path(i).name, 60) for i in (context.identity(pathname), other)]
        return [
            html.P(changes.headline(diff) + f" Times are {diff['provenance']}.", className="verdict"),
            html.P(f"Before: {names[0]}. After: {names[1]}.", className="note"),
            *warnings,
            html.Div(
                [
                    html.Section([html.H2("Figures"), change_table(diff)]),
                    html.Section(
                        [
                            html.H2("Time by phase"),
                            figure("diff-phases"),
                            html.H2("Critical path"),
                            figure("diff-path"),
                        ]
                    ),
                ],
                className="columns",
            ),
            html.H2("Findings"),
            findings_table(diff),
        ]

    @app.callback(
        Output("diff-phases", "figure"),
        Output("diff-path", "figure"),
        Input("diff-phases", "id"),
        Input("theme", "data"),
        State("diff-other", "value"),
        State("url", "pathname"),
    )
    def draw(_: Any, theme_name: str | None, other: str, pathname: str) -> tuple[Any, Any]:
        from analyzer.diff import compare

        colours = theme(theme_name)
        try:
            diff = compare(context.loaded(pathname).report, context.library.get(other).report, force=True)
        except MegascopeError as error:
            return (words_spec(error.fault, colours),) * 2
        return (
            wire(changes.bars_spec(diff["phases"], "time by phase", colours)),
            wire(changes.bars_spec(diff["critical_path"], "the critical path", colours)),
        )
