"""The one-hop all-reduce against numpy, over several rounds, and with the second exchange left out."""

import numpy as np
import pytest


@pytest.mark.parametrize("cores", [1, 2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_sums(simulated, cores, group) -> None:
    run = simulated("exchange:sums", cores=cores, rounds=3, group=group, dma="eager", timeout=300).clean()
    np.testing.assert_allclose(run["out"], run["expected"], atol=1e-5)


def test_copies_done_at_the_wait(simulated) -> None:
    run = simulated("exchange:sums", cores=2, rounds=3, group=2, dma="on_wait").clean()
    np.testing.assert_allclose(run["out"], run["expected"], atol=1e-5)


def test_one_exchange_used_round_after_round_is_a_race(simulated) -> None:
    run = simulated("exchange:sums", cores=2, rounds=3, group=4, dma="eager", exchanges=1)
    assert run.raced or not np.allclose(run.value["out"], run.value["expected"], atol=1e-5)
