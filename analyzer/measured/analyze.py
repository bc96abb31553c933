"""From a trace to the report: the JSON contract of docs/report.md, filled with what was measured.

What a trace cannot show (copies inside a kernel, matrix work, messages) is null. What it shows beyond the
contract stands under `trace`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer import intervals, metrics, view
from analyzer.measured import entries, exported, join, operations, proto, trust
from analyzer.measured.compare import compare_phases, join_with
from analyzer.measured.entries import COUNTED, MEASURED
from analyzer.measured.kernel import Kernel, choose_kernel, median
from analyzer.measured.load import ASYNC, OPS, Loaded, load
from analyzer.measured.phases import step_times
from analyzer.measured.scopes import DMA_WAITS
from analyzer.measured.spans import (
    SPANS_KEPT,
    CoreTrace,
    build_timeline,
    core_trace,
    events_of,
    origin,
    steps_kept,
    whole_time,
)
from analyzer.measured.stages import stages
from analyzer.measured.traffic import Traffic, count_traffic
from analyzer.reports import contract
from analyzer.timeline import Kind
from analyzer.units import size

if TYPE_CHECKING:
    import pandas as pd

    from analyzer.capture import Capture

OPERATIONS_LISTED = 40
_CHIPS = {"v6 lite": "v6e", "v5 lite": "v5e", "v5p": "v5p", "v5": "v5p", "7x": "tpu7x", "v7x": "tpu7x"}


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A trace, worked out: its table of spans, its report, and what was picked."""

    timeline: "pd.DataFrame"
    report: dict[str, Any]
    core: int
    step: int


def chip_of(facts: Mapping[str, Any]) -> str | None:
    """Our name of the chip that a plane says it is."""
    text = str(facts.get("device_type_string") or "").lower().removeprefix("tpu").strip()
    return _CHIPS.get(text)


def measure(path: Path, capture: "Capture") -> Measured:
    """The report on a trace.

    Args:
        path: the trace: folder or file.
        capture: the capture it belongs to; its bundles, if any, are held against the trace.

    Raises:
        InputError: the trace cannot be read.
    """
    loaded = load(path)
    kernel, choice = choose_kernel(loaded.devices)
    traces = [core_trace(device, kernel) for device in loaded.devices]
    if not any(len(trace.runs) for trace in traces):
        traces = [whole_time(trace) for trace in traces]
        choice.append("no steps and no modules in this trace: all of the recorded time is taken as one run")
    # The reported core is the slowest: it is what a step waits for. Cores without a run cannot be it.
    reported = max(traces, key=lambda t: (len(t.runs) > 0, entries.median_ps(t), -t.device.core))
    made = exported.provenance_of(reported.device.facts)
    zero = origin(traces)
    step, window = _reported_run(reported, zero)
    core = reported.device.core
    if made is None or loaded.trace is None:
        choice += _kept(traces, reported, step)
        report = _report(
            loaded, kernel, traces, reported, step_times(reported, step, window), capture, choice
        )
        return Measured(build_timeline(traces, step)[0], report, core, step)
    choice.append(f"written by `megascope export` from a {made} timeline: nothing in it was measured")
    timeline = exported.read_timeline(loaded.trace)
    shown = view.core_step(timeline, core, step, (window[0] - zero, window[1] - zero))
    times = metrics.phases(shown, transfers_visible=False), metrics.core_time(shown)
    report = _report(loaded, kernel, traces, reported, times, capture, choice)
    report["trace"]["not_usable"] = []
    hbm = report["hbm"]
    seen = metrics.hbm(view.core_step(timeline, core, step), hbm["peak_bytes_per_s"])
    if len(timeline) and seen.copies:  # the exported table holds the copies that a real trace does not show
        hbm |= asdict(seen)
        hbm["per_core"] = [asdict(seen)]
    return Measured(timeline, _relabel(report, made), core, step)


def _kept(traces: list[CoreTrace], reported: CoreTrace, step: int) -> list[str]:
    """A note where the timeline holds less than the trace."""
    kept = steps_kept(traces, step)
    if kept is None:
        return []
    low, high = kept
    count = events_of(traces, step) if low == high else 0
    if count > SPANS_KEPT:
        return [
            f"the timeline holds step {low} of {len(reported.step_starts)}, short neighbours of its {count:,}"
            " events as one span each; numbers are of all events"
        ]
    return [
        f"the timeline holds steps {low} to {high} of {len(reported.step_starts)};"
        " stages and categories are of all of them"
    ]


def _relabel(value: Any, provenance: str, *, label: bool = False) -> Any:
    """The report with another provenance in place of "measured"."""
    if isinstance(value, dict):
        return {k: _relabel(v, provenance, label=label or k == "provenance") for k, v in value.items()}
    if isinstance(value, list):
        return [_relabel(v, provenance, label=label) for v in value]
    return value.replace(MEASURED, provenance) if label and isinstance(value, str) else value


