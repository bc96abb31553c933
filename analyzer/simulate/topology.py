"""Where chips sit in the torus, and how many hops between hosts lie between two.

Within a host every peer takes the same time (measured), so only the way from host to host counts.

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
    """A function of two chips: hosts the shortest way goes on to, wrapping round where there are more than 2.

    0 within a host, and where the topology is not known.
    """
    shape = parse(topology)
    if shape is None or math.prod(shape) < chips:
        return lambda a, b: 0
    boards = [2 if axis < 2 and size > 1 else 1 for axis, size in enumerate(shape)]
    places = [
        tuple(p // board for p, board in zip(chip_place(c, shape), boards, strict=False))
        for c in range(math.prod(shape))
    ]
    hosts = [size // board for size, board in zip(shape, boards, strict=True)]

    @functools.cache
    def hops(a: int, b: int) -> int:
        total = 0
        for count, p, q in zip(hosts, places[a], places[b], strict=False):
            distance = abs(p - q)
            total += min(distance, count - distance) if count > 2 else distance
        return total

    return hops
