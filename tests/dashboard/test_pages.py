"""What the other pages show, as pure functions: overview, tokens, post view, relations, changes, memory."""

import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

from dashboard import changes, post
from dashboard.index import build_index
from dashboard.jobs import Jobs
from dashboard.listing import UNITS, loop_rows, loops, parse_bundle, source_lines
from dashboard.listing import map_spec as bundle_map
from dashboard.loading import from_parts
from dashboard.memory import allocations, map_spec, outstanding, outstanding_spec, thin
from dashboard.pages.whatif import FACTORS, UNCHANGED, overrides
from dashboard.palette import DARK, LIGHT
from dashboard.places import window_of
from dashboard.post_svg import draw, overlaps, ticks
from dashboard.relations import describe, measure, relation, search
from dashboard.summary import cells, gauge_spec, heat_spec, parts_spec
from dashboard.tokens import references, tokens_per_second, tokens_spec
from dashboard.wire import typed, wire


@pytest.fixture(scope="module")
def index(step):
    return build_index(step[0])


def test_gauge_shows_mean_achievable_and_peak():
    report = {"hbm": {"utilization": 0.5, "peak_bytes_per_s": 4e12, "achievable_bytes_per_s": 3e12}}
    figure = go.Figure(gauge_spec(report, LIGHT))
    assert [t.x[0] for t in figure.data] == [4000, 3000, 2000]
    assert "GB/s" in figure.layout.xaxis.title.text
    assert "unknown" in gauge_spec({"hbm": {"utilization": None}}, LIGHT)["layout"]["annotations"][0]["text"]


def test_parts_add_up_to_the_critical_path():
    path = {"hbm_bytes_ps": 700_000_000, "collectives_ps": 300_000_000, "semaphores_ps": 0}
    figure = go.Figure(parts_spec({"step": {"critical_path": path}}, DARK))
    assert sum(t.x[0] for t in figure.data) == 1000
    assert not parts_spec({}, LIGHT)["data"]


def test_heat_map_of_named_layers():
    phases = [
        {"layer": layer, "phase": phase, "time_ps": (layer + 1) * 1_000_000, "read_bytes": 10**6,
         "stalled_dma_ps": 500_000, "stalled_ici_ps": 0}
        for layer in range(3)
        for phase in ("attention", "mlp")
    ]  # fmt: skip
    found, title = cells({"phases": phases}, ())
    figure = go.Figure(heat_spec(found, title, "time", LIGHT))
    np.testing.assert_allclose(figure.data[0].z, [[1, 2, 3], [1, 2, 3]])
    assert title == "layer"
    rate = heat_spec(found, title, "bandwidth", LIGHT)["data"][0]["z"]
    np.testing.assert_allclose(rate[0], [1000, 500, 1000 / 3])
    np.testing.assert_allclose(heat_spec(found, title, "stalled", LIGHT)["data"][0]["z"][0], [50, 25, 50 / 3])


def test_heat_map_without_layers_counts_runs_and_knows_only_time(index):
    found, title = cells({}, index.phases)
    assert title == "run of the phase"
    assert heat_spec(found, title, "time", LIGHT)["data"][0]["z"].shape == (5, 16)
    assert not heat_spec(found, title, "bandwidth", LIGHT)["data"], "unknown, not zero"
    assert not heat_spec([], "layer", "time", LIGHT)["data"]


def test_tokens_per_second():
    assert tokens_per_second(4_020_000_000, 1, 1) == pytest.approx(248.8, abs=0.1)
    assert tokens_per_second(None, 1, 1) is None
    assert tokens_per_second(5, None, 1) is None
    assert {r.tokens_per_s for r in references("Kimi K3", 8)} == {865, 636}
    assert {709, 452, 249} <= {r.tokens_per_s for r in references("kimi-k3", 1)}
    assert references("mlp", 1) == []
    report = {"capture": {"model": "qwen3.8-27b", "batch": 1}, "step": {"time_ps": 3_960_000_000}}
    figure = go.Figure(tokens_spec(report, 6, LIGHT))
    assert list(figure.data[0].x) == [pytest.approx(1515.2, abs=0.1), 1515, 695]
    assert not tokens_spec({}, 1, LIGHT)["data"]


def test_bubbles_diagram_covers_the_window_without_overlap(index):
    diagram = post.bubbles_diagram(index, None, "modelled")
    assert overlaps(diagram) == 0
    assert list(diagram.lanes) == ["LOAD", "COMPUTE", "STORE"]
    assert [s.label for s in diagram.spans] == ["ramp", "steady state", "drain"]
    assert diagram.spans[0].start == diagram.start
    assert diagram.spans[-1].end == diagram.end
    kinds = {b.kind for b in diagram.lanes["LOAD"]}
    assert kinds == {"transfer", "bubble"}
    assert len(diagram.lanes["LOAD"]) < 500


