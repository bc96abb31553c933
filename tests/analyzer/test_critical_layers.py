"""The critical path layer by layer: nothing is lost, nothing counted twice, and alike layers are folded."""

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer import critical, layer_path, timeline, view
from analyzer.layer_path import LayerPath, Link
from analyzer.reports import layers_text, markdown, plain, text
from analyzer.reports.select import Selection, select
from analyzer.timeline import Track
from tests.analyzer.conftest import TimelineBuilder


def rows_of(frame, **options):
    """The rows, after checking everything that adds up."""
    core = view.core_step(frame, 0)
    path = critical.critical_path(core)
    rows = layer_path.layer_paths(core, path, **options)
    if rows:
        whole = critical.totals(core, path)
        assert {part: sum(row.parts[part] for row in rows) for part in whole} == whole
        assert sum(row.time_ps for row in rows) == core.window_ps
    for row in rows:
        assert sum(row.parts.values()) == row.time_ps == sum(link.time_ps for link in row.chain)
        assert [link.start_ps for link in row.chain] == sorted(link.start_ps for link in row.chain)
        assert row.start_ps + row.time_ps <= row.end_ps
    return rows


def two_layers(build, first=0, length=100):
    """Layer `first` works, gathers and works; the next waits for a copy; 10 ps outside before each."""
    for layer, at in ((first, 10), (first + 1, length + 20)):
        build.vector(at - 10, at, source="k.py:1")
        build.region(at, at + length, "", layer)
        build.region(at, at + 60, "proj", layer)
        build.region(at + 60, at + 95, "sum", layer)
        build.mxu(at, at + 40, source="k.py:2")
        build.vector(at + 40, at + 60, bundle_first=7, bundle_last=9)
        got = build.receive(at + 50, at + 90, 4)
        build.wait(at + 60, at + 90, got, source="k.py:3", bundle_first=12, bundle_last=12)
        build.vector(at + 90, at + 100, source="k.py:4")


def test_each_layer_has_its_parts_and_its_chain_in_order(build):
    two_layers(build)
    zero, one, outside = rows_of(build.frame(), source_of=lambda first, last: f"k.py:{first}-{last}")
    assert (zero.layer, zero.start_ps, zero.end_ps, zero.time_ps) == (0, 10, 110, 100)
    assert {part: time for part, time in zero.parts.items() if time} == {
        critical.MATRIX: 40,
        critical.COLLECTIVE: 30,
        critical.OTHER_WORK: 30,
    }
    assert zero.chain == (
        Link("proj", critical.MATRIX, 10, 40, "k.py:2", None),
        Link("proj", critical.OTHER_WORK, 50, 20, "k.py:7-9", (7, 9)),
        Link("sum", critical.COLLECTIVE, 70, 30, "k.py:3", (12, 12)),
        Link("sum", critical.OTHER_WORK, 100, 5, "k.py:4", None),
        Link("", critical.OTHER_WORK, 105, 5, "k.py:4", None),
    )
    assert (one.layer, one.time_ps) == (1, 100)
    assert (outside.layer, outside.time_ps, outside.chain[0].phase) == (None, 20, "")
    [kind] = layer_path.layer_kinds([zero, one, outside])
    assert (kind.layers, kind.total_ps, kind.min_ps, kind.max_ps) == ((0, 1), 200, 100, 100)
    assert kind.parts[critical.MATRIX] == 80
    assert [link.time_ps for link in kind.chain] == [80, 40, 60, 10, 10]


def test_bytes_and_latency_name_the_copy_where_it_is_started(build):
    copy = build.read(60, 90, 10, issued=20, source="k.py:9", bundle_first=3, bundle_last=3)
    build.vector(0, 20)
    build.wait(20, 90, copy, source="k.py:10")
    build.region(0, 50, "ask", 4)
    build.region(50, 90, "use", 4)
    [row] = rows_of(build.frame())
    assert [(link.phase, link.part, link.time_ps, link.source) for link in row.chain] == [
        ("ask", critical.OTHER_WORK, 20, ""),
        ("ask", critical.DMA_LATENCY, 30, "k.py:9"),
        ("use", critical.DMA_LATENCY, 10, "k.py:9"),
        ("use", critical.HBM_BYTES, 30, "k.py:9"),
    ]


