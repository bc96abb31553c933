"""Savings by replay, against a little simulator of a ring of buffers that knows the truth."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer import replay, timeline, view
from analyzer.timeline import Kind, Provenance, Track


def ring(tiles, work, copy, latency, distance, depth, collective=0):
    """Wait for a tile, issue the tile `distance` ahead, work; a message wait after every fourth."""
    rows, free, finish = [], {}, {}
    now, hbm = 0, 0

    def add(**row):
        rows.append(
            {"span": len(rows), "core": 0, "step": 0, "provenance": Provenance.MODELLED, "queue": "hbm"} | row
        )
        return len(rows) - 1

    def issue(tile):
        nonlocal hbm
        start = max(now + latency, hbm)
        hbm = start + copy
        span = add(
            track=Track.HBM_READ, kind=Kind.TRANSFER, start_ps=start, duration_ps=copy, issued_ps=now,
            free_ps=free.get(tile - depth, 0), bytes=copy, source="k.py:5",
        )  # fmt: skip
        finish[tile] = (span, hbm)

    for tile in range(distance):
        issue(tile)
    for tile in range(tiles):
        span, end = finish[tile]
        add(track=Track.WAIT, kind=Kind.WAIT, start_ps=now, duration_ps=max(end - now, 0), cause=span)
        now = max(now, end)
        add(track=Track.MXU, kind=Kind.MATRIX, start_ps=now, duration_ps=work)
        now += work
        free[tile] = now
        if tile + distance < tiles:
            issue(tile + distance)
        if collective and tile % 4 == 3:
            add(track=Track.WAIT, kind=Kind.COLLECTIVE, start_ps=now, duration_ps=collective)
            now += collective
    return view.core_step(timeline.from_rows(rows), 0)


SIZES = st.integers(1, 50)


@settings(max_examples=30, deadline=None)
@given(st.integers(4, 30), SIZES, SIZES, st.integers(0, 60), st.integers(1, 3), st.sampled_from([0, 7, 100]))
def test_an_unchanged_replay_gives_the_step_back(tiles, work, copy, latency, distance, collective):
    core = ring(tiles, work, copy, latency, distance, 3, collective)
    assert replay.replayer(core).run() == core.window_ps


@pytest.mark.parametrize(("work", "copy", "latency"), [(10, 10, 70), (50, 10, 20), (5, 30, 10), (10, 9, 0)])
@pytest.mark.parametrize("collective", [0, 40])
def test_hoisting_late_copies_saves_what_the_better_program_saves(work, copy, latency, collective):
    depth = 6
    late = ring(60, work, copy, latency, 1, depth, collective)
    good = ring(60, work, copy, latency, depth, depth, collective)
    spans = frozenset(int(s) for s in late.hbm["span"])
    saving = replay.replayer(late).saving(replay.Edit(hoist=spans))
    truth = late.window_ps - good.window_ps
    assert saving == pytest.approx(truth, rel=0.02)
    if latency:
        assert truth > 0.1 * late.window_ps


def test_a_saving_that_bandwidth_would_eat_is_not_promised():
    core = ring(60, 5, 30, 10, 6, 6, collective=20)
    waits = frozenset(int(s) for s in core.waits["span"][core.waits["kind"] == Kind.COLLECTIVE])
    assert len(waits) == 15
    assert replay.replayer(core).saving(replay.Edit(no_wait=waits)) < 60
    busy = ring(60, 30, 5, 10, 6, 6, collective=20)
    waits = frozenset(int(s) for s in busy.waits["span"][busy.waits["kind"] == Kind.COLLECTIVE])
    assert replay.replayer(busy).saving(replay.Edit(no_wait=waits)) == 15 * 20


def test_shortening_work_and_dropping_latency():
    core = ring(60, 30, 5, 10, 6, 6)
    saving = replay.replayer(core).saving(replay.Edit(shorten=((core.mxu, 0.5),)))
    assert saving == 60 * 15
    slow = ring(60, 10, 10, 70, 1, 1)
    spans = frozenset(int(s) for s in slow.hbm["span"])
    assert replay.replayer(slow).saving(replay.Edit(no_latency=spans)) == 60 * 70


def test_a_timeline_the_replay_cannot_explain_gives_no_saving(build):
    copy = build.read(0, 10, 1, issued=0)
    build.wait(10, 60, None)
    build.wait(5, 90, copy)
    build.mxu(90, 100)
    assert replay.replayer(view.core_step(build.frame(), 0)).saving(replay.Edit()) is None


def test_an_empty_step():
    assert replay.replayer(view.core_step(timeline.empty(), 0)).saving(replay.Edit()) == 0
