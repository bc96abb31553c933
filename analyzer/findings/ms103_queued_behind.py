"""MS103: the core stalls for a copy that stood in the queue behind copies needed later."""

from collections.abc import Iterator

import numpy as np

from analyzer import view
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.replay import Edit
from analyzer.units import duration, size


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    copies = context.core.hbm
    if len(copies) == 0 or not context.waits:
        return
    start, end, issued = view.starts(copies), view.ends(copies), view.issues(copies)
    spans = copies["span"].to_numpy(dtype=np.int64)
    layers = [view.optional_int(layer) for layer in copies["layer"]]
    row_of = {int(span): row for row, span in enumerate(spans)}
    needed = _first_need(context, row_of, len(spans))
    # Copies are sorted by start: what still moves at a moment begins at the first whose end is later.
    reached = np.maximum.accumulate(end)
    groups: dict[str, list[tuple[int, int, list[int]]]] = {}
    for wait in context.waits:
        row = row_of.get(wait.transfer_span if wait.transfer_span is not None else -1)
        if wait.kind != "dma" or row is None:
            continue
        ahead = np.arange(np.searchsorted(reached, issued[row], side="right"), row)
        ahead = ahead[(end[ahead] > issued[row]) & (start[ahead] < start[row])]
        ahead = ahead[(needed[ahead] > wait.start_ps) & (issued[ahead] <= issued[row])]
        moved = np.minimum(end[ahead], start[row]) - np.maximum(start[ahead], issued[row])
        delay = min(int(moved.clip(0).sum()), wait.duration_ps)
        if delay > 0:
            key = view.place_key(wait.transfer_source, wait.transfer_bundles)
            groups.setdefault(key, []).append((row, delay, ahead.tolist()))
    for members in groups.values():
        time = sum(delay for _, delay, _ in members)
        if not context.significant(time):
            continue
        later: dict[int, int] = {}
        for row, _, others in sorted(members, key=lambda member: int(issued[member[0]])):
            for other in others:  # right after the first urgent copy that it delays, no later
                later.setdefault(int(spans[other]), int(issued[row]) + 1)
        saving, basis = context.priced(Edit(issue_at=later))
        if saving is not None and not context.significant(saving):
            continue
        worst = max(members, key=lambda member: member[1])
        urgent = copies.iloc[worst[0]]
        behind = copies.iloc[worst[2]]
        ahead_bytes = behind["bytes"].sum() if behind["bytes"].notna().all() else None
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis=basis,
            confidence=MEDIUM,
            source=str(urgent["source"]),
            bundles=view.bundle_range(urgent["bundle_first"], urgent["bundle_last"]),
            phase=str(urgent["phase"]),
            layers=tuple(dict.fromkeys(layers[row] for row, _, _ in members)),
            count=len(members),
            evidence=(
                f"{len(members)} stalls for {urgent['name'] or 'copies'} hold {duration(time)} in which"
                " copies needed later moved",
                f"worst: {size(int(ahead_bytes)) if ahead_bytes is not None else 'unknown bytes'} of "
                f"{', '.join(dict.fromkeys(str(n) for n in behind['name']))} went first"
                f" (started at {', '.join(dict.fromkeys(str(s) or 'unknown' for s in behind['source']))})",
            ),
        )


def _first_need(context: Context, row_of: dict[int, int], count: int) -> np.ndarray:
    """When each copy is first waited for; -1 where no wait for it is known."""
    needed = np.full(count, -1, dtype=np.int64)
    waits = context.core.waits
    for cause, start in zip(waits["cause"].fillna(-1), waits["start_ps"], strict=True):
        row = row_of.get(int(cause))
        if row is not None and needed[row] < 0:
            needed[row] = int(start)
    return needed


RULE = Rule(
    identifier="MS103",
    title="Urgent copy queued behind copies needed later",
    family="Exposed DMA waits",
    sees=(
        "The core stalls for a copy; while that copy was outstanding, bytes of copies that were "
        "issued earlier and are waited for later went first."
    ),
    costs="Copies are served one at a time in the order of issue, so the urgent one waits for the others.",
    example=("ring.start(next_layer_tile)  # 2 MB\nbias.start(); bias.wait()     # behind it"),
    advice="Issue the urgent copy first, or issue the big ones in smaller pieces or after it.",
    verify="Compile again and run: megascope diff CAPTURE NEW",
    doubt=(
        "That copies are served in order of issue is the machine model's assumption for this chip (it"
        " fits a v6e trace); copies sharing the bandwidth would change the price."
    ),
    look=_look,
)
