"""What each bundle occupies, in the columns of the compiler's own utilization file.

Two kinds of column. VALU, VPOP, VLOAD, VSTORE and SALU count issue slots taken by the bundle itself.
MXU, XLU and EUP count units that are *busy*: an instruction holds its unit during the bundles after
its own (`HOLD`), for as many as its data takes; weight pushes hold nothing. All of it was inferred from
the files that libtpu writes beside its bundles and holds for every one seen (docs/llo.md).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analyzer.llo import opcodes
from analyzer.llo.program import Register, Unit

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

COLUMNS = ("MXU", "XLU", "VALU", "VPOP", "EUP", "VLOAD", "VLOAD:FILL", "VSTORE", "VSTORE:SPILL", "SALU")
CAPACITY = {
    5: (4, 3, 4, 2, 1, 3, 3, 1, 1, 2),
    6: (2, 2, 4, 2, 1, 3, 3, 2, 2, 2),
    7: (2, 2, 4, 2, 1, 3, 3, 2, 2, 2),
}
XLU_HOLD = {5: 9, 6: 4, 7: 4}
_INDEX = {name: index for index, name in enumerate(COLUMNS)}
HELD = ("MXU", "XLU", "EUP")  # columns that count busy units, not slots of the bundle itself

# Sync operations and random numbers issue in the third load slot, mask arithmetic as well.
_MISC_SLOT = frozenset(
    ("vsyncadd", "vsyncpa", "vsyncset", "vsyncmov", "vwait", "vtrace", "vdelay", "vrng", "dma.done")
)
_MASK_SLOT = frozenset(("vmand", "vmor", "vmxor", "vmneg", "vmmov", "vmpackc"))
_BARRIERS = frozenset(("inlined_call", "call", "vsettm"))


def issue_columns(mnemonic: str, generation: int | None) -> tuple[str, ...]:  # noqa: PLR0911
    """The issue columns that an instruction counts in, spills and `int_to_ptr` aside."""
    first = opcodes.family(mnemonic)
    unit = opcodes.unit_of(mnemonic)
    if first in _BARRIERS:
        return ("VALU", "VPOP", "VLOAD", "SALU", *(("VSTORE",) if generation == 5 else ()))
    if first in _MISC_SLOT or first in _MASK_SLOT or mnemonic.startswith("dma.done"):
        return ("VLOAD",)
    if mnemonic.startswith("vmul.u32.u64.high"):
        return ()  # the other result of the .low printed beside it
    if mnemonic == "vpush.ccrf" or unit in (Unit.PSEUDO, Unit.MXU, Unit.XLU, Unit.UNKNOWN):
        return ()
    if unit is Unit.EUP:
        return ("VALU",)
    if first == "setrngseed":
        return ("VSTORE",)
    if unit is Unit.SYNC:
        return ("SALU",)
    if unit is Unit.DMA:
        return ("SALU",)
    return (unit.value,)


def hold(mnemonic: str, generation: int | None) -> tuple[str, int]:
    """(column, bundles) for which an instruction holds a unit after its own bundle; ("", 0) if none."""
    unit = opcodes.unit_of(mnemonic)
    if unit is Unit.EUP:
        return "EUP", 1
    if unit is Unit.XLU and not mnemonic.startswith("vset"):
        return "XLU", XLU_HOLD.get(generation or 7, 4)
    if unit is Unit.MXU and mnemonic.startswith("vmatmul"):
        return "MXU", _matmul_hold(mnemonic, generation)
    return "", 0


def push_hold(mnemonic: str) -> int:
    """Bundles that a weight push holds the push port of its MXU (the MATPUSH column of libtpu 0.0.52)."""
    if not mnemonic.startswith("vmatpush"):
        return 0
    narrow = 1 if opcodes.dtype(mnemonic) in (None, "f32") else 2
    return 2 * narrow * (2 if ".xpose" in mnemonic else 1)


def _matmul_hold(mnemonic: str, generation: int | None) -> int:
    """Bundles that one activation push holds its MXU."""
    dtype = opcodes.dtype(mnemonic)
    if generation == 5:
        if dtype == "f32" or ".lmr." in mnemonic:
            return 8
        return 8 if mnemonic.count("bf16") and dtype != "bf16" else 16
    if dtype == "f32":
        return 4
    return 16 if dtype != "bf16" and ".bf16" in mnemonic else 8


def occupancy(program: "FileProgram") -> np.ndarray:
    """int16[B, len(COLUMNS)]: what the compiler's utilization file says of the same program."""
    count, generation = program.bundle_count, program.generation
    out = np.zeros((count, len(COLUMNS)), np.int16)
    code, bundle = program.instruction_opcode, program.instruction_bundle
    used = [issue_columns(opcode, generation) for opcode in program.opcodes]
    for column in COLUMNS:
        taken = np.array([column in columns for columns in used], dtype=bool)
        if taken.any():
            out[:, _INDEX[column]] += np.bincount(bundle[taken[code]], minlength=count).astype(np.int16)
    _count_pointer_moves(program, out)
    _count_mask_constants(program, out)
    _count_spills(program, out)
    _add_holds(program, out)
    return out


