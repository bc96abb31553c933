"""MS402: bundles that only do scalar work, in loops: addresses, descriptors, divisions, branches."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.findings.code import shorter
from analyzer.findings.ms406_loop_overhead import is_short
from analyzer.llo.program import Unit
from analyzer.replay import Edit
from analyzer.units import duration

SCALAR = frozenset((Unit.SALU, Unit.DMA, Unit.SYNC))


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None:
        return
    scalar = code.on_units(*SCALAR)
    empty = code.empty
    only = (code.only(scalar) & ~code.marked) | empty
    for loop in code.loops:
        if is_short(code, loop):
            continue  # there the branch is the matter: MS406
        mine = code.of_loop(loop) & ~code.latch_slots(loop)
        time = code.time_ps(only & mine)
        if not context.significant(time):
            continue
        removable = min(time, loop.time_ps - code.slot_bound_ps(loop), code.gain_ps(loop, only & mine))
        stretch = code.stretches(loop.first, loop.last)
        saving, basis = context.priced(Edit(shorten=shorter([(stretch, max(removable, 0))])))
        if saving is not None and not context.significant(saving):
            continue
        inside = scalar & np.isin(code.bundle_of, np.flatnonzero(only & mine))
        opcodes = Counter(
            code.program.opcodes[i] for i in code.program.instruction_opcode[inside].tolist()
        ).most_common(4)
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed with the loop packed into its slots, at most"
            if saving is not None
            else basis,
            confidence=MEDIUM,
            source=code.source_of(np.flatnonzero(only & mine)) or loop.source,
            bundles=(loop.first, loop.last),
            count=loop.iterations,
            evidence=(
                f"{int((only & mine).sum())} of {len(loop.own)} bundles of the loop hold only scalar work or"
                f" nothing ({int((empty & mine).sum())} empty), {loop.iterations:,} iterations,"
                f" {duration(time)} in all",
                "most of it: " + ", ".join(f"{name} x{count}" for name, count in opcodes),
            ),
        )


RULE = Rule(
    identifier="MS402",
    title="Bundles of a loop do only scalar work",
    family="Code",
    sees="In a loop, bundles hold nothing but scalar instructions, copies and synchronisation, or nothing.",
    costs="Vector and matrix units get no instruction meanwhile.",
    example="row = tile // columns; bank = tile % depth  # integer division takes tens of bundles",
    advice=(
        "Carry positions as counters instead of dividing, precompute addresses outside the loop, "
        "unroll so that scalar work of one copy stands beside vector work of another, merge small "
        "copies."
    ),
    verify="megascope show CAPTURE, at the bundle range of the finding",
    doubt=(
        "Scalar work may have to wait for something itself (a semaphore); a matrix unit may still "
        "work on what it was given."
    ),
    look=_look,
)
