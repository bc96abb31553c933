"""Puts what a trace shows into the span table (analyzer/timeline.py), provenance "measured".

Time 0 is the first event of the trace. Scopes and XLA operations are regions; waits stand on the wait track
as well. Copies inside a kernel are not in a trace, so HBM tracks hold asynchronous XLA operations only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer import timeline as table
from analyzer.measured import operations
from analyzer.measured.kernel import TARGET, Kernel, Runs, kernel_calls, operation_name, steps
from analyzer.measured.load import ASYNC, MODULES, OPS, SCOPES, Device
from analyzer.measured.scopes import Scopes, is_barrier, is_wait, read_scopes
from analyzer.timeline import Kind, Provenance, Track

SPANS_KEPT = 300_000  # of a longer trace the table holds the steps around the reported one


@dataclass(frozen=True, slots=True, eq=False)
class CoreTrace:
    """One core: its calls of the kernel (none without a kernel), its steps, its scopes.

    step_starts: int64[C], where each step begins; the spans of a step run up to the next.
    """

    device: Device
    calls: Runs
    steps: Runs
    scopes: Scopes
    step_starts: NDArray[np.int64]

    @property
    def runs(self) -> Runs:
        """What the report is about: the calls of the kernel, else the steps."""
        return self.calls if len(self.calls) else self.steps

    def step_of(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[...], the step in which each time lies; before the first step it is step 0."""
        return np.maximum(np.searchsorted(self.step_starts, times, side="right") - 1, 0)


def core_trace(device: Device, kernel: Kernel | None) -> CoreTrace:
    """Everything about one core."""
    none = np.empty(0, dtype=np.int64)
    calls = kernel_calls(device, kernel) if kernel else Runs("", none, none)
    runs = steps(device)
    if len(calls):
        runs = _around(calls, device) or runs
    # The operations in front of a kernel belong to its step: it begins with its module, not with the call.
    begins = runs.start_ps if len(runs) else calls.start_ps
    return CoreTrace(device, calls, runs, read_scopes(device, runs if len(runs) else calls), begins)


def _around(calls: Runs, device: Device) -> Runs | None:
    """The modules that hold calls of the kernel; None where modules were not recorded, or `Steps` were."""
    modules = device.lines[MODULES]
    if len(device.lines["Steps"]) or not len(modules):
        return None
    at = np.searchsorted(modules.start_ps, calls.start_ps, side="right") - 1
    inside = (at >= 0) & (calls.start_ps < modules.end_ps[at])
    if not inside.all():
        return None
    rows = np.unique(at)
    names = sorted({modules.kinds[int(modules.kind[r])].name.split("(")[0] for r in rows})
    return Runs(f"runs of {', '.join(names[:3])}", modules.start_ps[rows], modules.duration_ps[rows])


def origin(traces: list[CoreTrace]) -> int:
    """The first time in the trace, picoseconds: time 0 of the timeline."""
    firsts = [
        int(line.start_ps[0])
        for trace in traces
        for line in (trace.device.lines[name] for name in (MODULES, OPS, ASYNC, SCOPES))
        if len(line)
    ]
    return min(firsts, default=0)


def build_timeline(
    traces: list[CoreTrace], step: int = 0, limit: int = SPANS_KEPT
) -> tuple[pd.DataFrame, tuple[int, int] | None]:
    """The spans of all cores.

    Args:
        traces: the cores.
        step: the step that must be in it.
        limit: with more events than this, only whole steps around that one are kept.

    Returns:
        (the table, the first and last step that it holds or None for all).
    """
    zero = origin(traces)
    kept = _steps_kept(traces, step, limit)
    if kept is not None:
        traces = [_within(trace, *kept) for trace in traces]
    parts = [part for trace in traces for part in (_scopes(trace), _waits(trace), _ops(trace), _async(trace))]
    columns: dict[str, object] = {}
    for name in ("core", "track", "kind", "name", "step", "layer", "phase", "start_ps", "duration_ps"):
        columns[name] = np.concatenate([part[name] for part in parts])
    for name, filler in (("bytes", None), ("queue", ""), ("source", "")):
        filled = [part.get(name, np.full(len(part["core"]), filler, dtype=object)) for part in parts]
        columns[name] = np.concatenate([np.asarray(one, dtype=object) for one in filled])
    columns["start_ps"] = np.asarray(columns["start_ps"], dtype=np.int64) - zero
    count = sum(len(part["core"]) for part in parts)
    columns["span"] = np.arange(count)
    columns["provenance"] = np.full(count, str(Provenance.MEASURED), dtype=object)
    columns["layer"] = pd.array(
        [None if v < 0 else v for v in np.asarray(columns["layer"]).tolist()], dtype="Int32"
    )
    return table.from_columns(columns), kept


def _steps_kept(traces: list[CoreTrace], step: int, limit: int) -> tuple[int, int] | None:
    """The steps around `step` that have no more events than `limit` together, at least itself."""
    every = [
        trace.step_of(starts)
        for trace in traces
        for starts in (trace.scopes.start_ps, *(trace.device.lines[n].start_ps for n in (OPS, ASYNC)))
    ]
    counts = np.bincount(np.concatenate(every), minlength=step + 1)
    if counts.sum() <= limit:
        return None
    low = high = step
    room = limit - int(counts[step])
    while True:
        later = int(counts[high + 1]) if high + 1 < len(counts) else limit + 1
        earlier = int(counts[low - 1]) if low else limit + 1
        if later <= min(room, earlier):
            high, room = high + 1, room - later
        elif earlier <= room:
            low, room = low - 1, room - earlier
        else:
            return low, high


