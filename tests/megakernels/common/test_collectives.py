"""The all-reduce against exact sums of small integers, and known faults against the race detector."""

import numpy as np
import pytest

MODES = [{"dma": "on_wait"}, {"dma": "eager", "detect_races": True}]
CORES = [1, 2, 3, pytest.param(8, marks=pytest.mark.slow)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cores", CORES)
def test_every_core_holds_the_exact_sum_after_several_rounds(simulated, mode, cores) -> None:
    run = simulated("common:all_reduce", cores=cores, rounds=3, **mode).clean()
    np.testing.assert_array_equal(run["got"], run["want"])


@pytest.mark.parametrize("fault", ["no_delivery_wait", "no_gather_wait"])
def test_a_missing_arrival_wait_gives_wrong_sums(simulated, fault) -> None:
    run = simulated("common:all_reduce", cores=2, rounds=3, dma="on_wait", fault=fault)
    assert not np.array_equal(run.value["got"], run.value["want"])


@pytest.mark.parametrize("fault", ["no_delivery_wait", "no_gather_wait", "reuse_early", "read_after_post"])
def test_a_missing_handshake_is_a_race(simulated, fault) -> None:
    run = simulated("common:all_reduce", cores=2, rounds=3, dma="eager", detect_races=True, fault=fault)
    assert run.raced


def test_an_arrival_nobody_waits_for_is_left_in_its_semaphore(simulated) -> None:
    run = simulated("common:all_reduce", cores=2, rounds=3, dma="eager", fault="no_gather_wait")
    assert run.semaphores_left
