"""MS111: HBM idle at the start and at the end of the step."""

from collections.abc import Iterator

from analyzer import bubbles
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.units import duration


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    for bubble in context.bubbles:
        if bubble.cause not in (bubbles.RAMP, bubbles.DRAIN) or not context.significant(bubble.duration_ps):
            continue
        ramp = bubble.cause == bubbles.RAMP
        where = "before the first bytes move" if ramp else "after the last bytes have moved"
        ran = ", ".join(f"{name} {duration(time)}" for name, time in bubble.ran.items())
        avoidable = bubble.duration_ps - bubble.latency_ps
        if ramp and not context.significant(avoidable):
            continue  # the latency of the first copy, which no kernel avoids
        yield rule.finding(
            context,
            title="Ramp: HBM idle at the start" if ramp else "Drain: HBM idle at the end",
            time_ps=bubble.duration_ps,
            saving_ps=avoidable if ramp else None,
            saving_basis="at most the time until the first copy is issued"
            if ramp
            else "not estimated: the last work needs the last bytes",
            confidence=MEDIUM,
            source=bubble.source,
            bundles=bubble.bundles,
            phase=bubble.phase,
            layers=(bubble.layer,),
            count=1,
            evidence=(
                f"HBM idle for {duration(bubble.duration_ps)} {where}",
                f"meanwhile the core did: {ran or 'nothing known'}",
            ),
        )


RULE = Rule(
    identifier="MS111",
    title="Ramp and drain",
    family="HBM bubbles",
    sees=(
        "The first HBM bytes of the step move some time after its start, or the last ones long before"
        " its end."
    ),
    costs="In a step bound by HBM the memory must be busy from the first moment to the last.",
    example="barrier(); x.start(); x.wait(); ring.start(0)  # the ring could have been started first",
    advice=(
        "Start the first weight copies before the entry barrier and before anything is waited for; "
        "spread the last tiles so that little work follows the last bytes."
    ),
    verify="megascope report CAPTURE --format json, fields bubbles[0] and hbm.ramp_ps",
    doubt=(
        "Weights may not be known to be ready before the barrier; a kernel that follows may overlap "
        "the drain."
    ),
    look=_look,
)
