"""Time per scope over all runs of a core: inclusive and exclusive, each picosecond once."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
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
    if not len(scopes.name) or not whole:
        return []
    known: dict[tuple[int | None, str], int] = {}
    of = np.empty(len(scopes.name), dtype=np.int64)
    for i, (layer, path) in enumerate(zip(scopes.layer.tolist(), scopes.path, strict=True)):
        of[i] = known.setdefault((None if layer < 0 else layer, path), len(known))
    own = _own(scopes, of, len(known), windows)
    begins = intervals.covered(windows, scopes.start_ps, scopes.start_ps + 1) > 0

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
    for (key, group), rows in zip(known.items(), members, strict=True):
        spans = intervals.from_spans(scopes.start_ps[rows], scopes.end_ps[rows])
        inside, entered = intervals.intersection(spans, windows), int(begins[rows].sum())
        if entered or len(inside):
            result.append(stage(key, inside, int(own[group]), entered))
    rest = intervals.subtraction(windows, intervals.from_spans(scopes.start_ps, scopes.end_ps))
    if len(rest):
        result.append(stage((None, ""), rest, intervals.measure(rest), len(runs)))
    return result


def _own(
    scopes: Scopes, of: NDArray[np.int64], groups: int, windows: intervals.Intervals
) -> NDArray[np.int64]:
    """int64[groups]: time in the scopes of each group and not in a scope nested in them.

    Scopes nest, so it is their time less that of their children; where some cross, time belongs to the scope
    that was entered last.
    """
    if not scopes.crossing:
        inside = intervals.covered(windows, scopes.start_ps, scopes.end_ps)
        nested = scopes.parent >= 0
        own = inside.copy()
        np.subtract.at(own, scopes.parent[nested], inside[nested])
        total = np.zeros(groups, dtype=np.int64)
        np.add.at(total, of, own)
        return total
    layer = pd.array([None if v < 0 else v for v in scopes.layer.tolist()], dtype="Int32")
    regions = pd.DataFrame({"start_ps": scopes.start_ps, "layer": layer})
    regions["duration_ps"] = np.maximum(scopes.end_ps - scopes.start_ps, 0)
    regions["phase"], regions["name"] = np.array(scopes.path, dtype=object), ""
    times = metrics.self_times(regions, int(windows[0, 0]), int(windows[-1, 1]))
    total = np.zeros(groups, dtype=np.int64)
    for layer_number, path, group in {
        (int(number), path, int(group))
        for number, path, group in zip(scopes.layer, scopes.path, of, strict=True)
    }:
        found = times.get((None if layer_number < 0 else layer_number, path), intervals.EMPTY)
        total[group] = intervals.measure(intervals.intersection(found, windows))
    return total
