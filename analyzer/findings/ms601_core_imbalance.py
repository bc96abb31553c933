"""MS601: cores that wait for each other because their work differs."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from analyzer import intervals, view
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.findings.ms204_late_peer import late_places
from analyzer.timeline import Track
from analyzer.units import duration
from analyzer.view import CoreStep

_RANGE = ("bundle_first", "bundle_last", "duration_ps")


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
    # With message latency to hide behind, more work on one core need not make a step longer.
    waited = sum(late for place in late_places(context) for late, sender in place.worst if sender == most)
    saving = min(busy[most] - mean, waited)
    cores = {core.core: core for core in (context.core, *context.others)}
    bundles, longer = _place(cores[most], cores[least])
    source = context.code.source_of(np.arange(bundles[0], bundles[1] + 1)) if context.code and bundles else ""
    yield rule.finding(
        context,
        time_ps=busy[most] - mean,
        saving_ps=saving,
        saving_basis="bound: all cores at the mean of their own time, at most what others wait for this one",
        confidence=MEDIUM,
        source=source,
        bundles=bundles,
        count=len(busy),
        evidence=(
            f"without waiting for messages, core {most} takes {duration(busy[most])}, core {least}"
            f" {duration(busy[least])}, the mean of {len(busy)} cores is {duration(mean)}",
            f"others wait {duration(waited)} for core {most} while it is at work",
            f"most of the difference: {duration(longer)} more in these bundles on core {most}",
        ),
    )


def _place(most: CoreStep, least: CoreStep) -> tuple[tuple[int, int] | None, int]:
    """The bundles in which one core works longest beyond another, and by how much in picoseconds."""
    more: Counter[tuple[int, int]] = Counter()
    for core, sign in ((most, 1), (least, -1)):
        work = view.on(core.spans, (Track.MXU, Track.VECTOR, Track.SCALAR))
        work = work[work["bundle_first"].notna() & work["bundle_last"].notna()]
        columns = (work[name].to_numpy(dtype=np.int64).tolist() for name in _RANGE)
        for first, last, length in zip(*columns, strict=True):
            more[first, last] += sign * length
    bundles, longest = more.most_common(1)[0] if more else ((0, 0), 0)
    return (bundles, longest) if longest > 0 else (None, 0)


RULE = Rule(
    identifier="MS601",
    title="Work of the cores is uneven",
    family="Collectives",
    sees="With all cores in the timeline, one takes longer than the others, waits for messages not counted.",
    costs="At each collective the others wait for the slowest.",
    example="experts chosen by the router lie mostly in the group of one core",
    advice="Spread the work more evenly: shard experts differently, split the busiest core's share.",
    verify="megascope report CAPTURE --cores all --format json, field hbm.per_core",
    doubt="The imbalance follows the scenario (which experts were chosen); another token may shift it.",
    look=_look,
)
