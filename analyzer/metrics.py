"""The numbers of a step, folded from the timeline. docs/metrics.md has every definition.

All times are picoseconds, all sizes bytes. None means unknown, never zero.
"""

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer import intervals, nesting, view
from analyzer.timeline import Track
from analyzer.view import CoreStep


@dataclass(frozen=True, slots=True)
class Hbm:
    """HBM traffic of one core in one step.

    Attributes:
        read_bytes, write_bytes: None if any copy has an unknown size, or if copies cannot be seen at all.
        peak_bytes_per_s: of one core; None if the chip is unknown.
        utilization: bytes moved / (window x peak). at_peak_ps: what the bytes would take at peak.
        overlap: |in flight and core busy| / |in flight|; None if nothing was in flight.
        exposed_wait_ps: core stalled on local copies.
        in_flight_ps: bytes moving. bubble_ps: the rest of the step.
        nothing_outstanding_ps: the part of bubble_ps in which no copy was even issued.
        ramp_ps: from the start of the step to the first byte. drain_ps: from the last byte to the end.
    """

    core: int
    read_bytes: int | None
    write_bytes: int | None
    peak_bytes_per_s: float | None
    utilization: float | None
    at_peak_ps: int | None
    overlap: float | None
    exposed_wait_ps: int | None
    bubble_ps: int | None
    in_flight_ps: int | None
    nothing_outstanding_ps: int | None
    ramp_ps: int | None
    drain_ps: int | None
    copies: int | None


@dataclass(frozen=True, slots=True)
class Ici:
    """Messages of one core in one step. exposed_phases: see `exposed_phases`."""

    core: int
    messages: int | None
    sent_bytes: int | None
    exposed_wait_ps: int | None
    exposed_phases: int | None


