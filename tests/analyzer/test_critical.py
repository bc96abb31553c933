"""The critical path: covers the step without gaps, and blames the right thing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer import critical, timeline, view
from analyzer.timeline import Track
from tests.analyzer.conftest import TimelineBuilder


def parts(build):
    core = view.core_step(build.frame(), 0)
    path = critical.critical_path(core)
    assert [s.start_ps for s in path[1:]] == [s.end_ps for s in path[:-1]]
    totals = critical.totals(core, path)
    assert sum(totals.values()) == core.window_ps
    return {k: v for k, v in totals.items() if v}, critical.verdict(core, totals)


def test_a_full_queue_is_hbm_bound(build):
    copies = [build.read(10 * i, 10 * i + 10, 10, issued=0) for i in range(1, 5)]
    build.vector(0, 10)
    for i, copy in enumerate(copies):
        build.wait(12 + 10 * i, 20 + 10 * i, copy)
        build.mxu(20 + 10 * i, 22 + 10 * i)
    got, (bound, sentence) = parts(build)
    assert got == {critical.HBM_BYTES: 40, critical.DMA_LATENCY: 10, critical.MATRIX: 2}
    assert bound == critical.HBM_BYTES
    assert "HBM bandwidth (77%)" in sentence


def test_one_copy_at_a_time_is_latency_bound(build):
    for i in range(3):
        at = 100 * i
        copy = build.read(at + 70, at + 80, 10, issued=at + 10)
        build.vector(at, at + 10)
        build.wait(at + 10, at + 80, copy)
        build.mxu(at + 80, at + 100)
    got, (bound, _) = parts(build)
    assert got == {
        critical.HBM_BYTES: 30,
        critical.DMA_LATENCY: 180,
        critical.MATRIX: 60,
        critical.OTHER_WORK: 30,
    }
    assert bound == critical.DMA_LATENCY


def test_collectives_work_and_unknown_waits(build):
    build.mxu(0, 10)
    build.wait(10, 60, build.receive(5, 60, 1))
    build.vector(60, 70)
    build.wait(70, 75)
    build.wait(75, 78, 999)
    build.vector(78, 80)
    build.mxu(0, 90, core=1)
    got, (bound, _) = parts(build)
    assert got == {
        critical.COLLECTIVE: 50,
        critical.UNKNOWN_WAIT: 5,
        critical.SIGNAL: 3,
        critical.MATRIX: 10,
        critical.OTHER_WORK: 12,
        critical.OUTSIDE: 10,
    }
    assert bound == critical.COLLECTIVE


def test_an_empty_step_is_unknown():
    core = view.core_step(timeline.empty(), 0)
    assert critical.verdict(core, critical.totals(core, critical.critical_path(core)))[0] == "unknown"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 60),
            st.integers(0, 30),
            st.integers(0, 40),
            st.sampled_from([Track.HBM_READ, Track.WAIT, Track.MXU, Track.ICI_RECV]),
            st.one_of(st.none(), st.integers(0, 12)),
        ),
        max_size=12,
    )
)
def test_any_timeline_gives_a_path_that_covers_the_step(rows):
    build = TimelineBuilder()
    for start, length, ahead, track, cause in rows:
        build.any(track, start, length, ahead, cause=cause if track is Track.WAIT else None)
    core = view.core_step(build.frame(), 0)
    path = critical.critical_path(core)
    assert sum(critical.totals(core, path).values()) == core.window_ps
    if core.window_ps:
        assert (path[0].start_ps, path[-1].end_ps) == (core.start_ps, core.end_ps)
