"""Sums in two and three hops against numpy, the same bits on every rank, and planted faults."""

import contextlib

import numpy as np
import pytest

MESHES = [(1, 1), (1, 2), (1, 4), (2, 4), (4, 2), (1, 8)]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_two_hops(simulated, mesh, rows) -> None:
    check(simulated, mesh, rows, "two", dma="on_wait")


@pytest.mark.parametrize("mesh", MESHES)
def test_three_hops(simulated, mesh) -> None:
    check(simulated, mesh, 8, "three", dma="on_wait")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["two", "three"])
def test_32_ranks(simulated, monkeypatch, kind) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=32")
    with contextlib.closing(type(simulated)()) as of_32:
        check(of_32, (4, 8), 8, kind, dma="on_wait", rounds=2)


@pytest.mark.parametrize("kind", ["two", "three"])
def test_no_race(simulated, kind) -> None:
    check(simulated, (2, 2), 2, kind, dma="eager", detect_races=True)


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
    np.testing.assert_allclose(run["out"], run["expected"], atol=0.01 * hosts * members)
    sums = run["out"] - run["ranks"]
    np.testing.assert_array_equal(sums, np.broadcast_to(sums[:1], sums.shape))
