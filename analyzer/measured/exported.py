"""Reads back what `megascope export --to xplane` wrote: the whole span table, with its own provenance."""

from typing import Any

import pandas as pd

from analyzer import timeline as table
from analyzer.export_xplane import EXPORTED, OWN_LINE
from analyzer.timeline import Track
from analyzer.xplane.inputs import Trace, tpu_planes
from analyzer.xplane.space import Plane

_STATS = (
    "span", "step", "layer", "bytes", "bundle_first", "bundle_last", "issued_ps", "free_ps", "cause",
    "operand", "kind", "phase", "queue", "source", "provenance", "name",
)  # fmt: skip


def provenance_of(facts: Any) -> str | None:
    """The provenance that an exported plane states; None for a plane that a profiler wrote."""
    value = facts.get(EXPORTED)
    return str(value) if value else None


def read_timeline(trace: Trace) -> pd.DataFrame:
    """The span table that was exported."""
    rows: list[dict[str, object]] = []
    for space in trace.spaces:
        for index in tpu_planes(space):
            rows += _plane(space.planes[index])
    rows.sort(key=lambda row: row["span"])  # type: ignore[arg-type,return-value]
    return table.from_rows(rows)


def _plane(plane: Plane) -> list[dict[str, object]]:
    zero = plane.stats.get("megascope_zero_ps")
    shift = zero if isinstance(zero, int) else 0
    core = int(plane.name.rpartition(":")[2])
    rows = []
    for line in plane.lines:
        track = (
            str(Track.REGION)
            if line.name == "XLA TraceMe"
            else line.name.removeprefix(OWN_LINE).partition(" ")[0]
        )
        if line.name != "XLA TraceMe" and not line.name.startswith(OWN_LINE):
            continue
        for chunk in line.chunks():
            for i in range(len(chunk)):
                stats = chunk.stats(i)
                row: dict[str, object] = {name: stats[name] for name in _STATS if name in stats}
                row |= {"core": core, "track": track, "start_ps": int(chunk.start_ps[i]) + shift}
                row["duration_ps"] = int(chunk.duration_ps[i])
                rows.append(row)
    return rows