def _count_mask_constants(program: "FileProgram", out: np.ndarray) -> None:
    """`vmmov` of a constant issues in a vector ALU slot, of a mask register in the load slot."""
    for i in program.find(lambda opcode: opcode == "vmmov"):
        instruction = program.instruction(i)
        if instruction.operands and not isinstance(instruction.operands[0], Register):
            out[instruction.bundle, _INDEX["VLOAD"]] -= 1
            out[instruction.bundle, _INDEX["VALU"]] += 1


def _count_pointer_moves(program: "FileProgram", out: np.ndarray) -> None:
    """`int_to_ptr` costs a scalar slot where it moves a register."""
    for index in program.pointer_moves:
        out[program.instruction_bundle[index], _INDEX["SALU"]] += 1


def _count_spills(program: "FileProgram", out: np.ndarray) -> None:
    for index in program.spills:
        instruction_unit = program.opcode_units[program.instruction_opcode[index]]
        if instruction_unit is Unit.VLOAD:
            out[program.instruction_bundle[index], _INDEX["VLOAD:FILL"]] += 1
        elif instruction_unit is Unit.VSTORE:
            out[program.instruction_bundle[index], _INDEX["VSTORE:SPILL"]] += 1


def push_occupancy(program: "FileProgram") -> np.ndarray:
    """int16[B]: MXUs whose push port is busy with weights, as libtpu 0.0.52 counts in MATPUSH."""
    out = np.zeros((program.bundle_count, len(COLUMNS)), np.int16)
    _add_intervals(program, out, [("MXU", push_hold(opcode)) for opcode in program.opcodes])
    return out[:, _INDEX["MXU"]]


def _add_holds(program: "FileProgram", out: np.ndarray) -> None:
    _add_intervals(program, out, [hold(opcode, program.generation) for opcode in program.opcodes])


def _add_intervals(program: "FileProgram", out: np.ndarray, held: list[tuple[str, int]]) -> None:
    """Busy units: for each named unit, the union of the intervals that its instructions hold it."""
    names = [
        (column, opcodes.unit_index(o) or 0) for (column, _), o in zip(held, program.opcodes, strict=True)
    ]
    length = np.array([bundles for _, bundles in held], dtype=np.int64)
    for column, unit in sorted({name for name in names if name[0]}):
        of_unit = np.array([name == (column, unit) for name in names], dtype=bool)
        chosen = of_unit[program.instruction_opcode]
        starts = program.instruction_bundle[chosen].astype(np.int64) + 1
        ends = np.minimum(starts + length[program.instruction_opcode[chosen]], program.bundle_count)
        out[:, _INDEX[column]] += covered(starts, ends, program.bundle_count)


def covered(starts: np.ndarray, ends: np.ndarray, count: int) -> np.ndarray:
    """int16[count]: 1 where any interval [start, end) covers the index."""
    edges = np.zeros(count + 1, np.int32)
    np.add.at(edges, np.minimum(starts, count), 1)
    np.add.at(edges, np.minimum(ends, count), -1)
    return (np.cumsum(edges[:-1]) > 0).astype(np.int16)


def units_used(row: Sequence[int]) -> dict[str, int]:
    """One row of `occupancy` as {column: used}, zeros left out."""
    return {name: int(used) for name, used in zip(COLUMNS, row, strict=True) if used}