def test_prefetch_diagram_marks_what_is_for_the_next_layer(index):
    diagram = post.prefetch_diagram(index, 3, "modelled")
    assert overlaps(diagram) == 0
    names = [b.label for b in diagram.lanes["COMPUTE"]]
    assert names[:5] == ["norm", "gate", "up", "down", "all-reduce"]
    kinds = {b.label: b.kind for b in diagram.lanes["COMPUTE"]}
    assert kinds["gate"] == "matrix"
    assert kinds["norm"] == "vector"
    assert kinds["all-reduce"] == "collective"
    ahead = [b for b in diagram.lanes["HBM → VMEM"] if b.label.endswith("(next)")]
    assert [b.label for b in ahead] == ["w_gate (next)"]
    assert ahead[0].start < diagram.spans[0].end, "issued during this layer"
    assert len(post.prefetch_diagram(index, 15).spans) == 1, "the last layer has no next"


def test_pictures_are_sound_svg(index):
    for diagram in (post.bubbles_diagram(index), post.prefetch_diagram(index, 0)):
        for to_scale in (True, False):
            root = ElementTree.fromstring(draw(diagram, DARK, to_scale))
            boxes = list(root.iter("{http://www.w3.org/2000/svg}rect"))
            assert len(boxes) > 8
            assert all(float(r.get("width")) >= 0 for r in boxes)
            assert all(float(r.get("x")) + float(r.get("width")) <= 1200.5 for r in boxes)


def test_pictures_escape_names(step):
    timeline = step[0].copy()
    timeline["phase"] = '<script>alert("1")</script>&'
    timeline["name"] = "</svg><img onerror=x>"
    svg = draw(post.prefetch_diagram(build_index(timeline), 2), LIGHT)
    ElementTree.fromstring(svg)
    assert "<script" not in svg
    assert "<img" not in svg


def test_simplify_closes_the_shortest_gaps_first():
    found = np.array([[0, 10], [11, 20], [30, 40], [100, 110]])
    assert post.simplify(found, 2).tolist() == [[0, 40], [100, 110]]
    even = np.array([[i * 10, i * 10 + 5] for i in range(9)])
    assert post.simplify(even, 4).tolist() == [[0, 85]], "equal gaps fare alike"
    assert post.simplify(found, 1).tolist() == [[0, 110]]
    assert post.simplify(found, 4) is found


def test_repeats_stand_in_for_layers(step):
    timeline = step[0].copy()
    timeline["layer"] = timeline["layer"].astype("Int32").mask(np.ones(len(timeline), bool))
    index = build_index(timeline)
    assert index.layers == ()
    assert [b.label for b in post.repeats(index)][:2] == ["repeat 0", "repeat 1"]
    assert len(post.repeats(index)) == 16


def test_ticks_are_round_and_inside():
    assert ticks(0, 1000) == [0, 200, 400, 600, 800, 1000]
    assert all(3 <= t <= 19 for t in ticks(3, 19))


def test_a_wait_is_tied_to_its_copy(index, step):
    timeline = step[0]
    waits = timeline[(timeline["track"] == "wait") & timeline["cause"].notna()]
    wait = waits.iloc[5]
    found = relation(index, int(wait["span"]))
    assert found.cause["span"] == wait["cause"]
    assert "ended by" in " ".join(describe(found))
    back = relation(index, int(wait["cause"]))
    assert wait["span"] in [w["span"] for w in back.waits]
    assert back.window[0] <= back.row["issued_ps"]
    assert relation(index, -5) is None


def test_search_finds_names_and_sources(index):
    assert len(search(index, "w_gate[3,")) == 28
    assert len(search(index, "MLP.PY:31")) == 200
    assert search(index, "nothing like this") == []
    assert search(index, "  ") == []
    starts = [s for _, s, _ in search(index, "w_up")]
    assert starts == sorted(starts)


def test_measuring_the_whole_step_gives_its_bytes(index, step):
    found = measure(index, index.start, index.end)
    total = int(step[0].loc[step[0]["track"] == "hbm_read", "bytes"].sum())
    assert found["read_bytes"] == pytest.approx(total)
    assert 0 < found["mxu"] < 1


