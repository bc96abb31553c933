"""Writes the skill into a project, for the layouts that coding agents read; never over what a user changed.

What was installed is kept beside it (`.installed.json`: a hash per file), so that a later version replaces
its own files and stops at edited ones.
"""

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from analyzer.cache import write_atomically
from analyzer.errors import InputError, UsageError

SKILL = Path(__file__).parent / "skill"
RECORD = ".installed.json"
# Where each agent looks for skills, below the project (or the home folder).
LAYOUTS = {
    "agents": ".agents/skills",
    "claude": ".claude/skills",
    "cursor": ".cursor/skills",
    "gemini": ".gemini/skills",
    "github": ".github/skills",
}
DEFAULT_LAYOUTS = ("agents", "claude")
# For agents without skills: a few lines in AGENTS.md that point at the skill of the layout `agents`.
POINTER = "agents-md"
BEGIN, END = "<!-- megascope: begin -->", "<!-- megascope: end -->"
NOTE = f"""{BEGIN}
## Performance of TPU kernels

To find out where the time of a Pallas TPU kernel goes, with or without a TPU, and to check a change to one,
read `.agents/skills/megascope/SKILL.md` first and work as it says.
{END}
"""


@dataclass(frozen=True, slots=True)
class Written:
    """One file: its path, and what happened to it ("written", "replaced", "unchanged" or "removed")."""

    path: Path
    state: str


def skill_files() -> dict[str, bytes]:
    """The skill: content by path inside its folder."""
    return {
        file.relative_to(SKILL).as_posix(): file.read_bytes()
        for file in sorted(SKILL.rglob("*.md"))
        if file.is_file()
    }


def install(to: Path, layouts: tuple[str, ...], *, force: bool = False) -> list[Written]:
    """Write the skill into a project. Nothing is written where anything would have to be refused.

    Args:
        to: Folder of the project.
        layouts: Names in LAYOUTS, POINTER, or "all".
        force: Replace files that were edited.

    Raises:
        UsageError: unknown layout, no such folder, or files were edited.
        InputError: a folder cannot be written.
    """
    known = (*LAYOUTS, POINTER)
    for name in layouts:
        if name not in (*known, "all"):
            raise UsageError(f"--layout {name}", "no such layout", f"Layouts: {', '.join(known)}, all.")
    if not to.is_dir():
        raise UsageError(f"--to {to}", "is not a folder", "Give the folder of the project.")
    wanted = set(known) if "all" in layouts else set(layouts)
    folders = [to / LAYOUTS[name] / "megascope" for name in LAYOUTS if name in wanted | _needed(wanted)]
    pointer = to / "AGENTS.md" if POINTER in wanted else None
    try:
        new = skill_files()
        edited = [path for folder in folders for path in _edited(folder, new)]
        if pointer is not None and _pointer_edited(pointer):
            edited.append(pointer)
        if edited and not force:
            names = ", ".join(str(path) for path in edited)
            raise UsageError(
                names, "was changed since it was installed", "Keep it, or replace it with --force."
            )
        written = [one for folder in folders for one in _write(folder, new)]
        return written + ([_write_pointer(pointer)] if pointer is not None else [])
    except OSError as error:
        raise InputError(
            error.filename or to, f"cannot be written ({error.strerror or error})", "Check the folder."
        ) from error


def _needed(wanted: set[str]) -> set[str]:
    return {"agents"} if POINTER in wanted else set()


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _recorded(folder: Path) -> dict[str, str]:
    """Hash by file of what was installed; empty where that is not known."""
    try:
        kept = json.loads((folder / RECORD).read_bytes())["files"]
        return {str(name): str(value) for name, value in kept.items() if _plain(str(name))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _plain(name: str) -> bool:
    """Whether a recorded name stays inside the folder."""
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts and path.suffix == ".md"


def _edited(folder: Path, new: dict[str, bytes]) -> list[Path]:
    """Files in the way that are neither what is to be written nor what was installed."""
    before = _recorded(folder)
    if folder.exists() and not folder.is_dir():
        return [folder]
    found = []
    for name, data in new.items():
        path = folder / name
        if not os.path.lexists(path):
            continue
        if not path.is_file():
            raise UsageError(path, "is in the way and is not a file", "Move it away.")
        if _hash(path.read_bytes()) not in (_hash(data), before.get(name)):
            found.append(path)
    return found


def _write(folder: Path, new: dict[str, bytes]) -> list[Written]:
    record = json.dumps({"files": {name: _hash(data) for name, data in new.items()}}, indent=1) + "\n"
    if folder.exists() and not folder.is_dir():
        folder.unlink()
    if not folder.exists():
        _write_whole(folder, {**new, RECORD: record.encode()})
        return [Written(folder / name, "written") for name in new]
    written = []
    before = _recorded(folder)
    for name, data in new.items():
        path = folder / name
        state = "written" if not path.exists() else "unchanged" if path.read_bytes() == data else "replaced"
        if state != "unchanged":
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        written.append(Written(path, state))
    for name in sorted(set(before) - set(new)):  # of an older version, if nobody changed them
        path = folder / name
        if path.is_file() and _hash(path.read_bytes()) == before[name]:
            path.unlink()
            written.append(Written(path, "removed"))
    write_atomically(folder / RECORD, record.encode())
    return written


def _write_whole(folder: Path, files: dict[str, bytes]) -> None:
    """A new folder that appears complete or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".megascope.", dir=folder.parent))
    try:
        temporary.chmod(0o755)
        for name, data in files.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_bytes(data)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _block(text: str) -> tuple[int, int] | None:
    """Where our lines are in an AGENTS.md."""
    begin = text.find(BEGIN)
    end = text.find(END, begin)
    if begin < 0 or end < 0:
        return None
    end += len(END)
    return begin, end + text[end:].startswith("\n")


def _pointer_edited(path: Path) -> bool:
    """Whether our lines are there and are no longer ours. The rest of the file is the user's and stays."""
    if not path.exists():
        return False
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    place = _block(text)
    return place is not None and text[place[0] : place[1]].rstrip("\n") != NOTE.rstrip("\n")


def _write_pointer(path: Path) -> Written:
    if not path.exists():
        write_atomically(path, NOTE.encode())
        return Written(path, "written")
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    place = _block(text)
    if place is None:
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        result = text + gap + NOTE
    else:
        result = text[: place[0]] + NOTE + text[place[1] :]
    if result == text:
        return Written(path, "unchanged")
    # A link to the file of another agent stays one.
    write_atomically(path.resolve(), result.encode("utf-8", "surrogateescape"))
    return Written(path, "replaced")
