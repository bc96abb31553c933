"""Time per scope over all runs of a core: inclusive and exclusive, each picosecond once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer import intervals, metrics
from analyzer.measured.kernel import Runs
from analyzer.measured.scopes import Scopes
from analyzer.measured.spans import CoreTrace


@dataclass(frozen=True, slots=True)
class Stage:
    """One phase over all runs.

    Attributes:
        layer: None outside any layer. phase: path; "" is time in no phase.
        depth: number of phases around it.
        entries: per run (mean).
        time_ps: per run (mean), with what is nested in it. own_ps: without.
        share, own_share: of the runs' time. Own shares add up to 1.
        shortest_ps, longest_ps: over the runs.
    """

    layer: int | None
    phase: str
    depth: int
    entries: float
    time_ps: int
    own_ps: int
    share: float | None
    own_share: float | None
    shortest_ps: int
    longest_ps: int


def stages(trace: CoreTrace, runs: Runs) -> list[Stage]:
    """The phases in the order of their first entry; what is left of the runs comes last."""
    scopes = trace.scopes
    starts, ends = runs.start_ps, runs.start_ps + runs.duration_ps
    windows = intervals.from_spans(starts, ends)
    whole = intervals.measure(windows)
    if not len(scopes) or not whole:
        return []
    known, of = places(scopes.layer, scopes.path, scopes.paths)
    own = _own(scopes, of, len(known), windows)
    begins = intervals.contains(windows, scopes.start_ps)

    def stage(key: tuple[int | None, str], inside: intervals.Intervals, alone: int, entered: int) -> Stage:
        per_run = intervals.covered(inside, starts, ends)
        time = intervals.measure(inside)
        return Stage(
            layer=key[0],
            phase=key[1],
            depth=key[1].count("/"),
            entries=entered / len(runs),
            time_ps=round(time / len(runs)),
            own_ps=round(alone / len(runs)),
            share=time / whole,
            own_share=alone / whole,
            shortest_ps=int(per_run.min()),
            longest_ps=int(per_run.max()),
        )

    result = []
    order = np.argsort(of, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(of, minlength=len(known)))[:-1])
    for group, (key, rows) in enumerate(zip(known, members, strict=True)):
        spans = intervals.from_spans(scopes.start_ps[rows], scopes.end_ps[rows])
        inside, entered = intervals.intersection(spans, windows), int(begins[rows].sum())
        if entered or len(inside):
            result.append(stage(key, inside, int(own[group]), entered))
    rest = intervals.subtraction(windows, intervals.from_spans(scopes.start_ps, scopes.end_ps))
    if len(rest):
        result.append(stage((None, ""), rest, intervals.measure(rest), len(runs)))
    return result


def places(
    layer: NDArray[np.int32], path: NDArray[np.int32], paths: Sequence[str]
) -> tuple[list[metrics.Place], NDArray[np.int64]]:
    """The (layer, phase) of spans in the order of their first entry, and int64[S], which one each has."""
    most = len(paths) + 1
    key = (layer.astype(np.int64) + 1) * most + path
    if len(key) and key.max() < 4 * len(key) + 1_000:  # few places: no need to sort
        first = np.full(int(key.max()) + 1, len(key))
        first[key[::-1]] = np.arange(len(key) - 1, -1, -1)
        found, of = np.flatnonzero(first < len(key)), key
        first = first[found]
    else:
        found, first, of = np.unique(key, return_index=True, return_inverse=True)
        found = np.arange(len(found))
    order = np.argsort(first)
    rank = np.empty(int(found[-1]) + 1 if len(found) else 0, dtype=np.int64)
    rank[found[order]] = np.arange(len(found))
    known: list[metrics.Place] = [
        (None if layer[i] < 0 else int(layer[i]), paths[int(path[i])]) for i in first[order].tolist()
    ]
    return known, rank[of]


def _own(
    scopes: Scopes, of: NDArray[np.int64], groups: int, windows: intervals.Intervals
) -> NDArray[np.int64]:
    """int64[groups]: time in the scopes of each group and not in a scope nested in them.

    Scopes nest, so it is their time less that of their children; where some cross, time belongs to the scope
    that was entered last.
    """
    total = np.zeros(groups, dtype=np.int64)
    if not scopes.crossing:
        own = intervals.covered(windows, scopes.start_ps, scopes.end_ps)
        nested = np.flatnonzero(scopes.parent >= 0)
        np.subtract.at(own, scopes.parent[nested], own[nested])
        np.add.at(total, of, own)
        return total
    low, high = int(windows[0, 0]), int(windows[-1, 1])
    first, last = np.clip(scopes.start_ps, low, high), np.clip(scopes.end_ps, low, high)
    for group, found in enumerate(metrics.own_times(first, last, of, groups)):
        total[group] = intervals.measure(intervals.intersection(found, windows))
    return total
