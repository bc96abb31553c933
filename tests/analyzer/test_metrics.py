"""Folds over timelines small enough to check by eye."""

import numpy as np
import pytest

from analyzer import metrics, timeline, view

PEAK = 1e12  # one byte per picosecond


def fold(build, core=0):
    return view.core_step(build.frame(), core)


def test_utilization_overlap_and_bubble_of_a_step_known_by_hand(build):
    first = build.read(10, 40, 30, issued=5)
    build.read(40, 60, 20, issued=12)
    build.write(80, 90, 10)
    build.wait(0, 40, first)
    build.mxu(40, 100)
    got = metrics.hbm(fold(build), PEAK)
    assert (got.read_bytes, got.write_bytes) == (50, 10)
    assert got.utilization == pytest.approx(0.6)
    assert got.in_flight_ps == 60
    assert got.bubble_ps == 40
    assert got.nothing_outstanding_ps == 5 + 20 + 10
    assert got.overlap == pytest.approx(30 / 60)
    assert got.exposed_wait_ps == 40
    assert (got.ramp_ps, got.drain_ps) == (10, 10)


def test_in_flight_and_bubble_add_up_when_copies_overlap_each_other(build):
    build.read(0, 50, 10)
    build.read(20, 70, 10)
    build.write(30, 40, 10)
    build.mxu(0, 100)
    got = metrics.hbm(fold(build), PEAK)
    assert got.in_flight_ps + got.bubble_ps == 100
    assert got.in_flight_ps == 70
    assert got.overlap == 1.0


def test_no_hbm_traffic_is_zero_bytes_but_no_overlap_and_no_ramp(build):
    build.mxu(0, 100)
    got = metrics.hbm(fold(build), PEAK)
    assert (got.read_bytes, got.write_bytes, got.utilization, got.bubble_ps) == (0, 0, 0.0, 100)
    assert (got.overlap, got.ramp_ps, got.drain_ps) == (None, None, None)


def test_bytes_of_the_phases_add_up_to_the_bytes_of_the_step(build):
    for i in range(40):
        build.read(7 * i + i % 3, 7 * i + 9, 1000 + i)
        build.region(7 * i, 7 * i + 4, f"phase {i % 7}")
    build.mxu(0, 300)
    core = fold(build)
    parts = [phase.read_bytes for phase in metrics.phases(core)]
    assert len(parts) == 8
    assert sum(parts) == metrics.hbm(core, PEAK).read_bytes == sum(range(1000, 1040))


def test_whole_parts_stay_near_and_add_up():
    chance = np.random.default_rng(2)
    for count in (1, 2, 9, 100):
        parts = chance.random(count) * 50
        got = metrics.whole_parts(parts)
        assert got.sum() == round(parts.sum())
        assert (abs(got - parts) < 1).all()
    assert metrics.whole_parts(np.array([0.5, 0.5, 2.0])).tolist() == [1, 0, 2]


def test_invisible_copies_are_unknown_and_never_zero(build):
    build.mxu(0, 100)
    got = metrics.hbm(fold(build), PEAK, visible=False)
    assert got.peak_bytes_per_s == PEAK
    assert (got.read_bytes, got.utilization, got.bubble_ps, got.exposed_wait_ps) == (None,) * 4
    assert metrics.ici(fold(build), visible=False).messages is None


def test_unknown_size_or_unknown_chip_gives_unknown_utilization(build):
    build.read(0, 10, 10)
    assert metrics.hbm(fold(build), None).utilization is None
    build.read(10, 20, None)
    got = metrics.hbm(fold(build), PEAK)
    assert (got.read_bytes, got.write_bytes, got.utilization) == (None, 0, None)


def test_empty_timeline_divides_by_nothing():
    core = view.core_step(timeline.empty(), 0)
    assert core.window_ps == 0
    got = metrics.hbm(core, PEAK)
    assert (got.utilization, got.overlap, got.bubble_ps) == (None, None, 0)
    assert metrics.phases(core) == []
    assert metrics.core_time(core).mxu_ps is None


