"""MS112: HBM stands still because every buffer is full, while VMEM has room for more."""

from collections import Counter
from collections.abc import Iterator

from analyzer import bubbles
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.findings.deeper import more_buffers, stalls_say_it
from analyzer.units import duration, size
from analyzer.view import place_key


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    full = [b for b in context.bubbles if b.cause == bubbles.BUFFER_NOT_FREE]
    time = sum(b.not_free_ps for b in full)
    more = more_buffers(context)
    if not full or more is None or not context.significant(time) or stalls_say_it(context):
        return
    saving, basis = context.priced(more[2])
    if saving is not None and not context.significant(saving):
        return  # something else takes as long
    by_place: Counter[str] = Counter()
    for bubble in full:
        by_place[place_key(bubble.source, bubble.bundles)] += bubble.duration_ps
    worst = by_place.most_common(1)[0][0]
    first = next(b for b in full if place_key(b.source, b.bundles) == worst)
    ran: Counter[str] = Counter()
    for bubble in full:
        ran.update(bubble.ran)
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
        phase=first.phase,
        layers=tuple(dict.fromkeys(b.layer for b in full)),
        count=len(full),
        evidence=(
            f"in {len(full)} gaps the next copy waited {duration(time)} for its buffer; meanwhile the core"
            f" did: {', '.join(f'{name} {duration(value)}' for name, value in ran.most_common(3))}",
            f"{size((context.vmem_capacity or 0) - (context.vmem_used or 0))} of VMEM are unused",
        ),
    )


RULE = Rule(
    identifier="MS112",
    title="HBM idle: all buffers full, VMEM unused",
    family="HBM bubbles",
    sees=(
        "HBM moves nothing because the next copy's buffer still holds what is not used yet - during a"
        " collective, or long arithmetic - and VMEM has room for more buffers."
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
