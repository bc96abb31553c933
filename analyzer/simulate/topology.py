"""Where chips sit in the torus, and how many hops lie between two.

A chip's number, as remote operations carry it: bits 0-1 are its place on the 2x2 host board, the bits
above count hosts. Inferred from dumps of 2x2x4 slices; a slice of another shape is numbered alike.
"""

import functools
import math
from collections.abc import Callable


def parse(topology: str | None) -> tuple[int, ...] | None:
    """`tpu7x:2x2x4` or `2x2x4` -> (2, 2, 4); None where it is not of that form."""
    if not topology:
        return None
    parts = topology.rpartition(":")[2].split("x")
    if not all(p.isdigit() and int(p) for p in parts):
        return None
    return tuple(int(p) for p in parts)


def chip_place(chip: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Coordinates of a chip: board place first, then the host along the remaining directions."""
    if len(shape) < 2 or shape[0] < 2 or shape[1] < 2:
        return (chip,)
    x, y, host = chip & 1, chip >> 1 & 1, chip >> 2
    boards = (shape[0] // 2, shape[1] // 2, shape[2] if len(shape) > 2 else 1)
    z, rest = host % boards[2], host // boards[2]
    return (x + 2 * (rest % boards[0]), y + 2 * (rest // boards[0]), z)


def hop_counter(topology: str | None, chips: int) -> Callable[[int, int], int]:
    """A function of two chips: hops on the shortest way, wrapping round in directions longer than 2."""
    shape = parse(topology)
    if shape is None or math.prod(shape) < chips:
        return lambda a, b: 1
    places = [chip_place(c, shape) for c in range(math.prod(shape))]

    @functools.cache
    def hops(a: int, b: int) -> int:
        total = 0
        for size, p, q in zip(shape, places[a], places[b], strict=False):
            distance = abs(p - q)
            total += min(distance, size - distance) if size > 2 else distance
        return max(total, 1)

    return hops
