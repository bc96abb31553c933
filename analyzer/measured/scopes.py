"""Named scopes of a kernel: nesting, phases, layers, waits.

Scopes nest, so sums over rows count time twice; each scope gets its path here, and times are taken from
interval unions or from the innermost scope (analyzer/metrics.py).
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.measured.kernel import Runs
from analyzer.measured.load import SCOPES, Device

LAYER = "layer"
TICK_PS = 2_500  # device times are multiples of 1.25 ns; two scopes can seem to cross by two of them
_NEVER = 1 << 63  # later than any time
_MOST_LAYERS = 1 << 31
_AT_ONCE = 1 << 16  # scopes turned into Python's numbers at once: bounds the memory
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
        name: int32[S], index into `names`, the own names. path: int32[S], index into `paths`, the phase
            paths ("a/b"), without layers.
        layer: int32[S], -1 outside any layer.
        parent: int32[S], index of the scope it lies in, -1 for none.
        site: int32[S], the kind of event: two scopes of one name at two places of the program differ in it.
        crossing: scopes that overlap another one without lying in it.
        layers_counted: True if layer numbers are the order of entry, because the trace has no values.
    """

    start_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    names: tuple[str, ...]
    name: NDArray[np.int32]
    paths: tuple[str, ...]
    path: NDArray[np.int32]
    layer: NDArray[np.int32]
    parent: NDArray[np.int32]
    site: NDArray[np.int32]
    crossing: int
    layers_counted: bool

    def __len__(self) -> int:
        """Number of scopes."""
        return len(self.start_ps)

    def rows(self, wanted: Callable[[str], object]) -> NDArray[np.int64]:
        """Indices of the scopes whose own name is wanted."""
        chosen = np.array([bool(wanted(name)) for name in self.names], dtype=bool)
        return np.flatnonzero(chosen[self.name]) if len(self) else np.empty(0, dtype=np.int64)


def read_scopes(device: Device, calls: Runs) -> Scopes:
    """The scopes of one core. Without values in the trace, layers are numbered anew in every call."""
    events = device.lines[SCOPES]
    texts = [kind.name for kind in events.kinds]
    layers = [_LAYER.match(text.rpartition("/")[2]) for text in texts]
    own = ["" if found else text for found, text in zip(layers, texts, strict=True)]
    known = {name: code for code, name in enumerate(dict.fromkeys(own))}
    # Of kinds that are no layers None; of layers the number in their name, -1 for none.
    marks = [None if found is None else _number(found[1]) for found in layers]
    values = events.numbers.get("layer")
    names = np.array([known[name] for name in own], dtype=np.int32)
    walk = _Walk(own, marks)
    end = events.end_ps
    path, layer, parent = (np.empty(len(events), dtype=np.int32) for _ in range(3))
    call_of = np.searchsorted(calls.start_ps, events.start_ps, side="right")
    for low in range(0, len(events), _AT_ONCE):
        part = slice(low, min(low + _AT_ONCE, len(events)))
        end[part], path[part], layer[part], parent[part] = walk.on(
            low,
            events.start_ps[part].tolist(),
            end[part].tolist(),
            events.kind[part].tolist(),
            call_of[part].tolist(),
            None if values is None else values[part].tolist(),
        )
    return Scopes(
        events.start_ps,
        end,
        tuple(known),
        names[events.kind] if len(names) else events.kind,
        tuple(walk.paths),
        path,
        layer,
        parent,
        events.kind,
        walk.crossing,
        walk.counted,
    )


def _number(digits: str | None) -> int:
    number = int(digits) if digits and len(digits) < 20 else -1
    return number if number < _MOST_LAYERS else -1


class _Walk:
    """Goes over scopes in the order of their entry and keeps what is open."""

    def __init__(self, own: list[str], marks: list[int | None]) -> None:
        self.own, self.marks = own, marks
        self.paths = [""]
        self.crossing, self.counted = 0, False
        self._inner: dict[tuple[int, int], int] = {}  # (path around it, kind) -> path
        self._codes = {"": 0}
        self._stack: list[tuple[int, int, int, int]] = [(_NEVER, 0, -1, -1)]  # end, path, layer, index
        self._entered, self._last_call = 0, -1

    def on(  # noqa: PLR0917
        self,
        index: int,
        starts: list[int],
        ends: list[int],
        kinds: list[int],
        calls: list[int],
        values: list[float] | None,
    ) -> tuple[list[int], list[int], list[int], list[int]]:
        """The next scopes, `index` the first of them: their ends, paths, layers and parents."""
        stack, marks, inner = self._stack, self.marks, self._inner
        found: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
        add_end, add_path, add_layer, add_parent = (column.append for column in found)
        for begin, finish, kind, call in zip(starts, ends, kinds, calls, strict=True):
            while stack[-1][0] <= begin:
                stack.pop()
            while finish > stack[-1][0]:
                if finish - stack[-1][0] <= TICK_PS:
                    finish = stack[-1][0]  # noqa: PLW2901
                    break
                self.crossing += 1
                stack.pop()
            _, path, layer, parent = stack[-1]
            mark = marks[kind]
            if mark is None:
                key = (path, kind)
                path = inner[key] if key in inner else self._enter(key)
            else:
                if call != self._last_call:
                    self._last_call, self._entered = call, 0
                value = math.nan if values is None else values[len(found[0])]
                if 0 <= value < _MOST_LAYERS:  # NaN is neither
                    layer = int(value)
                elif mark >= 0:
                    layer = mark
                else:
                    layer, self.counted = self._entered, True
                self._entered += 1
            add_end(finish)
            add_path(path)
            add_layer(layer)
            add_parent(parent)
            stack.append((finish, path, layer, index))
            index += 1
        return found

    def _enter(self, key: tuple[int, int]) -> int:
        around, name = self.paths[key[0]], self.own[key[1]]
        path = f"{around}/{name}" if around else name
        code = self._codes.setdefault(path, len(self.paths))
        if code == len(self.paths):
            self.paths.append(path)
        self._inner[key] = code
        return code


def is_wait(name: str) -> bool:
    """Whether a scope of that name is the core standing still."""
    return bool(_WAITS.search(name))


def is_barrier(name: str) -> bool:
    """Whether it waits for other cores."""
    return bool(_BARRIER.search(name))
