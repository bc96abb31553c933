"""A `Program` over the text of a final_bundles file, decoding instructions when they are asked for."""

import re
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from analyzer.llo import decode, flow, opcodes, scan
from analyzer.llo.allocations import Allocation, allocations
from analyzer.llo.dataflow import Scalars
from analyzer.llo.generation import (
    DELAY_SLOTS,
    generation_of_chip,
    generation_of_folder,
    generation_of_opcodes,
)
from analyzer.llo.markers import markers_of, read_marker_names
from analyzer.llo.operands import call_operands
from analyzer.llo.program import (
    Block,
    Branch,
    HbmOperand,
    Instruction,
    Loop,
    Marker,
    NotUnderstood,
    Predicate,
    Program,
    Region,
    Register,
    SourceSpan,
    Unit,
)
from analyzer.llo.spelling import canonical
from analyzer.llo.trips import trip_count

_FILE_NAME = re.compile(r"^(?:\w+-)??(?:\d{10,}-)?(?P<name>.*?)-?\d+-final_bundles\.txt$")
_SCALAR_UNITS = frozenset((Unit.SALU, Unit.DMA, Unit.SYNC, Unit.PSEUDO, Unit.UNKNOWN))
# Vector instructions that hand values to the scalar side.
_SCALAR_FAMILIES = frozenset(("vpush",))
_SPILL = re.compile(rb"#allocation\d+_spill")
DECODED_KEPT = 65_536  # instructions, about 1 kB each
GUARD_WINDOW = 64  # bundles before a branch in which values made under its predicate are looked for


