"""MS304: values converted from one type to another in loops that arithmetic slots bound."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from analyzer.findings.base import LOW, Context, Finding, Rule
from analyzer.findings.code import Code, CodeLoop, shorter
from analyzer.llo import opcodes
from analyzer.llo.occupancy import COLUMNS
from analyzer.llo.program import Register
from analyzer.replay import Edit
from analyzer.units import duration

CONVERSIONS = ("vunpack", "vpack", "vcvt")
SHARE = 0.15  # of the loop's arithmetic slots
BOUND = 0.5  # of the arithmetic slots must be in use, else something else sets the pace
PACKED = 0.8  # how full the fullest kind of slot gets in a loop that the compiler packs well
_ALU, _LOAD = COLUMNS.index("VALU"), COLUMNS.index("VLOAD")


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None:
        return
    converts = code.with_opcodes(lambda opcode: opcodes.family(opcode) in CONVERSIONS)
    for loop in code.loops:
        if not context.significant(loop.time_ps):
            break
        inside = converts & code.of_loop(loop)[code.bundle_of]
        slots = int(code.executed[code.bundle_of[inside]].sum())
        use = code.slots_used(loop).astype(float)
        fullness = use[_ALU] / code.capacity[_ALU] / max(code.loop_cycles(loop) * loop.iterations, 1)
        if slots < SHARE * use[_ALU] or fullness < BOUND:
            continue  # few, or riding in bundles that are there anyway
        time = min(round(slots / code.capacity[_ALU] * code.cycle_ps), loop.time_ps)
        gain = min(_gain_ps(code, loop, inside, use), time)
        saving, basis = context.priced(Edit(shorten=shorter([(code.stretches(loop.first, loop.last), gain)])))
        if not context.significant(gain if saving is None else saving):
            continue
        opcode_count = np.bincount(
            code.program.instruction_opcode[inside], minlength=len(code.program.opcodes)
        )
        most = np.argsort(-opcode_count, kind="stable")[:3]
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed with what is converted loaded in its final type, at most"
            if saving is not None
            else basis,
            confidence=LOW,
            source=code.source_of_instructions(inside) or loop.source,
            bundles=(loop.first, loop.last),
            count=loop.iterations,
            evidence=(
                f"{int(inside.sum()):,} conversions in {len(loop.own)} bundles x {loop.iterations:,}"
                f" iterations: {slots / use[_ALU]:.0%} of the arithmetic slots the loop uses",
                f"their slots alone are {duration(time)}",
                "most of it: "
                + ", ".join(f"{code.program.opcodes[i]} x{opcode_count[i]}" for i in most if opcode_count[i]),
            ),
        )


def _gain_ps(code: Code, loop: CodeLoop, inside: NDArray[np.bool_], use: NDArray[np.float64]) -> int:
    """What the loop gains with the results of its conversions loaded instead of made.

    Its fullest kind of slot is taken to be filled to PACKED; matrix units stay as busy as they are.
    """
    results, sources, final = _values(code, inside)
    after = use / max(loop.iterations, 1)
    after[_ALU] -= float(code.executed[code.bundle_of[inside]].sum()) / max(loop.iterations, 1)
    after[_LOAD] += max(len(final) - len(sources - results), 0)
    bound = float((after / code.capacity).max()) / PACKED
    cycles = code.loop_cycles(loop)
    return round(max(cycles - max(bound, code.matrix_cycles(loop)), 0.0) * loop.iterations * code.cycle_ps)


def _values(code: Code, inside: NDArray[np.bool_]) -> tuple[set[int], set[int], set[int]]:
    """(values that conversions make, values they take, values they make that something else takes)."""
    made: set[int] = set()
    taken: set[int] = set()
    for index in np.flatnonzero(inside).tolist():
        instruction = code.program.instruction(index)
        made |= {r.value for r in instruction.results}
        taken |= {o.value for o in instruction.operands if isinstance(o, Register) and o.kind == "v"}
    return made, taken, made - taken


RULE = Rule(
    identifier="MS304",
    title="Type conversions fill the arithmetic slots",
    family="Vector work",
    sees=(
        "In a loop that arithmetic slots bound, instructions that widen, narrow or repack values (vunpack,"
        " vpack, vcvt) take at least 15 % of them."
    ),
    costs="Each converted register takes a slot; 8-bit data widened to 32 bits gives four registers for one.",
    example="for t in range(turns): y += w8[t % 8].astype(jnp.float32)  # the same tiles, widened each time",
    advice=(
        "Multiply in the type the weights are stored in (the matrix unit takes fp8), convert what is used"
        " again once before the loop, or convert results instead of operands."
    ),
    verify="megascope show CAPTURE --opcode 'vunpack.*', or compile again and megascope diff",
    doubt=(
        "Wider data takes more VMEM and more load slots, and if it came from HBM in the narrow type it must"
        " not be read wider: HBM time would grow. Where the conversion is needed once per byte read, only the"
        " matrix unit's own type avoids it."
    ),
    look=_look,
)