@dataclass(frozen=True, slots=True)
class CoreTime:
    """How one core spent the step. The four stalled figures are disjoint and add up to stalled_ps."""

    core: int
    window_ps: int
    busy_ps: int
    mxu_ps: int | None
    stalled_ps: int
    stalled_dma_ps: int
    stalled_ici_ps: int
    stalled_other_ps: int
    outside_program_ps: int


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of one layer on one core: time inside it and not inside a phase nested in it.

    Attributes:
        layer: None outside any layer. phase: "" is time in no phase at all.
        entries: how often it was entered.
        read_bytes: HBM bytes that moved into the core while the phase ran, whoever asked for them.
        sent_bytes: bytes of the messages whose sending began in the phase.
        busy_ps, stalled_dma_ps, stalled_ici_ps: what the core did meanwhile. in_flight_ps: HBM bytes moving.
    """

    layer: int | None
    phase: str
    entries: int
    time_ps: int
    share: float | None
    read_bytes: int | None
    sent_bytes: int | None
    busy_ps: int
    stalled_dma_ps: int
    stalled_ici_ps: int
    in_flight_ps: int
    provenance: str


def total_bytes(frame: pd.DataFrame) -> int | None:
    """Sum of the sizes; None if any is unknown."""
    if frame["bytes"].isna().any():
        return None
    return int(frame["bytes"].fillna(0).sum())


def hbm(core: CoreStep, peak_bytes_per_s: float | None, *, visible: bool = True) -> Hbm:
    """HBM figures of one core.

    Args:
        core: the core and step.
        peak_bytes_per_s: HBM peak of one core, or None if unknown.
        visible: False where the source of the timeline cannot see copies at all (a trace without DMA
            events): then every figure is unknown instead of zero.
    """
    if not visible:
        unknown = dict.fromkeys(Hbm.__slots__, None)
        return Hbm(**(unknown | {"core": core.core, "peak_bytes_per_s": peak_bytes_per_s}))  # type: ignore[arg-type]
    reads = total_bytes(view.on(core.hbm, (Track.HBM_READ,)))
    writes = total_bytes(view.on(core.hbm, (Track.HBM_WRITE,)))
    in_flight = intervals.measure(core.in_flight)
    at_peak = None
    if reads is not None and writes is not None and peak_bytes_per_s:
        at_peak = (reads + writes) / peak_bytes_per_s * 1e12
    overlapped = intervals.measure(intervals.intersection(core.in_flight, core.busy))
    first, last = (core.in_flight[0, 0], core.in_flight[-1, 1]) if in_flight else (None, None)
    return Hbm(
        core=core.core,
        read_bytes=reads,
        write_bytes=writes,
        peak_bytes_per_s=peak_bytes_per_s,
        utilization=at_peak / core.window_ps if at_peak is not None and core.window_ps else None,
        at_peak_ps=None if at_peak is None else round(at_peak),
        overlap=overlapped / in_flight if in_flight else None,
        exposed_wait_ps=intervals.measure(core.stalled_dma),
        bubble_ps=core.window_ps - in_flight,
        in_flight_ps=in_flight,
        nothing_outstanding_ps=core.window_ps - intervals.measure(core.outstanding),
        ramp_ps=None if first is None else int(first) - core.start_ps,
        drain_ps=None if last is None else core.end_ps - int(last),
        copies=len(core.hbm),
    )


def exposed_phases(core: CoreStep) -> int:
    """Communication rounds the core had to stand still for.

    Waits for messages belong to one round until the core sends again: send to all, wait for all is one round
    however many semaphores it waits on; a reduce-scatter followed by an all-gather is two.
    """
    exposed = core.waits[(core.wait_class == "ici") & (core.waits["duration_ps"] > 0).to_numpy()]
    if len(exposed) == 0:
        return 0
    sent = np.sort(view.issues(core.sends))
    sends_before = np.searchsorted(sent, view.starts(exposed), side="right")
    return 1 + int((np.diff(sends_before) > 0).sum())


def ici(core: CoreStep, *, visible: bool = True) -> Ici:
    """Message figures of one core; everything unknown where messages cannot be seen."""
    if not visible:
        return Ici(core.core, None, None, None, None)
    return Ici(
        core=core.core,
        messages=len(core.sends),
        sent_bytes=total_bytes(core.sends),
        exposed_wait_ps=intervals.measure(core.stalled_ici),
        exposed_phases=exposed_phases(core),
    )


def core_time(core: CoreStep) -> CoreTime:
    """Split the step of one core into busy and the kinds of stall."""
    dma = intervals.measure(core.stalled_dma)
    message = intervals.measure(intervals.subtraction(core.stalled_ici, core.stalled_dma))
    stalled, busy = intervals.measure(core.stalled), intervals.measure(core.busy)
    has_units = bool((core.spans["track"] == Track.MXU).any())
    return CoreTime(
        core=core.core,
        window_ps=core.window_ps,
        busy_ps=busy,
        mxu_ps=intervals.measure(core.mxu) if has_units else None,
        stalled_ps=stalled,
        stalled_dma_ps=dma,
        stalled_ici_ps=message,
        stalled_other_ps=stalled - dma - message,
        outside_program_ps=core.window_ps - busy - stalled,
    )


def moved_before(transfers: pd.DataFrame, times: NDArray[np.int64]) -> NDArray[np.float64]:
    """Bytes moved before each time, each transfer spread evenly over its span (a point moves all at once)."""
    start, end = view.starts(transfers), np.maximum(view.ends(transfers), view.starts(transfers) + 1)
    size = transfers["bytes"].fillna(0).to_numpy(dtype=np.float64)
    rate = size / (end - start)
    points, where = np.unique(np.concatenate((start, end)), return_inverse=True)
    change = np.zeros(points.size)
    np.add.at(change, where, np.concatenate((rate, -rate)))
    moved = np.concatenate(([0.0], np.cumsum(np.cumsum(change)[:-1] * np.diff(points))))
    return np.interp(times, points, moved)


def moved_within(transfers: pd.DataFrame, sets: list[intervals.Intervals]) -> list[int | None]:
    """Bytes moved inside each interval set; None if a transfer of unknown size is in flight there.

    Whole bytes whose sum is that of all sets together: phases that fill a step have exactly its bytes.
    """
    if len(transfers) == 0 or not sets:
        return [0] * len(sets)
    pieces = np.concatenate(sets)
    owner = np.repeat(np.arange(len(sets)), [len(one) for one in sets])
    moved = moved_before(transfers, pieces[:, 1]) - moved_before(transfers, pieces[:, 0])
    total = np.bincount(owner, weights=moved, minlength=len(sets))
    unknown = view.of(transfers[transfers["bytes"].isna()])
    touched = np.bincount(
        owner, weights=intervals.covered(unknown, pieces[:, 0], pieces[:, 1]), minlength=len(sets)
    )
    return [
        None if hidden else amount
        for amount, hidden in zip(whole_parts(total).tolist(), touched, strict=True)
    ]


def whole_parts(parts: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers near the parts whose sum is the rounded sum of the parts (largest remainders)."""
    whole = np.floor(parts).astype(np.int64)
    missing = round(float(parts.sum())) - int(whole.sum())
    whole[np.argsort(whole - parts, kind="stable")[:missing]] += 1
    return whole


Place = tuple[int | None, str]


