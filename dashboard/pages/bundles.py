"""The bundles page: the compiled program, what it uses, and the source it came from."""

from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from analyzer.errors import MegascopeError
from dashboard import text
from dashboard.components import error_panel, figure, grid, link, waiting
from dashboard.context import Context
from dashboard.listing import (
    PAGE,
    UNITS,
    Listing,
    loop_rows,
    loops,
    map_spec,
    parse_bundle,
    rows,
    source_lines,
)
from dashboard.loading import Loaded
from dashboard.palette import theme
from dashboard.places import window_of
from dashboard.summary import words_spec
from dashboard.wire import wire

KEY = "bundles"
TITLE = "Bundles"


def layout(loaded: Loaded, identity: str) -> html.Div:
    """The page of one capture."""
    del identity
    listing = loaded.listing()
    choices = [{"label": words, "value": start} for words, start in loops(listing)]
    total = listing.program.bundle_count
    return html.Div(
        [
            html.Div(
                [
                    html.Button("← before", id="bundles-before", title="The bundles before these"),
                    html.Button("after →", id="bundles-after", title="The bundles after these"),
                    dcc.Input(
                        id="bundle-go", placeholder="bundle, e.g. 0x1a2", debounce=True, className="control"
                    ),
                    dcc.Dropdown(
                        choices,
                        id="bundle-loop",
                        placeholder="Jump to loop",
                        className="control control-wide",
                        disabled=not choices,
                    ),
                    html.Span(
                        f"{total:,} bundles, click the map to go there. {text.shorten(listing.note, 200)}",
                        className="note",
                    ),
                ],
                className="toolbar",
            ),
            waiting(figure("bundle-map"), "bundle-map-loading"),
            html.Div(
                [
                    waiting(html.Div(id="bundle-list", className="bundle-list"), "bundle-list-loading"),
                    html.Aside(
                        [
                            html.Div(
                                html.P("Click a source line to see it here.", className="muted"), id="source"
                            ),
                            loop_table(listing),
                        ],
                        className="aside",
                    ),
                ],
                className="bundle-columns",
            ),
            dcc.Store(id="bundle-start"),
        ],
        className="page page-bundles",
    )


def loop_table(listing: Listing) -> html.Div:
    """Loops with their trips, the longest first; each leads to its bundles."""
    found = loop_rows(listing)
    if not found:
        return html.Div()
    body = [
        html.Tr(
            [
                html.Td(
                    html.Button(
                        row["bundles"], id={"type": "loop", "index": row["start"]}, className="row-button"
                    )
                ),
                html.Td(row["trips"], title=f"{row['ran']} bundles executed"),
                html.Td(row["time"]),
                html.Td(row["source"], title=row["path"], className="cell-source"),
            ]
        )
        for row in found
    ]
    return html.Div([html.H2("Loops, the longest first"), grid(("loop", "trips", "time", "source"), body)])


def table(listing: Listing, start: int, loaded: Loaded, identity: str) -> html.Table:
    """The listing of a range; each unit's cell is as dark as the unit is full."""
    ran_known = listing.executed is not None
    names = ("bundle", *(("ran",) if ran_known else ()), *UNITS, "source", "instructions")
    short = {"VLOAD": "VLD", "VSTORE": "VST"}
    head = html.Thead(
        html.Tr(
            [
                html.Th(short.get(n, n), title=n, scope="col", className="unit" if n in UNITS else "")
                for n in names
            ]
        )
    )
    body = []
    for row in rows(listing, start):
        ran = [html.Td(f"{row['executed']:,}")] if ran_known else []
        units = [
            html.Td("", className=f"unit use-{round(4 * share)}", title=f"{unit}: {100 * share:.0f} % used")
            for unit, share in zip(UNITS, row["used"], strict=True)
        ]
        sources = [
            html.Button(
                _short(place),
                id={"type": "source", "index": f"{row['bundle']}|{place}"},
                className="row-button",
                title=text.shorten(place, 300),
            )
            for place in row["sources"][:3]
        ]
        more = len(row["sources"]) - 3
        sources += [html.Span(f" +{more}", className="muted")] if more > 0 else []
        place = html.Td(_timeline_link(loaded, identity, row["bundle"]), className="cell-bundles")
        words = [html.Div(line, title=line) for line in row["instructions"]] or [
            html.Div("empty", className="muted")
        ]
        style = {"paddingLeft": f"{10 + 8 * row['depth']}px"}
        body.append(
            html.Tr(
                [
                    place,
                    *ran,
                    *units,
                    html.Td(sources, className="cell-source"),
                    html.Td(words, className="instructions", style=style),
                ]
            )
        )
    return html.Table([head, html.Tbody(body)], className="grid listing")


