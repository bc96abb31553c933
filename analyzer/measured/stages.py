"""Time per scope over all runs of a core: inclusive and exclusive, each picosecond once."""

from dataclasses import dataclass

from analyzer import intervals
from analyzer.measured.kernel import Runs
from analyzer.measured.spans import CoreTrace


@dataclass(frozen=True, slots=True)
class Stage:
    """One phase over all runs.

    Attributes:
        layer: None outside any layer. phase: path; "" is time in no scope.
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
    """The phases in the order of their first entry, nested ones behind what they are nested in."""
    scopes = trace.scopes
    starts, ends = runs.start_ps, runs.start_ps + runs.duration_ps
    windows = intervals.from_spans(starts, ends)
    whole = intervals.measure(windows)
    if not len(scopes.name) or not whole:
        return []
    groups: dict[tuple[int, str], list[int]] = {}
    for i, key in enumerate(zip(scopes.layer.tolist(), scopes.path, strict=True)):
        if scopes.name[i]:
            groups.setdefault(key, []).append(i)
    inside = {
        key: intervals.intersection(intervals.from_spans(scopes.start_ps[rows], scopes.end_ps[rows]), windows)
        for key, rows in groups.items()
    }
    result = []
    for key, rows in groups.items():
        layer, path = key
        within = inside[key]
        entered = int(
            (intervals.covered(windows, scopes.start_ps[rows], scopes.start_ps[rows] + 1) > 0).sum()
        )
        if not entered and not len(within):
            continue
        children = [
            other for (level, name), other in inside.items() if level == layer and name.startswith(path + "/")
        ]
        own = intervals.subtraction(within, intervals.union(*children))
        per_run = intervals.covered(within, starts, ends)
        result.append(
            Stage(
                layer=None if layer < 0 else layer,
                phase=path,
                depth=path.count("/"),
                entries=entered / len(runs),
                time_ps=round(intervals.measure(within) / len(runs)),
                own_ps=round(intervals.measure(own) / len(runs)),
                share=intervals.measure(within) / whole,
                own_share=intervals.measure(own) / whole,
                shortest_ps=int(per_run.min()),
                longest_ps=int(per_run.max()),
            )
        )
    rest = intervals.subtraction(windows, intervals.union(*inside.values()))
    left = intervals.measure(rest)
    if left:
        per_run = intervals.covered(rest, starts, ends)
        low, high, share = int(per_run.min()), int(per_run.max()), left / whole
        mean = round(left / len(runs))
        result.append(Stage(None, "", 0, 1.0, mean, mean, share, share, low, high))
    return result
