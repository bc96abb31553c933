"""MS404: bundles that no core of this step executes."""

from collections.abc import Iterator

import numpy as np

from analyzer.findings.base import HIGH, Context, Finding, Rule

SHARE = 0.2


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    if code is None:
        return
    idle = code.executed == 0
    if idle.sum() < SHARE * len(idle):
        return
    edges = np.flatnonzero(np.diff(np.concatenate(([False], idle, [False])).astype(np.int8)))
    runs = sorted(
        zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True), key=lambda run: run[0] - run[1]
    )
    first, last = runs[0]
    yield rule.finding(
        context,
        time_ps=None,
        saving_ps=None,
        saving_basis="not estimated: what code that does not run costs in instruction fetch is not known",
        confidence=HIGH,
        provenance="counted",
        source=code.source_of(np.arange(first, last + 1)),
        bundles=(first, last),
        count=int(idle.sum()),
        evidence=(
            f"{int(idle.sum()):,} of {len(idle):,} bundles are not executed in this step",
            f"longest stretches: {', '.join(f'{a:#x}-{b:#x} ({b - a + 1} bundles)' for a, b in runs[:3])}",
        ),
    )


RULE = Rule(
    identifier="MS404",
    title="Code that does not run in this step",
    family="Code",
    sees="At least a fifth of the program's bundles are executed by no iteration of this step.",
    costs="A larger program; whether that costs time depends on instruction fetch, which is not modelled.",
    example="lax.cond(is_prefill, prefill, decode)  # compiled in, never taken in decode",
    advice="Compile variants as kernels of their own, or make what distinguishes them static.",
    verify="megascope show CAPTURE --format json, field executed",
    doubt="Other steps, other values of the scenario or other cores may take those paths.",
    look=_look,
)
