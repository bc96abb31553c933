"""Figures of a timeline: pure functions from tables to Plotly figures.

`timeline_figure` and `bandwidth_figure` draw one thing each; `step_spec` draws both over one time axis, as
plain dictionaries with numpy arrays, which the dashboard sends without Plotly's per-value validation.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dashboard.bubbles import bubble_marks, bubble_trace
from dashboard.index import Band, TimelineIndex, build_index
from dashboard.lanes import LaneIndex, Marks, merge, resolution_for
from dashboard.marks import Canvas, Slot, band_trace, label_trace, lane_trace
from dashboard.occupancy import Occupancy, occupancy_axis, occupancy_traces
from dashboard.palette import LIGHT, Theme
from dashboard.panels import (
    COLUMNS,
    MAX_SHAPES,
    View,
    bandwidth_axis,
    bandwidth_traces,
    base_layout,
    with_margin,
)
from dashboard.relations import overlay, relation

if TYPE_CHECKING:
    import plotly.graph_objects as go

_BAND, _LANE, _STACK, _GAP = 0.7, 1.0, 1.5, 0.28


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
    traces, slots, bottom = lane_traces(index, view, bubbles)
    layout = base_layout(index, view)
    rows = [(slot.middle, _label(index, key)) for key, slot in slots.items()]
    layout["yaxis"] = lane_axis(rows, bottom, theme)
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


def step_spec(
    index: TimelineIndex,
    view: View,
    bubbles: pd.DataFrame | None = None,
    occupancy: Occupancy | None = None,
    beside: TimelineIndex | None = None,
) -> dict[str, Any]:
    """Lanes above, HBM bandwidth and VMEM below, one time axis: {"data", "layout"} with numpy arrays.

    Args:
        index: the core to draw.
        view: window, colours, limits.
        bubbles: its HBM bubbles.
        occupancy: what lay in its VMEM; without it that curve is left out.
        beside: another account of the same step, drawn below (measured above modelled).
    """
    layout = base_layout(index, view)
    groups = [index] if beside is None else [index, beside]
    each = view if beside is None else replace(view, max_shapes=view.max_shapes // 2)
    traces: list[dict[str, Any]] = []
    rows: list[tuple[float, str]] = []
    places: list[dict[str, Slot]] = []
    top = 0.0
    for number, one in enumerate(groups):
        banded = bool(one.layers or one.phases)
        top += 0.0 if beside is None or banded else 0.6
        begin = top
        part, slots, top = lane_traces(one, each, None if number else bubbles, top)
        # What is tied to a chosen span is looked up in the first account: spans of the other are not chosen.
        traces += [_unchosen(trace) for trace in part] if number else part
        places.append(slots)
        if beside is None:
            rows += [(slot.middle, _label(one, key)) for key, slot in slots.items()]
        else:  # too tight for labels of the bands: whose they are stands there instead
            title = f"<b>{'model' if number else 'trace'}</b> ({_account(one)})"
            rows.append((begin + (0.5 if banded else -0.3), title))
            rows += [(slot.middle, _label(one, k)) for k, slot in slots.items() if one.lane(k)]
            top += 0.3
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    if view.selected is not None:
        shapes, notes = _selected(index, view, places[0])
    panels = 1 if occupancy is None else 2
    height, gap = (0.25, 0.05) if panels == 1 else (0.17, 0.04)
    layout["yaxis"] = {**lane_axis(rows, top, view.theme), "domain": [panels * (height + gap), 1.0]}
    rate_axis, lines, words = bandwidth_axis(_rated(groups), view, "y2")
    low = (panels - 1) * (height + gap)
    layout["yaxis2"] = {**rate_axis, "domain": [low, low + height]}
    for one in groups:
        traces += bandwidth_traces(
            one, view, "y2", suffix="" if beside is None else " (trace)" if one is index else " (model)"
        )
    shapes, notes = shapes + lines, notes + words
    if occupancy is not None:
        axis, words = occupancy_axis(occupancy, view, "y3")
        layout["yaxis3"] = {**axis, "domain": [0.0, height]}
        traces += occupancy_traces(occupancy, index, view, "y3")
        notes = notes + words
    layout["xaxis"]["anchor"] = "y2" if occupancy is None else "y3"
    layout["shapes"], layout["annotations"] = shapes, notes
    return {"data": traces, "layout": layout}


def _unchosen(trace: dict[str, Any]) -> dict[str, Any]:
    spans = trace.get("customdata")
    return trace if spans is None else {**trace, "customdata": np.full_like(spans, -1)}


def _account(index: TimelineIndex) -> str:
    return " and ".join(index.provenances) or "unknown"


def _rated(groups: list[TimelineIndex]) -> TimelineIndex:
    """The first of them that shows HBM transfers."""
    return next((g for g in groups if len(g.read.time) or len(g.written.time)), groups[0])


def _label(index: TimelineIndex, key: str) -> str:
    lane = index.lane(key)
    return key.capitalize() if lane is None else lane.label


def _selected(
    index: TimelineIndex, view: View, slots: dict[str, Slot]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    found = relation(index, view.selected) if view.selected is not None else None

    def place(row: dict[Any, Any]) -> tuple[float, float] | None:
        slot = slots.get(str(row["track"]))
        return None if slot is None else (slot.middle, 0.56)

    return overlay(found, place, view.theme) if found else ([], [])


def shape_count(data: list[dict[str, Any]]) -> int:
    """Rectangles in a list of traces."""
    return sum(len(trace["base"]) for trace in data if trace["type"] == "bar")


def lane_traces(
    index: TimelineIndex, view: View, bubbles: pd.DataFrame | None = None, top: float = 0.0
) -> tuple[list[dict[str, Any]], dict[str, Slot], float]:
    """(traces, place of each lane by its track, where they end) of the lanes of one core, from `top` down."""
    lanes = [lane for lane in index.lanes if lane.track not in view.hidden]
    visible = view.visible(index)
    drawn = with_margin(index, view, visible)
    slots, bottom = _slots(index, lanes, top)
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
    return traces, slots, bottom


LEGEND = {
    "transfer": "HBM → VMEM transfer",
    "write": "VMEM → HBM",
    "matrix": "matrix work",
    "vector": "vector work",
    "collective": "collective",
    "wait": "wait",
    "scalar": "scalar",
}


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


def _slots(index: TimelineIndex, lanes: list[LaneIndex], top: float) -> tuple[dict[str, Slot], float]:
    slots: dict[str, Slot] = {}
    rows: list[tuple[str, float]] = []
    if index.layers:
        rows.append(("layer", _BAND))
    if index.phases:
        rows.append(("phase", _BAND))
    rows += [(lane.track, _STACK if lane.rows > 1 else _LANE) for lane in lanes]
    for key, height in rows:
        slots[key] = Slot(top, height)
        top += height + (0.06 if key == "layer" else _GAP)
    return slots, top


def lane_axis(rows: list[tuple[float, str]], bottom: float, theme: Theme) -> dict[str, Any]:
    """The y axis of lanes: (middle, label) each, growing downwards to `bottom`."""
    return {
        "range": [bottom, -0.1],
        "tickmode": "array",
        "tickvals": [middle for middle, _ in rows],
        "ticktext": [label for _, label in rows],
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "tickfont": {"size": 13, "color": theme.text},
        "ticklabelstandoff": 6,
    }
