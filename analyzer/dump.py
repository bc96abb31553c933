"""Dump folders of libtpu: which files belong to which program, and which program is the kernel.

Nothing here parses bundles (see analyzer/llo); it finds them, folds recompiles, and chooses the one
program that a report is about.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from analyzer.dump_facts import HloModule, read_module

# Some collections put the chip's name before the stamp, and some programs have no name.
_NAMED = re.compile(
    r"^(?:[A-Za-z]\w*-)?(?P<epoch>\d{15,})-(?:(?P<program>.+)-)?(?P<number>\d{2,3})-final_bundles\.txt$"
)
_LOOSE = re.compile(r"^(?P<program>.*?)(?:-?(?P<number>\d{2,3}))?-?final_bundles\.txt$")
_ADDRESS = re.compile(rb"^\s*0x([0-9a-f]+)\s+(?:[A-Z]{2}\s*)?:", re.MULTILINE)
_FIRST_BUNDLE = re.compile(rb"^\s*0\s+(?:[A-Z]{2}\s*)?:\s*[>{]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DumpProgram:
    """One program of a dump.

    Attributes:
        name: The HLO operation it was compiled from (`mlp.1`), or a name such as `TLP`.
        stem: The nanosecond stamp its file names start with; "" where the names carry none.
        bundles: Its final bundles.
        companions: Pass label (`trace-markers`, `TLP-hlo` ...) to the file of that pass.
        module: Name of the HLO module it belongs to, None where no HLO text tells.
        is_kernel: Whether the HLO says it is a Pallas kernel; None where no HLO text tells.
        bundle_count: Bundles printed, from the last address.
        identical: Stamps of other compiles with the very same bundles.
    """

    name: str
    stem: str
    bundles: Path
    companions: dict[str, Path]
    module: str | None
    is_kernel: bool | None
    bundle_count: int
    identical: tuple[str, ...] = ()

    @property
    def is_system(self) -> bool:
        """Whether it is the runtime's, not an operation of the user's program."""
        return self.name == "TLP" or self.name.startswith("<")


def find_programs(folder: Path) -> list[DumpProgram]:
    """Every program of a dump folder, oldest first; recompiles with identical bundles are folded into one.

    Args:
        folder: The dump folder; files are matched by their suffix, and what else lies there is ignored.
    """
    files = sorted(p for p in folder.iterdir() if p.is_file())
    modules = [read_module(p) for p in files if p.name.endswith("TLP-hlo.txt")]
    found = []
    for path in files:
        if not path.name.endswith("final_bundles.txt") or "schedule-analysis" in path.name:
            continue
        if is_bundles(path):
            found.append(_program(path, files, modules))
    return _fold(found)


def program_of_file(path: Path) -> DumpProgram:
    """The program of a bare bundles file; companions are looked for beside it."""
    files = sorted(p for p in path.parent.iterdir() if p.is_file()) if _stamped(path) else [path]
    modules = [read_module(p) for p in files if p.name.endswith("TLP-hlo.txt")]
    return _program(path, files, modules)


def is_bundles(path: Path) -> bool:
    """Whether a file holds final bundles: the first bundle stands near its start."""
    with path.open("rb") as stream:
        return _FIRST_BUNDLE.search(stream.read(1 << 16)) is not None


def pose(path: Path) -> str | None:
    """What a file that holds no bundles is instead, where its start tells; None where it does not."""
    with path.open("rb") as stream:
        head = stream.read(1 << 16)
    text = head.decode(errors="replace").lstrip()
    if not head:
        return "an empty file"
    kinds = {
        "Schedule analysis:": "a schedule analysis (counts of bundles, not bundles)",
        "== CAPACTIY": "a table of utilization per bundle, not bundles",
        "version https://git-lfs": "a Git LFS pointer; run `git lfs pull` to get the file behind it",
        "HloModule": "HLO text, not bundles",
        "<!DOCTYPE html": "an HTML report, not bundles",
    }
    for start, kind in kinds.items():
        if text.startswith(start):
            return kind
    if re.search(r"\bllo\.\w+|^module\b.*\{", text, re.MULTILINE):
        return "MLIR of an earlier pass, not bundles"
    if re.search(r"^\s*\$region\d+: #\{", text, re.MULTILINE):
        return "LLO before bundling, not bundles"
    if b"\0" in head:
        return "a binary file"
    return None


def bundle_count(path: Path) -> int:
    """Bundles in a file, from the last address printed in it (addresses are consecutive from 0)."""
    with path.open("rb") as stream:
        stream.seek(0, 2)
        size, window = stream.tell(), 1 << 16
        while True:
            start = max(0, size - window)
            stream.seek(start)
            addresses = _ADDRESS.findall(stream.read())
            if addresses:
                return int(addresses[-1], 16) + 1
            if start == 0:
                return 1 if is_bundles(path) else 0
            window *= 8


def utilization_rows(program: DumpProgram) -> int | None:
    """Rows of the program's utilization table, one per printed bundle; None where there is no table."""
    path = program.companions.get("final_hlo-static-per-bundle-utilization")
    if path is None:
        return None
    _, header, rows = path.read_bytes().partition(b"== UTILIZATION:")
    return sum(1 for row in rows.splitlines() if row.strip()) if header else None


