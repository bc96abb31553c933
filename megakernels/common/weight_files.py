"""Kernel operands on disk: written unit by unit, resumable, checksummed, and read back from there.

The folder holds one file per operand and core (`core3.w_in.bin`, raw bytes in the operand's layout), files
that are the same for all cores without the number, and `weights.json`. While it is being written it is called
`<folder>.partial`, holds a journal of finished units with their checksums, and can be taken up again where it
stopped. A unit is a piece of work like one operand of one layer; nothing larger is ever in memory.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from megakernels.common.safetensors import CheckpointError
from megakernels.common.tokens import STOP_FILES, TOKENIZER

# To be raised whenever the files, or the tiles in them (common/gemv.py), lie otherwise.
SCHEMA_VERSION = 2
NAME, JOURNAL, PLAN = "weights.json", "journal.jsonl", "plan.json"

_JOURNAL_LOCK = Lock()

# Told how far a conversion is: units done, units in all, the unit at hand.
Progress = Callable[[int, int, str], None]
# What every file of a folder holds: name -> shape and dtype.
type FileShapes = Mapping[str, tuple[tuple[int, ...], Any]]


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of work: file -> bytes from an offset. Bytes of one file come in order and without a gap."""

    name: str
    make: Callable[[], Iterator[tuple[str, int, np.ndarray]]]


def file_name(operand: str, core: int | None) -> str:
    """Of an operand on a core; None for one that is the same on all."""
    return f"{operand}.bin" if core is None else f"core{core}.{operand}.bin"


def packed_files(packed: Mapping[str, np.ndarray], replicated: Container[str]) -> dict[str, np.ndarray]:
    """Operands with a core axis, but for those that are the same on all cores, as the arrays of files."""
    files: dict[str, np.ndarray] = {}
    for name, value in packed.items():
        if name in replicated:
            files[file_name(name, None)] = value
        else:
            files |= {file_name(name, core): share for core, share in enumerate(value)}
    return files


def convert(
    folder: Path,
    described: dict[str, Any],
    files: FileShapes,
    units: Sequence[Unit],
    progress: Progress,
    *,
    jobs: int = 1,
) -> dict[str, Any]:
    """Write the files, or finish writing them; gives the manifest.

    Args:
        folder: Where to.
        described: Of what the weights are, JSON values; work is taken up again only if it is the same.
        files: All files.
        units: All work.
        progress: Told before each unit, or with several jobs after it, and at the end.
        jobs: Units at work at a time, each in a thread: packing is NumPy's, which lets others run.

    Raises:
        CheckpointError: The folder is there already, or an unfinished one is of other weights.
    """
    if folder.exists():
        raise CheckpointError(folder, "is there already", "Choose another folder or remove it.")
    described = {"schema_version": SCHEMA_VERSION, **described}
    partial = folder.with_name(folder.name + ".partial")
    done = _begin(partial, described, files)
    left = [unit for unit in units if unit.name not in done]
    if jobs == 1:
        for number, unit in enumerate(units):
            progress(number, len(units), unit.name)
            if unit.name not in done:
                done[unit.name] = _write(partial, unit)
    else:
        for unit, pieces in _write_side_by_side(partial, left, jobs):
            done[unit.name] = pieces
            progress(len(done), len(units), unit.name)
    progress(len(units), len(units), "done")
    manifest = {
        **described,
        "files": {
            name: {"shape": list(shape), "dtype": dtype.name, "bytes": math.prod(shape) * dtype.itemsize}
            for name, (shape, dtype) in files.items()
        },
        "units": {unit.name: done[unit.name] for unit in units},
    }
    (partial / NAME).write_text(json.dumps(manifest, indent=1) + "\n")
    for name in (JOURNAL, PLAN):
        (partial / name).unlink()
    os.replace(partial, folder)
    return manifest


def _begin(partial: Path, described: dict[str, Any], files: FileShapes) -> dict[str, Any]:
    """Make the folder's files, or find out what of them is finished: unit -> checksums."""
    note = partial / PLAN
    if note.exists():
        if json.loads(note.read_text()) != json.loads(json.dumps(described)):
            raise CheckpointError(
                partial, "was begun with another checkpoint or layout", "Remove it to begin anew."
            )
        return _journal(partial)
    size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in files.values())
    partial.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(partial).free
    if free < size:
        raise CheckpointError(
            partial, f"needs {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free", "Choose another disk."
        )
    for name, (shape, dtype) in files.items():
        with (partial / name).open("wb") as file:
            file.truncate(math.prod(shape) * dtype.itemsize)
    note.write_text(json.dumps(described))
    return {}


