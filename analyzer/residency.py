"""What lies in VMEM over time: one row per stay of copied data, and the curve of bytes made from them.

A stay lasts from the first byte of a copy to the last use before it was overwritten. What the program
computes into VMEM, and what other cores send there, is not followed: the curve is a lower bound of what is
in use.
"""

import itertools
from typing import Any, Literal

import numpy as np
import pandas as pd

# column -> pandas dtype
COLUMNS: dict[str, str] = {
    "core": "int32",
    "buffer": "object",  # name of the buffer in the program, "#allocation12"
    "name": "object",  # what was copied: weight tag or operand
    "offset_bytes": "int64",  # of the first byte, within the buffer
    "bytes": "int64",  # extent in the buffer
    "issued_ps": "int64",  # the copy is issued: from here on the place is taken
    "start_ps": "int64",  # bytes begin to arrive
    "arrived_ps": "int64",  # all of them are there
    "first_use_ps": "Int64",  # first use of them; null where none was followed
    "end_ps": "int64",  # last use before they were overwritten; arrived_ps where nothing used them
    "used": "bool",  # whether anything used them
    "span": "Int64",  # the copy, in the timeline
    "layer": "Int32",
    "phase": "object",
    "source": "object",  # where the copy was issued
}
BUFFERS_LISTED = 40
POINTS = 400


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A table of stays with the right columns, by core and time of arrival."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    return frame.sort_values(["core", "start_ps"], kind="stable", ignore_index=True)


def occupancy(
    stays: pd.DataFrame, core: int, since: Literal["start_ps", "issued_ps"] = "start_ps"
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of copied data lying in the VMEM of one core, until their last use.

    Args:
        stays: a table of this module.
        core: rank.
        since: "start_ps": from the first byte that arrives; "issued_ps": from the issue of the copy, which
            takes its place from then on.

    Returns:
        (int64[N] times in ps, int64[N] bytes from that time on), both empty where nothing is known.
    """
    own = stays[stays["core"] == core]
    if own.empty:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    size = own["bytes"].to_numpy(np.int64)
    edges = np.concatenate((own[since].to_numpy(np.int64), own["end_ps"].to_numpy(np.int64)))
    time, where = np.unique(edges, return_inverse=True)
    change = np.zeros(len(time), np.int64)
    np.add.at(change, where, np.concatenate((size, -size)))
    return time, np.cumsum(change)


def summary(stays: pd.DataFrame, core: int, end_ps: int) -> dict[str, Any] | None:
    """The occupancy of one core in numbers, for the report; None where nothing is known.

    Args:
        stays: of all cores. core: the reported one. end_ps: end of its step.
    """
    time, held = occupancy(stays, core)
    if len(time) == 0 or end_ps <= 0:
        return None
    top = int(held.argmax())
    area = float((held[:-1] * np.diff(time)).sum())
    taken_at, taken = occupancy(stays, core, "issued_ps")
    own = stays[stays["core"] == core]
    own = own.assign(until=own["offset_bytes"] + own["bytes"], stay_ps=own["end_ps"] - own["start_ps"])
    own = own.assign(area=own["bytes"] * own["stay_ps"])
    by_buffer = own.groupby("buffer", sort=False)
    buffers: list[dict[str, Any]] = [
        {
            "buffer": str(name),
            "bytes": int(rows["until"].max() - rows["offset_bytes"].min()),
            "copies": len(rows),
            "never_used": int((~rows["used"]).sum()),
            "mean_bytes": round(float(rows["area"].sum()) / end_ps),
            "median_stay_ps": int(rows["stay_ps"].median()),
            "names": [str(n) for n in list(dict.fromkeys(rows["name"]))[:6]],
        }
        for name, rows in by_buffer
    ]
    kept = _thinned(time, held)
    return {
        "peak_bytes": int(held[top]),
        "peak_at_ps": int(time[top]),
        "mean_bytes": round(area / end_ps),
        "taken_peak_bytes": int(taken.max()),
        "taken_mean_bytes": round(float((taken[:-1] * np.diff(taken_at)).sum()) / end_ps),
        "copies": len(own),
        "buffers": sorted(buffers, key=lambda b: -b["bytes"])[:BUFFERS_LISTED],
        "curve": [[int(t), int(b)] for t, b in zip(*kept, strict=True)],
        "provenance": "modelled",
    }


def _thinned(time: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most POINTS points; of each stretch the greatest, so that the peak stays."""
    if len(time) <= POINTS:
        return time, held
    edges = np.linspace(0, len(time), POINTS + 1).astype(int)
    which = [a + int(held[a:b].argmax()) for a, b in itertools.pairwise(edges)]
    return time[which], held[which]
