"""How many cycles the bundles of a block take to issue, and where they stall on an MXU.

One bundle issues per cycle. An MXU has two ports: weights come in by one (`vmatprep.subr`, `vmatpush*`, held
for `mxu.push` cycles each), rows by the other (`vmatmul`, `mxu.matmul` cycles per 8 rows of 16 or 32 bits);
the compiler counts them apart too. A bundle that needs a held port waits for it. What the ports still hold at
the end of a block is carried into the next one.

A bundle that takes a result waits until it is ready, where the machine file says when (result_waits.py).

A vector register holds 8 rows of 32 bits, 16 of 16, 32 of 8; 8-bit rows go twice as fast. So a bf16 or
8-bit `vmatmul` takes twice as long as an f32 one.
"""

import re
from dataclasses import dataclass

import numpy as np

from analyzer.llo.program import Program
from analyzer.machine import Machine
from analyzer.simulate import result_waits

_MXU = re.compile(r"\.mxu(\d+)")
_PUSH = re.compile(r"vmatprep\.subr|vmatpush|vdwg|vlatch")
_MATMUL = re.compile(r"vmatmul")
_WIDE = re.compile(r"\.(f32|s32|u32)\b")  # also what older dumps print for every type

State = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BlockCycles:
    """offset: cycles from the start of the block at which each of its bundles issues; total: to its end.

    offset_ps, total_ps: the same in picoseconds.
    """

    offset: list[float]
    total: float
    state: State
    offset_ps: list[float]
    total_ps: float


class MxuUse:
    """MXU operations per bundle: {bundle: [(port, weight), ...]}, read once per program.

    port: 2 * MXU for weights, 2 * MXU + 1 for rows; ports: how many there are. weight: 0 for a push; for a
    matmul how many times 8 rows of 16 or 32 bits it is worth.
    """

    def __init__(self, program: Program) -> None:
        kinds: dict[int, tuple[int, int]] = {}
        for index, mnemonic in enumerate(program.opcodes):
            mxu = _MXU.search(mnemonic)
            if mxu is None:
                continue
            if _MATMUL.match(mnemonic):
                kinds[index] = (2 * int(mxu[1]) + 1, 1 if _WIDE.search(mnemonic) else 2)
            elif _PUSH.match(mnemonic):
                kinds[index] = (2 * int(mxu[1]), 0)
        interesting = np.isin(program.instruction_opcode, list(kinds))
        where = np.flatnonzero(interesting)
        bundles = np.searchsorted(program.bundle_first, where, side="right") - 1
        self.ports = 1 + max((port for port, _ in kinds.values()), default=-1)
        self.by_bundle: dict[int, list[tuple[int, int]]] = {}
        for bundle, opcode in zip(bundles.tolist(), program.instruction_opcode[where].tolist(), strict=True):
            self.by_bundle.setdefault(bundle, []).append(kinds[opcode])

    def issue(self, bundle: int, cycle: float, held: list[float], costs: tuple[float, float]) -> float:
        """The cycle in which a bundle issues that is next at `cycle`: it waits for the ports it needs.

        Args:
            held: until when each port is held; moved on by what the bundle holds.
            costs: cycles of a push, and of a matmul of weight 1.
        """
        operations = self.by_bundle.get(bundle)
        if operations is None:
            return cycle
        push, matmul = costs
        for port, _ in operations:
            cycle = max(cycle, held[port])
        for port, weight in operations:
            held[port] = max(cycle, held[port]) + (weight * matmul if weight else push)
        return cycle


class Fetch:
    """What code is resident: blocks, the least recently visited leaves first.

    A block that is not resident streams in while it issues: its bundle k cannot issue before k bundles have
    been fetched. Off (None in the model) where `fetch.bandwidth` is 0.
    """

    def __init__(self, program: Program, resident: float) -> None:
        self.sizes = [block.end - block.start for block in program.blocks]
        self.room = self.resident = resident
        self.held: dict[int, None] = {}

    def visit(self, block: int) -> bool:
        """Note a visit; True where the block has to be fetched."""
        held = self.held
        if self.sizes[block] > self.resident:
            return True
        if block in held:
            del held[block]
            held[block] = None
            return False
        self.room -= self.sizes[block]
        held[block] = None
        while self.room < 0:
            oldest = next(iter(held))
            del held[oldest]
            self.room += self.sizes[oldest]
        return True


class IssueModel:
    """Cycle offsets of every block for one machine; computed when first asked for, then kept."""

    def __init__(self, program: Program, use: MxuUse, machine: Machine) -> None:
        self.program, self.use = program, use
        self.costs = machine["mxu.push"], machine["mxu.matmul"]
        self.delays = tuple(machine[name] for name in result_waits.DELAYS)
        self.results = result_waits.waits(program) if any(self.delays) else {}
        self.branch_cycles = machine["issue.branch_cycles"]
        self.cycle_ps = machine.cycle_ps
        self.idle: State = (0.0,) * use.ports
        rate = machine["fetch.bandwidth"]
        self.fetch_cycles = machine["issue.clock"] / rate if rate else 0.0
        self.resident = machine["fetch.resident"]
        self.known: dict[tuple[int, State, bool], BlockCycles] = {}

    def new_fetch(self) -> Fetch | None:
        """Fresh residency of code for one core, or None where fetching costs nothing."""
        return Fetch(self.program, self.resident) if self.fetch_cycles else None

    def block(self, index: int, state: State, cold: bool = False) -> BlockCycles:
        """Cycles of a block entered with `state` (cycles each port is still held); cold: not resident."""
        key = (index, state, cold)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._compute(index, state, self.fetch_cycles if cold else 0.0)
        return found

    def _compute(self, index: int, state: State, fetch_cycles: float) -> BlockCycles:
        block = self.program.blocks[index]
        held = list(state)
        cycle = 0.0
        offset: list[float] = []
        branch_at: tuple[int, float] | None = None
        for bundle in range(block.start, block.end):
            if fetch_cycles:
                cycle = max(cycle, (bundle - block.start + 1) * fetch_cycles - 1)
            for asked, delay in self.results.get(bundle, ()):
                cycle = max(cycle, offset[asked - block.start] + self.delays[delay])
            cycle = self.use.issue(bundle, cycle, held, self.costs)
            offset.append(cycle)
            if bundle in self.program.branches:
                branch_at = (bundle, cycle)
            cycle += 1
        if branch_at is not None:
            cycle = max(cycle, branch_at[1] + 1 + self.branch_cycles)
        after = tuple(max(h - cycle, 0.0) for h in held)
        length = self.cycle_ps
        return BlockCycles(offset, cycle, after, [o * length for o in offset], cycle * length)
