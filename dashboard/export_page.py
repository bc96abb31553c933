"""Any page as one HTML file: what it shows at that moment, plotly.js inside, nothing loaded from anywhere."""

import html
import json
import re
from typing import Any, Protocol

from dash import Dash
from plotly.utils import PlotlyJSONEncoder

from dashboard import text
from dashboard.components import facts
from dashboard.context import ALL_CORES
from dashboard.cores import cores_spec
from dashboard.export import asset, json_text, plotly, render_html
from dashboard.headless import CONTROLS, Asked, Headless, Node, address
from dashboard.loading import Loaded
from dashboard.palette import theme as palette
from dashboard.panels import MAX_SHAPES
from dashboard.slices import DEFAULT_KINDS
from dashboard.wire import wire

# Controls ask a server; a file has none. Their words that matter are in the page beside them.
_DROPPED = frozenset([*CONTROLS, "Store", "Interval", "Location"])
_UNWRAPPED = frozenset(("Loading", "Fragment", "Script", "Iframe", "ObjectEl", "Embed"))
_VOID = {"Img", "Br", "Hr"}
_PLAIN = {"title": "title", "className": "class", "role": "role", "colSpan": "colspan", "alt": "alt"}
_TAG = re.compile(r"[A-Z][A-Za-z0-9]*")
_HEAD = """<!DOCTYPE html>
<html lang="en" data-theme="{theme}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}
.page {{ height: auto !important; min-height: 0 !important; }}
.bundle-list, .table-scroll {{ height: auto; max-height: none; }} .timeline-file {{ height: 86vh; }}
</style>
</head>
<body>
<header class="top"><span class="brand">Megascope</span><div class="capture-name">{name}</div>
<nav class="pages"><span class="muted">{page}</span></nav></header>
<main>{body}</main>
"""
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:"
)
_SCRIPT = """
JSON.parse(document.getElementById("figures").textContent).forEach(function (one) {
  const place = document.getElementById(one.place);
  Plotly.newPlot(place, one.data, one.layout, { displayModeBar: false, responsive: true });
});
"""


class Page(Protocol):
    """A module of `dashboard.pages`."""

    KEY: str
    TITLE: str


def export_page(app: Dash, loaded: Loaded, identity: str, page: Page, asked: Asked) -> str:
    """The page of a capture as the text of a file.

    Args:
        app: the dashboard that serves it.
        loaded: the capture.
        identity: id of the capture.
        page: which one.
        asked: what was chosen.
    """
    chosen = asked.values
    every = loaded.with_every_core() if page.KEY == "timeline" and chosen.get("core") == ALL_CORES else None
    if page.KEY == "timeline" and every is None:
        return render_html(loaded)
    shown = Headless(app, address(identity, page.KEY), asked)
    writer = _Writer()
    body, name = writer.html(shown.page), writer.html(shown.name)
    if every is not None:
        body = writer.html(_all_cores(loaded, every, asked.theme, chosen.get("kinds")))
    head = _HEAD.format(
        policy=_POLICY,
        theme=asked.theme,
        title=f"{html.escape(page.TITLE)} · {html.escape(text.shorten(identity, 60))} · Megascope",
        style=asset("style.css"),
        name=name,
        page=html.escape(page.TITLE),
        body=body,
    )
    parts = [head]
    if writer.figures:
        parts += [f"<script>{plotly()}</script>\n"]
        parts += [f'<script type="application/json" id="figures">{json_text(writer.figures)}</script>\n']
        parts += [f"<script>{_SCRIPT}</script>\n"]
    return "".join([*parts, "</body>\n</html>\n"])


def _all_cores(loaded: Loaded, every: Loaded, theme: str, kinds: Any) -> Any:
    """The facts of a capture and all its cores over the whole step, as Dash would send them."""
    wanted = tuple(str(k) for k in kinds) if isinstance(kinds, list) else DEFAULT_KINDS
    view = every.view(palette(theme), max_shapes=MAX_SHAPES, hidden=frozenset(("scalar",)))
    spec = wire(cores_spec(every.slice(), view, wanted))
    graph = {"type": "Graph", "props": {"figure": spec}}
    place = {"type": "Div", "props": {"className": "timeline-file", "children": graph}}
    words = json.loads(json.dumps(facts(loaded), cls=PlotlyJSONEncoder))
    return {"type": "Main", "props": {"className": "page", "children": [words, place]}}


class _Writer:
    """Turns components, as Dash sends them, into HTML; collects the figures on the way."""

    def __init__(self) -> None:
        self.figures: list[dict[str, Any]] = []

    def html(self, tree: Any) -> str:
        """The markup of a tree of components; everything that is text is escaped."""
        if tree is None or isinstance(tree, bool):
            return ""
        if isinstance(tree, list):
            return "".join(self.html(child) for child in tree)
        if not isinstance(tree, dict) or "props" not in tree:
            return html.escape(str(tree))
        kind = str(tree.get("type"))
        if kind == "Graph":
            return self._graph(tree["props"])
        return "" if kind in _DROPPED else self._element(kind, tree)

    def _element(self, kind: str, node: Node) -> str:
        """One component and what is inside; links lead nowhere in a file, so their words stay alone."""
        classes, inner = str(node["props"].get("className")), self.html(node["props"].get("children"))
        if (kind == "Button" and "row-button" not in classes) or (kind == "A" and classes == "button"):
            return ""
        if kind in {"Button", "Link", "A"}:
            return f"<span>{inner}</span>"
        if not _TAG.fullmatch(kind) or kind in _UNWRAPPED:
            return inner
        tag = kind.lower()
        return f"<{tag}{_attributes(node)}>" + ("" if kind in _VOID else f"{inner}</{tag}>")

    def _graph(self, props: Node) -> str:
        figure = props.get("figure") or {}
        place = f"figure-{len(self.figures)}"
        self.figures.append(
            {"place": place, "data": figure.get("data", []), "layout": figure.get("layout", {})}
        )
        return f'<div id="{place}" style="width:100%;height:100%"></div>'


def _attributes(node: Node) -> str:
    props = node["props"]
    found = {name: props[key] for key, name in _PLAIN.items() if props.get(key) is not None}
    style = props.get("style")
    if isinstance(style, dict):
        words = (f"{re.sub('([A-Z])', r'-\\1', str(k)).lower()}:{v}" for k, v in style.items())
        found["style"] = ";".join(words)
    source = str(props.get("src") or "")
    if node["type"] == "Img" and source.startswith("data:image/"):
        found["src"] = source
    return "".join(f' {name}="{html.escape(str(value))}"' for name, value in found.items())
