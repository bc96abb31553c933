"""`vtrace` markers and the names that the trace-markers file gives them."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.llo.program import Instruction, Marker

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

USER_MARKER = 0x08000000  # user scopes count from here; smaller ids are the compiler's own
_KINDS = {0xA: "bundle", 0xB: "scope_start", 0xC: "scope_end"}
_LINE = re.compile(r"^(?P<name>.*?):[ \t]*(?P<id>\d{1,18})[ \t]*$", re.MULTILINE)
_START = re.compile(r"TraceMeStart\((.*)\)\s*\[?$")
_END = re.compile(r"^\]?\s*TraceMeEnd\((.*)\)$")


def parse_marker_names(text: str) -> dict[int, str]:
    """`name: id` lines as {id: name}; lines of another form are ignored."""
    return {int(found["id"]): found["name"].strip() for found in _LINE.finditer(text)}


def read_marker_names(bundles: Path) -> dict[int, str]:
    """Names from the trace-markers files beside a final_bundles file ({} where there are none)."""
    names: dict[int, str] = {}
    if bundles.parent.is_dir():
        for file in sorted(bundles.parent.glob("*trace-markers.txt")):
            try:
                names.update(parse_marker_names(file.read_text("utf-8", "replace")))
            except OSError:
                continue
    return names


def marker_of(instruction: Instruction, names: dict[int, str]) -> Marker | None:
    """One `vtrace` or `vtrace.arg` as a Marker; None where its value is a register of the compiler's own."""
    operand = instruction.operands[0] if instruction.operands else None
    if instruction.mnemonic == "vtrace.arg" or not isinstance(operand, int):
        identifier = operand if isinstance(operand, int) else -1
        return Marker(instruction.bundle, "value", identifier, None)
    payload = operand & 0x0FFFFFFF
    nibble = operand >> 28
    for comment in instruction.comments:
        for kind, pattern in (("scope_start", _START), ("scope_end", _END)):
            found = pattern.search(comment)
            if found is not None:
                return Marker(instruction.bundle, kind, payload, found[1])
    if 0xA8000000 <= operand < 0xB0000000:
        return Marker(instruction.bundle, "region", operand & 0x07FFFFFF, None)
    kind_name = _KINDS.get(nibble, "value")
    name = names.get(payload) if kind_name in ("scope_start", "scope_end") else None
    return Marker(instruction.bundle, kind_name, payload, name)


def markers_of(program: "FileProgram", names: dict[int, str]) -> list[Marker]:
    """Every marker of the program in printed order."""
    found = (marker_of(program.instruction(i), names) for i in program.find(lambda o: o.startswith("vtrace")))
    return [marker for marker in found if marker is not None]
