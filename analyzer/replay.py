"""Replays one core's step from its timeline with a fault removed, to price the fault.

The core keeps its program: work between two events takes what it took. Copies go through their queue one at a
time in the order of issue, each as long as it took, after the latency it had. What changes is when copies are
issued, which waits exist, and how long marked stretches of work last; everything behind them moves along, so
a saving that another bottleneck would eat up is not promised. Waits for messages of other cores keep their
length. `baseline` checks that an unchanged replay gives the step back; where it does not, nothing is priced.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from analyzer import intervals, view
from analyzer.intervals import Intervals
from analyzer.view import CoreStep

TOLERANCE = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """What a replay changes.

    Attributes:
        hoist: spans of copies to issue as soon as their buffer is free (those with a known `free_ps`).
        no_wait: spans of waits that cost nothing.
        no_latency: spans of copies whose bytes move as soon as their queue is free.
        shorten: (stretches of time, share of the work's time that is kept there), disjoint.
        trim: span of a wait for messages -> picoseconds that it is shorter.
        shrink: span of a copy -> share of its bytes that is still moved.
        wait_at: span of a wait for a copy -> moment of the original step at which it is waited for instead.
        issue_at: span of a copy -> moment of the original step at which it is issued instead.
    """

    hoist: frozenset[int] = frozenset()
    no_wait: frozenset[int] = frozenset()
    no_latency: frozenset[int] = frozenset()
    shorten: tuple[tuple[Intervals, float], ...] = ()
    issue_at: Mapping[int, int] = field(default_factory=dict)
    trim: Mapping[int, int] = field(default_factory=dict)
    shrink: Mapping[int, float] = field(default_factory=dict)
    wait_at: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Replayer:
    """The events of one core in program order, prepared once; `run` replays them under an edit.

    Times are picoseconds from the start of the step; program time is time without stalls.
    """

    core: CoreStep
    copy_span: list[int]
    copy_issue: list[int]
    copy_free: list[int | None]
    copy_latency: list[int]
    copy_length: list[int]
    copy_queue: list[str]
    wait_span: list[int]
    wait_start: list[int]
    wait_length: list[int]
    wait_copy: list[int]
    wait_tail: list[int]
    work_end: int
    after: int

    def run(self, edit: Edit | None = None) -> int:
        """Step time in picoseconds under an edit."""
        edit = edit or Edit()
        issue_at = [
            edit.issue_at[span] - self.core.start_ps
            if span in edit.issue_at
            else min(free, issue)
            if free is not None and span in edit.hoist
            else issue
            for span, issue, free in zip(self.copy_span, self.copy_issue, self.copy_free, strict=True)
        ]
        copies, waits = len(issue_at), len(self.wait_start)
        wait_at = self.wait_start
        if edit.wait_at:
            own = zip(self.wait_span, self.wait_start, strict=True)
            wait_at = [
                edit.wait_at.get(span, at + self.core.start_ps) - self.core.start_ps for span, at in own
            ]
        times = np.array([*issue_at, *wait_at, self.work_end], dtype=np.int64)
        clock = self._program_time(times, edit)
        is_wait = np.concatenate((np.zeros(copies), np.ones(waits)))
        order = np.lexsort((is_wait, times[:-1], clock[:-1])).tolist()
        program = clock.tolist()
        ready: dict[str, int] = {}
        end: dict[int, int] = {}
        stall, last = 0, 0
        for event in order:
            now = program[event] + stall
            if event < copies:
                latency = 0 if self.copy_span[event] in edit.no_latency else self.copy_latency[event]
                queue = self.copy_queue[event]
                length = self.copy_length[event]
                if edit.shrink:
                    length = round(length * edit.shrink.get(self.copy_span[event], 1.0))
                finish = max(now + latency, ready.get(queue, 0)) + length
                ready[queue] = end[event] = finish
                last = max(last, finish)
                continue
            row = event - copies
            if self.wait_span[row] in edit.no_wait:
                continue
            awaited = end.get(self.wait_copy[row])
            if awaited is None:
                stall += max(self.wait_length[row] - edit.trim.get(self.wait_span[row], 0), 0)
            else:
                stall += max(awaited + self.wait_tail[row] - now, 0)
        return max(program[-1] + stall, last) + self.after

    def _program_time(self, times: np.ndarray, edit: Edit) -> np.ndarray:
        """Program time of moments of the original step, after shortening."""
        start = np.full(times.shape, self.core.start_ps, dtype=np.int64)
        moments = times + self.core.start_ps
        program = times - intervals.covered(self.core.stalled, start, moments)
        for stretches, keep in edit.shorten:
            work = intervals.covered(intervals.intersection(stretches, self.core.busy), start, moments)
            program = program - np.rint(work * (1 - keep)).astype(np.int64)
        return program

    def saving(self, edit: Edit, baseline: int | None = None) -> int | None:
        """Picoseconds the step gets shorter; None if the unchanged replay does not give the step back.

        Args:
            edit: what to change.
            baseline: result of `run()` without an edit, if it is known already.
        """
        if baseline is None:
            baseline = self.run()
        if abs(baseline - self.core.window_ps) > TOLERANCE * self.core.window_ps:
            return None
        return max(baseline - self.run(edit), 0)


def replayer(core: CoreStep) -> Replayer:
    """Prepare the replay of one core."""
    origin = core.start_ps
    copies = view.on(core.spans, view.LOCAL_TRACKS)
    starts, ends, issued = view.starts(copies), view.ends(copies), view.issues(copies)
    order = np.argsort(issued, kind="stable")
    copies, starts, ends, issued = copies.iloc[order], starts[order], ends[order], issued[order]
    queues = copies["queue"].astype(str).tolist()
    spans = [int(span) for span in copies["span"]]
    row_of = {span: row for row, span in enumerate(spans)}
    waits = core.waits
    causes = waits["cause"].fillna(-1).to_numpy(dtype=np.int64)
    wait_copy = [
        row_of.get(int(cause), -1) if kind == "dma" else -1
        for cause, kind in zip(causes, core.wait_class, strict=True)
    ]
    wait_ends, wait_starts = view.ends(waits), view.starts(waits)
    tails = [
        int(wait_ends[i] - ends[row]) if row >= 0 and wait_ends[i] > wait_starts[i] else 0
        for i, row in enumerate(wait_copy)
    ]
    work_end = int(core.program[-1, 1]) - origin if len(core.program) else 0
    last = max(work_end, int(ends.max()) - origin if len(ends) else 0)
    free = copies["free_ps"]
    return Replayer(
        core=core,
        copy_span=spans,
        copy_issue=(issued - origin).tolist(),
        copy_free=[
            None if unknown else int(at) - origin for at, unknown in zip(free, free.isna(), strict=True)
        ],
        copy_latency=_latencies(queues, issued, starts, ends),
        copy_length=(ends - starts).tolist(),
        copy_queue=queues,
        wait_span=[int(span) for span in waits["span"]],
        wait_start=(wait_starts - origin).tolist(),
        wait_length=(wait_ends - wait_starts).tolist(),
        wait_copy=wait_copy,
        wait_tail=tails,
        work_end=work_end,
        after=core.window_ps - last,
    )


def _latencies(queues: list[str], issued: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> list[int]:
    """From issue to first byte where the queue was empty; for a queued copy the smallest one seen there."""
    result: list[int | None] = []
    smallest: dict[str, int] = {}
    ready: dict[str, int] = {}
    for row, queue in enumerate(queues):
        latency = int(starts[row] - issued[row])
        queued = ready.get(queue, -1) >= starts[row]
        result.append(None if queued else latency)
        smallest[queue] = min(smallest.get(queue, latency), latency)
        ready[queue] = max(ready.get(queue, 0), int(ends[row]))
    return [
        smallest[queue] if latency is None else latency for queue, latency in zip(queues, result, strict=True)
    ]
