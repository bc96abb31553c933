"""MS601: cores that wait for each other because their work differs."""

from collections.abc import Iterator

from analyzer import intervals
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.units import duration


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    if not context.others:
        return
    busy = {
        core.core: intervals.measure(core.program)
        - intervals.measure(intervals.subtraction(core.stalled_ici, core.stalled_dma))
        for core in (context.core, *context.others)
    }
    most, least = max(busy, key=lambda c: busy[c]), min(busy, key=lambda c: busy[c])
    mean = round(sum(busy.values()) / len(busy))
    if not context.significant(busy[most] - mean):
        return
    yield rule.finding(
        context,
        time_ps=busy[most] - mean,
        saving_ps=busy[most] - mean,
        saving_basis="bound: all cores at the mean of their own time",
        confidence=MEDIUM,
        count=len(busy),
        evidence=(
            f"without waiting for messages, core {most} takes {duration(busy[most])}, core {least}"
            f" {duration(busy[least])}, the mean of {len(busy)} cores is {duration(mean)}",
        ),
    )


RULE = Rule(
    identifier="MS601",
    title="Work of the cores is uneven",
    family="Collectives",
    sees="With all cores in the timeline, one takes longer than the others, waits for messages not counted.",
    costs="At each collective the others wait for the slowest.",
    example="experts chosen by the router lie mostly in the group of one core",
    advice="Spread the work more evenly: shard experts differently, split the busiest core's share.",
    verify="megascope report CAPTURE --format json, field hbm.per_core",
    doubt="The imbalance follows the scenario (which experts were chosen); another token may shift it.",
    look=_look,
)
