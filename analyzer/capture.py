"""Opens what a user points at: a capture, a bare dump folder, a bare bundles file.

A capture is a folder with `manifest.json` (docs/capture.md). For anything else the manifest is
inferred, and says what is unknown.
"""

import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.dump import (
    Choice,
    DumpProgram,
    choose_kernel,
    find_programs,
    is_bundles,
    pose,
    program_of_file,
    utilization_rows,
)
from analyzer.dump_chip import infer_chip
from analyzer.dump_facts import describe_operands, read_module
from analyzer.errors import DataAbsentError, InputError, UsageError
from analyzer.manifest import KINDS, SCHEMA_VERSION, compare_files, file_inside, read_manifest

if TYPE_CHECKING:
    from analyzer.llo.file_program import FileProgram

TRACE_SUFFIXES = (".xplane.pb", ".trace.json.gz", ".trace.json")
_HOW_TO_DUMP = "Make one with `megascope compile`, or point at the folder given to --xla_jf_dump_to"


@dataclass(slots=True)
class Capture:
    """Something to analyze.

    Attributes:
        path: What the user pointed at.
        kind: "compile", "record", "interpret" (captures), "dump" (bare bundles) or "xplane" (a bare trace).
        manifest: The capture's manifest, or one inferred from the files (then `unknown` lists what is not
            known).
        notes: What a reader of the results must know: choices made, files changed, facts unknown.
        dump_dir: Folder of the compiler's dump.
        trace: The profiler's trace that reports are about; None where they are about the bundles.
    """

    path: Path
    kind: str
    manifest: dict[str, Any]
    dump_dir: Path
    notes: list[str] = field(default_factory=list)
    _programs: list[DumpProgram] = field(default_factory=list)
    _choice: Choice | None = None
    trace: Path | None = None

    def programs(self) -> list[DumpProgram]:
        """Every program of the dump, oldest first, identical recompiles folded."""
        return list(self._programs)

    def kernel_program(self) -> DumpProgram:
        """The program that reports are about: the same one for the same files; `notes` says why.

        Raises:
            DataAbsentError: the capture is a trace without bundles.
        """
        if self._choice is None:
            raise DataAbsentError(
                self.path,
                "is a profiler trace and holds no bundles",
                "Ask `megascope report`, or point at the dump of the same program.",
            )
        return self._choice.program

    @property
    def cache_dir(self) -> Path:
        """Folder for derived files, made when asked for: `.cache` in a capture, else the user's cache."""
        return _cache_dir(self.path, inside=self.kind in KINDS)

    def read_kernel(self) -> "FileProgram":
        """The bundles of `kernel_program`; what was found in them is kept beside the capture for next time.

        Raises:
            DataAbsentError: the capture is a trace without bundles.
            InputError: they cannot be read.
        """
        from analyzer.llo.reader import read_program

        try:
            folder = self.cache_dir
        except InputError:
            folder = None  # nowhere to keep it
        return read_program(self.kernel_program().bundles, self.manifest.get("chip"), folder)

    def source_file(self, path: str) -> Path | None:
        """The copy of a source file as it was when compiled, else the file itself, else None."""
        if self.kind in KINDS:
            for row in self.manifest.get("sources", []):
                if row.get("path") == path:
                    stored = file_inside(self.path, row.get("file"))
                    if stored.is_file():
                        return stored
        return Path(path) if Path(path).is_file() else None


def open_capture(path: Path | str, *, program: str | None = None, chip: str | None = None) -> Capture:
    """Open a capture folder, a bare dump folder, a bare bundles file, or a profiler's trace.

    Args:
        path: What the user pointed at.
        program: Take this program as the kernel, instead of the choice of `choose_kernel`; reports are then
            about its bundles even where a trace is there.
        chip: The chip, where the files do not tell it or tell it wrong.

    Raises:
        InputError: nothing to analyze there; the message says what is there and what to do.
        UsageError: there is no program of that name.
    """
    if path == "":
        raise InputError("the path of the capture", "is empty", "Give one; `.` is the current folder.")
    path = Path(path).expanduser()
    if not path.exists():
        raise InputError(path, "does not exist", "Check the path.")
    try:
        if path.is_dir():
            capture = _open_folder(path)
        elif path.name == "manifest.json":
            capture = _open_capture_folder(path.parent)
        else:
            capture = _open_file(path)
        if program is not None:
            capture.trace = None
        _choose(capture, program)
        _describe(capture, chip)
    except OSError as error:
        raise InputError(
            error.filename or path, f"cannot be read ({error.strerror})", "Check its permissions."
        ) from error
    return capture


