"""`show`: the bundle listing an engineer wants, with what each bundle occupies and how often it ran."""

import difflib
import fnmatch
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from analyzer.errors import DataAbsentError, InputError, UsageError
from analyzer.llo import occupancy, opcodes
from analyzer.llo.phases import static_phases
from analyzer.llo.program import Loop, Unit

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

SCHEMA_VERSION = 1
DEFAULT_LIMIT = 100
_RANGE = re.compile(r"^(0x[0-9a-fA-F]+|\d+)?(?:(:)(0x[0-9a-fA-F]+|\d+)?)?$")
_SOURCE = re.compile(r"^(?P<file>.+?)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?$")
_LOCATIONS = re.compile(r'(?: ?(?::: )?loc\((?:"[^"]*"[:\d to]{0,60}|unknown)\))+')
_EMPTY_COMMENT = re.compile(r" ?/\* ?(?:::)? ?\*/")


@dataclass(frozen=True, slots=True)
class Query:
    """Which bundles to list; every condition that is given must hold.

    bundles: `A:B` half open, hexadecimal or decimal addresses, either side optional; `A` is one bundle.
    source: `file.py`, `file.py:120` or `file.py:100-130`; the path may be cut at any folder.
    grep: regular expression over an instruction as printed. opcode: mnemonic, family, or a pattern with *.
    loop: number of a loop in the listing of loops, or the address of its first bundle.
    """

    bundles: str | None = None
    source: str | None = None
    grep: str | None = None
    opcode: str | None = None
    loop: str | None = None
    limit: int = DEFAULT_LIMIT
    offset: int = 0


def show(program: "FileProgram", query: Query, executed: np.ndarray | None = None) -> dict[str, Any]:
    """The bundles that match, as plain values.

    Args:
        program: the program to list.
        query: which bundles.
        executed: int64[B], how often each bundle ran; None where that is unknown.

    Raises:
        UsageError: a condition is malformed or names a loop that is not there.
        InputError: a range without bundles, or an opcode that the program does not have.
        DataAbsentError: sources are asked for and the program has none.
    """
    if query.limit < 0 or query.offset < 0:
        raise UsageError("--limit and --offset", "must not be negative", "Give 0 or more.")
    chosen = np.flatnonzero(select(program, query))
    page = chosen[query.offset : query.offset + query.limit if query.limit else None]
    used = occupancy.occupancy(program)
    names, phase = static_phases(program)
    notes = list(program.notes)
    if executed is None:
        notes.append("how often bundles run is unknown: executed is null")
    lost = program.not_understood
    return {
        "schema_version": SCHEMA_VERSION,
        "program": program.name,
        "path": program.path,
        "generation": program.generation,
        "static_bundles": program.bundle_count,
        "total": len(chosen),
        "returned": len(page),
        "offset": query.offset,
        "capacity": _capacity(program),
        "bundles": [_entry(program, int(b), used[b], names[phase[b]], executed) for b in page],
        "loops": [
            _loop_entry(i, loop, program.trip_counts[loop.start], executed)
            for i, loop in enumerate(program.loops)
        ],
        "not_understood": {
            "instructions": lost.count,
            "of": len(program.instruction_opcode) + lost.count,
            "samples": [{"address": address, "text": text} for address, text in lost.samples],
        },
        "notes": notes,
    }


def select(program: "FileProgram", query: Query) -> np.ndarray:
    """bool[B]: the bundles that match the conditions of a query."""
    chosen = np.ones(program.bundle_count, bool)
    if query.bundles is not None:
        chosen &= _in_range(program, query.bundles)
    if query.loop is not None:
        loop = find_loop(program, query.loop)
        inside = np.zeros(program.bundle_count, bool)
        inside[loop.start : loop.end + 1] = True
        chosen &= inside
    if query.opcode is not None:
        chosen &= _bundles_of(program, _with_opcode(program, query.opcode))
    if query.source is not None:
        chosen &= _bundles_of(program, _from_source(program, query.source))
    if query.grep is not None:
        chosen &= _bundles_of(program, _matching(program, query.grep, chosen))
    return chosen