def test_without_layers_there_are_no_rows(build):
    build.mxu(0, 10)
    assert rows_of(build.frame()) == []
    build.region(0, 10, "phase")
    assert rows_of(build.frame()) == []
    assert rows_of(timeline.empty()) == []


SPANS = st.tuples(
    st.integers(0, 60),
    st.integers(0, 30),
    st.integers(0, 40),
    st.sampled_from([Track.HBM_READ, Track.WAIT, Track.MXU, Track.VECTOR, Track.ICI_RECV, Track.REGION]),
    st.one_of(st.none(), st.integers(0, 12)),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(SPANS, max_size=14))
def test_of_any_timeline_the_parts_of_all_layers_add_up_to_the_step(spans):
    build = TimelineBuilder()
    for start, length, ahead, track, number in spans:
        region = track is Track.REGION
        build.any(
            track,
            start,
            length,
            ahead,
            cause=number if track is Track.WAIT else None,
            layer=number if region else None,
            phase="ab"[ahead % 2] if region else "",
        )
    frame = build.frame()
    rows = rows_of(frame)
    kinds = layer_path.layer_kinds(rows)
    layers = [row.layer for row in rows if row.layer is not None]
    assert sorted(layer for kind in kinds for layer in kind.layers) == sorted(layers)
    for part in critical.PARTS:
        inside = sum(row.parts[part] for row in rows if row.layer is not None)
        assert sum(kind.parts[part] for kind in kinds) == inside
    assert all(sum(link.time_ps for link in kind.chain) == kind.total_ps for kind in kinds)


def made(layer, *links):
    """A row from (phase, part, time)."""
    chain, parts, now = [], dict.fromkeys(critical.PARTS, 0), 1000 * (layer or 0)
    for phase, part, time in links:
        chain.append(Link(phase, part, now, time, "", None))
        parts[part] += time
        now += time
    return LayerPath(layer, chain[0].start_ps, now, sum(parts.values()), parts, tuple(chain))


def test_layers_are_alike_if_phases_are_the_same_and_most_time_is():
    work = ("proj", critical.MATRIX, 100)
    wide = made(0, work, ("sum", critical.COLLECTIVE, 100))
    rows = [
        wide,
        made(1, work, ("sum", critical.COLLECTIVE, 150)),  # 50 of 250 differ
        made(2, work, ("sum", critical.COLLECTIVE, 180)),  # 80 of 280 do
        made(3, work, ("sum", critical.HBM_BYTES, 100)),  # another part
        made(4, ("sum", critical.COLLECTIVE, 100), work),  # another order
        made(5, work, ("mlp", critical.MATRIX, 1), ("sum", critical.COLLECTIVE, 100)),  # another phase
        made(6, work, ("sum", critical.OTHER_WORK, 9), ("sum", critical.COLLECTIVE, 100)),
        made(None, work, ("sum", critical.COLLECTIVE, 100)),
    ]
    kinds = layer_path.layer_kinds(rows)
    assert [kind.layers for kind in kinds] == [(0, 1, 6), (2,), (5,), (3,), (4,)]
    assert [(link.phase, link.part, link.time_ps) for link in kinds[0].chain] == [
        ("proj", critical.MATRIX, 300),
        ("sum", critical.COLLECTIVE, 350),
        ("sum", critical.OTHER_WORK, 9),
    ]
    assert (kinds[0].min_ps, kinds[0].max_ps) == (200, 250)