class FileProgram(Program):
    """A `Program` that keeps the text it was read from and decodes instructions when asked.

    bundle_address: int64[B], addresses as printed. labels: bundle -> "LB", "PF", ...
    dangling: branches whose target region is not in the text. generation: 5, 6, 7 or None (unknown);
    delay_slots: branch delay slots of the hardware.
    """

    def __init__(self, data: bytes, path: Path, found: scan.Columns, chip: str | None = None) -> None:
        self.data = data
        self.path = str(path)
        self.name = program_name(path)
        self.columns = found
        self.notes: list[str] = []
        self.bundle_address = found.bundle_address
        self.bundle_first = found.bundle_first
        self.labels = dict(found.labels)
        self.opcodes = [canonical(opcode) for opcode in found.opcodes]
        self.opcode_units = [opcodes.unit_of(opcode) for opcode in self.opcodes]
        self.instruction_opcode = found.instruction_opcode
        self.instruction_span = found.instruction_span
        self._starts = np.ascontiguousarray(found.instruction_span[:, 0])
        self.instruction_source = found.instruction_source
        self.sources = [decode.source_span(text) or SourceSpan(text, 0) for text in found.locations]
        self.not_understood = NotUnderstood(found.not_understood.count, list(found.not_understood.samples))
        counts = np.diff(self.bundle_first)
        self.instruction_bundle = np.repeat(np.arange(self.bundle_count, dtype=np.int32), counts)
        self._decode = lru_cache(maxsize=DECODED_KEPT)(self._decode_instruction)
        self._scalar_opcode = np.array(
            [
                unit in _SCALAR_UNITS or opcodes.family(opcode) in _SCALAR_FAMILIES
                for unit, opcode in zip(self.opcode_units, self.opcodes, strict=True)
            ],
            dtype=bool,
        )
        told = generation_of_chip(chip)
        self.generation = told or generation_of_opcodes(self.opcodes)
        if self.generation is None:
            if found.flow is not None and found.flow.inferred:
                self.generation = found.flow.generation
            else:
                self.generation = generation_of_folder(path.parent)
        self._count_unknown_opcodes()
        self._find_flow(found, told is None)
        self._note_losses()

    def _count_unknown_opcodes(self) -> None:
        unknown = np.array([unit is Unit.UNKNOWN for unit in self.opcode_units], dtype=bool)
        for index in np.flatnonzero(unknown[self.instruction_opcode]) if len(unknown) else ():
            scan.note(
                self.not_understood, self.address_of(int(index)), self.text(int(index))[: scan.SAMPLE_BYTES]
            )

    def _note_losses(self) -> None:
        """Say what shows that text is missing: gaps in the addresses, branches into nowhere."""
        steps = np.flatnonzero(np.diff(self.bundle_address) != 1)
        if len(steps):
            at = int(self.bundle_address[steps[0]])
            self.notes.append(f"addresses jump {len(steps)} times, first after {at:#x}: bundles are missing")
        if self.dangling:
            at = self.dangling[0].bundle
            count = len(self.dangling)
            self.notes.append(f"{count} branches (first in bundle {at:#x}) go to a region that is not listed")
        if self.not_understood.count:
            of = len(self.instruction_opcode) + self.columns.not_understood.count
            self.notes.append(f"{self.not_understood.count} of {of} instructions not understood")

    def address_of(self, index: int) -> int:
        """Printed address of the bundle of instruction `index`."""
        return int(self.bundle_address[self.instruction_bundle[index]])

    def _find_flow(self, found: scan.Columns, inferred: bool) -> None:
        table = found.flow
        if table is None or table.generation != self.generation:
            table = found.flow = self._work_out_flow(found, inferred)
        self.delay_slots = table.delay_slots
        self.branches: dict[int, Branch] = {}
        self.dangling: list[Instruction] = []
        for index, bundle, target, slots, *guard in table.branches.tolist():
            if target < 0:
                self.dangling.append(self.instruction(index))
            else:
                self.branches[bundle] = Branch(bundle, target, slots, _unpack_predicate(guard))

    def _work_out_flow(self, found: scan.Columns, inferred: bool) -> flow.FlowTable:
        marks = flow.Marks.blank(np.diff(self.bundle_first) == 0, self.labels)
        for bundle in np.flatnonzero(found.window_end - found.body_end > 2):
            marks.take_in(int(bundle), self.trailer(int(bundle)))
        indices = self.find(lambda opcode: opcode.startswith("sbr"))
        branches = [self.instruction(i) for i in indices]
        slots = DELAY_SLOTS.get(self.generation) if self.generation is not None else None
        if slots is None:
            slots = flow.guess_slots([b.bundle for b in branches], marks)
        resolved = flow.resolve_branches(branches, marks, slots, self._uses_guarded_value)
        regions = [(r.number, r.start, -1 if r.end is None else r.end) for r in marks.regions.values()]
        rows = [
            (index, branch.bundle, *answer, *_pack_predicate(branch.predicate))
            for index, branch, answer in zip(indices, branches, resolved, strict=True)
        ]
        return flow.FlowTable(
            self.generation,
            inferred,
            slots,
            np.array(regions, dtype=np.int64).reshape(-1, 3),
            np.array(rows, dtype=np.int64).reshape(-1, 7),
        )

    @cached_property
    def regions(self) -> dict[int, Region]:  # type: ignore[override]
        """The regions of the region lists by number."""
        table = self.columns.flow
        rows = table.regions.tolist() if table is not None else []
        return {number: Region(number, start, end if end >= 0 else None) for number, start, end in rows}

    @cached_property
    def blocks(self) -> list[Block]:  # type: ignore[override]
        """Basic blocks in order; a branch's block includes its delay slots."""
        return flow.find_blocks(self.bundle_count, self.branches)

    @cached_property
    def loops(self) -> list[Loop]:  # type: ignore[override]
        """Natural loops, outer before inner."""
        return flow.find_loops(self.branches)

    def trailer(self, bundle: int) -> flow.Trailer:
        """The region list, entry or exit note printed after the bundle."""
        return flow.read_trailer(self.data[self.columns.body_end[bundle] : self.columns.window_end[bundle]])

    @cached_property
    def locations(self) -> list[SourceSpan]:
        """Distinct source locations printed anywhere in an instruction, first or later in a chain."""
        return self._all_locations[0]

    @cached_property
    def _all_locations(self) -> tuple[list[SourceSpan], np.ndarray, np.ndarray]:
        """(distinct locations, which one and in which instruction for every printed location)."""
        which, owner, texts = scan.all_sources(self.data, self._starts, self.instruction_span[:, 1])
        return [decode.source_span(text) or SourceSpan(text, 0) for text in texts], which, owner

    def instructions_at(self, locations: set[int]) -> np.ndarray:
        """bool[I]: the instructions that carry any of these entries of `locations`."""
        _, which, owner = self._all_locations
        out = np.zeros(len(self.instruction_opcode), bool)
        out[owner[np.isin(which, list(locations))]] = True
        return out

    @cached_property
    def scalars(self) -> Scalars:
        """Static answers about the scalars."""
        return Scalars(self)

    @cached_property
    def trip_counts(self) -> dict[int, int | None]:
        """How often each loop runs per entry, by its first bundle; None where the code does not fix it."""
        return {loop.start: trip_count(self, loop, self.scalars) for loop in self.loops}

    @cached_property
    def allocations(self) -> list[Allocation]:
        """The memory that the bundles name, with sizes where an unbundled pass beside them has them."""
        return allocations(self)

    @cached_property
    def pointer_moves(self) -> list[int]:
        """Indices of the `int_to_ptr` that move: their result is another register than their operand."""
        moves = []
        for index in self.find(lambda opcode: opcode.startswith("int_to_ptr")):
            instruction = self.instruction(index)
            source = instruction.operands[0] if instruction.operands else None
            target = instruction.results[0] if instruction.results else None
            if target is None:
                continue
            if not isinstance(source, Register) or source.kind != "s" or source.physical != target.physical:
                moves.append(index)
        return moves

    @cached_property
    def empty(self) -> np.ndarray:
        """bool[B]: bundles that the compiler counts as empty: nothing in them but pseudo-instructions."""
        real = np.array([unit is not Unit.PSEUDO for unit in self.opcode_units], dtype=bool)
        taken = real[self.instruction_opcode] if len(real) else np.zeros(0, bool)
        taken[self.pointer_moves] = True
        return np.bincount(self.instruction_bundle[taken], minlength=self.bundle_count) == 0

    @cached_property
    def marker_names(self) -> dict[int, str]:
        """Scope names by marker id, from the trace-markers files beside the program."""
        return read_marker_names(Path(self.path))

    @cached_property
    def markers(self) -> list[Marker]:  # type: ignore[override]
        """Every `vtrace` in printed order."""
        return markers_of(self, self.marker_names)

    @cached_property
    def operands(self) -> list[HbmOperand]:  # type: ignore[override]
        """What the caller passes, by index."""
        return call_operands(self)

    def _uses_guarded_value(self, branch: int, predicate: Predicate | None, bundle: int) -> bool:
        """Does `bundle` use, unpredicated, a value made under the predicate of the branch?

        Or wait for a copy that is only started where the branch is not taken?
        """
        if predicate is None:
            return False
        guarded = self._guarded_by(predicate.register, max(branch - GUARD_WINDOW, 0), bundle)
        made = {result for instruction in guarded for result in instruction.results}
        flags = [
            instruction.operand("dst_syncflagno")
            for instruction in guarded
            if instruction.unit is Unit.DMA
            and instruction.predicate is not None
            and instruction.predicate.negated != predicate.negated
        ]
        if flags and any(
            instruction.predicate is None
            and instruction.mnemonic.startswith("dma.done")
            and instruction.operands
            and instruction.operands[0] in flags
            for instruction in self.scalar_instructions(bundle)
        ):
            return True
        return any(
            instruction.predicate is None
            and (instruction.unit is Unit.DMA or instruction.mnemonic == "sst")
            and not made.isdisjoint(o for o in instruction.operands if isinstance(o, decode.Register))
            for instruction in self.scalar_instructions(bundle)
        )

    @cached_property
    def spills(self) -> list[int]:
        """Indices of the loads, stores and DMAs whose address is a spill slot (`[#allocationN_spill]`)."""
        positions = np.array([m.start() for m in _SPILL.finditer(self.data)], dtype=np.int64)
        owner = np.searchsorted(self._starts, positions, side="right") - 1
        inside = (owner >= 0) & (positions < self.instruction_span[np.maximum(owner, 0), 1])
        return [int(i) for i in np.unique(owner[inside])]

    def _guarded_by(self, guard: Register, first: int, last: int) -> list[Instruction]:
        """Instructions of bundles [first, last) whose predicate is `guard`, negated or not."""
        low, high = int(self.bundle_first[first]), int(self.bundle_first[last])
        if low == high:
            return []
        spans = self.instruction_span
        name = re.compile(rb"\(!?%%p%d_p\d+[,)]" % guard.value)
        starts = [m.start() for m in name.finditer(self.data, int(spans[low, 0]), int(spans[high - 1, 1]))]
        owners = np.unique(np.searchsorted(self._starts, np.array(starts, dtype=np.int64), side="right") - 1)
        return [self.instruction(int(i)) for i in owners]

    def find(self, wanted: Callable[[str], bool]) -> list[int]:
        """Indices of the instructions whose mnemonic satisfies `wanted`."""
        chosen = np.array([wanted(opcode) for opcode in self.opcodes], dtype=bool)
        if not chosen.any():
            return []
        return [int(i) for i in np.flatnonzero(chosen[self.instruction_opcode])]

    def text(self, index: int) -> str:
        """Instruction `index` as printed."""
        start, end = self.instruction_span[index]
        return self.data[start:end].decode("utf-8", "replace").rstrip()

    def instruction(self, index: int) -> Instruction:
        """Instruction `index` (0-based over the program), decoded from its text."""
        return self._decode(int(index))

    def _decode_instruction(self, index: int) -> Instruction:
        text = self.text(index)
        found = decode.decode_text(text)
        bundle = int(self.instruction_bundle[index])
        return Instruction(
            bundle=bundle,
            slot=index - int(self.bundle_first[bundle]),
            mnemonic=canonical(found.mnemonic),
            unit=self.opcode_units[self.instruction_opcode[index]],
            results=found.results,
            operands=found.operands,
            operand_names=found.names,
            predicate=found.predicate,
            target_region=found.target_region,
            sources=found.sources,
            comments=found.comments,
            text=text,
            otherwise=found.otherwise,
            attributes=found.attributes,
            guard_position=found.guard_position,
            target_bundle=found.target_bundle,
            spelled=found.mnemonic,
        )

    def scalar_instructions(self, bundle: int) -> list[Instruction]:  # type: ignore[override]
        """Only what moves scalars, predicates, SMEM, DMA, semaphores, branches and markers."""
        first, last = int(self.bundle_first[bundle]), int(self.bundle_first[bundle + 1])
        chosen = self._scalar_opcode[self.instruction_opcode[first:last]]
        return [self.instruction(first + int(k)) for k in np.flatnonzero(chosen)]


def _pack_predicate(predicate: Predicate | None) -> tuple[int, int, int]:
    if predicate is None:
        return -1, -1, 0
    register = predicate.register
    return register.value, -1 if register.physical is None else register.physical, int(predicate.negated)


def _unpack_predicate(packed: list[int]) -> Predicate | None:
    value, physical, negated = packed
    if value < 0:
        return None
    return Predicate(Register("p", value, None if physical < 0 else physical), bool(negated))


def program_name(path: Path) -> str:
    """`1796-mlp.1-04-final_bundles.txt` -> `mlp.1`; the stem where the name has another form."""
    found = _FILE_NAME.match(path.name)
    return found["name"] if found is not None and found["name"] else path.stem
