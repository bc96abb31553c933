"""When a range of VMEM was last used: by vector loads and stores, or by a copy.

Gives each copy the earliest time at which it could have been issued for its buffer's sake.
"""

from analyzer.simulate.layout import GRANULES_PER_ROW, Layout, Placed

_MANY = 192


def extent(granules: int, strides: tuple[int, ...] | None, *, destination: bool) -> int:
    """Granules from the first to one past the last that a copy touches at one of its ends.

    strides: None (contiguous); (source stride, destination stride, 512-byte steps) of a windowed copy; or
    the nine words of a descriptor: three (source stride, destination stride, count) levels, outer to
    inner, each count belonging to the level inside it and the last one in 512-byte chunks.
    """
    if strides is None:
        return granules
    side = 1 if destination else 0
    if len(strides) == 3:
        inner = strides[2] * GRANULES_PER_ROW
        return inner if not inner else (granules // inner - 1) * strides[side] + inner
    inner = strides[8] * GRANULES_PER_ROW
    outer = granules // max(strides[2] * strides[5] * inner, 1)
    return (
        (outer - 1) * strides[side]
        + (strides[2] - 1) * strides[3 + side]
        + (strides[5] - 1) * strides[6 + side]
        + inner
    )


class _Ranges:
    """Last use of the ranges of one allocation; coarsens when there are too many."""

    __slots__ = ("grain", "last")

    def __init__(self) -> None:
        self.grain = 1
        self.last: dict[tuple[int, int], float] = {}

    def use(self, low: int, high: int, time: float) -> None:
        """Rows low..high are in use until `time`."""
        key = self._key(low, high)
        if self.last.get(key, -1.0) < time:
            self.last[key] = time
        if len(self.last) > _MANY:
            self.grain *= 8
            old, self.last = self.last, {}
            for (a, b), at in old.items():
                key = self._key(a, b)
                self.last[key] = max(at, self.last.get(key, 0.0))

    def _key(self, low: int, high: int) -> tuple[int, int]:
        grain = self.grain
        return (low, high) if grain == 1 else (low // grain * grain, -(-high // grain) * grain)

    def free(self, low: int, high: int) -> float:
        """When the last use of any of the granules ends; 0 if there was none."""
        return max((at for (a, b), at in self.last.items() if a < high and low < b), default=0.0)


class BufferUse:
    """Last use of all VMEM buffers of a core, fed in the order of issue."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.ranges: dict[int, _Ranges] = {}

    def _of(self, placed: Placed) -> _Ranges:
        found = self.ranges.get(placed.start)
        if found is None:
            found = self.ranges[placed.start] = _Ranges()
        return found

    def use(self, low: int, high: int, time: float) -> None:
        """Granules low..high are in use until `time` (ps)."""
        placed = self.layout.find("vmem", low)
        if placed is not None:
            self._of(placed).use(low, high, time)

    def free(self, low: int, high: int) -> float | None:
        """When the granules were free, or None where they belong to no known buffer."""
        placed = self.layout.find("vmem", low)
        return None if placed is None else self._of(placed).free(low, high)
