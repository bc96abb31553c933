"""MS101: the core stalls for a copy that could have been issued earlier, because its buffer was free."""

from collections.abc import Iterator

import numpy as np

from analyzer.findings.base import HIGH, MEDIUM, Context, Finding, Rule
from analyzer.replay import Edit
from analyzer.units import duration, size
from analyzer.waits import ExposedWait


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    by_start: dict[str, list[ExposedWait]] = {}
    for wait in context.waits:
        late = wait.lateness_ps is not None and wait.lateness_ps > 0
        idle = wait.duration_ps - wait.hidden_by_hbm_ps
        if wait.kind == "dma" and late and (idle > 0 or wait.duration_ps > 0):
            by_start.setdefault(wait.transfer_source, []).append(wait)
    for source, waits in by_start.items():
        time = sum(w.duration_ps for w in waits)
        if not context.significant(time):
            continue
        copies = context.core.hbm[(context.core.hbm["source"] == source).to_numpy()]
        spans = frozenset(int(s) for s in copies["span"]) or frozenset(
            w.transfer_span for w in waits if w.transfer_span is not None
        )
        saving, basis = context.priced(Edit(hoist=spans))
        if saving is not None and not context.significant(saving):
            continue
        lateness = [w.lateness_ps for w in waits if w.lateness_ps is not None]
        ahead = [w.outstanding_ps for w in waits if w.outstanding_ps is not None]
        sizes = [w.transfer_bytes for w in waits if w.transfer_bytes is not None]
        first = waits[0]
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis=basis,
            confidence=HIGH if saving is not None else MEDIUM,
            source=source,
            bundles=first.transfer_bundles,
            phase=first.phase,
            layers=tuple(dict.fromkeys(w.layer for w in waits)),
            count=len(waits),
            evidence=(
                f"{len(waits)} stalls of {duration(time)} together for {first.transfer_name or 'copies'}"
                f" started at {source or 'an unknown line'},"
                f" waited for at {first.source or 'an unknown line'}",
                f"issued {duration(float(np.median(lateness)))} after their buffer was free (median), "
                f"{duration(float(np.median(ahead)))} before they were needed",
                f"copies of {size(float(np.median(sizes)))} (median)" if sizes else "copies of unknown size",
            ),
        )


RULE = Rule(
    identifier="MS101",
    title="Copy issued late although its buffer was free",
    family="Exposed DMA waits",
    sees=(
        "The core stalls for a copy, and the copy was issued some time after its destination buffer was free."
    ),
    costs="The latency of the copy, and the time its bytes take, lie open instead of behind earlier work.",
    example="ring.wait(tile); use(tile); ring.start(tile + 1)  # distance 1 in a ring of 12 buffers",
    advice=(
        "Issue the copy where its buffer becomes free: raise the prefetch distance to the depth of "
        "the ring, or move the start before independent work."
    ),
    verify="Compile again and run: megascope diff CAPTURE NEW",
    doubt=(
        "When a buffer is free is derived from the reads of the modelled program; if another part of "
        "the kernel still uses the buffer, the copy cannot move. HBM may be busy with something more "
        "urgent."
    ),
    look=_look,
)
