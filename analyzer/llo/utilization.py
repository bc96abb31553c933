"""The compiler's `final_hlo-static-per-bundle-utilization` file: one row per bundle."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analyzer.errors import InputError
from analyzer.llo.textfile import read_text

# Column names of other versions. libtpu 0.0.52 splits the matrix unit in MATMUL, which is what MXU was,
# and MATPUSH.
OLD_NAMES = {"LOAD": "VLOAD", "STORE": "VSTORE", "MATMUL": "MXU"}
_CURE = "Compile again with the pass label final_hlo-static-per-bundle-utilization, or leave the file out"


@dataclass(frozen=True, slots=True)
class Utilization:
    """columns: names as of today (old files lack VPOP and the spill columns). rows: int16[B, columns]."""

    columns: tuple[str, ...]
    capacity: tuple[int, ...]
    rows: np.ndarray

    def column(self, name: str) -> np.ndarray | None:
        """int16[B] of one column, or None where the file has no such column."""
        return self.rows[:, self.columns.index(name)] if name in self.columns else None


def read_utilization(path: Path) -> Utilization:
    """Read one utilization file, with either column set.

    Raises:
        InputError: it is missing, unreadable, or of another form.
    """
    lines = read_text(path).splitlines()
    if not lines or not lines[0].startswith("== CAP"):
        raise InputError(path, "is not a utilization file (no == CAPACTIY: header)", _CURE)
    try:
        names = [part.strip() for part in re.split(r"[,|]", lines[1]) if part.strip()]
        capacity = tuple(int(part) for part in lines[2].replace("|", " ").split())
        start = next(i for i, line in enumerate(lines) if line.startswith("== UTIL")) + 1
        body = " ".join(lines[start:]).replace("|", " ").split()
        flat = np.array(body, dtype=np.int16)
        rows = flat.reshape(-1, len(names))
    except (IndexError, StopIteration, ValueError, OverflowError) as error:
        raise InputError(path, f"has a row or header of another form ({error})", _CURE) from error
    return Utilization(tuple(OLD_NAMES.get(name, name) for name in names), capacity, rows)


def utilization_file(bundles: Path) -> Path | None:
    """The utilization file of the same program and compile as a final_bundles file, or None."""
    stem = re.sub(r"-?\d+-final_bundles\.txt$", "", bundles.name)
    pattern = re.compile(re.escape(stem) + r"-\d+-final_hlo-static-per-bundle-utilization\.txt$")
    matches = (
        [f for f in bundles.parent.iterdir() if pattern.match(f.name)] if bundles.parent.is_dir() else []
    )
    return min(matches) if matches else None
