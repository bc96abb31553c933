"""Addresses for what the bundles only name: allocations, operands, semaphores.

A dump prints `[#allocation12 + $0x3]`, not numbers. The scalar program computes with addresses, so each
allocation gets one here, far enough apart that an address leads back to its allocation, and the spaces
in disjoint ranges: SMEM words below 2**24, VMEM granules below 2**31, HBM granules from 2**31.
Semaphores stay below 0x2000, because remote operations OR chip and core into the higher bits.

Units: SMEM in words, VMEM in rows of 512 bytes (16 granules), HBM in granules of 32 bytes; on v5e HBM in
rows too: its programs shift an HBM address left by four for a copy, as all do with VMEM addresses.
"""

import bisect
import re
from dataclasses import dataclass, field

from analyzer.errors import UnsupportedProgramError
from analyzer.llo.program import Address, HbmOperand, Instruction, Memory, Program, Register

GRANULE = 32
GRANULES_PER_ROW = 16
VMEM_BASE = 1 << 24  # granules
HBM_BASE = 1 << 31  # granules
FLAG_LIMIT = 0x2000
_VMEM_ROWS = (HBM_BASE - VMEM_BASE) // GRANULES_PER_ROW
_VMEM_SPACING = 1 << 17  # rows: the whole VMEM of a core
_SMEM_SPACING = 1 << 12
_HBM_ALIGN = 1 << 10

# Direct vector loads and stores are taken from the text: there are too many to decode.
_MEMORY = re.compile(rb"\[(vmem|smem):\[#allocation(\d+)(_spill)?(?: \+ \$(0x[0-9a-f]+))?\]")

Key = tuple[int, bool]  # allocation number, spill

_FLAG_NAMES = ("dst_syncflagno", "src_syncflagno", "dst_syncflagno_1", "syncflagno", "sflag")
_NAME_SPACE = {"vmem": "vmem", "smem": "smem", "stridedescaddr": "smem"} | dict.fromkeys(_FLAG_NAMES, "sflag")


@dataclass(slots=True)
class _Use:
    space: str | None = None
    extent: int = 1  # one past the largest constant offset seen
    dynamic: bool = False  # an address that something may be added to
    guesses: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Placed:
    """One range that addresses resolve to.

    space: smem | vmem | hbm | sflag; start and size in the unit of the space (VMEM: granules).
    name: `#allocation12`, or `operand 3`; operand: its index or None.
    """

    space: str
    start: int
    size: int
    name: str
    operand: int | None = None