def _open_folder(path: Path) -> Capture:
    if (path / "manifest.json").exists():
        return _open_capture_folder(path)
    programs = find_programs(path)
    if programs:
        return Capture(path, "dump", {}, path, _programs=programs)
    below = sorted(
        {p.parent for depth in ("*", "*/*") for p in path.glob(f"{depth}/*final_bundles.txt") if _real(p)}
    )
    if any(path.glob("*.xplane.pb")) or any(path.glob("plugins/profile/*/*.xplane.pb")):
        beside = path / "dump" if path / "dump" in below else below[0] if len(below) == 1 else None
        programs = find_programs(beside) if beside else []
        return Capture(path, "xplane", {}, beside or path, [], programs, trace=path)
    if len(below) == 1:
        note = f"no manifest in {path}: read the dump in {below[0].relative_to(path)}/ below it"
        return Capture(path, "dump", {}, below[0], [note], find_programs(below[0]))
    if below:
        names = ", ".join(str(b.relative_to(path)) for b in below[:6])
        raise InputError(path, f"holds {len(below)} dumps ({names})", "Point at one of them.")
    raise InputError(path, _what_instead(path), f"{_HOW_TO_DUMP}.")


def _open_file(path: Path) -> Capture:
    if path.name.endswith(TRACE_SUFFIXES):
        return Capture(path, "xplane", {}, path.parent, trace=path)
    if not is_bundles(path) or "schedule-analysis" in path.name:
        kind = pose(path) or "no final bundles, and nothing else that is known"
        raise InputError(
            path, f"is {kind}", "Point at a file that ends in -final_bundles.txt, or at its folder."
        )
    return Capture(path, "dump", {}, path.parent, _programs=[program_of_file(path)])


def _open_capture_folder(path: Path) -> Capture:
    manifest = read_manifest(path)
    notes = [str(n) for n in manifest["notes"]]
    notes += compare_files(path, manifest["files"])
    dump = path / "dump"
    if not dump.is_dir():
        raise InputError(path, "the capture has no dump folder", "It is damaged: compile again.")
    programs = find_programs(dump)
    if not programs:
        raise InputError(dump, _what_instead(dump), "The capture is damaged: compile again.")
    trace = path / "xplane" if any((path / "xplane").rglob("*.xplane.pb")) else None
    return Capture(path, manifest["kind"], manifest, dump, notes, programs, trace=trace)


def _what_instead(folder: Path) -> str:
    """What a folder without bundles holds, as a fault."""
    posing = [p for p in sorted(folder.iterdir()) if p.is_file() and p.name.endswith("final_bundles.txt")]
    for file in posing:
        kind = pose(file)
        if "schedule-analysis" not in file.name or len(posing) == 1:
            return f"holds no final bundles: {file.name} is {kind or 'something else'}"
    if posing:
        return (
            f"holds no final bundles, only {len(posing)} schedule analyses (counts of bundles, not bundles)"
        )
    count = sum(1 for _ in folder.iterdir())
    return f"holds no final bundles ({count} other entries)" if count else "is an empty folder"


def _real(path: Path) -> bool:
    return "schedule-analysis" not in path.name and path.is_file() and is_bundles(path)


def _choose(capture: Capture, name: str | None) -> None:
    if not capture.programs() and name is None:
        return  # a trace alone
    if name is None and capture.kind in KINDS and capture.manifest.get("program"):
        known = {p.name for p in capture.programs()}
        name_in_manifest = capture.manifest["program"]
        if name_in_manifest in known:
            choice = choose_kernel(capture.programs(), name_in_manifest)
            capture._choice = Choice(choice.program)
            return
        if all(p.is_system for p in capture.programs()):
            raise InputError(
                capture.path,
                f"the dump has no bundles of {name_in_manifest}, which the manifest names, only those of the "
                f"runtime ({', '.join(sorted(known))})",
                "Its file is gone or damaged: copy the capture or compile it again, or give --program.",
            )
        capture.notes.append(f"the manifest's program {name_in_manifest} is not in the dump")
    try:
        capture._choice = choose_kernel(capture.programs(), name)
    except KeyError as error:
        raise UsageError(
            f"program {name}", f"not in {capture.path}", f"There are: {error.args[0]}."
        ) from None
    capture.notes += capture._choice.notes


