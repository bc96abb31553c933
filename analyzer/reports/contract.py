"""The report as data: the JSON contract that every other report format is made from.

Field names are promised to outside users (docs/report.md, docs/schema/report.schema.json). Times are
picoseconds, sizes bytes; unknown is None (null), never zero.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from analyzer.bubbles import TITLES, Bubble
from analyzer.findings.base import Finding
from analyzer.findings.code import Code
from analyzer.groups import Group
from analyzer.layer_path import LayerKind, LayerPath, Link
from analyzer.metrics import CoreTime, Hbm, Ici, Phase
from analyzer.units import duration

SCHEMA_VERSION = "1.0"
BUBBLES_LISTED = 200
LOOPS_LISTED = 100
LINK_LISTED = 0.01  # share of its layer that a link of a chain takes at least to be listed


def bubble_entry(bubble: Bubble) -> dict[str, Any]:
    """One bubble, its cause first as an identifier and then in words."""
    return {
        "start_ps": bubble.start_ps,
        "duration_ps": bubble.duration_ps,
        "cause": bubble.cause,
        "explanation": explain(bubble),
        "source": bubble.source or None,
        "bundles": pair(bubble.bundles),
        "layer": bubble.layer,
        "phase": bubble.phase,
        "parts": {
            "buffer_not_free_ps": bubble.not_free_ps,
            "issued_late_ps": bubble.late_ps,
            "not_issued_ps": bubble.not_issued_ps,
            "latency_ps": bubble.latency_ps,
        },
        "lateness_ps": bubble.lateness_ps,
        "meanwhile": bubble.ran,
        "next_copy": None
        if bubble.next_span is None
        else {"span": bubble.next_span, "name": bubble.next_name or None, "bytes": bubble.next_bytes},
        "core": bubble.core,
        "provenance": bubble.provenance,
    }


def explain(bubble: Bubble) -> str:
    """Why HBM stood still, in one sentence."""
    ran = sorted(bubble.ran.items(), key=lambda item: -item[1])
    meanwhile = f"; the core spent {duration(ran[0][1])} of it on {ran[0][0]}" if ran else ""
    copy = f"the next copy ({bubble.next_name})" if bubble.next_name else "the next copy"
    late = "" if bubble.lateness_ps is None else f", {duration(bubble.lateness_ps)} after its buffer was free"
    words = {
        "issued_late": f"{copy} was issued late{late}; in time, {duration(bubble.late_ps)} would be gone",
        "buffer_not_free": f"the buffer of {copy} was in use for {duration(bubble.not_free_ps)} of it",
        "latency": f"{copy} took {duration(bubble.latency_ps)} from its issue to its first byte, and nothing"
        " else was in flight",
        "issued_at_need": f"{copy} was not issued for {duration(bubble.not_issued_ps)} of it",
    }
    return words.get(bubble.cause, TITLES[bubble.cause]) + meanwhile


def group_entry(group: Group) -> dict[str, Any]:
    """Bubbles or waits folded by cause and place."""
    entry = asdict(group)
    entry["source"] = group.source or None
    entry["bundles"] = pair(group.bundles)
    entry["layers"] = list(group.layers)
    entry["meanwhile"] = entry.pop("ran")
    return entry


def finding_entry(finding: Finding, window_ps: int) -> dict[str, Any]:
    """One finding; `id` is the identifier of its rule."""
    return {
        "id": finding.rule,
        "title": finding.title,
        "time_ps": finding.time_ps,
        "share": finding.time_ps / window_ps if finding.time_ps is not None and window_ps else None,
        "saving_ps": finding.saving_ps,
        "saving_basis": finding.saving_basis,
        "confidence": finding.confidence,
        "provenance": finding.provenance,
        "source": finding.source or None,
        "bundles": pair(finding.bundles),
        "phase": finding.phase or None,
        "layers": list(finding.layers),
        "count": finding.count,
        "evidence": list(finding.evidence),
        "might_be_wrong_because": finding.doubt,
        "try": finding.advice,
        "verify_with": finding.verify,
    }


def phase_entry(phase: Phase) -> dict[str, Any]:
    """One phase of one layer."""
    return asdict(phase)


def layer_entry(row: LayerPath, window_ps: int, provenance: str) -> dict[str, Any]:
    """The stretch of the critical path in one layer (null: outside layers)."""
    return {
        "layer": row.layer,
        "start_ps": row.start_ps,
        "end_ps": row.end_ps,
        "time_ps": row.time_ps,
        "share": row.time_ps / window_ps if window_ps else None,
        "parts": parts_entry(row.parts),
        **_chain(row.chain, row.time_ps, "time_ps", 1),
        "provenance": provenance,
    }


def layer_kind_entry(kind: LayerKind, window_ps: int, provenance: str) -> dict[str, Any]:
    """Layers whose stretches are alike; `parts` are sums over them, `chain` has means."""
    count = len(kind.layers)
    return {
        "layers": list(kind.layers),
        "count": count,
        "total_ps": kind.total_ps,
        "share": kind.total_ps / window_ps if window_ps else None,
        "mean_ps": round(kind.total_ps / count),
        "min_ps": kind.min_ps,
        "max_ps": kind.max_ps,
        "parts": parts_entry(kind.parts),
        **_chain(kind.chain, kind.total_ps, "mean_ps", count),
        "provenance": provenance,
    }


def _chain(chain: Sequence[Link], total_ps: int, name: str, count: int) -> dict[str, Any]:
    """The links that take most, in order, and what all others take together; both per layer."""
    listed = [link for link in chain if link.time_ps >= LINK_LISTED * total_ps]
    return {
        "chain": [
            {
                "phase": link.phase,
                "part": link.part,
                name: round(link.time_ps / count),
                "source": link.source or None,
                "bundles": pair(link.bundles),
            }
            for link in listed
        ],
        "rest_ps": round((total_ps - sum(link.time_ps for link in listed)) / count),
    }


def parts_entry(parts: dict[str, int]) -> dict[str, int]:
    """Parts of the critical path as JSON names them."""
    return {part.replace(" ", "_") + "_ps": value for part, value in parts.items()}


def hbm_entry(
    hbm: Hbm, per_core: Sequence[Hbm], achievable: float | None, times: str, counts: str
) -> dict[str, Any]:
    """HBM figures of the reported core, and of every core of the timeline."""
    entry = asdict(hbm)
    entry["achievable_bytes_per_s"] = achievable
    entry["per_core"] = [asdict(one) for one in per_core]
    entry["provenance"] = {
        name: counts if name in ("read_bytes", "write_bytes", "copies") else times
        for name in asdict(hbm)
        if name not in ("core", "peak_bytes_per_s")
    } | {"peak_bytes_per_s": "stated by JAX for the chip"}
    return entry


def ici_entry(ici: Ici, per_core: Sequence[Ici], times: str, counts: str) -> dict[str, Any]:
    """Message figures of the reported core, and of every core of the timeline."""
    entry = asdict(ici)
    entry["per_core"] = [asdict(one) for one in per_core]
    entry["provenance"] = {
        "messages": counts,
        "sent_bytes": counts,
        "exposed_wait_ps": times,
        "exposed_phases": times,
    }
    return entry


def time_entry(time: CoreTime, provenance: str) -> dict[str, Any]:
    """How the reported core spent the step."""
    return asdict(time) | {"provenance": provenance}


def program_entry(code: Code | None, loop_trips: list[dict[str, Any]]) -> dict[str, Any]:
    """The compiled code in numbers; loops with most time of their own first."""
    if code is None:
        return {"spill_instructions": None, "spills_executed": None, "loops": []}
    iterations = {trips["start"]: trips for trips in loop_trips}
    spilled = code.bundle_of[code.program.spills]
    return {
        "spill_instructions": len(code.program.spills),
        "spills_executed": int(code.executed[spilled].sum()),
        "loops": [
            {
                "bundles": [loop.first, loop.last],
                "source": loop.source or None,
                "entries": iterations.get(loop.first, {}).get("entries"),
                "iterations": loop.iterations,
                "own_bundles": len(loop.own),
                "executed_bundles": loop.executed,
                "time_ps": loop.time_ps,
                "provenance": "modelled",
            }
            for loop in code.loops[:LOOPS_LISTED]
        ],
    }


def pair(bundles: tuple[int, int] | None) -> list[int] | None:
    """A bundle range as JSON has it."""
    return None if bundles is None else list(bundles)
