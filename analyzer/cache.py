"""Keeps what an analysis worked out beside the capture, and notices when it no longer holds.

`analysis.json` and the tables (`timeline.parquet`, `residency.parquet`, `stories.parquet`) lie in the
capture's cache folder; variants (what-ifs) in folders below it. The key is a hash of the input files, the
code of the analyzer, the machine model and the scenario. A checksum over each file catches damage: then
everything is worked out again.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.errors import MegascopeError

if TYPE_CHECKING:
    import pandas as pd

    from analyzer.capture import Capture
    from analyzer.machine.model import Machine

VARIANTS_KEPT = 8
READ_BESIDE = ("*trace-markers.txt", "*vmem_report.html")


@cache
def code_version() -> str:
    """Hash of the analyzer's own source and machine files."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for file in sorted([*folder.rglob("*.py"), *folder.rglob("*.toml")]):
        digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def key_of(capture: "Capture", machine: "Machine", scenario: Mapping[str, str]) -> str:
    """Hash of everything that the result depends on."""
    digest = hashlib.sha256(code_version().encode())
    program = capture.kernel_program()
    # Of a dump with every pass (gigabytes) only what is read: the bundles and the small files beside them.
    folder = program.bundles.parent
    beside = [file for pattern in READ_BESIDE for file in folder.glob(pattern)]
    for file in sorted({program.bundles, *beside}):
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    parameters = {name: p.value for name, p in sorted(machine.parameters.items())}
    facts = [capture.manifest, capture.kind, machine.chip, parameters, dict(scenario), capture.notes]
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def key_of_trace(capture: "Capture") -> str:
    """The same for a trace: its files, and the bundles it may be joined with. Traces are large: size and time
    of change stand for their content."""
    assert capture.trace is not None
    digest = hashlib.sha256(code_version().encode())
    files = [capture.trace] if capture.trace.is_file() else sorted(capture.trace.rglob("*.xplane.pb"))
    files += [program.bundles for program in capture.programs()]
    for file in files:
        state = file.stat()
        digest.update(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    digest.update(json.dumps([capture.manifest, capture.kind], sort_keys=True, default=str).encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Store:
    """The place of one analysis on disk."""

    capture: "Capture"
    key: str
    variant: bool

    def _folder(self) -> Path:
        folder = self.capture.cache_dir
        return folder / "variants" / self.key[:16] if self.variant else folder

    def load(self) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """Report and packed tables by name; None if there are none, or of other inputs, or damaged."""
        try:
            folder = self._folder()
            kept = json.loads((folder / "analysis.json").read_bytes())
            if kept["key"] != self.key or kept["checksum"] != _checksum(kept["report"]):
                return None
            tables = {}
            for name, expected in kept["tables"].items():
                tables[name] = (folder / f"{name}.parquet").read_bytes()
                if expected != hashlib.sha256(tables[name]).hexdigest():
                    return None
            return kept["report"], tables
        except (OSError, ValueError, KeyError, TypeError, MegascopeError):
            return None

    def save(self, report: dict[str, Any], frames: Mapping[str, "pd.DataFrame"]) -> str | None:
        """Keep a result; a note if the folder cannot be written (the result stands all the same).

        frames: tables by name; each becomes a file.
        """
        try:
            folder = self._folder()
            folder.mkdir(parents=True, exist_ok=True)
            tables = {name: packed(frame) for name, frame in frames.items()}
            kept = {
                "key": self.key,
                "checksum": _checksum(report),
                "tables": {name: hashlib.sha256(table).hexdigest() for name, table in tables.items()},
                "report": report,
            }
            for name, table in tables.items():
                write_atomically(folder / f"{name}.parquet", table)
            write_atomically(folder / "analysis.json", json.dumps(kept, allow_nan=False).encode())
            if self.variant:
                _prune(folder.parent)
        except (OSError, MegascopeError) as error:
            return f"the result was not kept for next time: {error}"
        return None


def packed(frame: "pd.DataFrame") -> bytes:
    """A table as the bytes of a parquet file."""
    table = frame.to_parquet(index=False)
    assert isinstance(table, bytes)
    return table


def unpack(table: bytes, columns: Mapping[str, str]) -> "pd.DataFrame":
    """The table kept as these bytes; columns: its columns with their dtypes.

    Read without threads: they gain nothing at this size, and a thread that has not wound down when the
    interpreter exits takes the process down with it.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    from analyzer import timeline

    read = ParquetFile(pa.BufferReader(table), pre_buffer=False).read(use_threads=False)
    return timeline.conform(read.to_pandas(use_threads=False), columns)


def _checksum(report: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(report, sort_keys=True).encode()).hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part.

    Its mode is what the umask leaves, as of a file that any other program writes. The folder must be there.

    Raises:
        OSError: it cannot be written; the error names it.
    """
    temporary = path.with_name(f".{path.name[:60]}.{secrets.token_hex(6)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # a write that fails does not tell which file it was
            error.filename = str(path)
        raise


def _prune(variants: Path) -> None:
    """Drop the oldest variants beyond the number kept."""
    folders = sorted((p for p in variants.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
    for folder in folders[:-VARIANTS_KEPT]:
        shutil.rmtree(folder, ignore_errors=True)
