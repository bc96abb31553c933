"""Less detail for steps with more events than anybody draws: neighbours that are short become one span.

Only the table of spans gets less; numbers of the report are taken from all events (phases.py, stages.py).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from analyzer.measured import operations
from analyzer.measured.load import EventKind, Events
from analyzer.measured.scopes import Scopes


def neighbours(start: NDArray[np.int64], end: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """int64[S]: the group of each span, 0, 1, ... in order; no more than about `most` groups.

    Long spans stay alone. Short ones join their neighbours, never across the start or the end of a long one,
    so that spans that nest give groups that nest.

    Args:
        start, end: int64[S], sorted by start.
    """
    count = len(start)
    if count <= most:
        return np.arange(count)
    alone = np.zeros(count, dtype=bool)
    quarter = max(most // 4, 1)
    alone[np.argpartition(start - end, quarter - 1)[:quarter]] = True
    bounds = np.sort(np.concatenate((start[alone], end[alone])))
    segment = np.searchsorted(bounds, start, side="right")
    each = -(-count // quarter)
    number = np.arange(count) // each
    opens = np.ones(count, dtype=bool)
    opens[1:] = (np.diff(segment) != 0) | (np.diff(number) != 0) | alone[1:] | alone[:-1]
    return np.cumsum(opens) - 1


def extents(
    start: NDArray[np.int64], end: NDArray[np.int64], group: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(first member, start, end) of each group.

    A group of several that begins inside one before it, and ends behind it, is cut to what is behind it.
    """
    first = np.flatnonzero(np.diff(group, prepend=-1))
    begins = start[first]
    ends = np.maximum.reduceat(end, first)
    several = np.diff(first, append=len(group)) > 1
    stack: list[int] = []  # ends of the groups that are open
    for at, (begin, finish, cut) in enumerate(
        zip(begins.tolist(), ends.tolist(), several.tolist(), strict=True)
    ):
        while stack and (stack[-1] <= begin or stack[-1] < finish):
            until = stack.pop()
            if cut and until > begin:
                begins[at] = begin = until  # noqa: PLW2901
        stack.append(finish)
    return first, begins, ends


def _most_time(
    group: NDArray[np.int64], label: NDArray[np.int32], time: NDArray[np.int64], labels: int
) -> NDArray[np.int64]:
    """int64[G]: of each group the label that has most of its time, of equals the first."""
    key = group * labels + label
    found, inverse = np.unique(key, return_inverse=True)
    sums = np.bincount(inverse, weights=time)
    order = np.lexsort((found, -sums, found // labels))
    firsts = np.flatnonzero(np.diff(found[order] // labels, prepend=-1))
    return found[order][firsts] % labels


def fold_operations(ops: Events, most: int) -> Events:
    """Operations that are no kernels, no more than about `most`."""
    rows = operations.around_kernels(ops)
    if len(rows) <= most:
        return ops
    start, end, kind = ops.start_ps[rows], ops.end_ps[rows], ops.kind[rows]
    names, of_kind = operations.groups(ops.kinds)
    group = neighbours(start, end, most)
    first, begins, ends = extents(start, end, group)
    size = np.diff(first, append=len(rows))
    label = _most_time(group, of_kind[kind], end - start, len(names))
    kinds = list(ops.kinds)
    known: dict[tuple[int, int], int] = {}
    codes = kind[first]
    for at in np.flatnonzero(size > 1).tolist():
        key = (int(size[at]), int(label[at]))
        if key not in known:
            known[key] = len(kinds)
            text = f"{key[0]:,} operations"
            kinds.append(EventKind(text, text, {"hlo_category": names[key[1]]}))
        codes[at] = known[key]
    return replace(ops, start_ps=begins, duration_ps=ends - begins, kind=codes, kinds=kinds, numbers={})


def fold_scopes(scopes: Scopes, most: int) -> Scopes:
    """No more than about `most` scopes."""
    if len(scopes) <= most:
        return scopes
    group = neighbours(scopes.start_ps, scopes.end_ps, most)
    first, begins, ends = extents(scopes.start_ps, scopes.end_ps, group)
    size = np.diff(first, append=len(group))
    label = _most_time(group, scopes.path, scopes.end_ps - scopes.start_ps, len(scopes.paths))
    several = size > 1
    sizes, code = np.unique(size[several], return_inverse=True)
    name = scopes.name[first]
    name[several] = len(scopes.names) + code
    return replace(
        scopes,
        start_ps=begins,
        end_ps=ends,
        names=(*scopes.names, *(f"{number:,} scopes" for number in sizes.tolist())),
        name=name,
        path=np.where(several, label, scopes.path[first]).astype(np.int32),
        layer=scopes.layer[first],
        parent=np.full(len(first), -1, dtype=np.int32),
        site=scopes.site[first],
    )


def longest(ops: Events, most: int) -> Events:
    """Operations on several lanes do not nest, so the shortest are left out."""
    if len(ops) <= most:
        return ops
    return ops.part(np.sort(np.argpartition(-ops.duration_ps, most - 1)[:most]))
