"""All cores together against one core with mirrored peers."""

import pytest

from analyzer.errors import UnsupportedProgramError
from analyzer.machine import load_machine
from analyzer.simulate import Scenario

TPU7X = load_machine("tpu7x")


def test_equal_cores_take_the_time_of_the_mirrored_core(kernel):
    one = kernel("mlp", "layers=4")
    single = one.run(TPU7X, cores="mirrored")
    together = one.run(TPU7X, cores="all")
    assert len(together.core_end_ps) == 8
    assert together.step_time_ps == pytest.approx(single.step_time_ps, rel=0.01)
    assert together.operand_bytes == single.operand_bytes
    assert set(together.timeline["core"]) == set(range(8))


def test_the_others_wait_for_a_late_core_where_they_need_it(kernel):
    one = kernel("all_to_all")
    late, delay = 3, 20e6
    base = one.run(TPU7X, cores="all")
    result = one.run(TPU7X, delays_ps={late: delay})
    assert result.step_time_ps == pytest.approx(base.step_time_ps + delay, abs=1e6)
    timeline = result.timeline
    waits = timeline[timeline["track"] == "wait"].sort_values("start_ps")
    sources = timeline.set_index("span")
    for core in range(8):
        longest = waits[waits["core"] == core].sort_values("duration_ps").iloc[-1]
        if core == late:
            assert longest["duration_ps"] < 5e6
            continue
        assert longest["duration_ps"] == pytest.approx(delay, rel=0.2)
        cause = sources.loc[longest["cause"]]
        assert (cause["track"], cause["queue"]) == ("ici_recv", f"ici:{late}")
        assert longest["bundle_first"] < 100, "at the barrier"


def test_a_core_that_sends_less_is_a_deadlock_not_a_guess(kernel):
    """Two cores of eight: the barrier of the program never fills."""
    one = kernel("all_to_all")
    with pytest.raises(UnsupportedProgramError, match=r"sends to core|wait for each other"):
        one.simulator.simulate(TPU7X, Scenario(devices=2), one.manifest | {"cores": 2}, cores="all")


def test_every_core_balances(kernel):
    result = kernel("all_to_all").run(TPU7X, cores="all")
    assert set(result.semaphores) == set(range(8))
    assert not any(v for flags in result.semaphores.values() for v in flags.values())


def test_receipts_pair_with_sends(kernel):
    timeline = kernel("all_to_all").run(TPU7X, cores="all").timeline
    sent = timeline[timeline["track"] == "ici_send"]
    received = timeline[timeline["track"] == "ici_recv"]
    assert len(sent) == len(received)
    assert sent["bytes"].sum() == received["bytes"].sum()
    pairs = set(zip(sent["core"], sent["queue"].str[4:].astype(int), strict=True))
    assert pairs == set(zip(received["queue"].str[4:].astype(int), received["core"], strict=True))