def _describe(capture: Capture, chip: str | None) -> None:
    """Fill in what the manifest lacks from the files, and note what stays unknown."""
    if capture.trace is not None and not capture.programs():
        capture.manifest |= {"kind": "xplane", "inferred": True, "chip": chip}
        return
    program = capture.kernel_program()
    capture.notes += _completeness(program)
    manifest = capture.manifest
    if capture.kind not in KINDS:
        hlo = program.companions.get("TLP-hlo")
        module = read_module(hlo) if hlo else None
        manifest |= {
            "schema_version": SCHEMA_VERSION,
            "kind": "dump",
            "inferred": True,
            "kernel": program.name.split(".")[0] if program.stem else program.name,
            "program": program.name,
            "model": None,
            "batch": None,
            "context": None,
            "chip": None,
            "topology": None,
            "cores": module.partitions if module else None,
            "probe_level": None,
            "versions": {},
            "flags": [],
            "git": None,
            "operands": describe_operands(program.bundles, program.name, module),
            "scenario": None,
            "facts": {},
            "copy_names": [],
            "sources": [],
            "files": {},
            "notes": [],
        }
    if chip is not None:
        if manifest["chip"] not in (None, chip):
            capture.notes.append(f"chip {chip} as asked; the manifest says {manifest['chip']}")
        manifest["chip"] = chip
    elif manifest["chip"] is None:
        manifest["chip"], why = infer_chip(program.bundles, program.companions)
        if manifest["chip"] is None:
            _refuse_damaged(program.bundles)
        capture.notes.append(
            f"chip {manifest['chip']} inferred from {why}" if manifest["chip"] else f"chip unknown: {why}"
        )
    if manifest["chip"] is not None and (chip is not None or not manifest.get("inferred")):
        capture.notes += _another_chip(program, manifest["chip"])
    if manifest.get("inferred"):
        names = ("model", "batch", "context", "chip", "topology", "cores", "probe_level")
        manifest["unknown"] = [n for n in names if manifest[n] is None]
        if manifest["unknown"]:
            capture.notes.append(f"no manifest; unknown: {', '.join(manifest['unknown'])}")


def _completeness(program: DumpProgram) -> list[str]:
    """Compare the bundles with the utilization table beside them, which has a row for each.

    Raises:
        InputError: bundles are missing; a file cut between two bundles shows it nowhere else.
    """
    rows = utilization_rows(program)
    if rows is None or rows == program.bundle_count:
        return []
    if rows > program.bundle_count:
        raise InputError(
            program.bundles,
            f"is truncated: {program.bundle_count} bundles, and the utilization table beside it has {rows}",
            "Copy or compile it again.",
        )
    return [f"the utilization table of {program.name} has {rows} rows for {program.bundle_count} bundles"]


def _another_chip(program: DumpProgram, said: str) -> list[str]:
    """A note where the files were compiled for another chip than the manifest or the user says."""
    told, why = infer_chip(program.bundles, program.companions)
    if told in (None, said):
        return []
    return [f"taken as {said}, but the dump is of {told} by its {why}: times are wrong unless that is meant"]


def _refuse_damaged(bundles: Path) -> None:
    """A cut file often does not tell the chip; that it is cut is what the user must hear."""
    from analyzer.llo.reader import read_program

    read_program(bundles)


def _cache_dir(path: Path, inside: bool) -> Path:
    """A writable folder for derived files; falls back to the user's cache, then to the temporary folder."""
    key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) if home and Path(home).is_absolute() else Path("~/.cache").expanduser()
    candidates = [path / ".cache"] if inside else []
    candidates += [base / "megascope" / key, Path(tempfile.gettempdir()) / f"megascope-{os.getuid()}" / key]
    for candidate in candidates:
        try:
            candidate.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(candidate, os.W_OK):
            return candidate
    raise InputError(
        candidates[-1], "no folder for derived files can be written", "Set XDG_CACHE_HOME to one."
    )