def self_times(regions: pd.DataFrame, start: int, end: int) -> dict[Place, intervals.Intervals]:
    """For each (layer, phase), when it was the innermost phase running. Regions nest.

    Returns:
        Disjoint sets that cover exactly what the regions cover, in order of first entry.
    """
    first = np.clip(view.starts(regions), start, end)
    last = np.clip(view.ends(regions), start, end)
    order = nesting.entry_order(first, last)
    if order is not None:
        first, last, regions = first[order], last[order], regions.iloc[order]
    layers = [view.optional_int(layer) for layer in regions["layer"].tolist()]
    names = [str(phase) or str(name) for phase, name in zip(regions["phase"], regions["name"], strict=True)]
    known: dict[Place, int] = {}
    of = np.array([known.setdefault(key, len(known)) for key in zip(layers, names, strict=True)], dtype=int)
    return dict(zip(known, own_times(first, last, of, len(known)), strict=True))


def own_times(
    first: NDArray[np.int64], last: NDArray[np.int64], of: NDArray[np.int64], groups: int
) -> list[intervals.Intervals]:
    """For each group of nested spans, when one of its spans was the innermost.

    Args:
        first, last: int64[S], starts and ends.
        of: int64[S], the group of each, 0 to groups - 1.
    """
    starts, ends, rows = nesting.innermost(first, last)
    order = np.argsort(of[rows], kind="stable")
    bounds = np.searchsorted(of[rows][order], np.arange(groups + 1))
    parts = [order[low:high] for low, high in itertools.pairwise(bounds.tolist())]
    return [intervals.from_spans(starts[part], ends[part]) for part in parts]


def phases(core: CoreStep, *, transfers_visible: bool = True) -> list[Phase]:
    """The table of phases of one core, in order of first entry; time in no phase comes last, if any.

    Times are exclusive, so they add up to the step. Without regions in the timeline there are no phases to
    tell apart and the table is empty.
    """
    if len(core.regions) == 0:
        return []
    times = self_times(core.regions, core.start_ps, core.end_ps)
    outside = intervals.complement(intervals.union(*times.values()), core.start_ps, core.end_ps)
    if len(outside):
        times[(None, "")] = intervals.union(times.get((None, ""), intervals.EMPTY), outside)
    places = list(times)
    pieces = np.concatenate(list(times.values()))
    owner = np.repeat(np.arange(len(places)), [len(inside) for inside in times.values()])

    def per_place(values: NDArray[np.int64]) -> list[int]:
        return np.bincount(owner, weights=values, minlength=len(places)).round().astype(np.int64).tolist()

    def covered(what: intervals.Intervals) -> list[int]:
        return per_place(intervals.covered(what, pieces[:, 0], pieces[:, 1]))

    lengths = per_place(pieces[:, 1] - pieces[:, 0])
    busy, dma, ici, moving = map(covered, (core.busy, core.stalled_dma, core.stalled_ici, core.in_flight))
    reads = moved_within(view.on(core.hbm, (Track.HBM_READ,)), list(times.values()))
    sent = _sent_within(core, pieces, owner, len(places))
    provenance = str(core.regions["provenance"].iloc[0])
    entered = Counter(
        (None if pd.isna(layer) else int(layer), str(phase) or str(name))
        for layer, phase, name in zip(
            core.regions["layer"], core.regions["phase"], core.regions["name"], strict=True
        )
    )
    return [
        Phase(
            layer=layer,
            phase=name,
            entries=entered[layer, name],
            time_ps=lengths[row],
            share=lengths[row] / core.window_ps if core.window_ps else None,
            read_bytes=reads[row] if transfers_visible else None,
            sent_bytes=sent[row] if transfers_visible else None,
            busy_ps=busy[row],
            stalled_dma_ps=dma[row],
            stalled_ici_ps=ici[row],
            in_flight_ps=moving[row],
            provenance=provenance,
        )
        for row, (layer, name) in enumerate(places)
    ]


def _sent_within(
    core: CoreStep, pieces: NDArray[np.int64], owner: NDArray[np.int64], places: int
) -> list[int | None]:
    """Bytes of the messages whose sending begins in each place; None where a size is unknown."""
    order = np.argsort(pieces[:, 0], kind="stable")
    at = view.starts(core.sends)
    row = np.searchsorted(pieces[order, 0], at, side="right") - 1
    inside = (row >= 0) & (at < pieces[order, 1][np.maximum(row, 0)])
    place = owner[order][row[inside]]
    unknown = core.sends["bytes"].isna().to_numpy(dtype=bool)[inside]
    size = core.sends["bytes"].fillna(0).to_numpy(dtype=np.int64)[inside]
    total = [0] * places
    for where, amount in zip(place.tolist(), size.tolist(), strict=True):
        total[where] += amount
    missing = set(place[unknown].tolist())
    return [None if where in missing else amount for where, amount in enumerate(total)]
