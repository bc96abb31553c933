"""One core in one step, cut out of the timeline once: what metrics, bubbles and rules all look at.

Definitions (docs/metrics.md): a transfer is *in flight* while its bytes move, from `start_ps` to its end; it
is *outstanding* from `issued_ps` to its end. A core is *stalled* inside its wait spans and *busy* in the rest
of the time that its program runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer import intervals
from analyzer.intervals import Intervals
from analyzer.timeline import Kind, Track

HBM_TRACKS = (Track.HBM_READ, Track.HBM_WRITE)
LOCAL_TRACKS = (*HBM_TRACKS, Track.VMEM_COPY)
ICI_TRACKS = (Track.ICI_SEND, Track.ICI_RECV)
PROGRAM_TRACKS = (Track.MXU, Track.VECTOR, Track.SCALAR, Track.WAIT, Track.REGION)


@dataclass(frozen=True, slots=True, eq=False)
class CoreStep:
    """The spans of one core in one step, sorted by start, with the interval sets everybody needs.

    Attributes:
        start_ps, end_ps: the window of the whole step (over all cores of the timeline).
        spans: every span of the core in the step. hbm, waits, sends, regions: parts of it.
        wait_class: per row of `waits`: "dma", "ici", "signal" (a semaphore that no transfer raised) or
            "unknown" (the timeline does not say what ended the wait).
        in_flight: HBM bytes moving. outstanding: HBM copies issued and not complete.
        program: from the first to the last thing the core's program does.
    """

    core: int
    step: int
    start_ps: int
    end_ps: int
    spans: pd.DataFrame
    hbm: pd.DataFrame
    waits: pd.DataFrame
    sends: pd.DataFrame
    regions: pd.DataFrame
    wait_class: NDArray[np.object_]
    in_flight: Intervals
    outstanding: Intervals
    stalled: Intervals
    stalled_dma: Intervals
    stalled_ici: Intervals
    program: Intervals
    busy: Intervals
    mxu: Intervals

    @property
    def window_ps(self) -> int:
        """Length of the step in picoseconds."""
        return self.end_ps - self.start_ps


def starts(frame: pd.DataFrame) -> NDArray[np.int64]:
    """Start of each span in picoseconds."""
    return frame["start_ps"].to_numpy(dtype=np.int64)


def ends(frame: pd.DataFrame) -> NDArray[np.int64]:
    """End of each span in picoseconds."""
    return starts(frame) + frame["duration_ps"].to_numpy(dtype=np.int64)


def issues(frame: pd.DataFrame) -> NDArray[np.int64]:
    """When each transfer was issued; where that is unknown, when its bytes began to move."""
    known = frame["issued_ps"].notna().to_numpy()
    issued = frame["issued_ps"].fillna(0).to_numpy(dtype=np.int64)
    return np.where(known, np.minimum(issued, starts(frame)), starts(frame))


def on(frame: pd.DataFrame, tracks: Iterable[Track]) -> pd.DataFrame:
    """The rows of some tracks, sorted by start (ties keep the order of issue)."""
    chosen = frame[frame["track"].isin([str(t) for t in tracks])]
    return chosen.sort_values(["start_ps", "span"], kind="stable")


def of(frame: pd.DataFrame) -> Intervals:
    """The union of the spans of a frame."""
    return intervals.from_spans(starts(frame), ends(frame))


def steps(timeline: pd.DataFrame) -> list[int]:
    """The steps in a timeline, in order."""
    return sorted(int(s) for s in timeline["step"].unique())


def cores(timeline: pd.DataFrame) -> list[int]:
    """The cores in a timeline, in order."""
    return sorted(int(c) for c in timeline["core"].unique())


def bundle_range(first: object, last: object) -> tuple[int, int] | None:
    """The pair of bundle indices, or None where they are unknown."""
    if pd.isna(first):  # type: ignore[call-overload]
        return None
    return int(first), int(first if pd.isna(last) else last)  # type: ignore[call-overload]


def optional_int(value: object) -> int | None:
    """An int, or None for a missing value."""
    return None if pd.isna(value) else int(value)  # type: ignore[call-overload]


def place_key(source: str, bundles: tuple[int, int] | None) -> str:
    """What tells one place of the program from another: its source line, else its first bundle."""
    return source or ("" if bundles is None else f"{bundles[0]:#x}")


def classify_waits(waits: pd.DataFrame, timeline: pd.DataFrame) -> NDArray[np.object_]:
    """What ended each wait: "dma", "ici", "signal" or "unknown" (see `CoreStep.wait_class`)."""
    result = np.full(len(waits), "unknown", dtype=object)
    if len(waits) == 0:
        return result
    caused = waits["cause"].notna().to_numpy()
    cause = waits["cause"].fillna(-1).to_numpy(dtype=np.int64)
    awaited = timeline[timeline["span"].isin(cause)]  # few of the spans of all cores
    track_of = pd.Series(awaited["track"].astype(str).to_numpy(), index=awaited["span"].to_numpy())
    track_of = track_of[~track_of.index.duplicated()]
    track = track_of.reindex(cause).to_numpy(dtype=object)
    local = np.isin(track.astype(str), [str(t) for t in LOCAL_TRACKS])
    remote = np.isin(track.astype(str), [str(t) for t in ICI_TRACKS])
    collective = (waits["kind"].astype(str) == Kind.COLLECTIVE).to_numpy()
    result[caused] = "signal"
    result[remote | collective] = "ici"
    result[local & ~collective] = "dma"
    return result


def core_step(
    timeline: pd.DataFrame, core: int, step: int = 0, window: tuple[int, int] | None = None
) -> CoreStep:
    """Cut one core and step out of a timeline.

    Args:
        timeline: the whole table.
        core: core to look at.
        step: step to look at.
        window: start and end of the step in picoseconds; by default the extent of all spans of the step.
    """
    of_step = timeline[timeline["step"] == step]
    spans = of_step[of_step["core"] == core].sort_values(["start_ps", "span"], kind="stable")
    if window is None:
        window = (0, 0)
        if len(of_step):
            window = (int(starts(of_step).min()), int(ends(of_step).max()))
    start, end = window
    hbm, waits = on(spans, HBM_TRACKS), on(spans, (Track.WAIT,))
    program_spans = on(spans, PROGRAM_TRACKS)
    program = (
        intervals.single(int(starts(program_spans).min()), int(ends(program_spans).max()))
        if len(program_spans)
        else intervals.EMPTY
    )
    program = intervals.clip(program, start, end)
    wait_class = classify_waits(waits, of_step)
    stalled = intervals.clip(of(waits), start, end)
    return CoreStep(
        core=core,
        step=step,
        start_ps=start,
        end_ps=end,
        spans=spans,
        hbm=hbm,
        waits=waits,
        sends=on(spans, (Track.ICI_SEND,)),
        regions=on(spans, (Track.REGION,)),
        wait_class=wait_class,
        in_flight=intervals.clip(of(hbm), start, end),
        outstanding=intervals.clip(intervals.from_spans(issues(hbm), ends(hbm)), start, end),
        stalled=stalled,
        stalled_dma=intervals.clip(of(waits[wait_class == "dma"]), start, end),
        stalled_ici=intervals.clip(of(waits[wait_class == "ici"]), start, end),
        program=program,
        busy=intervals.subtraction(program, stalled),
        mxu=intervals.clip(of(on(spans, (Track.MXU,))), start, end),
    )
