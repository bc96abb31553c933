"""Figures as pure functions: known timelines give known rectangles, within limits, and names stay text."""

import json

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from analyzer import timeline as tl
from dashboard.bubbles import bubble_rows, conform
from dashboard.curves import in_flight, moved
from dashboard.figures import bandwidth_figure, shape_count, step_spec, timeline_figure
from dashboard.index import build_index
from dashboard.lanes import LANES
from dashboard.palette import DARK, LIGHT, theme
from dashboard.panels import View

COPY = 2 << 20


def small():
    """Two back-to-back copies, the matrix work they feed, and a wait for the first."""
    common = {"core": 0, "step": 0, "layer": 3, "phase": "gate", "provenance": "modelled"}
    return tl.from_rows(
        [
            {**common, "span": 0, "track": "hbm_read", "kind": "transfer", "name": "wq",
             "start_ps": 1_000_000, "duration_ps": 1_000_000, "bytes": COPY, "queue": "hbm",
             "source": "k.py:7", "issued_ps": 400_000, "bundle_first": 0x10, "bundle_last": 0x12},
            {**common, "span": 1, "track": "hbm_read", "kind": "transfer", "name": "wk",
             "start_ps": 2_000_000, "duration_ps": 500_000, "queue": "hbm"},
            {**common, "span": 2, "track": "mxu", "kind": "matrix", "name": "vmatmul",
             "start_ps": 2_000_000, "duration_ps": 3_000_000, "source": "k.py:9",
             "bundle_first": 0x20, "bundle_last": 0x2F},
            {**common, "span": 3, "track": "wait", "kind": "wait", "name": "wait wq",
             "start_ps": 500_000,
             "duration_ps": 1_500_000, "cause": 0},
        ]
    )  # fmt: skip


def trace(figure, name):
    return next(t for t in figure.data if t.name == name)


def test_rectangles_are_where_the_spans_are():
    figure = timeline_figure(small())
    copies = trace(figure, "HBM → VMEM transfer")
    np.testing.assert_allclose(np.asarray(copies.base, float), [1.0, 2.0])
    np.testing.assert_allclose(copies.x, [1.0, 0.5])
    assert list(copies.customdata) == [0, 1]
    matrix = trace(figure, "matrix work")
    np.testing.assert_allclose([float(matrix.base[0]), matrix.x[0]], [2.0, 3.0])
    assert copies.y[0] < matrix.y[0], "HBM -> VMEM lies above matrix work"
    assert figure.layout.xaxis.title.text == "time in the step (µs)"


def test_hover_says_bytes_rate_duration_source_and_bundles():
    hover = trace(timeline_figure(small()), "HBM → VMEM transfer").hovertext
    assert "wq" in hover[0]
    assert "2.00 MiB at 2,097 GB/s" in hover[0]
    assert "1 µs (from 1.000 to 2.000 µs)" in hover[0]
    assert "issued 600 ns before its bytes moved" in hover[0]
    assert "layer 3 · gate" in hover[0]
    assert "k.py:7 · bundles 0x10-0x12" in hover[0]


def test_what_is_unknown_is_said_to_be_unknown():
    hover = trace(timeline_figure(small()), "HBM → VMEM transfer").hovertext[1]
    assert "bytes unknown" in hover
    assert "source unknown · bundles unknown" in hover
    assert "0 B" not in hover


def test_each_kind_has_its_own_colour_in_both_themes(step):
    for chosen in (LIGHT, DARK):
        figure = timeline_figure(step[0], theme=chosen, bubbles=step[1])
        used = {
            t.name: t.marker.color for t in figure.data if t.type == "bar" and isinstance(t.marker.color, str)
        }
        four = [used[k] for k in ("HBM → VMEM transfer", "matrix work", "vector work", "collective")]
        assert len(set(four)) == 4
        assert used["wait"] not in four
        assert trace(figure, "HBM bubble").marker.pattern.shape == "/"
    assert theme("nonsense") is LIGHT


@pytest.mark.parametrize("limit", [300, 1000, 5000])
@pytest.mark.parametrize("window", [None, (100_000_000, 200_000_000), (0, 3)])
def test_never_more_shapes_than_allowed(synthetic, window, limit):
    timeline = synthetic.make(detail=40)
    figure = timeline_figure(timeline, window, limit, bubbles=synthetic.bubbles(timeline))
    assert 0 < shape_count([t.to_plotly_json() for t in figure.data]) <= limit


