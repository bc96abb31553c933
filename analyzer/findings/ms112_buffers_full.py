"""MS112: HBM stands still because the ring has too few buffers, while VMEM has room for more."""

from collections import Counter
from collections.abc import Iterator

from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.findings.deeper import gaps, more_buffers, stalls_say_it
from analyzer.replay import Edit
from analyzer.units import duration, size
from analyzer.view import place_key

MORE = 1.25  # times the gain of issuing on time that more buffers must gain


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    full = gaps(context)
    time = sum(b.duration_ps for b in full)
    more = more_buffers(context)
    if not full or more is None or not context.significant(time) or stalls_say_it(context):
        return
    saving, basis = context.priced(more[2])
    if saving is not None and not context.significant(saving):
        return  # something else takes as long
    on_time, _ = context.priced(Edit(hoist=frozenset(more[2].issue_at)))
    if saving is not None and on_time is not None and saving < MORE * on_time:
        return  # starting copies as soon as there is room does nearly as much: MS101
    by_place: Counter[str] = Counter()
    for bubble in full:
        by_place[place_key(bubble.source, bubble.bundles)] += bubble.duration_ps
    worst = by_place.most_common(1)[0][0]
    first = next(b for b in full if place_key(b.source, b.bundles) == worst)
    by_phase: Counter[str] = Counter()
    for bubble in full:
        by_phase[bubble.phase] += bubble.duration_ps
    ran: Counter[str] = Counter()
    for bubble in full:
        ran.update(bubble.ran)
    not_free = sum(b.not_free_ps for b in full)
    yield rule.finding(
        context,
        time_ps=time,
        saving_ps=saving,
        saving_basis=f"replayed with {more[0]} more buffers of {size(more[1])}, all that fit"
        if saving is not None
        else basis,
        confidence=MEDIUM,
        source=first.source,
        bundles=first.bundles,
        phase=by_phase.most_common(1)[0][0],
        layers=tuple(dict.fromkeys(b.layer for b in full)),
        count=len(full),
        evidence=(
            f"HBM idle in {len(full)} gaps, {duration(time)} together"
            + (f"; for {duration(not_free)} of it the next copy's buffer was in use" if not_free else ""),
            f"meanwhile the core did: {', '.join(f'{n} {duration(t)}' for n, t in ran.most_common(3))}",
            f"{size((context.vmem_capacity or 0) - (context.vmem_used or 0))} of VMEM are unused",
        ),
    )


RULE = Rule(
    identifier="MS112",
    title="HBM idle: too few buffers, VMEM unused",
    family="HBM bubbles",
    sees=(
        "HBM moves nothing - during a collective, or long arithmetic - until a buffer of the ring is free and"
        " filled again; VMEM has room for more buffers, and with them the step is shorter than with all"
        " copies issued on time."
    ),
    costs="Bytes that could move now move later, when the core waits for them.",
    example="ring of 4 x 2 MB in 64 MB of VMEM: full after 3 us, while an all-reduce takes 8 us",
    advice=(
        "Give the ring more buffers, as many as fit, so that copies go on through the longest pause; or move"
        " the pause to where the ring is empty."
    ),
    verify="Compile again and run: megascope diff CAPTURE NEW",
    doubt=(
        "The buffers of one ring are told by the size of their copies; other memory may be needed at the"
        " same time that the compiler's report of VMEM does not show."
    ),
    look=_look,
)
