"""The manifest of a capture: reading it, and checking the capture's files against it (docs/capture.md)."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from analyzer.errors import InputError

SCHEMA_VERSION = 1
KINDS = ("compile", "record", "interpret")
# Fields that readers walk through: without them, or with others in their place, the capture is damaged.
_PARTS: dict[str, type] = {"operands": list, "facts": dict, "files": dict, "sources": list, "notes": list}
# Facts: one that cannot be is unknown, and a note says so. Of numbers the largest that can be is given: a
# slice has up to some ten thousand cores.
_TEXTS = ("kernel", "program", "model", "chip", "topology", "probe_level")
_NUMBERS = {"cores": 1 << 16, "batch": 1 << 20}
_LONGEST_TEXT = 300
_CORES_PER_CHIP = 2  # at most
_SHAPE = re.compile(r"\d+(?:x\d+)*$")


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and check `manifest.json` of the capture folder `path`.

    Raises:
        InputError: not JSON, no manifest of ours, of a newer version, or with paths that leave the capture.
    """
    file = path / "manifest.json"
    again = "Compile again, or point at its dump/ folder to read it without the manifest."
    try:
        manifest = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(file, f"is damaged, not JSON ({error})", again) from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("schema_version"), int):
        raise InputError(file, "is not a manifest of a capture (no schema_version)", again)
    if manifest["schema_version"] > SCHEMA_VERSION:
        raise InputError(
            file,
            f"has schema version {manifest['schema_version']}; this megascope reads up to {SCHEMA_VERSION}",
            "Update megascope.",
        )
    if manifest.get("kind") not in KINDS:
        raise InputError(file, f"has the unknown kind {manifest.get('kind')!r}", again)
    for name, kind in _PARTS.items():
        value = manifest.setdefault(name, kind())
        if not isinstance(value, kind):
            raise InputError(file, f"is damaged: {name} is a {type(value).__name__}", again)
    manifest["notes"] = [*manifest["notes"], *_take_out_what_cannot_be(manifest)]
    for row in [*manifest["operands"], *manifest["sources"]]:
        if not isinstance(row, dict):
            raise InputError(file, f"is damaged: an entry is a {type(row).__name__}", again)
    for name in [*manifest["files"], *(r.get("file") for r in manifest["sources"])]:
        file_inside(path, name)
    return manifest


def _take_out_what_cannot_be(manifest: dict[str, Any]) -> list[str]:
    """Set facts to None that no capture can have, and say which."""
    wrong = []
    for name in _TEXTS:
        value = manifest.setdefault(name, None)
        if value is not None and (
            not isinstance(value, str) or len(value) > _LONGEST_TEXT or not value.isprintable()
        ):
            wrong.append(name)
    for name, most in _NUMBERS.items():
        value = manifest.setdefault(name, None)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            wrong.append(name)
    notes = []
    for name in wrong:
        said = repr(manifest[name])
        notes.append(
            f"the manifest's {name} is {said[:60]}{'...' if len(said) > 60 else ''}, which cannot be: unknown"
        )
        manifest[name] = None
    chips = _chips(manifest["topology"])
    if manifest["cores"] and chips and manifest["cores"] > chips * _CORES_PER_CHIP:
        notes.append(
            f"the manifest's cores is {manifest['cores']}, more than {manifest['topology']} has: unknown"
        )
        manifest["cores"] = None
    return notes


def _chips(topology: str | None) -> int | None:
    """Chips of `tpu7x:2x2x1`; None where the text is of another form."""
    found = _SHAPE.search(topology or "")
    return math.prod(int(n) for n in found[0].split("x")) if found and len(found[0]) < 30 else None


def file_inside(root: Path, name: object) -> Path:
    """`root/name`, refused where it leaves `root` (by `..`, an absolute path or a symbolic link)."""
    pure = PurePosixPath(name) if isinstance(name, str) else None
    path = root / str(pure)
    if (
        pure is None
        or pure.is_absolute()
        or ".." in pure.parts
        or "\0" in str(pure)
        or not path.resolve().is_relative_to(root.resolve())
    ):
        raise InputError(
            root / "manifest.json",
            f"names a file outside the capture ({name!r})",
            "It is refused: do not trust it.",
        )
    return path


def compare_files(root: Path, files: Mapping[str, Any]) -> list[str]:
    """Notes on files that are gone or differ from what the manifest says of them."""
    missing, changed = [], []
    for name, said in files.items():
        path = file_inside(root, name)
        if not path.is_file():
            missing.append(name)
        elif isinstance(said, Mapping) and not _same(path, said):
            changed.append(name)
    notes = []
    if missing:
        notes.append(f"missing from the capture: {_list(missing)}")
    if changed:
        notes.append(
            f"changed since the capture was written: {_list(changed)}; the results are of the changed files"
        )
    return notes


def _same(path: Path, said: Mapping[str, Any]) -> bool:
    if said.get("bytes") is not None and said["bytes"] != path.stat().st_size:
        return False
    with path.open("rb") as stream:
        return said.get("sha256") in (None, hashlib.file_digest(stream, "sha256").hexdigest())


def _list(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
