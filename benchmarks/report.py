"""How long reading and reporting a large capture takes, cold, from cache, and against the simulator alone.

    python benchmarks/report.py [CAPTURE]

Without a capture it compiles benchmarks/large_kernel.py (52,000 bundles, 2.1 million executed, a minute).
Prints JSON; exit code 1 if a bound is missed. Seconds are CPU seconds of a process of its own, start and
imports included, so that other work on the machine does not count. "one_pass_s" is what the simulator takes
to read the program, execute all cores that the report looks at, time them and write the timeline.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOUNDS = {"cold_s": 10.0, "cached_s": 1.0, "cold_over_one_pass": 3.0}

ONE_PASS = """
import sys
from analyzer.capture import open_capture
from analyzer.llo.reader import read_program
from analyzer.machine import load_machine
from analyzer.simulate import Scenario, Simulator
capture = open_capture(sys.argv[1])
program = read_program(capture.kernel_program().bundles)
machine = load_machine(str(capture.manifest.get("chip") or "tpu7x"))
result = Simulator(program).simulate(machine, Scenario(), capture.manifest)
print(result.static_bundles, result.executed_bundles, len(result.timeline))
"""


def cpu_seconds(command: list[str], cache: Path) -> tuple[float, float, str]:
    """CPU and wall seconds of a process, and what it printed."""
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.monotonic() - start, done.stdout


def compiled(folder: Path) -> Path:
    """The benchmark kernel, compiled."""
    out = folder / "large"
    command = [sys.executable, f"{ROOT}/megascope.py", "compile", f"{ROOT}/benchmarks/large_kernel.py:build"]
    options = ["--topology", "2x2x1", "--set", "unroll=32", "--set", "loops=40", "-o", str(out)]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return out


def measure(capture: Path, cache: Path) -> dict[str, float | int]:
    """The figures; each the least of a few runs."""
    report = [sys.executable, str(ROOT / "megascope.py"), "report", str(capture)]
    cold = [cpu_seconds([*report, "--fresh"], cache) for _ in range(3)]
    cached = [cpu_seconds(report, cache) for _ in range(3)]
    passes = [cpu_seconds([sys.executable, "-c", ONE_PASS, str(capture)], cache) for _ in range(3)]
    static, executed, spans = map(int, passes[0][2].split())
    figures = {
        "static_bundles": static,
        "executed_bundles": executed,
        "timeline_rows": spans,
        "cold_s": min(cold)[0],
        "cold_wall_s": min(wall for _, wall, _ in cold),
        "cached_s": min(cached)[0],
        "cached_wall_s": min(wall for _, wall, _ in cached),
        "one_pass_s": min(passes)[0],
    }
    return figures | {"cold_over_one_pass": figures["cold_s"] / figures["one_pass_s"]}


def main() -> int:
    """Measure, print, compare with the bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("capture", type=Path, nargs="?")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(chosen.capture or compiled(Path(folder)), Path(folder))
    missed = [name for name, most in BOUNDS.items() if figures[name] > most]
    print(json.dumps(figures | {"bounds": BOUNDS, "missed": missed}, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
