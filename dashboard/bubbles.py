"""HBM bubbles as marks on the HBM -> VMEM lane and as the rows of a table."""

from typing import Any

import numpy as np
import pandas as pd

from dashboard import text
from dashboard.lanes import Marks
from dashboard.marks import MICROSECOND, Canvas, Slot, bar

COLUMNS = (
    "start_ps",
    "duration_ps",
    "cause",
    "source",
    "bundle_first",
    "bundle_last",
    "layer",
    "phase",
    "core",
)


def conform(bubbles: pd.DataFrame | None) -> pd.DataFrame:
    """A bubble table with every column of `COLUMNS`; absent facts become unknown."""
    frame = pd.DataFrame() if bubbles is None else bubbles.copy()
    for name in COLUMNS:
        if name not in frame:
            frame[name] = "" if name in ("cause", "source", "phase") else pd.NA
    for name in ("start_ps", "duration_ps"):
        frame[name] = frame[name].astype("int64")
    for name in ("bundle_first", "bundle_last", "layer", "core"):
        frame[name] = frame[name].astype("Int64")
    for name in ("cause", "source", "phase"):
        frame[name] = frame[name].fillna("").astype("object")
    return frame.sort_values(["start_ps", "duration_ps"], kind="stable").reset_index(drop=True)


def bubble_marks(bubbles: pd.DataFrame | None, core: int) -> Marks:
    """Bubbles of a core (and those of no stated core) as marks; `row` is the row in the table."""
    frame = conform(bubbles)
    mine = (frame["core"].isna() | (frame["core"] == core).fillna(False)).to_numpy(bool)
    rows = np.flatnonzero(mine)
    start = frame["start_ps"].to_numpy(np.int64)[rows]
    duration = frame["duration_ps"].to_numpy(np.int64)[rows]
    zeros = np.zeros(len(rows), np.int64)
    return Marks(
        start=start,
        end=start + duration,
        busy=duration,
        bytes=zeros,
        known=zeros,
        count=zeros + 1,
        row=rows,
        longest=duration,
        queue=zeros.astype(np.int16),
        bundle_first=frame["bundle_first"].fillna(-1).to_numpy(np.int32)[rows],
        bundle_last=frame["bundle_last"].fillna(-1).to_numpy(np.int32)[rows],
    )


def bubble_trace(marks: Marks, bubbles: pd.DataFrame, slot: Slot, canvas: Canvas) -> dict[str, Any]:
    """Hatched outlines in the HBM -> VMEM lane where no HBM transfer is in flight."""
    frame = conform(bubbles)
    colour = canvas.theme.colours["bubble"]
    hover = []
    columns = (marks.start, marks.end, marks.busy, marks.count, marks.row)
    for start, end, busy, count, row in zip(*(c.tolist() for c in columns), strict=True):
        fact = frame.iloc[row]
        title = "<b>HBM bubble</b>" if count == 1 else f"<b>{count:,} HBM bubbles</b>, longest:"
        lines = [
            title,
            f"{text.duration(busy)} (from {start / MICROSECOND:,.3f} to {end / MICROSECOND:,.3f} µs)",
            text.plain(fact["cause"], 70) or f"cause {text.UNKNOWN}",
            (text.plain(text.place(fact["source"])) or f"source {text.UNKNOWN}")
            + f" · bundles {text.bundles(fact['bundle_first'], fact['bundle_last'])}",
        ]
        hover.append("<br>".join(lines))
    return bar(
        "HBM bubble",
        start=marks.start,
        length=np.maximum(marks.end - marks.start, canvas.resolution),
        top=np.full(len(marks), slot.top),
        height=np.full(len(marks), slot.height),
        hover=hover,
        marker={
            "color": "rgba(0,0,0,0)",
            "line": {"width": 1, "color": colour},
            "pattern": {"shape": "/", "fgcolor": colour, "size": 6, "solidity": 0.25, "fillmode": "replace"},
        },
    )


def bubble_rows(
    bubbles: pd.DataFrame | None, core: int | None = None, limit: int = 50, step_ps: int | None = None
) -> list[dict[str, Any]]:
    """The largest bubbles, biggest first, as texts for a table and the window to zoom to.

    Returns:
        A dictionary per row: start, duration, share, layer, phase, cause, source, path, bundles (texts) and
        `window` (start and end in ps, with room around the bubble).
    """
    frame = conform(bubbles)
    if core is not None:
        frame = frame[(frame["core"].isna() | (frame["core"] == core).fillna(False)).to_numpy(bool)]
    frame = frame.sort_values("duration_ps", ascending=False, kind="stable").head(limit)
    rows = []
    for fact in frame.to_dict("records"):
        start, length = int(fact["start_ps"]), int(fact["duration_ps"])
        room = max(2 * length, 1000)
        rows.append(
            {
                "start": f"{start / MICROSECOND:,.2f}",
                "duration": text.duration(length),
                "share": text.percent(length / step_ps) if step_ps else text.UNKNOWN,
                "layer": "—" if pd.isna(fact["layer"]) else str(int(fact["layer"])),
                "phase": text.shorten(fact["phase"], 40) or "—",
                "cause": text.shorten(fact["cause"], 160) or text.UNKNOWN,
                "source": text.place(fact["source"]) or text.UNKNOWN,
                "path": text.shorten(fact["source"], 300),
                "bundles": text.bundles(fact["bundle_first"], fact["bundle_last"]),
                "window": (max(0, start - room), start + length + room),
            }
        )
    return rows


bubble_table = bubble_rows
