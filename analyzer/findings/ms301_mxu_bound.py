"""MS301: stretches in which the matrix units are the limit."""

from collections.abc import Iterator

import numpy as np

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
    bound: list[tuple[int, float, str]] = []
    layers: dict[int | None, None] = {}
    together = intervals.EMPTY
    for phase, parts in by_phase.items():
        inside = intervals.union(*(part for _, part in parts))
        time = intervals.measure(inside)
        matrix = intervals.intersection(context.core.mxu, inside)
        if phase and context.significant(time) and intervals.measure(matrix) >= SHARE * time:
            bound.append((time, intervals.measure(matrix) / time, phase))
            layers |= dict.fromkeys(layer for layer, _ in parts)
            together = intervals.union(together, matrix)
    saving, _ = context.priced(Edit(shorten=((together, 0.5),)))
    if not bound or (saving is not None and not context.significant(saving)):
        return  # or hidden behind HBM or messages: no limit of the step
    bound.sort(reverse=True)
    source, bundles = _place(context, bound[0][2])
    yield rule.finding(
        context,
        time_ps=sum(time for time, _, _ in bound),
        saving_ps=None,
        saving_basis="not estimated: no fault is removed; "
        + (
            f"with matrix work twice as fast the step would be {duration(saving)} shorter"
            if saving is not None
            else "the replay does not apply"
        ),
        confidence=LOW,
        source=source,
        bundles=bundles,
        phase=bound[0][2],
        layers=tuple(layers),
        evidence=tuple(
            f"the MXUs work during {share:.0%} of the {duration(time)} in {phase}"
            for time, share, phase in bound
        ),
    )


def _place(context: Context, phase: str) -> tuple[str, tuple[int, int] | None]:
    """Bundles of a phase, and the source line of the loop that takes most time in them."""
    mine = context.core.regions[(context.core.regions["phase"] == phase).to_numpy()]
    first, last = mine["bundle_first"].dropna(), mine["bundle_last"].dropna()
    if not len(first) or not len(last):
        return "", None
    bundles = int(first.min()), int(last.max())
    if context.code is None:
        return "", bundles
    for loop in context.code.loops:
        if bundles[0] <= loop.first <= loop.last <= bundles[1]:
            return context.code.matrix_source(loop), (loop.first, loop.last)
    return context.code.source_of(np.arange(bundles[0], bundles[1] + 1)), bundles


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
