"""XLA operations of a trace by category, with flops and bytes where the trace has them to be believed."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer import intervals
from analyzer.measured.kernel import TARGET
from analyzer.measured.load import ASYNC, OPS, Device, EventKind, Events
from analyzer.timeline import Kind, Track

_COLLECTIVE = re.compile(r"all-reduce|all-gather|reduce-scatter|all-to-all|collective|send|recv|barrier")
_MATRIX = re.compile(r"convolution|dot|matmul|gemm")
_COPY = re.compile(r"copy|host|dynamic-update-slice|data formatting|infeed|outfeed")


@dataclass(frozen=True, slots=True)
class Category:
    """Operations of one category within some windows of one core.

    Attributes:
        name: the profiler's `hlo_category`, or the HLO opcode where it gives none.
        kind: what they are (analyzer/timeline.py).
        count: executions. time_ps: union of their times.
        flops, bytes: by the metadata of the operations; None if any has none.
    """

    name: str
    kind: Kind
    count: int
    time_ps: int
    flops: int | None
    bytes: int | None


def category(text: str, facts: object) -> str:
    """The category of an operation."""
    given = facts.get("hlo_category") if hasattr(facts, "get") else None
    if given:
        return str(given)
    found = re.search(r" = .*?\s([a-z][\w\-]*)\(", text)
    return found[1] if found else text.lstrip("%").split(".")[0]


def kind_of(name: str) -> Kind:
    """Which colour a category has."""
    if _COLLECTIVE.search(name):
        return Kind.COLLECTIVE
    if _COPY.search(name):
        return Kind.TRANSFER
    return Kind.MATRIX if _MATRIX.search(name) else Kind.VECTOR


def by_category(device: Device, windows: intervals.Intervals, line: str = OPS) -> list[Category]:
    """Categories of the operations that start in the windows, most time first."""
    ops = device.lines[line]
    if not len(ops):
        return []
    inside = intervals.contains(windows, ops.start_ps)
    names, of_kind = groups(ops.kinds)
    group = np.where(inside, of_kind[ops.kind], np.int32(-1))
    result = []
    for code, name in enumerate(names):
        rows = np.flatnonzero(group == code)
        if not len(rows):
            continue
        counts = np.bincount(ops.kind[rows], minlength=len(ops.kinds))
        start = ops.start_ps[rows]
        result.append(
            Category(
                name=name,
                kind=kind_of(name),
                count=len(rows),
                time_ps=intervals.measure(intervals.from_spans(start, start + ops.duration_ps[rows])),
                flops=_total(ops.kinds, counts, ("flops",)),
                bytes=_total(ops.kinds, counts, ("raw_bytes_accessed", "bytes_accessed")),
            )
        )
    return sorted(result, key=lambda c: (-c.time_ps, c.name))


def groups(kinds: list[EventKind]) -> tuple[list[str], NDArray[np.int32]]:
    """The categories of kinds of operations, and int32[K], which one each kind has."""
    known: dict[str, int] = {}
    codes = [known.setdefault(category(kind.name, kind.facts), len(known)) for kind in kinds]
    return list(known), np.array(codes, dtype=np.int32)


def around_kernels(ops: Events, part: slice = slice(None)) -> NDArray[np.int64]:
    """Indices of the operations that are no Pallas kernels: those are seen through their scopes."""
    other = np.array([TARGET not in kind.name for kind in ops.kinds], dtype=bool)
    first = part.indices(len(ops))[0]
    return np.flatnonzero(other[ops.kind[part]]) + first if len(ops) else np.empty(0, dtype=np.int64)


def _total(kinds: list, counts: np.ndarray, names: tuple[str, ...]) -> int | None:
    total = 0
    for index in np.flatnonzero(counts).tolist():
        kind = kinds[index]
        value = next((kind.facts[n] for n in names if isinstance(kind.facts.get(n), int)), None)
        if value is None or TARGET in kind.name:  # of a kernel neither can be believed
            return None
        total += int(counts[index]) * value
    return total


def copy_track(text: str) -> Track:
    """Where an asynchronous operation belongs: by the memory spaces of `(destination, source, ...)`."""
    if _COLLECTIVE.search(text):
        return Track.ICI_SEND
    shapes = re.findall(r"\w+\[[\d,]*\]\{([^}]*)\}", text.partition(" = ")[2])
    if len(shapes) < 2:
        return Track.VMEM_COPY
    destination, source = ("S(" in layout and "S(0)" not in layout for layout in shapes[:2])
    if destination == source:
        return Track.VMEM_COPY
    return Track.HBM_READ if destination else Track.HBM_WRITE


def devices_with(devices: list[Device], line: str = ASYNC) -> list[Device]:
    """The cores that have events on a line."""
    return [device for device in devices if len(device.lines[line])]
