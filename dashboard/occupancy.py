"""VMEM of one core over time: how many bytes of which buffers, as a curve under the lanes and as a map.

From the table of stays (analyzer/residency.py): what copies brought, until its last use. What the program
computes into VMEM is not in it, so a curve is a lower bound.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dashboard import text
from dashboard.curves import Cumulative
from dashboard.marks import microseconds
from dashboard.panels import Stretch, View, with_margin

SHOWN = 5  # buffers with a curve of their own; the others share one
_FILLS = ("transfer", "matrix", "vector", "collective", "write", "wait")
MEBI = 1 << 20


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer (or several small ones together) in time.

    Attributes:
        name: of the buffer in the program; label: with what lay in it; both may be hostile.
        bytes: extent of what lay in it.
        held: bytes x ps that lay in it until each time.
    """

    name: str
    label: str
    bytes: int
    held: Cumulative

    def mean(self, edges: np.ndarray) -> np.ndarray:
        """Mean bytes between each two edges (ps)."""
        return np.diff(self.held.at(edges)) / np.diff(edges)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What lay in the VMEM of one core. stays: its rows of the table. capacity: None if unknown."""

    stays: pd.DataFrame
    buffers: tuple[Buffer, ...]
    capacity: int | None


def build_occupancy(stays: pd.DataFrame, core: int, capacity: int | None) -> Occupancy | None:
    """The stays of one core, the buffers that hold most first; None where nothing is known."""
    own = stays[(stays["core"] == core).to_numpy(bool)] if len(stays) else stays
    if len(own) == 0:
        return None
    parts = [_buffer(str(name), rows) for name, rows in own.groupby("buffer", sort=False)]
    parts.sort(key=lambda b: -b.bytes)
    shown, rest = parts[:SHOWN], parts[SHOWN:]
    if len(rest) == 1:
        shown += rest
    elif rest:
        among = own[own["buffer"].isin([b.name for b in rest])]
        label = f"{len(rest)} smaller buffers: {', '.join(dict.fromkeys(str(n) for n in among['name']))}"
        shown.append(Buffer("others", label, sum(b.bytes for b in rest), _held(among)))
    return Occupancy(own.reset_index(drop=True), tuple(shown), capacity)


def _buffer(name: str, rows: pd.DataFrame) -> Buffer:
    extent = int((rows["offset_bytes"] + rows["bytes"]).max() - rows["offset_bytes"].min())
    return Buffer(
        name, f"{name}: {', '.join(dict.fromkeys(str(n) for n in rows['name']))}", extent, _held(rows)
    )


def _held(rows: pd.DataFrame) -> Cumulative:
    size = rows["bytes"].to_numpy(np.float64)
    edges = np.concatenate((rows["start_ps"].to_numpy(np.int64), rows["end_ps"].to_numpy(np.int64)))
    time, where = np.unique(edges, return_inverse=True)
    level = np.cumsum(np.bincount(where, weights=np.concatenate((size, -size)), minlength=len(time)))
    return Cumulative(time, np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(time)))))


def occupancy_traces(found: Occupancy, index: Stretch, view: View, axis: str) -> list[dict[str, Any]]:
    """Mean bytes per column of time, one stacked curve per buffer, in MiB."""
    visible = view.visible(index)
    drawn = with_margin(index, view, visible)
    wanted = int(view.columns // 2 * (drawn[1] - drawn[0]) / (visible[1] - visible[0]))
    edges = np.linspace(drawn[0], drawn[1], max(1, min(wanted, drawn[1] - drawn[0])) + 1)
    out = []
    for buffer, fill in zip(found.buffers, _FILLS, strict=False):
        held = buffer.mean(edges) / MEBI
        label = text.plain(buffer.label, 70)
        out.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "x": microseconds(edges),
                "y": np.append(held, held[-1]).astype(np.float32),
                "stackgroup": "vmem",
                "line": {"shape": "hv", "width": 0.5, "color": view.theme.colours[fill]},
                "yaxis": axis,
                "hovertemplate": f"{label}<br>%{{y:.2f}} MiB of {text.size(buffer.bytes)}"
                " at %{x:,.3f} µs<extra></extra>",
                "showlegend": False,
            }
        )
    return out


def occupancy_axis(found: Occupancy, view: View, axis: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(y axis, labels) of the curve: up to the capacity, or to the most there can be."""
    theme = view.theme
    most = sum(b.bytes for b in found.buffers)
    top = max(found.capacity or 0, most) / MEBI
    spec = {
        "title": {"text": "VMEM (MiB)", "standoff": 6, "font": {"size": 12}},
        "range": [0, 1.08 * top or 1.0],
        "fixedrange": True,
        "gridcolor": theme.grid,
        "zeroline": False,
        "nticks": 4,
        "ticklabelstandoff": 4,
    }
    words = " · ".join(text.plain(b.label, 44) for b in found.buffers[:3])
    note = {
        "xref": "x domain", "yref": f"{axis} domain", "x": 0, "y": 1, "xanchor": "left", "yanchor": "top",
        "text": f"copied data until its last use: {words}", "showarrow": False,
        "font": {"size": 11, "color": theme.text}, "bgcolor": theme.paper, "opacity": 0.85,
    }  # fmt: skip
    return spec, [note]
