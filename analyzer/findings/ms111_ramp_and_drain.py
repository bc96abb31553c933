"""MS111: HBM idle at the start and at the end of the step."""

from collections.abc import Iterator

import numpy as np

from analyzer import bubbles
from analyzer.bubbles import Bubble
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.replay import Edit
from analyzer.timeline import Track
from analyzer.units import duration
from analyzer.view import issues, on, starts

DRAIN_SHARE = 0.01


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    for bubble in context.bubbles:
        if bubble.cause not in (bubbles.RAMP, bubbles.DRAIN) or not context.significant(bubble.duration_ps):
            continue
        ramp = bubble.cause == bubbles.RAMP
        saving, basis = None, "not estimated: the last work needs the last bytes"
        if ramp and not context.significant(bubble.duration_ps - bubble.latency_ps):
            continue  # the latency of the first copy, which no kernel avoids
        if not ramp and bubble.duration_ps < DRAIN_SHARE * context.core.window_ps:
            continue  # the work of the last bytes, which no kernel avoids
        if ramp:
            saving, basis = _earlier(context, bubble)
            if saving is not None and not context.significant(saving):
                continue
        where = "before the first bytes move" if ramp else "after the last bytes have moved"
        ran = ", ".join(f"{name} {duration(time)}" for name, time in bubble.ran.items())
        yield rule.finding(
            context,
            title="Ramp: HBM idle at the start" if ramp else "Drain: HBM idle at the end",
            time_ps=bubble.duration_ps,
            saving_ps=saving,
            saving_basis=basis,
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


def _earlier(context: Context, ramp: Bubble) -> tuple[int | None, str]:
    """The step with the burst of copies that ends the ramp issued at the start.

    The burst: reads into buffers that nothing used before, issued between two waits of the core.
    """
    reads = on(context.core.hbm, (Track.HBM_READ,))
    issued, spans = issues(reads), reads["span"].to_numpy(dtype=np.int64)
    first = issued[spans == ramp.next_span]
    if len(first) == 0 or reads["free_ps"].isna().all():
        return ramp.duration_ps - ramp.latency_ps, "at most the time until the first copy is issued"
    waited = starts(context.core.waits)
    after = waited[waited > first[0]].min(initial=context.core.end_ps)
    before = waited[waited <= first[0]].max(initial=context.core.start_ps)
    unused = reads["free_ps"].fillna(context.core.end_ps).to_numpy(dtype=np.int64) <= context.core.start_ps
    burst = unused & (issued >= before) & (issued <= after)
    saving, basis = context.priced(Edit(hoist=frozenset(int(span) for span in spans[burst])))
    return saving, "replayed with the first copies issued at the start" if saving is not None else basis


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
