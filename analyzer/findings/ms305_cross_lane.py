"""MS305: loops that wait for the cross-lane units: transposes, rotations, reductions over lanes."""

from collections import Counter
from collections.abc import Iterator

from analyzer.findings import lanes
from analyzer.findings.base import LOW, Context, Finding, Rule
from analyzer.findings.code import Code, CodeLoop, shorter
from analyzer.llo import opcodes
from analyzer.llo.occupancy import COLUMNS
from analyzer.llo.program import Unit
from analyzer.replay import Edit
from analyzer.units import duration

SHARE = 0.3  # of the loop in which such a result is awaited
_XLU, _POP = COLUMNS.index("XLU"), COLUMNS.index("VPOP")


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None:
        return
    program = code.program
    crosses = code.on_units(Unit.XLU)
    for loop in code.loops:
        if not context.significant(loop.time_ps):
            break
        inside = crosses & code.of_loop(loop)[code.bundle_of]
        if not inside.any():
            continue
        pending = lanes.pending(code, loop)
        cycles = code.loop_cycles(loop)
        if len(pending) < SHARE * cycles:
            continue
        floor = max(_bound(code, loop), code.matrix_cycles(loop), _control(code, loop))
        gain = round(min(len(pending), max(cycles - floor, 0.0)) * loop.iterations * code.cycle_ps)
        saving, basis = context.priced(Edit(shorten=shorter([(code.stretches(loop.first, loop.last), gain)])))
        if not context.significant(gain if saving is None else saving):
            continue
        kinds = Counter(
            opcodes.family(program.opcodes[i]) for i in program.instruction_opcode[inside].tolist()
        )
        time = min(round(len(pending) * loop.iterations * code.cycle_ps), loop.time_ps)
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed with the other instructions of the loop packed, at most"
            if saving is not None
            else basis,
            confidence=LOW,
            source=code.source_of_instructions(inside) or loop.source,
            bundles=(loop.first, loop.last),
            count=loop.iterations,
            evidence=(
                f"results of cross-lane units are awaited in {len(pending)} of {len(loop.own)} bundles x"
                f" {loop.iterations:,} iterations, {duration(time)} in all",
                f"without them the fullest slots would take {_bound(code, loop):.0f} bundles",
                "most of it: " + ", ".join(f"{name} x{count}" for name, count in kinds.most_common(3)),
            ),
        )


def _bound(code: Code, loop: CodeLoop) -> float:
    """Bundles per iteration that the loop's other instructions take, packed perfectly."""
    use = code.slots_used(loop) / code.capacity
    use[[_XLU, _POP]] = 0
    return float(use.max()) / max(loop.iterations, 1)


def _control(code: Code, loop: CodeLoop) -> float:
    """Cycles that no iteration can do without: the branch back and its delay slots."""
    return 2 + max(loop.last - loop.latch, code.parameters.get("issue.branch_cycles", 0.0))


RULE = Rule(
    identifier="MS305",
    title="Loop waits for cross-lane results",
    family="Vector work",
    sees=(
        "In a loop, results of the cross-lane units (transposes, rotations and broadcasts of lanes,"
        " reductions over lanes) are awaited in at least 30 % of the bundles, and the other instructions"
        " would fit into far fewer."
    ),
    costs=(
        "A cross-lane unit takes one register every few cycles and gives its result several cycles later;"
        " what needs the result stands still."
    ),
    example="total += jnp.sum(block, axis=1, keepdims=True)  # in each turn, and needed at once",
    advice=(
        "Keep partial sums in vectors and reduce over lanes once, after the loop; store operands in the"
        " layout they are used in; let two independent reductions overlap."
    ),
    verify="megascope show CAPTURE --opcode '.*xlu.*', or compile again and megascope diff",
    doubt="Another chain of dependent instructions may be just as long; perfect packing is seldom reached.",
    look=_look,
)