class Layout:
    """Numeric addresses of one program's allocations and operands.

    Raises:
        UnsupportedProgramError: there is no room (over 64 GiB of HBM operands, over 8,191 semaphores),
            or the space of an allocation that is needed cannot be told.
    """

    def __init__(self, program: Program, scalar: list[list[Instruction]]) -> None:
        self.program = program
        self.uses: dict[Key, _Use] = {}
        self.address: dict[Key, int] = {}  # VMEM: rows
        self.operand_address: dict[Register, int] = {}  # VMEM: rows; HBM: granules, or rows
        self.placed: list[Placed] = []
        self.global_barrier_flag: int | None = None
        self._hbm_unit = GRANULES_PER_ROW if _shifts_hbm(scalar) else 1
        self._collect(scalar)
        self._place_flags(scalar)
        self._place_smem()
        self._place_vmem()
        self._place_hbm()
        self.placed.sort(key=lambda p: p.start)
        self._starts = {
            space: [p.start for p in self.placed if p.space == space] for space in ("smem", "vmem", "hbm")
        }
        self._ranges = {
            space: [p for p in self.placed if p.space == space] for space in ("smem", "vmem", "hbm")
        }

    def of(self, address: Address) -> int | None:
        """The number an allocation address stands for; None where its space is unknown."""
        base = self.address.get((address.allocation, address.spill))
        return None if base is None else base + address.offset

    def space_of(self, granule: int) -> str:
        """Memory space of a DMA endpoint address."""
        if granule >= HBM_BASE:
            return "hbm"
        return "vmem" if granule >= VMEM_BASE else "smem"

    def find(self, space: str, address: int) -> Placed | None:
        """The placed range that holds `address` (VMEM: granules), or None."""
        index = bisect.bisect_right(self._starts[space], address) - 1
        if index < 0:
            return None
        placed = self._ranges[space][index]
        return placed if address < placed.start + placed.size else None

    def _use(self, address: Address) -> _Use:
        use = self.uses.setdefault((address.allocation, address.spill), _Use())
        use.extent = max(use.extent, address.offset + 1)
        return use

    def _collect(self, scalar: list[list[Instruction]]) -> None:
        for found in _MEMORY.finditer(self.program.data):
            offset = int(found[4], 16) if found[4] else 0
            use = self._use(Address(int(found[2]), offset, found[3] is not None))
            use.space = found[1].decode()
        for bundle in scalar:
            for instruction in bundle:
                self._collect_instruction(instruction)
        pointers: dict[Register, set[Key]] = {}
        for bundle in scalar:
            for instruction in bundle:
                for operand in (*instruction.operands, instruction.otherwise):
                    if isinstance(operand, Address) and instruction.results:
                        pointers.setdefault(instruction.results[0], set()).add(
                            (operand.allocation, operand.spill)
                        )
        for _ in range(3):
            if not self._follow_pointers(scalar, pointers):
                break

    def _collect_instruction(self, instruction: Instruction) -> None:
        mnemonic = instruction.mnemonic
        for operand, name in zip(instruction.operands, instruction.operand_names, strict=True):
            if isinstance(operand, Memory):
                addresses = [t for t in operand.terms if isinstance(t, Address)]
                for address in addresses:
                    use = self._use(address)
                    use.space = operand.space
                    use.dynamic |= len(operand.terms) > 1
            elif isinstance(operand, Address):
                use = self._use(operand)
                if mnemonic.startswith("scalar_lea."):
                    use.space, use.dynamic = mnemonic.partition(".")[2], True
                elif mnemonic.startswith(("vsync", "vwait", "dma.done")):
                    use.space = "sflag"
                elif name in _NAME_SPACE:
                    use.space = _NAME_SPACE[name]
                else:
                    use.dynamic = True
        if isinstance(instruction.otherwise, Address):
            self._use(instruction.otherwise).dynamic = True

    def _follow_pointers(self, scalar: list[list[Instruction]], pointers: dict[Register, set[Key]]) -> bool:
        """Learn the space of an allocation from where a register made from it goes; True if more is known."""
        learned = False
        for bundle in scalar:
            for instruction in bundle:
                for operand, name in zip(instruction.operands, instruction.operand_names, strict=True):
                    terms = operand.terms if isinstance(operand, Memory) else (operand,)
                    for term in terms:
                        keys = pointers.get(term) if isinstance(term, Register) else None
                        if not keys:
                            continue
                        space = self._space_here(instruction, operand, name)
                        for key in keys:
                            use = self.uses[key]
                            if space is not None and use.space is None:
                                use.space, learned = space, True
                        if instruction.results and instruction.mnemonic != "sld":
                            known = pointers.setdefault(instruction.results[0], set())
                            learned |= not known >= keys
                            known |= keys
        return learned

    @staticmethod
    def _space_here(instruction: Instruction, operand: object, name: str | None) -> str | None:
        mnemonic = instruction.mnemonic
        if isinstance(operand, Memory):
            return operand.space
        if mnemonic.startswith(("vsync", "vwait", "dma.done")):
            return "sflag"
        if mnemonic.startswith(("int_to_ptr.", "scalar_lea.")):
            return mnemonic.partition(".")[2]
        return _NAME_SPACE.get(name or "")

    def _keys(self, space: str) -> list[Key]:
        return sorted(key for key, use in self.uses.items() if use.space == space)

    def _place_flags(self, scalar: list[list[Instruction]]) -> None:
        absolute = {
            operand & 0x3FFF
            for bundle in scalar
            for i in bundle
            if i.mnemonic == "vsyncadd.remote" and isinstance(operand := i.operands[0], int)
        }
        barrier = {
            (operand.allocation, operand.spill)
            for bundle in scalar
            for i in bundle
            if "global-barrier-wait" in i.comments and isinstance(operand := i.operands[0], Address)
        }
        if len(absolute) == 1 and len(barrier) == 1:
            self.global_barrier_flag = self.address[next(iter(barrier))] = next(iter(absolute))
        keys = [key for key in self._keys("sflag") if key not in self.address]
        fixed = sum(self.uses[k].extent for k in keys if not self.uses[k].dynamic)
        arrays = [k for k in keys if self.uses[k].dynamic]
        room = FLAG_LIMIT - 128 - fixed - sum(self.uses[k].extent for k in arrays)
        slack = min(room // max(len(arrays), 1), 1024)
        if slack < 0:
            raise UnsupportedProgramError(
                self.program.path, "needs more than 8,191 semaphores", "The remote flag format has 13 bits"
            )
        at = 128
        for key in keys:
            use = self.uses[key]
            size = use.extent + (slack if use.dynamic else 0)
            self.address[key] = at
            self.placed.append(Placed("sflag", at, size, _name(key)))
            at += size

    def _place_smem(self) -> None:
        at = 64
        for key in self._keys("smem"):
            use = self.uses[key]
            size = use.extent + (_SMEM_SPACING if use.dynamic else 0)
            self.address[key] = at
            self.placed.append(Placed("smem", at, size, _name(key)))
            at += size
        for operand in self.program.operands:
            if operand.space == "smem":
                size = (operand.size_bytes or 0) // 4 + _SMEM_SPACING
                self.operand_address[operand.register] = at
                self.placed.append(Placed("smem", at, size, f"operand {operand.index}", operand.index))
                at += size

    def _place_vmem(self) -> None:
        operands = [o for o in self.program.operands if o.space == "vmem"]
        keys = self._keys("vmem")
        pools = [k for k in keys if not k[1]]
        spacing = min(_VMEM_SPACING, _VMEM_ROWS // (len(pools) + len(operands) + 2) & ~7)
        row = VMEM_BASE // GRANULES_PER_ROW
        for key in pools:
            self._put_vmem(row, spacing, _name(key), None)
            self.address[key] = row
            row += spacing
        for operand in operands:
            self._put_vmem(row, spacing, f"operand {operand.index}", operand.index)
            self.operand_address[operand.register] = row
            row += spacing
        for key in keys:
            if key[1]:
                self.address[key] = row
                row += self.uses[key].extent + 8

    def _put_vmem(self, row: int, rows: int, name: str, operand: int | None) -> None:
        self.placed.append(Placed("vmem", row * GRANULES_PER_ROW, rows * GRANULES_PER_ROW, name, operand))

    def _place_hbm(self) -> None:
        at = HBM_BASE
        for operand in self.program.operands:
            if operand.space in ("vmem", "smem") or passed_by_value(operand):
                continue
            if operand.kind == "output" and operand.aliases:
                shared = next((o for o in self.program.operands if o.index in operand.aliases), None)
                if shared is not None and shared.register in self.operand_address:
                    self.operand_address[operand.register] = self.operand_address[shared.register]
                    continue
            size = -(-_padded_bytes(operand) // GRANULE)
            self.operand_address[operand.register] = at // self._hbm_unit
            self.placed.append(Placed("hbm", at, size, f"operand {operand.index}", operand.index))
            at += -(-size // _HBM_ALIGN) * _HBM_ALIGN
        for key in self._keys("hbm"):
            self.address[key] = at // self._hbm_unit
            self.placed.append(Placed("hbm", at, 1 << 25, _name(key)))
            at += 1 << 25
        if at > 1 << 32:
            raise UnsupportedProgramError(
                self.program.path, "more than 64 GiB of HBM operands", "Compile the kernel for fewer layers"
            )


def _shifts_hbm(scalar: list[list[Instruction]]) -> bool:
    """Does the program hold HBM addresses in rows: `int_to_ptr.hbm` of `address << 4`?"""
    shifted = {
        i.results[0]
        for bundle in scalar
        for i in bundle
        if i.mnemonic == "sshll.u32" and i.results and i.operands[1:] == (4,)
    }
    return any(
        i.mnemonic == "int_to_ptr.hbm" and any(o in shifted for o in i.operands)
        for bundle in scalar
        for i in bundle
    )


def passed_by_value(operand: HbmOperand) -> bool:
    """Is the operand a scalar in a register (`inlined_call_operand.<no memory space>`)?"""
    return not operand.space or operand.space.startswith("<")


def _padded_bytes(operand: HbmOperand) -> int:
    """At most what an array takes in HBM: last dimension to 128 elements, the one before to a full tile."""
    if operand.size_bytes is None:
        return 1 << 30
    elements = 1
    for dimension in operand.dimensions:
        elements *= dimension
    if not elements:
        return operand.size_bytes
    bits = max(operand.size_bytes * 8 // elements, 1)
    if len(operand.dimensions) < 2:
        return max(-(-elements // 1024) * 1024 * bits // 8, operand.size_bytes)
    rows = max(8 * 32 // bits, 8)
    *outer, second, last = operand.dimensions
    padded = -(-second // rows) * rows * (-(-last // 128) * 128)
    for dimension in outer:
        padded *= dimension
    return max(padded * bits // 8, operand.size_bytes)


def _name(key: Key) -> str:
    return f"#allocation{key[0]}{'_spill' if key[1] else ''}"
