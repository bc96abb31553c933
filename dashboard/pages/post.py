"""The post view: the two well-known diagrams drawn from the capture, for a talk or a text."""

import base64
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html

from analyzer.errors import MegascopeError
from dashboard import text
from dashboard.components import panel, waiting
from dashboard.context import Context
from dashboard.index import TimelineIndex
from dashboard.loading import Loaded
from dashboard.palette import theme
from dashboard.post import bubbles_diagram, prefetch_diagram, repeats
from dashboard.post_svg import draw

KEY = "post"
TITLE = "Post view"
KINDS = ("bubbles", "prefetch")


def layout(loaded: Loaded, identity: str) -> html.Div:
    """The page of one capture."""
    del identity
    if len(loaded.timeline) == 0:
        return panel("This capture has no spans", "There is nothing to draw.", "See the notes of its report.")
    index = loaded.index()
    layers = repeats(index)
    options = [{"label": text.shorten(b.label), "value": i} for i, b in enumerate(layers)]
    middle = len(layers) // 2 if layers else None
    sections = [
        _section(
            "bubbles", "Kernel bubbles", [{"label": "whole step", "value": -1}, *options], -1, to_scale=True
        )
    ]
    if layers and index.phases:
        sections.append(_section("prefetch", "Cross-layer prefetch", options, middle, to_scale=False))
    else:
        sections.append(
            panel(
                "No cross-layer diagram",
                "It needs phases, and this capture names none.",
                "Compile with the instrumentation hooks on (level regions).",
            )
        )
    return html.Div(sections, className="page page-post")


def _section(
    kind: str, title: str, options: list[dict[str, Any]], value: int | None, *, to_scale: bool
) -> html.Section:
    scale = dcc.Checklist(
        [{"label": "to scale", "value": "scale"}],
        ["scale"] if to_scale else [],
        id=f"{kind}-scale",
        className="checks",
    )
    return html.Section(
        [
            html.Div(
                [
                    html.H2(title),
                    dcc.Dropdown(options, value, id=f"{kind}-layer", clearable=False, className="control"),
                    scale,
                    html.A("Save SVG", id=f"{kind}-svg", className="button", download=f"{kind}.svg", href=""),
                    html.Button("Save PNG", id=f"{kind}-png"),
                    dcc.Store(id=f"{kind}-saved"),
                ],
                className="toolbar",
            ),
            waiting(
                html.Img(id=f"{kind}-diagram", className="diagram", alt=f"{title}, drawn from this capture"),
                f"{kind}-loading",
            ),
        ],
        className="diagram-section",
    )


def picture(loaded: Loaded, kind: str, number: int | None, *, to_scale: bool, theme_name: str | None) -> str:
    """One of the diagrams as an SVG document; `number` counts layers, -1 is the whole step."""
    index = loaded.index()
    layers = repeats(index)
    if kind == "prefetch":
        chosen = min(max(number or 0, 0), len(layers) - 1)
        diagram = prefetch_diagram(index, chosen, loaded.provenance)
    else:
        diagram = bubbles_diagram(index, _window(index, number), loaded.provenance)
    return draw(diagram, theme(theme_name), to_scale)


def _window(index: TimelineIndex, number: int | None) -> tuple[int, int] | None:
    layers = repeats(index)
    if number is None or not 0 <= number < len(layers):
        return None
    return layers[number].start, layers[number].end


def register(app: Dash, context: Context) -> None:
    """Callbacks of the page."""
    for kind in KINDS:
        _register(app, context, kind)


def _register(app: Dash, context: Context, kind: str) -> None:
    app.clientside_callback(
        ClientsideFunction("megascope", "png"),
        Output(f"{kind}-saved", "data"),
        Input(f"{kind}-png", "n_clicks"),
        State(f"{kind}-diagram", "src"),
        State(f"{kind}-svg", "download"),
    )

    @app.callback(
        Output(f"{kind}-diagram", "src"),
        Output(f"{kind}-svg", "href"),
        Input(f"{kind}-layer", "value"),
        Input(f"{kind}-scale", "value"),
        Input("theme", "data"),
        State("url", "pathname"),
    )
    def show(
        number: int | None, scale: list[str] | None, theme_name: str | None, pathname: str
    ) -> tuple[str, str]:
        try:
            loaded = context.loaded(pathname)
        except MegascopeError:
            return "", ""
        svg = picture(loaded, kind, number, to_scale=bool(scale), theme_name=theme_name)
        address = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii")
        return address, address