def test_zero_length_spans_cover_nothing_but_their_bytes_count(build):
    build.read(10, 10, 7)
    build.wait(20, 20)
    build.mxu(0, 100)
    got = metrics.hbm(fold(build), PEAK)
    assert (got.read_bytes, got.in_flight_ps, got.exposed_wait_ps) == (7, 0, 0)


def test_stalls_are_told_apart_and_counted_once(build):
    copy, message = build.read(0, 30, 1), build.receive(10, 60, 1)
    build.wait(0, 30, copy)
    build.wait(30, 60, message)
    build.wait(60, 70)
    build.mxu(70, 90)
    build.vector(80, 100)
    build.mxu(0, 200, core=1)
    time = metrics.core_time(fold(build))
    assert time.window_ps == 200
    assert (time.stalled_dma_ps, time.stalled_ici_ps, time.stalled_other_ps) == (30, 30, 10)
    assert (time.busy_ps, time.mxu_ps, time.outside_program_ps) == (30, 20, 100)


def test_messages_and_exposed_phases(build):
    for at in (0, 1, 2):
        build.send(at, at + 5, 100)
    got_first = [build.receive(5, 20 + i, 100) for i in range(3)]
    for i, span in enumerate(got_first):
        build.wait(10 if i == 0 else 19 + i, 20 + i, span)
    build.send(30, 35, 50)
    build.wait(30, 40, build.receive(32, 40, 50))
    build.send(50, 51, 50)
    hidden = build.receive(50, 52, 50)
    build.wait(60, 60, hidden)
    ici = metrics.ici(fold(build))
    assert (ici.messages, ici.sent_bytes) == (5, 400)
    assert ici.exposed_wait_ps == (22 - 10) + 10
    assert ici.exposed_phases == 2


def test_phase_times_are_exclusive_and_add_up(build):
    build.region(10, 60, "attention", 0)
    build.region(20, 30, "attention/qkv", 0)
    build.region(60, 80, "mlp", 0)
    build.region(80, 90, "attention", 1)
    build.region(85, 85, "empty", 1)
    build.read(0, 100, 1000)
    build.send(25, 26, 64)
    build.mxu(0, 100)
    table = {(p.layer, p.phase): p for p in metrics.phases(fold(build))}
    assert {k: p.time_ps for k, p in table.items()} == {
        (0, "attention"): 40,
        (0, "attention/qkv"): 10,
        (0, "mlp"): 20,
        (1, "attention"): 10,
        (1, "empty"): 0,
        (None, ""): 20,
    }
    assert sum(p.time_ps for p in table.values()) == 100
    assert sum(p.share for p in table.values()) == pytest.approx(1)
    assert sum(p.read_bytes for p in table.values()) == 1000
    assert table[0, "attention"].read_bytes == 400
    assert table[0, "attention/qkv"].sent_bytes == 64
    assert table[0, "mlp"].sent_bytes == 0
    assert [p.phase for p in metrics.phases(fold(build))][-1] == ""


def test_a_region_without_an_end_inside_its_parent_does_not_count_twice(build):
    build.region(0, 50, "outer", 0)
    build.region(40, 80, "outer/leaks", 0)
    build.mxu(0, 100)
    table = {p.phase: p.time_ps for p in metrics.phases(fold(build))}
    assert table == {"outer": 40, "outer/leaks": 40, "": 20}


def test_phase_bytes_are_unknown_only_where_the_unknown_copy_moves(build):
    build.region(0, 50, "a")
    build.region(50, 100, "b")
    build.read(0, 20, 20)
    build.read(60, 70, None)
    table = {p.phase: p.read_bytes for p in metrics.phases(fold(build))}
    assert table["a"] == 20
    assert table["b"] is None


def test_steps_and_cores_do_not_mix(build):
    build.read(0, 10, 10)
    build.read(0, 20, 20, core=1)
    build.read(1000, 1030, 30, step=1)
    frame = build.frame()
    assert view.steps(frame) == [0, 1]
    assert view.cores(frame) == [0, 1]
    assert metrics.hbm(view.core_step(frame, 0, 0), PEAK).read_bytes == 10
    assert metrics.hbm(view.core_step(frame, 0, 0), PEAK).bubble_ps == 10
    assert view.core_step(frame, 0, 1).window_ps == 30
