"""Which TPU generation a program was compiled for, read off its own text.

A dump does not name its chip. The instruction set differs enough to tell: 7 = TPU7x (results in an
`mrb`, six branch delay slots), 6 = v6e (`vmatprep`, results in an `mrf`), 5 = v5e and v5p (four MXUs,
three XLUs, plain `vmatpush`). Small programs without such instructions are judged by the other
programs of their dump folder.
"""

import re
from collections.abc import Iterable
from pathlib import Path

CHIP_GENERATION = {"tpu7x": 7, "v7x": 7, "v6e": 6, "v5p": 5, "v5e": 5, "v5lite": 5, "v4": 4}
SMALL_VMEM = 64 << 20  # bytes; of the chips with two MXUs only TPU7x has so little
_VMEM = re.compile(rb'"vmem_capacity":\s*(\d+)')
DELAY_SLOTS = {7: 6, 6: 4, 5: 4}

_OLD = re.compile(r"\.(?:mxu[23]|xlu2)\b|^vmatpush\.|^vmatmul\.(?!mubr)")
_MIDDLE = re.compile(r"^vmatprep\.|^vpop\.\w+\.mrf\.")


def generation_of_chip(chip: str | None) -> int | None:
    """5, 6 or 7 for a chip name such as `tpu7x` or `tpu7x:2x2x1`; None for one we do not know."""
    if chip is None:
        return None
    name = chip.lower().split(":", 1)[0].removeprefix("tpu_").removeprefix("tpu-")
    return CHIP_GENERATION.get(name)


def generation_of_opcodes(opcodes: Iterable[str]) -> int | None:
    """The generation that the mnemonics betray, or None."""
    middle = False
    for opcode in opcodes:
        if ".mrb" in opcode:
            return 7
        if _OLD.search(opcode):
            return 5
        middle = middle or _MIDDLE.search(opcode) is not None
    return 6 if middle else None


def generation_of_folder(folder: Path) -> int | None:
    """The generation betrayed by the programs of a dump folder, largest first, or None."""
    if not folder.is_dir():
        return None
    four_mxus = _mxu_capacity(folder) == 4
    small_vmem = _vmem_capacity(folder) == SMALL_VMEM
    files = [f for f in folder.glob("*-final_bundles.txt") if "schedule-analysis" not in f.name]
    for file in sorted(files, key=lambda f: (-f.stat().st_size, f.name))[:40]:
        generation = generation_of_bytes(file.read_bytes())
        if generation is not None:
            return 5 if four_mxus and generation == 6 else generation
    if four_mxus:
        return 5
    return 7 if small_vmem else None


def _vmem_capacity(folder: Path) -> int | None:
    """Bytes of VMEM per core as the folder's VMEM report says."""
    for file in sorted(folder.glob("*vmem_report.html"))[:1]:
        found = _VMEM.search(file.read_bytes())
        return int(found[1]) if found is not None else None
    return None


def _mxu_capacity(folder: Path) -> int | None:
    """The first capacity in the header of the folder's first utilization file."""
    for file in sorted(folder.glob("*final_hlo-static-per-bundle-utilization.txt"))[:1]:
        with file.open("rb") as stream:
            head = stream.read(400).splitlines()
        digits = head[2].split() if len(head) > 2 and head[0].startswith(b"== CAP") else []
        return int(digits[0]) if digits and digits[0].isdigit() else None
    return None


_BYTES_NEW = re.compile(rb"\.mrb\[\d+\]\.mxu|= vwait\.(?:ge|ne) [^\n;]*/\* ProgramChange \*/")
_BYTES_OLD = re.compile(rb"\.(?:mxu[23]|xlu2)\b|= vmatpush\.|= vmatmul\.(?!mubr)")
_BYTES_MIDDLE = re.compile(
    rb"= vmatprep\.|= vpop\.\w+\.mrf\.|= vwait\.ge\.trace [^\n;]*/\* ProgramChange \*/"
)


def generation_of_bytes(data: bytes) -> int | None:
    """The same for the text of a program, without reading it into a model."""
    if _BYTES_NEW.search(data):
        return 7
    if _BYTES_OLD.search(data):
        return 5
    return 6 if _BYTES_MIDDLE.search(data) else None