def test_findings_point_to_where_they_happen(step):
    loaded = from_parts("x", *step, {})
    low, high = window_of(loaded, {"bundles": [0x220, 0x220], "source": None})
    waits = step[0][(step[0]["track"] == "wait") & (step[0]["bundle_first"] == 0x220)]
    longest = waits.loc[waits["duration_ps"].idxmax()]
    assert low <= longest["start_ps"] < high
    by_source = window_of(loaded, {"bundles": None, "source": "mlp.py:90"})
    assert by_source is not None
    assert window_of(loaded, {"bundles": None, "source": "elsewhere.py:1"}) is None
    assert window_of(loaded, {}) is None


def figure_entry(what, a, b, unit="ps"):
    change = None if a is None or b is None else b - a
    relative = change / a if change and a else 0
    return {"what": what, "unit": unit, "a": a, "b": b, "change": change, "relative": relative}


def test_changes_say_better_or_worse():
    diff = {
        "figures": [
            figure_entry("step time", 1_000_000_000, 900_000_000),
            figure_entry("HBM utilization", 0.5, 0.4, "number"),
            figure_entry("HBM read", 100, 200, "bytes"),
            figure_entry("VMEM used", None, 5, "bytes"),
        ]
    }
    rows = changes.rows(diff)
    assert [r["better"] for r in rows] == [True, False, None, None]
    assert rows[3]["before"] == "unknown"
    assert "shorter: 1 ms → 900 µs" in changes.headline(diff)
    figure = go.Figure(changes.bars_spec([figure_entry("mlp", 5_000_000, 7_000_000)], "time", LIGHT))
    assert list(figure.data[0].x) == [2.0]


def test_sliders_become_machine_parameters():
    assert overrides([UNCHANGED] * 6) == {}
    assert overrides([FACTORS.index(2.0), 0]) == {"hbm.bandwidth": "x2", "hbm.latency": "0"}
    assert overrides([0]) == {}, "no bandwidth at all makes no sense"
    assert overrides(["x", None, 99, -1]) == {}


def test_jobs_run_once_and_report_faults():
    jobs, ran = Jobs(), []

    def work():
        ran.append(1)
        return 42

    def until_done(key, job):
        for _ in range(200):
            state = jobs.ask(key, job)
            if state.done:
                return state
            time.sleep(0.01)
        raise AssertionError("the job did not end")

    assert until_done("a", work).result == 42
    assert until_done("a", work).result == 42
    assert len(ran) == 1
    failed = jobs.ask("b", lambda: 1 / 0)
    while not failed.done:
        failed = jobs.look("b")
    assert isinstance(failed.error, ZeroDivisionError)
    assert jobs.look("nothing") is None


def test_bundle_numbers_are_read_strictly():
    assert parse_bundle("0x1A", 100) == 26
    assert parse_bundle(" 26 ", 100) == 26
    for words in ("0x64", "-1", "1e3", "x", "", None, "0x" + "f" * 40, "../etc"):
        assert parse_bundle(words, 100) is None


