"""MS303: loops in which one vector unit is busy nearly all the time."""

from collections.abc import Iterator

from analyzer.findings.base import LOW, Context, Finding, Rule
from analyzer.findings.code import shorter
from analyzer.llo.occupancy import COLUMNS
from analyzer.replay import Edit
from analyzer.units import duration

FULL = 0.66
UNITS = {
    "XLU": "the cross-lane units (transposes, rotations, reductions across lanes)",
    "VALU": "the vector arithmetic slots",
    "EUP": "the transcendental unit",
    "VLOAD": "the vector load slots",
    "VSTORE": "the vector store slots",
}


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None:
        return
    for loop in code.loops:
        if not context.significant(loop.time_ps):
            break
        use = code.slots_used(loop) / code.capacity / loop.executed
        fullness = {name: float(use[COLUMNS.index(name)]) for name in UNITS}
        unit = max(fullness, key=lambda name: fullness[name])
        if fullness[unit] < FULL:
            continue
        stretch = code.stretches(loop.first, loop.last)
        saving, _ = context.priced(Edit(shorten=shorter([(stretch, loop.time_ps // 2)])))
        if saving is not None and not context.significant(saving):
            continue  # hidden behind HBM or messages
        others = sorted(((share, name) for name, share in fullness.items() if name != unit), reverse=True)
        yield rule.finding(
            context,
            time_ps=loop.time_ps,
            saving_ps=None,
            saving_basis="not estimated: no fault is removed"
            + (f"; the loop in half the time would save {duration(saving)}" if saving is not None else ""),
            confidence=LOW,
            source=loop.source,
            bundles=(loop.first, loop.last),
            count=loop.iterations,
            evidence=(
                f"{UNITS[unit]} ({unit}) are used to {fullness[unit]:.0%} in {len(loop.own)} bundles x"
                f" {loop.iterations:,} iterations",
                "next: " + ", ".join(f"{name} {share:.0%}" for share, name in others[:3]),
            ),
        )


RULE = Rule(
    identifier="MS303",
    title="Loop bound by one vector unit",
    family="Vector work",
    sees="In a loop, one kind of issue slot or vector unit is used at least two thirds of the time.",
    costs="The loop cannot run faster, whatever else is idle.",
    example="y = x.reshape(...).T  # relayouts and rotations inside the loop",
    advice=(
        "Do less of that kind: keep data in the layout it is used in, hoist relayouts and conversions out "
        "of the loop, use narrower types for elementwise work, move work to a unit that is idle."
    ),
    verify="megascope show CAPTURE --format json, field units, at the bundle range of the finding",
    doubt="Slots are counted per bundle; latencies between dependent instructions may be the limit instead.",
    look=_look,
)
