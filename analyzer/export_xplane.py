"""A timeline as an xplane file that xprof opens, and that our reader reads back.

Regions go to `XLA TraceMe`, as libtpu writes them; everything else goes to lines of our own, one per queue.
The device planes say that the file was exported and from what provenance: what was modelled never passes as
measured.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analyzer import view
from analyzer.timeline import Track
from analyzer.xplane.writer import PlaneWriter, Value, block, encode_space, number

EXPORTED = "megascope_export"  # fact of an exported plane: the provenance of what it holds
OWN_LINE = "megascope "  # our lines: `megascope hbm_read hbm`
PROGRAM_ID, MARKER_BASE = 1, 0x1B3
_WHOLE = ("step", "layer", "bytes", "bundle_first", "bundle_last", "issued_ps", "free_ps", "cause", "operand")
_TEXT = ("kind", "phase", "queue", "source", "provenance")
_CHIPS = {"tpu7x": "TPU7x", "v6e": "TPU v6 Lite", "v5e": "TPU v5 lite", "v5p": "TPU v5"}


def export_xplane(timeline: pd.DataFrame, report: Mapping[str, Any]) -> bytes:
    """The timeline of a capture as the bytes of an xplane file.

    Args:
        timeline: table of spans, in picoseconds.
        report: the report of the capture; names and peaks are taken from it.
    """
    name = str(report["capture"].get("kernel") or report["capture"].get("program") or "kernel")
    bundles = report["step"].get("static_bundles")
    planes = [_device(timeline, core, report, name) for core in view.cores(timeline)]
    metadata = PlaneWriter(len(planes) + 1, "/host:metadata")
    module = f"jit_{name}({PROGRAM_ID})"
    kinds = [metadata.event_kind(module, module, {"Hlo Proto": _hlo(name), "program_id": PROGRAM_ID})]
    if bundles:
        llo = block(1, name) + block(2, number(6, int(bundles)))
        kinds.append(metadata.event_kind(f"jit_{name}({PROGRAM_ID})::{name}", "", {"llo_proto": llo}))
    return encode_space([*planes, metadata], "megascope-export")


def _device(timeline: pd.DataFrame, core: int, report: Mapping[str, Any], name: str) -> PlaneWriter:
    plane = PlaneWriter(core, f"/device:TPU:{core}")
    chip = str(report["capture"].get("chip") or "")
    plane.fact("device_type_string", _CHIPS.get(chip, chip or "TPU"))
    peak = report["hbm"].get("peak_bytes_per_s")
    if peak:
        plane.fact("peak_hbm_bw_gigabytes_per_second", float(peak) / 1e9)
    plane.fact("peak_teraflops_per_second", _teraflops(chip))
    plane.fact(EXPORTED, str(report["step"].get("provenance") or "unknown"))
    rows = timeline[timeline["core"] == core].sort_values(["start_ps", "span"], kind="stable")
    zero = min(0, int(view.starts(timeline).min())) if len(timeline) else 0
    steps = _steps(timeline)
    facts: dict[str, Value] = {
        "hlo_category": "custom-call",
        "program_id": PROGRAM_ID,
        "symbol_id": 1,
    }
    moved = [report["hbm"].get(n) for n in ("read_bytes", "write_bytes")]
    if None not in moved:
        facts["bytes_accessed"] = sum(moved)
    text = f'%{name} = () custom-call(), custom_call_target="tpu_custom_call"'
    call = plane.event_kind(text, name, facts)
    module = plane.event_kind(f"jit_{name}({PROGRAM_ID})")
    plane.line(
        "Steps",
        [(plane.event_kind(str(s)), start - zero, end - start, {}) for s, (start, end) in steps.items()],
    )
    plane.line(
        "XLA Modules",
        [(module, start - zero, end - start, {"run_id": s}) for s, (start, end) in steps.items()],
    )
    plane.line("XLA Ops", [(call, start - zero, end - start, {}) for start, end in steps.values()])
    regions = rows[rows["track"] == Track.REGION]
    plane.line("XLA TraceMe", _events(plane, regions, zero, region=True))
    plane.line("Tensor Core", _markers(plane, regions, zero))
    others = rows[rows["track"] != Track.REGION]
    groups = others.groupby([others["track"].astype(str), others["queue"].astype(str)], sort=True)
    for (track, queue), spans in groups:
        plane.line(f"{OWN_LINE}{track} {queue}", _events(plane, spans, zero, region=False))
    plane.fact("megascope_zero_ps", zero)
    return plane


def _steps(timeline: pd.DataFrame) -> dict[int, tuple[int, int]]:
    """Start and end of every step over all cores, as the report has it."""
    found = {}
    for step in view.steps(timeline):
        spans = timeline[timeline["step"] == step]
        found[step] = (int(view.starts(spans).min()), int(view.ends(spans).max()))
    return found


def _events(
    plane: PlaneWriter, spans: pd.DataFrame, zero: int, *, region: bool
) -> list[tuple[int, int, int, dict[str, Value]]]:
    events = []
    if region:  # what contains others comes first, whatever the order in the table
        spans = spans.sort_values(["start_ps", "duration_ps", "span"], ascending=[True, False, True])
    for row in spans.to_dict("records"):
        stats: dict[str, Value] = {"span": int(row["span"])}
        stats |= {n: int(row[n]) for n in _WHOLE if not pd.isna(row[n])}
        stats |= {n: str(row[n]) for n in _TEXT if row[n]}
        stats["name"] = str(row["name"])
        shown = str(row["name"]) or ("layer" if region and not pd.isna(row["layer"]) else str(row["kind"]))
        events.append((plane.event_kind(shown), int(row["start_ps"]) - zero, int(row["duration_ps"]), stats))
    return events


def _markers(
    plane: PlaneWriter, regions: pd.DataFrame, zero: int
) -> list[tuple[int, int, int, dict[str, Value]]]:
    """Zero-length markers where scopes begin and end, with the addresses of their bundles."""
    known = regions[regions["bundle_first"].notna()]
    found: list[tuple[int, int, int, dict[str, Value]]] = []
    for bundle, time in (
        *zip(known["bundle_first"], view.starts(known), strict=True),
        *zip(known["bundle_last"], view.ends(known), strict=True),
    ):
        if pd.isna(bundle):
            continue
        identifier = 0x08000000 + int(bundle)
        text = f"[{identifier}]  {hex(MARKER_BASE + int(bundle))}: bundle.{identifier}"
        kind = plane.event_kind(f"bundle.{identifier}")
        stats: dict[str, Value] = {"long_name": text, "instrumentation_id": identifier}
        found.append((kind, int(time) - zero, 0, stats))
    return sorted(found, key=lambda event: event[1])


def _teraflops(chip: str) -> float:
    """Peak of the chip by JAX (the machine file); 0 where the chip is unknown."""
    from analyzer.errors import MegascopeError
    from analyzer.machine import load_machine

    try:
        return float(load_machine(chip).peaks.bf16_flops) / 1e12
    except (MegascopeError, AttributeError):
        return 0.0


def _hlo(name: str) -> bytes:
    """The least HLO module that xprof takes: one custom call without operands."""
    empty_tuple = number(2, 13)
    instruction = block(1, name) + block(2, "custom-call") + block(3, empty_tuple)
    instruction += block(28, "tpu_custom_call") + number(35, 1)
    signature = block(2, empty_tuple)
    computation = block(1, "main") + block(2, instruction) + block(4, signature)
    computation += number(5, 1) + number(6, 1)
    module = block(1, f"jit_{name}") + block(2, "main") + block(3, computation) + block(4, signature)
    return block(1, module + number(5, PROGRAM_ID) + number(6, 1))


def place(folder: Path) -> Path:
    """The file in a log folder, where xprof looks for it."""
    from analyzer.xplane.writer import run_folder

    return run_folder(folder, "megascope") / "megascope.xplane.pb"
