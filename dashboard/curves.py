"""Curves over time from a timeline: bytes per second and bytes in flight, exact under any binning."""

from dataclasses import dataclass

import numpy as np

from dashboard.lanes import Marks


@dataclass(frozen=True, slots=True)
class Cumulative:
    """A quantity that grows piecewise linearly: `value[i]` had been reached at `time[i]` (ps)."""

    time: np.ndarray
    value: np.ndarray

    def at(self, times: np.ndarray) -> np.ndarray:
        """The quantity at each time; constant outside the known range."""
        if len(self.time) == 0:
            return np.zeros(len(times))
        return np.interp(times, self.time, self.value)

    def rate(self, start: int, end: int, bins: int) -> tuple[np.ndarray, np.ndarray]:
        """(edges in ps [n + 1], quantity per second in each bin [n]) over a window.

        Bins are never narrower than 1 ps. Rate times width, summed, is what was added in the window.
        """
        bins = int(max(1, min(bins, end - start)))
        edges = np.linspace(start, end, bins + 1)
        return edges, np.diff(self.at(edges)) / (np.diff(edges) * 1e-12)


NOTHING = Cumulative(np.empty(0), np.empty(0))


def moved(marks: Marks) -> Cumulative:
    """Bytes moved over time by transfers; each flows evenly over its duration, overlapping ones add up."""
    if len(marks) == 0:
        return NOTHING
    end = np.maximum(marks.end, marks.start + 1)
    rate = marks.bytes / (end - marks.start)
    time, where = np.unique(np.concatenate((marks.start, end)), return_inverse=True)
    change = np.bincount(where, weights=np.concatenate((rate, -rate)), minlength=len(time))
    steps = np.cumsum(change)[:-1] * np.diff(time)
    return Cumulative(time, np.concatenate(([0.0], np.cumsum(steps))))


def in_flight(size: np.ndarray, issued: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(time in ps, bytes outstanding from that time on): issued and not yet arrived."""
    time, where = np.unique(np.concatenate((issued, end)), return_inverse=True)
    change = np.bincount(where, weights=np.concatenate((size, -size)).astype(np.float64), minlength=len(time))
    return time, np.cumsum(change)
