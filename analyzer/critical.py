"""The critical path: the chain of spans that sets the step time, walked backwards from the end of the step.

The core works until a wait ended; what ended the wait was a transfer; its bytes moved after those of the
transfer before it in the queue, or after the latency from its issue; and it was issued by the core at work.
Every picosecond of the step belongs to exactly one segment of the path.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer import intervals, view
from analyzer.view import CoreStep

HBM_BYTES = "hbm bytes"
DMA_LATENCY = "dma latency"
COLLECTIVE = "collectives"
SIGNAL = "semaphores"
UNKNOWN_WAIT = "unexplained waits"
MATRIX = "matrix work"
OTHER_WORK = "other work"
OUTSIDE = "outside the program"

PARTS = (HBM_BYTES, DMA_LATENCY, COLLECTIVE, SIGNAL, UNKNOWN_WAIT, MATRIX, OTHER_WORK, OUTSIDE)
_STALL_PART = {"ici": COLLECTIVE, "signal": SIGNAL, "unknown": UNKNOWN_WAIT, "dma": DMA_LATENCY}


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of the path: part is one of PARTS, or "work" before it is split; span was waited for."""

    part: str
    start_ps: int
    end_ps: int
    span: int | None


def critical_path(core: CoreStep) -> list[Segment]:
    """Segments from the start of the step to its end, without gaps. Work of the core is one kind, "work"."""
    waits = core.waits[(core.waits["duration_ps"] > 0).to_numpy()]
    kinds = core.wait_class[(core.waits["duration_ps"] > 0).to_numpy()]
    wait_start, wait_end = view.starts(waits), view.ends(waits)
    wait_span = waits["span"].tolist()
    cause = waits["cause"].fillna(-1).to_numpy(dtype=np.int64)
    local = view.on(core.spans, view.LOCAL_TRACKS)
    row_of = {int(span): row for row, span in enumerate(local["span"])}
    before = _previous_in_queue(local)
    start, end, issued = view.starts(local), view.ends(local), view.issues(local)
    spans = local["span"].tolist()

    path: list[Segment] = []
    now = core.end_ps
    if len(core.program) and core.program[-1, 1] < now:
        now = _push(path, "tail", int(core.program[-1, 1]), now, None)
        path[-1] = _tail(core, path[-1])
    index = int(np.searchsorted(wait_end, now, side="right")) - 1
    while now > core.start_ps:
        while index >= 0 and wait_end[index] > now:
            index -= 1
        if index < 0:
            now = _push(path, "work", core.start_ps, now, None)
            break
        now = _push(path, "work", int(wait_end[index]), now, None)
        row = row_of.get(int(cause[index]), -1) if kinds[index] == "dma" else -1
        if row < 0 or not start[row] < now:
            now = _push(
                path, _STALL_PART[str(kinds[index])], int(wait_start[index]), now, int(wait_span[index])
            )
            index -= 1
            continue
        now = _push(path, DMA_LATENCY, min(int(end[row]), now), now, int(spans[row]))
        while True:
            now = _push(path, HBM_BYTES, max(int(start[row]), core.start_ps), now, int(spans[row]))
            previous = before[row]
            if previous < 0 or now <= core.start_ps:
                break
            row = previous
        now = _push(path, DMA_LATENCY, max(int(issued[row]), core.start_ps), now, int(spans[row]))
        # The core issued it; if that lies inside a wait (clocks of a trace differ), the wait is left alone.
        while index >= 0 and wait_end[index] > now:
            index -= 1
    path.reverse()
    return path


def _push(path: list[Segment], part: str, start: int, end: int, span: int | None) -> int:
    if start < end:
        path.append(Segment(part, start, end, span))
        return start
    return end


def _tail(core: CoreStep, segment: Segment) -> Segment:
    """After the program ended: bytes still moving, or nothing of this core at all."""
    moving = intervals.clip(core.in_flight, segment.start_ps, segment.end_ps)
    part = HBM_BYTES if intervals.measure(moving) * 2 > segment.end_ps - segment.start_ps else OUTSIDE
    return Segment(part, segment.start_ps, segment.end_ps, None)


def _previous_in_queue(local: pd.DataFrame) -> list[int]:
    """For each local transfer, the row whose end let its bytes begin to move, or -1 if none did.

    That is a transfer of the same queue that ends exactly where this one starts and was still moving when
    this one was issued.
    """
    starts, ends, issued = view.starts(local), view.ends(local), view.issues(local)
    queues = local["queue"].astype(str).tolist()
    ending: dict[tuple[str, int], int] = {}
    for row in range(len(local)):
        if ends[row] > starts[row]:
            ending[queues[row], int(ends[row])] = row
    result = []
    for row in range(len(local)):
        previous = ending.get((queues[row], int(starts[row])), -1)
        result.append(previous if previous >= 0 and issued[row] < starts[row] else -1)
    return result


def totals(core: CoreStep, path: list[Segment]) -> dict[str, int]:
    """Picoseconds of the path in each of PARTS; they add up to the step. Work is split by unit."""
    result = dict.fromkeys(PARTS, 0)
    work = intervals.from_spans(
        [s.start_ps for s in path if s.part == "work"], [s.end_ps for s in path if s.part == "work"]
    )
    result[MATRIX] = intervals.measure(intervals.intersection(work, core.mxu))
    result[OTHER_WORK] = intervals.measure(work) - result[MATRIX]
    for segment in path:
        if segment.part != "work":
            result[segment.part] += segment.end_ps - segment.start_ps
    return result


def verdict(core: CoreStep, parts: dict[str, int]) -> tuple[str, str]:
    """What bounds the step: an id (one of PARTS) and a sentence with shares of the critical path."""
    window = core.window_ps
    if window <= 0 or not any(parts.values()):
        return "unknown", "unknown: the timeline of this step is empty"
    largest = max(parts, key=lambda part: parts[part])
    share = parts[largest] / window
    second = sorted(parts, key=lambda part: -parts[part])[1]
    words = {
        HBM_BYTES: "HBM bandwidth",
        DMA_LATENCY: "DMA latency",
        COLLECTIVE: "exposed collectives",
        SIGNAL: "semaphore waits",
        UNKNOWN_WAIT: "waits of unknown cause",
        MATRIX: "matrix work",
        OTHER_WORK: "vector and scalar work",
        OUTSIDE: "time outside the program of this core",
    }
    sentence = f"bound by {words[largest]} ({share:.0%})"
    if parts[second] > 0.1 * window:
        sentence += f", then {words[second]} ({parts[second] / window:.0%})"
    return largest, sentence
