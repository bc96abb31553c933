"""MS202: barriers and signals: semaphores that other cores raise without sending bytes."""

from collections.abc import Iterator

from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.replay import Edit
from analyzer.units import duration
from analyzer.view import place_key
from analyzer.waits import ExposedWait


def is_signal(wait: ExposedWait) -> bool:
    """Whether what ended the wait carried no bytes: a barrier, or a bare signal."""
    if wait.kind == "signal":
        return True
    return wait.kind == "ici" and (wait.transfer_span is None or wait.transfer_bytes == 0)


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    groups: dict[tuple[str, str], list[ExposedWait]] = {}
    for wait in context.waits:
        if is_signal(wait):
            groups.setdefault((wait.phase, place_key(wait.source, wait.bundles)), []).append(wait)
    for (phase, _), waits in groups.items():
        time = sum(wait.duration_ps for wait in waits)
        if not context.significant(time):
            continue
        saving, basis = context.priced(Edit(no_wait=frozenset(wait.span for wait in waits)))
        if saving is not None and not context.significant(saving):
            continue
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed without these waits" if saving is not None else basis,
            confidence=MEDIUM,
            source=waits[0].source,
            bundles=waits[0].bundles,
            phase=phase,
            layers=tuple(dict.fromkeys(wait.layer for wait in waits)),
            count=len(waits),
            evidence=(
                f"{len(waits)} waits for signals, {duration(time)} together,"
                f" {duration(time / len(waits))} each",
            ),
        )


RULE = Rule(
    identifier="MS202",
    title="Exposed barrier or signal",
    family="Collectives",
    sees="The core stalls on a semaphore that other cores raise by a signal without bytes.",
    costs="A round trip between cores in which this core does nothing.",
    example="barrier()  # at each layer, although the receive semaphores already order the layers",
    advice=(
        "Use one barrier per step; order everything else by the receive semaphores of the copies. "
        "Signal early and wait late: start weight copies between the two."
    ),
    verify="Compile again and run: megascope diff CAPTURE NEW",
    doubt="Removing a barrier is wrong where a peer could still write into a buffer that is in use.",
    look=_look,
)
