"""Sets of half-open time intervals `[start, end)` as int64 arrays; all overlap arithmetic goes through here.

A set is an array of shape [n, 2], sorted, disjoint, with no empty and no touching intervals, so that two
sets are equal exactly when their arrays are. `from_spans` makes one from anything. The unit is whatever the
caller uses (picoseconds everywhere in Megascope). Everything is O(n log n) and has no Python loop.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Intervals = NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)
EMPTY.setflags(write=False)


def from_spans(starts: ArrayLike, ends: ArrayLike) -> Intervals:
    """The union of spans that may overlap, touch, be empty, or come in any order.

    A span whose end is not after its start covers nothing (a zero-length span is a point, not an interval).
    """
    first = np.asarray(starts, dtype=np.int64)
    last = np.asarray(ends, dtype=np.int64)
    keep = last > first
    if not keep.all():
        first, last = first[keep], last[keep]
    if first.size == 0:
        return EMPTY
    if not (first[1:] >= first[:-1]).all():
        order = np.argsort(first, kind="stable")
        first, last = first[order], last[order]
    last = np.maximum.accumulate(last)
    opens = np.empty(first.size, dtype=bool)
    opens[0] = True
    opens[1:] = first[1:] > last[:-1]
    closes = np.append(opens[1:], True)
    return np.column_stack((first[opens], last[closes]))


def single(start: int, end: int) -> Intervals:
    """The set of one interval; empty where end is not after start."""
    return from_spans([start], [end])


def union(*sets: Intervals) -> Intervals:
    """What at least one of the sets covers."""
    if not sets:
        return EMPTY
    together = np.concatenate(sets)
    return from_spans(together[:, 0], together[:, 1])


def _combine(a: Intervals, b: Intervals, *, both: bool) -> Intervals:
    """Sweep over the boundaries: a and b where `both`, else a without b."""
    times = np.concatenate((a[:, 0], a[:, 1], b[:, 0], b[:, 1]))
    points, where = np.unique(times, return_inverse=True)
    step_a = np.zeros(points.size, dtype=np.int64)
    step_b = np.zeros(points.size, dtype=np.int64)
    n, m = len(a), len(b)
    np.add.at(step_a, where[:n], 1)
    np.add.at(step_a, where[n : 2 * n], -1)
    np.add.at(step_b, where[2 * n : 2 * n + m], 1)
    np.add.at(step_b, where[2 * n + m :], -1)
    in_a, in_b = np.cumsum(step_a) > 0, np.cumsum(step_b) > 0
    covered = (in_a & in_b if both else in_a & ~in_b)[:-1]
    return from_spans(points[:-1][covered], points[1:][covered])


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """What both sets cover."""
    if len(a) == 0 or len(b) == 0:
        return EMPTY
    return _combine(a, b, both=True)


def subtraction(a: Intervals, b: Intervals) -> Intervals:
    """What a covers and b does not."""
    if len(a) == 0 or len(b) == 0:
        return a
    return _combine(a, b, both=False)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The part of a within `[start, end)`."""
    return from_spans(np.maximum(a[:, 0], start), np.minimum(a[:, 1], end))


def complement(a: Intervals, start: int, end: int) -> Intervals:
    """The part of `[start, end)` that a does not cover."""
    return subtraction(single(start, end), a)


def measure(a: Intervals) -> int:
    """Total length."""
    return int((a[:, 1] - a[:, 0]).sum())


def contains(a: Intervals, times: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a covers each time."""
    index = np.searchsorted(a[:, 0], times, side="right") - 1
    return (index >= 0) & (times < a[np.maximum(index, 0), 1]) if len(a) else np.zeros(len(times), dtype=bool)


def covered(a: Intervals, starts: ArrayLike, ends: ArrayLike) -> NDArray[np.int64]:
    """For each window `[start, end)`, the length of it that a covers (windows may overlap each other)."""
    first = np.asarray(starts, dtype=np.int64)
    last = np.maximum(np.asarray(ends, dtype=np.int64), first)
    return _covered_before(a, last) - _covered_before(a, first)


def _covered_before(a: Intervals, times: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(a) == 0:
        return np.zeros(times.shape, dtype=np.int64)
    total = np.concatenate(([0], np.cumsum(a[:, 1] - a[:, 0])))
    index = np.searchsorted(a[:, 0], times, side="right")
    open_start, open_end = a[np.maximum(index - 1, 0), 0], a[np.maximum(index - 1, 0), 1]
    inside = np.where(index > 0, np.minimum(times, open_end) - open_start, 0)
    return total[np.maximum(index - 1, 0)] + inside
