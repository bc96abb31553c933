"""MS406: short loops whose branch costs as much as their work."""

from collections.abc import Iterator

from analyzer.findings import lanes
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.findings.code import Code, CodeLoop, shorter
from analyzer.llo.occupancy import COLUMNS
from analyzer.llo.program import Unit
from analyzer.replay import Edit
from analyzer.units import duration

SHARE = 0.15  # of an iteration
SHORT = 32  # cycles
PACKED = 0.8  # how full slots get in a loop that the compiler packs well
TURNS = 8  # of them in one is what the remedy is priced with
CONTROL = frozenset((Unit.SALU, Unit.SYNC, Unit.PSEUDO))


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None:
        return
    idle = code.only(code.on_units(*CONTROL)) | code.empty
    for loop in code.loops:
        if not context.significant(loop.time_ps):
            break
        if not is_short(code, loop):
            continue
        wasted = code.of_loop(loop) & idle & ~code.marked
        wasted[lanes.pending(code, loop)] = False
        # Where fewer delay slots are printed than the branch takes, the rest is charged all the same.
        unprinted = max(code.parameters.get("issue.branch_cycles", 0.0) - (loop.last - loop.latch), 0.0)
        cycles = code.loop_cycles(loop) + unprinted
        gone = cycles - code.loop_cycles(loop, wasted)
        if gone < SHARE * cycles:
            continue
        time = round(gone * loop.iterations * code.cycle_ps)
        gain = round(_gained(code, loop, cycles, gone) * loop.iterations * code.cycle_ps)
        saving, basis = context.priced(Edit(shorten=shorter([(code.stretches(loop.first, loop.last), gain)])))
        if not context.significant(gain if saving is None else saving):
            continue
        entries = _entries(code, loop)
        slots = code.latch_slots(loop)
        yield rule.finding(
            context,
            time_ps=max(time, saving or 0),
            saving_ps=saving,
            saving_basis=f"replayed with {TURNS} turns in one, at most" if saving is not None else basis,
            confidence=MEDIUM,
            source=loop.source,
            bundles=(loop.first, loop.last),
            count=loop.iterations,
            evidence=(
                f"of {cycles:.0f} cycles per iteration {gone:.0f} only count, address and branch;"
                f" {loop.iterations:,} iterations, {duration(time)} in all",
                f"of {int(slots.sum()) - 1} printed delay slots of the branch {int((slots & ~idle).sum())}"
                " hold work",
                f"the loop is entered {entries:,} times, {loop.iterations / entries:,.0f} turns each",
            ),
        )


def _gained(code: Code, loop: CodeLoop, cycles: float, gone: float) -> float:
    """Cycles per turn that several turns in one save.

    Turns that carry no vectors overlap: what remains is their slots and a share of the control. Others keep
    their chain of dependent instructions.
    """
    first, last = code.program.bundle_first[[loop.first, loop.last + 1]].tolist()
    kept = code.program.instruction_opcode[first:last].tolist()
    if any(code.program.opcodes[i] == "vphi" for i in kept):
        return gone * (1 - 1 / TURNS)
    use = code.slots_used(loop) / code.capacity
    use[COLUMNS.index("SALU")] = 0  # most of it counts turns
    packed = max(float(use.max()) / loop.iterations / PACKED, code.matrix_cycles(loop))
    return max(cycles - packed - gone / TURNS, gone * (1 - 1 / TURNS))


def is_short(code: Code, loop: CodeLoop) -> bool:
    """Whether a loop has so little in it that its control shows, and turns enough to unroll."""
    return len(loop.own) <= SHORT and loop.iterations >= TURNS * _entries(code, loop)


def _entries(code: Code, loop: CodeLoop) -> int:
    """How often a loop is entered: as often as the bundle before it ran, and at least once."""
    before = int(code.executed[loop.first - 1]) if loop.first else 1
    return max(1, min(before, loop.iterations))


RULE = Rule(
    identifier="MS406",
    title="Short loop: the branch costs as much as work",
    family="Code",
    sees=(
        "In a loop of at most 32 bundles with at least eight turns, bundles that only count, address and"
        " branch, and delay slots without work, take at least 15 % of an iteration."
    ),
    costs="A branch takes seven cycles; what the compiler finds no work for is lost in each turn.",
    example="lax.fori_loop(0, 4096, lambda t, _: store(t, load(t) * 2), None)  # three bundles of work",
    advice="Unroll (unroll=8), or do more per turn: whole blocks instead of rows.",
    verify="Compile again and run: megascope diff CAPTURE NEW",
    doubt=(
        "Larger code; unrolled turns may need more registers. A loop that waits for copies hides its"
        " branches: then nothing is gained."
    ),
    look=_look,
)
