"""Pieces of pages: numbers with units, badges, legends, and what shows when there is nothing to show."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from dash import dcc, html

from analyzer.errors import MegascopeError
from dashboard import text
from dashboard.loading import Loaded

PROVENANCE_HELP = {
    "modelled": "Predicted by simulating the compiled bundles on a machine model; no TPU was involved.",
    "measured": "Taken from a trace of a run on a TPU.",
    "counted": "Counted in the compiled program; no timing involved.",
    "assumed": "Rests on assumed values; see the scenario.",
    "unknown": "The capture does not say where this comes from.",
}


def link(identity: str, page: str, **query: Any) -> str:
    """Address of a page of a capture."""
    tail = "&".join(f"{k}={quote(str(v))}" for k, v in query.items() if v is not None)
    return f"/{quote(identity)}/{page}" + (f"?{tail}" if tail else "")


def badge(provenance: str) -> html.Span:
    """Where the numbers come from, always visible beside them."""
    known = provenance if provenance in PROVENANCE_HELP else "unknown"
    return html.Span(
        known, className=f"badge badge-{known}", title=PROVENANCE_HELP[known], id="provenance-badge"
    )


def machine(loaded: Loaded) -> str:
    """`tpu7x, 8 cores`, as far as known."""
    chip = text.shorten(loaded.fact("capture", "chip") or "chip unknown", 40)
    return f"{chip}, {text.count(loaded.fact('capture', 'cores'), 'core')}"


def fact(label: str, value: str, note: str = "", title: str = "") -> html.Div:
    """One number with its label; `note` in small letters after it."""
    children: list[Any] = [html.Span(label, className="fact-label"), html.Span(value, className="fact-value")]
    if note:
        children.append(html.Span(note, className="fact-note"))
    return html.Div(children, className="fact", title=title)


def facts(loaded: Loaded) -> html.Div:
    """The numbers of the step in one row."""
    get = loaded.fact
    step, bubble = get("step", "time_ps"), get("hbm", "bubble_ps")
    share = f"{text.percent(bubble / step)} of the step" if step and bubble is not None else ""
    return html.Div(
        [
            fact("step", text.duration(step), title="Time of one step, first to last span"),
            fact(
                "HBM utilization",
                text.percent(get("hbm", "utilization")),
                "of peak",
                title="Bytes moved / (step time × peak bandwidth of one core)",
            ),
            fact("HBM read", text.size(get("hbm", "read_bytes")), "per core"),
            fact(
                "overlap",
                text.percent(get("hbm", "overlap")),
                title="Share of transfer time in which the core was busy",
            ),
            fact(
                "exposed wait",
                text.duration(get("hbm", "exposed_wait_ps")),
                "on copies",
                title="Core stalled on local copies",
            ),
            fact(
                "HBM bubbles",
                text.duration(bubble),
                share,
                title="No HBM transfer in flight, summed over the step",
            ),
        ],
        className="facts",
        id="facts",
    )


def legend(keys: list[tuple[str, str]]) -> html.Div:
    """Colour swatches: (colour key, label)."""
    items = [
        html.Span([html.Span(className=f"swatch swatch-{key}"), label], className="legend-item")
        for key, label in keys
    ]
    return html.Div(items, className="legend", id="legend")


def grid(labels: Iterable[str], rows: list[html.Tr]) -> html.Table:
    """A table with a heading over each column."""
    head = html.Thead(html.Tr([html.Th(label, scope="col") for label in labels]))
    return html.Table([head, html.Tbody(rows)], className="grid")


def panel(title: str, *lines: Any, kind: str = "empty") -> html.Div:
    """A message in place of content: what is so, and what to do."""
    return html.Div(
        [html.H2(title), *[html.P(line) for line in lines]],
        className=f"panel panel-{kind}",
        role="alert" if kind == "error" else "status",
    )


def error_panel(error: Exception) -> html.Div:
    """An error as a page: faults the user can mend say how; others ask for a report."""
    if isinstance(error, MegascopeError):
        return panel(text.shorten(error.fault, 300), text.shorten(error.where, 300), error.cure, kind="error")
    return panel(
        "Something went wrong in the dashboard",
        f"{type(error).__name__}: {text.shorten(error, 300)}",
        "Please report it with the capture; the terminal that runs the dashboard shows where it happened.",
        kind="error",
    )


def waiting(child: Any, identity: str, only: dict[str, str] | None = None) -> dcc.Loading:
    """Keeps the old content, dimmed, while new content takes longer than a moment.

    Args:
        child: what is replaced.
        identity: id of the whole.
        only: component id to property: wait for these alone, not for everything inside.
    """
    more = {} if only is None else {"target_components": only}
    return dcc.Loading(
        child,
        **more,
        id=identity,
        delay_show=350,
        parent_className="fill",
        overlay_style={"visibility": "visible", "opacity": 0.55},
        type="dot",
        color="#0072b2",
    )


def figure(identity: str, config: dict[str, Any] | None = None) -> html.Div:
    """A graph that fills a box of the class `box-<identity>`; Dash sets the graph's own height to 100 %."""
    graph = dcc.Graph(id=identity, config=config or STATIC_CONFIG, responsive=True)
    return html.Div(graph, className=f"box-{identity}")


STATIC_CONFIG: dict[str, Any] = {"displayModeBar": False, "responsive": True}
