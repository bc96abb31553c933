"""The index of one core: its lanes, its layer and phase bands, and its HBM traffic."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analyzer.timeline import Track
from dashboard.curves import NOTHING, Cumulative, moved
from dashboard.lanes import LANES, LaneIndex, equals, lane_index
from dashboard.text import shorten


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of the step with a label: a layer or a phase."""

    start: int
    end: int
    label: str
    layer: int | None


@dataclass(frozen=True, slots=True)
class TimelineIndex:
    """One core's timeline, ready to draw any window of it.

    Attributes:
        timeline: the span table the marks' `row` points into.
        start, end: extent of the step in ps.
        layers, phases: bands in time order.
        read, written: HBM bytes moved over time.
        provenances: distinct provenance words of its spans.
    """

    timeline: pd.DataFrame
    core: int
    start: int
    end: int
    lanes: tuple[LaneIndex, ...]
    layers: tuple[Band, ...]
    phases: tuple[Band, ...]
    read: Cumulative
    written: Cumulative
    provenances: tuple[str, ...]

    def lane(self, track: str) -> LaneIndex | None:
        """The lane of `track`, or None if this core has no such span."""
        return next((lane for lane in self.lanes if lane.track == track), None)

    def without(self, tracks: set[str]) -> "TimelineIndex":
        """The same index with some lanes left out."""
        return replace(self, lanes=tuple(lane for lane in self.lanes if lane.track not in tracks))


def build_index(timeline: pd.DataFrame, core: int | None = None) -> TimelineIndex:
    """Index one core of `timeline`; the lowest core where `core` is None or absent.

    Lanes with no span are left out: a source that cannot see an engine must not show it idle.
    """
    cores = timeline["core"].to_numpy()
    if len(cores) and (core is None or not (cores == core).any()):
        core = int(cores.min())
    mine = cores == core
    tracks = timeline["track"]
    lanes = []
    for track, label, colour in LANES:
        rows = np.flatnonzero(mine & equals(tracks, track))
        if len(rows):
            lanes.append(lane_index(timeline, rows, str(track), label, colour))
    starts = timeline["start_ps"].to_numpy(np.int64)[mine]
    ends = starts + timeline["duration_ps"].to_numpy(np.int64)[mine]
    layers, phases = bands(timeline, np.flatnonzero(mine))
    provenances = timeline["provenance"].iloc[np.flatnonzero(mine)].unique()
    return TimelineIndex(
        timeline=timeline,
        core=int(core or 0),
        start=int(starts.min()) if len(starts) else 0,
        end=int(ends.max()) if len(ends) else 0,
        lanes=tuple(lanes),
        layers=layers,
        phases=phases,
        read=_moved(lanes, Track.HBM_READ),
        written=_moved(lanes, Track.HBM_WRITE),
        provenances=tuple(sorted({str(p) for p in provenances if not pd.isna(p)})),
    )


def _moved(lanes: list[LaneIndex], track: str) -> Cumulative:
    lane = next((x for x in lanes if x.track == track), None)
    return moved(lane.all) if lane else NOTHING


def bands(timeline: pd.DataFrame, rows: np.ndarray) -> tuple[tuple[Band, ...], tuple[Band, ...]]:
    """(layers, phases) of the spans at `rows`, in time order.

    Region spans say them exactly. Without regions (hooks off), runs of equal layer and phase among the
    spans that occupy the core itself are used.
    """
    part = timeline.iloc[rows]
    regions = part[equals(part["track"], Track.REGION)]
    if len(regions) == 0:
        on_core = part[equals(part["track"], Track.MXU, Track.VECTOR, Track.SCALAR, Track.WAIT)]
        regions = on_core[on_core["layer"].notna() | (on_core["phase"] != "")]
    if len(regions) == 0:
        return (), ()
    regions = regions.assign(_end=regions["start_ps"] + regions["duration_ps"])
    regions = regions.sort_values(["start_ps", "_end"], ascending=[True, False], kind="stable")
    return _layers(regions), _phases(regions)


def _layers(regions: pd.DataFrame) -> tuple[Band, ...]:
    known = regions[regions["layer"].notna()]
    if len(known) == 0:
        return ()
    layer = known["layer"].to_numpy(np.int64)
    step = known["step"].to_numpy(np.int64)
    fresh = np.flatnonzero(np.r_[True, (layer[1:] != layer[:-1]) | (step[1:] != step[:-1])])
    starts = known["start_ps"].to_numpy(np.int64)[fresh]
    ends = np.maximum.reduceat(known["_end"].to_numpy(np.int64), fresh)
    return tuple(
        Band(int(s), int(e), f"layer {layer[i]}", int(layer[i]))
        for s, e, i in zip(starts, ends, fresh, strict=True)
    )


def _phases(regions: pd.DataFrame) -> tuple[Band, ...]:
    """Innermost named region at each moment; runs of the same phase and layer joined."""
    out: list[Band] = []
    stack: list[tuple[int, str, int | None]] = []
    now = 0

    def emit(until: int) -> None:
        nonlocal now
        if stack and until > now:
            _, label, layer = stack[-1]
            if label:
                last = out[-1] if out else None
                if last and last.end == now and (last.label, last.layer) == (label, layer):
                    out[-1] = Band(last.start, until, label, layer)
                else:
                    out.append(Band(now, until, label, layer))
        now = max(now, until)

    columns = zip(
        regions["start_ps"].tolist(),
        regions["_end"].tolist(),
        [str(p) or str(n) for p, n in zip(regions["phase"], regions["name"], strict=True)],
        regions["layer"].tolist(),
        strict=True,
    )
    for start, end, phase, layer in columns:
        while stack and stack[-1][0] <= start:
            emit(stack[-1][0])
            stack.pop()
        emit(start)
        stack.append((end, shorten(phase), None if pd.isna(layer) else int(layer)))
    while stack:
        emit(stack[-1][0])
        stack.pop()
    return tuple(out)
