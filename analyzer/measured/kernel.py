"""Which operation of a trace is the kernel, and when it was called."""

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.measured.load import MODULES, OPS, STEPS, Device

TARGET = 'custom_call_target="tpu_custom_call"'
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_DTYPE_BITS = re.compile(r"(?:bf|[fsuc])(\d+)")


@dataclass(frozen=True, slots=True)
class Shape:
    """One operand or result of an operation: dtype, dimensions, bytes, and whether it lies in HBM."""

    dtype: str
    dimensions: tuple[int, ...]
    bytes: int
    hbm: bool


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel of a trace.

    Attributes:
        name: of the operation (`mlp.1`).
        text: its HLO.
        operands, results: their shapes, from that text.
        source: `file:line` of the call, "" if unknown.
    """

    name: str
    text: str
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The runs of one thing on one core, in order: C of them. `label` says what they are."""

    label: str
    start_ps: NDArray[np.int64]
    duration_ps: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of runs."""
        return len(self.start_ps)

    @property
    def start_to_start_ps(self) -> NDArray[np.int64]:
        """int64[C - 1]: from each start to the next."""
        return np.diff(self.start_ps)


def choose_kernel(devices: list[Device]) -> tuple[Kernel | None, list[str]]:
    """The Pallas kernel with most time over all cores, first by name of equals; and a note on the choice."""
    times: dict[str, int] = defaultdict(int)
    texts: dict[str, tuple[str, str]] = {}
    for device in devices:
        ops = device.lines[OPS]
        for index, kind in enumerate(ops.kinds):
            if TARGET in kind.name:
                name = operation_name(kind.name, kind.short)
                times[name] += int(ops.duration_ps[ops.kind == index].sum())
                texts.setdefault(name, (kind.name, str(kind.facts.get("source") or "")))
    if not times:
        return None, ["no Pallas kernel in this trace: no operation has custom_call_target tpu_custom_call"]
    name = min(times, key=lambda n: (-times[n], n))
    text, source = texts[name]
    results, operands = shapes(text)
    notes = []
    if len(times) > 1:
        others = ", ".join(sorted(set(times) - {name})[:4])
        notes.append(
            f"{len(times)} Pallas kernels; reported is {name}, the one with most time (also {others})"
        )
    return Kernel(name, text, operands, results, source), notes


def operation_name(text: str, short: str) -> str:
    """`mlp.1` of `%mlp.1 = f32[8] custom-call(...)`."""
    found = re.match(r"%?([\w.\-]+) = ", text)
    return found[1] if found else short.lstrip("%")


def shapes(text: str) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """(results, operands) of an operation's HLO text; empty where it is not understood."""
    left, equals, right = text.partition(" = ")
    del left
    found = re.search(r"\s[a-z][\w\-]*\(", right) if equals else None
    if found is None:
        return (), ()
    depth, end = 1, found.end()
    while end < len(right) and depth:
        depth += {"(": 1, ")": -1}.get(right[end], 0)
        end += 1
    return _shapes(right[: found.start()]), _shapes(right[found.end() : end])


def _shapes(text: str) -> tuple[Shape, ...]:
    result = []
    for dtype, numbers, layout in _SHAPE.findall(text):
        bits = 8 if dtype == "pred" else int(found[1]) if (found := _DTYPE_BITS.match(dtype)) else 0
        dimensions = tuple(int(n) for n in numbers.split(",") if n)
        size = 1
        for dimension in dimensions:
            size *= dimension
        if bits:
            space = re.search(r"S\((\d+)\)", layout)
            result.append(Shape(dtype, dimensions, (size * bits + 7) // 8, space is None or space[1] == "0"))
    return tuple(result)


def kernel_calls(device: Device, kernel: Kernel) -> Runs:
    """The calls of the kernel on one core."""
    ops = device.lines[OPS]
    wanted = [
        i
        for i, kind in enumerate(ops.kinds)
        if TARGET in kind.name and operation_name(kind.name, kind.short) == kernel.name
    ]
    rows = ops.where(wanted)
    return Runs(f"calls of {kernel.name}", ops.start_ps[rows], ops.duration_ps[rows])


def steps(device: Device) -> Runs:
    """The steps of one core: the `Steps` line where there is one, else the module with most time."""
    marked = device.lines[STEPS]
    if len(marked):
        return Runs("steps", marked.start_ps, marked.duration_ps)
    modules = device.lines[MODULES]
    if not len(modules):
        return Runs("modules", modules.start_ps, modules.duration_ps)
    time = np.bincount(modules.kind, weights=modules.duration_ps, minlength=len(modules.kinds))
    chosen = int(np.argmax(time))
    rows = modules.where([chosen])
    name = modules.kinds[chosen].name.split("(")[0]
    return Runs(f"runs of {name}", modules.start_ps[rows], modules.duration_ps[rows])


def median(values: NDArray[np.int64]) -> int | None:
    """Index of the value in the middle (of two the smaller); None where there are none."""
    if not len(values):
        return None
    return int(np.argsort(values, kind="stable")[(len(values) - 1) // 2])
