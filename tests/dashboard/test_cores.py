"""All cores side by side: the index of a slice, its figure, and what a span has to do with another core."""

from itertools import pairwise

import numpy as np
import pytest

from analyzer import intervals
from dashboard.cores import cores_spec
from dashboard.figures import shape_count
from dashboard.palette import DARK
from dashboard.panels import View
from dashboard.relations import slice_relation
from dashboard.slices import KINDS, build_slice


@pytest.fixture(scope="module")
def many(synthetic):
    """(timeline, index) of a made-up step on four cores."""
    timeline = synthetic.make(layers=4, cores=4)
    return timeline, build_slice(timeline)


def spans_of(timeline, core, kind):
    tracks = next(tracks for key, _, tracks, _ in KINDS if key == kind)
    part = timeline[(timeline["core"] == core) & timeline["track"].isin([str(t) for t in tracks])]
    return part.assign(end=part["start_ps"] + part["duration_ps"])


@pytest.mark.parametrize("kind", ["hbm_read", "wait", "collective"])
def test_busy_time_is_that_of_the_union(many, kind):
    timeline, index = many
    for core in (0, 3):
        spans = spans_of(timeline, core, kind)
        union = intervals.from_spans(spans["start_ps"].to_numpy(), spans["end"].to_numpy())
        edges = np.linspace(index.start, index.end, 37).astype(np.int64)
        expected = [intervals.measure(intervals.clip(union, int(a), int(b))) for a, b in pairwise(edges)]
        np.testing.assert_allclose(np.diff(index.lanes[core, kind].busy(edges)), expected, atol=1)


def test_a_window_finds_every_span_that_touches_it(many):
    timeline, index = many
    start, end = index.end // 3, index.end // 3 + 60_000_000
    for core, kind in ((1, "hbm_read"), (2, "collective")):
        lane = index.lanes[core, kind]
        spans = spans_of(timeline, core, kind)
        touching = set(spans[(spans["start_ps"] < end) & (spans["end"] > start)]["span"])
        assert touching
        assert touching <= set(timeline["span"].iloc[lane.row[lane.touching(start, end)]])


def test_dense_kinds_become_strips_and_sparse_ones_stay_spans(many):
    _, index = many
    whole = cores_spec(index, View(max_shapes=600))
    kinds = {t["name"]: t["type"] for t in whole["data"]}
    assert kinds["HBM → VMEM transfer"] == "heatmap"
    assert shape_count(whole["data"]) <= 600
    strip = next(t for t in whole["data"] if t["name"] == "HBM → VMEM transfer")
    assert strip["z"].shape[0] == 2 * 4 - 1
    assert not strip["z"][1::2].any(), "nothing between two cores"
    assert strip["z"].max() <= 100
    window = (index.end // 2, index.end // 2 + 8_000_000)
    close = cores_spec(index, View(window=window, max_shapes=2000, theme=DARK))
    bars = next(t for t in close["data"] if t["name"] == "HBM → VMEM transfer")
    assert bars["type"] == "bar"
    assert "core 0 · HBM → VMEM transfer" in bars["hovertext"][0]
    assert any("GB/s" in words for words in bars["hovertext"])
    assert len(set(bars["y"].tolist())) == 4, "a row for each core"


def test_a_short_span_is_seen_in_a_wide_column(many):
    timeline, _ = many
    few = timeline[timeline["track"] == "mxu"].iloc[[0, -1]].copy()
    few["core"] = 0
    few.iloc[1, few.columns.get_loc("start_ps")] = 10**12
    strip = cores_spec(build_slice(few.astype(timeline.dtypes)), View(max_shapes=0), ("mxu",))["data"]
    strip = next(trace for trace in strip if trace["name"] == "matrix work")
    assert strip["type"] == "heatmap"
    assert strip["z"][0, 0] == 1


def test_chosen_kinds_only(many):
    _, index = many
    names = [t["name"] for t in cores_spec(index, View(), ("wait",))["data"]]
    assert "wait" in names
    assert "matrix work" not in names
    assert cores_spec(index, View(), ("no such",))["data"], "nonsense shows everything"


def test_bandwidth_references_are_of_all_cores(many):
    _, index = many
    layout = cores_spec(index, View(peak=3.7e12, achievable=3.15e12))["layout"]
    assert [a["text"] for a in layout["annotations"]] == ["peak 14,800 GB/s", "achievable 12,600 GB/s"]


def test_a_received_message_is_tied_to_its_sending():
    from analyzer.timeline import Kind, Provenance, Track, from_rows

    common = {"step": 0, "phase": "", "source": "", "provenance": Provenance.MODELLED, "issued_ps": 90}
    rows = [
        {**common, "core": 2, "track": Track.ICI_SEND, "kind": Kind.COLLECTIVE, "name": "part",
         "start_ps": 100, "duration_ps": 50, "queue": "ici:0", "bytes": 64},
        {**common, "core": 0, "track": Track.ICI_RECV, "kind": Kind.COLLECTIVE, "name": "part",
         "start_ps": 120, "duration_ps": 50, "queue": "ici:2", "bytes": 64},
        {**common, "core": 0, "track": Track.WAIT, "kind": Kind.WAIT, "name": "part", "start_ps": 40,
         "duration_ps": 130, "queue": "", "cause": 1, "issued_ps": None},
    ]  # fmt: skip
    timeline = from_rows([{**row, "span": k} for k, row in enumerate(rows)])
    index = build_slice(timeline)
    found = slice_relation(index, 2)
    assert (found.cause["span"], found.sender["core"]) == (1, 2)
    arrows = cores_spec(index, View(selected=2))["layout"]["annotations"]
    assert sum(a["showarrow"] for a in arrows) == 2
    assert slice_relation(index, 99) is None
