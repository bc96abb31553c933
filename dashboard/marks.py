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
MOVING = frozenset(("hbm_read", "hbm_write", "vmem_copy", "ici_send", "ici_recv"))
LEAST_HEIGHT = 0.18  # of a row: a merged mark that is nearly idle is still seen
CHARACTER = 7.0  # width of a label character in columns
# Text on a fill, readable in both themes because the fills differ little between them.
INK = {
    "transfer": "#ffffff",
    "write": "#10202c",
    "matrix": "#241a00",
    "vector": "#00170f",
    "collective": "#2b0f1f",
    "wait": "#10151a",
    "scalar": "#1c170a",
    "bubble": "#240c00",
}


@dataclass(frozen=True, slots=True)
class Slot:
    """Vertical place of a lane: y grows downwards, `top` to `top + height` in lane units."""

    top: float
    height: float

    @property
    def middle(self) -> float:
        """Where the label goes."""
        return self.top + self.height / 2


@dataclass(frozen=True, slots=True)
class Label:
    """A text centred at (`at` ps, `y`)."""

    at: int
    y: float
    text: str
    colour: str


@dataclass(frozen=True, slots=True)
class Canvas:
    """What every trace of a figure needs to know.

    Attributes:
        visible: range on screen in ps. drawn: range for which there are marks, at least the visible one.
        resolution: width of one column in ps.
    """

    theme: Theme
    visible: tuple[int, int]
    drawn: tuple[int, int]
    resolution: int

    def label(self, extent: tuple[int, int], texts: tuple[str, ...], y: float, colour: str) -> Label | None:
        """The first of `texts` that fits into the visible part of `extent`, centred there."""
        low, high = max(extent[0], self.visible[0]), min(extent[1], self.visible[1])
        room = (high - low) / max(1, self.resolution) / CHARACTER - 1
        fitting = next((x for x in texts if 0 < len(x) <= room), None)
        return Label((low + high) // 2, y, fitting, colour) if fitting else None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A trace, and the labels to write over it."""

    trace: dict[str, Any]
    labels: list[Label]


def microseconds(picoseconds: np.ndarray | int) -> np.ndarray:
    """Picoseconds as float64 microseconds, the unit of every time axis."""
    return np.asarray(picoseconds, np.float64) / MICROSECOND


def bar(
    name: str,
    *,
    start: np.ndarray,
    length: np.ndarray,
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
        "base": microseconds(start),
        "x": microseconds(length),
        "y": np.asarray(top, np.float64),
        "offset": 0,
        "width": np.asarray(height, np.float64),
        "hovertext": hover,
        "hoverinfo": "text",
        "selected": {"marker": {"opacity": 1}},
        "unselected": {"marker": {"opacity": 1}},
        "marker": {"line": {"width": 0}, **marker},
        **more,
    }


def lane_trace(lane: LaneIndex, marks: Marks, timeline: pd.DataFrame, slot: Slot, canvas: Canvas) -> Drawn:
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
    facts = timeline.iloc[marks.row]
    names = [text.shorten(n, 60) for n in facts["name"]]
    # Back-to-back copies would look like one: a hairline parts marks that are wide enough for it.
    apart = np.where((marks.count == 1) & (extent >= 4 * canvas.resolution), 0.6, 0.0)
    trace = bar(
        lane.label,
        start=marks.start,
        length=np.maximum(extent, canvas.resolution),
        top=bottom - height,
        height=height,
        hover=hover_texts(lane.label, lane.track in MOVING, marks, facts, names),
        marker={
            "color": canvas.theme.colours[lane.colour],
            "line": {"width": apart, "color": canvas.theme.paper},
        },
        customdata=np.where(marks.count == 1, facts["span"].to_numpy(np.int64), -1),
        legendgroup=lane.colour,
    )
    labels: list[Label] = []
    if lane.rows == 1:
        ink = INK[lane.colour]
        single = marks.count == 1
        candidates = np.flatnonzero(single & (extent > 4 * CHARACTER * canvas.resolution))
        for k in candidates.tolist():
            label = canvas.label((int(marks.start[k]), int(marks.end[k])), (names[k],), slot.middle, ink)
            if label:
                labels.append(label)
    return Drawn(trace, labels)


def label_trace(labels: list[Label]) -> dict[str, Any]:
    """All labels as one text trace, without hover of its own."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": microseconds(np.array([x.at for x in labels], np.int64)),
        "y": np.array([x.y for x in labels], np.float64),
        "text": [text.plain(x.text) for x in labels],
        "textfont": {"size": 11, "color": [x.colour for x in labels]},
        "hoverinfo": "skip",
        "showlegend": False,
        "name": "labels",
    }


def hover_texts(
    where: str | list[str], moves: bool, marks: Marks, facts: pd.DataFrame, names: list[str]
) -> list[str]:
    """What hovering over each mark says.

    Args:
        where: the lane, or one text for each mark.
        moves: whether the spans move bytes.
        marks: the marks. facts: the row of the longest span of each. names: their names.
    """
    layers = facts["layer"].astype("Int64").astype(object).tolist()
    issued = facts["issued_ps"].astype("Int64").astype(object).tolist()
    places = where if isinstance(where, list) else [where] * len(marks)
    rows = zip(
        places,
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
        facts["queue"].tolist(),
        strict=True,
    )
    out = []
    for row in rows:
        lane, name, start, end, busy, size, known, count, first, last, layer, phase, source, issue, peer = row
        lines = [f"<b>{text.plain(name) or 'unnamed'}</b> · {lane}"]
        if count > 1:
            lines[0] = f"<b>{count:,} spans</b> · {lane}<br>longest: {text.plain(name) or 'unnamed'}"
        if moves:
            lines.append(_bytes(size, known, count, busy))
        span = f"{text.duration(busy)} (from {start / MICROSECOND:,.3f} to {end / MICROSECOND:,.3f} µs)"
        lines.append(f"busy {span}" if count > 1 else span)
        if count == 1 and not pd.isna(issue) and start > issue:
            lines.append(f"issued {text.duration(start - issue)} before its bytes moved")
        place = [f"layer {layer}"] if not pd.isna(layer) else []
        place += [text.plain(phase)] if phase else []
        if count == 1 and str(peer).startswith("ici:"):
            place.append(f"peer: core {text.plain(peer[4:])}")
        if place and count == 1:
            lines.append(" · ".join(place))
        where = f"{text.plain(text.place(source))}" if source else f"source {text.UNKNOWN}"
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


def band_trace(name: str, bands: list[Band], slot: Slot, canvas: Canvas) -> Drawn:
    """Layer or phase bands in alternating neutral fills, labelled where the label fits the visible part."""
    labels = []
    for band in bands:
        texts = (band.label, band.label.removeprefix("layer "), band.label.rsplit("/", 1)[-1])
        label = canvas.label((band.start, band.end), texts, slot.middle, canvas.theme.text)
        if label:
            labels.append(label)
    hover = [
        f"<b>{text.plain(b.label)}</b>"
        + (f" · layer {b.layer}" if b.layer is not None and not b.label.startswith("layer ") else "")
        + f"<br>{text.duration(b.end - b.start)}"
        f" (from {b.start / MICROSECOND:,.3f} to {b.end / MICROSECOND:,.3f} µs)"
        for b in bands
    ]
    start = np.array([b.start for b in bands], np.int64)
    end = np.array([b.end for b in bands], np.int64)
    fills = [(b.layer or 0) % 2 if name == "layer" else i % 2 for i, b in enumerate(bands)]
    trace = bar(
        name,
        start=start,
        length=end - start,
        top=np.full(len(bands), slot.top),
        height=np.full(len(bands), slot.height),
        hover=hover,
        marker={
            "color": [canvas.theme.bands[fill] for fill in fills],
            "line": {"width": 0.5, "color": canvas.theme.paper},
        },
        showlegend=False,
    )
    return Drawn(trace, labels)