@pytest.fixture
def many(build, make_report):
    """A report on 93 layers of 5 kinds with much in each."""
    now = 0
    for layer in range(93):
        start = now
        for number in range(10):
            other = layer % 4 == 3 and number == 2
            length = 1_000_000 * (number + 1 + 4 * other)
            name = "dense" if not layer else "attention" if other else "x" * 9
            build.region(now, now + length, f"phase_{number}_{name}", layer)
            build.mxu(now, now + length // 2)
            build.vector(now + length // 2, now + length, source="k.py:3")
            now += length
        if layer in (7, 92):
            build.region(now, now + 9_000_000, "only\x1b here", layer)
            now += 9_000_000
        build.region(start, now, "", layer)
    build.region(now, now + 3_000_000, "head")
    build.mxu(now, now + 3_000_000)
    return make_report(build)


def test_the_digest_names_the_kinds_in_a_few_lines(many):
    shown = layers_text.lines(many, text.LAYERS, text.COLUMNS)
    assert len(shown) <= text.LAYERS
    assert max(map(plain.width, shown)) <= text.COLUMNS
    assert shown[0] == "layers  68 x 55 us, 1-2, 4-6, ..., 88-90: matrix 50% | other 50%"
    assert shown[1].startswith("          phase_")
    assert shown[3] == "        22 x 59 us, 3, 11, ..., 91: matrix 50% | other 50%"
    assert "\x1b" not in "".join(shown)
    assert shown[-1] == "        and 3 more, 122 us together"
    whole = text.render(many).splitlines()
    assert len(whole) <= text.MAX_LINES
    assert set(shown) <= set(whole)
    said = markdown.render(many)
    assert "## Critical path by layer" in said
    assert "| outside |" in said


def test_json_has_every_layer_and_they_add_up(many):
    import json
    from pathlib import Path

    schema = Path(__file__).parents[2] / "docs" / "schema" / "report.schema.json"
    jsonschema.validate(many, json.loads(schema.read_text()))
    assert [row["layer"] for row in many["layers"]] == [*range(93), None]
    assert sum(row["time_ps"] for row in many["layers"]) == many["step"]["time_ps"]
    for name, time in many["step"]["critical_path"].items():
        assert sum(row["parts"][name] for row in many["layers"]) == time
    for row in many["layers"]:
        assert sum(link["time_ps"] for link in row["chain"]) + row["rest_ps"] == row["time_ps"]
    assert sum(kind["count"] for kind in many["layer_kinds"]) == 93


def test_of_some_layers_these_are_shown_and_not_the_mean_of_their_kind(many):
    part = select(many, Selection(layers=(5, 6)))
    assert [row["layer"] for row in part["layers"]] == [5, 6]
    shown = layers_text.lines(part, text.LAYERS, text.COLUMNS)
    assert shown[0].startswith("layers  layer 5, 55 us: matrix 50% | other 50%")
    assert any(line.startswith("        layer 6, 55 us") for line in shown)
    assert len(text.render(part).splitlines()) <= text.MAX_LINES
    by_phase = select(many, Selection(phases=("phase_0_dense",)))
    assert [row["layer"] for row in by_phase["layers"]] == [0]
    none = select(many, Selection(limit=0))
    assert "layers  none of 94 selected" in text.render(none)


def test_words():
    assert plain.ranges([1, 2, 4, 6, 5]) == ["1-2", "4-6"]
    assert plain.ranges([3, 7, 11, 15]) == ["3, 7, ..., 15"]
    assert plain.ranges([5]) == ["5"]
    assert plain.ranges([]) == []
    assert layers_text.extent(32_000_000, 39_500_000) == "32-39.5 us"
    assert layers_text.extent(900_000, 1_500_000) == "900 ns-1.5 us"
    assert layers_text.extent(5000, 5000) == "5 ns"


def test_a_compiled_kernel_has_its_layers(compiled):
    from analyzer.analysis import analyze

    report = analyze(compiled(), use_cache=False).report
    layers = [row["layer"] for row in report["layers"]]
    assert layers == [*range(len(layers) - 1), None]
    assert len(layers) > 2
    assert sum(row["time_ps"] for row in report["layers"]) == report["step"]["time_ps"]
    for name, time in report["step"]["critical_path"].items():
        assert sum(row["parts"][name] for row in report["layers"]) == time
    for row in report["layers"]:
        inside = [p["time_ps"] for p in report["phases"] if p["layer"] == row["layer"]]
        assert sum(inside) == row["time_ps"]
    known = [link for row in report["layers"] for link in row["chain"] if link["source"]]
    assert len(known) > len(layers)
    replaced = report | {"layer_kinds": [], "layers": []}
    assert "layers  " not in text.render(replaced)
