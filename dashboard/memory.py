"""VMEM: what the compiler placed there, and how many bytes are on their way into it over time."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from dashboard import text
from dashboard.curves import in_flight
from dashboard.index import TimelineIndex
from dashboard.marks import MICROSECOND, microseconds
from dashboard.palette import Theme
from dashboard.panels import FONT
from dashboard.summary import words_spec

_DATA = re.compile(r"const DATA\s*=\s*")
POINTS = 1500


def allocations(report: Path | None, program: str) -> list[tuple[str, str, int]]:
    """(tag, shape, bytes) of each allocation of a program, from the compiler's VMEM report, largest first.

    Empty where there is no report or it does not name the program.
    """
    if report is None:
        return []
    try:
        page = report.read_text(errors="replace")
        found = _DATA.search(page)
        data = json.JSONDecoder().raw_decode(page, found.end())[0] if found else {}
        blocks = data["hlo_breakdowns"][program]["blocks"]
        out = [
            (str(a.get("tag", "")), str(a.get("shape", "")), int(a["size"]))
            for block in blocks
            for a in block["allocations"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return sorted(out, key=lambda a: -a[2])


def map_spec(found: list[tuple[str, str, int]], capacity: int | None, theme: Theme) -> dict[str, Any]:
    """The allocations stacked in one bar, against the capacity, in MiB."""
    if not found:
        return words_spec("The dump has no VMEM report for this program", theme)
    mebi = 1 << 20
    fills = (
        theme.colours["transfer"],
        theme.colours["write"],
        theme.colours["vector"],
        theme.colours["collective"],
    )
    used = sum(size for _, _, size in found)
    shown, rest = found[:30], found[30:]
    entries = [(text.plain(f"{shape or tag}", 40), text.plain(tag, 60), size) for tag, shape, size in shown]
    if rest:
        entries.append((f"{len(rest)} more", "", sum(s for _, _, s in rest)))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": ["VMEM"],
            "x": [size / mebi],
            "name": label,
            "marker": {"color": fills[i % len(fills)], "line": {"width": 1, "color": theme.paper}},
            "text": [label if size > 0.12 * (capacity or used) else ""],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "constraintext": "none",
            "hovertemplate": f"{label}<br>{tag}<br>{text.size(size)}<extra></extra>",
        }
        for i, (label, tag, size) in enumerate(entries)
    ]
    top = (capacity or used) / mebi
    return {
        "data": data,
        "layout": {
            "barmode": "stack",
            "showlegend": False,
            "dragmode": False,
            "paper_bgcolor": theme.paper,
            "plot_bgcolor": theme.panel,
            "font": {"family": FONT, "size": 12, "color": theme.text},
            "margin": {"l": 8, "r": 16, "t": 4, "b": 40},
            "hoverlabel": {"bgcolor": theme.panel, "font": {"color": theme.text}, "align": "left"},
            "yaxis": {"visible": False, "fixedrange": True},
            "xaxis": {
                "range": [0, top],
                "fixedrange": True,
                "gridcolor": theme.grid,
                "title": {
                    "text": f"VMEM of one core (MiB){'' if capacity else ', capacity unknown'}",
                    "standoff": 4,
                },
            },
        },
    }


def outstanding(index: TimelineIndex) -> tuple[np.ndarray, np.ndarray]:
    """(times in ps, bytes of HBM reads issued and not yet arrived from then on)."""
    lane = index.lane("hbm_read")
    if lane is None or len(lane.all) == 0:
        return np.empty(0), np.empty(0)
    marks = lane.all
    issued = index.timeline["issued_ps"].iloc[marks.row]
    known = issued.notna().to_numpy()
    begun = np.where(known, issued.fillna(0).to_numpy(np.int64), marks.start)
    return in_flight(marks.bytes, np.minimum(begun, marks.start), marks.end)


def thin(time: np.ndarray, value: np.ndarray, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """At most about 2 x `points` points of a step curve: the least and the greatest of each stretch."""
    if len(time) <= 2 * points:
        return time, value
    edges = np.linspace(0, len(time), points + 1).astype(int)[:-1]
    low, high = np.minimum.reduceat(value, edges), np.maximum.reduceat(value, edges)
    times = np.repeat(time[edges], 2)
    return times, np.stack((high, low), axis=1).ravel()


def outstanding_spec(index: TimelineIndex, theme: Theme) -> dict[str, Any]:
    """Bytes on their way from HBM into VMEM over the step, in MiB."""
    time, value = thin(*outstanding(index))
    if len(time) == 0:
        return words_spec("No transfer from HBM is known in this capture", theme)
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "x": microseconds(time),
                "y": value / (1 << 20),
                "line": {"shape": "hv", "width": 1, "color": theme.colours["transfer"]},
                "fill": "tozeroy",
                "hovertemplate": "%{y:.2f} MiB outstanding at %{x:,.2f} µs<extra></extra>",
            }
        ],
        "layout": {
            "paper_bgcolor": theme.paper,
            "plot_bgcolor": theme.paper,
            "showlegend": False,
            "font": {"family": FONT, "size": 12, "color": theme.text},
            "margin": {"l": 60, "r": 16, "t": 6, "b": 42},
            "hoverlabel": {"bgcolor": theme.panel, "font": {"color": theme.text}},
            "xaxis": {
                "title": {"text": "time in the step (µs)", "standoff": 4},
                "gridcolor": theme.grid,
                "zeroline": False,
                "range": [index.start / MICROSECOND, index.end / MICROSECOND],
            },
            "yaxis": {
                "title": {"text": "outstanding (MiB)"},
                "gridcolor": theme.grid,
                "rangemode": "tozero",
                "fixedrange": True,
            },
        },
    }
