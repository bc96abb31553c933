"""What must hold for every machine: bounds, monotony, and a timeline that adds up."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer import intervals
from analyzer.machine import load_machine

TPU7X = load_machine("tpu7x")
NAMES = ["nested_loops", "ring", "windows", "all_to_all", "mlp"]
FACTORS = st.floats(0.25, 8)
QUIET = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def step(one, **overrides):
    named = {name.replace("__", "."): value for name, value in overrides.items()}
    return one.run(TPU7X, overrides=named).step_time_ps


@pytest.mark.parametrize("name", NAMES)
@given(factor=st.floats(1, 8))
@QUIET
def test_more_bandwidth_never_makes_a_step_slower(kernel, name, factor):
    one = kernel(name)
    assert step(one, hbm__bandwidth=f"x{factor}") <= step(one) + 1
    assert step(one, ici__bandwidth=f"x{factor}") <= step(one) + 1


@pytest.mark.parametrize("name", NAMES)
@given(hbm=FACTORS, clock=st.floats(0.5, 4), latency=st.floats(0, 3), push=st.floats(0, 4))
@QUIET
def test_bounds(kernel, name, hbm, clock, latency, push):
    one = kernel(name)
    overrides = {
        "hbm.bandwidth": f"x{hbm}",
        "issue.clock": f"x{clock}",
        "hbm.latency": f"x{latency}",
        "mxu.push": push,
    }
    result = one.run(TPU7X, overrides=overrides)
    machine = result.machine
    traffic = sum(sum(pair) for pair in result.operand_bytes.values())
    assert result.step_time_ps >= traffic / machine["hbm.bandwidth"] * 1e12 - 1
    assert result.step_time_ps >= result.executed_bundles * machine.cycle_ps - 1
    free = one.run(TPU7X, overrides=overrides | {"hbm.latency": 0, "ici.latency": 0, "ici.send.cost": 0})
    assert free.step_time_ps <= result.step_time_ps + 1


@pytest.mark.parametrize("name", NAMES)
@given(hbm=FACTORS, push=st.floats(0, 6))
@settings(parent=QUIET, max_examples=6)
def test_work_and_waits_fill_the_step(kernel, name, hbm, push):
    result = kernel(name).run(TPU7X, overrides={"hbm.bandwidth": f"x{hbm}", "mxu.push": push})
    timeline = result.timeline
    assert (timeline["duration_ps"] >= 0).all()

    def union(*tracks):
        rows = timeline[timeline["track"].isin(tracks)]
        start = rows["start_ps"].to_numpy()
        return intervals.from_spans(start, start + rows["duration_ps"].to_numpy())

    work, waits = union("mxu", "vector", "scalar"), union("wait")
    rounding = 2 * len(timeline)
    assert intervals.measure(intervals.intersection(work, waits)) <= rounding
    total = intervals.measure(intervals.union(work, waits))
    assert total == pytest.approx(result.step_time_ps, abs=rounding)
    exposed = sum(result.exposed_wait_ps.values())
    assert exposed == pytest.approx(intervals.measure(waits), abs=rounding)


@pytest.mark.parametrize("name", NAMES)
def test_queues_never_overlap_themselves(kernel, name):
    timeline = kernel(name).run(TPU7X).timeline
    moving = timeline[timeline["track"].isin(["hbm_read", "hbm_write", "ici_send", "wait"])]
    for _, rows in moving.groupby(["core", "queue", "track"], observed=True):
        ordered = rows[rows["duration_ps"] > 0].sort_values("start_ps")
        end = (ordered["start_ps"] + ordered["duration_ps"]).to_numpy()
        assert (ordered["start_ps"].to_numpy()[1:] >= end[:-1] - 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_waits_end_with_their_cause(kernel, name):
    timeline = kernel(name).run(TPU7X).timeline.set_index("span")
    waits = timeline[(timeline["track"] == "wait") & (timeline["duration_ps"] > 0)]
    assert len(waits)
    for _, wait in waits.iterrows():
        cause = timeline.loc[wait["cause"]]
        end = cause["start_ps"] + cause["duration_ps"]
        assert wait["start_ps"] + wait["duration_ps"] == pytest.approx(end, abs=2)
        assert cause["issued_ps"] <= wait["start_ps"] + wait["duration_ps"]


def test_removing_a_phase_never_makes_the_step_longer(kernel):
    """It may save more than the phase's own time: the copies it issues for later phases go with it."""
    one = kernel("mlp")
    base = one.run(TPU7X)
    regions = base.timeline[base.timeline["track"] == "region"]
    for phase in sorted(set(regions["phase"]) - {""}):
        without = one.run(TPU7X, without=[phase])
        assert without.step_time_ps <= base.step_time_ps + 1
        assert phase not in set(without.timeline["phase"])
        assert without.operand_bytes == base.operand_bytes


def test_timing_again_gives_the_same_step(kernel):
    one = kernel("mlp")
    assert one.run(TPU7X).step_time_ps == one.run(TPU7X).step_time_ps
    assert one.run(TPU7X).timeline.equals(one.run(TPU7X).timeline)
