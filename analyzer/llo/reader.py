"""`read_program`: from a final_bundles file to a `Program`."""

import re
from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from analyzer.errors import InputError
from analyzer.llo import decode, flow, opcodes, scan
from analyzer.llo.generation import (
    DELAY_SLOTS,
    generation_of_chip,
    generation_of_folder,
    generation_of_opcodes,
)
from analyzer.llo.markers import markers_of, read_marker_names
from analyzer.llo.operands import call_operands
from analyzer.llo.program import Instruction, Predicate, Program, Unit

_FILE_NAME = re.compile(r"^(?:\w+-)??(?:\d{10,}-)?(?P<name>.*?)-?\d+-final_bundles\.txt$")
_SCALAR_UNITS = frozenset((Unit.SALU, Unit.DMA, Unit.SYNC, Unit.PSEUDO, Unit.UNKNOWN))
# Vector instructions that hand values to the scalar side.
_SCALAR_FAMILIES = frozenset(("vpush",))
_SPILL = re.compile(rb"#allocation\d+_spill")
_GUARDED = re.compile(rb"\(!?%p")
RECOMPILE = "Compile again (megascope compile), or point at the file whose name ends in -final_bundles.txt"


def read_program(path: Path, chip: str | None = None) -> "FileProgram":
    """Read one final_bundles file.

    Args:
        path: The file; its name gives the program's name.
        chip: The chip it was compiled for (`tpu7x`), where the caller knows it. Otherwise the
            generation is inferred from the instructions, then from the other programs of the folder.

    Raises:
        InputError: the file is missing, unreadable, empty, truncated, or not a list of bundles.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror or error})", "Check the path") from error
    return parse_program(data, path, chip)


def parse_program(data: bytes, path: Path, chip: str | None = None) -> "FileProgram":
    """The same for text already in memory; `path` names it in errors and is not opened."""
    _refuse_what_is_not_bundles(data, path)
    found = scan.scan(data)
    if not len(found.bundle_head):
        raise InputError(path, "holds no bundles", RECOMPILE)
    if found.unclosed and found.unclosed[-1] == len(found.bundle_head) - 1:
        address = int(found.bundle_address[-1])
        raise InputError(path, f"is truncated inside bundle {address:#x}", RECOMPILE)
    return FileProgram(data, path, found, chip)


def _refuse_what_is_not_bundles(data: bytes, path: Path) -> None:
    if not data:
        raise InputError(path, "is empty", RECOMPILE)
    head = data[:65536]
    if head.lstrip().startswith(b"Schedule analysis:"):
        raise InputError(path, "is a schedule analysis, not bundles", RECOMPILE)
    if b"== CAPACTIY" in head[:64]:
        raise InputError(path, "is a utilization file, not bundles", RECOMPILE)
    if re.search(rb"^\s*\$region\d+: #\{", head, re.MULTILINE):
        raise InputError(
            path,
            "is LLO before bundling ($region text), which has no schedule",
            "Dump the pass final_bundles (--xla_jf_dump_llo_pass_label_regex=final_bundles)",
        )
    if re.search(rb"\bllo\.\w+", head) and b"module" in head:
        raise InputError(
            path,
            "is MLIR (llo dialect), not bundles",
            "Dump the pass final_bundles (--xla_jf_dump_llo_text=true)",
        )


class FileProgram(Program):
    """A `Program` that keeps the text it was read from and decodes instructions when asked.

    bundle_address: int64[B], addresses as printed. labels: bundle -> "LB", "PF", ...
    dangling: branches whose target region is not in the text. generation: 5, 6, 7 or None (unknown);
    delay_slots: branch delay slots of the hardware.
    """

    def __init__(self, data: bytes, path: Path, found: scan.Scan, chip: str | None = None) -> None:
        self.data = data
        self.path = str(path)
        self.name = program_name(path)
        self.bundle_address = found.bundle_address
        self.bundle_first = found.bundle_first
        self.labels = dict(found.bundle_label)
        self.opcodes = found.opcodes
        self.opcode_units = [opcodes.unit_of(opcode) for opcode in found.opcodes]
        self.instruction_opcode = found.instruction_opcode
        self.instruction_span = np.stack([found.instruction_start, found.instruction_end], axis=1)
        self.instruction_source, locations = scan.first_sources(
            data, found.instruction_start, found.instruction_end
        )
        spans = [decode.source_span(text.decode("utf-8", "replace")) for text in locations]
        self.sources = [span for span in spans if span is not None]
        self.not_understood = found.not_understood
        counts = np.diff(self.bundle_first)
        self.instruction_bundle = np.repeat(np.arange(self.bundle_count, dtype=np.int32), counts)
        self._decode = lru_cache(maxsize=300_000)(self._decode_instruction)
        self._scalar_opcode = np.array(
            [
                unit in _SCALAR_UNITS or opcodes.family(opcode) in _SCALAR_FAMILIES
                for unit, opcode in zip(self.opcode_units, self.opcodes, strict=True)
            ],
            dtype=bool,
        )
        self.generation = (
            generation_of_chip(chip)
            or generation_of_opcodes(self.opcodes)
            or generation_of_folder(path.parent)
        )
        self._count_unknown_opcodes()
        self._find_flow(found)
        self.marker_names = read_marker_names(path)
        self.markers = markers_of(self, self.marker_names)
        self.operands = call_operands(self)

    def _count_unknown_opcodes(self) -> None:
        unknown = np.array([unit is Unit.UNKNOWN for unit in self.opcode_units], dtype=bool)
        for index in np.flatnonzero(unknown[self.instruction_opcode]) if len(unknown) else ():
            scan.note(
                self.not_understood, self.address_of(int(index)), self.text(int(index))[: scan.SAMPLE_BYTES]
            )

    def address_of(self, index: int) -> int:
        """Printed address of the bundle of instruction `index`."""
        return int(self.bundle_address[self.instruction_bundle[index]])

    def _find_flow(self, found: scan.Scan) -> None:
        marks = flow.Marks.blank(np.diff(self.bundle_first) == 0, self.labels)
        for bundle in np.flatnonzero(found.window_end - found.body_end > 2):
            text = self.data[found.body_end[bundle] : found.window_end[bundle]]
            if b"/*" in text:
                marks.read_trailer(int(bundle), text)
        self.regions = marks.regions
        branches = [self.instruction(i) for i in self.find(lambda opcode: opcode.startswith("sbr"))]
        slots = DELAY_SLOTS.get(self.generation) if self.generation is not None else None
        if slots is None:
            slots = flow.guess_slots([b.bundle for b in branches], marks)
        self.delay_slots = slots
        self.branches, self.dangling = flow.resolve_branches(branches, marks, slots, self._uses_guarded_value)
        self.blocks = flow.find_blocks(self.bundle_count, self.branches)
        self.loops = flow.find_loops(self.branches)

    def _uses_guarded_value(self, branch: int, predicate: Predicate | None, bundle: int) -> bool:
        """Does `bundle` use, unpredicated, a value made under the predicate of the branch?"""
        if predicate is None:
            return False
        guard = predicate.register
        made = {
            result
            for earlier in range(max(branch - 64, 0), bundle)
            for instruction in self.guarded_instructions(earlier)
            if instruction.predicate is not None and instruction.predicate.register == guard
            for result in instruction.results
        }
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
        owner = np.searchsorted(self.instruction_span[:, 0], positions, side="right") - 1
        inside = (owner >= 0) & (positions < self.instruction_span[np.maximum(owner, 0), 1])
        return [int(i) for i in np.unique(owner[inside])]

    def guarded_instructions(self, bundle: int) -> list[Instruction]:
        """The instructions of `bundle` that have a predicate in their text."""
        return [
            self.instruction(i)
            for i in range(self.bundle_first[bundle], self.bundle_first[bundle + 1])
            if _GUARDED.search(self.data, self.instruction_span[i, 0], self.instruction_span[i, 1])
        ]

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
            mnemonic=found.mnemonic,
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
        )

    def scalar_instructions(self, bundle: int) -> list[Instruction]:  # type: ignore[override]
        """Only what moves scalars, predicates, SMEM, DMA, semaphores, branches and markers."""
        first, last = int(self.bundle_first[bundle]), int(self.bundle_first[bundle + 1])
        chosen = self._scalar_opcode[self.instruction_opcode[first:last]]
        return [self.instruction(first + int(k)) for k in np.flatnonzero(chosen)]


def program_name(path: Path) -> str:
    """`1796-mlp.1-04-final_bundles.txt` -> `mlp.1`; the stem where the name has another form."""
    found = _FILE_NAME.match(path.name)
    return found["name"] if found is not None and found["name"] else path.stem
