"""The index of a whole slice: every core's lanes, lean enough for dozens of cores at once."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.timeline import Track
from dashboard.curves import NOTHING, Cumulative, moved
from dashboard.index import Band, bands
from dashboard.lanes import Marks

# Lanes of a core in the band of all cores, from top to bottom: (key, label, tracks, colour).
KINDS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("hbm_read", "HBM → VMEM transfer", (Track.HBM_READ,), "transfer"),
    ("hbm_write", "VMEM → HBM", (Track.HBM_WRITE,), "write"),
    ("mxu", "matrix work", (Track.MXU,), "matrix"),
    ("vector", "vector work", (Track.VECTOR,), "vector"),
    ("collective", "collective", (Track.ICI_SEND, Track.ICI_RECV), "collective"),
    ("wait", "wait", (Track.WAIT,), "wait"),
)
DEFAULT_KINDS = ("hbm_read", "mxu", "collective", "wait")


@dataclass(frozen=True, slots=True)
class CoreLane:
    """The spans of one kind on one core.

    Attributes:
        row: their positions in the timeline, by start. start, end: their extents in ps.
        latest: running maximum of `end`, so that the first span that reaches into a window is found.
        low, high: where at least one span is, as disjoint intervals in ps; before: time busy before each.
    """

    row: np.ndarray
    start: np.ndarray
    end: np.ndarray
    latest: np.ndarray
    low: np.ndarray
    high: np.ndarray
    before: np.ndarray

    def busy(self, times: np.ndarray) -> np.ndarray:
        """Time in ps with at least one span before each of `times`."""
        if len(self.low) == 0:
            return np.zeros(len(times))
        found = np.searchsorted(self.low, times, side="right") - 1
        inside = np.clip(times - self.low[found], 0, self.high[found] - self.low[found])
        return np.where(found < 0, 0, self.before[found] + inside)

    def touching(self, start: int, end: int) -> slice:
        """The spans that touch [start, end) ps (a few before it may come along)."""
        first = int(np.searchsorted(self.latest, start, side="right"))
        return slice(first, max(first, int(np.searchsorted(self.start, end, side="left"))))


@dataclass(frozen=True, slots=True)
class SliceIndex:
    """All cores of a timeline.

    Attributes:
        cores: in order. start, end: extent of the step in ps.
        lanes: (core, kind) -> its lane; absent where there are no spans.
        layers, phases: bands of the first core, for orientation.
        read, written: HBM bytes moved over time, all cores together.
    """

    timeline: pd.DataFrame
    cores: tuple[int, ...]
    start: int
    end: int
    lanes: dict[tuple[int, str], CoreLane]
    layers: tuple[Band, ...]
    phases: tuple[Band, ...]
    read: Cumulative
    written: Cumulative

    @property
    def kinds(self) -> list[str]:
        """The kinds that any core has, in the order of `KINDS`."""
        present = {kind for _, kind in self.lanes}
        return [key for key, *_ in KINDS if key in present]


def build_slice(timeline: pd.DataFrame) -> SliceIndex:
    """Index every core of a timeline."""
    core = timeline["core"].to_numpy(np.int64)
    start = timeline["start_ps"].to_numpy(np.int64)
    end = start + timeline["duration_ps"].to_numpy(np.int64)
    cores = tuple(int(c) for c in np.unique(core))
    kind = _kinds(timeline["track"])
    lanes: dict[tuple[int, str], CoreLane] = {}
    order = np.lexsort((start, kind, core))
    keys = core[order] * (len(KINDS) + 1) + kind[order]
    edges = np.concatenate([[0], np.flatnonzero(np.diff(keys)) + 1, [len(keys)]])
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        rows = order[low:high]
        if high > low and kind[rows[0]] < len(KINDS):
            lanes[int(core[rows[0]]), KINDS[int(kind[rows[0]])][0]] = core_lane(rows, start[rows], end[rows])
    mine = np.flatnonzero(core == cores[0]) if cores else np.empty(0, np.int64)
    layers, phases = bands(timeline, mine)
    return SliceIndex(
        timeline=timeline,
        cores=cores,
        start=int(start.min()) if len(start) else 0,
        end=int(end.max()) if len(end) else 0,
        lanes=lanes,
        layers=layers,
        phases=phases,
        read=_traffic(timeline, lanes, cores, "hbm_read"),
        written=_traffic(timeline, lanes, cores, "hbm_write"),
    )


def core_lane(rows: np.ndarray, start: np.ndarray, end: np.ndarray) -> CoreLane:
    """A lane of the spans at positions `rows`, sorted by `start`."""
    latest = np.maximum.accumulate(end) if len(end) else end
    fresh = np.ones(len(start), bool)
    fresh[1:] = start[1:] > latest[:-1]
    first = np.flatnonzero(fresh)
    low = start[first]
    high = latest[np.append(first[1:] - 1, len(start) - 1)] if len(start) else end
    before = np.concatenate([[0], np.cumsum(high - low)[:-1]]) if len(low) else np.empty(0, np.int64)
    return CoreLane(rows, start, end, latest, low, high, before)


def marks_of(index: SliceIndex, row: np.ndarray) -> Marks:
    """The spans at positions `row` of the timeline as marks, one each."""
    facts = index.timeline.iloc[row]
    start = facts["start_ps"].to_numpy(np.int64)
    duration = facts["duration_ps"].to_numpy(np.int64)
    return Marks(
        start=start,
        end=start + duration,
        busy=duration,
        bytes=facts["bytes"].fillna(0).to_numpy(np.int64),
        known=facts["bytes"].notna().to_numpy(np.int64),
        count=np.ones(len(row), np.int64),
        row=row,
        longest=duration,
        queue=np.zeros(len(row), np.int16),
        bundle_first=facts["bundle_first"].fillna(-1).to_numpy(np.int32),
        bundle_last=facts["bundle_last"].fillna(-1).to_numpy(np.int32),
    )


def _kinds(tracks: pd.Series) -> np.ndarray:
    """int8[N]: number of the kind of each row, `len(KINDS)` for others."""
    number = {str(t): i for i, (_, _, wanted, _) in enumerate(KINDS) for t in wanted}
    codes, found = pd.factorize(tracks)
    table = np.array([number.get(str(t), len(KINDS)) for t in found] + [len(KINDS)], np.int8)
    return table[codes]


def _traffic(
    timeline: pd.DataFrame, lanes: dict[tuple[int, str], CoreLane], cores: tuple[int, ...], kind: str
) -> Cumulative:
    own = [lanes[core, kind] for core in cores if (core, kind) in lanes]
    if not own:
        return NOTHING
    row = np.concatenate([lane.row for lane in own])
    empty = np.empty(0, np.int64)
    size = timeline["bytes"].iloc[row].fillna(0).to_numpy(np.int64)
    start = np.concatenate([lane.start for lane in own])
    end = np.concatenate([lane.end for lane in own])
    return moved(Marks(start, end, end - start, size, empty, empty, row, empty, empty, empty, empty))
