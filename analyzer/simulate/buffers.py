"""When a range of VMEM was last used: by vector loads and stores, or by a copy.

Gives each copy the earliest time at which it could have been issued for its buffer's sake.
"""

from analyzer.simulate.layout import GRANULES_PER_ROW, Layout, Placed

_MANY = 192
Use = tuple[float, int]  # when it ends (ps), bundle of the access or copy
NEVER: Use = (0.0, -1)


def extent(granules: int, strides: tuple[int, ...] | None, *, destination: bool) -> int:
    """Granules from the first to one past the last that a copy touches at one of its ends.

    strides: None (contiguous); (source stride, destination stride, 512-byte steps) of a windowed copy; or
    the nine words of a descriptor: up to three (source stride, destination stride, count) levels, outer to
    inner, unused ones zero. A count belongs to the level inside it, the last one counts 512-byte chunks, and
    the outermost level repeats until the size is reached.
    """
    if strides is None:
        return granules
    levels = [strides[k : k + 3] for k in range(0, len(strides), 3) if strides[k + 2]]
    if not levels:
        return granules
    side = 1 if destination else 0
    inner = levels[-1][2] * GRANULES_PER_ROW
    reach, block = inner, inner
    for level, outer in zip(levels[:0:-1], levels[-2::-1], strict=True):
        reach += (outer[2] - 1) * level[side]
        block *= outer[2]
    return reach + (granules // block - 1) * levels[0][side]


class _Ranges:
    """Last use of the ranges of one allocation; coarsens when there are too many."""

    __slots__ = ("grain", "last")

    def __init__(self) -> None:
        self.grain = 1
        self.last: dict[tuple[int, int], Use] = {}

    def use(self, low: int, high: int, time: float, bundle: int) -> None:
        """Granules low..high are in use until `time`."""
        key = self._key(low, high)
        known = self.last.get(key)
        if known is None or known[0] < time:
            self.last[key] = (time, bundle)
        if len(self.last) > _MANY:
            self.grain *= 8
            old, self.last = self.last, {}
            for (a, b), at in old.items():
                key = self._key(a, b)
                self.last[key] = max(at, self.last.get(key, NEVER))

    def _key(self, low: int, high: int) -> tuple[int, int]:
        grain = self.grain
        return (low, high) if grain == 1 else (low // grain * grain, -(-high // grain) * grain)

    def free(self, low: int, high: int) -> Use:
        """The use of any of the granules that ends last; NEVER if there was none."""
        return max((at for (a, b), at in self.last.items() if a < high and low < b), default=NEVER)


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

    def use(self, low: int, high: int, time: float, bundle: int) -> None:
        """Granules low..high are in use until `time` (ps), by an access or copy of `bundle`."""
        placed = self.layout.find("vmem", low)
        if placed is not None:
            self._of(placed).use(low, high, time, bundle)

    def free(self, low: int, high: int) -> Use | None:
        """The last use of the granules, or None where they belong to no known buffer."""
        placed = self.layout.find("vmem", low)
        return None if placed is None else self._of(placed).free(low, high)
