"""MS102: the core stalls for a copy that was issued as soon as its buffer was free: too few buffers."""

from collections.abc import Iterator

from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.replay import Edit
from analyzer.units import duration, size
from analyzer.view import place_key
from analyzer.waits import ExposedWait


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    by_start: dict[str, list[ExposedWait]] = {}
    for wait in context.waits:
        idle = wait.duration_ps - wait.hidden_by_hbm_ps
        prompt = wait.lateness_ps is not None and wait.lateness_ps * 10 <= max(wait.outstanding_ps or 0, idle)
        # A copy issued when the step began did not wait for a buffer: that is the ramp.
        at_start = wait.start_ps - (wait.outstanding_ps or 0) <= context.core.start_ps
        if wait.kind == "dma" and prompt and idle > 0 and not at_start:
            by_start.setdefault(place_key(wait.transfer_source, wait.transfer_bundles), []).append(wait)
    for waits in by_start.values():
        idle = sum(w.duration_ps - w.hidden_by_hbm_ps for w in waits)
        if not context.significant(idle):
            continue
        spans = frozenset(w.transfer_span for w in waits if w.transfer_span is not None)
        saving, basis = context.priced(Edit(no_latency=spans))
        if saving is not None and not context.significant(saving):
            continue
        first = waits[0]
        copy = size(first.transfer_bytes) if first.transfer_bytes is not None else "unknown size"
        vmem = ""
        if context.vmem_used is not None and context.vmem_capacity is not None:
            left = context.vmem_capacity - context.vmem_used
            vmem = f"; {size(left)} of VMEM are unused"
        yield rule.finding(
            context,
            time_ps=idle,
            saving_ps=None if saving is None else min(saving, idle),
            saving_basis="replayed with the latency of these copies hidden" if saving is not None else basis,
            confidence=MEDIUM,
            source=first.transfer_source,
            bundles=first.transfer_bundles,
            phase=first.phase,
            layers=tuple(dict.fromkeys(w.layer for w in waits)),
            count=len(waits),
            evidence=(
                f"{len(waits)} stalls, {duration(idle)} of them with HBM idle, for"
                f" {first.transfer_name or 'copies'} of {copy}{vmem}",
                "the copies were issued as soon as their buffers were free, and that was not early enough",
            ),
        )


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
