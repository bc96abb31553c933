"""HBM bytes of a kernel call that a trace proves, for bandwidth "counted / measured".

A trace has no copies in it. For a kernel with a grid it has the stages that start them, once per copy, and
the sizes of the copies stand in the program that the trace carries: bytes = executions of a stage x size of
its copy. Where that cannot be matched the bytes are unknown; then only the operands' sizes are given.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.measured.kernel import Kernel, Runs
from analyzer.measured.proto import TracedProgram
from analyzer.measured.scopes import Scopes

_STARTS = ("ep_initialize", "ep_copy_in", "ep_copy_out")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one call of the kernel.

    Attributes:
        read_bytes, write_bytes: None if not proven.
        basis: how they were counted, or why they are unknown.
        copies: number of copies, None if unknown.
        operand_bytes: size of all operands and results in HBM: what moves if each moves once.
    """

    read_bytes: int | None
    write_bytes: int | None
    basis: str
    copies: int | None
    operand_bytes: int | None


def count_traffic(
    scopes: Scopes, calls: Runs, program: TracedProgram | None, kernel: Kernel
) -> list[Traffic]:
    """The traffic of each call."""
    shapes = (*kernel.operands, *kernel.results)
    whole = sum(shape.bytes for shape in shapes if shape.hbm) if shapes else None
    rows = scopes.rows(lambda name: name.startswith(_STARTS))
    bounds = np.searchsorted(
        scopes.start_ps[rows], np.column_stack((calls.start_ps, calls.start_ps + calls.duration_ps))
    )
    return [_one(scopes, rows[first:last], program, whole) for first, last in bounds.tolist()]


def _one(
    scopes: Scopes, rows: NDArray[np.int64], program: TracedProgram | None, whole: int | None
) -> Traffic:
    stages = [
        (site, scopes.names[name])
        for site, name in zip(scopes.site[rows].tolist(), scopes.name[rows].tolist(), strict=True)
    ]
    if not stages:
        return Traffic(None, None, "unknown: the trace shows no copies of this kernel", None, whole)
    if program is None:
        return Traffic(None, None, "unknown: the trace does not carry the program", None, whole)
    if not program.copies:
        return Traffic(
            None, None, "unknown: the program in the trace names no copies (bounds checks off)", None, whole
        )
    executed = Counter(stages)  # keeps the order of first execution, which is that of the program
    names = [name for _, name in executed]
    directions = ["out" if name.startswith("ep_copy_out") else "in" for name in names]
    proven = [("in" if site.source == "hbm" else "out") for site in program.copies]
    if directions != proven:
        fault = f"unknown: {len(program.copies)} copies in the program do not match {len(names)} stages"
        return Traffic(None, None, fault, None, whole)
    read = write = 0
    for (_, count), site in zip(executed.items(), program.copies, strict=True):
        if site.source == "hbm":
            read += count * site.bytes
        else:
            write += count * site.bytes
    basis = (
        f"{len(stages)} executions of {len(names)} stages x the sizes of their copies in the traced program"
    )
    return Traffic(read, write, basis, len(stages), whole)
