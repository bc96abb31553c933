"""Names of TPU slices: which chip, which shape, how many cores a program compiled for it runs on."""

import re
from dataclasses import dataclass
from math import prod

from analyzer.errors import UsageError

# Devices per chip as JAX counts them when it compiles ahead of time, and the dimensions of a slice.
# Read off `topologies.get_topology_desc` of libtpu 0.0.50.1. A v5p chip is one device (megacore).
DEVICES_PER_CHIP = {"tpu7x": 2, "v6e": 1, "v5p": 1, "v5e": 1}
DEFAULT_SHAPES = {"tpu7x": "2x2x1", "v6e": "2x2", "v5p": "2x2x1", "v5e": "2x2"}
_ALIASES = {
    "tpu7": "tpu7x",
    "v7": "tpu7x",
    "v7x": "tpu7x",
    "ironwood": "tpu7x",
    "trillium": "v6e",
    "v5litepod": "v5e",
}


@dataclass(frozen=True, slots=True)
class Topology:
    """One slice: `chip` ("tpu7x"), `shape` in chips ((2, 2, 1)), as libtpu names them."""

    chip: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name that libtpu takes: `tpu7x:2x2x1`."""
        return f"{self.chip}:{self.shape_text}"

    @property
    def shape_text(self) -> str:
        """`2x2x1`."""
        return "x".join(map(str, self.shape))

    @property
    def devices(self) -> int:
        """Cores that JAX sees as devices: two per TPU7x chip, one per chip of the others."""
        return prod(self.shape) * DEVICES_PER_CHIP[self.chip]


def parse_topology(text: str | None, chip: str | None = None) -> Topology:
    """Read `2x2x1`, `tpu7x:2x2x1` or nothing (four chips) into a topology.

    Args:
        text: Shape in chips, with or without the chip's name.
        chip: Chip, where `text` does not name it; tpu7x where neither does.

    Raises:
        UsageError: unknown chip, a shape that is not `AxBxC`, or `text` and `chip` disagree.
    """
    named, _, shape = (text or "").rpartition(":")
    wanted = _chip(named or chip or "tpu7x")
    if named and chip and _chip(chip) != wanted:
        raise UsageError(f"--chip {chip}", f"--topology names another chip, {named}", "Give the chip once.")
    shape = shape or DEFAULT_SHAPES[wanted]
    if not re.fullmatch(r"\d{1,4}(x\d{1,4}){0,2}", shape) or "0" in shape.split("x"):
        raise UsageError(
            f"--topology {text}",
            "not a slice shape",
            f"Give it in chips, like {DEFAULT_SHAPES[wanted]} or {wanted}:{DEFAULT_SHAPES[wanted]}.",
        )
    return Topology(wanted, tuple(int(n) for n in shape.split("x")))


def shapes_with(chip: str, devices: int) -> list[str]:
    """Usual slice shapes of `chip` with exactly `devices` devices, for messages."""
    flat = chip in {"v6e", "v5e"}
    shapes = ["1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"] if flat else [
        "1x1x1", "2x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8",
    ]  # fmt: skip
    return [s for s in shapes if parse_topology(s, chip).devices == devices]


def _chip(name: str) -> str:
    lower = name.strip().lower().replace("_", "").replace(" ", "")
    lower = _ALIASES.get(lower, lower)
    if lower not in DEVICES_PER_CHIP:
        raise UsageError(f"chip {name!r}", "not known", f"Known chips: {', '.join(DEVICES_PER_CHIP)}.")
    return lower
