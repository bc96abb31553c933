"""Exposed waits: every stall of a core, what ended it, and where that was started."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyzer import intervals, view
from analyzer.view import CoreStep, bundle_range


@dataclass(frozen=True, slots=True)
class ExposedWait:
    """One stall of a core. hidden_by_hbm_ps: the part of it in which HBM bytes were moving anyway.

    Attributes:
        kind: "dma", "ici", "signal" or "unknown".
        lateness_ps: how long after its buffer was free the awaited copy was issued; None if unknown.
        in_flight_ps: how long the awaited transfer was outstanding before the wait began.
        transfer_source, transfer_bundles: where the awaited transfer was started.
    """

    span: int
    core: int
    start_ps: int
    duration_ps: int
    kind: str
    name: str
    layer: int | None
    phase: str
    source: str
    bundles: tuple[int, int] | None
    hidden_by_hbm_ps: int
    transfer_span: int | None
    transfer_track: str
    transfer_name: str
    transfer_bytes: int | None
    transfer_source: str
    transfer_bundles: tuple[int, int] | None
    lateness_ps: int | None
    outstanding_ps: int | None
    provenance: str


def exposed_waits(core: CoreStep) -> list[ExposedWait]:
    """Every stall of one core that took time, in time order."""
    waits = core.waits[(core.waits["duration_ps"] > 0).to_numpy()]
    kinds = core.wait_class[(core.waits["duration_ps"] > 0).to_numpy()]
    if len(waits) == 0:
        return []
    awaited = core.spans[core.spans["span"].isin(waits["cause"].dropna())]
    by_span = {row["span"]: row for row in _records(awaited)}
    hidden = intervals.covered(core.in_flight, view.starts(waits), view.ends(waits)).tolist()
    result = []
    for wait, kind, behind in zip(_records(waits), kinds.tolist(), hidden, strict=True):
        cause = wait["cause"]
        transfer = by_span.get(cause)
        issued = None if transfer is None else transfer["issued_ps"]
        free = None if transfer is None else transfer["free_ps"]
        result.append(
            ExposedWait(
                span=wait["span"],
                core=core.core,
                start_ps=wait["start_ps"],
                duration_ps=wait["duration_ps"],
                kind=str(kind),
                name=str(wait["name"]),
                layer=wait["layer"],
                phase=str(wait["phase"]),
                source=str(wait["source"]),
                bundles=bundle_range(wait["bundle_first"], wait["bundle_last"]),
                hidden_by_hbm_ps=behind,
                transfer_span=cause,
                transfer_track="" if transfer is None else str(transfer["track"]),
                transfer_name="" if transfer is None else str(transfer["name"]),
                transfer_bytes=None if transfer is None else transfer["bytes"],
                transfer_source="" if transfer is None else str(transfer["source"]),
                transfer_bundles=None
                if transfer is None
                else bundle_range(transfer["bundle_first"], transfer["bundle_last"]),
                lateness_ps=None if issued is None or free is None else max(issued - free, 0),
                outstanding_ps=None if issued is None else max(wait["start_ps"] - issued, 0),
                provenance=str(wait["provenance"]),
            )
        )
    return result


_NUMBERS = (
    "span", "start_ps", "duration_ps", "layer", "bundle_first", "bundle_last", "issued_ps", "free_ps",
    "cause", "bytes",
)  # fmt: skip
_WORDS = ("name", "phase", "source", "track", "provenance")


def _records(spans: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows as dictionaries of plain values, None where unknown. Column by column, which is much faster."""
    columns = {}
    for name in _NUMBERS:
        known = spans[name].notna().tolist()
        values = spans[name].fillna(0).to_numpy(dtype=np.int64).tolist()
        columns[name] = [value if there else None for value, there in zip(values, known, strict=True)]
    columns |= {name: spans[name].tolist() for name in _WORDS}
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))
