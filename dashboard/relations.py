"""What a span has to do with others: a copy with the wait it ended, a wait with the copy it waited for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyzer import intervals
from dashboard import text
from dashboard.curves import Cumulative
from dashboard.index import TimelineIndex
from dashboard.lanes import equals
from dashboard.marks import MICROSECOND
from dashboard.palette import Theme
from dashboard.post import union
from dashboard.slices import SliceIndex

Row = dict[Any, Any]  # one row of the timeline, or a piece of a Plotly layout


@dataclass(frozen=True, slots=True)
class Relation:
    """A span and those tied to it.

    Attributes:
        row: the span, as a row of the timeline.
        cause: what ended it, for a wait; None if unknown.
        waits: the waits it ended, for a transfer; in time order.
        sender: for a received message, or a wait for one, the sending on the other core; None if unknown.
    """

    row: Row
    cause: Row | None
    waits: list[Row]
    sender: Row | None = None

    @property
    def rows(self) -> list[Row]:
        """The span and everything tied to it."""
        return [self.row, *self.waits, *(r for r in (self.cause, self.sender) if r)]

    @property
    def window(self) -> tuple[int, int]:
        """From the issue or start of the first to the end of the last of them."""
        rows = self.rows
        starts = [_start(r) for r in rows]
        return min(starts), max(int(r["start_ps"]) + int(r["duration_ps"]) for r in rows)


def _start(row: Row) -> int:
    issued = row["issued_ps"]
    return int(row["start_ps"]) if pd.isna(issued) else min(int(issued), int(row["start_ps"]))


def relation(index: TimelineIndex, span: int) -> Relation | None:
    """The span with this id on the index's core, and what is tied to it; None if there is none."""
    frame = index.timeline
    spans = frame["span"].to_numpy()
    found = np.flatnonzero((spans == span) & (frame["core"].to_numpy() == index.core))
    if len(found) == 0:
        return None
    row = frame.iloc[int(found[0])].to_dict()
    cause = None
    if not pd.isna(row["cause"]):
        other = np.flatnonzero(spans == int(row["cause"]))
        cause = frame.iloc[int(other[0])].to_dict() if len(other) else None
    lane = index.lane("wait")
    waits: list[Row] = []
    if lane is not None and row["track"] != "wait":
        part = frame.iloc[lane.all.row]
        ended = part[(part["cause"] == span).fillna(False).to_numpy(bool)]
        waits = ended.sort_values("start_ps").head(20).to_dict("records")
    return Relation(row, cause, waits)


def slice_relation(index: SliceIndex, span: int) -> Relation | None:
    """As `relation`, with the sender on the other core; None if there is no such span."""
    frame = index.timeline
    found = np.flatnonzero(frame["span"].to_numpy() == span)
    if len(found) == 0:
        return None
    row = frame.iloc[int(found[0])].to_dict()
    cause = None
    if not pd.isna(row["cause"]):
        other = np.flatnonzero(frame["span"].to_numpy() == int(row["cause"]))
        cause = frame.iloc[int(other[0])].to_dict() if len(other) else None
    waits: list[Row] = []
    lane = index.lanes.get((int(row["core"]), "wait"))
    if lane is not None and row["track"] != "wait":
        part = frame.iloc[lane.row]
        waits = part[(part["cause"] == span).fillna(False).to_numpy(bool)].head(20).to_dict("records")
    message = next((r for r in (cause, row) if r is not None and r["track"] == "ici_recv"), None)
    return Relation(row, cause, waits, None if message is None else _sender(index, message))


def _sender(index: SliceIndex, message: Row) -> Row | None:
    """The sending of a received message: of the same issue, by the peer it names."""
    peer = str(message["queue"]).removeprefix("ici:")
    lane = index.lanes.get((int(peer), "collective")) if peer.isdigit() else None
    if lane is None or pd.isna(message["issued_ps"]):
        return None
    part = index.timeline.iloc[lane.row]
    same = (part["issued_ps"] == message["issued_ps"]).fillna(False).to_numpy(bool)
    same &= equals(part["track"], "ici_send") & (part["queue"] == f"ici:{message['core']}").to_numpy(bool)
    found = np.flatnonzero(same)
    return part.iloc[int(found[0])].to_dict() if len(found) else None


