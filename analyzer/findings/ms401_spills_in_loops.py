"""MS401: registers spilled to memory and filled again inside loops."""

from collections.abc import Iterator

import numpy as np

from analyzer.findings.base import LOW, Context, Finding, Rule
from analyzer.findings.code import Code
from analyzer.replay import Edit
from analyzer.units import duration


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None or not code.program.spills:
        return
    spilled = code.mask(code.program.spills)
    holding = np.zeros(code.program.bundle_count, dtype=bool)
    holding[code.bundle_of[spilled]] = True
    only = code.only(spilled)
    for loop in code.loops:
        mine = np.zeros(code.program.bundle_count, dtype=bool)
        mine[loop.own] = True
        time = code.time_ps(holding & mine)
        if not context.significant(time):
            continue
        most, basis = context.priced(Edit(shorten=code.without(holding & mine)))
        if most is not None and not context.significant(most):
            continue  # hidden behind HBM or messages
        gone = code.time_ps(only & mine)
        saving, _ = context.priced(Edit(shorten=code.without(only & mine)))
        per_iteration = int(spilled[np.isin(code.bundle_of, loop.own)].sum())
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving if saving and context.significant(saving) else None,
            saving_basis="replayed without the bundles that hold only spills and fills, at most"
            if saving and context.significant(saving)
            else basis
            if saving is None
            else "not estimated: the spills ride in bundles that do other work",
            confidence=LOW,
            source=loop.source,
            bundles=(loop.first, loop.last),
            count=loop.iterations,
            evidence=(
                f"{per_iteration} spills and fills in the loop, {loop.iterations:,} iterations",
                f"bundles with spills issue for {duration(time)} of the step, those with nothing else for"
                f" {duration(gone)}",
                _registers(code),
            ),
        )


def _registers(code: Code) -> str:
    return f"{len(code.program.spills)} spill instructions in the whole program"


RULE = Rule(
    identifier="MS401",
    title="Spills and fills inside a loop",
    family="Code",
    sees="Loads and stores of spill slots in bundles of a loop that runs often.",
    costs="They take load and store slots, and where they stand alone they take whole bundles.",
    example="acc = [zeros() for _ in range(80)]  # 80 live vector registers and more",
    advice="Keep fewer values live: smaller blocks, fewer accumulators, shorter unrolling.",
    verify="megascope show CAPTURE --format json, units VLOAD:FILL and VSTORE:SPILL",
    doubt="Most spills share a bundle with useful work and cost nothing; only their own bundles are priced.",
    look=_look,
)
