"""Which of several nested spans is the innermost at each time: what "time of its own" rests on.

Spans that nest, as scopes and operations do, are handled in whole arrays; where some cross, time belongs to
the span that was entered last, and a loop works that out.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Pieces = tuple[Ints, Ints, Ints]
BLOCK = 16_384  # spans worked on at once, at least: bounds the memory


def entry_order(start: Ints, end: Ints) -> NDArray[np.intp] | None:
    """The order in which spans are entered; None if they are in it.

    Of two with the same start the longer comes first, of equals the one that came first.
    """
    behind = start[1:] > start[:-1]
    behind |= (start[1:] == start[:-1]) & (end[1:] <= end[:-1])
    return None if behind.all() else np.lexsort((-end, start))


def innermost(start: Ints, end: Ints) -> Pieces:
    """Cut the time that spans cover into pieces with one innermost span each.

    Args:
        start, end: int64[S], in any order; where they have one start the one is in the other that comes
            later in `entry_order`. Spans that are empty cover nothing.

    Returns:
        (starts, ends, rows), int64[P] each, by time: disjoint pieces, and the span that has each.
    """
    order = entry_order(start, end)
    if order is None:
        parts = list(blocks(start, end))
    else:
        found = blocks(start[order], end[order])
        parts = [(starts, ends, order[rows]) for starts, ends, rows in found]
    if not parts:
        none = np.empty(0, dtype=np.int64)
        return none, none, none
    starts, ends, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
    return starts, ends, rows


def blocks(start: Ints, end: Ints) -> Iterator[Pieces]:
    """The same some thousand spans at a time, for spans in the order of entry: memory stays bounded.

    Between two stretches in which nothing is open spans have nothing to do with each other.
    """
    low = 0
    while low < len(start):
        high = min(low + BLOCK, len(start))
        until = int(end[low:high].max())
        while high < len(start) and start[high] < until:
            further = int(np.searchsorted(start, until))
            until = max(until, int(end[high:further].max()))
            high = further
        rows = np.flatnonzero(end[low:high] > start[low:high]) + low
        if len(rows):
            found = _pieces(start[rows], end[rows])
            yield found[0], found[1], rows[found[2]]
        low = high


def _pieces(first: Ints, last: Ints) -> Pieces:
    if (first[1:] >= last[:-1]).all():  # one after the other: nothing nests
        return first, last, np.arange(len(first))
    found = _nested(first, last)
    return _crossing(first, last) if found is None else found


def _nested(first: Ints, last: Ints) -> Pieces | None:
    """The pieces of spans in order of entry; None if some cross.

    Starts and ends make a sequence of brackets. It nests properly exactly if on every level each end is that
    of the span that started before it on that level.
    """
    count = len(first)
    closing = np.lexsort((-np.arange(count), last))  # of spans that end together, the inner ones first
    times = np.concatenate((last[closing], first))  # ends before starts, where they are at one time
    order = np.argsort(times, kind="stable")
    times = times[order]
    row = np.concatenate((closing, np.arange(count)))[order]
    opens = order >= count
    depth = np.cumsum(np.where(opens, 1, -1))  # behind each bracket
    level = np.where(opens, depth, depth + 1)
    by_level = np.argsort(level, kind="stable")
    pairs = row[by_level].reshape(-1, 2)  # on a level starts and ends take turns
    if not (pairs[:, 0] == pairs[:, 1]).all():
        return None
    # Behind a bracket that leaves depth d, the span that started last on level d is the innermost.
    stride = 2 * count
    started = by_level[::2]
    known = level[started] * stride + started
    at = np.searchsorted(known, depth * stride + np.arange(stride), side="right") - 1
    chosen = np.flatnonzero((depth[:-1] > 0) & (times[1:] > times[:-1]))
    return times[chosen], times[chosen + 1], row[started[at[chosen]]]


def _crossing(first: Ints, last: Ints) -> Pieces:
    """The same by a loop, for spans of which some cross."""
    starts: list[int] = []
    ends: list[int] = []
    owners: list[int] = []
    stack: list[tuple[int, int]] = []  # row, end
    now = int(first[0])

    def run_until(time: int | None) -> None:
        nonlocal now
        while stack and (time is None or now < time):
            row, stop = stack[-1]
            upto = stop if time is None else min(stop, time)
            if upto > now:
                starts.append(now)
                ends.append(upto)
                owners.append(row)
                now = upto
            if time is None or stop <= time:
                stack.pop()
        now = now if time is None else max(now, time)

    for row, (begin, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        run_until(begin)
        while stack and stack[-1][1] <= now:
            stack.pop()
        stack.append((row, stop))
    run_until(None)
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64), np.array(owners, dtype=np.int64)
