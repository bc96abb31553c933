"""Named scopes of a kernel: nesting, phases, layers, waits.

Scopes nest, so sums over rows count time twice; each scope gets its path here, and times are taken from
interval unions or from the innermost scope (analyzer/metrics.py).
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.measured.kernel import Runs
from analyzer.measured.load import SCOPES, Device

LAYER = "layer"
TICK_PS = 2_500  # device times are multiples of 1.25 ns; two scopes can seem to cross by two of them
_LAYER = re.compile(r"^layer(?:[\s=:#(\[_]+(?:\w+=)?(\d+)[\s)\]#]*)?$")
# Stages of the pipeline that Pallas makes of a grid, and what the runtime calls its own waits.
DMA_WAITS = ("ep_wait_in", "ep_wait_out")
_WAITS = re.compile(r"(?:^|[_.\- ])(?:wait|barrier)", re.IGNORECASE)
_BARRIER = re.compile(r"barrier", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class Scopes:
    """The scopes of one core, sorted by start; S of them.

    Attributes:
        start_ps, end_ps: int64[S], children cut to their parent where they exceed it by a tick.
        name: own name of each. path: phase path ("a/b"), without layers.
        layer: int64[S], -1 outside any layer.
        parent: int64[S], index of the scope it lies in, -1 for none.
        site: int64[S], the kind of event: two scopes of one name at two places of the program differ in it.
        crossing: scopes that overlap another one without lying in it.
        layers_counted: True if layer numbers are the order of entry, because the trace has no values.
    """

    start_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    name: list[str]
    path: list[str]
    layer: NDArray[np.int64]
    parent: NDArray[np.int64]
    site: NDArray[np.int64]
    crossing: int
    layers_counted: bool


def read_scopes(device: Device, calls: Runs) -> Scopes:
    """The scopes of one core. Without values in the trace, layers are numbered anew in every call."""
    events = device.lines[SCOPES]
    kinds = [kind.name for kind in events.kinds]
    layers = [_LAYER.match(name.rpartition("/")[2]) for name in kinds]
    values = events.numbers.get("layer")
    start, end = events.start_ps, events.end_ps.copy()
    names: list[str] = []
    paths: list[str] = []
    layer = np.full(len(events), -1, dtype=np.int64)
    parent = np.full(len(events), -1, dtype=np.int64)
    stack: list[tuple[int, str, int, int]] = []  # end, path, layer, index
    crossing, counted, entered = 0, False, 0
    call_starts = calls.start_ps
    call_of = np.searchsorted(call_starts, start, side="right")
    last_call = -1
    known = kinds
    for i, (begin, recorded, kind) in enumerate(
        zip(start.tolist(), end.tolist(), events.kind.tolist(), strict=True)
    ):
        if call_of[i] != last_call:
            last_call, entered = int(call_of[i]), 0
        finish = recorded
        while stack and stack[-1][0] <= begin:
            stack.pop()
        while stack and finish > stack[-1][0]:
            if finish - stack[-1][0] <= TICK_PS:
                finish = stack[-1][0]
                break
            crossing += 1
            stack.pop()
        name = known[kind]
        path, inherited, parent[i] = stack[-1][1:] if stack else ("", -1, -1)
        found = layers[kind]
        if found is not None:
            value = values[i] if values is not None else np.nan
            if not np.isnan(value):
                inherited = int(value)
            elif found[1] is not None:
                inherited = int(found[1])
            else:
                inherited, counted = entered, True
            entered += 1
            name = ""
        else:
            path = f"{path}/{name}" if path else name
        names.append(name)
        paths.append(path)
        layer[i], end[i] = inherited, finish
        stack.append((finish, path, inherited, i))
    return Scopes(start, end, names, paths, layer, parent, events.kind, crossing, counted)


def is_wait(name: str) -> bool:
    """Whether a scope of that name is the core standing still."""
    return bool(_WAITS.search(name))


def is_barrier(name: str) -> bool:
    """Whether it waits for other cores."""
    return bool(_BARRIER.search(name))
