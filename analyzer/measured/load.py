"""The device lines of a trace as columns, whatever file they come from.

An xplane and a trace.json become the same thing: devices, each with lines of events in arrays. Durations that
cannot be true are mended here, once, and counted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.errors import InputError
from analyzer.nesting import entry_order
from analyzer.xplane.inputs import Trace, open_trace, tpu_planes
from analyzer.xplane.space import Line as SpaceLine
from analyzer.xplane.space import Plane, Space
from analyzer.xplane.trace_json import TraceSummary, read_events

MODULES, OPS, ASYNC, STEPS = "XLA Modules", "XLA Ops", "Async XLA Ops", "Steps"
SCOPES, MARKERS, COUNTERS = "XLA TraceMe", "Tensor Core", "_counters_"
LINES = (MODULES, OPS, ASYNC, STEPS, SCOPES, MARKERS, COUNTERS)
SAMPLED = (SCOPES, MARKERS, COUNTERS)  # lines on which durations can be absolute ends
# Stats of single events that the analyzer looks at; those of kinds of events are all kept.
_NUMBERS = ("device_duration_ps", "flops", "bytes_accessed", "layer")
JSON_SUFFIXES = (".trace.json.gz", ".trace.json")


@dataclass(frozen=True, slots=True)
class EventKind:
    """What the events of one kind share: full name (for an operation its HLO text), short name, facts."""

    name: str
    short: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """The events of one line, sorted by start; E events.

    Attributes:
        start_ps, duration_ps: int64[E].
        kind: int32[E], index into `kinds`.
        kinds: kinds of events.
        numbers: float64[E] per stat, NaN where an event does not have it.
        mended: indices of events whose recorded duration was their absolute end time; it was cut.
        labels: of markers, the text of one event of each kind (it holds the marker's address).
    """

    start_ps: NDArray[np.int64]
    duration_ps: NDArray[np.int64]
    kind: NDArray[np.int32]
    kinds: list[EventKind]
    numbers: dict[str, NDArray[np.float64]]
    mended: NDArray[np.int64]
    labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start_ps)

    @property
    def end_ps(self) -> NDArray[np.int64]:
        """int64[E], ends in picoseconds."""
        return self.start_ps + self.duration_ps

    def part(self, rows: slice | NDArray[np.int64]) -> "Events":
        """Some of the events, without the stats of single ones."""
        return replace(
            self,
            start_ps=self.start_ps[rows],
            duration_ps=self.duration_ps[rows],
            kind=self.kind[rows],
            numbers={},
        )

    def where(self, kinds: Iterable[int]) -> NDArray[np.int64]:
        """Indices of the events of these kinds."""
        wanted = np.zeros(len(self.kinds), dtype=bool)
        wanted[list(kinds)] = True
        return np.flatnonzero(wanted[self.kind])


@dataclass(slots=True, eq=False)
class Device:
    """One TPU core of a trace.

    Attributes:
        core: number of its plane; with several hosts numbers are given anew, host after host.
        name: name of its plane, with the host where there are several.
        host: file it comes from.
        facts: facts of its plane, peaks among them.
        lines: events by the name of the line; every one of LINES is there, if only empty.
        counts: number of events of every line the file has.
    """

    core: int
    name: str
    host: Path
    facts: Mapping[str, Any]
    lines: dict[str, Events]
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Loaded:
    """A trace as the measured side sees it.

    Attributes:
        files: the files that were read.
        devices: the cores of all hosts.
        programs: facts of `/host:metadata` by name: HLO and LLO protos.
        notes: choices made, hosts left out, events missing.
        requested: what the profiler was asked for, as far as the trace says.
    """

    files: list[Path]
    devices: list[Device]
    programs: dict[str, Mapping[str, Any]]
    notes: list[str]
    requested: dict[str, Any] = field(default_factory=dict)
    trace: Trace | None = None


def load(path: Path) -> Loaded:
    """Read a trace: a log folder, a run folder, an xplane file or a trace.json.

    Raises:
        InputError: there is none, or none that can be read.
    """
    if path.is_file() and path.name.endswith(JSON_SUFFIXES):
        return _from_json(path)
    return from_trace(open_trace(path))


def from_trace(trace: Trace) -> Loaded:
    """The same from an open trace.

    Raises:
        InputError: events are damaged.
    """
    from analyzer.xplane.wire import WireError

    loaded = Loaded([], [], {}, list(trace.notes), trace=trace)
    several = len(trace.spaces) > 1
    for space in trace.spaces:
        loaded.files.append(space.path)
        loaded.notes += [f"the profiler said: {text}" for text in (*space.errors, *space.warnings)][:5]
        try:
            for index in tpu_planes(space):
                plane = space.planes[index]
                name = f"{space.path.name.split('.')[0]} {plane.name}" if several else plane.name
                number = plane.name.rpartition(":")[2]
                core = int(number) if number.isdecimal() and not several else len(loaded.devices)
                loaded.devices.append(_device(core, name, space.path, plane))
        except (WireError, IndexError, OverflowError) as error:
            raise InputError(
                space.path, f"its events are damaged ({error})", "Copy or record it again."
            ) from error
        _programs(space, loaded)
    if not any(any(d.counts.values()) for d in loaded.devices):
        raise InputError(
            loaded.files[0],
            "its TPU planes hold no events: they were dropped or not recorded",
            "Record fewer steps, and let the traced computation end before the trace is stopped.",
        )
    return loaded


def _programs(space: Space, loaded: Loaded) -> None:
    metadata = space.plane("/host:metadata")
    if metadata is not None:
        loaded.programs |= {m.name: dict(m.stats) for m in metadata.events.values()}
    task = space.plane("Task Environment")
    if task is not None:
        loaded.requested |= {k: v for k, v in task.stats.items() if isinstance(v, int | float | str)}


def _device(core: int, name: str, host: Path, plane: Plane) -> Device:
    lines: dict[str, Events] = {}
    limit = None
    for wanted in LINES:  # operations come before what is held against them
        found = [line for line in plane.lines if line.name == wanted and line.event_count]
        lines[wanted] = _read(found, plane, limit if wanted in SAMPLED else None)
        if wanted in (MODULES, OPS) and len(lines[wanted]):
            limit = max(limit or 0, int(lines[wanted].end_ps.max()))
    counts = {line.name: line.event_count for line in plane.lines}
    return Device(core, name, host, plane.stats, lines, counts)


def _read(lines: list[SpaceLine], plane: Plane, limit: int | None) -> Events:
    """The events of these lines, in columns that are filled chunk by chunk."""
    count = sum(line.event_count for line in lines)
    if not count:
        return events([], [], [], [])
    start, duration = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    kind = np.empty(count, dtype=np.int32)
    numbers: dict[str, NDArray[np.float64]] = {}
    wanted = [name for name in _NUMBERS if name in plane.stat_names.values()]
    labels: dict[int, str] = {}
    known: dict[int, int] = {}  # id of the metadata -> index of the kind
    low = 0
    for line in lines:
        for chunk in line.chunks():
            high = low + len(chunk)
            found, first, inverse = np.unique(chunk.metadata, return_index=True, return_inverse=True)
            if line.name == MARKERS:
                for identifier, at in zip(found.tolist(), first.tolist(), strict=True):
                    if identifier not in labels:
                        labels[identifier] = str(chunk.stats(at).get("long_name") or "")
            start[low:high], duration[low:high] = chunk.start_ps, chunk.duration_ps
            codes = [known.setdefault(identifier, len(known)) for identifier in found.tolist()]
            kind[low:high] = np.array(codes, dtype=np.int32)[inverse]
            for name in wanted:
                values = chunk.numbers(name)
                if name not in numbers:
                    if np.isnan(values).all():
                        continue
                    numbers[name] = np.full(count, np.nan)
                numbers[name][low:high] = values
            low = high
    identifiers = sorted(known)
    rank = np.empty(len(known), dtype=np.int32)
    rank[[known[identifier] for identifier in identifiers]] = np.arange(len(known))
    kinds = []
    for identifier in identifiers:
        facts = plane.events.get(identifier)
        if facts is None:
            kinds.append(EventKind(f"event {identifier}", f"event {identifier}", {}))
        else:
            text = str(facts.stats.get("long_name") or facts.name)
            kinds.append(EventKind(text, facts.display_name or facts.name, facts.stats))
    return events(
        start[:low],
        duration[:low],
        rank[kind[:low]],
        kinds,
        {name: column[:low] for name, column in numbers.items()},
        tuple(labels.values()),
        limit,
    )


def events(  # noqa: PLR0917
    start_ps: Any,
    duration_ps: Any,
    kind: Any,
    kinds: list[EventKind],
    numbers: Mapping[str, NDArray[np.float64]] | None = None,
    labels: tuple[str, ...] = (),
    limit: int | None = None,
) -> Events:
    """Events from columns in any order.

    Args:
        start_ps, duration_ps, kind, kinds, numbers, labels: as in `Events`.
        limit: end of the last operation of the core; durations that are absolute ends are mended by it.
    """
    start, duration = np.asarray(start_ps, dtype=np.int64), np.array(duration_ps, dtype=np.int64)
    kind = np.asarray(kind, dtype=np.int32)
    columns = dict(numbers or {})
    order = entry_order(start, start + duration)
    if order is not None:  # profilers write most lines in order
        start, duration, kind = start[order], duration[order], kind[order]
        columns = {name: column[order] for name, column in columns.items()}
    np.maximum(duration, 0, out=duration)
    # The last sample of a call can carry its absolute end as its duration. It shows: it would reach beyond
    # the last operation, and taken as an end it does not.
    wrong = np.empty(0, dtype=np.int64)
    if limit is not None:
        wrong = np.flatnonzero(
            (start + duration > limit) & (duration >= start) & (duration <= limit) & (start > 0)
        )
    duration[wrong] -= start[wrong]
    return Events(start, duration, kind, kinds, columns, wrong, labels)


def _from_json(path: Path) -> Loaded:
    """A Chrome trace of the profiler: less than the xplane, and perhaps cut."""
    summary = TraceSummary()
    rows: dict[tuple[int, int], tuple[list[int], list[int], list[int], dict[str, list[float]]]] = {}
    kinds: dict[tuple[int, int], dict[str, int]] = {}
    facts: dict[tuple[int, int], list[EventKind]] = {}
    for event in read_events(path, summary):
        try:
            key = int(event["pid"]), int(event["tid"])
            start, duration = round(float(event["ts"]) * 1e6), round(float(event.get("dur", 0)) * 1e6)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        given = event.get("args")
        args: dict[str, Any] = given if isinstance(given, dict) else {}
        name = str(event.get("name", ""))
        full = str(args.get("long_name") or name)
        known = kinds.setdefault(key, {})
        if full not in known:
            known[full] = len(known)
            facts.setdefault(key, []).append(EventKind(full, name, {k: _number(v) for k, v in args.items()}))
        starts, durations, codes, numbers = rows.setdefault(
            key, ([], [], [], {wanted: [] for wanted in _NUMBERS})
        )
        starts.append(start)
        durations.append(duration)
        codes.append(known[full])
        for wanted, column in numbers.items():
            value = _number(args.get(wanted))
            column.append(float(value) if isinstance(value, int | float) else float("nan"))
    loaded = Loaded([path], [], {}, ["read a trace.json: it holds less than the .xplane.pb", *summary.notes])
    for (process, thread), name in sorted(summary.names.items(), key=lambda item: (item[0][0], item[1])):
        if thread is None and name.startswith("/device:TPU:") and " " not in name:
            lines = {wanted: events([], [], [], []) for wanted in LINES}
            device = Device(len(loaded.devices), name, path, {}, lines)
            for (owner, tid), line in summary.names.items():
                if owner != process or tid is None or (owner, tid) not in rows:
                    continue
                starts, durations, codes, numbers = rows[owner, tid]
                device.counts[line] = len(starts)
                if line in LINES:
                    columns = {n: np.array(v) for n, v in numbers.items()}
                    columns = {n: c for n, c in columns.items() if not np.isnan(c).all()}
                    device.lines[line] = events(starts, durations, codes, facts[owner, tid], columns)
            loaded.devices.append(device)
    if not any(any(d.counts.values()) for d in loaded.devices):
        raise InputError(path, "holds no events of a TPU", "Read the .xplane.pb beside it, or record again.")
    return loaded


def _number(value: Any) -> Any:
    """A number out of the text that trace.json makes of one; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        number = float(value.replace(",", ""))
    except ValueError:
        return value
    return int(number) if number.is_integer() and abs(number) < 1 << 62 else number
