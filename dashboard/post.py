"""The two diagrams people know from the published megakernels, filled with the data of a capture.

`bubbles_diagram`: LOAD / COMPUTE / STORE with the idle stretches between them. `prefetch_diagram`: the phases
of a layer above the weights that arrive meanwhile, and which of them are for the next layer.
Both are values (`Diagram`); `dashboard.post_svg` draws them.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyzer import intervals
from dashboard import text
from dashboard.index import Band, TimelineIndex

BLOCKS = 240  # at most this many blocks of one kind in a lane of a diagram


@dataclass(frozen=True, slots=True)
class Block:
    """Something that happens in a lane. kind: a colour key of the palette, or "bubble" for idle."""

    start: int
    end: int
    kind: str
    label: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Arrow:
    """From the end of one block to the start of what needed it: (lane, time) to (lane, time)."""

    from_lane: str
    from_time: int
    to_lane: str
    to_time: int


@dataclass(frozen=True, slots=True)
class Diagram:
    """A picture in terms of time, not yet of pixels.

    Attributes:
        lanes: name -> blocks in time order.
        spans: labelled stretches under the lanes (ramp, steady state, drain; layers).
    """

    title: str
    start: int
    end: int
    lanes: dict[str, list[Block]]
    arrows: list[Arrow]
    spans: list[Band]
    provenance: str


def repeats(index: TimelineIndex) -> tuple[Band, ...]:
    """The layers; where none is named, from one run of the first repeated phase to the next."""
    if index.layers:
        return index.layers
    labels = [b.label for b in index.phases]
    first = next((x for x in labels if labels.count(x) > 1), None) if len(labels) < 20_000 else None
    starts = [b.start for b in index.phases if b.label == first] if first is not None else []
    ends = [*starts[1:], index.phases[-1].end] if starts else []
    return tuple(Band(s, e, f"repeat {i}", i) for i, (s, e) in enumerate(zip(starts, ends, strict=True)))


def union(index: TimelineIndex, tracks: tuple[str, ...], start: int, end: int) -> intervals.Intervals:
    """When any span of `tracks` was running within a window."""
    parts = []
    for track in tracks:
        lane = index.lane(track)
        if lane is not None:
            marks = lane.query(start, end, 1)
            parts.append(intervals.from_spans(marks.start, marks.end))
    out = intervals.EMPTY
    for part in parts:
        out = intervals.union(out, part)
    return intervals.clip(out, start, end)


def simplify(found: intervals.Intervals, limit: int = BLOCKS) -> intervals.Intervals:
    """At most `limit` intervals: all gaps below one length are closed, so that equal gaps fare alike."""
    if len(found) <= limit:
        return found
    gaps = found[1:, 0] - found[:-1, 1]
    # The longest gap that must go decides; whatever is not longer goes with it.
    least = np.sort(gaps)[len(gaps) - limit] if limit > 1 else gaps.max()
    keep = np.flatnonzero(gaps > least)
    starts = np.concatenate((found[:1, 0], found[keep + 1, 0]))
    ends = np.concatenate((found[keep, 1], found[-1:, 1]))
    return np.stack((starts, ends), axis=1)


def _blocks(found: intervals.Intervals, kind: str, label: str, least: int) -> list[Block]:
    return [
        Block(s, e, kind, label, text.duration(e - s))
        for s, e in found.tolist()
        if e - s >= least or len(found) < 3
    ]


def bubbles_diagram(
    index: TimelineIndex, window: tuple[int, int] | None = None, provenance: str = "unknown"
) -> Diagram:
    """LOAD, COMPUTE and STORE of a window, with what stood still in between, and ramp / steady / drain."""
    start, end = window or (index.start, index.end)
    least = max(1, (end - start) // 2000)
    load = union(index, ("hbm_read",), start, end)
    store = union(index, ("hbm_write",), start, end)
    matrix = union(index, ("mxu",), start, end)
    vector = intervals.subtraction(union(index, ("vector",), start, end), matrix)
    ici = union(index, ("ici_send", "ici_recv"), start, end)
    stalled = union(index, ("wait",), start, end)
    working = intervals.subtraction(intervals.union(matrix, vector), stalled)
    load_shown, work_shown = simplify(load), simplify(working, 2 * BLOCKS)
    talk = intervals.subtraction(intervals.intersection(ici, stalled), working)
    talk = intervals.subtraction(simplify(talk), work_shown)
    compute = []
    for kind, label, part in (
        ("matrix", "matrix", intervals.intersection(work_shown, simplify(matrix, 2 * BLOCKS))),
        ("vector", "vector", intervals.subtraction(work_shown, simplify(matrix, 2 * BLOCKS))),
        ("collective", "collective", talk),
    ):
        compute += _blocks(part, kind, label, least)
    waiting = intervals.subtraction(intervals.subtraction(simplify(stalled, 2 * BLOCKS), work_shown), talk)
    compute += _blocks(waiting, "wait", "wait", least)
    # Where the capture cannot see transfers, their absence is no bubble.
    idle = intervals.complement(load_shown, start, end) if index.lane("hbm_read") else intervals.EMPTY
    lanes = {
        "LOAD": _blocks(load_shown, "transfer", "HBM → VMEM", least)
        + _blocks(idle, "bubble", "bubble", least),
        "COMPUTE": compute,
        "STORE": _blocks(simplify(store), "write", "VMEM → HBM", 0),
    }
    return Diagram(
        title="Kernel bubbles",
        start=start,
        end=end,
        lanes={name: sorted(blocks, key=lambda b: (b.start, b.end)) for name, blocks in lanes.items()},
        arrows=[],
        spans=_regimes(start, end, load, working),
        provenance=provenance,
    )


def _regimes(start: int, end: int, load: intervals.Intervals, work: intervals.Intervals) -> list[Band]:
    """Ramp: until the core first works on loaded data. Drain: after the last byte was loaded."""
    if len(load) == 0 or len(work) == 0:
        return []
    loaded = work[work[:, 1] > load[0, 0]]
    steady = int(max(load[0, 0], loaded[0, 0])) if len(loaded) else start
    drained = max(steady, int(load[-1, 1]))
    parts = (("ramp", start, steady), ("steady state", steady, drained), ("drain", drained, end))
    return [Band(s, e, name, None) for name, s, e in parts if e > s]


def phase_kind(index: TimelineIndex, start: int, end: int) -> str:
    """What mostly happens in a phase: "collective", "matrix", "vector", or "scalar" where it is not seen."""
    window = max(1, end - start)
    stalled = union(index, ("wait",), start, end)
    ici = union(index, ("ici_send", "ici_recv"), start, end)
    if intervals.measure(intervals.intersection(stalled, ici)) > 0.5 * window:
        return "collective"
    if index.lane("mxu") is None and index.lane("vector") is None:
        return "scalar"
    return "matrix" if intervals.measure(union(index, ("mxu",), start, end)) > 0.1 * window else "vector"


def prefetch_diagram(index: TimelineIndex, number: int, provenance: str = "unknown") -> Diagram:
    """Layer `number` (of `repeats`) and the start of the next: its phases above the copies in flight.

    Copies are grouped by name in the order served. A group is "for the next layer" if the wait that it ends
    lies there; where nobody waited for it, if the next phase that uses this weight does.
    """
    layers = repeats(index)
    layer = layers[number]
    following = layers[number + 1] if number + 1 < len(layers) else None
    end = layer.end
    if following:
        head = [b for b in index.phases if b.start >= following.start and b.end <= following.end][:2]
        end = head[-1].end if head else min(following.end, following.start + (layer.end - layer.start) // 5)
    phases = [b for b in index.phases if b.end > layer.start and b.start < end]
    compute = [
        Block(
            max(b.start, layer.start),
            min(b.end, end),
            phase_kind(index, b.start, b.end),
            b.label,
            _of(b, layers),
        )
        for b in phases
    ]
    groups, needed = _copies(index, layer.start, end)
    transfers: list[Block] = []
    arrows: list[Arrow] = []
    for (name, begin, stop), when in zip(groups, needed, strict=True):
        ahead = when is not None and when >= layer.end and begin < layer.end
        label = f"{name} (next)" if ahead else name
        start = max(begin, transfers[-1].end) if transfers else begin  # queues of a trace may overlap
        if start >= stop:
            continue
        transfers.append(
            Block(start, stop, "write" if ahead else "transfer", label, text.duration(stop - start))
        )
        if when is not None and when <= end:
            arrows.append(Arrow("HBM → VMEM", stop, "COMPUTE", max(when, stop)))
    busy = intervals.from_spans(
        np.array([t.start for t in transfers], np.int64), np.array([t.end for t in transfers], np.int64)
    )
    least = max(1, (end - layer.start) // 300)
    idle = _blocks(intervals.complement(busy, layer.start, end), "bubble", "bubble", least)
    spans = [Band(layer.start, min(layer.end, end), layer.label, layer.layer)]
    if following and end > following.start:
        spans.append(Band(following.start, end, following.label, following.layer))
    return Diagram(
        title=f"Cross-layer prefetch of {layer.label}",
        start=layer.start,
        end=end,
        lanes={
            "COMPUTE": compute,
            "HBM → VMEM": sorted(transfers + idle, key=lambda b: (b.start, b.end)),
        },
        arrows=arrows,
        spans=spans,
        provenance=provenance,
    )


def _of(band: Band, layers: tuple[Band, ...]) -> str:
    owner = next((x.label for x in layers if x.start <= band.start < x.end), "")
    return f"{owner} {text.duration(band.end - band.start)}".strip()


def _copies(
    index: TimelineIndex, start: int, end: int
) -> tuple[list[tuple[str, int, int]], list[int | None]]:
    """(runs of copies of one weight: name, start, end; when the first of each run was needed, if known)."""
    lane = index.lane("hbm_read")
    if lane is None:
        return [], []
    marks = lane.query(start, end, 1)
    marks = marks.take(np.argsort(marks.start, kind="stable"))
    facts = index.timeline.iloc[marks.row]
    waits = _needed(index)
    runs: list[list[Any]] = []
    for name, begin, stop, span in zip(
        facts["name"], marks.start.tolist(), marks.end.tolist(), facts["span"].tolist(), strict=True
    ):
        short = _short(name)
        when = waits.get(span)
        if runs and runs[-1][0] == short and begin - runs[-1][2] < max(1, (end - start) // 100):
            runs[-1][2] = max(runs[-1][2], min(stop, end))
            if runs[-1][3] is None:
                runs[-1][3] = when
        else:
            runs.append([short, max(begin, start), min(stop, end), when])
    least = max(1, (end - start) // 400)
    kept = [r for r in runs if r[2] - r[1] >= least]
    users = _users(index)
    for run in kept:
        if run[3] is None and run[0] in users:
            # Resident before anybody had to wait: needed when the phase that uses this weight next runs.
            use = next((b for b in index.phases if b.label == users[run[0]] and b.end > run[1]), None)
            run[3] = None if use is None else use.start
    return [(r[0], r[1], r[2]) for r in kept], [r[3] for r in kept]


def _users(index: TimelineIndex) -> dict[str, str]:
    """Name of a weight -> the phase in which most waits for it happen."""
    lane = index.lane("wait")
    if lane is None or len(lane.all) == 0 or not index.phases:
        return {}
    waits = index.timeline.iloc[lane.all.row]
    known = waits["cause"].notna().to_numpy()
    names = pd.Series(index.timeline["name"].to_numpy(), index=index.timeline["span"].to_numpy())
    caused = names[~names.index.duplicated()].reindex(waits["cause"][known].astype("int64")).to_numpy()
    starts = np.array([b.start for b in index.phases], np.int64)
    # A wait that ends exactly where a phase ends belongs to that phase.
    place = np.searchsorted(starts, lane.all.end[known] - 1, side="right") - 1
    votes = Counter(
        (_short(name), index.phases[p].label)
        for name, p in zip(caused, place.tolist(), strict=True)
        if p >= 0
    )
    out: dict[str, str] = {}
    for (name, label), _ in votes.most_common():
        out.setdefault(name, label)
    return out


def _short(name: object) -> str:
    """`w_gate` of `w_gate[3,12]`."""
    return text.shorten(str(name).split("[", 1)[0], 24) or "copy"


def _needed(index: TimelineIndex) -> dict[int, int]:
    """Span of a copy -> end of the first wait that it ended."""
    lane = index.lane("wait")
    if lane is None or len(lane.all) == 0:
        return {}
    causes = index.timeline["cause"].iloc[lane.all.row]
    known = causes.notna().to_numpy()
    out: dict[int, int] = {}
    for cause, stop in zip(causes[known].astype("int64").tolist(), lane.all.end[known].tolist(), strict=True):
        out.setdefault(cause, stop)
    return out
