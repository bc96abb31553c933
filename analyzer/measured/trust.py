"""Numbers in a trace that look like measurements and are none: named with the reason, not used as values."""

from dataclasses import dataclass

import numpy as np

from analyzer.measured.kernel import TARGET, Kernel
from analyzer.measured.load import ASYNC, COUNTERS, MARKERS, MODULES, OPS, SCOPES, Device
from analyzer.units import duration


@dataclass(frozen=True, slots=True)
class NotUsable:
    """A number of the trace that is not used: what the trace says, and why it is not believed."""

    name: str
    in_trace: str
    reason: str
    brief: str


def not_usable(devices: list[Device], kernel: Kernel | None) -> list[NotUsable]:
    """What is left out of the report although the trace has it."""
    found = []
    if kernel is not None:
        flops, moved = _stat(devices, "flops"), _stat(devices, "bytes_accessed")
        if flops:
            found.append(
                NotUsable(
                    "flops of the kernel",
                    _range(flops),
                    "XLA counts the body of a kernel once, whatever its grid and loops",
                    f"{_range(flops)} in the trace: the kernel's body counted once",
                )
            )
        if moved:
            found.append(
                NotUsable(
                    "bytes_accessed of the kernel",
                    _range(moved),
                    "XLA does not look into a kernel: 0 stands for not counted",
                    f"{_range(moved)} in the trace: XLA does not look into a kernel",
                )
            )
    samples = sum(len(d.lines[COUNTERS]) for d in devices)
    if samples:
        names = sorted({k.short for d in devices for k in d.lines[COUNTERS].kinds})
        found.append(
            NotUsable(
                "counters (% util, fills, spills)",
                f"{samples:,} samples of {', '.join(names)}",
                "they are the static occupancy of the code between two markers, stamped one interval early;"
                " units are sampled on different intervals, and absent does not mean 0",
                f"{samples:,} samples: static slot occupancy, one interval early",
            )
        )
    return found


def _stat(devices: list[Device], name: str) -> set[int]:
    """The values of a stat over all calls of all kernels, from events and from their metadata."""
    values: set[int] = set()
    for device in devices:
        ops = device.lines[OPS]
        of = [i for i, kind in enumerate(ops.kinds) if TARGET in kind.name]
        column = ops.numbers.get(name)
        if column is not None:
            found = column[ops.where(of)]
            values |= {int(v) for v in found[~np.isnan(found)]}
        values |= {int(v) for i in of if isinstance(v := ops.kinds[i].facts.get(name), int | float)}
    return values


def _range(values: set[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def flagged(devices: list[Device]) -> list[dict[str, object]]:
    """Events whose recorded duration was impossible, with what it was cut to; per core and line."""
    rows: list[dict[str, object]] = []
    for device in devices:
        for name, line in device.lines.items():
            for i in line.mended.tolist():
                rows.append(
                    {
                        "core": device.core,
                        "line": name,
                        "event": line.kinds[int(line.kind[i])].short,
                        "start_ps": int(line.start_ps[i]),
                        "recorded_duration_ps": int(line.duration_ps[i] + line.start_ps[i]),
                        "duration_ps": int(line.duration_ps[i]),
                    }
                )
    return rows


def notes(devices: list[Device], kernel: Kernel | None, bad: list[dict[str, object]]) -> list[str]:
    """What is missing or odd in the trace, one sentence each."""
    found = []
    if bad:
        example = bad[0]
        found.append(
            f"{len(bad)} {example['line']} samples had their absolute end time as duration"
            f" ({duration(int(str(example['recorded_duration_ps'])))}): cut to"
            f" {duration(int(str(example['duration_ps'])))}"
        )
    asynchronous = [d for d in devices if len(d.lines[ASYNC])]
    if asynchronous and len(asynchronous) < len(devices):
        found.append(
            f"asynchronous operations were recorded on {len(asynchronous)} of {len(devices)} cores only"
            f" ({', '.join(d.name for d in asynchronous[:3])}); on the others their absence means nothing"
        )
    if kernel is not None and not any(len(d.lines[SCOPES]) for d in devices):
        found.append(
            "no named scopes in the trace: record with --level regions"
            " (libtpu flag --xla_enable_custom_call_region_trace)"
        )
    if kernel is not None and not any(len(d.lines[COUNTERS]) for d in devices):
        found.append("no counters in the trace")
    silent = [d.name for d in devices if not len(d.lines[OPS]) and not len(d.lines[MODULES])]
    if silent:
        found.append(f"{len(silent)} cores recorded no operations: {', '.join(silent[:4])}")
    found += _clock(devices)
    return found


def _clock(devices: list[Device]) -> list[str]:
    """Durations on the trace's time against those in device ticks."""
    count, worst = 0, (0.0, 0, 0)
    for device in devices:
        ops = device.lines[OPS]
        ticks = ops.numbers.get("device_duration_ps")
        if ticks is None:
            continue
        differ = np.abs(ops.duration_ps - ticks)
        odd = np.flatnonzero((differ > 0.01 * np.maximum(ticks, 1)) & (differ > 10_000))
        count += len(odd)
        for i in odd.tolist():
            worst = max(worst, (float(differ[i]), int(ops.duration_ps[i]), int(ticks[i])))
    if not count:
        return []
    return [
        f"{count} operations last another time by the device's ticks than in the trace, up to"
        f" {duration(worst[2])} against {duration(worst[1])}: the clock was corrected while recording"
    ]


def received(devices: list[Device]) -> dict[str, dict[str, int]]:
    """Events per line of every core: what was received, to be held against what was asked for."""
    kept = (MODULES, OPS, ASYNC, SCOPES, MARKERS, COUNTERS)
    return {d.name: {name: d.counts.get(name, 0) for name in (*kept, *d.counts)} for d in devices}
