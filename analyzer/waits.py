"""Exposed waits: every stall of a core, what ended it, and where that was started."""

from dataclasses import dataclass

from analyzer import intervals, view
from analyzer.view import CoreStep, bundle_range, optional_int


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
    by_span = {int(row["span"]): row for row in awaited.to_dict("records")}
    hidden = intervals.covered(core.in_flight, view.starts(waits), view.ends(waits))
    result = []
    for index, wait in enumerate(waits.to_dict("records")):
        cause = optional_int(wait["cause"])
        transfer = None if cause is None else by_span.get(cause)
        issued = None if transfer is None else optional_int(transfer["issued_ps"])
        free = None if transfer is None else optional_int(transfer["free_ps"])
        result.append(
            ExposedWait(
                span=int(wait["span"]),
                core=core.core,
                start_ps=int(wait["start_ps"]),
                duration_ps=int(wait["duration_ps"]),
                kind=str(kinds[index]),
                name=str(wait["name"]),
                layer=optional_int(wait["layer"]),
                phase=str(wait["phase"]),
                source=str(wait["source"]),
                bundles=bundle_range(wait["bundle_first"], wait["bundle_last"]),
                hidden_by_hbm_ps=int(hidden[index]),
                transfer_span=cause,
                transfer_track="" if transfer is None else str(transfer["track"]),
                transfer_name="" if transfer is None else str(transfer["name"]),
                transfer_bytes=None if transfer is None else optional_int(transfer["bytes"]),
                transfer_source="" if transfer is None else str(transfer["source"]),
                transfer_bundles=None
                if transfer is None
                else bundle_range(transfer["bundle_first"], transfer["bundle_last"]),
                lateness_ps=None if issued is None or free is None else max(issued - free, 0),
                outstanding_ps=None if issued is None else max(int(wait["start_ps"]) - issued, 0),
                provenance=str(wait["provenance"]),
            )
        )
    return result