def find_loop(program: "FileProgram", text: str) -> Loop:
    """The loop named by its number or by the address of its first bundle.

    Raises:
        UsageError: there is no such loop.
    """
    try:
        number = int(text, 0)
    except ValueError:
        raise UsageError(
            f"--loop {text}", "is no number", "Give a number or an address such as 0x1a2"
        ) from None
    by_address = [loop for loop in program.loops if loop.start == number]
    if by_address and (text.lower().startswith("0x") or number >= len(program.loops)):
        return by_address[0]
    if 0 <= number < len(program.loops) and not text.lower().startswith("0x"):
        return program.loops[number]
    listed = ", ".join(f"{i} at {loop.start:#x}" for i, loop in enumerate(program.loops[:12]))
    raise UsageError(f"--loop {text}", "no such loop", f"Loops: {listed or 'none in this program'}")


def _capacity(program: "FileProgram") -> dict[str, int] | None:
    slots = occupancy.CAPACITY.get(program.generation or -1)
    return dict(zip(occupancy.COLUMNS, slots, strict=True)) if slots is not None else None


def _entry(
    program: "FileProgram", bundle: int, used: np.ndarray, phase: str, executed: np.ndarray | None
) -> dict[str, Any]:
    first, last = int(program.bundle_first[bundle]), int(program.bundle_first[bundle + 1])
    instructions = [program.instruction(i) for i in range(first, last)]
    places = dict.fromkeys(str(span) for instruction in instructions for span in instruction.sources)
    issued = Counter(instruction.unit.value for instruction in instructions)
    return {
        "address": int(program.bundle_address[bundle]),
        "label": program.labels.get(bundle),
        "instructions": [without_locations(instruction.text) for instruction in instructions],
        "units": {name: int(value) for name, value in zip(occupancy.COLUMNS, used, strict=True)},
        "issued": {unit: count for unit, count in issued.items() if count},
        "not_understood": issued.get(Unit.UNKNOWN.value, 0),
        "source": list(places),
        "executed": int(executed[bundle]) if executed is not None else None,
        "phase": phase,
        "loop_depth": max(
            (loop.depth for loop in program.loops if loop.start <= bundle <= loop.end), default=0
        ),
        "marks": program.trailer(bundle).text,
    }


def _loop_entry(index: int, loop: Loop, trips: int | None, executed: np.ndarray | None) -> dict[str, Any]:
    return {
        "loop": index,
        "start": loop.start,
        "end": loop.end,
        "depth": loop.depth,
        "bundles": loop.end - loop.start + 1,
        "trip_count": trips,
        "iterations": int(executed[loop.start]) if executed is not None else None,
    }


def without_locations(text: str) -> str:
    """An instruction on one line, its source locations left out (they are listed beside it)."""
    line = _EMPTY_COMMENT.sub("", _LOCATIONS.sub("", " ".join(text.split())))
    return line.replace("/* :: ", "/* ").strip()


def _in_range(program: "FileProgram", text: str) -> np.ndarray:
    found = _RANGE.match(text.strip())
    if found is None or not text.strip() or text.strip() == ":":
        raise UsageError(f"--bundles {text}", "is no range", "Give addresses such as 0x100:0x180")
    low = int(found[1], 0) if found[1] is not None else 0
    high = low + 1 if found[2] is None else int(found[3], 0) if found[3] is not None else None
    if high is not None and high <= low:
        cure = f"Give {high:#x}:{low:#x}." if high < low else f"One bundle is {low:#x}."
        raise InputError(f"--bundles {text}", "is empty: it ends where it begins or before", cure)
    inside = program.bundle_address >= low
    if high is not None:
        inside &= program.bundle_address < high
    if not inside.any():
        first, last = int(program.bundle_address.min()), int(program.bundle_address.max())
        raise InputError(
            f"--bundles {text}", "the program has no bundle there", f"It has {first:#x} to {last:#x}."
        )
    return inside


def _bundles_of(program: "FileProgram", instructions: np.ndarray) -> np.ndarray:
    out = np.zeros(program.bundle_count, bool)
    out[program.instruction_bundle[instructions]] = True
    return out


def _with_opcode(program: "FileProgram", pattern: str) -> np.ndarray:
    """bool[I]: instructions whose mnemonic, or its family, is or matches `pattern`."""

    def wanted(opcode: str) -> bool:
        spellings = (opcode, opcodes.normalise(opcode), opcodes.family(opcode))
        if any(letter in pattern for letter in "*?"):
            return any(fnmatch.fnmatchcase(spelling, pattern) for spelling in spellings)
        return pattern in spellings

    table = np.array([wanted(opcode) for opcode in program.opcodes], dtype=bool)
    if not table.any():
        families = sorted({opcodes.family(opcode) for opcode in program.opcodes})
        near = difflib.get_close_matches(pattern, [*program.opcodes, *families], n=5)
        cure = f"Near it: {', '.join(near)}." if near else f"Families: {', '.join(families[:12])}, ..."
        raise InputError(f"--opcode {pattern}", "no instruction of the program has it", cure)
    return table[program.instruction_opcode]


