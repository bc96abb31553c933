"""MS201: the core stands still for messages of other cores."""

from collections.abc import Iterator

from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.findings.ms202_barrier import is_signal
from analyzer.replay import Edit
from analyzer.units import duration
from analyzer.view import place_key
from analyzer.waits import ExposedWait


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    by_wait: dict[tuple[str, str], list[ExposedWait]] = {}
    for wait in context.waits:
        if wait.kind == "ici" and not is_signal(wait):
            by_wait.setdefault((wait.phase, place_key(wait.source, wait.bundles)), []).append(wait)
    for (phase, _), waits in by_wait.items():
        time = sum(w.duration_ps for w in waits)
        if not context.significant(time):
            continue
        saving, basis = context.priced(Edit(no_wait=frozenset(wait.span for wait in waits)))
        if saving is not None and not context.significant(saving):
            continue  # other work, mostly bytes of HBM, takes as long
        hidden = sum(w.hidden_by_hbm_ps for w in waits)
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed with these waits hidden completely" if saving is not None else basis,
            confidence=MEDIUM,
            source=waits[0].source,
            bundles=waits[0].bundles,
            phase=phase,
            layers=tuple(dict.fromkeys(w.layer for w in waits)),
            count=len(waits),
            evidence=(
                f"{len(waits)} waits for messages, {duration(time)} together,"
                f" {duration(time / len(waits))} each",
                f"HBM bytes moved during {duration(hidden)} of it",
            ),
        )


RULE = Rule(
    identifier="MS201",
    title="Exposed collective",
    family="Collectives",
    sees="The core stalls on a semaphore that messages of other cores raise.",
    costs="A small collective phase is latency bound: microseconds in which this core computes nothing.",
    example="post_to_all(partial); wait_for_all()  # nothing independent in between",
    advice=(
        "Put independent work between sending and waiting (the next tiles, the next norm's weights), "
        "merge serial phases into one, send finished columns earlier, and keep weight copies in "
        "flight meanwhile."
    ),
    verify="Compile again and run: megascope diff CAPTURE NEW",
    doubt=(
        "Latencies of remote copies are model parameters, and the peers are taken to be as fast as "
        "this core; the wait of a real run also holds their skew."
    ),
    look=_look,
)
