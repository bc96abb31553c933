"""Which rows of VMEM the vector loads and stores of a block touch.

Needed to say when a buffer was free. Accesses are summed up per stretch of a block (between waits and
copies) and base register; only buffers whose address reaches a DMA are followed.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.llo.program import Address, Instruction, Program, Register
from analyzer.simulate.layout import Layout
from analyzer.simulate.sites import Touch, name_of

_VECTOR_MEMORY = re.compile(
    rb"(?:vld|vst)\b.*?\[vmem:\[(?P<first>%s\d+|#allocation\d+(?:_spill)?|\$?\d+)(?:_s\d+)?"
    rb"(?: \+ (?P<second>%s\d+|\$0x[0-9a-f]+)(?:_s\d+)?)?(?: \+ \$(?P<third>0x[0-9a-f]+))?\]"
)
_ROWS_PER_ACCESS = 8


@dataclass(frozen=True, slots=True)
class Stretch:
    """Accesses of one stretch that ends with `bundle`. bases: names of the base registers."""

    bundle: int
    bases: tuple[str, ...]
    touches: tuple[Touch, ...]


def divides(instructions: Sequence[Instruction]) -> bool:
    """Does a wait or a copy in this bundle end a stretch?"""
    return any(i.mnemonic.startswith(("dma.", "vwait")) for i in instructions)


class TouchPlan:
    """The stretches of every block: `stretches` maps a block's index to them."""

    def __init__(
        self,
        program: Program,
        scalar: list[list[Instruction]],
        layout: Layout,
        constants: Mapping[str, int],
    ) -> None:
        self.program, self.scalar, self.layout, self.constants = program, scalar, layout, constants
        self.escaped, self.pointers = self._escaping()
        self.bundle_of = np.repeat(np.arange(program.bundle_count), np.diff(program.bundle_first))
        self.stretches: dict[int, list[Stretch]] = {}
        for index, block in enumerate(program.blocks):
            found = []
            start = block.start
            for bundle in range(block.start, block.end):
                if divides(scalar[bundle]) or bundle == block.end - 1:
                    stretch = self._stretch(start, bundle + 1)
                    if stretch is not None:
                        found.append(stretch)
                    start = bundle + 1
            if found:
                self.stretches[index] = found

    def _escaping(self) -> tuple[set[str], dict[str, set[str]]]:
        """VMEM allocations whose address reaches a DMA, and the allocations each register may point to."""
        pointers: dict[str, set[str]] = defaultdict(set)
        escaped: set[str] = set()
        for _ in range(2):
            for bundle in self.scalar:
                for i in bundle:
                    sources: set[str] = set()
                    for operand in (*i.operands, i.otherwise):
                        if isinstance(operand, Address):
                            sources.add(f"#allocation{operand.allocation}{'_spill' if operand.spill else ''}")
                        elif isinstance(operand, Register):
                            sources |= pointers[name_of(operand)]
                    if i.mnemonic.startswith(("dma.", "int_to_ptr", "sst")) and sources:
                        escaped |= sources
                    if i.results and sources:
                        pointers[name_of(i.results[0])] |= sources
        return escaped, pointers

    def _stretch(self, start: int, end: int) -> Stretch | None:
        program = self.program
        first, last = int(program.bundle_first[start]), int(program.bundle_first[end])
        if first == last:
            return None
        begin, stop = int(program.instruction_span[first, 0]), int(program.instruction_span[last - 1, 1])
        if program.data.find(b"[vmem:[", begin, stop) < 0:
            return None
        ranges: dict[str, list[int]] = {}
        for index in range(first, last):
            begin, stop = program.instruction_span[index]
            found = _VECTOR_MEMORY.search(program.data, begin, stop)
            if found is None:
                continue
            resolved = self._base_of(found)
            if resolved is None:
                continue
            label, low = resolved
            bundle = int(self.bundle_of[index])
            known = ranges.setdefault(label, [low, low + _ROWS_PER_ACCESS, bundle])
            known[0] = min(known[0], low)
            known[1] = max(known[1], low + _ROWS_PER_ACCESS)
            known[2] = max(known[2], bundle)
        if not ranges:
            return None
        bases = tuple(n for n in ranges if n[0] == "s")
        touches = tuple(
            Touch(bases.index(n) if n in bases else None, low, high, at)
            for n, (low, high, at) in ranges.items()
        )
        return Stretch(end - 1, bases, touches)

    def _base_of(self, found: re.Match[bytes]) -> tuple[str, int] | None:
        """Label of the base (register name, allocation, or "constant") and first row; None: not followed."""
        low = int(found["third"], 16) if found["third"] else 0
        first, second = found["first"].decode(), found["second"]
        if second is not None:
            if second.startswith(b"%"):
                # Allocation plus register: the register alone is no address; such accesses are rare
                # and small (dynamic single rows) and are not followed.
                return None
            low += int(second[1:], 16)
        if first.startswith("%"):
            name = first[1:]
            if name in self.constants:
                return "constant", low + self.constants[name]
            if self.pointers.get(name) and self.escaped.isdisjoint(self.pointers[name]):
                return None
            return name, low
        if not first.startswith("#") or first not in self.escaped:
            return None
        row = self.layout.address.get((int(first.removesuffix("_spill")[11:]), first.endswith("_spill")))
        return None if row is None else (first, low + row)
