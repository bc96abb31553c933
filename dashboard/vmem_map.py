"""The map of VMEM over time: which bytes of which buffer held what, as rectangles of address and time."""

from typing import Any

import numpy as np
import pandas as pd

from dashboard import text
from dashboard.lanes import Marks, merge
from dashboard.marks import MICROSECOND, bar
from dashboard.occupancy import MEBI, Occupancy, occupancy_traces
from dashboard.panels import FONT, Stretch, View, with_margin
from dashboard.summary import words_spec

SHAPES = 2500
NAMED = 6  # contents with a colour of their own; the others are grey
_FILLS = ("transfer", "matrix", "vector", "collective", "write", "bubble")


def places(stays: pd.DataFrame) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
    """(address in bytes of each stay, buffers as (name, first address, bytes) from low to high).

    The compiler's addresses are not known here: buffers are stacked by their size, the largest lowest.
    """
    first = stays.groupby("buffer")["offset_bytes"].min()
    last = (stays["offset_bytes"] + stays["bytes"]).groupby(stays["buffer"]).max()
    extent = (last - first).sort_values(ascending=False, kind="stable")
    start = extent.cumsum() - extent
    address = stays["buffer"].map(start - first).to_numpy(np.int64) + stays["offset_bytes"].to_numpy(np.int64)
    return address, [(str(name), int(start[name]), int(extent[name])) for name in extent.index]


def marks_of(stays: pd.DataFrame, address: np.ndarray, drawn: tuple[int, int], columns: int) -> Marks:
    """Stays that touch a window; those of one place are joined where they are shorter than a column."""
    start, end = stays["start_ps"].to_numpy(np.int64), stays["end_ps"].to_numpy(np.int64)
    inside = np.flatnonzero((end > drawn[0]) & (start < drawn[1]))
    size = stays["bytes"].to_numpy(np.int64)
    _, place = np.unique(np.stack((address, size)), axis=1, return_inverse=True)
    order = inside[np.lexsort((start[inside], place[inside]))]
    ones, none = np.ones(len(order), np.int64), np.full(len(order), -1, np.int32)
    length = np.maximum(end - start, 1)[order]
    marks = Marks(
        start=start[order],
        end=start[order] + length,
        busy=length,
        bytes=size[order],
        known=ones,
        count=ones,
        row=order,
        longest=length,
        queue=place[order].astype(np.int32),
        bundle_first=none,
        bundle_last=none,
    )
    resolution = max(1, (drawn[1] - drawn[0]) // columns)
    found = merge(marks, resolution)
    while len(found) > SHAPES and resolution < drawn[1] - drawn[0]:
        resolution *= 2
        found = merge(marks, resolution)
    return found


def vmem_spec(found: Occupancy | None, index: Stretch, view: View) -> dict[str, Any]:
    """The curve of bytes per buffer above the map of addresses, on one time axis."""
    if found is None:
        return words_spec("What lay in VMEM is not known for this capture", view.theme)
    visible = view.visible(index)
    drawn = with_margin(index, view, visible)
    stays = found.stays
    address, buffers = places(stays)
    marks = marks_of(stays, address, drawn, view.columns)
    names = stays["name"].astype(str)
    held = (stays["bytes"] * (stays["end_ps"] - stays["start_ps"])).groupby(names).sum()
    ranked = held.sort_values(ascending=False, kind="stable").index.tolist()
    owner = names.to_numpy()[marks.row]
    data = occupancy_traces(found, index, view, "y2")
    for rank, name in enumerate(ranked[:NAMED]):
        part = marks.take(owner == name)
        data.append(_trace(text.plain(name, 30), part, stays, address, view.theme.colours[_FILLS[rank]]))
    rest = marks.take(~np.isin(owner, ranked[:NAMED]))
    if len(rest):
        data.append(_trace("others", rest, stays, address, view.theme.colours["wait"]))
    return {"data": data, "layout": _layout(found, buffers, index, view)}


def _trace(name: str, marks: Marks, stays: pd.DataFrame, address: np.ndarray, colour: str) -> dict[str, Any]:
    facts = stays.iloc[marks.row]
    columns = zip(
        facts["name"], facts["buffer"], facts["offset_bytes"], facts["bytes"], facts["used"], facts["source"],
        marks.start.tolist(), marks.end.tolist(), marks.count.tolist(), strict=True,
    )  # fmt: skip
    hover = []
    for what, buffer, offset, size, used, source, start, end, count in columns:
        many = "" if count == 1 else f"{count:,} stays, longest: "
        span = f"{text.duration(end - start)} ({start / MICROSECOND:,.3f} to {end / MICROSECOND:,.3f} µs)"
        where = text.plain(text.place(source)) or text.UNKNOWN
        hover.append(
            f"{many}<b>{text.plain(what)}</b><br>{text.size(size)} in {text.plain(buffer)} at {offset:#x}"
            f"<br>{span}{'' if used else '<br>nothing used it'}<br>copied at {where}"
        )
    trace = bar(
        name,
        start=marks.start,
        length=marks.end - marks.start,
        top=address[marks.row] / MEBI,
        height=facts["bytes"].to_numpy(np.float64) / MEBI,
        hover=hover,
        marker={"color": colour, "opacity": 0.85},
    )
    return {**trace, "showlegend": True}


def _layout(
    found: Occupancy, buffers: list[tuple[str, int, int]], index: Stretch, view: View
) -> dict[str, Any]:
    theme = view.theme
    start, end = view.visible(index)
    total = max(sum(size for _, _, size in buffers), 1) / MEBI
    large = [b for b in buffers if b[2] / MEBI > total / 14]
    lines = [
        {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "y0": at / MEBI, "y1": at / MEBI,
         "line": {"color": theme.grid, "width": 1}}
        for _, at, _ in large
    ]  # fmt: skip
    notes = [
        {"xref": "x domain", "x": 1, "xanchor": "right", "y": (at + size / 2) / MEBI, "showarrow": False,
         "text": text.plain(name, 24), "bgcolor": theme.paper, "opacity": 0.85,
         "font": {"size": 11, "color": theme.text}}
        for name, at, size in large
    ]  # fmt: skip
    top = max(found.capacity or 0, sum(b.bytes for b in found.buffers)) / MEBI
    return {
        "barmode": "overlay",
        "bargap": 0,
        "paper_bgcolor": theme.paper,
        "plot_bgcolor": theme.paper,
        "font": {"family": FONT, "size": 12, "color": theme.text},
        "margin": {"l": 64, "r": 16, "t": 30, "b": 44},
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": theme.panel,
            "font": {"color": theme.text},
            "align": "left",
            "namelength": -1,
        },
        "dragmode": "zoom",
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "font": {"size": 11}},
        "shapes": lines,
        "annotations": notes,
        "uirevision": f"{start}:{end}",
        "xaxis": {
            "title": {"text": "time in the step (µs)", "standoff": 4},
            "range": [start / MICROSECOND, end / MICROSECOND],
            "gridcolor": theme.grid,
            "zeroline": False,
            "tickformat": ",",
            "anchor": "y",
        },
        "yaxis": {
            "title": {"text": "buffers stacked (MiB)", "standoff": 4},
            "range": [0, total],
            "domain": [0.0, 0.66],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis2": {
            "title": {"text": "held (MiB)", "standoff": 4},
            "range": [0, 1.05 * top],
            "domain": [0.72, 1.0],
            "fixedrange": True,
            "gridcolor": theme.grid,
            "zeroline": False,
        },
    }
