"""HBM bubbles: where the memory stood still, what was missing, and which line is to blame.

A bubble is a maximal interval of the step in which no HBM bytes move. Its cause is read off the transfer
that ends it: was it issued late although its buffer was free (and how late), was the buffer still in use, or
had it been issued and only its latency or its place in a queue kept the bytes away?
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer import intervals, view
from analyzer.timeline import Track
from analyzer.view import CoreStep, bundle_range, optional_int

ISSUED_LATE = "issued_late"
BUFFER_NOT_FREE = "buffer_not_free"
LATENCY = "latency"
ISSUE_UNEXPLAINED = "issued_at_need"
RESULT_NOT_READY = "result_not_ready"
RAMP = "ramp"
DRAIN = "drain"
NO_TRAFFIC = "no_traffic"
UNKNOWN = "unknown"

# A copy is blamed for a bubble if its bytes take at least this share of the longest copy's of so many next.
SUBSTANTIAL = 0.25
LOOK_AHEAD = 16

TITLES = {
    ISSUED_LATE: "next copy issued late, its buffer was free",
    BUFFER_NOT_FREE: "next copy waited for its buffer",
    LATENCY: "latency of the next copy, which could not have been issued earlier",
    ISSUE_UNEXPLAINED: "next copy not issued yet (when its buffer was free is unknown)",
    RESULT_NOT_READY: "next copy writes a result that was not ready",
    RAMP: "ramp: before the first bytes",
    DRAIN: "drain: after the last bytes",
    NO_TRAFFIC: "no HBM traffic in the step",
    UNKNOWN: "unknown",
}


@dataclass(frozen=True, slots=True)
class Bubble:
    """A maximal interval without HBM bytes moving, on one core.

    Attributes:
        cause: one of the constants of this module; the largest part decides.
        late_ps: how much shorter the bubble had been, had the next copy been issued when its buffer was free.
        not_free_ps: its buffer was still in use.
        not_issued_ps: it was not issued, and it is unknown when its buffer was free.
        latency_ps: the rest: latency that an issue at the earliest moment would leave open. The four add up
            to duration_ps, except in a drain, which no copy ends.
        lateness_ps: issued_ps - free_ps of the next copy, also the part outside the bubble; None if unknown.
        ran: what the core did meanwhile, in ps: "mxu", "other work", "dma wait", "ici wait", "other wait",
            "idle".
        next_span, next_name, next_bytes: the copy that ends the bubble (the first one that is big enough to
            fill a part of it, see `_blamed`).
        source: where that copy is started ("file:line"), or what the core executed in a drain; "" if unknown.
        bundles: first and last bundle of that place, or None.
    """

    core: int
    start_ps: int
    duration_ps: int
    cause: str
    not_free_ps: int
    late_ps: int
    not_issued_ps: int
    latency_ps: int
    lateness_ps: int | None
    ran: dict[str, int]
    layer: int | None
    phase: str
    next_span: int | None
    next_name: str
    next_bytes: int | None
    source: str
    bundles: tuple[int, int] | None
    provenance: str


def _innermost(core: CoreStep, times: NDArray[np.int64]) -> list[tuple[int | None, str]]:
    """Layer and phase of the latest region entered and not left at each time."""
    if len(core.regions) == 0:
        return [(None, "")] * len(times)
    first, last = view.starts(core.regions), view.ends(core.regions)
    layers = core.regions["layer"].tolist()
    names = [str(p) or str(n) for p, n in zip(core.regions["phase"], core.regions["name"], strict=True)]
    result: list[tuple[int | None, str]] = []
    for time in times:
        index = int(np.searchsorted(first, time, side="right")) - 1
        for steps_back in range(64):
            row = index - steps_back
            if row < 0 or last[row] > time:
                break
        found = row >= 0 and first[row] <= time < last[row]
        result.append((optional_int(layers[row]), names[row]) if found else (None, ""))
    return result


def _ran(core: CoreStep, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[dict[str, int]]:
    """What the core did in each window; the values add up to the window."""
    work = intervals.subtraction(core.busy, core.mxu)
    other_wait = intervals.subtraction(core.stalled, intervals.union(core.stalled_dma, core.stalled_ici))
    parts = {
        "mxu": intervals.intersection(core.mxu, core.busy),
        "other work": work,
        "dma wait": core.stalled_dma,
        "ici wait": intervals.subtraction(core.stalled_ici, core.stalled_dma),
        "other wait": other_wait,
    }
    table = {name: intervals.covered(part, starts, ends) for name, part in parts.items()}
    table["idle"] = (ends - starts) - sum(table.values())
    return [
        {name: int(values[i]) for name, values in table.items() if values[i] > 0} for i in range(len(starts))
    ]


def find_bubbles(core: CoreStep) -> list[Bubble]:
    """Every bubble of one core in time order; none where there is no time."""
    gaps = intervals.complement(core.in_flight, core.start_ps, core.end_ps)
    if len(gaps) == 0:
        return []
    moving = core.hbm[(core.hbm["duration_ps"] > 0).to_numpy()]
    starts, issued = view.starts(moving), view.issues(moving)
    lengths = view.ends(moving) - starts
    tracks = moving["track"].astype(str).tolist()
    free = moving["free_ps"]
    free_known = free.notna().to_numpy()
    free_at = free.fillna(0).to_numpy(dtype=np.int64)
    columns = {c: moving[c].tolist() for c in ("span", "name", "bytes", "source", "provenance")}
    bundle_first, bundle_last = moving["bundle_first"].tolist(), moving["bundle_last"].tolist()
    following = np.searchsorted(starts, gaps[:, 1], side="left")
    places = _innermost(core, gaps[:, 0])
    ran = _ran(core, gaps[:, 0], gaps[:, 1])
    result = []
    for index, (start, end) in enumerate(gaps.tolist()):
        layer, phase = places[index]
        row = _blamed(lengths, int(following[index]))
        if row >= len(moving):
            result.append(_last_bubble(core, (start, end), places[index], ran[index]))
            continue
        not_free = late = not_issued = 0
        lateness = None
        if free_known[row]:
            lateness = max(int(issued[row]) - int(free_at[row]), 0)
            late = min(lateness, end - start)
            not_free = min(max(int(free_at[row]) - start, 0), end - start - late)
        else:
            not_issued = min(max(int(issued[row]) - start, 0), end - start)
        latency = end - start - late - not_free - not_issued
        parts = {
            LATENCY: latency,
            BUFFER_NOT_FREE: not_free,
            ISSUED_LATE: late,
            ISSUE_UNEXPLAINED: not_issued,
        }
        cause = max(parts, key=lambda part: parts[part])
        if cause == ISSUE_UNEXPLAINED and tracks[row] == Track.HBM_WRITE:
            cause = RESULT_NOT_READY
        if start == core.start_ps:
            cause = RAMP
        result.append(
            Bubble(
                core=core.core,
                start_ps=start,
                duration_ps=end - start,
                cause=cause,
                not_free_ps=not_free,
                late_ps=late,
                not_issued_ps=not_issued,
                latency_ps=latency,
                lateness_ps=lateness,
                ran=ran[index],
                layer=layer,
                phase=phase,
                next_span=int(columns["span"][row]),
                next_name=str(columns["name"][row]),
                next_bytes=optional_int(columns["bytes"][row]),
                source=str(columns["source"][row]),
                bundles=bundle_range(bundle_first[row], bundle_last[row]),
                provenance=str(columns["provenance"][row]),
            )
        )
    return result


def _blamed(lengths: NDArray[np.int64], row: int) -> int:
    """The first copy from `row` on that is of some size among those that follow.

    A few kilobytes between two long gaps (a norm weight, a table of positions) end a bubble on paper, but
    issuing them earlier would not have filled it: what kept the next big copy is the cause.
    """
    ahead = lengths[row : row + LOOK_AHEAD]
    return row + int(np.argmax(ahead >= SUBSTANTIAL * ahead.max())) if len(ahead) else row


def _last_bubble(
    core: CoreStep, span: tuple[int, int], place: tuple[int | None, str], ran: dict[str, int]
) -> Bubble:
    """The drain, or the whole step where nothing moves: blamed on the longest thing the core did in it."""
    start, end = span
    first = np.maximum(view.starts(core.spans), start)
    last = np.minimum(view.ends(core.spans), end)
    inside = (last - first) * (core.spans["source"] != "").to_numpy()
    source, bundles = "", None
    if inside.size and inside.max() > 0:
        row = core.spans.iloc[int(inside.argmax())]
        source, bundles = str(row["source"]), bundle_range(row["bundle_first"], row["bundle_last"])
    provenance = str(core.spans["provenance"].iloc[0]) if len(core.spans) else ""
    return Bubble(
        core=core.core,
        start_ps=start,
        duration_ps=end - start,
        cause=DRAIN if len(core.in_flight) else NO_TRAFFIC,
        not_free_ps=0,
        late_ps=0,
        not_issued_ps=0,
        latency_ps=0,
        lateness_ps=None,
        ran=ran,
        layer=place[0],
        phase=place[1],
        next_span=None,
        next_name="",
        next_bytes=None,
        source=source,
        bundles=bundles,
        provenance=provenance,
    )