def test_counts_and_bytes_survive_any_level_of_detail(step):
    index = build_index(step[0])
    total = int(step[0].loc[step[0]["track"] == "hbm_read", "bytes"].sum())
    for columns in (16, 128, 1024):
        lane = index.lane("hbm_read")
        marks = lane.query(index.start, index.end, max(1, (index.end - index.start) // columns))
        assert marks.bytes.sum() == total


def test_a_window_draws_only_what_touches_it(step):
    low, high = 300_000_000, 301_000_000
    figure = timeline_figure(step[0], (low, high))
    for t in figure.data:
        if t.type == "bar" and t.name not in ("layer", "phase"):
            assert all(b + x > low / 1e6 and b < high / 1e6 for b, x in zip(t.base, t.x, strict=True))
    assert list(figure.layout.xaxis.range) == [300.0, 301.0]


def test_bandwidth_integrates_to_the_bytes_moved(step):
    index = build_index(step[0])
    total = int(step[0].loc[step[0]["track"] == "hbm_read", "bytes"].sum())
    for bins in (1, 7, 400):
        edges, rate = index.read.rate(index.start, index.end, bins)
        assert (rate * np.diff(edges) * 1e-12).sum() == pytest.approx(total, rel=1e-9)


def test_bandwidth_of_two_known_copies():
    index = build_index(small())
    edges, rate = index.read.rate(0, 3_000_000, 3)
    np.testing.assert_allclose(edges, [0, 1e6, 2e6, 3e6])
    np.testing.assert_allclose(rate, [0, COPY / 1e-6, 0], atol=1)


def test_overlapping_transfers_add_up():
    rows = [(0, 100, 10), (50, 100, 20)]
    frame = tl.from_rows(
        [
            {"span": i, "core": 0, "track": "hbm_read", "name": "w", "step": 0, "start_ps": s,
             "duration_ps": d, "bytes": b, "queue": "same", "provenance": "measured"}
            for i, (s, d, b) in enumerate(rows)
        ]
    )  # fmt: skip
    curve = moved(build_index(frame).lane("hbm_read").all)
    np.testing.assert_allclose(curve.at(np.array([0, 50, 100, 150])), [0, 5, 20, 30])


def test_bandwidth_figure_marks_peak_and_achievable():
    figure = bandwidth_figure(small(), peak=3.7e12, achievable=3.15e12)
    assert [s.y0 for s in figure.layout.shapes] == [3700, 3150]
    assert [a.text for a in figure.layout.annotations] == ["peak 3,700 GB/s", "achievable 3,150 GB/s"]
    assert figure.layout.yaxis.title.text == "HBM (GB/s)"
    unknown = bandwidth_figure(small())
    assert not unknown.layout.shapes


def test_bandwidth_that_is_not_seen_is_not_zero():
    frame = small()
    figure = bandwidth_figure(frame[frame["track"] != "hbm_read"], peak=3.7e12)
    assert not figure.data
    assert "shows no HBM transfers" in figure.layout.annotations[-1].text


def test_bytes_in_flight_counts_from_issue_to_arrival():
    time, amount = in_flight(np.array([10, 20]), np.array([0, 5]), np.array([8, 9]))
    assert list(zip(time.tolist(), amount.tolist(), strict=True)) == [(0, 10), (5, 30), (8, 20), (9, 0)]


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<a href='javascript:alert(1)'>w</a>",
    "</script><script>alert(1)</script>",
    "&lt;b&gt;",
    "x" * 10_000,
    "\u202eevil\u202c \u05d0\u05d1\u05d2",
    "🔥🧨 w\u0000q\n\r\t",
    "%{customdata[0]} $x^2$",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_short_literal_text(name):
    frame = small()
    for column in ("name", "phase", "source"):
        frame[column] = frame[column].astype(object)
        frame.loc[:, column] = name
    bubbles = conform(pd.DataFrame([{"start_ps": 0, "duration_ps": 400_000, "cause": name, "source": name}]))
    spec = step_spec(build_index(frame), View(), bubbles)
    figure = go.Figure(spec)
    for t in figure.data:
        for text in [*(t.hovertext if t.type == "bar" else []), *(t.text or [])]:
            remaining = text
            for allowed in ("<br>", "<b>", "</b>"):
                remaining = remaining.replace(allowed, "")
            assert "<" not in remaining
            assert ">" not in remaining
            assert len(text) < 900
            assert not set(text) & set("\u202e\u202c\u0000\n\r")
    assert "javascript" not in json.dumps(figure.layout.to_plotly_json(), default=str)


def test_bubble_rows_are_largest_first_and_carry_their_window(step):
    rows = bubble_rows(step[1], core=0, step_ps=935_755_000)
    lengths = step[1]["duration_ps"].sort_values(ascending=False).tolist()
    assert len(rows) == len(lengths)
    assert rows[0]["duration"] == "7.989 µs"
    assert rows[0]["share"] == "0.9 %"
    low, high = rows[0]["window"]
    top = step[1].sort_values("duration_ps").iloc[-1]
    assert low < top["start_ps"]
    assert high > top["start_ps"] + top["duration_ps"]
    assert bubble_rows(None) == []
    assert bubble_rows(step[1], limit=3)[2]["bundles"] == "0x200-0x240"


def test_another_core_draws_other_spans(synthetic):
    timeline = synthetic.make(layers=2, cores=2)
    first, second = (timeline_figure(timeline, core=c) for c in (0, 1))
    assert not np.array_equal(trace(first, "matrix work").base, trace(second, "matrix work").base)
    absent = timeline_figure(timeline, core=7)
    np.testing.assert_array_equal(trace(absent, "matrix work").base, trace(first, "matrix work").base)


def test_an_empty_timeline_gives_an_empty_figure():
    figure = timeline_figure(tl.empty())
    assert shape_count([t.to_plotly_json() for t in figure.data]) == 0


def test_every_lane_has_a_colour():
    for _, _, colour in LANES:
        assert colour in LIGHT.colours
        assert colour in DARK.colours
