"""MS104: a store or a copy inside the chip that is waited for right after its start."""

from collections.abc import Iterator

from analyzer import intervals
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.replay import Edit
from analyzer.timeline import Track
from analyzer.units import duration, size
from analyzer.view import place_key
from analyzer.waits import ExposedWait


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    groups: dict[str, list[ExposedWait]] = {}
    for wait in context.waits:
        at_once = wait.outstanding_ps is not None and wait.outstanding_ps * 4 < wait.duration_ps
        copy = wait.kind == "dma" and wait.transfer_track in (Track.HBM_WRITE, Track.VMEM_COPY)
        if copy and at_once and _work_follows(context, wait):
            groups.setdefault(place_key(wait.source, wait.bundles), []).append(wait)
    for waits in groups.values():
        time = sum(wait.duration_ps for wait in waits)
        if not context.significant(time):
            continue
        saving, basis = context.priced(Edit(no_wait=frozenset(wait.span for wait in waits)))
        if saving is not None and not context.significant(saving):
            continue
        first = waits[0]
        amount = "unknown size" if first.transfer_bytes is None else size(first.transfer_bytes)
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed without these waits" if saving is not None else basis,
            confidence=MEDIUM,
            source=first.source,
            bundles=first.bundles,
            phase=first.phase,
            layers=tuple(dict.fromkeys(wait.layer for wait in waits)),
            count=len(waits),
            evidence=(
                f"{len(waits)} stalls of {duration(time)} together,"
                f" {duration(first.outstanding_ps or 0)} after the start of"
                f" {first.transfer_name or 'the copy'} ({amount})",
                f"started at {first.transfer_source or 'an unknown line'}",
            ),
        )


def _work_follows(context: Context, wait: ExposedWait) -> bool:
    """Whether there is work after a wait to put in front of it; after the last store there is none."""
    follows = intervals.covered(context.core.busy, [wait.start_ps], [context.core.end_ps])
    return int(follows[0]) * 4 >= wait.duration_ps


RULE = Rule(
    identifier="MS104",
    title="Store or local copy waited for at once",
    family="Exposed DMA waits",
    sees="A copy out of VMEM, or inside it, is started and waited for with next to no work in between.",
    costs="Its whole latency and transfer time lie open, though nothing may need it for a while.",
    example="out.start(); out.wait(); next_layer()",
    advice="Wait for it only before its source is overwritten or its destination is read.",
    verify="Compile again and run: megascope diff CAPTURE NEW",
    doubt="What follows may read the destination at once, or overwrite the source.",
    look=_look,
)
