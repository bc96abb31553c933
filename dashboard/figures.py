"""Figures of a timeline: pure functions from tables to Plotly figures.

`timeline_figure` and `bandwidth_figure` draw one thing each; `step_spec` draws both over one time axis, as
plain dictionaries with numpy arrays, which the dashboard sends without Plotly's per-value validation.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dashboard import text
from dashboard.bubbles import bubble_marks, bubble_trace
from dashboard.index import Band, TimelineIndex, build_index
from dashboard.lanes import LaneIndex, Marks, merge, resolution_for
from dashboard.marks import Canvas, Slot, band_trace, label_trace, lane_trace, microseconds
from dashboard.palette import LIGHT, Theme
from dashboard.relations import overlay, relation

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_SHAPES = 5000
COLUMNS = 1024  # columns of the visible window; about the width of the plot in pixels
_BAND, _LANE, _STACK, _GAP = 0.55, 1.0, 1.5, 0.28
FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class View:
    """What to draw of a step, and how.

    Attributes:
        window: visible range in ps; None for the whole step.
        margin: also draw this share of the window on both sides, so that panning shows something at once.
        max_shapes: upper limit on rectangles in the figure.
        columns: columns of detail in the visible window.
        peak, achievable: HBM bandwidth of one core in bytes per second; None if unknown.
        hidden: tracks not drawn.
        selected: span to frame, with arrows to what it is tied to.
        measuring: dragging selects a stretch instead of zooming.
    """

    window: tuple[int, int] | None = None
    margin: float = 0.0
    max_shapes: int = MAX_SHAPES
    columns: int = COLUMNS
    theme: Theme = LIGHT
    peak: float | None = None
    achievable: float | None = None
    hidden: frozenset[str] = field(default_factory=frozenset)
    selected: int | None = None
    measuring: bool = False

    def visible(self, index: TimelineIndex) -> tuple[int, int]:
        """The visible range, never empty."""
        start, end = self.window or (index.start, index.end)
        return (int(start), max(int(start) + 1, int(end)))


def timeline_figure(
    timeline: pd.DataFrame | TimelineIndex,
    window: tuple[int, int] | None = None,
    max_shapes: int = MAX_SHAPES,
    *,
    core: int | None = None,
    bubbles: pd.DataFrame | None = None,
    theme: Theme = LIGHT,
    columns: int = COLUMNS,
) -> "go.Figure":
    """The lanes of one core over time, at most `max_shapes` rectangles.

    Args:
        timeline: span table, or an index built from one.
        window: (start, end) in ps; by default the whole step.
        max_shapes: limit on rectangles; detail is reduced until it holds.
        core: core to draw; the lowest by default.
        bubbles: HBM-idle intervals to mark (start_ps, duration_ps, cause, source, ...).
        theme: colours.
        columns: columns of detail in the window.
    """
    import plotly.graph_objects as go

    index = timeline if isinstance(timeline, TimelineIndex) else build_index(timeline, core)
    view = View(window=window, max_shapes=max_shapes, theme=theme, columns=columns)
    traces, lanes_axis = lane_traces(index, view, bubbles)
    layout = base_layout(index, view)
    layout["yaxis"] = lanes_axis
    layout["xaxis"]["anchor"] = "y"
    return go.Figure({"data": traces, "layout": layout})


def bandwidth_figure(
    timeline: pd.DataFrame | TimelineIndex,
    window: tuple[int, int] | None = None,
    *,
    core: int | None = None,
    peak: float | None = None,
    achievable: float | None = None,
    theme: Theme = LIGHT,
    bins: int = 400,
) -> "go.Figure":
    """HBM bandwidth of one core over time in GB/s, with peak and achievable marked (bytes per second)."""
    import plotly.graph_objects as go

    index = timeline if isinstance(timeline, TimelineIndex) else build_index(timeline, core)
    view = View(window=window, theme=theme, peak=peak, achievable=achievable)
    layout = base_layout(index, view)
    axis, shapes, notes = bandwidth_axis(index, view, "y")
    layout.update(yaxis=axis, shapes=shapes, annotations=notes)
    return go.Figure({"data": bandwidth_traces(index, view, "y", bins), "layout": layout})


def step_spec(index: TimelineIndex, view: View, bubbles: pd.DataFrame | None = None) -> dict[str, Any]:
    """Lanes above, HBM bandwidth below, one time axis: {"data", "layout"} with numpy arrays."""
    traces, lanes_axis = lane_traces(index, view, bubbles)
    layout = base_layout(index, view)
    rate_axis, shapes, notes = bandwidth_axis(index, view, "y2")
    layout["xaxis"]["anchor"] = "y2"
    layout["yaxis"] = {**lanes_axis, "domain": [0.30, 1.0]}
    layout["yaxis2"] = {**rate_axis, "domain": [0.0, 0.25]}
    if view.selected is not None:
        found = relation(index, view.selected)
        tracks = [lane.track for lane in index.lanes if lane.track not in view.hidden]
        middles = dict(zip(tracks, lanes_axis["tickvals"][-len(tracks) :], strict=True))
        frames, arrows = overlay(found, middles, view.theme) if found else ([], [])
        shapes, notes = shapes + frames, notes + arrows
    layout["shapes"] = shapes
    layout["annotations"] = notes
    return {"data": traces + bandwidth_traces(index, view, "y2"), "layout": layout}


def shape_count(data: list[dict[str, Any]]) -> int:
    """Rectangles in a list of traces."""
    return sum(len(trace["base"]) for trace in data if trace["type"] == "bar")


def lane_traces(
    index: TimelineIndex, view: View, bubbles: pd.DataFrame | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(bar traces, y axis) of the lanes of one core."""
    lanes = [lane for lane in index.lanes if lane.track not in view.hidden]
    visible = view.visible(index)
    drawn = _with_margin(index, view, visible)
    slots, axis = _slots(index, lanes, view.theme)
    columns: dict[str, Any] = {"drawn": drawn, "visible": visible, "columns": view.columns}
    layers = fit_bands(index.layers, budget=view.max_shapes // 10, **columns)
    phases = fit_bands(index.phases, budget=view.max_shapes // 5, **columns)
    idle = bubble_marks(bubbles, index.core)
    budget = view.max_shapes - len(layers) - len(phases)
    found, idle, resolution = fit(lanes, idle, budget=budget, **columns)
    canvas = Canvas(view.theme, visible, drawn, resolution)
    pixels = Canvas(view.theme, visible, drawn, max(1, (visible[1] - visible[0]) // view.columns))
    parts = []
    if index.layers:
        parts.append(band_trace("layer", layers, slots["layer"], pixels))
    if index.phases:
        parts.append(band_trace("phase", phases, slots["phase"], pixels))
    named: set[str] = set()
    for lane, marks in zip(lanes, found, strict=True):
        part = lane_trace(lane, marks, index.timeline, slots[lane.track], canvas)
        part.trace["showlegend"] = lane.colour not in named
        part.trace["name"] = LEGEND.get(lane.colour, lane.label)
        named.add(lane.colour)
        parts.append(part)
    traces = [part.trace for part in parts]
    if bubbles is not None and len(idle) and "hbm_read" in slots:
        traces.append(bubble_trace(idle, bubbles, slots["hbm_read"], canvas))
    traces.append(label_trace([label for part in parts for label in part.labels]))
    return traces, axis


LEGEND = {
    "transfer": "HBM → VMEM transfer",
    "write": "VMEM → HBM",
    "matrix": "matrix work",
    "vector": "vector work",
    "collective": "collective",
    "wait": "wait",
    "scalar": "scalar",
}


def _with_margin(index: TimelineIndex, view: View, visible: tuple[int, int]) -> tuple[int, int]:
    extra = int(view.margin * (visible[1] - visible[0]))
    start = max(visible[0] - extra, min(index.start, visible[0]))
    return start, max(start + 1, min(visible[1] + extra, max(index.end, visible[1])))


def fit(
    lanes: list[LaneIndex],
    idle: Marks,
    *,
    drawn: tuple[int, int],
    visible: tuple[int, int],
    budget: int,
    columns: int,
) -> tuple[list[Marks], Marks, int]:
    """Marks of every lane and of the bubbles within `budget`, and the width of a column in ps.

    While there are too many, the fullest lane gets coarser: lanes of many queues pay for themselves.
    """
    column = resolution_for(*visible, columns)
    idle = idle.take((idle.end > drawn[0]) & (idle.start < drawn[1]))
    merged = merge(idle, column)
    resolutions = [column] * len(lanes)
    found = [lane.query(*drawn, column) for lane in lanes]
    length = visible[1] - visible[0]
    while sum(map(len, found)) + len(merged) > budget:
        sizes = [len(m) if r <= length else 0 for m, r in zip(found, resolutions, strict=True)]
        if not any(sizes):
            break
        fullest = max(range(len(lanes)), key=lambda k: sizes[k])
        resolutions[fullest] *= 2
        found[fullest] = lanes[fullest].query(*drawn, resolutions[fullest])
    return found, _longest(merged, max(0, budget - sum(map(len, found)))), column


def _longest(marks: Marks, count: int) -> Marks:
    """The longest `count` marks, in their order."""
    if len(marks) <= count:
        return marks
    return marks.take(np.sort(np.argsort(-marks.busy, kind="stable")[:count]))


def fit_bands(
    bands: tuple[Band, ...], *, drawn: tuple[int, int], visible: tuple[int, int], budget: int, columns: int
) -> list[Band]:
    """Bands that touch `drawn`, without those thinner than a column; at most `budget`, the longest kept."""
    least = max(1, (visible[1] - visible[0]) // columns)
    inside = [b for b in bands if b.end > drawn[0] and b.start < drawn[1] and b.end - b.start >= least]
    if len(inside) > budget:
        keep = sorted(inside, key=lambda b: b.start - b.end)[:budget]
        inside = sorted(keep, key=lambda b: b.start)
    return inside


def _slots(
    index: TimelineIndex, lanes: list[LaneIndex], theme: Theme
) -> tuple[dict[str, Slot], dict[str, Any]]:
    slots: dict[str, Slot] = {}
    labels: list[str] = []
    top = 0.0
    rows: list[tuple[str, str, float]] = []
    if index.layers:
        rows.append(("layer", "Layer", _BAND))
    if index.phases:
        rows.append(("phase", "Phase", _BAND))
    rows += [(lane.track, lane.label, _STACK if lane.rows > 1 else _LANE) for lane in lanes]
    for key, label, height in rows:
        slots[key] = Slot(top, height)
        labels.append(label)
        top += height + (0.06 if key == "layer" else _GAP)
    axis = {
        "range": [top, -0.1],
        "tickmode": "array",
        "tickvals": [slot.middle for slot in slots.values()],
        "ticktext": labels,
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "tickfont": {"size": 13, "color": theme.text},
        "ticklabelstandoff": 6,
    }
    return slots, axis


def base_layout(index: TimelineIndex, view: View) -> dict[str, Any]:
    """What every figure over time shares."""
    start, end = view.visible(index)
    theme = view.theme
    return {
        "barmode": "overlay",
        "bargap": 0,
        "margin": {"l": 150, "r": 16, "t": 8, "b": 46},
        "paper_bgcolor": theme.paper,
        "plot_bgcolor": theme.paper,
        "font": {"family": FONT, "size": 12, "color": theme.text},
        "hovermode": "closest",
        "hoverdistance": 3,
        "hoverlabel": {
            "align": "left",
            "bgcolor": theme.panel,
            "bordercolor": theme.muted,
            "font": {"color": theme.text, "family": FONT, "size": 12},
            "namelength": -1,
        },
        "dragmode": "select" if view.measuring else "zoom",
        "selectdirection": "h",
        "showlegend": False,
        "uirevision": "step",
        "xaxis": {
            "range": [float(microseconds(start)), float(microseconds(end))],
            "title": {"text": "time in the step (µs)", "standoff": 8},
            "gridcolor": theme.grid,
            "zeroline": False,
            "tickformat": ",",
            "exponentformat": "none",
            "linecolor": theme.grid,
            "showline": True,
            "minallowed": float(microseconds(index.start - (index.end - index.start) // 50)),
            "maxallowed": float(microseconds(index.end + (index.end - index.start) // 50 + 1)),
        },
    }


def bandwidth_traces(
    index: TimelineIndex, view: View, axis: str, bins: int | None = None
) -> list[dict[str, Any]]:
    """Read and write bandwidth as steps, in GB/s."""
    visible = view.visible(index)
    drawn = _with_margin(index, view, visible)
    if bins is None:
        bins = int(view.columns // 2 * (drawn[1] - drawn[0]) / (visible[1] - visible[0]))
    traces: list[dict[str, Any]] = []
    curves = (("HBM read", index.read, "transfer"), ("HBM write", index.written, "write"))
    for name, curve, colour in curves:
        if len(curve.time) == 0:
            continue
        edges, rate = curve.rate(*drawn, bins)
        width = text.duration((drawn[1] - drawn[0]) / len(rate))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": microseconds(edges),
                "y": np.append(rate, rate[-1]) / 1e9,
                "line": {"shape": "hv", "width": 1, "color": view.theme.colours[colour]},
                "fill": "tozeroy",
                "yaxis": axis,
                "hovertemplate": f"{name}: %{{y:,.0f}} GB/s<br>mean over {width}"
                " at %{x:,.3f} µs<extra></extra>",
                "showlegend": False,
            }
        )
    return traces


def bandwidth_axis(
    index: TimelineIndex, view: View, axis: str
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """(y axis, reference lines, their labels) of a bandwidth panel."""
    theme = view.theme
    top = max([x for x in (view.peak, view.achievable) if x], default=0.0)
    if not top:
        top = max(float(c.rate(index.start, index.end, 200)[1].max()) for c in (index.read, index.written))
    spec: dict[str, Any] = {
        "title": {"text": "HBM (GB/s)", "standoff": 6},
        "range": [0, 1.22 * top / 1e9 or 1.0],
        "fixedrange": True,
        "gridcolor": theme.grid,
        "zeroline": False,
        "tickformat": ",",
        "nticks": 5,
        "ticklabelstandoff": 4,
    }
    shapes, notes = [], []
    lines = (("peak", view.peak, "solid"), ("achievable", view.achievable, "dot"))
    for label, value, dash in lines:
        if not value:
            continue
        colour = theme.colours[label]
        line = {"color": colour, "width": 1.2, "dash": dash}
        where = {"xref": "x domain", "yref": axis, "y0": value / 1e9, "y1": value / 1e9}
        shapes.append({"type": "line", "x0": 0, "x1": 1, "line": line, **where})
        notes.append(
            {
                "xref": "x domain",
                "yref": axis,
                "x": 1,
                "y": value / 1e9,
                "text": f"{label} {text.rate(value)}",
                "showarrow": False,
                "xanchor": "right",
                "yanchor": "bottom" if label == "peak" else "top",
                "font": {"size": 11, "color": theme.text},
            }
        )
    if len(index.read.time) == 0 and len(index.written.time) == 0:
        words = "this capture shows no HBM transfers"
        notes.append(
            {
                "xref": "x domain",
                "yref": f"{axis} domain",
                "x": 0.5,
                "y": 0.5,
                "text": words,
                "showarrow": False,
            }
        )
    return spec, shapes, notes
