"""MS307: loops that fill half of a matrix unit's columns with each product."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from analyzer.findings.base import LOW, Context, Finding, Rule
from analyzer.findings.code import Code, shorter
from analyzer.llo import opcodes
from analyzer.replay import Edit
from analyzer.units import duration

# What the compiler pushes weights of 128 columns with (seen in compiles; `vmatpush1` takes 256).
NARROW = "vmatpush3"
FEW = 4  # products in a turn
SHARE = 0.5  # of a loop's weight pushes


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None or not code.parameters:
        return
    pushes, narrow, products = (_of_family(code, name) for name in ("vmatpush", NARROW, "vmatmul"))
    for loop in code.loops:
        if not context.significant(loop.time_ps):
            break
        inside = code.of_loop(loop)[code.bundle_of]
        few, all_pushes = int((narrow & inside).sum()), int((pushes & inside).sum())
        # Many products in a turn overlap: what follows one is hidden behind the next.
        if int((products & inside).sum()) > FEW or not code.is_innermost(loop):
            continue
        if few < SHARE * all_pushes or not few:
            continue
        cycles, held = code.loop_cycles(loop), code.matrix_cycles(loop)
        time = round(max(cycles - held, 0.0) * loop.iterations * code.cycle_ps)
        gain = round(time / 2)
        saving, basis = context.priced(Edit(shorten=shorter([(code.stretches(loop.first, loop.last), gain)])))
        if not context.significant(gain if saving is None else saving):
            continue
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed with half as many products of twice the width"
            if saving is not None
            else basis,
            confidence=LOW,
            source=code.matrix_source(loop),
            bundles=(loop.first, loop.last),
            count=loop.iterations,
            evidence=(
                f"{few} of {all_pushes} weight pushes are of 128 columns ({NARROW}),"
                f" {loop.iterations:,} iterations",
                f"besides pushing, an iteration takes {cycles - held:.0f} of {cycles:.0f} cycles:"
                f" {duration(time)} in all",
            ),
        )


def _of_family(code: Code, name: str) -> NDArray[np.bool_]:
    """Whether the family of each instruction's opcode begins with a name."""
    return code.with_opcodes(lambda opcode: opcodes.family(opcode).startswith(name))


RULE = Rule(
    identifier="MS307",
    title="Narrow tiles: half of a matrix unit",
    family="MXU",
    sees=(
        "In a loop with a product or two per turn, at least half of the weight pushes are of tiles with 128"
        " columns, half of a matrix unit."
    ),
    costs=(
        "Pushing them takes half as long, but popping results, adding and branching take as long as for 256"
        " columns: twice the cost per column."
    ),
    example="acc[:, :128] += dot(x[8, 256], w[t, 256, 128])  # 128 columns per turn",
    advice="Take 256 columns per product and unit: lay weights out in tiles that wide, or join two tiles.",
    verify="megascope show CAPTURE --opcode 'vmatpush3.*', or compile again and megascope diff",
    doubt=(
        "That vmatpush3 pushes 128 columns was read off compiles, not off documentation. A matrix that has"
        " no more columns (a head of 128) cannot be cut wider; two heads may be joined."
    ),
    look=_look,
)
