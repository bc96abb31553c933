"""Static facts about compiled code: per loop, phase, source line and for the whole program.

Counted, not judged. Where the program was executed, every fact is also weighted by how often each bundle
ran. What is not understood is counted beside the facts: then a count is a lower bound, and a question
that the missing instructions could answer otherwise is answered "unknown".
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from analyzer.llo import opcodes
from analyzer.llo.dma import DmaSite, dma_sites
from analyzer.llo.occupancy import COLUMNS, occupancy
from analyzer.llo.phases import static_phases
from analyzer.llo.program import Unit

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

# Bytes of code per bundle: the generated code size that XLA reports grows by 64 bytes for each bundle
# on tpu7x, v6e, v5p and v5e (differences between kernels of 500 to 15,000 bundles, +-0.1 %).
BUNDLE_BYTES = 64
VECTOR_REGISTER_BYTES = 4096  # 8 x 128 words of 4 bytes: what one VMEM spill or fill moves
SCALAR_REGISTER_BYTES = 4
_CONVERSIONS = frozenset(("vcvt", "vpack", "vunpack", "vpackc", "vmpackc"))
_RELAYOUTS = frozenset(("vrot", "vperm", "vxpose", "vcombine", "vbcast", "vshuffle", "vset"))
_SEMAPHORE = ["vsyncadd", "vsyncset", "vsyncpa", "vwait", "vsyncmov"]
_SCALAR_UNITS = frozenset((Unit.SALU, Unit.DMA, Unit.SYNC, Unit.PSEUDO))


class Answer(StrEnum):
    """Of a question that instructions not understood could answer otherwise."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about some bundles. Weighted fields count executions; None where those are unknown.

    slots: column of the compiler's utilization -> sum over the bundles. spills, fills: vector and scalar
    registers stored to and loaded from spill slots, with bytes. scalar_only: bundles with nothing but
    scalar, DMA and sync work; longest_scalar_stretch: (first bundle, length) of the longest run of them.
    not_understood: instructions whose kind is unknown; if there are any, all counts are lower bounds.
    executed_dma_bytes_at_most: predicated copies are counted as if their predicate always held.
    """

    key: str
    bundles: int
    empty: int
    slots: dict[str, int]
    counts: dict[str, int]
    spill_bytes: int
    fill_bytes: int
    code_bytes: int
    longest_scalar_stretch: tuple[int, int]
    not_understood: int
    dma: tuple[DmaSite, ...] = field(default=(), repr=False)
    executed_bundles: int | None = None
    executed_empty: int | None = None
    executed_slots: dict[str, int] | None = None
    executed_counts: dict[str, int] | None = None
    executed_dma_bytes_at_most: int | None = None

    def has(self, what: str) -> Answer:
        """Is there any `what` (a key of counts)?"""
        if self.counts[what]:
            return Answer.YES
        return Answer.UNKNOWN if self.not_understood else Answer.NO

    def to_json(self) -> dict[str, Any]:
        """Plain values; counts that are lower bounds are said to be."""
        return {
            "key": self.key,
            "bundles": self.bundles,
            "executed_bundles": self.executed_bundles,
            "empty_bundles": self.empty,
            "executed_empty_bundles": self.executed_empty,
            "slots": self.slots,
            "executed_slots": self.executed_slots,
            "counts": self.counts,
            "executed_counts": self.executed_counts,
            "spill_bytes": self.spill_bytes,
            "fill_bytes": self.fill_bytes,
            "code_bytes": self.code_bytes,
            "longest_scalar_stretch": {
                "bundle": self.longest_scalar_stretch[0],
                "bundles": self.longest_scalar_stretch[1],
            },
            "dma_sites": [
                {
                    "bundle": site.bundle,
                    "direction": site.direction,
                    "bytes": site.bytes,
                    "source_operand": site.source_operand,
                    "target_operand": site.target_operand,
                    "strided": site.strided,
                    "remote": site.remote,
                    "source": site.source or None,
                }
                for site in self.dma
            ],
            "executed_dma_bytes_at_most": self.executed_dma_bytes_at_most,
            "not_understood": self.not_understood,
            "exact": self.not_understood == 0,
            "provenance": "counted",
        }


class ProgramFacts:
    """Facts of one program, by any grouping of its bundles.

    Args:
        program: the program.
        executed: int64[B], how often each bundle ran; None where that is unknown.
    """

    def __init__(self, program: "FileProgram", executed: np.ndarray | None = None) -> None:
        self.program = program
        self.executed = executed
        self._bundle = program.instruction_bundle

    @cached_property
    def occupancy(self) -> np.ndarray:
        """int16[B, columns], as in the compiler's utilization file."""
        return occupancy(self.program)

    @cached_property
    def dma(self) -> list[DmaSite]:
        """Every copy that the program starts."""
        return dma_sites(self.program)

    @cached_property
    def kinds(self) -> dict[str, np.ndarray]:
        """bool[I] per kind of instruction that is counted."""
        program = self.program
        units = np.array([unit.value for unit in program.opcode_units])
        families = np.array([opcodes.family(opcode) for opcode in program.opcodes])
        shuffles = np.array([".sshfl" in opcode for opcode in program.opcodes], dtype=bool)
        code = program.instruction_opcode

        def named(start: str) -> np.ndarray:
            return np.array([opcode.startswith(start) for opcode in program.opcodes], dtype=bool)

        def of(table: np.ndarray) -> np.ndarray:
            return table[code] if len(table) else np.zeros(0, bool)

        spilled = np.zeros(len(code), bool)
        spilled[program.spills] = True
        bounds = np.zeros(len(code), bool)
        halts = program.find(lambda opcode: opcode.startswith("shalt"))
        bounds[[i for i in halts if "BoundsCheck" in program.text(i)]] = True
        return {
            "spills": spilled & of((units == "VSTORE") | (families == "sst")),
            "fills": spilled & of((units == "VLOAD") | (families == "sld")),
            "dma_starts": of(units == "DMA"),
            "semaphore_operations": of(np.isin(families, _SEMAPHORE) | named("dma.done")),
            "bounds_checks": bounds,
            "conversions": of(np.isin(families, list(_CONVERSIONS))),
            "relayouts": of(np.isin(families, list(_RELAYOUTS)) | shuffles),
            "matrix_pushes": of(named("vmatmul")),
            "not_understood": of(units == "UNKNOWN"),
        }

    @cached_property
    def scalar_only(self) -> np.ndarray:
        """bool[B]: bundles with scalar, DMA or sync work and nothing else."""
        program = self.program
        vector = np.array([unit not in _SCALAR_UNITS for unit in program.opcode_units], dtype=bool)
        if not len(vector):
            return np.zeros(program.bundle_count, bool)
        with_vector = np.bincount(
            self._bundle[vector[program.instruction_opcode]], minlength=program.bundle_count
        )
        return (with_vector == 0) & ~program.empty

    def whole(self) -> Facts:
        """The whole program."""
        return self.of("program", np.ones(self.program.bundle_count, bool))

    def per_loop(self) -> Iterator[Facts]:
        """Each loop with the loops inside it; the key is `loop 0x1a..0x2f`."""
        for loop in self.program.loops:
            chosen = np.zeros(self.program.bundle_count, bool)
            chosen[loop.start : loop.end + 1] = True
            yield self.of(f"loop {loop.start:#x}..{loop.end:#x}", chosen)

    def per_phase(self) -> Iterator[Facts]:
        """Each named scope; "" is what stands outside any."""
        names, phase = static_phases(self.program)
        for index, name in enumerate(names):
            chosen = phase == index
            if chosen.any():
                yield self.of(name, chosen)

    def per_source(self, limit: int | None = None) -> Iterator[Facts]:
        """Each source line, by bundles with an instruction whose first location it is, most bundles first.

        A bundle with instructions of several lines counts for each of them: the lines do not add up.
        """
        program = self.program
        located = program.instruction_source >= 0
        pairs = np.unique(
            np.stack([program.instruction_source[located], self._bundle[located]], axis=1), axis=0
        )
        lines: dict[str, list[int]] = {}
        for number, span in enumerate(program.sources):
            lines.setdefault(str(span), []).append(number)
        line_of = np.zeros(len(program.sources), np.int64)
        for index, numbers in enumerate(lines.values()):
            line_of[numbers] = index
        if not len(pairs):
            return
        pairs[:, 0] = line_of[pairs[:, 0]]
        pairs = np.unique(pairs, axis=0)
        sizes = np.bincount(pairs[:, 0], minlength=len(lines))
        names = list(lines)
        for index in np.argsort(-sizes, kind="stable")[:limit]:
            chosen = np.zeros(program.bundle_count, bool)
            chosen[pairs[pairs[:, 0] == index, 1]] = True
            if chosen.any():
                yield self.of(names[index], chosen)

    def of(self, key: str, chosen: np.ndarray) -> Facts:
        """The facts of the bundles where `chosen` (bool[B]) holds."""
        program = self.program
        inside = chosen[self._bundle]
        counts = {name: int((kind & inside).sum()) for name, kind in self.kinds.items()}
        scalar = self.scalar_only & chosen
        counts["scalar_only_bundles"] = int(scalar.sum())
        vector = np.array([unit in (Unit.VLOAD, Unit.VSTORE) for unit in program.opcode_units], dtype=bool)
        wide = vector[program.instruction_opcode] if len(vector) else np.zeros(0, bool)
        sites = tuple(site for site in self.dma if chosen[site.bundle])
        return Facts(
            key=key,
            bundles=int(chosen.sum()),
            empty=int((program.empty & chosen).sum()),
            slots=_by_column(self.occupancy[chosen].sum(axis=0, dtype=np.int64)),
            counts=counts,
            spill_bytes=_bytes(self.kinds["spills"] & inside, wide),
            fill_bytes=_bytes(self.kinds["fills"] & inside, wide),
            code_bytes=int(chosen.sum()) * BUNDLE_BYTES,
            longest_scalar_stretch=_longest_run(scalar),
            not_understood=counts["not_understood"] + self._lost(chosen),
            dma=sites,
            **self._weighted(chosen, scalar, sites),
        )

    def _lost(self, chosen: np.ndarray) -> int:
        """Text that became no instruction at all: it could belong to any group, so it counts in each."""
        lost = self.program.columns.not_understood.count
        return lost if chosen.any() else 0

    def _weighted(self, chosen: np.ndarray, scalar: np.ndarray, sites: tuple[DmaSite, ...]) -> dict[str, Any]:
        if self.executed is None:
            return {}
        times = np.where(chosen, self.executed, 0)
        per_instruction = times[self._bundle]
        counts = {name: int(per_instruction[kind].sum()) for name, kind in self.kinds.items()}
        counts["scalar_only_bundles"] = int(times[scalar].sum())
        moved = [None if site.bytes is None else site.bytes * int(times[site.bundle]) for site in sites]
        return {
            "executed_bundles": int(times.sum()),
            "executed_empty": int(times[self.program.empty].sum()),
            "executed_slots": _by_column(times @ self.occupancy.astype(np.int64)),
            "executed_counts": counts,
            "executed_dma_bytes_at_most": None if None in moved else sum(m for m in moved if m is not None),
        }


def _by_column(values: np.ndarray) -> dict[str, int]:
    return {name: int(value) for name, value in zip(COLUMNS, values, strict=True)}


def _bytes(instructions: np.ndarray, wide: np.ndarray) -> int:
    vectors = int((instructions & wide).sum())
    return vectors * VECTOR_REGISTER_BYTES + (int(instructions.sum()) - vectors) * SCALAR_REGISTER_BYTES


def _longest_run(flags: np.ndarray) -> tuple[int, int]:
    """(start, length) of the longest run of True; (0, 0) where there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    if not len(edges):
        return (0, 0)
    starts, ends = edges[::2], edges[1::2]
    best = int(np.argmax(ends - starts))
    return int(starts[best]), int(ends[best] - starts[best])
