"""MS302: a loop that uses one matrix unit much more than the other."""

from collections.abc import Iterator

import numpy as np

from analyzer import intervals
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.findings.code import shorter
from analyzer.llo import opcodes
from analyzer.replay import Edit

RATIO = 1.5


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None:
        return
    units = [
        opcodes.unit_index(opcode) if opcode.startswith(("vmat", "vdwg", "vlgmr")) else None
        for opcode in code.program.opcodes
    ]
    used = [
        np.bincount(
            code.bundle_of[np.array([u == unit for u in units], dtype=bool)[code.program.instruction_opcode]],
            minlength=code.program.bundle_count,
        )
        for unit in (0, 1)
    ]
    for loop in code.loops:
        counts = [int((one[loop.own] * code.executed[loop.own]).sum()) for one in used]
        busiest, idlest = max(counts), min(counts)
        if busiest == 0 or busiest < RATIO * max(idlest, 1):
            continue
        stretch = code.stretches(loop.first, loop.last)
        if code.is_innermost(loop):
            when = intervals.intersection(stretch, context.core.mxu)
            time = intervals.measure(when)
            edit = Edit(shorten=((when, sum(counts) / 2 / busiest),))
        else:  # its spans hold those of the loops inside it: only what its own instructions take is known
            held = code.matrix_held(loop)
            time, gain = (
                round(cycles * loop.iterations * code.cycle_ps)
                for cycles in (max(held), max(held) - sum(held) / len(held))
            )
            edit = Edit(shorten=shorter([(stretch, gain)]))
        if not context.significant(time):
            continue
        saving, basis = context.priced(edit)
        if saving is not None and not context.significant(saving):
            continue
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed with matrix work shared evenly, at most" if saving is not None else basis,
            confidence=MEDIUM,
            source=code.matrix_source(loop),
            bundles=(loop.first, loop.last),
            count=loop.iterations,
            evidence=(
                f"matrix instructions executed in this loop: mxu0 {counts[0]:,}, mxu1 {counts[1]:,}",
                f"{loop.iterations:,} iterations",
            ),
        )


RULE = Rule(
    identifier="MS302",
    title="One matrix unit idle",
    family="MXU",
    sees="In a loop, one of the two matrix units gets at least 1.5 times the instructions of the other.",
    costs=(
        "Weight pushes and products of the busier unit take the time of the loop; the other could share it."
    ),
    example="acc += dot(x[8, 256], w[256, 256])  # one tile of 256 columns per iteration",
    advice="Work on two independent tiles (or 512 columns) per iteration, so that both units have work.",
    verify="megascope show CAPTURE --format json, field units, or compile again and megascope diff",
    doubt="The loop may be bound by something else, such as the bytes it waits for.",
    look=_look,
)
