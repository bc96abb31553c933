"""MS102: the core stalls for a copy that was issued as soon as its buffer was free: too few buffers."""

from collections.abc import Iterator

import numpy as np

from analyzer import view
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.findings.deeper import more_buffers, prompt_stalls, stalls_say_it
from analyzer.replay import Edit
from analyzer.units import duration, size
from analyzer.view import place_key
from analyzer.waits import ExposedWait


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    if not stalls_say_it(context):
        return
    by_start: dict[str, list[ExposedWait]] = {}
    for wait in prompt_stalls(context):
        by_start.setdefault(place_key(wait.transfer_source, wait.transfer_bundles), []).append(wait)
    more = more_buffers(context)
    for waits in by_start.values():
        idle = sum(w.duration_ps - w.hidden_by_hbm_ps for w in waits)
        if not context.significant(idle):
            continue
        spans = frozenset(w.transfer_span for w in waits if w.transfer_span is not None)
        saving, basis = context.priced(Edit(no_latency=spans) if more is None else more[2])
        if saving is not None and not context.significant(saving):
            continue
        if saving is not None:
            basis = (
                "replayed with the latency of these copies hidden"
                if more is None
                else f"replayed with {more[0]} more buffers of {size(more[1])}"
            )
        first = waits[0]
        copy = size(first.transfer_bytes) if first.transfer_bytes is not None else "unknown size"
        vmem = ""
        if context.vmem_used is not None and context.vmem_capacity is not None:
            left = context.vmem_capacity - context.vmem_used
            vmem = f"{size(left)} of VMEM are unused"
        ahead = [w.outstanding_ps for w in waits if w.outstanding_ps is not None]
        flight = _in_flight(context, waits)
        yield rule.finding(
            context,
            time_ps=idle,
            saving_ps=saving if saving is None or more is not None else min(saving, idle),
            saving_basis=basis,
            confidence=MEDIUM,
            source=first.transfer_source,
            bundles=first.transfer_bundles,
            phase=first.phase,
            layers=tuple(dict.fromkeys(w.layer for w in waits)),
            count=len(waits),
            evidence=(
                f"{len(waits)} stalls, {duration(idle)} of them with HBM idle, for"
                f" {first.transfer_name or 'copies'} of {copy}",
                "the copies were issued as soon as their buffers were free,"
                f" {duration(float(np.median(ahead)))} (median) before they were needed",
                *([flight] if flight else []),
                *([vmem] if vmem else []),
            ),
        )


def _in_flight(context: Context, waits: list[ExposedWait]) -> str:
    """Bytes outstanding when these stalls began, against what hides the latency."""
    latency = context.parameters.get("hbm.latency")
    copies = context.core.hbm
    if not latency or not context.hbm_rate or copies["bytes"].isna().any():
        return ""
    issued, ends = view.issues(copies), view.ends(copies)
    moved = copies["bytes"].to_numpy(dtype=np.int64)
    at = [w.start_ps for w in waits]
    outstanding = [int(moved[(issued <= t) & (ends > t)].sum()) for t in at[:1000]]
    need = round(latency * context.hbm_rate)
    median = size(float(np.median(outstanding)))
    return f"outstanding at these stalls: {median} (median); {size(need)} hide HBM's latency"


RULE = Rule(
    identifier="MS102",
    title="Copy waited for its buffer: too few buffers",
    family="Exposed DMA waits",
    sees="The core stalls while HBM is idle, for a copy that was issued as soon as its buffer was free.",
    costs="With every buffer in use no copy can be in flight, so latency lies open.",
    example="a ring of 2 buffers of 256 KiB: in flight 256 KiB, while 3 TB/s x 0.7 us need 2.2 MB",
    advice="Give the ring more or smaller buffers, or release a buffer right after its last read.",
    verify="Compile again and run: megascope diff CAPTURE NEW",
    doubt="When a buffer is free is derived from the modelled program, and VMEM may have no room for more.",
    look=_look,
)
