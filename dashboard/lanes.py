"""From a timeline to lanes: what is drawn where, and how much of it a window needs.

An engine lane may hold a million spans; a screen has about a thousand columns. `LaneIndex.query` merges
spans shorter than a column with their neighbours in the same column. Merging keeps counts, bytes and busy
time exactly (tested), and a merged mark says how many spans it stands for. Columns lie on a fixed grid of
powers of two picoseconds, so panning does not make marks flicker.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from analyzer.timeline import Track

# What a lane shows: (track, label, colour key), from top to bottom.
LANES: tuple[tuple[str, str, str], ...] = (
    (Track.HBM_READ, "HBM → VMEM", "transfer"),
    (Track.HBM_WRITE, "VMEM → HBM", "write"),
    (Track.VMEM_COPY, "VMEM copy", "write"),
    (Track.MXU, "Matrix", "matrix"),
    (Track.VECTOR, "Vector", "vector"),
    (Track.SCALAR, "Scalar", "scalar"),
    (Track.ICI_SEND, "Collective: send", "collective"),
    (Track.ICI_RECV, "Collective: receive", "collective"),
    (Track.WAIT, "Waits", "wait"),
)
MAX_ROWS = 8  # sub-rows of a lane whose queues overlap in time (peers of a collective)
_LEVEL_STEP = 4  # stored levels of detail differ by this factor in resolution
_SMALL = 4096  # spans below which no coarser level is stored


@dataclass(frozen=True, slots=True)
class Marks:
    """Things to draw in one lane; one entry each. All times in ps.

    Attributes:
        start, end: extent.
        busy: summed duration of the spans the mark stands for.
        bytes: summed bytes of those whose bytes are known; `known` counts them.
        count: spans it stands for.
        row: position in the timeline of its longest span, and `longest` that span's duration.
        queue: sub-row of the lane.
        bundle_first, bundle_last: bundle range, -1 where unknown.
    """

    start: np.ndarray
    end: np.ndarray
    busy: np.ndarray
    bytes: np.ndarray
    known: np.ndarray
    count: np.ndarray
    row: np.ndarray
    longest: np.ndarray
    queue: np.ndarray
    bundle_first: np.ndarray
    bundle_last: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    def take(self, keep: np.ndarray | slice) -> "Marks":
        """The marks at `keep` (indices, mask or slice)."""
        return Marks(*(getattr(self, name)[keep] for name in self.__slots__))


def concatenate(parts: list[Marks]) -> Marks:
    """All marks of `parts` in order."""
    if len(parts) == 1:
        return parts[0]
    return Marks(*(np.concatenate([getattr(p, name) for p in parts]) for name in Marks.__slots__))


def merge(marks: Marks, resolution: int) -> Marks:
    """Marks shorter than `resolution` ps joined with their neighbours in the same grid column.

    `marks` must be ordered by queue, then start.
    """
    if len(marks) < 2 or resolution <= 1:
        return marks
    small = (marks.end - marks.start) < resolution
    column = marks.start // resolution
    fresh = np.ones(len(marks), dtype=bool)
    fresh[1:] = ~small[1:] | ~small[:-1] | (column[1:] != column[:-1]) | (marks.queue[1:] != marks.queue[:-1])
    if fresh.all():
        return marks
    first = np.flatnonzero(fresh)
    group = np.cumsum(fresh) - 1
    longest = np.maximum.reduceat(marks.longest, first)
    candidates = np.flatnonzero(marks.longest == longest[group])
    winner = candidates[np.unique(group[candidates], return_index=True)[1]]
    low = np.where(marks.bundle_first < 0, np.iinfo(np.int32).max, marks.bundle_first)
    lowest = np.minimum.reduceat(low, first)
    return Marks(
        start=marks.start[first],
        end=np.maximum.reduceat(marks.end, first),
        busy=np.add.reduceat(marks.busy, first),
        bytes=np.add.reduceat(marks.bytes, first),
        known=np.add.reduceat(marks.known, first),
        count=np.add.reduceat(marks.count, first),
        row=marks.row[winner],
        longest=longest,
        queue=marks.queue[first],
        bundle_first=np.where(lowest == np.iinfo(np.int32).max, -1, lowest).astype(np.int32),
        bundle_last=np.maximum.reduceat(marks.bundle_last, first),
    )


@dataclass(frozen=True, slots=True)
class _Level:
    """One stored level of detail: marks ordered by queue and start, with what a range query needs."""

    resolution: int
    marks: Marks
    offsets: np.ndarray  # int64[queues + 1]: where each queue's marks begin
    latest: np.ndarray  # running maximum of `end` within the queue, so that overlapping spans are found

    def window(self, start: int, end: int) -> Marks:
        parts = []
        for low, high in pairwise(self.offsets.tolist()):
            first = low + np.searchsorted(self.latest[low:high], start, side="left")
            last = low + np.searchsorted(self.marks.start[low:high], end, side="left")
            parts.append(self.marks.take(slice(int(first), max(int(first), int(last)))))
        found = concatenate(parts)
        inside = (found.end > start) | (found.start >= start)
        return found if inside.all() else found.take(inside)


def _level(resolution: int, marks: Marks) -> _Level:
    edges = np.flatnonzero(np.diff(marks.queue)) + 1
    offsets = np.concatenate([[0], edges, [len(marks)]]).astype(np.int64)
    latest = marks.end.copy()
    for low, high in pairwise(offsets.tolist()):
        np.maximum.accumulate(latest[low:high], out=latest[low:high])
    return _Level(resolution, marks, offsets, latest)


@dataclass(frozen=True, slots=True)
class LaneIndex:
    """One lane of one core, ready for range queries at any level of detail."""

    track: str
    label: str
    colour: str
    queues: tuple[str, ...]
    levels: tuple[_Level, ...]

    @property
    def rows(self) -> int:
        """Sub-rows of the lane, at least 1."""
        return max(1, min(len(self.queues), MAX_ROWS))

    @property
    def all(self) -> Marks:
        """Every span, unmerged."""
        return self.levels[0].marks

    def query(self, start: int, end: int, resolution: int) -> Marks:
        """Marks that touch [start, end) ps, merged below `resolution` ps."""
        level = next(x for x in reversed(self.levels) if x.resolution <= max(1, resolution))
        return merge(level.window(start, end), resolution)


def equals(column: pd.Series, *names: str) -> np.ndarray:
    """bool mask of the rows of a (categorical) text column that hold one of `names`.

    By codes where there are any: comparing a million strings takes as long as drawing the figure.
    """
    wanted = {str(name) for name in names}
    if isinstance(column.dtype, pd.CategoricalDtype):
        good = [i for i, c in enumerate(column.cat.categories) if str(c) in wanted]
        return np.isin(column.cat.codes.to_numpy(), good)
    return column.isin(list(wanted)).to_numpy(bool)


def _queues(column: pd.Series) -> tuple[np.ndarray, tuple[str, ...]]:
    """(queue number of each row, names of the queues in order)."""
    codes, found = pd.factorize(column)
    names = [str(q) for q in found]
    order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(names) + 1, np.int64)
    rank[order] = np.arange(len(names))
    rank[-1] = 0  # rows without a queue
    return rank[codes], tuple(names[i] for i in order)


def lane_index(timeline: pd.DataFrame, rows: np.ndarray, track: str, label: str, colour: str) -> LaneIndex:
    """Index the spans at positions `rows` of `timeline` as one lane."""
    part = timeline.iloc[rows]
    codes, names = _queues(part["queue"])
    start = part["start_ps"].to_numpy(np.int64)
    duration = part["duration_ps"].to_numpy(np.int64)
    known = part["bytes"].notna().to_numpy()
    order = np.lexsort((start, codes % MAX_ROWS))
    marks = Marks(
        start=start,
        end=start + duration,
        busy=duration,
        bytes=part["bytes"].fillna(0).to_numpy(np.int64),
        known=known.astype(np.int64),
        count=np.ones(len(part), np.int64),
        row=np.asarray(rows, np.int64),
        longest=duration,
        queue=(codes % MAX_ROWS).astype(np.int16),
        bundle_first=part["bundle_first"].fillna(-1).to_numpy(np.int32),
        bundle_last=part["bundle_last"].fillna(-1).to_numpy(np.int32),
    ).take(order)
    levels = [_level(1, marks)]
    span = int(marks.end.max() - marks.start.min()) if len(marks) else 0
    resolution = 1024
    while len(levels[-1].marks) > _SMALL and resolution < span // 512:
        coarser = merge(levels[-1].marks, resolution)
        if len(coarser) < 0.7 * len(levels[-1].marks):
            levels.append(_level(resolution, coarser))
        resolution *= _LEVEL_STEP
    return LaneIndex(track, label, colour, names, tuple(levels))


def resolution_for(start: int, end: int, columns: int) -> int:
    """Width of one grid column in ps: the power of two not above (end - start) / columns."""
    wanted = max(1, (end - start) // max(1, columns))
    return 1 << (int(wanted).bit_length() - 1)
