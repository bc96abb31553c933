"""VMEM over time: the curve holds what the stays hold; measured and modelled steps laid over each other."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from analyzer import residency
from dashboard.beside import anchors, shift_between
from dashboard.figures import step_spec
from dashboard.index import build_index
from dashboard.loading import from_parts
from dashboard.occupancy import SHOWN, build_occupancy, occupancy_axis, occupancy_traces
from dashboard.panels import View
from dashboard.vmem_map import SHAPES, places, vmem_spec


def stays(count=40, buffers=3):
    rows = [
        {
            "core": 0,
            "buffer": f"#allocation{k % buffers}",
            "name": f"w{k % buffers}<b>",
            "offset_bytes": (k // buffers) % 4 * 1024,
            "bytes": 1024,
            "issued_ps": 900 * k,
            "start_ps": 1000 * k,
            "arrived_ps": 1000 * k + 500,
            "end_ps": 1000 * k + 3500,
            "used": True,
            "span": k,
            "layer": 0,
            "phase": "",
            "source": "a.py:1",
        }
        for k in range(count)
    ]
    return residency.table(rows)


def test_the_curves_add_up_to_what_lies_there(step):
    table = stays()
    found = build_occupancy(table, 0, 64 << 20)
    time, held = residency.occupancy(table, 0)
    area = float((held[:-1] * np.diff(time)).sum())
    edges = np.array([0, 10_000, 43_500])
    assert sum((b.mean(edges) * np.diff(edges)).sum() for b in found.buffers) == pytest.approx(area)
    index = build_index(step[0])
    view = View(window=(0, 50_000))
    traces = occupancy_traces(found, index, view, "y3")
    assert len(traces) == 3
    assert {t["stackgroup"] for t in traces} == {"vmem"}
    assert "&lt;b&gt;" in traces[0]["name"]
    axis, notes = occupancy_axis(found, view, "y3")
    assert axis["range"][1] > 64
    assert "MiB" in axis["title"]["text"]
    assert "#allocation0: w0&lt;b&gt;" in notes[0]["text"]


def test_small_buffers_share_a_curve():
    found = build_occupancy(stays(60, SHOWN + 4), 0, None)
    assert len(found.buffers) == SHOWN + 1
    assert found.buffers[-1].label.startswith("4 smaller buffers: ")
    assert build_occupancy(stays(), 5, None) is None
    assert build_occupancy(pd.DataFrame(), 0, None) is None


def test_the_figure_has_a_third_axis_only_where_vmem_is_known(step):
    index = build_index(step[0])
    with_it = step_spec(index, View(), step[1], build_occupancy(stays(), 0, 1 << 20))
    assert with_it["layout"]["xaxis"]["anchor"] == "y3"
    domains = [with_it["layout"][axis]["domain"] for axis in ("yaxis3", "yaxis2", "yaxis")]
    assert all(low[1] < high[0] for low, high in pairwise(domains))
    assert "yaxis3" not in step_spec(index, View(), step[1])["layout"]


def test_measured_and_modelled_stand_above_each_other(step):
    timeline, bubbles = step
    measured = timeline.assign(provenance="measured", start_ps=timeline["start_ps"] + 7_000_000)
    measured["provenance"] = measured["provenance"].astype("category")
    loaded = from_parts("m", measured)
    model = from_parts("s", timeline)
    first, second = loaded.index(), model.index()
    shift = shift_between(first, second)
    assert shift == 7_000_000
    moved = model.shifted(None, shift)
    assert moved.phases[0].start == first.phases[0].start
    spec = step_spec(first, View(max_shapes=800), bubbles, None, moved)
    labels = spec["layout"]["yaxis"]["ticktext"]
    assert labels.count("Matrix") == 2
    assert labels.index("<b>trace</b> (measured)") < labels.index("<b>model</b> (modelled)")
    middles = spec["layout"]["yaxis"]["tickvals"]
    assert middles == sorted(middles)
    names = [t["name"] for t in spec["data"]]
    assert "HBM read (trace)" in names
    assert "HBM read (model)" in names
    # A click ties spans of the trace; one on the model must not find a span of the trace by its number.
    spans = [t["customdata"] for t in spec["data"] if "customdata" in t]
    assert (np.concatenate(spans[: len(spans) // 2]) >= 0).any()
    assert (np.concatenate(spans[len(spans) // 2 :]) == -1).all()
    name = anchors(first, second)[3]
    assert shift_between(first, second, name) == 7_000_000
    assert shift_between(first, second, "no such band") == 7_000_000


def test_the_map_puts_every_stay_at_its_address_and_time(step):
    table = stays(60, 3)
    found = build_occupancy(table, 0, 64 << 20)
    address, buffers = places(found.stays)
    assert len(buffers) == 3
    assert [start for _, start, _ in buffers] == [0, 4096, 8192]
    for name, start, size in buffers:
        mine = (found.stays["buffer"] == name).to_numpy()
        assert start <= address[mine].min()
        assert address[mine].max() + 1024 <= start + size
    index = build_index(step[0])
    spec = vmem_spec(found, index, View(window=(0, 70_000), columns=70_000))
    bars = [t for t in spec["data"] if t["type"] == "bar"]
    assert sum(len(t["base"]) for t in bars) == 60
    # The copies of one place follow each other: nothing lies in two rectangles at once.
    edges = sorted(
        (y, base, base + x)
        for t in bars
        for y, base, x in zip(t["y"].tolist(), t["base"].tolist(), t["x"].tolist(), strict=True)
    )
    assert all(a[0] != b[0] or a[2] <= b[1] + 1e-9 for a, b in pairwise(edges))
    assert "&lt;b&gt;" in bars[0]["hovertext"][0]
    assert vmem_spec(None, index, View())["data"] == []


def test_the_map_of_many_stays_is_thinned(step):
    found = build_occupancy(stays(20_000, 2), 0, None)
    index = build_index(step[0])
    bars = [t for t in vmem_spec(found, index, View(columns=900))["data"] if t["type"] == "bar"]
    assert 0 < sum(len(t["base"]) for t in bars) <= SHAPES
    assert any("stays, longest" in words for t in bars for words in t["hovertext"])
