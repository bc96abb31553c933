"""Records the scalars that data decides while a kernel runs in interpret mode, as a simulator's scenario.

The compiled bundles do not hold such values: positions, how many experts are visited, which ones. A kernel
names the places where a vector becomes a scalar with `hooks.decided`; a run under `recording` keeps what each
core saw there, in order, and the small integer arguments::

    build = build_experts(plan, interpret=pltpu.InterpretParams())
    with recording(build, arguments) as seen:
        jax.jit(build.global_function(mesh))(*placed)
    save(seen.scenario("two rows"), Path("seen.toml"))

    megascope report CAPTURE --scenario seen.toml
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.output import write_output
from megakernels import hooks
from megakernels.build import KernelBuild

WORDS_KEPT = 4096  # larger integer arguments are data, not scalars

type Number = int | float


@dataclass(slots=True)
class Recording:
    """What a run saw.

    Attributes:
        devices: Cores of the run.
        pops: Rank -> place (`file.py:line`) -> values, in the order the core met them.
        scalars: Operand index -> value of a one-word integer argument.
        smem: Operand index -> words of a small integer argument.
    """

    devices: int
    pops: dict[int, dict[str, list[Number]]] = field(default_factory=dict)
    scalars: dict[int, int] = field(default_factory=dict)
    smem: dict[int, list[int]] = field(default_factory=dict)

    def saw(self, rank: int, place: str, value: Number) -> None:
        """Keep one value."""
        self.pops.setdefault(rank, {}).setdefault(place, []).append(value)

    def scenario(self, name: str) -> str:
        """The scenario file (TOML): what all cores saw alike once, the rest per core."""
        # JSON strings and lists of numbers are TOML ones too.
        lines = [f"name = {json.dumps(name)}", f"devices = {self.devices}"]
        lines += _table("scalars", {str(k): v for k, v in sorted(self.scalars.items())})
        lines += _table("smem", {str(k): v for k, v in sorted(self.smem.items())})
        of_cores = [self.pops.get(rank, {}) for rank in range(self.devices)]
        places = sorted({place for one in of_cores for place in one})
        common = {
            p: of_cores[0][p] for p in places if all(one.get(p) == of_cores[0].get(p) for one in of_cores)
        }
        lines += _table("pops", common)
        for rank, one in enumerate(of_cores):
            lines += _table(f"cores.{rank}.pops", {p: one[p] for p in places if p in one and p not in common})
        return "\n".join(lines) + "\n"


def _table(name: str, entries: dict[str, Any]) -> list[str]:
    if not entries:
        return []
    return ["", f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in entries.items())]


@contextlib.contextmanager
def recording(build: KernelBuild, arguments: Sequence[Any] = ()) -> Iterator[Recording]:
    """Trace and run an interpreted kernel inside this to record it.

    Args:
        build: The kernel, built with `interpret`. It must be traced anew inside.
        arguments: Its global arguments: small integer ones of every core alike are kept as scenario values.

    Yields:
        What has been seen so far; complete when the results are there.
    """
    seen = Recording(build.cores)
    for index, (argument, spec) in enumerate(zip(arguments, build.in_specs, strict=False)):
        words = np.asarray(argument) if getattr(argument, "size", WORDS_KEPT) < WORDS_KEPT else None
        if words is None or words.dtype.kind not in "iub" or any(spec):
            continue
        values = [int(word) for word in words.ravel()]
        if len(values) == 1:
            seen.scalars[index] = values[0]
        else:
            seen.smem[index] = values
    with hooks.watching(tuple(build.mesh_axes), seen.saw):
        yield seen


def save(scenario: str, path: Path) -> None:
    """Write a scenario file, and the folders above it.

    Raises:
        InputError: That cannot be done.
    """
    write_output(path, scenario.encode())