def _reported_run(trace: CoreTrace, zero: int) -> tuple[int, tuple[int, int]]:
    """The step of the run of median length, and that run's start and end in picoseconds of the trace.

    `zero` twice if there are no runs.
    """
    index = median(trace.runs.duration_ps)
    if index is None:
        return 0, (zero, zero)
    start = trace.runs.start_ps[index : index + 1]
    end = start + trace.runs.duration_ps[index]
    return int(trace.step_of(start)[0]), (int(start[0]), int(end[0]))


def _report(  # noqa: PLR0917
    loaded: Loaded,
    kernel: Kernel | None,
    traces: list[CoreTrace],
    reported: CoreTrace,
    times: tuple[list[metrics.Phase], metrics.CoreTime],
    capture: "Capture",
    choice: list[str],
) -> dict[str, Any]:
    zero, runs, device = origin(traces), reported.runs, reported.device
    index = median(runs.duration_ps)
    step, window = _reported_run(reported, zero)
    program = proto.traced_program(loaded.programs, kernel.name) if kernel else None
    traffic = count_traffic(reported.scopes, reported.calls, program, kernel) if kernel else []
    one = traffic[index] if traffic and index is not None else None
    peak_gb = device.facts.get("peak_hbm_bw_gigabytes_per_second")
    peak = float(peak_gb) * 1e9 if isinstance(peak_gb, int | float) and peak_gb > 0 else None
    waits = _dma_wait(reported, runs, index)
    phases = [entries.phase_entry(phase, waits) for phase in times[0]]
    table = stages(reported, runs)
    all_runs = intervals.from_spans(runs.start_ps, runs.start_ps + runs.duration_ps)
    categories = operations.by_category(device, all_runs if kernel is None else _steps_windows(reported))
    outstanding = operations.by_category(device, all_runs, ASYNC)
    joined = join_with(capture, join.traced_code(loaded.devices, program, len(reported.scopes) > 0))
    compared = compare_phases(joined, table, len(runs), capture, chip_of(device.facts))
    if compared.hbm_bytes is not None and (one is None or one.read_bytes is None):
        read, written, copies = compared.hbm_bytes
        basis = "counted by executing the bundles of the traced program"
        one = Traffic(read, written, basis, copies, one.operand_bytes if one else None)
        traffic = [one] * len(runs)
    bad = trust.flagged(loaded.devices)
    unusable = trust.not_usable(loaded.devices, kernel)
    verdict = _verdict(kernel, table, categories, reported, all_runs)
    hbm = entries.hbm_entry(device.core, one, peak, window[1] - window[0], waits)
    notes = [*loaded.notes, *choice, *trust.notes(loaded.devices, kernel, bad)]
    if reported.scopes.layers_counted:
        notes.append("layers are numbered by order of entry: the trace has no values of trace_value")
    if reported.scopes.crossing:
        notes.append(f"{reported.scopes.crossing} scopes overlap others without lying inside them")
    if one is not None and one.read_bytes is None:
        notes.append(f"HBM bytes {one.basis}")
        if one.operand_bytes:
            notes.append(
                f"operands and results in HBM hold {size(one.operand_bytes)}; how often they move is unknown"
            )
    if joined.where is not None:
        notes.append(
            f"bundles in {joined.where} are of the traced program ({joined.identity.reason})"
            if joined.identity.same
            else f"bundles in {joined.where} are not joined: {joined.identity.reason}"
        )
    name = kernel.name if kernel else None
    report: dict[str, Any] = {
        "schema_version": contract.SCHEMA_VERSION,
        "notes": notes,
        "capture": {
            "path": str(capture.path),
            "kind": capture.kind,
            "kernel": name or capture.manifest.get("kernel") if kernel else None,
            "program": name,
            "model": capture.manifest.get("model") if joined.identity.same else None,
            "chip": chip_of(device.facts) or device.facts.get("device_type_string"),
            "topology": capture.manifest.get("topology") if capture.kind == "record" else None,
            "cores": len(traces),
            "batch": capture.manifest.get("batch") if capture.kind == "record" else None,
            "probe_level": capture.manifest.get("probe_level") if capture.kind == "record" else None,
        },
        "reported": {"core": device.core, "step": step, "cores_in_timeline": len(traces)},
        "step": {
            "time_ps": window[1] - window[0] if index is not None else None,
            "provenance": MEASURED,
            "executed_bundles": compared.executed_bundles,
            "static_bundles": program.bundles if program else None,
            "bound_by": verdict[0],
            "verdict": verdict[1],
            "critical_path": {},
        },
        "time": entries.time_entry(times[1], waits),
        "hbm": hbm,
        "ici": contract.ici_entry(metrics.Ici(device.core, *[None] * 4), [], MEASURED, COUNTED),
        "vmem": {
            "used_bytes": proto.scoped_vmem(loaded.programs, kernel.name) if kernel else None,
            "capacity_bytes": None,
            "provenance": COUNTED,
        },
        "program": contract.program_entry(None, []),
        "phases": phases,
        "bubbles": [],
        "bubbles_total": None,
        "bubble_groups": [],
        "wait_groups": [],
        "findings": [],
        "scenario": {"name": None, "assumed_values": []},
        "not_understood": {"instructions": None, "of": None, "samples": []},
        "trace": {
            "files": [str(file) for file in loaded.files],
            "runs": entries.runs_entry(reported, traffic, zero, peak),
            "cores": [entries.core_entry(trace) for trace in traces],
            "stages": [asdict(stage) | {"provenance": MEASURED} for stage in table],
            "operations": [entries.category_entry(c, all_runs) for c in categories[:OPERATIONS_LISTED]],
            "async_operations": [
                entries.category_entry(c, all_runs) for c in outstanding[:OPERATIONS_LISTED]
            ],
            "traffic": entries.traffic_entry(one),
            "peaks": {k: v for k, v in device.facts.items() if k.startswith("peak_") and v},
            "not_usable": [asdict(entry) for entry in unusable],
            "flagged": bad[:OPERATIONS_LISTED],
            "flagged_total": len(bad),
            "received": trust.received(loaded.devices),
            "join": joined.entry(),
            "comparison": compared.rows,
            "comparison_notes": compared.notes,
            "occupancy": compared.occupancy,
            "source": kernel.source or None if kernel else None,
            "zero_ps": zero,
        },
    }  # fmt: skip
    return report


