"""`vmem_report.html`: every block of VMEM that the compiler laid out, as JSON inside a page."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.llo.textfile import read_text, wrong_form

_MARK = "const DATA ="


@dataclass(frozen=True, slots=True)
class VmemAllocation:
    """One allocation: shape as printed, bytes without and of padding, what it is for ("SPILL" for spills)."""

    shape: str
    size_bytes: int
    padding_bytes: int
    tag: str


@dataclass(frozen=True, slots=True)
class VmemBlock:
    """A block of one HLO instruction: type (SCOPED, HLO_TEMPORARY ...), bytes, allocations in it."""

    hlo: str
    kind: str
    size_bytes: int
    allocations: tuple[VmemAllocation, ...]


@dataclass(frozen=True, slots=True)
class VmemReport:
    """Module name, VMEM of the core in bytes, and the blocks."""

    module: str
    capacity_bytes: int | None
    blocks: tuple[VmemBlock, ...]

    def used_bytes(self, hlo: str) -> int | None:
        """Bytes that one HLO instruction's blocks take; None where it has none listed."""
        sizes = [block.size_bytes for block in self.blocks if block.hlo == hlo]
        return sum(sizes) if sizes else None


def _allocation(entry: dict[str, Any]) -> VmemAllocation:
    return VmemAllocation(
        str(entry.get("shape", "")),
        int(entry["size"]),
        int(entry.get("padding", 0)),
        str(entry.get("tag", "")),
    )


def read_vmem_report(path: Path) -> VmemReport:
    """Read one vmem report.

    Raises:
        InputError: it is missing, unreadable, or of another form.
    """
    text = read_text(path)
    start = text.find(_MARK)
    if start < 0:
        raise wrong_form(path, "VMEM report", "final_bundles")
    try:
        data, _ = json.JSONDecoder().raw_decode(text[start + len(_MARK) :].lstrip())
        info = data.get("global_info", {})
        blocks = tuple(
            VmemBlock(
                hlo,
                str(block.get("block_type", "")),
                int(block["block_size"]),
                tuple(
                    VmemAllocation(
                        str(a.get("shape", "")),
                        int(a["size"]),
                        int(a.get("padding", 0)),
                        str(a.get("tag", "")),
                    )
                    for a in block.get("allocations") or ()
                ),
            )
            for hlo, entry in data["hlo_breakdowns"].items()
            for block in entry.get("blocks") or ()
        )
        capacity = info.get("vmem_capacity")
        return VmemReport(str(info.get("module_name", "")), int(capacity) if capacity else None, blocks)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise wrong_form(path, f"VMEM report as known ({type(error).__name__})", "final_bundles") from error
