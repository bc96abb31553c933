"""MS603: what the region markers of this capture cost, where the capture was made with and without them."""

from collections.abc import Iterator, Mapping

from analyzer.findings.base import HIGH, Context, Finding, Rule
from analyzer.units import duration


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    effect = context.facts.get("probe_effect")
    counts = effect.get("counts") if isinstance(effect, Mapping) else None
    if not isinstance(counts, Mapping) or context.facts.get("probe_level") != "regions":
        return
    on, off = counts.get("regions"), counts.get("off")
    if not isinstance(on, Mapping) or not isinstance(off, Mapping):
        return
    with_markers, without = on.get("time_ps"), off.get("time_ps")
    if not isinstance(with_markers, int) or not isinstance(without, int):
        return
    cost = with_markers - without
    if not context.significant(abs(cost)):
        return
    yield rule.finding(
        context,
        time_ps=max(cost, 0),
        saving_ps=max(cost, 0),
        saving_basis="difference of two simulations: compiled with the markers and without",
        confidence=HIGH,
        evidence=(
            f"a step takes {duration(with_markers)} with the markers and {duration(without)} without",
            f"bundles: {on.get('bundles')} with, {off.get('bundles')} without",
        ),
    )


RULE = Rule(
    identifier="MS603",
    title="The markers change the program",
    family="Probe effect",
    sees="The capture was compiled with and without region markers, and the two steps differ in time.",
    costs="Markers are scheduling edges: figures of the marked program are not those of the real one.",
    example="megascope compile kernel.py:build --probe-effect",
    advice="Mark phases of microseconds, not bodies of short loops; quote times from level off.",
    verify="megascope compile TARGET --probe-effect",
    doubt="Both times are modelled.",
    look=_look,
)
