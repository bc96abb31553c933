"""How fast the simulator is, on one core of this machine, and how much faster than a plain interpreter.

    python benchmarks/simulate.py [CAPTURE] [--oracle-bundles N]

Without a capture it compiles benchmarks/large_kernel.py (52,000 bundles, 2.1 million executed, a minute).
Prints JSON. Seconds are CPU seconds of this process. The interpreter is the oracle of the tests; it runs the
first N executed bundles, and its events must be those of the simulator.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/analyzer/simulate")]

from oracle import Oracle, events_of  # noqa: E402

from analyzer.capture import open_capture  # noqa: E402
from analyzer.llo.reader import read_program  # noqa: E402
from analyzer.machine import load_machine  # noqa: E402
from analyzer.simulate import Scenario, Simulator  # noqa: E402


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = action()
    return time.process_time() - start, result


def compiled(folder: Path) -> Path:
    out = folder / "large"
    command = [sys.executable, ROOT / "megascope.py", "compile", f"{ROOT}/benchmarks/large_kernel.py:build"]
    options = ["--topology", "2x2x1", "--set", "unroll=32", "--set", "loops=40", "-o", out]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return out


def measure(capture: Path, oracle_bundles: int) -> dict[str, object]:
    opened = open_capture(capture)
    machine = load_machine(str(opened.manifest.get("chip") or "tpu7x"))
    read_s, program = timed(lambda: read_program(opened.kernel_program().bundles))
    prepare_s, simulator = timed(lambda: Simulator(program))
    facts, scenario = opened.manifest, Scenario()

    def run(**options: Any) -> Any:
        return simulator.simulate(machine, scenario, facts, **options)

    first_s, result = timed(lambda: run(cores="mirrored"))
    steps, retimes = [], []
    for _ in range(5):
        simulator.forget_traces()
        steps.append(timed(lambda: run(cores="mirrored"))[0])
        retimes.append(timed(lambda: run(cores="mirrored", overrides={"hbm.bandwidth": "x1.1"}))[0])
    step_s, retime_s = statistics.median(steps), statistics.median(retimes)
    timeline_s, timeline = timed(lambda: result.timeline)
    report: dict[str, object] = {
        "static_bundles": result.static_bundles,
        "executed_bundles": result.executed_bundles,
        "events": len(simulator.trace(scenario, 0, machine.cores_per_chip).trace),
        "read_s": read_s,
        "prepare_s": prepare_s,
        "first_run_with_code_generation_s": first_s,
        "execute_and_time_s": step_s,
        "time_again_with_another_parameter_s": retime_s,
        "timeline_s": timeline_s,
        "timeline_rows": len(timeline),
        "million_bundles_per_s": result.executed_bundles / step_s / 1e6,
        "million_bundles_per_s_timing_only": result.executed_bundles / retime_s / 1e6,
    }
    cores = simulator.devices(scenario, facts)
    if result.messages and cores > 1:
        simulator.forget_traces()
        all_s, _ = timed(lambda: run(cores="all"))
        report |= {"cores": cores, "all_cores_s": all_s, "all_cores_over_one": all_s / step_s}
    oracle = Oracle(simulator.compiled, simulator.words, scenario, 0, machine.cores_per_chip)
    oracle_s, events = timed(lambda: oracle.run(oracle_bundles))
    mine = events_of(simulator.compiled, simulator.trace(scenario, 0, machine.cores_per_chip).trace)
    rate = oracle.executed / oracle_s
    report |= {
        "interpreter_bundles": oracle.executed,
        "interpreter_bundles_per_s": rate,
        "times_faster_than_the_interpreter": result.executed_bundles / step_s / rate,
        "identical_events": mine[: len(events)] == events,
    }
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("capture", type=Path, nargs="?")
    parser.add_argument("--oracle-bundles", type=int, default=200_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        capture = chosen.capture or compiled(Path(folder))
        print(json.dumps(measure(capture, chosen.oracle_bundles), indent=1))


if __name__ == "__main__":
    main()
