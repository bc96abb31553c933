"""The copies a program issues, as far as its text tells: how much, from where to where, in what shape."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyzer.llo.dataflow import Origin, Scalars
from analyzer.llo.program import Address, Instruction, Memory

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

GRANULE_BYTES = 32
REMOTE_BIT = 0x4000  # of /*overrides=*/: the destination is another chip or core (inferred)


@dataclass(frozen=True, slots=True)
class DmaSite:
    """One place that starts a copy. None is unknown.

    instruction, bundle: where. bytes: per execution. source_space, target_space: "hbm", "vmem", "smem",
    "host" ... source_operand, target_operand: index of the HBM operand at that end. strided: more than
    one contiguous piece. remote: to another core. source: "file:line" of the start, "" if unknown.
    """

    instruction: int
    bundle: int
    opcode: str
    bytes: int | None
    source_space: str | None
    target_space: str | None
    source_operand: int | None
    target_operand: int | None
    strided: bool | None
    remote: bool | None
    source: str

    @property
    def direction(self) -> str:
        """`hbm->vmem`; an unknown end is `?`."""
        return f"{self.source_space or '?'}->{self.target_space or '?'}"


def dma_sites(program: "FileProgram", scalars: Scalars | None = None) -> list[DmaSite]:
    """Every instruction that starts a copy, in printed order."""
    known = scalars if scalars is not None else program.scalars
    starts = program.find(lambda opcode: opcode.startswith("dma.") and not opcode.startswith("dma.done"))
    described = _described_allocations(program) if starts else frozenset()
    return [_site(program, index, known, described) for index in starts]


def _described_allocations(program: "FileProgram") -> frozenset[int]:
    """Allocations that some scalar store writes: a stride descriptor among them is in use."""
    written = set()
    for index in program.find(lambda opcode: opcode == "sst"):
        place = program.instruction(index).operands[:1]
        if place and isinstance(place[0], Memory):
            written |= {
                term.allocation for term in place[0].terms if isinstance(term, Address) and not term.spill
            }
    return frozenset(written)


def _site(program: "FileProgram", index: int, scalars: Scalars, described: frozenset[int]) -> DmaSite:
    instruction = program.instruction(index)
    granules = scalars.constant(instruction.operand("size_in_granules"))
    if instruction.mnemonic == "dma.general":
        source, target = (_end(scalars, instruction, name) for name in ("src", "dst"))
        strided = _strided(instruction, described)
        overrides = scalars.bits(instruction.operand("overrides"))
        if overrides.ones & REMOTE_BIT:
            remote: bool | None = True
        else:
            remote = False if overrides.zeros & REMOTE_BIT else None
    else:
        ends = instruction.mnemonic.removeprefix("dma.").partition("_to_")[::2]
        names = ends if ends[0] != ends[1] else ("src", "dst")
        found = [_end(scalars, instruction, name) for name in names]
        source, target = (
            Origin(space, end.operand if end is not None else None)
            for space, end in zip(ends, found, strict=True)
        )
        strided = any(name in ("src_stride", "dst_stride") for name in instruction.operand_names)
        remote = False
    return DmaSite(
        index,
        instruction.bundle,
        instruction.mnemonic,
        granules * GRANULE_BYTES if granules is not None else None,
        (source.space or None) if source is not None else None,
        (target.space or None) if target is not None else None,
        source.operand if source is not None else None,
        target.operand if target is not None else None,
        strided,
        remote,
        str(instruction.sources[0]) if instruction.sources else "",
    )


def _end(scalars: Scalars, instruction: Instruction, name: str) -> Origin | None:
    return scalars.origin(instruction.operand(name))


def _strided(instruction: Instruction, described: frozenset[int]) -> bool | None:
    """A general copy is strided where its descriptor is written; an unwritten one means contiguous."""
    descriptor = instruction.operand("stridedescaddr")
    if not isinstance(descriptor, Address):
        return None
    return descriptor.allocation in described
