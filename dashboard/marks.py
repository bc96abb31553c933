"""Bars from marks: where each is drawn, and what its hover says."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dashboard import text
from dashboard.index import Band
from dashboard.lanes import LaneIndex, Marks
from dashboard.palette import Theme

MICROSECOND = 1e6  # in ps
LEAST_HEIGHT = 0.18  # of a row: a merged mark that is nearly idle is still seen
CHARACTER = 7.0  # width of a label character in columns


@dataclass(frozen=True, slots=True)
class Slot:
    """Vertical place of a lane: y grows downwards, `top` to `top + height` in lane units."""

    top: float
    height: float

    @property
    def middle(self) -> float:
        """Where the label goes."""
        return self.top + self.height / 2


def microseconds(picoseconds: np.ndarray | int) -> np.ndarray:
    """Picoseconds as float64 microseconds, the unit of every time axis."""
    return np.asarray(picoseconds, np.float64) / MICROSECOND


def bar(
    name: str,
    marks_start: np.ndarray,
    marks_length: np.ndarray,
    top: np.ndarray,
    height: np.ndarray,
    hover: list[str],
    marker: dict[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """A horizontal bar trace of rectangles; starts and lengths in ps, tops and heights in lane units."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "base": microseconds(marks_start),
        "x": microseconds(marks_length),
        "y": np.asarray(top, np.float64),
        "offset": 0,
        "width": np.asarray(height, np.float64),
        "hovertext": hover,
        "hoverinfo": "text",
        "marker": {"line": {"width": 0}, **marker},
        **more,
    }


def lane_trace(
    lane: LaneIndex, marks: Marks, timeline: pd.DataFrame, slot: Slot, theme: Theme, resolution: int
) -> dict[str, Any]:
    """The marks of one lane.

    A merged mark is as tall as the share of its extent in which the lane was busy, so that area is time.
    Nothing is drawn narrower than one column; the hover gives the true duration.
    """
    extent = np.maximum(marks.end - marks.start, 1)
    share = np.clip(marks.busy / extent, LEAST_HEIGHT, 1.0)
    share = np.where(marks.count > 1, share, 1.0)
    row_height = slot.height / lane.rows
    row = marks.queue.astype(np.float64) % lane.rows
    height = row_height * share * (0.92 if lane.rows > 1 else 1.0)
    bottom = slot.top + (row + 1) * row_height
    facts = timeline[["name", "layer", "phase", "source", "issued_ps", "span"]].iloc[marks.row]
    names = [text.shorten(n, 60) for n in facts["name"]]
    labels = _labels(names, marks, resolution) if lane.rows == 1 else None
    return bar(
        lane.label,
        marks.start,
        np.maximum(extent, resolution),
        bottom - height,
        height,
        _hover(lane, marks, facts, names),
        {"color": theme.colours[lane.colour]},
        customdata=np.where(marks.count == 1, facts["span"].to_numpy(np.int64), -1),
        legendgroup=lane.colour,
        **labels_of(labels),
    )


def labels_of(labels: list[str] | None) -> dict[str, Any]:
    """Trace settings that write `labels` inside their bars without ever scaling or turning them."""
    if not labels or not any(labels):
        return {}
    return {
        "text": labels,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "constraintext": "none",
        "textangle": 0,
        "textfont": {"size": 11},
    }


def _labels(names: list[str], marks: Marks, resolution: int) -> list[str]:
    columns = (marks.end - marks.start) / max(1, resolution)
    room = columns / CHARACTER - 1
    return [
        text.plain(name) if single and len(name) <= space else ""
        for name, single, space in zip(names, marks.count == 1, room, strict=True)
    ]


