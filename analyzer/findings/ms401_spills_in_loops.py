"""MS401: registers spilled to memory and filled again inside loops.

Vector registers spill to VMEM, scalar registers to SMEM. The two have different causes and cures and take
different issue slots, so each gets findings of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.findings.base import LOW, Context, Finding, Rule
from analyzer.findings.code import Code, CodeLoop
from analyzer.llo.program import Unit
from analyzer.replay import Edit
from analyzer.units import duration


@dataclass(frozen=True, slots=True)
class _Kind:
    """Spills of one kind of register: what the finding says of them."""

    title: str
    noun: str
    slots: str
    advice: str
    verify: str


VECTOR = _Kind(
    title="Vector spills and fills inside a loop",
    noun="vector",
    slots="VMEM",
    advice="Keep fewer values live: smaller blocks, fewer accumulators, shorter unrolling.",
    verify="megascope show CAPTURE --format json, units VLOAD:FILL and VSTORE:SPILL",
)
SCALAR = _Kind(
    title="Scalar spills and fills inside a loop",
    noun="scalar",
    slots="SMEM",
    advice=(
        "Carry fewer numbers through the loop: addresses, counters and conditions of copies are scalars."
        " Index a table in SMEM, fold two counters into one, or compute a condition where it is used."
    ),
    verify="megascope show CAPTURE --format json, sst and sld of [smem:[#allocation..._spill]]",
)


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None or not code.program.spills:
        return
    spilled = code.mask(code.program.spills)
    vector = spilled & code.on_units(Unit.VLOAD, Unit.VSTORE)
    by_kind = ((VECTOR, vector), (SCALAR, spilled & ~vector))
    for loop in code.loops:
        for kind, mine in by_kind:
            found = _of_kind(context, rule, loop, (kind, mine))
            if found is not None:
                yield found


def _of_kind(
    context: Context, rule: Rule, loop: CodeLoop, spills: tuple[_Kind, NDArray[np.bool_]]
) -> Finding | None:
    """The finding about spills of one kind in one loop, if they matter."""
    code = context.code
    kind, spilled = spills
    if code is None or not spilled.any():
        return None
    mine = code.of_loop(loop)
    holding = np.zeros(code.program.bundle_count, dtype=bool)
    holding[code.bundle_of[spilled]] = True
    time = code.time_ps(holding & mine)
    if not context.significant(time):
        return None
    hidden, _ = context.priced(Edit(shorten=code.without(holding & mine)))
    if hidden is not None and not context.significant(hidden):
        return None  # hidden behind HBM or messages
    only = code.only(spilled) & mine
    # What the loop would be without them no bundle tells: the compiler would move values, or order its work
    # anew. On planted pairs bundles of only spills were 30 to 40 % more than what was gained.
    gain, _ = context.priced(Edit(shorten=code.without(only)))
    if gain is not None and not context.significant(gain):
        basis = "not estimated: the spills ride in bundles that do other work"
    else:
        most = "" if gain is None else f"; without the bundles of only spills {duration(gain)} less, at most"
        basis = f"not estimated: the compiler would order the loop anew{most}"
    return rule.finding(
        context,
        title=kind.title,
        advice=kind.advice,
        verify=kind.verify.replace("CAPTURE", context.target),
        time_ps=time,
        saving_ps=None,
        saving_basis=basis,
        confidence=LOW,
        source=loop.source,
        bundles=(loop.first, loop.last),
        count=loop.iterations,
        evidence=(
            f"{int((spilled & mine[code.bundle_of]).sum())} {kind.noun} spills and fills (to {kind.slots})"
            f" in the loop, {loop.iterations:,} iterations",
            f"bundles with {kind.noun} spills issue for {duration(time)} of the step, those with nothing"
            f" else for {duration(code.time_ps(only))}",
            _registers(code, spilled, kind),
        ),
    )


def _registers(code: Code, spilled: NDArray[np.bool_], kind: _Kind) -> str:
    return (
        f"{int(spilled.sum())} {kind.noun} spill instructions in the whole program,"
        f" {len(code.program.spills)} of any kind"
    )


RULE = Rule(
    identifier="MS401",
    title="Spills and fills inside a loop",
    family="Code",
    sees=(
        "Loads and stores of spill slots in bundles of a loop that runs often; vector registers (to VMEM) and"
        " scalar registers (to SMEM) apart."
    ),
    costs="They take load and store slots, and where they stand alone they take whole bundles.",
    example="acc = [zeros() for _ in range(80)]  # 80 live vector registers and more",
    advice="Keep fewer values live: smaller blocks, fewer accumulators, shorter unrolling.",
    verify=VECTOR.verify,
    doubt="Most spills share a bundle with useful work and cost nothing.",
    look=_look,
)