def _within(trace: CoreTrace, low: int, high: int) -> CoreTrace:
    """The events of some steps."""

    def chosen(start_ps: NDArray[np.int64]) -> NDArray[np.int64]:
        steps = trace.step_of(start_ps)
        return np.flatnonzero((steps >= low) & (steps <= high))

    s = trace.scopes
    rows = chosen(s.start_ps)
    scopes = replace(
        s,
        start_ps=s.start_ps[rows],
        end_ps=s.end_ps[rows],
        name=[s.name[i] for i in rows],
        path=[s.path[i] for i in rows],
        layer=s.layer[rows],
    )
    lines = dict(trace.device.lines)
    for name in (OPS, ASYNC):
        line = lines[name]
        rows = chosen(line.start_ps)
        lines[name] = replace(
            line, start_ps=line.start_ps[rows], duration_ps=line.duration_ps[rows], kind=line.kind[rows]
        )
    return replace(trace, scopes=scopes, device=replace(trace.device, lines=lines))


def _part(trace: CoreTrace, start: NDArray[np.int64], end: NDArray[np.int64], **more: object) -> dict:
    count = len(start)
    part: dict[str, object] = {
        "core": np.full(count, trace.device.core),
        "start_ps": start,
        "duration_ps": end - start,
        "step": trace.step_of(start),
        "layer": np.full(count, -1),
        "phase": np.full(count, "", dtype=object),
    }
    for name, value in more.items():
        part[name] = np.full(count, value, dtype=object) if isinstance(value, str) else value
    return part


def _objects(values: Sequence[object]) -> NDArray[np.object_]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _scopes(trace: CoreTrace) -> dict:
    s = trace.scopes
    more = {"name": _objects(s.name), "phase": _objects(s.path), "layer": s.layer}
    return _part(trace, s.start_ps, s.end_ps, track=str(Track.REGION), kind=str(Kind.IDLE), **more)


def _waits(trace: CoreTrace) -> dict:
    """Waits, outermost ones only: the track holds no overlaps."""
    s = trace.scopes
    chosen, until = [], -1
    for i, name in enumerate(s.name):
        if is_wait(name) and int(s.start_ps[i]) >= until:
            chosen.append(i)
            until = int(s.end_ps[i])
    rows = np.array(chosen, dtype=np.int64)
    kinds = [Kind.COLLECTIVE if is_barrier(s.name[i]) else Kind.WAIT for i in chosen]
    return _part(
        trace,
        s.start_ps[rows],
        s.end_ps[rows],
        track=str(Track.WAIT),
        kind=_objects([str(k) for k in kinds]),
        name=_objects([s.name[i] for i in chosen]),
        phase=_objects([s.path[i] for i in chosen]),
        layer=s.layer[rows],
    )


def _ops(trace: CoreTrace) -> dict:
    """XLA operations around the kernel; kernels themselves are seen through their scopes."""
    ops = trace.device.lines[OPS]
    others = [i for i, kind in enumerate(ops.kinds) if TARGET not in kind.name]
    rows = ops.where(others)
    names = [operation_name(kind.name, kind.short) for kind in ops.kinds]
    groups = [operations.category(kind.name, kind.facts) for kind in ops.kinds]
    of = ops.kind[rows].tolist()
    return _part(
        trace,
        ops.start_ps[rows],
        ops.end_ps[rows],
        track=str(Track.REGION),
        kind=_objects([str(operations.kind_of(groups[k])) for k in of]),
        name=_objects([names[k] for k in of]),
        phase=_objects([groups[k] for k in of]),
        source=_objects([str(ops.kinds[k].facts.get("source") or "") for k in of]),
    )


def _async(trace: CoreTrace) -> dict:
    """Asynchronous operations from start to done: as long as they are outstanding, not as bytes flow."""
    ops = trace.device.lines[ASYNC]
    tracks = [str(operations.copy_track(kind.name)) for kind in ops.kinds]
    moved = [kind.facts.get("raw_bytes_accessed", kind.facts.get("bytes_accessed")) for kind in ops.kinds]
    collective = [t == Track.ICI_SEND for t in tracks]
    of = ops.kind.tolist()
    return _part(
        trace,
        ops.start_ps,
        ops.end_ps,
        track=_objects([tracks[k] for k in of]),
        kind=_objects([str(Kind.COLLECTIVE if collective[k] else Kind.TRANSFER) for k in of]),
        name=_objects([operation_name(ops.kinds[k].name, ops.kinds[k].short) for k in of]),
        bytes=_objects([moved[k] if isinstance(moved[k], int) else None for k in of]),
        queue=_objects([f"async:{n}" for n in lanes(ops.start_ps, ops.end_ps)]),
    )


def lanes(start_ps: NDArray[np.int64], end_ps: NDArray[np.int64]) -> list[int]:
    """The lowest free number for each span, sorted by start: spans of one number do not overlap."""
    free: list[int] = []
    out = []
    for start, end in zip(start_ps.tolist(), end_ps.tolist(), strict=True):
        lane = next((i for i, until in enumerate(free) if until <= start), len(free))
        if lane == len(free):
            free.append(0)
        free[lane] = max(end, start + 1)
        out.append(lane)
    return out
