"""What the caller passes to the program: the `inlined_call_operand.*` pseudo-instructions.

A call with many operands passes a table of their addresses in SMEM instead: one pseudo-instruction with index
-1, and loads from it with `operand N` as comment.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.llo.program import HbmOperand, Memory, Register, Text
from analyzer.llo.signature import signature

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

_SHAPE = re.compile(r"shape:\s*((\w+)\[([\d,\s<=]*)\])")
_INDEX = re.compile(r"index:\s*(-1|\d{1,18})")
TABLE = -1  # index of the table of addresses
_ALIAS = re.compile(r"may-alias:\s*\{([\d,\s]*)\}")
_KIND = re.compile(r"kind:\s*(\w+)")
_LISTED = re.compile(r"(?:operand|operator input) (\d{1,6})\b(?:, may alias with: \[([\d,\s]*)\])?")

# Bits per element as XLA names its types.
DTYPE_BITS = {
    "pred": 8,
    "s2": 2,
    "u2": 2,
    "s4": 4,
    "u4": 4,
    "s8": 8,
    "u8": 8,
    "s16": 16,
    "u16": 16,
    "s32": 32,
    "u32": 32,
    "s64": 64,
    "u64": 64,
    "bf16": 16,
    "f16": 16,
    "f32": 32,
    "f64": 64,
    "c64": 64,
    "f4e2m1fn": 4,
    "f8e4m3": 8,
    "f8e4m3fn": 8,
    "f8e4m3b11fnuz": 8,
    "f8e4m3fnuz": 8,
    "f8e5m2": 8,
    "f8e5m2fnuz": 8,
    "f8e3m4": 8,
    "f8e8m0fnu": 8,
}


def shape_bytes(dtype: str, dimensions: tuple[int, ...]) -> int | None:
    """Bytes of an array without padding; None for a dtype we do not know."""
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        return None
    elements = 1
    for dimension in dimensions:
        elements *= dimension
    return (elements * bits + 7) // 8


def _aliases(text: str, own: int) -> tuple[int, ...]:
    found = _ALIAS.search(text)
    return (
        tuple(int(n) for n in re.findall(r"\d{1,18}", found[1]) if int(n) != own) if found is not None else ()
    )


def call_operands(program: "FileProgram") -> list[HbmOperand]:
    """The operands and results of the call, by index."""
    found: list[HbmOperand] = []
    for i in program.find(lambda opcode: opcode.startswith("inlined_call_operand")):
        instruction = program.instruction(i)
        described = instruction.operands[0] if instruction.operands else None
        text = described.text if isinstance(described, Text) else ""
        shape, index, kind = _SHAPE.search(text), _INDEX.search(text), _KIND.search(text)
        if shape is None or index is None or not instruction.results:
            continue
        dimensions = tuple(int(part) for part in re.findall(r"\d{1,18}", shape[3]))
        found.append(
            HbmOperand(
                index=int(index[1]),
                space="" if "<" in instruction.mnemonic else instruction.mnemonic.partition(".")[2],
                kind=kind[1] if kind is not None else "unknown",
                shape=shape[1],
                dtype=shape[2],
                dimensions=dimensions,
                size_bytes=shape_bytes(shape[2], dimensions),
                register=instruction.results[0],
                bundle=instruction.bundle,
                aliases=_aliases(text, int(index[1])),
            )
        )
    for table in [operand for operand in found if operand.index == TABLE]:
        found += _listed(program, table)
    return sorted(found, key=lambda operand: operand.index)


def table_loads(program: "FileProgram", table: Register) -> dict[Register, re.Match[str]]:
    """What is loaded from the table of addresses: register -> `operand N` with its aliases."""
    loads = {}
    for i in program.find(lambda opcode: opcode == "sld"):
        instruction = program.instruction(i)
        source = instruction.operands[0] if instruction.operands else None
        if not isinstance(source, Memory) or table not in source.terms or not instruction.results:
            continue
        listed = next((m for c in instruction.comments if (m := _LISTED.search(c)) is not None), None)
        if listed is not None:
            loads[instruction.results[0]] = listed
    return loads


def _listed(program: "FileProgram", table: HbmOperand) -> list[HbmOperand]:
    """The operands that a table of addresses lists, as far as the program loads their addresses."""
    known = signature(Path(program.path), program.name)
    found: dict[int, HbmOperand] = {}
    for register, listed in table_loads(program, table.register).items():
        index = int(listed[1])
        if index in found:
            continue
        array = known.array(index) if known is not None else None
        is_output = known is not None and index >= len(known.inputs)
        found[index] = HbmOperand(
            index=index,
            space="vmem" if array is not None and array.in_vmem else "hbm",
            kind=("output" if is_output else "input") if known is not None else "unknown",
            shape=array.shape if array is not None else "unknown",
            dtype=array.dtype if array is not None else "unknown",
            dimensions=array.dimensions if array is not None else (),
            size_bytes=shape_bytes(array.dtype, array.dimensions) if array is not None else None,
            register=register,
            bundle=table.bundle,
            aliases=tuple(int(n) for n in re.findall(r"\d{1,18}", listed[2] or "") if int(n) != index),
        )
    return list(found.values())
