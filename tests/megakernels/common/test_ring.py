"""The ring against a plain copy, and known faults against the two interpreter modes that must notice them."""

import numpy as np
import pytest

MODES = [{"dma": "on_wait"}, {"dma": "eager", "detect_races": True}]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("depth", "distance"), [(1, 1), (3, 1), (3, 2), (3, 3), (12, 12)])
def test_every_tile_arrives_whole_and_in_order(simulated, mode, depth, distance) -> None:
    run = simulated("common:ring", tiles=8, depth=depth, distance=distance, **mode).clean()
    np.testing.assert_array_equal(run["got"], run["want"])


def test_a_missing_wait_reads_what_has_not_arrived(simulated) -> None:
    run = simulated("common:ring", tiles=8, depth=3, distance=3, dma="on_wait", fault="no_wait")
    assert np.isnan(run.value["got"]).any()


def test_a_missing_wait_is_a_race(simulated) -> None:
    run = simulated(
        "common:ring", tiles=8, depth=3, distance=3, dma="eager", detect_races=True, fault="no_wait"
    )
    assert run.raced


def test_a_refill_before_the_last_read_overwrites_the_tile(simulated) -> None:
    run = simulated("common:ring", tiles=8, depth=3, distance=3, dma="eager", fault="refill_early")
    assert not np.array_equal(run.value["got"], run.value["want"])


def test_a_refill_before_the_last_read_is_a_race(simulated) -> None:
    run = simulated(
        "common:ring", tiles=8, depth=3, distance=3, dma="eager", detect_races=True, fault="refill_early"
    )
    assert run.raced
