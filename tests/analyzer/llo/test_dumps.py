"""jax's own kernels and plain XLA programs, compiled now for four chips: nothing may be lost.

Minutes per chip. What must hold on every program of every dump is in `check_program`; it prints how much
it looked at, so that a run that compiled nothing cannot pass for one that found nothing.
"""

import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from dump_kernels import KERNELS, dump
from llo_helpers import CHIPS, bundles_files

from analyzer.llo.occupancy import COLUMNS, occupancy
from analyzer.llo.printer import normalise, print_instruction
from analyzer.llo.reader import read_program
from analyzer.llo.schedule import read_schedule_analysis
from analyzer.llo.utilization import read_utilization, utilization_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
MAX_NOT_UNDERSTOOD = 0.001
MAX_DIFFERENT = 0.001
OURS = frozenset(("gather_scatter", "elementwise", "narrow_types", "spilling"))
GENERATION = {"tpu7x": 7, "v6e": 6, "v5p": 5, "v5e": 5}


def check_program(file: Path, chip: str, seen: Counter[str]) -> None:
    """Everything that must hold for one program; adds what was looked at to `seen`."""
    program = read_program(file)
    assert program.generation == GENERATION[chip]
    assert program.dangling == []
    assert program.columns.slow_windows == 0
    seen["programs"] += 1
    seen["bundles"] += program.bundle_count
    seen["instructions"] += len(program.instruction_opcode)
    seen["not understood"] += program.not_understood.count
    for index in range(len(program.instruction_opcode)):
        instruction = program.instruction(index)
        assert print_instruction(instruction) == normalise(instruction.text)
    stem = re.sub(r"-\d+-final_bundles\.txt$", "", file.name)
    for schedule in file.parent.iterdir():
        if schedule.name.startswith(f"{stem}-") and "schedule-analysis_final" in schedule.name:
            if schedule.stat().st_size == 0:  # of a program without a bundle that counts
                continue
            said = read_schedule_analysis(schedule)
            assert (said.total, said.empty) == (program.bundle_count, int(program.empty.sum()))
            seen["schedules"] += 1
    utilization = utilization_file(file)
    assert utilization is not None
    theirs, ours = read_utilization(utilization), occupancy(program)
    for number, column in enumerate(COLUMNS):
        seen[f"{column} different"] += int((theirs.column(column) != ours[:, number]).sum())
    assert np.array_equal(theirs.column("VLOAD:FILL"), ours[:, COLUMNS.index("VLOAD:FILL")])
    assert np.array_equal(theirs.column("VSTORE:SPILL"), ours[:, COLUMNS.index("VSTORE:SPILL")])


@pytest.mark.parametrize(
    ("chip", "annotated"), [*((chip, True) for chip in CHIPS), ("tpu7x", False), ("v5p", False)]
)
def test_nothing_is_lost(chip, annotated, tmp_path):
    seen: Counter[str] = Counter()
    failed = []
    kernels = list(KERNELS) if annotated else ["flash_attention", "matmul", "megablox", "gather_scatter"]
    if chip in ("v6e", "v5p"):  # the longest compile; two chips of different kind have it
        kernels = [kernel for kernel in kernels if kernel != "xla_mixed"]
    for kernel in kernels:
        folder = dump(tmp_path, chip, kernel, regions=annotated, annotated=annotated)
        if folder is None:
            failed.append(kernel)
            continue
        before = seen["not understood"]
        for file in bundles_files(folder):
            check_program(file, chip, seen)
        if kernel in OURS:
            assert seen["not understood"] == before, kernel
    print(chip, dict(seen), "did not compile:", failed, file=sys.stderr)
    assert len(failed) <= len(kernels) // 5
    assert seen["instructions"] > 1000 * len(kernels)
    assert seen["not understood"] < MAX_NOT_UNDERSTOOD * seen["instructions"]
    for column in COLUMNS:
        assert seen[f"{column} different"] <= MAX_DIFFERENT * seen["bundles"], column