def _stamped(path: Path) -> bool:
    return _NAMED.match(path.name) is not None


def _program(path: Path, files: Iterable[Path], modules: list[HloModule]) -> DumpProgram:
    match = _NAMED.match(path.name)
    if match:
        name, stem = match.group("program") or "unnamed", match.group("epoch")
        companions = _companions(path.name[: match.start("number")], files)
    else:
        loose = _LOOSE.match(path.name)
        name = (loose.group("program").strip("-") if loose else "") or path.stem
        stem, companions = "", {}
    module = _module_of(name, stem, modules)
    if module is not None:
        companions |= {
            k: v for k, v in _companions(f"{module.stem}-TLP-", files).items() if k not in companions
        }
        companions["TLP-hlo"] = module.path
    return DumpProgram(
        name=name,
        stem=stem,
        bundles=path,
        companions=companions,
        module=module.name if module else None,
        is_kernel=name in module.kernels if module else None,
        bundle_count=bundle_count(path),
    )


def _companions(prefix: str, files: Iterable[Path]) -> dict[str, Path]:
    found = {}
    for file in files:
        rest = re.match(r"\d{2,3}-([A-Za-z].*)\.(?:txt|html)$", file.name.removeprefix(prefix))
        if rest and file.name.startswith(prefix):
            found[rest.group(1)] = file
    return found


def _module_of(name: str, stem: str, modules: list[HloModule]) -> HloModule | None:
    """The module a program came from: the last one started before it that knows its name."""
    knowing = [m for m in modules if name in m.kernels]
    before = [m for m in modules if m.stem and stem and m.stem <= stem]
    ordered = [m for m in before if m in knowing] or knowing or before
    return max(ordered, key=lambda m: m.stem, default=None)


def _fold(programs: list[DumpProgram]) -> list[DumpProgram]:
    """Fold programs of one name and module with identical text into their newest compile."""
    sizes: dict[tuple[str, str | None, int], list[DumpProgram]] = defaultdict(list)
    for program in programs:
        sizes[(program.name, program.module, program.bundles.stat().st_size)].append(program)
    folded = []
    for group in sizes.values():
        texts: dict[str, list[DumpProgram]] = defaultdict(list)
        for program in group:
            digest = hashlib.sha256(program.bundles.read_bytes()).hexdigest() if len(group) > 1 else ""
            texts[digest].append(program)
        for same in texts.values():
            *older, newest = sorted(same, key=lambda p: (p.stem, p.bundles.name))
            folded.append(replace(newest, identical=tuple(p.stem or p.bundles.name for p in older)))
    return sorted(folded, key=lambda p: (p.stem, p.name))


@dataclass(frozen=True, slots=True)
class Choice:
    """The program a report is about, and in `notes` why it was taken where others could have been."""

    program: DumpProgram
    notes: tuple[str, ...] = ()


def choose_kernel(programs: list[DumpProgram], name: str | None = None) -> Choice:
    """The kernel among the programs of a dump: always the same one for the same files.

    Custom calls (by the HLO) before other programs, never the runtime's; of several with one name and
    module the newest; of several kernels the one with the most bundles, then the first by name.

    Args:
        programs: What `find_programs` found; not empty.
        name: Take the program of this name instead (`mlp.1`, or `mlp`).

    Raises:
        KeyError: no program has that name; the argument lists the names there are.
    """
    if name is not None:
        named = [p for p in programs if p.name == name] or [
            p for p in programs if p.name.split(".")[0] == name
        ]
        if not named:
            raise KeyError(", ".join(sorted({p.name for p in programs})))
        return _largest(named, [f"program {name} as asked"] if len(programs) > 1 else [])
    kernels = [p for p in programs if p.is_kernel]
    if kernels:
        return _largest(kernels, [])
    others = [p for p in programs if not p.is_system] or programs
    if any(p.is_kernel is None for p in programs) and len(others) > 1:
        return _largest(
            others, ["no HLO text lies beside the bundles, so it is not known which is the kernel"]
        )
    if all(p.is_kernel is False for p in programs):
        return _largest(others, ["the HLO has no Pallas kernel (tpu_custom_call) among these programs"])
    return _largest(others, [])


def _largest(candidates: list[DumpProgram], notes: list[str]) -> Choice:
    newest: dict[tuple[str, str | None], DumpProgram] = {}
    for program in sorted(candidates, key=lambda p: (p.stem, p.bundles.name)):
        newest[(program.name, program.module)] = program
    ordered = sorted(newest.values(), key=lambda p: (-p.bundle_count, p.name, p.module or ""))
    best = ordered[0]
    versions = sum((p.name, p.module) == (best.name, best.module) for p in candidates)
    if versions > 1:
        notes.append(
            f"{versions} different compiles of {best.name} in this folder; took the newest, {best.stem}"
        )
    if len(ordered) > 1:
        rest = ", ".join(f"{p.name} ({p.bundle_count:,})" for p in ordered[1:6])
        more = f" and {len(ordered) - 6} more" if len(ordered) > 6 else ""
        notes.append(
            f"took {best.name} ({best.bundle_count:,} bundles), the largest; the others: {rest}{more}"
        )
    if best.identical:
        notes.append(
            f"{len(best.identical) + 1} identical programs {best.name}: compiled again without a change"
        )
    return Choice(best, tuple(notes))
