"""MS107: a copy that is waited for before work that does not need it."""

from collections.abc import Iterator

import numpy as np

from analyzer import intervals
from analyzer.findings.base import LOW, Context, Finding, Rule
from analyzer.replay import Edit
from analyzer.timeline import Track
from analyzer.units import duration
from analyzer.view import place_key
from analyzer.waits import ExposedWait

SHARE = 0.25  # of the stall that the work in between must be able to hide


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    if context.stays is None:
        return
    known = context.stays[(context.stays["first_use_ps"].notna() & context.stays["span"].notna()).to_numpy()]
    spans, uses = (known[name].to_numpy(dtype=np.int64).tolist() for name in ("span", "first_use_ps"))
    first_use = dict(zip(spans, uses, strict=True))
    waits = [
        w
        for w in context.waits
        if w.kind == "dma" and w.transfer_track == Track.HBM_READ and w.transfer_span in first_use
    ]
    used = np.array(
        [first_use[w.transfer_span] for w in waits if w.transfer_span is not None], dtype=np.int64
    )
    ends = np.array([w.start_ps + w.duration_ps for w in waits], dtype=np.int64)
    between = intervals.covered(context.core.busy, ends, np.maximum(used, ends)).tolist()
    groups: dict[str, list[tuple[ExposedWait, int, int]]] = {}
    for wait, work, use in zip(waits, between, used.tolist(), strict=True):
        if work >= SHARE * wait.duration_ps:
            groups.setdefault(place_key(wait.source, wait.bundles), []).append((wait, work, use))
    for members in groups.values():
        time = sum(wait.duration_ps for wait, _, _ in members)
        if not context.significant(time):
            continue
        saving, basis = context.priced(Edit(wait_at={wait.span: use for wait, _, use in members}))
        if saving is not None and not context.significant(saving):
            continue
        first = members[0][0]
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed with these waits at the first use" if saving is not None else basis,
            confidence=LOW,
            source=first.source,
            bundles=first.bundles,
            phase=first.phase,
            layers=tuple(dict.fromkeys(wait.layer for wait, _, _ in members)),
            count=len(members),
            evidence=(
                f"{len(members)} stalls of {duration(time)} together for {first.transfer_name or 'copies'}",
                f"the core then works {duration(float(np.median([work for _, work, _ in members])))} (median)"
                " before it first reads them",
            ),
        )


RULE = Rule(
    identifier="MS107",
    title="Wait stands before work that needs no copy",
    family="Exposed DMA waits",
    sees=(
        "The core stalls for a copy and then works, for at least a quarter of the stall, before it reads what"
        " was copied."
    ),
    costs="That work could have run while the bytes were on their way.",
    example="copy.wait(); y = norm(x); z = y @ w[...]  # the norm does not need w",
    advice="Put the wait right before the first read of what was copied.",
    verify="Compile again and run: megascope diff CAPTURE NEW",
    doubt=(
        "Reads through addresses that the simulator does not follow are not seen, and the work in between may"
        " need another copy that the same semaphore stands for."
    ),
    look=_look,
)
