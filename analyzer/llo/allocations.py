"""The named memory of a program: where each allocation lives, how large it is, when it is in use.

The bundles only name allocations. Their shapes, sizes and tags stand at the head of the unbundled passes
of the same compile; `post-scalar-select-transform` is the last one that still has them, spills included.
Where no such file is beside the bundles, sizes are unknown and only what the uses tell is given.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

VMEM_ROW_BYTES = 512
_WORD_BYTES = 4
_NAMED = re.compile(
    rb"(?:\[(vmem|smem|hbm|sflag|cmem):)?\[?#allocation(\d{1,9})(_spill)?(?: \+ \$(0x[0-9a-f]{1,8}|\d{1,9}))?"
)
_DECLARED = re.compile(
    r"^\s*#allocation(?P<number>\d+)(?:_spill)? \[shape = '(?P<shape>[^']*)', space=(?P<space>\w+), "
    r"size = (?P<size>0x[0-9a-f]+|\d+)(?:, offset = (?P<offset>0x[0-9a-f]+|\d+))?"
    r"(?P<fixed>, fixed_abs)?.*?(?:tag = '(?P<tag>[^']*)')?\]\s*$",
    re.MULTILINE,
)
_OPERAND_NAME = re.compile(rb"/\*(\w+)=\*/$")
_SPACE_OF_OPERAND = {
    b"stridedescaddr": "smem",
    b"dst_syncflagno": "sflag",
    b"src_syncflagno": "sflag",
    b"vmem": "vmem",
    b"smem": "smem",
    b"hbm": "hbm",
}
_SYNC = ("vsync", "vwait", "dma.done")
_PASSES = ("post-scalar-select-transform", "post-ra", "post-delay-converter", "original")


@dataclass(frozen=True, slots=True)
class Allocation:
    """One allocation. None is unknown.

    space: "vmem", "smem", "sflag", ... size_bytes, shape, tag: as declared. first_bundle, last_bundle,
    uses: where the bundles name it. reach_bytes: how far the largest constant offset reaches, a lower
    bound of the size of VMEM and SMEM. offset_bytes: place in its space, for fixed ones.
    """

    number: int
    spill: bool
    space: str | None
    size_bytes: int | None
    shape: str | None
    tag: str | None
    offset_bytes: int | None
    first_bundle: int
    last_bundle: int
    uses: int
    reach_bytes: int | None


def allocations(program: "FileProgram", declarations: Path | None = None) -> list[Allocation]:
    """Every allocation that the bundles name, by number.

    Args:
        program: the program.
        declarations: an unbundled pass of the same compile; by default the one beside the bundles.
    """
    file = declarations or declarations_file(Path(program.path))
    declared = read_declarations(file) if file is not None else {}
    found: dict[int, list[tuple[int, str, int, bool]]] = {}
    starts = np.ascontiguousarray(program.instruction_span[:, 0])
    matches = list(_NAMED.finditer(program.data))
    owners = np.searchsorted(starts, [match.start() for match in matches], side="right") - 1
    for match, owner in zip(matches, owners, strict=True):
        if owner < 0 or match.start() >= program.instruction_span[owner, 1]:
            continue
        said = match[1].decode() if match[1] is not None else None
        space = said or _space_of_use(program, int(owner), match.start())
        offset = int(match[4], 0) if match[4] is not None else 0
        entry = (int(program.instruction_bundle[owner]), space, offset, match[3] is not None)
        found.setdefault(int(match[2]), []).append(entry)
    return [_allocation(number, uses, declared.get(number, {})) for number, uses in sorted(found.items())]


def declarations_file(bundles: Path) -> Path | None:
    """The unbundled pass of the same program and compile that declares its allocations, or None."""
    stem = re.sub(r"-?\d+-final_bundles\.txt$", "", bundles.name)
    if not bundles.parent.is_dir():
        return None
    for label in _PASSES:
        pattern = re.compile(re.escape(stem) + rf"-\d+-{label}\.txt$")
        for file in sorted(bundles.parent.iterdir()):
            if pattern.match(file.name):
                return file
    return None


def read_declarations(file: Path) -> dict[int, dict[str, str | int | None]]:
    """Shape, space, size, offset and tag by number, from an unbundled pass; {} where it declares none."""
    try:
        text = file.read_text("utf-8", "replace")
    except OSError:
        return {}
    return {
        int(entry["number"]): {
            "shape": entry["shape"],
            "space": entry["space"],
            "size": int(entry["size"], 0),
            "offset": int(entry["offset"], 0) if entry["offset"] else None,
            "tag": entry["tag"],
        }
        for entry in _DECLARED.finditer(text)
    }


def _space_of_use(program: "FileProgram", index: int, position: int) -> str:
    """The space that an instruction says of an allocation it names as an immediate; "" if it does not."""
    name = _OPERAND_NAME.search(program.data[max(position - 40, 0) : position])
    if name is not None:
        return _SPACE_OF_OPERAND.get(name[1], "")
    opcode = program.opcodes[program.instruction_opcode[index]]
    if opcode.startswith(_SYNC):
        return "sflag"
    if opcode.startswith(("scalar_lea.", "int_to_ptr.")):
        return opcode.partition(".")[2]
    return ""


def _allocation(
    number: int, uses: list[tuple[int, str, int, bool]], declared: dict[str, str | int | None]
) -> Allocation:
    spaces = {space for _, space, _, _ in uses if space}
    space = declared.get("space") or (next(iter(spaces)) if len(spaces) == 1 else None)
    largest = max(offset for _, _, offset, _ in uses)
    unit = {"vmem": VMEM_ROW_BYTES, "smem": _WORD_BYTES, "sflag": _WORD_BYTES}.get(str(space))
    size, offset = declared.get("size"), declared.get("offset")
    return Allocation(
        number=number,
        spill=any(spill for _, _, _, spill in uses),
        space=str(space) if space else None,
        size_bytes=int(size) if size is not None else None,
        shape=str(declared["shape"]) if declared.get("shape") else None,
        tag=str(declared["tag"]) if declared.get("tag") else None,
        offset_bytes=int(offset) if offset is not None else None,
        first_bundle=min(bundle for bundle, _, _, _ in uses),
        last_bundle=max(bundle for bundle, _, _, _ in uses),
        uses=len(uses),
        reach_bytes=(largest + 1) * unit if unit is not None else None,
    )
