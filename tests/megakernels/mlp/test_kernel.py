"""The MLP kernel against plain JAX, on 1, 2 and 8 simulated cores, in two interpreter modes.

Eager copies with the race detector catch a missing handshake; copies done at the wait, into memory full of
NaN, catch a missing wait. Neither catches both.
"""

import numpy as np
import pytest

MODES = [{"dma": "on_wait"}, {"dma": "eager", "detect_races": True}]

ONE = {"hidden": 512, "ffn": 256, "layers": 3, "cores": 1, "block": 128, "pack": 2, "ring_depth": 3}
TWO = {"hidden": 512, "ffn": 512, "layers": 3, "cores": 2, "block": 128, "pack": 1, "ring_depth": 4}
EIGHT = {"hidden": 1024, "ffn": 1024, "layers": 2, "cores": 8, "block": 128, "pack": 2, "ring_depth": 3}

# An activation may round to the other neighbour in bfloat16, which moves a result of size 1 by about 1e-3.
TOLERANCE = 5e-3


def error(run: dict[str, np.ndarray]) -> float:
    """Largest difference from the reference on any core; results are of size 1."""
    assert np.isfinite(run["cores"]).all()
    return float(np.abs(run["cores"] - run["reference"]).max())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [ONE, TWO, pytest.param(EIGHT, marks=pytest.mark.slow)])
def test_kernel_equals_reference(simulated, sizes, mode) -> None:
    run = simulated("mlp:stack", sizes=sizes, **mode).clean()
    assert error(run) < TOLERANCE
    assert run["cores"].shape == (sizes["cores"], 8, sizes["hidden"])
    assert all(np.array_equal(core, run["cores"][0]) for core in run["cores"])


@pytest.mark.parametrize(
    "change",
    [
        {"prefetch_distance": 1},  # nothing in flight while a tile is used
        {"prefetch_distance": 2},  # less than the ring
        {"ring_depth": 1},
        {"ring_depth": 15},  # more than the tiles of a layer: two layers in flight
        {"ring_depth": 40},  # more than the tiles of the step
        {"pack": 4},
        {"pack": 1, "block": 256},
        {"batch": 16},
        {"layers": 1},
    ],
    ids=str,
)
def test_every_way_to_stream_gives_the_same_result(simulated, change) -> None:
    run = simulated("mlp:stack", sizes=ONE | change, dma="eager", detect_races=True).clean()
    assert error(run) < TOLERANCE


@pytest.mark.parametrize("pack", [1, 2, 4])
def test_a_tile_may_span_part_of_an_owner_one_or_several(simulated, pack) -> None:
    run = simulated("mlp:stack", sizes=TWO | {"pack": pack, "layers": 2}, dma="on_wait").clean()
    assert error(run) < TOLERANCE


@pytest.mark.parametrize("sizes", [ONE, TWO, pytest.param(EIGHT, marks=pytest.mark.slow)])
def test_hooks_change_no_bit_of_the_result(simulated, sizes) -> None:
    off, regions = (simulated("mlp:stack", sizes=sizes, level=level).clean() for level in ("off", "regions"))
    np.testing.assert_array_equal(off["cores"], regions["cores"])


def test_the_comparison_notices_swapped_weights(simulated) -> None:
    run = simulated("mlp:stack", sizes=ONE, swap_gate_and_up=True).clean()
    assert error(run) > 100 * TOLERANCE


def test_a_missing_wait_is_noticed_in_both_modes(simulated) -> None:
    late = simulated("mlp:with_fault", fault="no_ring_wait", sizes=ONE, dma="on_wait")
    assert not np.isfinite(late.value["cores"]).all()
    assert simulated("mlp:with_fault", fault="no_ring_wait", sizes=ONE, dma="eager", detect_races=True).raced


def test_a_request_beyond_the_ring_is_noticed_in_both_modes(simulated) -> None:
    for mode in MODES:
        run = simulated("mlp:with_fault", fault="one_too_far", sizes=ONE, **mode)
        assert error(run.value) > 10 * TOLERANCE


@pytest.mark.slow
def test_a_wait_for_a_tile_that_never_comes_is_a_deadlock_and_ends(simulated) -> None:
    run = simulated("mlp:with_fault", fault="no_requests", sizes=ONE, timeout=10.0)
    assert run.deadlock
