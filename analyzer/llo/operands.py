"""What the caller passes to the program: the `inlined_call_operand.*` pseudo-instructions."""

import re
from typing import TYPE_CHECKING

from analyzer.llo.program import HbmOperand, Text

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

_SHAPE = re.compile(r"shape:\s*((\w+)\[([\d,\s<=]*)\])")
_INDEX = re.compile(r"index:\s*(\d{1,18})")
_ALIAS = re.compile(r"may-alias:\s*\{([\d,\s]*)\}")
_KIND = re.compile(r"kind:\s*(\w+)")

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
    return sorted(found, key=lambda operand: operand.index)