def overlay(
    found: Relation, place: Callable[[Row], tuple[float, float] | None], theme: Theme
) -> tuple[list[Row], list[Row]]:
    """(frames, arrows) that show a relation on the lanes.

    Args:
        found: what is tied to what.
        place: middle and half the height of the lane of a span, None where it is not shown.
        theme: colours.
    """
    frames: list[Row] = []
    arrows: list[Row] = []
    colour = theme.text
    for row in found.rows:
        where = place(row)
        if where is None:
            continue
        middle, half = where
        start = int(row["start_ps"]) / MICROSECOND
        end = start + int(row["duration_ps"]) / MICROSECOND
        axes = {"xref": "x", "yref": "y"}
        box = {"type": "rect", "x0": start, "x1": end, "y0": middle - half, "y1": middle + half}
        frames.append({**axes, **box, "line": {"color": colour, "width": 2}})
        issued = _start(row) / MICROSECOND
        if issued < start:
            wire = {"type": "line", "x0": issued, "x1": start, "y0": middle, "y1": middle}
            frames.append({**axes, **wire, "line": {"color": colour, "width": 1.5, "dash": "dot"}})
    pairs = [(found.cause, found.row)] if found.cause else [(found.row, w) for w in found.waits]
    if found.sender:
        pairs.append((found.sender, found.cause or found.row))
    for source, target in pairs:
        low, high = place(source), place(target)
        if low is None or high is None:
            continue
        arrows.append(
            {
                "xref": "x",
                "yref": "y",
                "axref": "x",
                "ayref": "y",
                "ax": (int(source["start_ps"]) + int(source["duration_ps"])) / MICROSECOND,
                "ay": low[0],
                "x": (int(target["start_ps"]) + int(target["duration_ps"])) / MICROSECOND,
                "y": high[0],
                "text": "",
                "showarrow": True,
                "arrowhead": 2,
                "arrowwidth": 1.6,
                "arrowcolor": colour,
            }
        )
    return frames, arrows


def describe(found: Relation) -> list[str]:
    """The relation in words, one fact each."""
    row = found.row
    name = text.shorten(row["name"], 60) or "unnamed"
    lines = [f"{name} ({row['track']}, {text.duration(int(row['duration_ps']))})"]
    if not pd.isna(row["bytes"]):
        lines.append(text.size(int(row["bytes"])))
    if not pd.isna(row["issued_ps"]):
        lines.append(f"issued at {int(row['issued_ps']) / MICROSECOND:,.3f} µs")
    if not pd.isna(row["free_ps"]) and not pd.isna(row["issued_ps"]):
        late = int(row["issued_ps"]) - int(row["free_ps"])
        free = f"its buffer was free {text.duration(late)} before that"
        lines.append(free if late >= 0 else "its buffer was in use")
    if found.sender:
        issued = int(found.sender["issued_ps"]) / MICROSECOND
        lines.append(f"sent by core {int(found.sender['core'])}, issued at {issued:,.3f} µs")
    if found.cause:
        lines.append(f"ended by {text.shorten(found.cause['name'], 60)} ({found.cause['track']})")
    elif row["track"] == "wait":
        lines.append(f"what ended it is {text.UNKNOWN}")
    if found.waits:
        total = sum(int(w["duration_ps"]) for w in found.waits)
        lines.append(f"{text.count(len(found.waits), 'wait')} for it, {text.duration(total)}")
    elif row["track"] in ("hbm_read", "hbm_write"):
        lines.append("nobody stood still for it")
    return lines


def search(index: TimelineIndex, words: str, limit: int = 200) -> list[tuple[int, int, int]]:
    """(span, start, end) of the spans whose name, phase or source holds `words`, in time order."""
    needle = words.strip().lower()[:100]
    if not needle:
        return []
    frame = index.timeline
    mask = frame["core"].to_numpy() == index.core
    hit = np.zeros(len(frame), bool)
    for column in ("name", "source", "phase"):
        # Names repeat a lot: look at each distinct one once.
        codes, values = pd.factorize(frame[column])
        good = np.array([needle in str(v).lower() for v in values], bool)
        hit |= np.where(codes >= 0, good[codes], False) if len(good) else False
    rows = np.flatnonzero(mask & hit & ~equals(frame["track"], "region"))
    starts = frame["start_ps"].to_numpy(np.int64)[rows]
    rows = rows[np.argsort(starts, kind="stable")][:limit]
    part = frame.iloc[rows]
    return list(
        zip(
            part["span"].astype(int).tolist(),
            part["start_ps"].astype(int).tolist(),
            (part["start_ps"] + part["duration_ps"]).astype(int).tolist(),
            strict=True,
        )
    )


def measure(index: TimelineIndex, start: int, end: int) -> dict[str, float]:
    """What happened between two times: length_ps, read_bytes, written_bytes, and busy shares per track."""
    edges = np.array([start, end], np.float64)

    def grown(curve: Cumulative) -> float:
        before, after = curve.at(edges)
        return float(after - before)

    out = {
        "length_ps": float(end - start),
        "read_bytes": grown(index.read),
        "written_bytes": grown(index.written),
    }
    for track in ("hbm_read", "mxu", "vector", "wait"):
        out[track] = intervals.measure(union(index, (track,), start, end)) / max(1, end - start)
    return out
