"""MS301: stretches in which the matrix units are the limit."""

from collections.abc import Iterator

from analyzer import intervals, metrics
from analyzer.findings.base import LOW, Context, Finding, Rule
from analyzer.replay import Edit
from analyzer.units import duration

SHARE = 0.8


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    if context.time.mxu_ps is None or not len(context.core.regions):
        return
    times = metrics.self_times(context.core.regions, context.core.start_ps, context.core.end_ps)
    by_phase: dict[str, list[tuple[int | None, intervals.Intervals]]] = {}
    for (layer, phase), inside in times.items():
        by_phase.setdefault(phase, []).append((layer, inside))
    for phase, parts in by_phase.items():
        inside = intervals.union(*(part for _, part in parts))
        time = intervals.measure(inside)
        matrix = intervals.intersection(context.core.mxu, inside)
        if not phase or not context.significant(time) or intervals.measure(matrix) < SHARE * time:
            continue
        saving, _ = context.priced(Edit(shorten=((matrix, 0.5),)))
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=None,
            saving_basis="not estimated: no fault is removed; "
            + (
                f"with matrix work twice as fast the step would be {duration(saving)} shorter"
                if saving is not None
                else "the replay does not apply"
            ),
            confidence=LOW,
            phase=phase,
            layers=tuple(layer for layer, _ in parts),
            evidence=(
                f"the MXUs work during {intervals.measure(matrix) / time:.0%} of {duration(time)} in {phase}",
            ),
        )


RULE = Rule(
    identifier="MS301",
    title="Bound by the matrix units",
    family="MXU",
    sees="In a phase the matrix units work nearly all the time.",
    costs=(
        "Nothing is wasted unless weights are pushed more often than needed, or in a wider dtype than needed."
    ),
    example="y += dot(x[8, 256], w[256, 256])  # 8 rows: pushing the weights takes longer than multiplying",
    advice=(
        "Use both MXUs, push each weight tile once for all rows, use fp8 weights, batch more rows per push."
    ),
    verify="megascope report CAPTURE --what-if mxu.push=/2",
    doubt="The cycles of a push are a calibrated value of the machine file.",
    look=_look,
)
