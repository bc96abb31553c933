"""How often each bundle of a capture's kernel runs: from the simulator, kept beside the capture."""

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np

from analyzer.cache import write_atomically
from analyzer.errors import MegascopeError

if TYPE_CHECKING:
    from analyzer.capture import Capture
    from analyzer.llo.file_program import FileProgram
    from analyzer.simulate.result import Simulation


def executed_counts(capture: "Capture", program: "FileProgram") -> tuple[np.ndarray | None, str | None]:
    """(int64[B] or None, a note on what the counts rest on or why there are none)."""
    key = _key(capture, program)
    file = capture.cache_dir / f"executed-{key}.npz"
    kept = _load(file, program.bundle_count)
    if kept is not None:
        return kept
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
    note = _note(result)
    _save(file, counts, note)
    return counts, note


def _key(capture: "Capture", program: "FileProgram") -> str:
    from analyzer.cache import code_version

    digest = hashlib.sha256(code_version().encode())
    digest.update(hashlib.sha256(program.data).digest())
    digest.update(repr(sorted(capture.manifest.items(), key=lambda item: item[0])).encode())
    return digest.hexdigest()[:24]


def _note(result: "Simulation") -> str:
    """What the counts rest on, in one line."""
    scenario = result.scenario
    note = f"executed counts are of core 0, scenario {scenario.name or 'unnamed'}"
    assumed = len(scenario.assumed)
    return f"{note}: {assumed} assumed values" if assumed else note


def _load(file: Path, count: int) -> tuple[np.ndarray, str] | None:
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as kept:
            counts, note = kept["counts"], str(kept["note"])
    except (OSError, ValueError, EOFError, KeyError, BadZipFile):
        return None
    return (counts, note) if counts.shape == (count,) and counts.dtype == np.int64 else None


def _save(file: Path, counts: np.ndarray, note: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        packed = io.BytesIO()
        np.savez(packed, counts=counts, note=np.array(note))
        write_atomically(file, packed.getvalue())
    except OSError:
        return  # it will be counted again next time
