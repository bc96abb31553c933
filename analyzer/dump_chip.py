"""Which chip a dump was compiled for, told from its files alone."""

import re
from collections.abc import Mapping
from pathlib import Path


def infer_chip(bundles: Path, companions: Mapping[str, Path]) -> tuple[str | None, str]:
    """The chip a dump was compiled for, and why we think so; None where its files do not tell.

    Combinations read off dumps of one kernel for each of the four chips (libtpu 0.0.50.1): the slot
    capacities tell the generation, the VMEM capacity tells the two chips of a generation apart.
    """
    slots = _capacities(companions.get("final_hlo-static-per-bundle-utilization"))
    vmem = _vmem_capacity(companions.get("vmem_report"))
    text = bundles.read_bytes()
    matrix = re.findall(rb"vmatmul\.[\w.]+", text[: 32 << 20])
    if any(b".mrb" in m for m in matrix):
        return "tpu7x", "matrix results that go to an MRB, which of the known chips only tpu7x has"
    generation = {"2 2 4 2 1 3 3 2 2 2": ("tpu7x", "v6e"), "4 3 4 2 1 3 3 1 1 2": ("v5p", "v5e")}.get(
        slots or ""
    )
    if generation and vmem in (64 << 20, 128 << 20):
        chip = generation[0] if vmem == 64 << 20 else generation[1]
        return chip, f"slot capacities and {vmem >> 20} MiB of VMEM"
    if slots == "2 2 4 2 1 3 3 2 2 2" and matrix and b"vmatprep" in text:
        return "v6e", "slot capacities, and matrix results that do not go to an MRB"
    return None, "the files of this dump do not tell the chip"


def _capacities(path: Path | None) -> str | None:
    if path is None:
        return None
    lines = path.read_text(errors="replace").splitlines()[:4]
    return " ".join(lines[2].split()) if len(lines) > 2 and lines[0].startswith("== CAP") else None


def _vmem_capacity(path: Path | None) -> int | None:
    if path is None:
        return None
    match = re.search(r'"vmem_capacity":\s*(\d+)', path.read_text(errors="replace"))
    return int(match.group(1)) if match else None
