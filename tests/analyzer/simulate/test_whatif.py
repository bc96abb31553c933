import pytest

from analyzer.errors import UsageError
from analyzer.machine import load_machine
from analyzer.simulate.whatif import IDEALS, WhatIf

TPU7X = load_machine("tpu7x")


@pytest.fixture(scope="module")
def question(kernel):
    one = kernel("mlp", "layers=4")
    return WhatIf(one.simulator, TPU7X, one.scenario, one.manifest, cores="mirrored")


def test_every_ideal_is_a_bound(question):
    bounds = {b.name: b for b in question.bounds()}
    assert set(IDEALS) <= set(bounds)
    base = question.base.step_time_ps
    for bound in bounds.values():
        assert 0 <= bound.saving_ps <= base
        assert bound.step_ps + bound.saving_ps == base
    traffic = sum(sum(p) for p in question.base.operand_bytes.values())
    assert bounds["perfect prefetch"].step_ps >= traffic / TPU7X["hbm.bandwidth"] * 1e12 - 1
    assert bounds["infinite HBM"].step_ps <= bounds["perfect prefetch"].step_ps
    assert any(name.startswith("without ") for name in bounds)


def test_unknown_question_is_a_usage_error(question):
    with pytest.raises(UsageError, match="perfect prefetch"):
        question.bound("free lunch")
    with pytest.raises(UsageError, match="Phases"):
        question.bound("without lunch")


def test_bounds_of_a_step_that_lacks_a_phase_already(question):
    phase = next(p for p in question.phases() if p)
    also = WhatIf(
        question.simulator, TPU7X, question.scenario, question.facts, cores="mirrored", without=[phase]
    )
    assert also.base.step_time_ps == question.bound(f"without {phase}").step_ps
    assert also.bound("infinite HBM").step_ps <= also.base.step_time_ps


def test_sensitivities_have_the_right_signs(question):
    by_name = {s.parameter: s.elasticity for s in question.sensitivities()}
    assert by_name["hbm.bandwidth"] < 0
    assert by_name["hbm.latency"] >= 0
    assert by_name["ici.send.cost"] >= 0
    assert all(abs(e) <= 1.1 for e in by_name.values())


def test_copied_data_stays_until_its_last_use(kernel):
    result = kernel("ring").run(TPU7X)
    stays = result.residency
    timeline = result.timeline
    reads = timeline[timeline["track"] == "hbm_read"].sort_values("span")
    assert len(stays) == len(reads) == 23
    tile = 64 * 256 * 4
    assert {s.bytes for s in stays} == {tile}
    assert {s.offset_bytes for s in stays} == {slot * tile for slot in range(4)}
    assert len({s.buffer for s in stays}) == 1
    by_place = {}
    for stay in sorted(stays, key=lambda s: s.start_ps):
        assert stay.end_ps > stay.start_ps
        previous = by_place.get(stay.offset_bytes)
        assert previous is None or stay.start_ps >= previous.end_ps, "a bank holds one tile at a time"
        by_place[stay.offset_bytes] = stay