def _steps_windows(trace: CoreTrace) -> intervals.Intervals:
    runs = trace.steps if len(trace.steps) else trace.calls
    return intervals.from_spans(runs.start_ps, runs.start_ps + runs.duration_ps)


def _dma_wait(trace: CoreTrace, runs: Any, index: int | None) -> int | None:
    """Time of one run in the pipeline's waits for copies; None where the trace has no such stages."""
    scopes = trace.scopes
    rows = scopes.rows(DMA_WAITS.__contains__)
    if index is None or not len(rows):
        return None
    waits = intervals.from_spans(scopes.start_ps[rows], scopes.end_ps[rows])
    start = int(runs.start_ps[index])
    return int(intervals.covered(waits, [start], [start + int(runs.duration_ps[index])])[0])


def _verdict(
    kernel: Kernel | None,
    table: list[Any],
    categories: list[operations.Category],
    trace: CoreTrace,
    runs: intervals.Intervals,
) -> tuple[str, str]:
    """What the time goes to, from measured shares only."""
    if kernel is None:
        return _verdict_without_kernel(categories, trace, runs)
    if not table:
        return "unknown", "the trace has no named scopes, so what bounds the kernel is not visible"
    shares: dict[str, float] = {}  # of phases over all layers; "" is what no phase covers
    for stage in table:
        if stage.depth == 0:
            share = stage.share if stage.phase else stage.own_share
            shares[stage.phase] = shares.get(stage.phase, 0) + (share or 0)
    waiting = sum(share for phase, share in shares.items() if phase in DMA_WAITS)
    top = max(shares, key=lambda phase: shares[phase])
    if waiting >= 0.5:
        return "dma waits", f"the core waits for copies {waiting:.0%} of the call"
    if not top:
        return "unknown", f"{shares[top]:.0%} of the call is in no named scope"
    return top, f"most time goes to {top} ({shares[top]:.0%})"


def _verdict_without_kernel(
    categories: list[operations.Category], trace: CoreTrace, runs: intervals.Intervals
) -> tuple[str, str]:
    if not categories:
        return "unknown", "no kernel and no operations found"
    whole = intervals.measure(runs)
    copies = [c for c in categories if c.kind is Kind.TRANSFER]
    time = _union_of(trace, {c.name for c in copies}, runs)
    top = categories[0]
    if whole and time / whole >= 0.5:
        return "copies", (
            f"no kernel found; copies take {time / whole:.0%} of {trace.runs.label}"
            f" ({', '.join(c.name for c in copies[:3])})"
        )
    share = top.time_ps / whole if whole else 0
    return top.name, f"no Pallas kernel found; most time goes to {top.name} ({share:.0%})"


def _union_of(trace: CoreTrace, names: set[str], windows: intervals.Intervals) -> int:
    ops = trace.device.lines[OPS]
    wanted = [i for i, k in enumerate(ops.kinds) if operations.category(k.name, k.facts) in names]
    rows = ops.where(wanted)
    return intervals.measure(
        intervals.intersection(intervals.from_spans(ops.start_ps[rows], ops.end_ps[rows]), windows)
    )
