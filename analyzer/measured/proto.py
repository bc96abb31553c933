"""What a trace says of the program that ran: the LLO and HLO protos of `/host:metadata`.

Only fields whose meaning shows in real captures are read: the program's name, its number of bundles, and the
texts of its bounds checks, which name every copy with its direction and size.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analyzer.xplane import wire

GRANULE_BYTES = 32  # unit of DMA sizes
_COPY = re.compile(
    rb"BoundsCheck (\d+) \[deref of [^\]]*\] for (?:%\d+ = )?dma\.(\w+?)_to_(\w+)"
    rb"[^\n]{0,400}?/\*size_in_granules=\*/(\d+)"
)
_VMEM = re.compile(rb'"used_scoped_memory_configs":\[\{"memory_space":"1","offset":"\d+","size":"(\d+)"')


@dataclass(frozen=True, slots=True)
class CopySite:
    """A place of the program that starts a copy: `hbm` to `vmem` or back, and the size of one copy."""

    source: str
    destination: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """The program of a kernel as the trace has it.

    Attributes:
        key: its name in the trace, `jit_f(35)::kernel.1`.
        bundles: number of bundles; None where the proto does not say.
        copies: its copies in the order of the program; empty where bounds checks are off.
    """

    key: str
    bundles: int | None
    copies: tuple[CopySite, ...]


def traced_program(programs: Mapping[str, Mapping[str, Any]], kernel: str) -> TracedProgram | None:
    """The program of that name; of several the one registered last. None where the trace has none."""
    found = [
        (key, facts["llo_proto"])
        for key, facts in programs.items()
        if key.rpartition("::")[2] == kernel and isinstance(facts.get("llo_proto"), bytes)
    ]
    if not found:
        return None
    key, data = max(found, key=lambda item: (_registered(item[0]), item[0]))
    return TracedProgram(key, _bundles(data), _copies(data))


def _registered(key: str) -> int:
    numbers = re.findall(r"\((\d+)\)::", key)
    return int(numbers[-1]) if numbers else -1


def _bundles(data: bytes) -> int | None:
    """Field 6 of field 2: equal to the length of every per-bundle table of the same proto."""
    try:
        for number, kind, value, following in wire.fields(data, 0, len(data)):
            if number == 2 and kind == wire.BYTES:
                for inner, inner_kind, count, _ in wire.fields(data, value, following):
                    if inner == 6 and inner_kind == wire.VARINT:
                        return count or None
    except wire.WireError:
        return None
    return None


def _copies(data: bytes) -> tuple[CopySite, ...]:
    """Every copy has two checks, of its source and of its destination, with one number."""
    sites: dict[tuple[int, bytes], CopySite] = {}
    for found in _COPY.finditer(data):
        site = CopySite(found[2].decode(), found[3].decode(), int(found[4]) * GRANULE_BYTES)
        sites.setdefault((int(found[1]), found[2]), site)
    return tuple(site for _, site in sorted(sites.items()))


def scoped_vmem(programs: Mapping[str, Mapping[str, Any]], kernel: str) -> int | None:
    """Bytes of VMEM that the compiler gave the kernel, from the HLO in the trace; None where unknown."""
    for facts in programs.values():
        data = facts.get("Hlo Proto") or facts.get("hlo_proto")
        if not isinstance(data, bytes):
            continue
        place = data.find(kernel.encode() + b"\x12\x0bcustom-call")
        if place >= 0:
            found = _VMEM.search(data, place)
            if found:
                return int(found[1])
    return None
