"""Level of detail: nothing is lost by merging, nothing outside a window is drawn."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer import timeline as tl
from analyzer.timeline import Track
from dashboard.index import build_index
from dashboard.lanes import merge, resolution_for


def spans(rows):
    """A one-lane timeline from (start, duration, bytes or None, queue)."""
    return tl.from_rows(
        [
            {"span": i, "core": 0, "track": "hbm_read", "kind": "transfer", "name": f"w{i}", "step": 0,
             "start_ps": s, "duration_ps": d, "bytes": pd.NA if b is None else b, "queue": q,
             "provenance": "modelled", "bundle_first": i, "bundle_last": i + 1}
            for i, (s, d, b, q) in enumerate(rows)
        ]
    )  # fmt: skip


@st.composite
def serial_spans(draw):
    """Spans that do not overlap within their queue, as the table promises."""
    rows = []
    for queue in range(draw(st.integers(1, 3))):
        now = 0
        for _ in range(draw(st.integers(1, 40))):
            now += draw(st.integers(0, 3000))
            length = draw(st.integers(0, 5000))
            rows.append((now, length, draw(st.none() | st.integers(0, 1 << 40)), f"q{queue}"))
            now += length
    return rows


@settings(max_examples=40, deadline=None)
@given(serial_spans(), st.integers(0, 14))
def test_merging_keeps_counts_bytes_and_busy_time(rows, power):
    lane = build_index(spans(rows)).lane("hbm_read")
    merged = merge(lane.all, 1 << power)
    assert merged.count.sum() == len(rows)
    assert merged.bytes.sum() == sum(b for _, _, b, _ in rows if b is not None)
    assert merged.known.sum() == sum(b is not None for _, _, b, _ in rows)
    assert merged.busy.sum() == sum(d for _, d, _, _ in rows)
    assert len(merged) <= len(rows)


@settings(max_examples=40, deadline=None)
@given(serial_spans(), st.integers(0, 14))
def test_only_short_neighbours_in_one_column_merge(rows, power):
    resolution = 1 << power
    lane = build_index(spans(rows)).lane("hbm_read")
    merged = merge(lane.all, resolution)
    several = merged.count > 1
    assert (merged.end - merged.start < 2 * resolution)[several].all()
    long_spans = {(s, s + d) for s, d, _, _ in rows if d >= resolution}
    drawn = set(zip(merged.start[~several].tolist(), merged.end[~several].tolist(), strict=True))
    assert long_spans <= drawn


@settings(max_examples=40, deadline=None)
@given(serial_spans(), st.integers(0, 200_000), st.integers(1, 100_000))
def test_a_window_returns_exactly_the_spans_that_touch_it(rows, start, width):
    lane = build_index(spans(rows)).lane("hbm_read")
    found = lane.query(start, start + width, 1)
    wanted = [(s, s + d) for s, d, _, _ in rows if s < start + width and (s + d > start or s >= start)]
    assert sorted(zip(found.start.tolist(), found.end.tolist(), strict=True)) == sorted(wanted)


def test_overlapping_spans_of_one_queue_are_all_found():
    lane = build_index(spans([(0, 10_000, 1, "q"), (100, 50, 1, "q"), (200, 50, 1, "q")])).lane("hbm_read")
    assert len(lane.query(5_000, 6_000, 1)) == 1
    assert len(lane.query(0, 300, 1)) == 3


def test_a_merged_mark_names_its_longest_span_and_covers_its_bundles():
    lane = build_index(spans([(0, 10, 5, "q"), (12, 60, 7, "q"), (80, 4, 9, "q")])).lane("hbm_read")
    merged = merge(lane.all, 128)
    assert len(merged) == 1
    assert (merged.row[0], merged.bytes[0], merged.busy[0]) == (1, 21, 74)
    assert (merged.start[0], merged.end[0]) == (0, 84)
    assert (merged.bundle_first[0], merged.bundle_last[0]) == (0, 3)


def test_panning_keeps_columns_in_place(step):
    lane = build_index(step[0]).lane("mxu")
    left = lane.query(100_000_000, 200_000_000, 1 << 17)
    right = lane.query(110_000_000, 210_000_000, 1 << 17)
    inside = slice(115_000_000, 195_000_000)

    def within(marks):
        keep = (marks.start >= inside.start) & (marks.end <= inside.stop)
        return list(
            zip(marks.start[keep].tolist(), marks.end[keep].tolist(), marks.count[keep].tolist(), strict=True)
        )

    assert within(left) == within(right)


def test_stored_levels_agree_with_direct_merging(synthetic):
    lane = build_index(synthetic.make(detail=40)).lane("mxu")
    assert len(lane.levels) > 2, "the case needs stored levels"
    for power in (13, 16, 20):
        direct = merge(lane.all, 1 << power)
        stored = lane.query(0, int(lane.all.end.max()) + 1, 1 << power)
        assert len(direct) == len(stored)
        for name in ("start", "end", "busy", "bytes", "count", "row"):
            np.testing.assert_array_equal(getattr(direct, name), getattr(stored, name), err_msg=name)


@pytest.mark.parametrize(
    ("width", "columns", "wanted"),
    [(1024, 1024, 1), (1025 * 7, 1024, 4), (1 << 30, 1024, 1 << 20), (5, 1000, 1)],
)
def test_resolution_is_a_power_of_two_not_above_a_column(width, columns, wanted):
    assert resolution_for(0, width, columns) == wanted


def test_layers_and_phases_come_from_regions(step):
    index = build_index(step[0])
    assert [band.layer for band in index.layers] == list(range(16))
    assert [band.label for band in index.phases[:5]] == ["norm", "gate", "up", "down", "all-reduce"]
    assert all(a.end <= b.start for a, b in zip(index.phases, index.phases[1:], strict=False))
    assert {band.layer for band in index.phases} == set(range(16))


def test_layers_without_regions_come_from_what_ran_on_the_core(step):
    timeline = step[0]
    index = build_index(timeline[timeline["track"] != Track.REGION])
    assert [band.layer for band in index.layers] == list(range(16))
    assert {"norm", "gate", "up", "down", "all-reduce"} <= {band.label for band in index.phases}


def test_nested_regions_give_the_innermost_phase():
    def region(start, end, phase):
        return {"span": start, "core": 0, "track": "region", "kind": "vector", "name": phase, "step": 0,
                "layer": 0, "phase": phase, "start_ps": start, "duration_ps": end - start,
                "provenance": "modelled"}  # fmt: skip

    frame = tl.from_rows(
        [region(0, 100, "attention"), region(10, 40, "attention/qkv"), region(100, 120, "mlp")]
    )
    bands = [(b.start, b.end, b.label) for b in build_index(frame).phases]
    assert bands == [
        (0, 10, "attention"),
        (10, 40, "attention/qkv"),
        (40, 100, "attention"),
        (100, 120, "mlp"),
    ]


def test_an_empty_timeline_has_no_lanes():
    index = build_index(tl.empty())
    assert index.lanes == ()
    assert index.lane("hbm_read") is None
