"""How many cycles the bundles of a block take to issue, and where they stall on an MXU.

One bundle issues per cycle. Each weight push (`vmatprep.subr`, `vmatpush*`) holds its MXU for
`mxu.push` cycles and each `vmatmul` for `mxu.matmul`; a bundle that needs a held MXU waits for it. What
the MXUs still hold at the end of a block is carried into the next one.
"""

import re
from dataclasses import dataclass

import numpy as np

from analyzer.llo.program import Program
from analyzer.machine import Machine

_MXU = re.compile(r"\.mxu(\d+)")
_PUSH = re.compile(r"vmatprep\.subr|vmatpush|vdwg|vlatch")
_MATMUL = re.compile(r"vmatmul")

State = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BlockCycles:
    """offset: cycles from the start of the block at which each of its bundles issues; total: to its end."""

    offset: list[float]
    total: float
    state: State


class MxuUse:
    """MXU operations per bundle: (bundle, ((mxu, is a matmul), ...)), read once per program."""

    def __init__(self, program: Program) -> None:
        kinds: dict[int, tuple[int, bool]] = {}
        for index, mnemonic in enumerate(program.opcodes):
            mxu = _MXU.search(mnemonic)
            if mxu is None:
                continue
            if _MATMUL.match(mnemonic):
                kinds[index] = (int(mxu[1]), True)
            elif _PUSH.match(mnemonic):
                kinds[index] = (int(mxu[1]), False)
        interesting = np.isin(program.instruction_opcode, list(kinds))
        where = np.flatnonzero(interesting)
        bundles = np.searchsorted(program.bundle_first, where, side="right") - 1
        self.mxus = 1 + max((m for m, _ in kinds.values()), default=-1)
        self.by_bundle: dict[int, list[tuple[int, bool]]] = {}
        for bundle, opcode in zip(bundles.tolist(), program.instruction_opcode[where].tolist(), strict=True):
            self.by_bundle.setdefault(bundle, []).append(kinds[opcode])


class IssueModel:
    """Cycle offsets of every block for one machine; computed when first asked for, then kept."""

    def __init__(self, program: Program, use: MxuUse, machine: Machine) -> None:
        self.program, self.use = program, use
        self.push, self.matmul = machine["mxu.push"], machine["mxu.matmul"]
        self.branch_cycles = machine["issue.branch_cycles"]
        self.idle: State = (0.0,) * use.mxus
        self._known: dict[tuple[int, State], BlockCycles] = {}

    def block(self, index: int, state: State) -> BlockCycles:
        """Cycles of block `index` entered with `state` (cycles each MXU is still held)."""
        key = (index, state)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._compute(index, state)
        return found

    def _compute(self, index: int, state: State) -> BlockCycles:
        block = self.program.blocks[index]
        held = list(state)
        cycle = 0.0
        offset: list[float] = []
        by_bundle = self.use.by_bundle
        branch_at: tuple[int, float] | None = None
        for bundle in range(block.start, block.end):
            operations = by_bundle.get(bundle)
            if operations is not None:
                for mxu, _ in operations:
                    cycle = max(cycle, held[mxu])
                for mxu, matmul in operations:
                    held[mxu] = max(cycle, held[mxu]) + (self.matmul if matmul else self.push)
            offset.append(cycle)
            if bundle in self.program.branches:
                branch_at = (bundle, cycle)
            cycle += 1
        if branch_at is not None:
            cycle = max(cycle, branch_at[1] + 1 + self.branch_cycles)
        return BlockCycles(offset, cycle, tuple(max(h - cycle, 0.0) for h in held))
