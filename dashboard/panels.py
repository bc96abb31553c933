"""What figures over time share: the view, the time axis, and the curves under the lanes."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dashboard import text
from dashboard.curves import Cumulative
from dashboard.marks import microseconds
from dashboard.palette import LIGHT, Theme

MAX_SHAPES = 5000
COLUMNS = 1024  # columns of the visible window; about the width of the plot in pixels
FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"


class Stretch(Protocol):
    """What has a time axis: the index of a core, or of all cores."""

    @property
    def start(self) -> int:
        """Begin of the step in ps."""

    @property
    def end(self) -> int:
        """End of the step in ps."""

    @property
    def read(self) -> Cumulative:
        """HBM bytes read over time."""

    @property
    def written(self) -> Cumulative:
        """HBM bytes written over time."""


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

    def visible(self, index: Stretch) -> tuple[int, int]:
        """The visible range, never empty."""
        start, end = self.window or (index.start, index.end)
        return (int(start), max(int(start) + 1, int(end)))


def with_margin(index: Stretch, view: View, visible: tuple[int, int]) -> tuple[int, int]:
    """The visible range and the margin beside it for which marks are sent too."""
    extra = int(view.margin * (visible[1] - visible[0]))
    start = max(visible[0] - extra, min(index.start, visible[0]))
    return start, max(start + 1, min(visible[1] + extra, max(index.end, visible[1])))


def base_layout(index: Stretch, view: View) -> dict[str, Any]:
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
    index: Stretch, view: View, axis: str, bins: int | None = None, suffix: str = ""
) -> list[dict[str, Any]]:
    """Read and write bandwidth as steps, in GB/s."""
    visible = view.visible(index)
    drawn = with_margin(index, view, visible)
    if bins is None:
        bins = int(view.columns // 2 * (drawn[1] - drawn[0]) / (visible[1] - visible[0]))
    traces: list[dict[str, Any]] = []
    curves = ((f"HBM read{suffix}", index.read, "transfer"), (f"HBM write{suffix}", index.written, "write"))
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
    index: Stretch, view: View, axis: str
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """(y axis, reference lines, their labels) of a bandwidth panel."""
    theme = view.theme
    top = max([x for x in (view.peak, view.achievable) if x], default=0.0)
    if not top:
        top = max(float(c.rate(index.start, index.end, 200)[1].max()) for c in (index.read, index.written))
    spec: dict[str, Any] = {
        "title": {"text": "HBM (GB/s)", "standoff": 6, "font": {"size": 12}},
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
                "bgcolor": theme.paper,
                "opacity": 0.85,
                "borderpad": 1,
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