def _from_source(program: "FileProgram", text: str) -> np.ndarray:
    """bool[I]: instructions with any location at `file`, or in its given lines."""
    if not program.sources:
        raise DataAbsentError(
            f"--source {text}",
            "the program carries no source lines",
            "Compile it with --xla_mosaic_enable_llo_source_annotations=true (megascope compile does)",
        )
    found = _SOURCE.match(text)
    if found is None:
        raise UsageError(f"--source {text}", "is no place", "Give file.py or file.py:120")
    first = int(found["first"]) if found["first"] else 0
    last = int(found["last"]) if found["last"] else (first or 1 << 60)
    tail = PurePosixPath(found["file"]).parts
    hits = {
        number
        for number, span in enumerate(program.locations)
        if first <= span.line <= last and PurePosixPath(span.file).parts[-len(tail) :] == tail
    }
    if not hits and not any(PurePosixPath(s.file).parts[-len(tail) :] == tail for s in program.locations):
        files = sorted({PurePosixPath(span.file).name for span in program.locations})
        raise DataAbsentError(
            f"--source {text}", "no instruction comes from that file", f"Files: {', '.join(files[:8])}"
        )
    return program.instructions_at(hits)


def _matching(program: "FileProgram", pattern: str, within: np.ndarray) -> np.ndarray:
    """bool[I]: instructions of the bundles `within` whose text matches a regular expression."""
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise UsageError(f"--grep {pattern}", f"is no regular expression ({error})", "Mend it") from error
    out = np.zeros(len(program.instruction_opcode), bool)
    for index in np.flatnonzero(within[program.instruction_bundle]):
        out[index] = search(program.text(int(index))) is not None
    return out


def render_text(listing: dict[str, Any], colour: bool = False) -> str:
    """The listing for people: a line per bundle, its instructions under it."""
    bold, faint, off = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if colour else ("", "", "")
    capacity = listing["capacity"] or {}
    lines = [
        f"{bold}{listing['program']}{off}  {listing['static_bundles']} bundles  {faint}{listing['path']}{off}"
    ]
    for bundle in listing["bundles"]:
        units = _units_text(bundle, capacity)
        ran = f"x{bundle['executed']}" if bundle["executed"] is not None else "x?"
        head = f"{bundle['address']:#7x} {bundle['label'] or '':2} {'>' * bundle['loop_depth']:3}"
        where = ", ".join(_short(place) for place in bundle["source"][:3])
        more = f" +{len(bundle['source']) - 3}" if len(bundle["source"]) > 3 else ""
        parts = (ran, bundle["phase"], units or "empty", where + more)
        lines.append(f"{bold}{head}{off} " + "  | ".join(part for part in parts if part))
        lines += [f"           {faint}{instruction}{off}" for instruction in bundle["instructions"]]
    shown_to = listing["offset"] + listing["returned"]
    lines.append(f"{listing['offset']}..{shown_to} of {listing['total']} matching bundles")
    if shown_to < listing["total"]:
        lines[-1] += f"; --offset {shown_to} shows more"
    lost = listing["not_understood"]
    if lost["instructions"]:
        lines.append(f"{lost['instructions']} of {lost['of']} instructions not understood")
    return "\n".join([*lines, *(f"note: {note}" for note in listing["notes"])]) + "\n"


def _units_text(bundle: dict[str, Any], capacity: dict[str, int]) -> str:
    """`VLOAD 1/3  MXU busy 2/2  MXU +2`: slots taken, units busy, matrix and cross-lane work begun."""
    parts = []
    for name, used in bundle["units"].items():
        if used:
            busy = " busy" * (name in occupancy.HELD)
            parts.append(f"{name}{busy} {used}" + (f"/{capacity[name]}" if name in capacity else ""))
    parts += [f"{name} +{n}" for name, n in bundle["issued"].items() if name in occupancy.HELD]
    return "  ".join(parts)


def _short(place: str) -> str:
    return PurePosixPath(place).name