def _journal(partial: Path) -> dict[str, Any]:
    done: dict[str, Any] = {}
    path = partial / JOURNAL
    text = path.read_text() if path.exists() else ""
    if text and not text.endswith("\n"):
        with path.open("a") as journal:  # so that a line that was cut off does not swallow the next
            journal.write("\n")
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # a line that was cut off
            continue
        done[entry["unit"]] = entry["pieces"]
    return done


def _write_side_by_side(
    partial: Path, units: Sequence[Unit], jobs: int
) -> Iterator[tuple[Unit, list[dict[str, Any]]]]:
    """Write units in several threads; each as it is finished. The first fault ends the work."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(_write, partial, unit): unit for unit in units}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class _Run:
    """Bytes of one file that a unit has written so far."""

    file: BinaryIO
    offset: int
    size: int
    digest: Any


def _write(partial: Path, unit: Unit) -> list[dict[str, Any]]:
    """Write one unit and note it in the journal once its bytes are on disk."""
    runs: dict[str, _Run] = {}
    with ExitStack() as stack:
        for name, offset, value in unit.make():
            data = np.ascontiguousarray(value).view(np.uint8).reshape(-1)
            if name not in runs:
                file = stack.enter_context((partial / name).open("r+b"))
                file.seek(offset)
                runs[name] = _Run(file, offset, 0, hashlib.sha256())
            run = runs[name]
            if offset != run.offset + run.size:
                raise AssertionError(f"{unit.name} leaves a gap in {name}")
            run.file.write(data.data)
            run.digest.update(data.data)
            run.size += data.nbytes
        for run in runs.values():
            run.file.flush()
            os.fsync(run.file.fileno())
    pieces = [
        {"file": name, "offset": run.offset, "bytes": run.size, "sha256": run.digest.hexdigest()}
        for name, run in runs.items()
    ]
    line = json.dumps({"unit": unit.name, "pieces": pieces}) + "\n"
    with _JOURNAL_LOCK, (partial / JOURNAL).open("a") as journal:
        journal.write(line)
    return pieces


def read_manifest(folder: Path, kernel: str) -> dict[str, Any]:
    """The manifest of a folder of weights.

    Args:
        folder: The folder.
        kernel: Whose weights they should be, for the advice.

    Raises:
        CheckpointError: It is no such folder, one of another version, or its files are not as long as the
            manifest says.
    """
    path = folder / NAME
    if not path.exists():
        raise CheckpointError(folder, f"has no {NAME}", f"Make it with `megascope weights {kernel}`.")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        files = manifest["files"]
    except (ValueError, KeyError):
        raise CheckpointError(path, "not a manifest of weights", "Make the folder again.") from None
    if manifest.get("schema_version") != SCHEMA_VERSION:
        raise CheckpointError(folder, "was made for another version of the kernel", "Make the folder again.")
    for name, about in files.items():
        size = (folder / name).stat().st_size if (folder / name).exists() else None
        if size != about["bytes"]:
            said = "is missing" if size is None else f"has {size} of {about['bytes']} bytes"
            raise CheckpointError(folder / name, said, "Make the folder again.")
    return manifest


def verify(folder: Path, manifest: Mapping[str, Any], progress: Progress) -> None:
    """Compare every unit with its checksum.

    Raises:
        CheckpointError: One differs; it is named.
    """
    for number, (unit, pieces) in enumerate(manifest["units"].items()):
        progress(number, len(manifest["units"]), unit)
        for piece in pieces:
            data = np.memmap(folder / piece["file"], np.uint8, "r", piece["offset"], (piece["bytes"],))
            if hashlib.sha256(data.data).hexdigest() != piece["sha256"]:
                raise CheckpointError(
                    folder / piece["file"], f"{unit} differs from its checksum", "Make the folder again."
                )


def map_files(folder: Path, manifest: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The files' arrays by file name, mapped read-only."""
    return {
        name: np.memmap(folder / name, np.uint8, "r")
        .view(named_dtype(about["dtype"]))
        .reshape(about["shape"])
        for name, about in manifest["files"].items()
    }


def named_dtype(name: str) -> np.dtype[Any]:
    """A dtype by name, those of ml_dtypes included."""
    return np.dtype(getattr(ml_dtypes, name, name))


def copy_tokenizer(checkpoint: Path, folder: Path) -> None:
    """Put the checkpoint's tokenizer, and what says which tokens end a text, beside the weights."""
    for name in (TOKENIZER, *STOP_FILES):
        if (checkpoint / name).exists():
            shutil.copyfile(checkpoint / name, folder / name)
