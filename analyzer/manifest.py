"""The manifest of a capture: reading it, and checking the capture's files against it (docs/capture.md)."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from analyzer.errors import InputError

SCHEMA_VERSION = 1
KINDS = ("compile", "record", "interpret")
# Manifest fields that readers rely on, and the types they may have.
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "kernel": (str, type(None)),
    "program": (str, type(None)),
    "chip": (str, type(None)),
    "topology": (str, type(None)),
    "cores": (int, type(None)),
    "batch": (int, type(None)),
    "probe_level": (str, type(None)),
    "operands": list,
    "facts": dict,
    "files": dict,
    "sources": list,
    "notes": list,
}


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
    for name, types in _FIELDS.items():
        default = types() if isinstance(types, type) else None
        value = manifest.setdefault(name, default)
        if not isinstance(value, types) or isinstance(value, bool):
            raise InputError(file, f"is damaged: {name} is a {type(value).__name__}", again)
        if isinstance(value, int) and value < 1:
            raise InputError(file, f"is damaged: {name} is {value}", again)
    for row in [*manifest["operands"], *manifest["sources"]]:
        if not isinstance(row, dict):
            raise InputError(file, f"is damaged: an entry is a {type(row).__name__}", again)
    for name in [*manifest["files"], *(r.get("file") for r in manifest["sources"])]:
        file_inside(path, name)
    return manifest


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
