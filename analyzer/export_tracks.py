"""The timeline as tracks that a trace viewer can draw: one per queue, on which nothing overlaps.

Viewers drop or misplace slices that overlap without nesting. So spans of a queue that do overlap get further
tracks (`hbm_read hbm #2`), and regions, which nest, are checked for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer import view
from analyzer.timeline import Track

_FACTS = ("bytes", "layer", "phase", "step", "source", "bundle_first", "bundle_last", "provenance")


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """One track: S slices that do not overlap, or that nest where `nested`.

    Attributes:
        core: the core it belongs to. name: of the track.
        start_ps, duration_ps: int64[S], sorted by start; of equal starts the longer first.
        titles: name of each slice. facts: what is known of each, unknown left out.
    """

    core: int
    name: str
    nested: bool
    start_ps: NDArray[np.int64]
    duration_ps: NDArray[np.int64]
    titles: list[str]
    facts: list[dict[str, int | str]]


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """A number over time: it has value[i] from time_ps[i] on."""

    core: int
    name: str
    time_ps: NDArray[np.int64]
    value: NDArray[np.float64]


def tracks(timeline: pd.DataFrame) -> list[Slices]:
    """The tracks of all cores, in the order of cores, tracks and queues."""
    result = []
    for core in view.cores(timeline):
        rows = timeline[timeline["core"] == core]
        for track in Track:
            of_track = rows[rows["track"].astype(str) == track]
            for queue in sorted(of_track["queue"].astype(str).unique()):
                spans = of_track[of_track["queue"].astype(str) == queue]
                result += _lanes(core, f"{track} {queue}".strip(), spans, nested=track is Track.REGION)
    return result


def _lanes(core: int, name: str, spans: pd.DataFrame, *, nested: bool) -> list[Slices]:
    order = np.lexsort((-spans["duration_ps"].to_numpy(dtype=np.int64), view.starts(spans)))
    spans = spans.iloc[order]
    start, end = view.starts(spans), view.ends(spans)
    lane = np.array(_nesting(start, end) if nested else _disjoint(start, end), dtype=np.int64)
    result = []
    for number in range(int(lane.max()) + 1 if len(lane) else 0):
        rows = spans[lane == number]
        title = name if number == 0 else f"{name} #{number + 1}"
        titles = [_title(r) for r in rows[["name", "phase", "layer", "kind"]].to_dict("records")]
        facts = [_facts(r) for r in rows[list(_FACTS)].to_dict("records")]
        result.append(
            Slices(core, title, nested, view.starts(rows), view.ends(rows) - view.starts(rows), titles, facts)
        )
    return result


def _disjoint(start: NDArray[np.int64], end: NDArray[np.int64]) -> list[int]:
    """The lowest lane that is free; a point needs its own instant."""
    free: list[int] = []
    out = []
    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        lane = next((i for i, until in enumerate(free) if until <= begin), len(free))
        if lane == len(free):
            free.append(0)
        free[lane] = finish
        out.append(lane)
    return out


def _nesting(start: NDArray[np.int64], end: NDArray[np.int64]) -> list[int]:
    """The lowest lane on which a slice lies inside all that are open, or beside them."""
    stacks: list[list[int]] = []
    out = []
    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        for lane in range(len(stacks) + 1):
            if lane == len(stacks):
                stacks.append([])
            stack = stacks[lane]
            while stack and stack[-1] <= begin:
                stack.pop()
            if not stack or finish <= stack[-1]:
                stack.append(finish)
                out.append(lane)
                break
    return out


def _title(row: Mapping[Any, Any]) -> str:
    if row["name"]:
        return str(row["name"])
    if not pd.isna(row["layer"]):
        return f"layer {int(row['layer'])}"
    return str(row["phase"]) or str(row["kind"])


def _facts(row: Mapping[Any, Any]) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for name, value in row.items():
        if isinstance(value, str):
            if value:
                found[str(name)] = value
        elif not pd.isna(value):
            found[str(name)] = int(value)
    return found


def counters(timeline: pd.DataFrame) -> list[Counter]:
    """Bandwidth of HBM in both directions and of messages out, in bytes per second, for each core.

    A transfer's bytes are spread evenly over its span; one of unknown size or without duration adds nothing.
    """
    result = []
    for core in view.cores(timeline):
        rows = timeline[timeline["core"] == core]
        for track in (Track.HBM_READ, Track.HBM_WRITE, Track.ICI_SEND):
            spans = rows[
                (rows["track"].astype(str) == track) & rows["bytes"].notna() & (rows["duration_ps"] > 0)
            ]
            if not len(spans):
                continue
            start, end = view.starts(spans), view.ends(spans)
            rate = spans["bytes"].to_numpy(dtype=np.float64) / (end - start) * 1e12
            times, where = np.unique(np.concatenate((start, end)), return_inverse=True)
            change = np.zeros(len(times))
            np.add.at(change, where, np.concatenate((rate, -rate)))
            value = np.cumsum(change)
            value[np.abs(value) < 1.0] = 0.0  # what is left of sums of doubles
            result.append(Counter(core, f"{track} bytes/s", times, value))
    return result
