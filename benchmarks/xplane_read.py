"""Speed of reading an xplane: ours, jax's ProfileData, xprof's; each in a process of its own.

    python benchmarks/xplane_read.py [--events 2000000] [--shape operations|kernel] [--file FILE]

Without --file a synthetic capture is written, two stats per event: one line of operations, or the calls of a
kernel with nested scopes. Prints events per second and peak memory of each reader; all three sum up the
durations and count the values of one stat. `summary` is all that `megascope report` does: read, timeline,
numbers, digest, cache. The time includes the imports, that of one core the start of Python as well: it is the
figure to go by on a machine that does other things.
"""

import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))
CALL = b'%mlp.1 = f32[8] custom-call(f32[8] %x), custom_call_target="tpu_custom_call"'
SCOPES = (("layer", 4000), ("gate", 900), ("wait", 800), ("up", 900), ("down", 1900))  # ns in a call's layer


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def event(number: int, kind: int, start_ps: int, duration_ps: int) -> bytes:
    """An event of a line, with 2 stats (an integer and a double)."""
    stats = field(4, field(1, 1) + field(4, number))
    stats += field(4, field(1, 2) + b"\x11" + struct.pack("<d", number * 0.5))
    return field(4, field(1, kind) + field(2, start_ps) + field(3, duration_ps) + stats)


def names(number: int, entries: dict[int, bytes]) -> bytes:
    """A table of a plane: number -> name."""
    return b"".join(
        field(number, field(1, i) + field(2, field(1, i) + field(2, name))) for i, name in entries.items()
    )


def plane(lines: bytes, kinds: dict[int, bytes]) -> bytes:
    """The plane of a device; `kinds` names its events."""
    stats = names(5, {1: b"run_id", 2: b"% util"})
    return field(1, field(1, 2) + field(2, b"/device:TPU:0") + lines + names(4, kinds) + stats)


def write(path: Path, events: int) -> None:
    """One device plane with a line of `events` events."""
    line = bytearray(field(1, 7) + field(2, b"XLA Ops") + field(3, 1_700_000_000))
    for i in range(events):
        line += event(i, 1 + i % 50, i * 1_250, 1_000 + i % 7)
    path.write_bytes(plane(field(3, bytes(line)), {i: f"op.{i}".encode() for i in range(1, 51)}))


def write_kernel(path: Path, events: int) -> None:
    """The calls of a kernel in modules of their own: layers with scopes in them, 1,000 scopes to a call."""

    def line(name: bytes, rows: list[tuple[int, int, int]]) -> bytes:
        out = bytearray(field(2, name))
        for i, row in enumerate(rows):
            out += event(i, *row)
        return field(3, bytes(out))

    scopes, calls = [], []
    for call in range(max(events // 1_000, 1)):
        begin = call * 900_000_000
        calls.append((2, begin, 810_000_000))
        for layer in range(200):
            at = begin + layer * 4_000_000
            inner = at + 100_000
            scopes.append((10, at, SCOPES[0][1] * 1_000))
            for kind, (name, length) in enumerate(SCOPES[1:], 11):
                inside = name == "wait"  # waits lie in the scope before them
                scopes.append((kind, inner - 850_000 if inside else inner, length * 1_000))
                inner += 0 if inside else length * 1_000
    kinds = {1: b"jit_mlp(1)", 2: CALL} | {10 + i: name.encode() for i, (name, _) in enumerate(SCOPES)}
    modules = [(1, start, duration) for _, start, duration in calls]
    lines = line(b"XLA Modules", modules) + line(b"XLA Ops", calls) + line(b"XLA TraceMe", scopes)
    path.write_bytes(plane(lines, kinds))


def read_summary(path: Path) -> tuple[int, int]:
    """What `megascope report FILE` does; events as the report counts them."""
    from analyzer.analysis import analyze
    from analyzer.cli import render

    os.environ["XDG_CACHE_HOME"] = str(path.parent / "cache")  # kept, as always, but not beside the user's
    report = analyze(path, use_cache=False).report
    render(report, "text")
    return sum(sum(lines.values()) for lines in report["trace"]["received"].values()), 0


def read_ours(path: Path) -> tuple[int, int]:
    from analyzer.xplane.space import read_space

    events = with_stat = 0
    for plane in read_space(path).planes:
        for line in plane.lines:
            for chunk in line.chunks():
                events += len(chunk)
                int(chunk.duration_ps.sum())
                with_stat += int((chunk.numbers("% util") == chunk.numbers("% util")).sum())
                chunk.integers("run_id")
    return events, with_stat


def read_profile_data(path: Path) -> tuple[int, int]:
    from jax.profiler import ProfileData

    events = with_stat = 0
    for plane in ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                events += 1
                with_stat += "% util" in dict(event.stats)
    return events, with_stat


def read_xprof(path: Path) -> tuple[int, int]:
    from xprof.profile_data import ProfileData

    events = with_stat = 0
    for plane in ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                events += 1
                with_stat += "% util" in dict(event.stats)
    return events, with_stat


READERS = {
    "summary": read_summary,
    "ours": read_ours,
    "profile_data": read_profile_data,
    "xprof": read_xprof,
}


def run(reader: str, path: Path) -> None:
    started = time.perf_counter()
    events, with_stat = READERS[reader](path)
    seconds, busy = time.perf_counter() - started, time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps(
            {"events": events, "with_stat": with_stat, "seconds": seconds, "busy": busy, "peak_mib": peak}
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--shape", choices=("operations", "kernel"), default="operations")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--reader", choices=READERS)
    arguments = parser.parse_args()
    if arguments.reader:
        run(arguments.reader, arguments.file)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.file
        if path is None:
            path = Path(folder) / "synthetic.xplane.pb"
            (write if arguments.shape == "operations" else write_kernel)(path, arguments.events)
        print(f"{path.stat().st_size / 1e6:.0f} MB")
        for reader in READERS:
            command = [sys.executable, __file__, "--reader", reader, "--file", str(path)]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
            )
            if done.returncode:
                print(f"{reader:13} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
                continue
            result = json.loads(done.stdout)
            print(
                f"{reader:13} {result['events'] / result['seconds']:>10,.0f} events/s"
                f" {result['events'] / result['busy']:>10,.0f} per second of one core"
                f" {result['seconds']:6.2f} s  peak {result['peak_mib']:6.0f} MiB"
                f"  {result['events']:,} events"
                + (f", {result['with_stat']:,} with the stat" if reader != "summary" else "")
            )


if __name__ == "__main__":
    main()
