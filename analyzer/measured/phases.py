"""Phases and times of one step of one core, from the columns of the trace.

A step can have millions of events. Their numbers are taken here from whole arrays; the table of spans is made
for what is drawn, and may hold less.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer import intervals, metrics, nesting
from analyzer.measured import operations
from analyzer.measured.load import OPS
from analyzer.measured.scopes import is_barrier
from analyzer.measured.spans import CoreTrace, outermost_waits
from analyzer.measured.stages import places
from analyzer.timeline import Provenance


@dataclass(frozen=True, slots=True, eq=False)
class _Regions:
    """Scopes and operations of one step, sorted by start; R of them, with their place as codes."""

    start_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    layer: NDArray[np.int32]
    path: NDArray[np.int32]
    paths: list[str]


def step_times(
    trace: CoreTrace, step: int, window: tuple[int, int]
) -> tuple[list[metrics.Phase], metrics.CoreTime]:
    """The phases of a step and how its core spent it: what analyzer/metrics.py makes of a table of spans.

    Args:
        trace: the core.
        step: number of the step.
        window: start and end of the reported run, picoseconds of the trace.
    """
    start, end = window
    regions = _regions(trace, step)
    waits = _waits(trace, step)
    scopes = trace.scopes
    stalled = intervals.clip(intervals.from_spans(scopes.start_ps[waits], scopes.end_ps[waits]), start, end)
    # Waits are scopes, so scopes and operations are all that the program does.
    program = (
        intervals.clip(intervals.single(int(regions.start_ps.min()), int(regions.end_ps.max())), start, end)
        if len(regions.start_ps)
        else intervals.EMPTY
    )
    busy = intervals.subtraction(program, stalled)
    barriers = waits[np.isin(waits, scopes.rows(is_barrier))]
    messages = intervals.from_spans(scopes.start_ps[barriers], scopes.end_ps[barriers])
    message_ps = intervals.measure(intervals.clip(messages, start, end))
    stalled_ps, busy_ps = intervals.measure(stalled), intervals.measure(busy)
    time = metrics.CoreTime(
        core=trace.device.core,
        window_ps=end - start,
        busy_ps=busy_ps,
        mxu_ps=None,
        stalled_ps=stalled_ps,
        stalled_dma_ps=0,
        stalled_ici_ps=message_ps,
        stalled_other_ps=stalled_ps - message_ps,
        outside_program_ps=end - start - busy_ps - stalled_ps,
    )
    phases = _phases(regions, start, end, busy) if len(regions.start_ps) else []
    return phases, time


def _phases(regions: _Regions, start: int, end: int, busy: intervals.Intervals) -> list[metrics.Phase]:
    first, last = np.clip(regions.start_ps, start, end), np.clip(regions.end_ps, start, end)
    layer, path = regions.layer, regions.path
    order = nesting.entry_order(first, last)
    if order is not None:
        first, last, layer, path = first[order], last[order], layer[order], path[order]
    known, of = places(layer, path, regions.paths)
    entries = np.bincount(of, minlength=len(known)).tolist()
    own, occupied = (np.zeros(len(known) + 1, dtype=np.int64) for _ in range(2))
    for starts, ends, rows in nesting.blocks(first, last):
        np.add.at(own, of[rows], ends - starts)
        np.add.at(occupied, of[rows], intervals.covered(busy, starts, ends))
    # What no scope and no operation covers is time in no phase, as is a layer outside any phase.
    outside, idle = end - start - int(own.sum()), intervals.measure(busy) - int(occupied.sum())
    if outside and (None, "") not in known:
        known, entries = [*known, (None, "")], [*entries, 0]
    if outside:
        own[known.index((None, ""))] += outside
        occupied[known.index((None, ""))] += idle
    whole = end - start
    return [
        metrics.Phase(
            layer=layer,
            phase=name,
            entries=entered,
            time_ps=time,
            share=time / whole if whole else None,
            read_bytes=None,
            sent_bytes=None,
            busy_ps=worked,
            stalled_dma_ps=0,
            stalled_ici_ps=0,
            in_flight_ps=0,
            provenance=str(Provenance.MEASURED),
        )
        for (layer, name), entered, time, worked in zip(
            known, entries, own[: len(known)].tolist(), occupied[: len(known)].tolist(), strict=True
        )
    ]


def _regions(trace: CoreTrace, step: int) -> _Regions:
    scopes, ops = trace.scopes, trace.device.lines[OPS]
    one = trace.within(scopes.start_ps, step, step)
    names, of_kind = operations.groups(ops.kinds)
    two = trace.within(ops.start_ps, step, step)
    rows = operations.around_kernels(ops, two)
    paths = list(dict.fromkeys([*scopes.paths, *names]))
    code = {path: index for index, path in enumerate(paths)}
    of_path = np.array([code[path] for path in scopes.paths], dtype=np.int32)
    of_group = np.array([code[name] for name in names], dtype=np.int32)
    start, end = scopes.start_ps[one], scopes.end_ps[one]
    layer, path = scopes.layer[one], of_path[scopes.path[one]]
    if len(rows):
        start, end = (np.concatenate(pair) for pair in ((start, ops.start_ps[rows]), (end, ops.end_ps[rows])))
        layer = np.concatenate((layer, np.full(len(rows), -1, dtype=np.int32)))
        path = np.concatenate((path, of_group[of_kind[ops.kind[rows]]]))
    if not (start[1:] >= start[:-1]).all():
        order = np.argsort(start, kind="stable")
        start, end, layer, path = start[order], end[order], layer[order], path[order]
    return _Regions(start, end, layer, path, paths)


def _waits(trace: CoreTrace, step: int) -> NDArray[np.int64]:
    """Indices of the waits of the step."""
    scopes = trace.scopes
    one = trace.within(scopes.start_ps, step, step)
    rows = outermost_waits(scopes)
    return rows[(rows >= one.start) & (rows < one.stop)]
