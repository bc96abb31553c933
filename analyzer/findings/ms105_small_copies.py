"""MS105: copies so small that issuing them takes longer than moving their bytes."""

from collections.abc import Iterator

import numpy as np

from analyzer import intervals, view
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.findings.code import shorter
from analyzer.replay import Edit
from analyzer.timeline import Track
from analyzer.units import duration, size

FEWEST = 16
BURST = 64  # cycles from one start to the next that make them one burst
LARGE = 64 << 10  # copies of this size take 20 ns of HBM each: issuing them is hidden


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    if not context.hbm_rate:
        return
    copies = context.core.hbm
    copies = copies[copies["bytes"].notna()]
    spans = context.core.spans
    other = [view.of(view.on(spans, (track,))) for track in (Track.MXU, Track.VECTOR)]
    scalar = intervals.subtraction(context.core.busy, intervals.union(*other))
    keys = [
        view.place_key(str(source), view.bundle_range(first, last))
        for source, first, last in zip(
            copies["source"], copies["bundle_first"], copies["bundle_last"], strict=True
        )
    ]
    places, place_of = np.unique(np.array(keys, dtype=object).astype(str), return_inverse=True)
    counts = np.bincount(place_of, minlength=len(places)) if keys else np.zeros(0, dtype=np.int64)
    for place in np.flatnonzero(counts >= FEWEST).tolist():
        mine = copies[place_of == place]
        bytes_each = float(mine["bytes"].median())
        moving = bytes_each / context.hbm_rate * 1e12
        issued = np.sort(view.issues(mine))
        gaps = intervals.covered(scalar, issued[:-1], issued[1:])
        # What is started once per layer or tile is no burst, however small it is.
        burst = issued[1:] - issued[:-1] <= BURST * (context.cycle_ps or 0.0)
        time = int(gaps[burst].sum())
        if burst.sum() < FEWEST - 1 or bytes_each >= LARGE or not context.significant(time):
            continue
        each = float(np.median(gaps[burst]))
        if each <= moving:
            continue
        when = intervals.intersection(intervals.from_spans(issued[:-1][burst], issued[1:][burst]), scalar)
        gain = round(time * (1 - bytes_each / LARGE))
        saving, basis = context.priced(Edit(shorten=shorter([(when, gain)])))
        if not context.significant(gain if saving is None else saving):
            continue
        first = mine.iloc[0]
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis=f"replayed with copies of {size(LARGE)}" if saving is not None else basis,
            confidence=MEDIUM,
            source=str(first["source"]),
            bundles=view.bundle_range(first["bundle_first"], first["bundle_last"]),
            phase=str(first["phase"]),
            layers=tuple(dict.fromkeys(view.optional_int(layer) for layer in mine["layer"])),
            count=len(mine),
            evidence=(
                f"{len(mine):,} copies of {size(bytes_each)} (median): the bytes of one take"
                f" {duration(moving)}, issuing it takes {duration(each)} of scalar work",
                f"scalar work between them takes {duration(time)} in all",
            ),
        )


RULE = Rule(
    identifier="MS105",
    title="Copies too small to keep HBM busy",
    family="Exposed DMA waits",
    sees=(
        "At least 16 copies started at one place, each within 64 cycles of the one before, are so small that"
        " the scalar work between two of them takes longer than the bytes of one."
    ),
    costs="The core's scalar unit, not HBM, sets the rate of the copies.",
    example="for r in range(256): copy(x.at[r], buffer.at[r]).start()  # 4 KB each",
    advice=(
        "Copy blocks of 64 KB and more with one descriptor (a strided window is one copy too); lay out the"
        " array so that what is needed together lies together."
    ),
    verify="Compile again and run: megascope diff CAPTURE NEW",
    doubt=(
        "Rows gathered by index cannot be merged. What a descriptor costs the DMA engine itself is not"
        " measured and modelled as nothing, so small copies may cost more than this."
    ),
    look=_look,
)
