"""Puts what a trace shows into the span table (analyzer/timeline.py), provenance "measured".

Time 0 is the first event of the trace. Scopes and XLA operations are regions; waits stand on the wait track
as well. Copies inside a kernel are not in a trace, so HBM tracks hold asynchronous XLA operations only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer import timeline as table
from analyzer.measured import detail, operations
from analyzer.measured.kernel import Kernel, Runs, kernel_calls, operation_name, steps
from analyzer.measured.load import ASYNC, MODULES, OPS, SCOPES, Device
from analyzer.measured.scopes import Scopes, is_barrier, is_wait, read_scopes
from analyzer.timeline import Kind, Provenance, Track

SPANS_KEPT = 200_000  # of a longer trace the table holds the steps around the reported one
LEAST_PER_LINE = 16  # spans that each line of a step keeps, however little its part in the step is


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

    def within(self, start_ps: NDArray[np.int64], low: int, high: int) -> slice:
        """The events of some steps on a line that is sorted by start."""
        starts = self.step_starts
        first = 0 if low <= 0 else int(np.searchsorted(start_ps, starts[low]))
        last = len(start_ps)
        if high + 1 < len(starts):
            last = int(np.searchsorted(start_ps, starts[high + 1]))
        return slice(first, last)


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


def whole_time(trace: CoreTrace) -> CoreTrace:
    """All of the recorded time as one run, for a trace that does not say where a step begins."""
    ops = trace.device.lines[OPS]
    if not len(ops):
        return trace
    first = ops.start_ps[:1]
    run = Runs("stretch of recorded time", first, ops.end_ps.max(keepdims=True) - first)
    return replace(trace, steps=run, step_starts=first)


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
        limit: as in `steps_kept`; if the step alone has more events, its short ones are folded together.

    Returns:
        (the table, the first and last step that it holds or None for all).
    """
    zero = origin(traces)
    kept = steps_kept(traces, step, limit)
    if kept is not None:
        traces = [_within(trace, *kept) for trace in traces]
        if kept[0] == kept[1]:
            traces = _folded(traces, limit, limit // 3)
    parts = [part for trace in traces for part in (_scopes(trace), _waits(trace), _ops(trace), _async(trace))]
    columns: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts])
        for name in (
            "core", "track", "kind", "name", "step", "layer", "phase", "start_ps", "duration_ps", "bytes",
            "queue", "source",
        )
    }  # fmt: skip
    columns["start_ps"] -= zero
    return _frame(columns), kept


def _frame(columns: dict[str, Any]) -> pd.DataFrame:
    """A timeline of whole columns; numbers below 0 and absent columns are unknown.

    Every column gets its dtype here: converted all together they would need several times the memory.
    """
    count = len(columns["core"])
    columns |= {
        "span": np.arange(count),
        "provenance": np.full(count, str(Provenance.MEASURED), dtype=object),
    }
    series: dict[str, Any] = {}
    for name, dtype in table.COLUMNS.items():
        if dtype[0] == "I":  # whole numbers that may be unknown
            values = columns[name] if name in columns else np.full(count, -1)
            series[name] = pd.arrays.IntegerArray(values.astype(dtype.lower()), values < 0)
        else:
            series[name] = pd.Series(columns[name], dtype=dtype)
    return pd.DataFrame(series, copy=False)


def steps_kept(traces: list[CoreTrace], step: int, limit: int = SPANS_KEPT) -> tuple[int, int] | None:
    """The steps around `step` that have no more events than `limit` together, at least itself.

    Returns:
        (first, last); None for all.
    """
    counts = np.zeros(max(step + 1, *(len(trace.step_starts) for trace in traces)), dtype=np.int64)
    for trace in traces:
        for start in (trace.scopes.start_ps, *(trace.device.lines[name].start_ps for name in (OPS, ASYNC))):
            bounds = np.searchsorted(start, trace.step_starts[1:])
            each = np.diff(bounds, prepend=0, append=len(start))
            counts[: len(each)] += each
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


def events_of(traces: list[CoreTrace], step: int) -> int:
    """Number of scopes and operations of all cores in a step."""
    return _events([_within(trace, step, step) for trace in traces])


def _within(trace: CoreTrace, low: int, high: int) -> CoreTrace:
    """The events of some steps."""
    s = trace.scopes
    rows = trace.within(s.start_ps, low, high)
    scopes = replace(
        s,
        start_ps=s.start_ps[rows],
        end_ps=s.end_ps[rows],
        name=s.name[rows],
        path=s.path[rows],
        layer=s.layer[rows],
        site=s.site[rows],
        parent=np.full(rows.stop - rows.start, -1, dtype=np.int32),  # indices mean nothing among some
    )
    lines = dict(trace.device.lines)
    for name in (OPS, ASYNC):
        lines[name] = lines[name].part(trace.within(lines[name].start_ps, low, high))
    return replace(trace, scopes=scopes, device=replace(trace.device, lines=lines))