def _timeline_link(loaded: Loaded, identity: str, bundle: int) -> Any:
    window = window_of(loaded, {"bundles": [bundle, bundle]})
    if window is None:
        return f"{bundle:#x}"
    where = link(identity, "timeline", **{"from": window[0], "to": window[1]})
    return dcc.Link(f"{bundle:#x}", href=where, title="Show in the timeline")


def _short(place: str) -> str:
    """`mlp.py:31` of a long path."""
    return text.shorten(place.rsplit("/", 1)[-1], 40)


def source_view(place: str) -> list[Any]:
    """The lines around a place, or why they are not shown."""
    title = html.H2(text.shorten(place, 200))
    lines = source_lines(place)
    if lines is None:
        return [title, html.P("The file is not on this machine (or is no Python file).", className="muted")]
    shown = [
        html.Div(
            [html.Span(f"{n:5d}  ", className="muted"), line or " "], className="source-here" if here else ""
        )
        for n, line, here in lines
    ]
    return [title, html.Pre(shown)]


def register(app: Dash, context: Context) -> None:
    """Callbacks of the page."""

    @app.callback(
        Output("bundle-start", "data"),
        Input("bundles-before", "n_clicks"),
        Input("bundles-after", "n_clicks"),
        Input("bundle-go", "value"),
        Input("bundle-loop", "value"),
        Input({"type": "loop", "index": ALL}, "n_clicks"),
        Input("bundle-map", "clickData"),
        State("bundle-start", "data"),
        State("url", "pathname"),
        State("url", "search"),
    )
    def move(*values: Any) -> Any:
        _, _, typed, loop, rows_clicked, click, start, pathname, search = values
        try:
            total = context.loaded(pathname).listing().program.bundle_count
        except MegascopeError:
            return no_update
        current = parse_bundle(start, total) or 0
        wanted: int | None
        if ctx.triggered_id == "bundles-before":
            wanted = max(0, current - PAGE)
        elif ctx.triggered_id == "bundles-after":
            wanted = current + PAGE if current + PAGE < total else current
        elif ctx.triggered_id == "bundle-go":
            wanted = parse_bundle(typed, total)
        elif ctx.triggered_id == "bundle-loop":
            wanted = parse_bundle(loop, total)
        elif isinstance(ctx.triggered_id, dict):
            wanted = parse_bundle(ctx.triggered_id.get("index"), total) if any(rows_clicked) else None
        elif ctx.triggered_id == "bundle-map":
            wanted = parse_bundle(int((click or {}).get("points", [{}])[0].get("x", 0)), total)
        else:
            wanted = parse_bundle(_query(search, "bundle"), total) or 0
        return no_update if wanted is None else wanted

    @app.callback(
        Output("bundle-list", "children"),
        Output("bundle-map", "figure"),
        Input("bundle-start", "data"),
        Input("theme", "data"),
        State("url", "pathname"),
    )
    def show(start: Any, theme_name: str | None, pathname: str) -> tuple[Any, Any]:
        try:
            loaded = context.loaded(pathname)
            listing = loaded.listing()
        except MegascopeError as error:
            return error_panel(error), words_spec(error.fault, theme(theme_name))
        first = parse_bundle(start, listing.program.bundle_count) or 0
        spec = wire(map_spec(listing, first, theme(theme_name)))
        return table(listing, first, loaded, context.identity(pathname)), spec

    @app.callback(
        Output("source", "children"),
        Input({"type": "source", "index": ALL}, "n_clicks"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    def source(clicks: list[int | None], pathname: str) -> Any:
        chosen = ctx.triggered_id
        if not any(clicks) or not isinstance(chosen, dict):
            return no_update
        bundle, _, place = str(chosen["index"]).partition("|")
        # Only places that the program itself names: the browser cannot ask for other files.
        try:
            listing = context.loaded(pathname).listing()
        except MegascopeError:
            return no_update
        number = parse_bundle(bundle, listing.program.bundle_count)
        if number is None or place not in rows(listing, number, 1)[0]["sources"]:
            return no_update
        return source_view(place)


def _query(search: str | None, name: str) -> str | None:
    from urllib.parse import parse_qs

    return parse_qs((search or "").lstrip("?")).get(name, [None])[0]
