"""Writes the manifest of a capture: everything about a compile that the dump itself does not say."""

import datetime
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.cache import write_atomically
from analyzer.dump import DumpProgram, choose_kernel, find_programs
from analyzer.dump_facts import describe_operands, read_module, silent_copies
from analyzer.manifest import SCHEMA_VERSION

if TYPE_CHECKING:
    from profiler.compile import CompileRequest

_SOURCE_LIMIT = 2 << 20
_LOCATION = re.compile(rb'loc\("([^"]+)":\d+')


def compile_manifest(
    request: "CompileRequest", capture: Path, result: Mapping[str, Any], flags: list[str]
) -> dict[str, Any]:
    """The manifest of a compile, but for the checksums, which `write_manifest` adds.

    Args:
        request: What was asked.
        capture: The capture's folder, dump and HLO in place; the kernel's source is copied into it.
        result: What the compile process reported.
        flags: libtpu's flags as given.
    """
    facts = dict(result.get("facts") or {})
    choice = choose_kernel(find_programs(capture / "dump"))
    program = choice.program
    hlo = program.companions.get("TLP-hlo")
    module = read_module(hlo) if hlo else None
    operands = describe_operands(program.bundles, program.name, module, facts, result.get("arguments") or [])
    notes = [*choice.notes, *silent_copies(program.bundles, operands)]
    sources = copy_sources(capture, program, result.get("sources") or [])
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "compile",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kernel": result["name"],
        "target": request.target,
        "program": program.name,
        "model": facts.get("model"),
        "batch": facts.get("batch"),
        "context": facts.get("context"),
        "chip": request.topology.chip,
        "topology": request.topology.name,
        "cores": _cores(result),
        "device_kind": result.get("device_kind"),
        "mesh_axes": result.get("mesh_axes"),
        "probe_level": request.level,
        "options": dict(request.options),
        "versions": dict(result.get("versions") or {}),
        "flags": flags,
        "extra_flags": list(request.extra_flags),
        "git": git_state([Path(s["path"]) for s in sources if s["loaded"]]),
        "operands": operands,
        "arguments": result.get("arguments"),
        "scenario": facts.get("scenario"),
        "facts": facts,
        "exact_source_lines": bool(result.get("exact_source_lines")),
        "copy_names": result.get("copy_names") or [],
        "seconds": {k: result.get(f"{k}_seconds") for k in ("trace", "compile", "total")},
        "sources": sources,
        "notes": notes,
    }


def write_manifest(capture: Path, manifest: Mapping[str, Any]) -> None:
    """Write `manifest.json` with the checksum of every other file of the capture."""
    files = {
        path.relative_to(capture).as_posix(): {"sha256": sha256(path), "bytes": path.stat().st_size}
        for path in sorted(capture.rglob("*"))
        if path.is_file()
        and path != capture / "manifest.json"
        and ".cache" not in path.relative_to(capture).parts
    }
    _replace_json(capture / "manifest.json", {**manifest, "files": files})


def add_to_manifest(capture: Path, **fields: Any) -> dict[str, Any]:
    """Set fields of a manifest that is already written; returns the new manifest."""
    path = capture / "manifest.json"
    manifest: dict[str, Any] = json.loads(path.read_text()) | fields
    _replace_json(path, manifest)
    return manifest


def _replace_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())


def sha256(path: Path) -> str:
    """Checksum of a file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def copy_sources(capture: Path, program: DumpProgram, loaded: list[str]) -> list[dict[str, Any]]:
    """Copy the kernel's source into `source/`, so that reports can show it after it was edited.

    Args:
        capture: The capture's folder.
        program: The program; files that its bundles name are copied, but for those of installed packages.
        loaded: Files of the kernel that the compile process had loaded.
    """
    named = {m.decode(errors="replace") for m in set(_LOCATION.findall(program.bundles.read_bytes()))}
    wanted = sorted(
        set(loaded) | {n for n in named if not {"site-packages", "dist-packages"} & set(Path(n).parts)}
    )
    rows = []
    for number, name in enumerate(wanted):
        path = Path(name)
        if not path.is_file() or path.stat().st_size > _SOURCE_LIMIT:
            continue
        stored = Path("source", f"{number:02d}-{path.name}")
        (capture / "source").mkdir(exist_ok=True)
        shutil.copyfile(path, capture / stored)
        rows.append(
            {
                "path": name,
                "file": stored.as_posix(),
                "sha256": sha256(path),
                "loaded": name in loaded,
                "in_bundles": name in named,
            }
        )
    return rows


def git_state(files: list[Path]) -> dict[str, Any] | None:
    """Commit of the repository that holds the kernel's source, and which of its files differ from it.

    None where there is no git, or the files are in no repository.
    """
    for folder in dict.fromkeys(f.parent for f in files):
        top = _git(folder, "rev-parse", "--show-toplevel")
        commit = _git(folder, "rev-parse", "HEAD")
        if top and commit:
            inside = [str(f) for f in files if f.is_relative_to(top)]
            changed = _git(Path(top), "status", "--porcelain", "--", *inside) or ""
            return {
                "commit": commit,
                "dirty": bool(changed),
                "changed": [c[3:] for c in changed.splitlines()],
            }
    return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def _cores(result: Mapping[str, Any]) -> int:
    cores = 1
    for size in (result.get("mesh_axes") or {}).values():
        cores *= size
    return cores
