"""What can be said of a scalar without executing the program: its memory, its value, some of its bits.

Scalars are in SSA form, so that every value has one definition. A definition under a predicate counts as
any other: where the predicate does not hold the register has no meaning and is not used. Spill slots are
followed from the load back to their stores. An answer is given only where all definitions agree,
otherwise None (unknown).
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyzer.llo.program import Address, Instruction, Memory, Operand, Register, Unit

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

WORD = 0xFFFFFFFF
_DEPTH = 40  # definitions followed from one use; chains in real programs are far shorter
_RESULT = re.compile(rb"%s(\d{1,18})_s\d+ =")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an address points: memory space, and the HBM operand or the allocation it was made from."""

    space: str
    operand: int | None = None
    allocation: int | None = None


@dataclass(frozen=True, slots=True)
class Bits:
    """Bits known to be 0 and bits known to be 1 of a 32-bit value."""

    zeros: int = 0
    ones: int = 0

    @property
    def value(self) -> int | None:
        """The value where every bit is known."""
        return self.ones if self.zeros | self.ones == WORD else None


UNKNOWN_BITS = Bits()


def _constant(value: int) -> Bits:
    word = value & WORD
    return Bits(~word & WORD, word)


class Scalars:
    """Static answers about the scalars of one program."""

    def __init__(self, program: "FileProgram") -> None:
        self.program = program
        self._definitions: dict[int, int] = {}
        scalar = [unit in (Unit.SALU, Unit.PSEUDO) for unit in program.opcode_units]
        spans, data = program.instruction_span, program.data
        for index, code in enumerate(program.instruction_opcode):
            if scalar[code]:
                found = _RESULT.match(data, int(spans[index, 0]))
                if found is not None:
                    self._definitions[int(found[1])] = index
        self._stores: dict[int, list[Operand]] = {}
        for index in program.spills:
            instruction = program.instruction(index)
            slot = _slot(instruction) if instruction.mnemonic == "sst" else None
            if slot is not None:
                self._stores.setdefault(slot, []).append(instruction.operands[1])
        self._bits: dict[int, Bits] = {}
        self._origins: dict[int, Origin | None] = {}

    def definition(self, value: Register) -> Instruction | None:
        """The instruction that makes a scalar."""
        index = self._definitions.get(value.value) if value.kind == "s" else None
        return self.program.instruction(index) if index is not None else None

    def constant(self, operand: Operand | None) -> int | None:
        """The value of an operand, unsigned 32 bits, where it is the same in every execution."""
        return self.bits(operand).value

    def bits(self, operand: Operand | None, depth: int = _DEPTH) -> Bits:
        """What is known of the bits of an operand."""
        if isinstance(operand, bool) or operand is None:
            return UNKNOWN_BITS
        if isinstance(operand, int):
            return _constant(operand)
        if not isinstance(operand, Register) or operand.kind != "s" or depth == 0:
            return UNKNOWN_BITS
        known = self._bits.get(operand.value)
        if known is None:
            self._bits[operand.value] = UNKNOWN_BITS  # of a value that depends on itself
            made = self.definition(operand)
            known = self._bits_of(made, depth - 1) if made is not None else UNKNOWN_BITS
            self._bits[operand.value] = known
        return known

    def _bits_of(self, made: Instruction, depth: int) -> Bits:
        inputs = self.copies(made)
        if inputs is not None:
            return _join([self.bits(value, depth) for value in inputs])
        operands = [self.bits(operand, depth) for operand in made.operands[:2]]
        if len(operands) < 2:
            return UNKNOWN_BITS
        return _combine(made.mnemonic, *operands)

    def origin(self, operand: Operand | None, depth: int = _DEPTH) -> Origin | None:
        """Where an address operand points, or None where that is not known."""
        if isinstance(operand, Address):
            return Origin("", None, operand.allocation)
        if not isinstance(operand, Register) or operand.kind != "s" or depth == 0:
            return None
        if operand.value not in self._origins:
            self._origins[operand.value] = None
            made = self.definition(operand)
            self._origins[operand.value] = self._origin_of(made, depth - 1) if made is not None else None
        return self._origins[operand.value]

    def _origin_of(self, made: Instruction, depth: int) -> Origin | None:
        name = made.mnemonic
        if name.startswith("inlined_call_operand."):
            found = next((o for o in self.program.operands if o.register in made.results), None)
            return Origin(name.partition(".")[2], found.index if found is not None else None)
        inputs = self.copies(made)
        if inputs is not None:
            found_all = [self.origin(value, depth) for value in inputs]
            first = found_all[0] if found_all else None
            return first if first is not None and all(o == first for o in found_all) else None
        space = name.partition(".")[2] if name.startswith(("scalar_lea.", "int_to_ptr.")) else ""
        base = self.origin(made.operands[0], depth) if made.operands else None
        if space:
            return Origin(space, base.operand if base else None, base.allocation if base else None)
        if name.startswith(("sshll", "sadd", "sor")):  # rows into granules, an offset added
            return base or (self.origin(made.operands[1], depth) if len(made.operands) > 1 else None)
        return None

    def copies(self, made: Instruction) -> tuple[Operand, ...] | None:
        """The values that the result may be a plain copy of; None where it is computed."""
        name = made.mnemonic
        if name == "smov":
            return made.operands if made.otherwise is None else (*made.operands, made.otherwise)
        if name == "sphi":
            return made.operands
        if name == "scalar_select":
            return made.operands[1:]
        if name == "sld":
            slot = _slot(made)
            return tuple(self._stores.get(slot, ())) if slot is not None else None
        return None


def _slot(instruction: Instruction) -> int | None:
    """The spill slot that a scalar load or store names, or None."""
    place = instruction.operands[0] if instruction.operands else None
    if isinstance(place, Memory) and len(place.terms) == 1:
        term = place.terms[0]
        if isinstance(term, Address) and term.spill:
            return term.allocation
    return None


def _join(inputs: list[Bits]) -> Bits:
    zeros = ones = WORD if inputs else 0
    for known in inputs:
        zeros &= known.zeros
        ones &= known.ones
    return Bits(zeros, ones)


def _combine(name: str, left: Bits, right: Bits) -> Bits:
    """Known bits of a two-operand instruction."""
    first = name.partition(".")[0]
    if first == "sor":
        return Bits(left.zeros & right.zeros, left.ones | right.ones)
    if first == "sand":
        return Bits(left.zeros | right.zeros, left.ones & right.ones)
    if first in ("sshll", "sshrl"):
        return _shift(first, left, right.value)
    if first in ("sadd", "ssub", "smul"):
        return _arithmetic(first, left, right)
    return UNKNOWN_BITS


def _shift(first: str, left: Bits, shift: int | None) -> Bits:
    if shift is None or shift > 31:
        return UNKNOWN_BITS
    if first == "sshll":
        return Bits((left.zeros << shift | ((1 << shift) - 1)) & WORD, left.ones << shift & WORD)
    return Bits(left.zeros >> shift | (WORD & ~(WORD >> shift)), left.ones >> shift)


def _arithmetic(first: str, left: Bits, right: Bits) -> Bits:
    """The low bits of sums, differences and products depend on low bits alone."""
    known = (left.zeros | left.ones) & (right.zeros | right.ones)
    low = (known ^ (known + 1)) >> 1 if known != WORD else WORD  # ones up to the first unknown bit
    if first == "sadd":
        result = left.ones + right.ones
    elif first == "ssub":
        result = left.ones - right.ones
    else:
        result = left.ones * right.ones
    return Bits(~result & low & WORD, result & low & WORD)
