"""Checks of a recording: what its trace holds, what it lacks, and what was asked for and did not come."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from analyzer.errors import MegascopeError
from analyzer.measured import trust
from analyzer.measured.kernel import Kernel, choose_kernel
from analyzer.measured.load import ASYNC, COUNTERS, MARKERS, OPS, SCOPES, Device, Loaded, load
from analyzer.measured.proto import traced_program
from profiler.doctor import Check, Status

_AGAIN = "Record fewer steps, and let the traced computation end before the trace is stopped."


def check_trace(path: Path) -> Iterable[Check]:
    """Every check of the trace of a capture, a log folder or an xplane file."""
    place = path / "xplane" if (path / "xplane").is_dir() else path
    try:
        loaded = load(place)
    except MegascopeError as error:
        yield Check("trace", Status.PROBLEM, error.fault, error.cure)
        return
    yield Check("trace", Status.OK, f"{len(loaded.files)} files, {len(loaded.devices)} TPU cores")
    for note in loaded.notes:
        bad = "left out" in note or "cut off" in note or "missing" in note or "the profiler said" in note
        yield Check("files", Status.PROBLEM if bad else Status.NOTE, note, _AGAIN if bad else "")
    kernel, _ = choose_kernel(loaded.devices)
    yield from _lines(loaded, kernel, _requested(path))
    for note in trust.notes(loaded.devices, kernel, trust.flagged(loaded.devices)):
        yield Check("content", Status.NOTE, note)
    for entry in trust.not_usable(loaded.devices, kernel):
        yield Check(entry.name, Status.NOTE, f"{entry.in_trace}: not usable, {entry.reason}")


def _requested(path: Path) -> str | None:
    """The level that a recording asked for; None where the trace is not from `megascope record`."""
    try:
        manifest: Mapping[str, Any] = json.loads((path / "manifest.json").read_bytes())
        return str(manifest["record"]["level"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lines(loaded: Loaded, kernel: Kernel | None, asked: str | None) -> Iterable[Check]:
    """Requested against received: every kind of events that a trace can hold."""
    told = f" (asked for {asked})" if asked else ""
    expected = {
        "operations": (OPS, True, "no operations were recorded", _AGAIN),
        "scopes": (
            SCOPES,
            asked in ("regions", "instructions", "counters"),
            "no named scopes",
            "Record with --level regions; the flag is --xla_enable_custom_call_region_trace=true.",
        ),
        "markers": (MARKERS, False, "no markers: addresses cannot be checked against bundles", ""),
        "counters": (
            COUNTERS,
            asked == "counters",
            "no counters came",
            "This libtpu does not deliver them for this chip: take bandwidth from counted bytes.",
        ),
        "asynchronous operations": (ASYNC, False, "none recorded", ""),
    }
    for name, (line, needed, absent, cure) in expected.items():
        counts = [_count(device, line) for device in loaded.devices]
        having = sum(count > 0 for count in counts)
        if not having:
            yield Check(name, Status.PROBLEM if needed else Status.NOTE, absent + told, cure)
        elif having < len(counts):
            yield Check(name, Status.NOTE, f"{sum(counts):,} events on {having} of {len(counts)} cores")
        else:
            yield Check(name, Status.OK, f"{sum(counts):,} events on {having} cores")
    if kernel is None:
        yield Check("kernel", Status.NOTE, "no Pallas kernel in the trace")
        return
    program = traced_program(loaded.programs, kernel.name)
    if program is None:
        yield Check(
            "program",
            Status.NOTE,
            f"the trace does not carry the program of {kernel.name}",
            "Record with the flag --xla_xprof_register_llo_debug_info=true to join bundles by their number.",
        )
    else:
        yield Check("program", Status.OK, f"{program.key}: {program.bundles or 'unknown number of'} bundles")


def _count(device: Device, line: str) -> int:
    return device.counts.get(line, 0)