def _hover(lane: LaneIndex, marks: Marks, facts: pd.DataFrame, names: list[str]) -> list[str]:
    layers = facts["layer"].astype("Int64").astype(object).tolist()
    issued = facts["issued_ps"].astype("Int64").astype(object).tolist()
    rows = zip(
        names,
        marks.start.tolist(),
        marks.end.tolist(),
        marks.busy.tolist(),
        marks.bytes.tolist(),
        marks.known.tolist(),
        marks.count.tolist(),
        marks.bundle_first.tolist(),
        marks.bundle_last.tolist(),
        layers,
        facts["phase"].tolist(),
        facts["source"].tolist(),
        issued,
        strict=True,
    )
    moves = lane.track in ("hbm_read", "hbm_write", "vmem_copy", "ici_send", "ici_recv")
    out = []
    for name, start, end, busy, size, known, count, first, last, layer, phase, source, issue in rows:
        lines = [f"<b>{text.plain(name) or 'unnamed'}</b> · {lane.label}"]
        if count > 1:
            lines[0] = f"<b>{count:,} spans</b> · {lane.label}<br>longest: {text.plain(name) or 'unnamed'}"
        if moves:
            lines.append(_bytes(size, known, count, busy))
        span = f"{text.duration(busy)} (from {start / MICROSECOND:,.3f} to {end / MICROSECOND:,.3f} µs)"
        lines.append(f"busy {span}" if count > 1 else span)
        if count == 1 and not pd.isna(issue) and start > issue:
            lines.append(f"issued {text.duration(start - issue)} before its bytes moved")
        place = [f"layer {layer}"] if not pd.isna(layer) else []
        place += [text.plain(phase)] if phase else []
        if place and count == 1:
            lines.append(" · ".join(place))
        where = f"{text.plain(_tail(source))}" if source else f"source {text.UNKNOWN}"
        lines.append(f"{where} · bundles {text.bundles(first if first >= 0 else None, last)}")
        out.append("<br>".join(lines))
    return out


def _bytes(size: int, known: int, count: int, busy: int) -> str:
    if known == 0:
        return f"bytes {text.UNKNOWN}"
    line = text.size(size)
    if known < count:
        return f"{line} in {known:,} of {count:,} copies; the rest {text.UNKNOWN}"
    return f"{line} at {text.rate(size / (busy * 1e-12))}" if busy else line


def _tail(source: str) -> str:
    """The last 48 characters of a `file:line`: the end is what tells places apart."""
    shown = text.shorten(source, 400)
    return shown if len(shown) <= 48 else "…" + shown[-47:]


def band_trace(
    name: str, bands: list[Band], slot: Slot, theme: Theme, resolution: int, window: tuple[int, int]
) -> dict[str, Any]:
    """Layer or phase bands in alternating neutral fills, labelled where the label fits the visible part."""
    labels = []
    for band in bands:
        visible = min(band.end, window[1]) - max(band.start, window[0])
        room = visible / max(1, resolution) / CHARACTER - 1
        short = band.label.removeprefix("layer ")
        labels.append(next((text.plain(x) for x in (band.label, short) if len(x) <= room), ""))
    hover = [
        f"<b>{text.plain(b.label)}</b>"
        + (f" · layer {b.layer}" if b.layer is not None and not b.label.startswith("layer ") else "")
        + f"<br>{text.duration(b.end - b.start)}"
        f" (from {b.start / MICROSECOND:,.3f} to {b.end / MICROSECOND:,.3f} µs)"
        for b in bands
    ]
    start = np.array([b.start for b in bands], np.int64)
    end = np.array([b.end for b in bands], np.int64)
    # Drawn clipped to the window, so that the label sits in the middle of what is seen.
    low, high = np.maximum(start, window[0]), np.minimum(end, window[1])
    return bar(
        name,
        low,
        np.maximum(high - low, 0),
        np.full(len(bands), slot.top),
        np.full(len(bands), slot.height),
        hover,
        {
            "color": [
                theme.bands[(b.layer or 0) % 2 if name == "layer" else i % 2] for i, b in enumerate(bands)
            ],
            "line": {"width": 0.5, "color": theme.paper},
        },
        showlegend=False,
        **labels_of(labels),
    )