def _folded(traces: list[CoreTrace], limit: int, most: int) -> list[CoreTrace]:
    """Where there are more events than the limit, about `most` spans, shared by how many each line has."""
    total = _events(traces)
    if total <= limit:
        return traces
    result = []
    for trace in traces:
        lines = dict(trace.device.lines)
        for name, less in ((OPS, detail.fold_operations), (ASYNC, detail.longest)):
            lines[name] = less(lines[name], max(most * len(lines[name]) // total, LEAST_PER_LINE))
        scopes = detail.fold_scopes(trace.scopes, max(most * len(trace.scopes) // total, LEAST_PER_LINE))
        result.append(replace(trace, scopes=scopes, device=replace(trace.device, lines=lines)))
    return result


def _events(traces: list[CoreTrace]) -> int:
    lines = [len(trace.device.lines[name]) for trace in traces for name in (OPS, ASYNC)]
    return sum(lines) + sum(len(trace.scopes) for trace in traces)


def _part(
    trace: CoreTrace, start: NDArray[np.int64], end: NDArray[np.int64], **more: object
) -> dict[str, NDArray[Any]]:
    """Columns of some spans; text that is the same for all may be given as a string."""
    count = len(start)
    part: dict[str, Any] = {
        "core": np.full(count, trace.device.core),
        "start_ps": start,
        "duration_ps": end - start,
        "step": trace.step_of(start),
        "layer": np.full(count, -1, dtype=np.int32),
        "bytes": np.full(count, -1, dtype=np.int64),
    }
    for name, value in {"phase": "", "queue": "", "source": "", **more}.items():
        part[name] = np.full(count, value, dtype=object) if isinstance(value, str) else value
    return part


def texts(values: Sequence[str], codes: NDArray[Any]) -> NDArray[np.object_]:
    """The texts that codes stand for, each of them one object however often it occurs."""
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out[codes]


def _scopes(trace: CoreTrace) -> dict[str, NDArray[Any]]:
    s = trace.scopes
    more = {"name": texts(s.names, s.name), "phase": texts(s.paths, s.path), "layer": s.layer}
    return _part(trace, s.start_ps, s.end_ps, track=str(Track.REGION), kind=str(Kind.IDLE), **more)


def outermost_waits(scopes: Scopes) -> NDArray[np.int64]:
    """Indices of the scopes that are waits and lie in no other wait."""
    rows = scopes.rows(is_wait)
    chosen, until = [], -1
    for i, start, end in zip(
        rows.tolist(), scopes.start_ps[rows].tolist(), scopes.end_ps[rows].tolist(), strict=True
    ):
        if start >= until:
            chosen.append(i)
            until = end
    return np.array(chosen, dtype=np.int64)


def _waits(trace: CoreTrace) -> dict[str, NDArray[Any]]:
    """Waits, outermost ones only: the track holds no overlaps."""
    s = trace.scopes
    rows = outermost_waits(s)
    kinds = [str(Kind.COLLECTIVE if is_barrier(name) else Kind.WAIT) for name in s.names]
    return _part(
        trace,
        s.start_ps[rows],
        s.end_ps[rows],
        track=str(Track.WAIT),
        kind=texts(kinds, s.name[rows]),
        name=texts(s.names, s.name[rows]),
        phase=texts(s.paths, s.path[rows]),
        layer=s.layer[rows],
    )


def _ops(trace: CoreTrace) -> dict[str, NDArray[Any]]:
    """XLA operations around the kernel."""
    ops = trace.device.lines[OPS]
    rows = operations.around_kernels(ops)
    groups, of_kind = operations.groups(ops.kinds)
    of = ops.kind[rows]
    return _part(
        trace,
        ops.start_ps[rows],
        ops.end_ps[rows],
        track=str(Track.REGION),
        kind=texts([str(operations.kind_of(groups[code])) for code in of_kind], of),
        name=texts([operation_name(kind.name, kind.short) for kind in ops.kinds], of),
        phase=texts([groups[code] for code in of_kind], of),
        source=texts([str(kind.facts.get("source") or "") for kind in ops.kinds], of),
    )


def _async(trace: CoreTrace) -> dict[str, NDArray[Any]]:
    """Asynchronous operations from start to done: as long as they are outstanding, not as bytes flow."""
    ops = trace.device.lines[ASYNC]
    tracks = [str(operations.copy_track(kind.name)) for kind in ops.kinds]
    kinds = [str(Kind.COLLECTIVE if track == Track.ICI_SEND else Kind.TRANSFER) for track in tracks]
    moved = [kind.facts.get("raw_bytes_accessed", kind.facts.get("bytes_accessed")) for kind in ops.kinds]
    sizes = np.array([m if isinstance(m, int) and 0 <= m < 1 << 63 else -1 for m in moved], dtype=np.int64)
    lane = np.array(lanes(ops.start_ps, ops.end_ps), dtype=np.int64)
    return _part(
        trace,
        ops.start_ps,
        ops.end_ps,
        track=texts(tracks, ops.kind),
        kind=texts(kinds, ops.kind),
        name=texts([operation_name(kind.name, kind.short) for kind in ops.kinds], ops.kind),
        bytes=sizes[ops.kind],
        queue=texts([f"async:{n}" for n in range(lane.max(initial=-1) + 1)], lane),
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
