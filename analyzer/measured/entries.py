"""Parts of the report on a trace, as the JSON contract has them. Unknown is None."""

from dataclasses import asdict
from typing import Any

from analyzer import intervals, metrics
from analyzer.measured import operations
from analyzer.measured.kernel import median
from analyzer.measured.load import ASYNC, OPS
from analyzer.measured.scopes import DMA_WAITS
from analyzer.measured.spans import CoreTrace
from analyzer.measured.traffic import Traffic
from analyzer.reports import contract
from analyzer.timeline import Provenance

MEASURED, COUNTED, MIXED = str(Provenance.MEASURED), str(Provenance.COUNTED), "counted / measured"
CALLS_LISTED = 1000


def phase_entry(phase: metrics.Phase, waits: int | None) -> dict[str, Any]:
    """A phase of the reported run; what a trace does not show is unknown."""
    waiting = phase.phase.rpartition("/")[2] in DMA_WAITS
    stalled = None if waits is None else phase.time_ps if waiting else 0
    return contract.phase_entry(phase) | {
        "in_flight_ps": None,
        "stalled_dma_ps": stalled,
        "stalled_ici_ps": None,
    }


def time_entry(time: metrics.CoreTime, waits: int | None) -> dict[str, Any]:
    """How the core spent the reported run; a wait counts as one for copies where its stage says so."""
    entry = contract.time_entry(time, MEASURED) | {"mxu_ps": None, "stalled_ici_ps": None}
    known = waits or 0
    return entry | {"stalled_dma_ps": waits, "stalled_other_ps": entry["stalled_ps"] - known}


def hbm_entry(
    core: int, traffic: Traffic | None, peak: float | None, window: int, wait: int | None
) -> dict[str, Any]:
    """HBM of one run: bytes counted, time measured; what a trace cannot show is None."""
    hbm = metrics.Hbm(core, *[None] * 13)
    entry = asdict(hbm) | {"peak_bytes_per_s": peak, "exposed_wait_ps": wait}
    if traffic is not None and traffic.read_bytes is not None and traffic.write_bytes is not None and window:
        moved = traffic.read_bytes + traffic.write_bytes
        entry |= {
            "read_bytes": traffic.read_bytes,
            "write_bytes": traffic.write_bytes,
            "copies": traffic.copies,
        }
        if peak:
            entry |= {
                "at_peak_ps": round(moved / peak * 1e12),
                "utilization": moved / peak * 1e12 / window,
            }
        entry["bytes_per_s"] = moved / window * 1e12
    per_core = dict(entry)
    per_core.pop("bytes_per_s", None)
    entry.setdefault("bytes_per_s", None)
    names = [name for name in per_core if name not in ("core", "peak_bytes_per_s")]
    entry["per_core"] = [per_core]
    entry["achievable_bytes_per_s"] = None
    entry["provenance"] = dict.fromkeys(names, MEASURED) | {
        "read_bytes": COUNTED,
        "write_bytes": COUNTED,
        "copies": COUNTED,
        "utilization": MIXED,
        "bytes_per_s": MIXED,
        "at_peak_ps": COUNTED,
        "peak_bytes_per_s": "stated by the trace's plane",
    }
    return entry


def runs_entry(trace: CoreTrace, traffic: list[Traffic], zero: int, peak: float | None) -> dict[str, Any]:
    """The runs one by one, and from start to start (that, not the sum of durations, is what a step takes)."""
    runs = trace.runs
    gaps = runs.start_to_start_ps
    listed = []
    for i in range(min(len(runs), CALLS_LISTED)):
        took = int(runs.duration_ps[i])
        row: dict[str, Any] = {
            "start_ps": int(runs.start_ps[i]) - zero,
            "duration_ps": took,
            "start_to_start_ps": int(gaps[i]) if i < len(gaps) else None,
        }
        if traffic:
            one = traffic[i]
            known = one.read_bytes is not None and one.write_bytes is not None and took > 0
            moved = (one.read_bytes or 0) + (one.write_bytes or 0)
            row |= {
                "hbm_bytes": moved if known else None,
                "bytes_per_s": moved / took * 1e12 if known else None,
                "utilization": moved / took * 1e12 / peak if known and peak else None,
            }
        listed.append(row)
    middle = median(runs.duration_ps)
    between = median(gaps)
    return {
        "what": runs.label,
        "count": len(runs),
        "listed": listed,
        "shortest_ps": int(runs.duration_ps.min()) if len(runs) else None,
        "median_ps": None if middle is None else int(runs.duration_ps[middle]),
        "longest_ps": int(runs.duration_ps.max()) if len(runs) else None,
        "start_to_start_median_ps": None if between is None else int(gaps[between]),
        "steps": {"what": trace.steps.label, "count": len(trace.steps)},
        "provenance": MEASURED,
    }


def core_entry(trace: CoreTrace) -> dict[str, Any]:
    """One core of the trace."""
    return {
        "core": trace.device.core,
        "name": trace.device.name,
        "device": trace.device.facts.get("device_type_string"),
        "runs": len(trace.runs),
        "median_ps": median_ps(trace) if len(trace.runs) else None,
        "operations": len(trace.device.lines[OPS]),
        "async_operations": len(trace.device.lines[ASYNC]),
        "scopes": len(trace.scopes),
    }


def category_entry(category: operations.Category, windows: intervals.Intervals) -> dict[str, Any]:
    """One category of operations, with its share of the windows."""
    whole = intervals.measure(windows)
    return asdict(category) | {
        "kind": str(category.kind),
        "share": category.time_ps / whole if whole else None,
        "provenance": {"time_ps": MEASURED, "flops": COUNTED, "bytes": COUNTED},
    }


def traffic_entry(traffic: Traffic | None) -> dict[str, Any] | None:
    """The bytes of one run and what they rest on."""
    return None if traffic is None else asdict(traffic) | {"provenance": COUNTED}


def median_ps(trace: CoreTrace) -> int:
    """Duration of the run in the middle, picoseconds; 0 where there are none."""
    index = median(trace.runs.duration_ps)
    return 0 if index is None else int(trace.runs.duration_ps[index])
