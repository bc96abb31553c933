"""MS101: the core stalls for copies that could have been issued earlier, because their buffers were free."""

from collections.abc import Iterator

import numpy as np

from analyzer import view
from analyzer.findings.base import HIGH, MEDIUM, Context, Finding, Rule
from analyzer.replay import Edit
from analyzer.timeline import Track
from analyzer.units import duration, size
from analyzer.waits import ExposedWait

# Starts this many lines apart are one piece of code (the branches of one prefetch), priced together.
SAME_CODE_LINES = 12


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    by_start: dict[str, list[ExposedWait]] = {}
    for wait in context.waits:
        late = wait.lateness_ps is not None and wait.lateness_ps > 0
        # Only reads of HBM: what another copy takes from VMEM may not have been computed any earlier.
        if wait.kind == "dma" and late and wait.transfer_track == Track.HBM_READ:
            by_start.setdefault(view.place_key(wait.transfer_source, wait.transfer_bundles), []).append(wait)
    reads = view.on(context.core.hbm, (Track.HBM_READ,))
    spans_of: dict[str, set[int]] = {}
    for span, source, first, last in zip(
        reads["span"], reads["source"], reads["bundle_first"], reads["bundle_last"], strict=True
    ):
        key = view.place_key(str(source), view.bundle_range(first, last))
        spans_of.setdefault(key, set()).add(int(span))
    for sources in clusters(list(by_start)):
        waits = [wait for source in sources for wait in by_start[source]]
        time = sum(w.duration_ps for w in waits)
        if not context.significant(time):
            continue
        spans = frozenset(span for source in sources for span in spans_of.get(source, ()))
        saving, basis = context.priced(Edit(hoist=spans))
        if saving is not None and not context.significant(saving):
            continue
        total = {source: sum(w.duration_ps for w in by_start[source]) for source in sources}
        worst = max(sources, key=lambda source: total[source])
        lateness = [w.lateness_ps for w in waits if w.lateness_ps is not None]
        ahead = [w.outstanding_ps for w in waits if w.outstanding_ps is not None]
        sizes = [w.transfer_bytes for w in waits if w.transfer_bytes is not None]
        first = by_start[worst][0]
        evidence = [
            f"{len(waits)} stalls of {duration(time)} together, waited for at"
            f" {first.source or 'an unknown line'}",
            f"issued {duration(float(np.median(lateness)))} after their buffer was free (median), "
            f"{duration(float(np.median(ahead)))} before they were needed",
            f"copies of {size(float(np.median(sizes)))} (median)" if sizes else "copies of unknown size",
        ]
        evidence += [
            f"started at {source or 'an unknown line'} ({names(by_start[source])}): {duration(total[source])}"
            for source in sorted(sources, key=lambda source: -total[source])
        ]
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis=basis,
            confidence=HIGH if saving is not None else MEDIUM,
            source=first.transfer_source,
            bundles=first.transfer_bundles,
            phase=first.phase,
            layers=tuple(dict.fromkeys(w.layer for w in waits)),
            count=len(waits),
            evidence=tuple(evidence),
        )


def clusters(sources: list[str]) -> list[list[str]]:
    """Lines of one file with at most SAME_CODE_LINES between neighbours, in order of first appearance."""
    placed: list[tuple[str, int, str]] = []
    for source in sources:
        file, _, line = source.rpartition(":")
        placed.append((file, int(line), source) if file and line.isdecimal() else (source, -1, source))
    groups: list[list[tuple[str, int, str]]] = []
    for entry in sorted(placed):
        last = groups[-1][-1] if groups else None
        if last is not None and last[0] == entry[0] and entry[1] - last[1] <= SAME_CODE_LINES:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return [[source for _, _, source in group] for group in groups]


def names(waits: list[ExposedWait]) -> str:
    """The distinct names of the awaited copies."""
    return ", ".join(dict.fromkeys(w.transfer_name or "unnamed" for w in waits))


RULE = Rule(
    identifier="MS101",
    title="Copy issued late although its buffer was free",
    family="Exposed DMA waits",
    sees=(
        "The core stalls for a copy from HBM, and the copy was issued some time after its destination"
        " buffer was free. Starts within a few lines of each other are one finding."
    ),
    costs="The latency of the copy, and the time its bytes take, lie open instead of behind earlier work.",
    example="ring.wait(tile); use(tile); ring.start(tile + 1)  # distance 1 in a ring of 12 buffers",
    advice=(
        "Issue the copy where its buffer becomes free: raise the prefetch distance to the depth of "
        "the ring, or move the start before independent work. Copies that a grid or emit_pipeline issues "
        "have no line: give those operands more buffers, pipeline_mode=pl.Buffered(3)."
    ),
    verify="Compile again and run: megascope diff CAPTURE NEW",
    doubt=(
        "When a buffer is free is derived from the reads of the modelled program; if another part of "
        "the kernel still uses the buffer, the copy cannot move. HBM may be busy with something more "
        "urgent."
    ),
    look=_look,
)
