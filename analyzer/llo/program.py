"""The program model: what one compiled TPU program is, independent of the text it was read from.

A `Program` is columnar where it is big (bundles, instructions: numpy arrays and offsets into the
text) and decodes single instructions on demand into the small frozen values below, so that reading
90,000 bundles stays fast and a simulator still gets full operands where it needs them.

Units: bundle *index* counts printed bundles from 0 and equals the address (0x0, 0x1, ...).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np


class Unit(Enum):
    """The issue slot an instruction occupies. `PSEUDO` takes none; `UNKNOWN` was not understood."""

    MXU = "MXU"
    XLU = "XLU"
    VALU = "VALU"
    VPOP = "VPOP"
    EUP = "EUP"
    VLOAD = "VLOAD"
    VSTORE = "VSTORE"
    SALU = "SALU"
    DMA = "DMA"
    SYNC = "SYNC"
    PSEUDO = "PSEUDO"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Register:
    """An SSA value and the physical register that holds it: `%s12_s4` is ("s", 12, 4).

    kind: "s" scalar, "p" predicate, "v" vector, "vm" mask, "h" handle (`%123`, no register).
    """

    kind: str
    value: int
    physical: int | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """`[#allocation12 + $0x3]` used as an immediate: the address of an allocation plus an offset.

    offset is in the units of the allocation's space (VMEM rows of 512 bytes, SMEM words, flags).
    spill marks `[#allocation12_spill]`.
    """

    allocation: int
    offset: int = 0
    spill: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory operand: `[vmem:[%s3 + $0x40] sm:$0xff]`, `[smem:[#allocation9]]`.

    terms are added to give the address. suffix keeps `sm:$0xff ss:$4` and the like as printed.
    """

    space: str
    terms: tuple["Operand", ...]
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """An operand kept as printed because nothing needs more of it (`[2/8]`, a lane pattern)."""

    text: str


Operand = Register | int | float | Address | Memory | Text


@dataclass(frozen=True, slots=True)
class Predicate:
    """`(%p3)` or `(!%p3)`: the guard of one instruction."""

    register: Register
    negated: bool = False


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """A place in the user's source as the compiler printed it (1-based lines and columns).

    Instructions that Pallas lowers once and reuses carry the line of their FIRST use.
    """

    file: str
    line: int
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a bundle, decoded.

    mnemonic: unit suffix included (`vmatpush1.bf16.msra.mxu0`), as libtpu 0.0.50 spells it whatever
        version printed it; `spelled` is as printed.
    operand_names: the `/*name=*/` printed before each operand, or None.
    target_region: N of `target = $regionN` on branches.
    comments: remaining comments as printed, without delimiters (`kRem`, `core id`, `hbm-to-vmem`).
    text: the instruction as printed, comments included.
    otherwise: the old value of a select `smov (!%p, %old), %new`: what the result is where
        `predicate` (as printed, here not %p) does not hold; `operands` is then (new,).
    attributes: bracketed marks that are no operands, without brackets: `thread:$0`, `resolvable:$true`
        after the mnemonic; `into:#allocation5` for the hint that ends some `scalar_lea`.
    guard_position: how many operands are printed before the predicate.
    target_bundle: the number in the old spelling `target bundleno = 160 (0xa0), region = 30`. It counts
        bundles of another numbering: use target_region.
    """

    bundle: int
    slot: int
    mnemonic: str
    unit: Unit
    results: tuple[Register, ...]
    operands: tuple[Operand, ...]
    operand_names: tuple[str | None, ...]
    predicate: Predicate | None
    target_region: int | None
    sources: tuple[SourceSpan, ...]
    comments: tuple[str, ...]
    text: str
    otherwise: Operand | None = None
    attributes: tuple[str, ...] = ()
    guard_position: int = 0
    target_bundle: int | None = None
    spelled: str = ""

    def operand(self, name: str) -> Operand | None:
        """The operand printed after `/*name=*/`, or None."""
        return next((o for o, n in zip(self.operands, self.operand_names, strict=True) if n == name), None)


@dataclass(frozen=True, slots=True)
class Region:
    """A region of the region lists: half-open range of bundles; end is None where no End is printed."""

    number: int
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class HbmOperand:
    """An `inlined_call_operand.*`: what the caller passes to the kernel.

    shape: as printed (`bf16[92,16,7168]`); size_bytes is None for a dtype we do not know.
    space: "hbm", "vmem", "smem", or "" for a scalar passed by value. aliases: operands that may share
    its memory.
    """

    index: int
    space: str
    kind: str
    shape: str
    dtype: str
    dimensions: tuple[int, ...]
    size_bytes: int | None
    register: Register
    bundle: int
    aliases: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """A resolved branch: taken control goes to bundle `target` after the delay slots.

    delay_slots counts the *printed* bundles after the branch that execute before control moves.
    """

    bundle: int
    target: int
    delay_slots: int
    predicate: Predicate | None


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop: bundles start..end inclusive (end = last delay slot of the latch branch)."""

    start: int
    end: int
    depth: int
    latch: int


@dataclass(frozen=True, slots=True)
class Block:
    """A basic block: bundles start (inclusive) to end (exclusive); branches keep their delay slots."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Marker:
    """A `vtrace`: kind is "scope_start", "scope_end", "region", "bundle" or "value"."""

    bundle: int
    kind: str
    identifier: int
    name: str | None


@dataclass(slots=True)
class NotUnderstood:
    """Text that the reader could not classify: counted, with samples, never guessed."""

    count: int = 0
    samples: list[tuple[int, str]] = field(default_factory=list)


class Program:
    """One compiled program. See `analyzer.llo.reader.read_program` for how to get one.

    Attributes (columnar; B bundles, I instructions):
        name: program name from the file name (`mlp.1`).
        bundle_first: int32[B+1], index of each bundle's first instruction.
        opcodes: distinct mnemonics (see Instruction.mnemonic); instruction_opcode: int32[I] indexes it.
        opcode_units: list[Unit], parallel to opcodes.
        instruction_span: int64[I, 2], byte offsets into `data`.
        instruction_source: int32[I], index into `sources` of the first location, or -1.
        sources: list[SourceSpan], distinct.
        regions, branches, loops, blocks, markers, operands: lists of the values above.
    """

    name: str
    path: str
    data: bytes
    bundle_first: np.ndarray
    opcodes: list[str]
    opcode_units: list[Unit]
    instruction_opcode: np.ndarray
    instruction_span: np.ndarray
    instruction_source: np.ndarray
    sources: list[SourceSpan]
    regions: dict[int, Region]
    branches: dict[int, Branch]
    loops: list[Loop]
    blocks: list[Block]
    markers: list[Marker]
    operands: list[HbmOperand]
    not_understood: NotUnderstood

    @property
    def bundle_count(self) -> int:
        """Number of printed bundles."""
        return len(self.bundle_first) - 1

    def instruction(self, index: int) -> Instruction:
        """Instruction `index` (0-based over the program), decoded from its text."""
        raise NotImplementedError

    def bundle(self, bundle: int) -> tuple[Instruction, ...]:
        """The instructions of one bundle in printed order."""
        return tuple(
            self.instruction(i) for i in range(self.bundle_first[bundle], self.bundle_first[bundle + 1])
        )

    def scalar_instructions(self, bundle: int) -> Iterator[Instruction]:
        """Only what moves scalars, predicates, SMEM, DMA, semaphores, branches and markers."""
        raise NotImplementedError
