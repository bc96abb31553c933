"""Where in the step a finding happens: the stretch that its link shows."""

from typing import Any

import numpy as np

from dashboard.index import TimelineIndex
from dashboard.loading import Loaded


def window_of(loaded: Loaded, finding: dict[str, Any]) -> tuple[int, int] | None:
    """A window around the longest span that a finding is about, or None if it names no place in the step.

    Spans that touch its bundles count; where none does, spans with its source line; then bubbles with it.
    Waits are preferred, because most findings are about time lost.
    """
    index = loaded.index()
    chosen = _longest(index, finding)
    if chosen is None and finding.get("source"):
        bubbles = loaded.bubbles(index.core)
        same = bubbles[bubbles["source"] == finding["source"]]
        if len(same):
            row = same.loc[same["duration_ps"].idxmax()]
            chosen = (int(row["start_ps"]), int(row["start_ps"] + row["duration_ps"]))
    if chosen is None:
        return None
    room = max(1_000_000, 2 * (chosen[1] - chosen[0]))
    return max(index.start, chosen[0] - room), min(index.end, chosen[1] + room)


def _longest(index: TimelineIndex, finding: dict[str, Any]) -> tuple[int, int] | None:
    bundles, source = finding.get("bundles"), finding.get("source")
    lanes = sorted(index.lanes, key=lambda lane: lane.track != "wait")
    if bundles:
        best = None
        for lane in lanes:
            marks = lane.all
            touches = (marks.bundle_first >= 0) & (marks.bundle_first <= bundles[1])
            touches &= np.maximum(marks.bundle_last, marks.bundle_first) >= bundles[0]
            found = np.flatnonzero(touches)
            if len(found):
                k = found[int(marks.busy[found].argmax())]
                best = (int(marks.start[k]), int(marks.end[k]))
                break
        if best:
            return best
    if source:
        sources = index.timeline["source"]
        for lane in lanes:
            marks = lane.all
            found = np.flatnonzero(sources.iloc[marks.row].to_numpy() == source)
            if len(found):
                k = found[int(marks.busy[found].argmax())]
                return int(marks.start[k]), int(marks.end[k])
    return None
