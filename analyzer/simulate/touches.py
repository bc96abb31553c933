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
    rb"= v(?:ld|st)[\w.]* \[vmem:\[(?P<first>%s\d+|#allocation\d+(?:_spill)?|\$?\d+)(?:_s\d+)?"
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
        self._accesses()
        self.stretches: dict[int, list[Stretch]] = {}
        for index, block in enumerate(program.blocks):
            found = []
            start = block.start
            for bundle in range(block.start, block.end):
                if (scalar[bundle] and divides(scalar[bundle])) or bundle == block.end - 1:
                    stretch = self._stretch(start, bundle + 1)
                    if stretch is not None:
                        found.append(stretch)
                    start = bundle + 1
            if found:
                self.stretches[index] = found

    def _accesses(self) -> None:
        """All accesses that are followed, in order: bundle, base label, first row."""
        places, labels, lows = [], [], []
        cache: dict[tuple[bytes | None, ...], tuple[str, int] | None] = {}
        for found in _VECTOR_MEMORY.finditer(self.program.data):
            key = found.groups()
            if key not in cache:
                cache[key] = self._base_of(found)
            resolved = cache[key]
            if resolved is not None:
                places.append(found.start())
                labels.append(resolved[0])
                lows.append(resolved[1])
        starts = self.program.instruction_span[:, 0]
        index = np.searchsorted(starts, np.array(places, dtype=np.int64), side="right") - 1
        self.access_bundle = self.bundle_of[index]
        self.access_label, self.access_low = labels, lows

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
        first, last = np.searchsorted(self.access_bundle, (start, end))
        if first == last:
            return None
        ranges: dict[str, list[int]] = {}
        bundles = self.access_bundle[first:last].tolist()
        for label, low, bundle in zip(
            self.access_label[first:last], self.access_low[first:last], bundles, strict=True
        ):
            known = ranges.get(label)
            if known is None:
                ranges[label] = [low, low, bundle, bundle]
                continue
            if low < known[0]:
                known[0] = low
            elif low > known[1]:
                known[1] = low
            known[2] = bundle
        bases = tuple(n for n in ranges if n[0] == "s")
        touches = tuple(
            Touch(bases.index(n) if n in bases else None, low, high + _ROWS_PER_ACCESS, last, first)
            for n, (low, high, last, first) in ranges.items()
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
