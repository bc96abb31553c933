"""MS306: loops in which both matrix units idle between one product and the next."""

from collections.abc import Iterator

from analyzer.findings.base import LOW, Context, Finding, Rule
from analyzer.findings.code import shorter
from analyzer.replay import Edit
from analyzer.units import duration

SHARE = 0.2  # of an iteration in which the busiest matrix unit idles


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None or not code.parameters:
        return
    for loop in code.loops:
        if not context.significant(loop.time_ps):
            break
        if not code.is_innermost(loop):
            continue  # phases one after the other, not turns that could overlap
        held = code.matrix_cycles(loop)
        cycles = code.loop_cycles(loop)
        least = max(held, code.slot_bound_ps(loop) / code.cycle_ps / max(loop.iterations, 1))
        gap = cycles - least
        # A loop that does a little matrix work beside something else has no gaps to close.
        if held * 3 < cycles or gap < SHARE * cycles:
            continue
        time = round(gap * loop.iterations * code.cycle_ps)
        saving, basis = context.priced(Edit(shorten=shorter([(code.stretches(loop.first, loop.last), time)])))
        if not context.significant(time if saving is None else saving):
            continue
        products = [b for b in loop.own.tolist() if code.matrix_use.by_bundle.get(b)]
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed with these gaps closed, at most" if saving is not None else basis,
            confidence=LOW,
            source=code.matrix_source(loop),
            bundles=(loop.first, loop.last),
            count=loop.iterations,
            evidence=(
                f"of {cycles:.0f} cycles per iteration the busiest matrix unit works {held:.0f};"
                f" {loop.iterations:,} iterations, {duration(time)} idle in all",
                f"matrix instructions in {len(products)} of {len(loop.own)} bundles"
                f" ({min(products):#x} to {max(products):#x}); in these the units are waited for"
                f" {cycles - len(loop.own):.0f} cycles",
            ),
        )


RULE = Rule(
    identifier="MS306",
    title="Matrix units idle between products",
    family="MXU",
    sees=(
        "In a loop that matrix work dominates, the busiest matrix unit idles at least a fifth of each"
        " iteration: pushes stand close together and stall each other, then results are popped and added"
        " while nothing is pushed."
    ),
    costs="The next tile's weights could be pushed while results of the last one are popped.",
    example="for t in range(n): acc[...] += dot(x, w[t])  # one tile per turn; the add ends each turn",
    advice=(
        "Do several tiles per turn (unroll=4, or wider tiles), sum the products of a turn before adding them"
        " to the accumulator, keep stores of results away from the pushes."
    ),
    verify="megascope show CAPTURE, at the bundle range of the finding, or compile again and megascope diff",
    doubt=(
        "The cycles of a push are a calibrated value of the machine file; the compiler may not overlap"
        " turns that share an accumulator."
    ),
    look=_look,
)
