"""How often each bundle of a capture's kernel runs: from the simulator, kept beside the capture."""

import hashlib
import io
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analyzer.errors import MegascopeError

if TYPE_CHECKING:
    from analyzer.capture import Capture
    from analyzer.llo.file_program import FileProgram


def executed_counts(capture: "Capture", program: "FileProgram") -> tuple[np.ndarray | None, str | None]:
    """(int64[B] or None, a note on what the counts rest on or why there are none)."""
    key = _key(capture, program)
    file = capture.cache_dir / f"executed-{key}.npy"
    kept = _load(file, program.bundle_count)
    if kept is not None:
        return kept, None
    chip = capture.manifest.get("chip")
    if chip is None:
        return None, "the chip is not known (--chip), so the program was not executed"
    from analyzer.machine import load_machine
    from analyzer.simulate import simulate

    try:
        result = simulate(program, load_machine(str(chip)), facts=capture.manifest)
    except MegascopeError as error:
        return None, f"the program could not be executed: {error}"
    counts = np.asarray(result.executed, dtype=np.int64)
    if len(counts) != program.bundle_count:
        return None, "the simulator counted another number of bundles"
    _save(file, counts)
    return counts, None


def _key(capture: "Capture", program: "FileProgram") -> str:
    from analyzer.cache import code_version

    digest = hashlib.sha256(code_version().encode())
    digest.update(hashlib.sha256(program.data).digest())
    digest.update(repr(sorted(capture.manifest.items(), key=lambda item: item[0])).encode())
    return digest.hexdigest()[:24]


def _load(file: Path, count: int) -> np.ndarray | None:
    try:
        found = np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == (count,) and found.dtype == np.int64 else None


def _save(file: Path, counts: np.ndarray) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".executed-")
        with os.fdopen(handle, "wb") as stream:
            np.save(stream, counts)
        os.replace(name, file)
    except OSError:
        return  # it will be counted again next time
