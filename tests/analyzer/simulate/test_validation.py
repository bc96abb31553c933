"""The model against published and captured times. The machine file says what was fitted to what."""

import math
from pathlib import Path

import pytest
from published import CASES, op_time_us

from analyzer import intervals
from analyzer.capture import open_capture
from analyzer.llo.reader import read_program
from analyzer.machine import load_machine
from analyzer.simulate import Simulator

MICROKERNELS = Path(__file__).parents[3] / "megakernels/microkernels.py"


@pytest.fixture(scope="module")
def modelled(compiled):
    """Modelled time per case, in the order of CASES."""
    machine = load_machine("tpu7x")
    times = []
    for name, options, _ in CASES:
        capture = open_capture(
            compiled(*(f"{k}={v}" for k, v in options.items()), target=f"{MICROKERNELS}:{name}")
        )
        simulator = Simulator(read_program(capture.kernel_program().bundles))
        times.append(op_time_us(simulator.simulate(machine, None, capture.manifest, cores="all")))
    return times


@pytest.mark.slow
def test_microkernels_within_seven_percent(modelled):
    errors = [time / published - 1 for time, (_, _, published) in zip(modelled, CASES, strict=True)]
    listed = [f"{c[0]} {c[1]}: {e:+.1%}" for c, e in zip(CASES, errors, strict=True)]
    assert max(map(abs, errors)) < 0.07, listed
    assert math.sqrt(sum(e * e for e in errors) / len(errors)) < 0.035, listed


def test_v6e_matmul_against_its_capture(v6e_matmul):
    """75.7 us per call; stage shares of the capture: the dump is of another compile of the same kernel."""
    result = v6e_matmul.simulate(load_machine("v6e"))
    step = result.step_time_ps
    assert step / 1e6 == pytest.approx(75.7, rel=0.04)
    timeline = result.timeline
    waits = timeline[timeline["track"] == "wait"]
    work = timeline[timeline["track"].isin(["mxu", "vector", "scalar"])]
    first, last = 107, 2658  # the kernel body, between the pipeline's waits and its copies out
    inputs = waits.loc[waits["bundle_first"] < first, "duration_ps"].sum()
    outputs = waits.loc[waits["bundle_first"] >= last, "duration_ps"].sum()
    assert 100 * inputs / step == pytest.approx(76.3, abs=3)
    assert 100 * outputs / step == pytest.approx(2.5, abs=3)
    body = work[(work["bundle_first"] >= first) & (work["bundle_last"] < last)]
    start = body["start_ps"].to_numpy()
    busy = intervals.measure(intervals.from_spans(start, start + body["duration_ps"].to_numpy()))
    assert 100 * busy / step == pytest.approx(19.2, abs=3)
