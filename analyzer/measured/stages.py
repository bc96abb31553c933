"""Time per scope over all runs of a core: inclusive and exclusive, each picosecond once."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

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
    groups: dict[tuple[int | None, str], list[int]] = {}
    for i, (layer, path) in enumerate(zip(scopes.layer.tolist(), scopes.path, strict=True)):
        groups.setdefault((None if layer < 0 else layer, path), []).append(i)
    own = metrics.self_times(_regions(scopes), int(starts.min()), int(ends.max()))

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

    result, everything = [], intervals.EMPTY
    for key, rows in groups.items():
        spans = intervals.from_spans(scopes.start_ps[rows], scopes.end_ps[rows])
        inside = intervals.intersection(spans, windows)
        begins = scopes.start_ps[rows]
        entered = int((intervals.covered(windows, begins, begins + 1) > 0).sum())
        if not entered and not len(inside):
            continue
        everything = intervals.union(everything, inside)
        alone = intervals.measure(intervals.intersection(own.get(key, intervals.EMPTY), windows))
        result.append(stage(key, inside, alone, entered))
    rest = intervals.subtraction(windows, everything)
    if len(rest):
        result.append(stage((None, ""), rest, intervals.measure(rest), len(runs)))
    return result


def _regions(scopes: Scopes) -> pd.DataFrame:
    """The scopes as `metrics.self_times` takes them."""
    layer = pd.array([None if v < 0 else v for v in scopes.layer.tolist()], dtype="Int32")
    return pd.DataFrame(
        {
            "start_ps": scopes.start_ps,
            "duration_ps": np.maximum(scopes.end_ps - scopes.start_ps, 0),
            "layer": layer,
            "phase": np.array(scopes.path, dtype=object),
            "name": np.full(len(scopes.path), "", dtype=object),
        }
    )
