"""Sums in two and three hops against numpy, the same bits on every rank, and planted faults."""

import contextlib

import numpy as np
import pytest

from megakernels.common.reduction import (
    Mesh,
    ThreeHopScratch,
    TwoHopScratch,
    reduction_scratch,
    three_hop_scratch,
)

SIZES = [
    ((1, 1), 1),
    ((1, 2), 2),
    ((1, 4), 8),
    ((2, 4), 1),
    ((2, 4), 2),
    ((4, 2), 8),
    ((1, 8), 8),
    ((2, 3), 2),  # member numbers that are no bits of the rank
]


@pytest.mark.parametrize(("mesh", "rows"), SIZES)
def test_two_hops(simulated, mesh, rows) -> None:
    check(simulated, mesh, rows, "two", dma="on_wait", pieces=2 if rows == 8 else 1)


@pytest.mark.parametrize(("mesh", "rows"), [((1, 2), 2), ((2, 4), 2), ((4, 2), 8), ((1, 8), 8)])
def test_three_hops(simulated, mesh, rows) -> None:
    check(simulated, mesh, rows, "three", dma="on_wait")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["two", "three"])
def test_32_ranks(simulated, monkeypatch, kind) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=32")
    with contextlib.closing(type(simulated)()) as of_32:
        check(of_32, (4, 8), 8, kind, dma="on_wait", rounds=2)


@pytest.mark.parametrize(("kind", "pieces"), [("two", 1), ("two", 2), ("three", 1)])
def test_no_race(simulated, kind, pieces) -> None:
    check(simulated, (2, 2), 2, kind, dma="eager", detect_races=True, pieces=pieces)


def test_the_way_that_is_modelled_to_be_faster() -> None:
    mesh = Mesh("core", 4, 8)
    for rows, width, hops in ((1, 7168, TwoHopScratch), (8, 3584, TwoHopScratch), (8, 7168, ThreeHopScratch)):
        assert isinstance(reduction_scratch(mesh, rows, 7, width // 7), hops)
    assert isinstance(reduction_scratch(Mesh("core", 1, 8), 8, 7, 1024), TwoHopScratch)


def test_columns_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="7 parts of 512 columns"):
        three_hop_scratch(Mesh("core", 4, 8), 8, 7, 512)


@pytest.mark.parametrize("kind", ["two", "three"])
@pytest.mark.parametrize("fault", ["no_finish", "no_relay_wait", "one_scratch"])
def test_a_planted_fault_is_noticed(simulated, kind, fault) -> None:
    run = simulated(
        "exchange:reduce", hosts=2, members=2, rows=2, kind=kind, dma="eager", detect_races=True, fault=fault
    )
    assert run.semaphores_left if fault == "no_finish" else run.raced


def test_a_missing_wait_reads_what_has_not_arrived(simulated) -> None:
    run = simulated(
        "exchange:reduce", hosts=2, members=2, rows=2, kind="two", dma="on_wait", fault="no_relay_wait"
    )
    assert np.isnan(run.value["out"]).any()


def check(simulated, mesh, rows, kind, **options) -> None:
    hosts, members = mesh
    run = simulated(
        "exchange:reduce", hosts=hosts, members=members, rows=rows, kind=kind, timeout=300, **options
    ).clean()
    for sums in run["out"]:
        np.testing.assert_array_equal(sums, run["out"][0])
    # Two roundings to 8 bits, or three, in every round; one of 32 shares is 3 % of the sum.
    np.testing.assert_allclose(run["out"][0], run["expected"], atol=2**-7 * np.abs(run["expected"]).max())