def test_only_python_files_are_shown_as_source(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("\n".join(f"line {i}" for i in range(1, 21)))
    lines = source_lines(f"{source}:10")
    assert [n for n, _, _ in lines] == list(range(6, 15))
    assert next(line for n, line, here in lines if here) == "line 10"
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    for place in (
        f"{secret}:1",
        f"{source}:99",
        f"{source}:0",
        "kernel",
        "/nowhere.py:3",
        f"{tmp_path}/a\0.py:1",
    ):
        assert source_lines(place) is None


def test_vmem_allocations_and_unknown_reports(tmp_path):
    report = tmp_path / "vmem_report.html"
    report.write_text(
        'const DATA = {"hlo_breakdowns": {"mlp.1": {"blocks": [{"allocations": ['
        '{"size": 10, "tag": "a"}, {"size": 30, "tag": "<b>", "shape": "u8[30]"}]}]}}};'
    )
    assert allocations(report, "mlp.1") == [("<b>", "u8[30]", 30), ("a", "", 10)]
    for path, program in ((report, "other"), (None, "mlp.1"), (tmp_path / "no", "mlp.1")):
        assert allocations(path, program) == []
    report.write_text("const DATA = {broken")
    assert allocations(report, "mlp.1") == []
    spec = map_spec([("<b>", "u8[30]", 30)], 64 << 20, LIGHT)
    assert "<b>" not in spec["data"][0]["hovertemplate"]
    assert not map_spec([], None, LIGHT)["data"]


def test_outstanding_bytes_never_exceed_the_ring(index):
    _, value = outstanding(index)
    assert value.max() == 12 * (2 << 20)
    assert value.min() >= 0
    assert value[-1] == 0
    assert go.Figure(outstanding_spec(index, LIGHT)).data[0].y.max() == 24
    time_, kept = thin(np.arange(10_000), np.arange(10_000) % 97, 50)
    assert len(time_) == 100
    assert kept.max() == 96


def test_arrays_survive_the_wire():
    import base64

    def back(value):
        return np.frombuffer(base64.b64decode(value["bdata"]), np.dtype("<" + value["dtype"]))

    for array in (
        np.array([1.5, -2]),
        np.array([1, 2**40]),
        np.array([3, -4], np.int64),
        np.array([], float),
    ):
        np.testing.assert_array_equal(back(typed(array)), array)
    table = typed(np.array([[1, 2, 3], [4, 5, 6]]))
    assert table["shape"] == "2, 3"
    np.testing.assert_array_equal(back(table), [1, 2, 3, 4, 5, 6])
    spec = wire(
        {"x": np.array([1.0]), "text": ["<b>"], "deep": [{"y": np.int64(3)}], "width": np.array([0.5])}
    )
    assert spec["text"] == ["<b>"]
    assert spec["deep"] == [{"y": 3}]
    assert spec["width"]["dtype"] == "f4"


def test_pages_are_made_for_a_capture_without_facts(step):
    from dashboard.pages import findings, overview, timeline

    bare = from_parts("bare", step[0])
    for module in (overview, findings, timeline):
        assert module.layout(bare, "id") is not None
    full = from_parts("x", *step, {"findings": [{"id": "MS1", "title": "<b>x</b>"}], "step": {}})
    assert "MS1" in str(findings.layout(full, "id"))
    assert Path(bare.path) == Path("bare")


def listed(executed=None, loops=None):
    from types import SimpleNamespace

    from dashboard.listing import Listing

    found = [
        SimpleNamespace(start=2, end=9, depth=1, latch=8),
        SimpleNamespace(start=3, end=5, depth=2, latch=5),
    ]
    program = SimpleNamespace(bundle_count=12, loops=found)
    trips = {tuple(x["bundles"]): x for x in loops or []}
    return Listing(program, np.zeros((12, len(UNITS)), np.float32), executed, "", trips)


def test_loops_are_listed_with_their_trips():
    facts = {"source": "/deep/a.py:7", "executed_bundles": 30, "provenance": "modelled"}
    known = [
        {**facts, "bundles": [2, 9], "entries": 1, "iterations": 5, "time_ps": 2_000_000},
        {**facts, "bundles": [3, 5], "entries": 5, "iterations": 12, "time_ps": 7_000_000},
    ]
    listing = listed(np.arange(12), known)
    assert loops(listing) == [("loop 0x2-0x9, 5 trips", 2), ("· loop 0x3-0x5, 5 × 2.4 trips", 3)]
    rows = loop_rows(listing)
    assert [r["bundles"] for r in rows] == ["0x3-0x5", "0x2-0x9"], "the longest first"
    assert (rows[0]["time"], rows[0]["source"]) == ("7 µs", "a.py:7")
    assert loops(listed(np.arange(12)))[0][0].endswith("latch ran 8 times")
    assert loops(listed())[0][0] == "loop 0x2-0x9"
    never = [{**facts, "bundles": [2, 9], "entries": 0, "iterations": 0, "time_ps": None}]
    assert loop_rows(listed(None, never))[0]["trips"] == "never entered"


def test_the_map_shows_how_often_bundles_ran_where_that_is_known():
    spec = bundle_map(listed(np.array([0] * 6 + [1000] * 6)), 0, LIGHT, columns=6)
    ran = next(t for t in spec["data"] if t["type"] == "bar")
    assert ran["y"].tolist() == [0, 0, 0, 1000, 1000, 1000]
    assert "ran 1,000 times" in ran["hovertext"][-1]
    assert spec["layout"]["yaxis"]["domain"][1] < spec["layout"]["yaxis2"]["domain"][0]
    assert [t["type"] for t in bundle_map(listed(), 0, LIGHT)["data"]] == ["heatmap"]


def test_only_phases_of_the_step_can_be_left_out(step):
    from dashboard.loading import from_parts
    from dashboard.pages.whatif import phases, words

    report = {
        "phases": [{"phase": "block/ffn", "layer": 0}, {"phase": "block/ffn", "layer": 1}, {"phase": ""}]
    }
    loaded = from_parts("x", step[0], step[1], report)
    assert [choice["value"] for choice in phases(loaded)] == ["block", "block/ffn"]
    assert words([], ("block/ffn",)) == "without block/ffn"
    assert phases(from_parts("x", step[0])) == []
