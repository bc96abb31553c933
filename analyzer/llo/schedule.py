"""`schedule-analysis_final_bundles`: the compiler's own counts of a program's bundles."""

import re
from dataclasses import dataclass
from pathlib import Path

from analyzer.llo.textfile import read_text, wrong_form

_TOTAL = re.compile(r"total scheduled bundles:\s*(\d+)")
_EMPTY = re.compile(r"^\s*empty scheduled bundles:\s*(\d+)", re.MULTILINE)
_FULL = re.compile(r"non empty scheduled bundles:\s*(\d+)")
_HLO = re.compile(r"^\s*([\d.]+) scheduled bundles \(\s*[\d.]+%\): (<no hlo>|%?[^\s=]+)", re.MULTILINE)
_OPCODE = re.compile(
    r"^\s*\[opcode\]\s+(\d+(?:\.\d+)?) scheduled bundles \(\s*[\d.]+%\): (\S+)\s+\((\d+) instances",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class ScheduleAnalysis:
    """Bundles in all, empty and not; shares by HLO instruction and by HLO opcode.

    by_hlo: bundles per HLO instruction (a bundle shared by two counts half for each).
    by_opcode: HLO opcode -> (bundles, instances).
    """

    total: int
    empty: int
    non_empty: int
    by_hlo: dict[str, float]
    by_opcode: dict[str, tuple[float, int]]


def read_schedule_analysis(path: Path) -> ScheduleAnalysis:
    """Read one schedule-analysis file.

    Raises:
        InputError: it is missing, unreadable, or of another form.
    """
    text = read_text(path)
    total, empty, full = _TOTAL.search(text), _EMPTY.search(text), _FULL.search(text)
    if total is None or empty is None or full is None:
        raise wrong_form(path, "schedule analysis", "final_bundles")
    return ScheduleAnalysis(
        int(total[1]),
        int(empty[1]),
        int(full[1]),
        {name.lstrip("%"): float(bundles) for bundles, name in _HLO.findall(text)},
        {name: (float(bundles), int(count)) for bundles, name, count in _OPCODE.findall(text)},
    )
