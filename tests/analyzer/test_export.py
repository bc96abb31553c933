"""Timelines written for other tools: read back, held against the rules of their formats, opened by xprof."""

import gzip
import io
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from analyzer import export_chrome, export_perfetto, timeline
from analyzer.export_tracks import counters, tracks
from analyzer.export_xplane import export_xplane, place
from analyzer.measured.analyze import measure
from analyzer.measured.exported import read_timeline
from analyzer.timeline import COLUMNS, Kind, Provenance, Track
from analyzer.xplane.inputs import open_trace
from analyzer.xplane.wire import fields
from megascope import build_app

REPORT = {
    "capture": {"kernel": "mlp.1", "chip": "v6e"},
    "hbm": {"peak_bytes_per_s": 1.6e12, "read_bytes": 10, "write_bytes": 5},
    "step": {"static_bundles": 900, "provenance": "modelled"},
}
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
maybe = st.none() | st.integers(0, 1 << 20)
span = st.fixed_dictionaries(
    {
        "core": st.integers(0, 3),
        "track": st.sampled_from([str(t) for t in Track]),
        "kind": st.sampled_from([str(k) for k in Kind]),
        "name": text,
        "step": st.integers(0, 2),
        "layer": maybe,
        "phase": text,
        "start_ps": st.integers(-1000, 1 << 45),
        "duration_ps": st.integers(0, 1 << 45),
        "bytes": maybe,
        "queue": st.sampled_from(["", "hbm", "ici:3"]),
        "bundle_first": maybe,
        "bundle_last": maybe,
        "source": text,
        "issued_ps": st.none() | st.integers(-(1 << 40), 1 << 45),
        "free_ps": maybe,
        "cause": maybe,
        "operand": maybe,
        "provenance": st.sampled_from([str(p) for p in Provenance]),
    }
)


def table(rows):
    return timeline.from_rows([row | {"span": i} for i, row in enumerate(rows)])


def written(folder: Path, frame: pd.DataFrame) -> Path:
    file = place(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(export_xplane(frame, REPORT))
    return folder


@settings(deadline=None, max_examples=60)
@given(st.lists(span, min_size=1, max_size=25))
def test_any_spans_come_back_from_xplane(tmp_path_factory, rows):
    frame = table(rows)
    back = read_timeline(open_trace(written(tmp_path_factory.mktemp("x"), frame)))
    pd.testing.assert_frame_equal(
        back[list(COLUMNS)].astype(object), frame[list(COLUMNS)].astype(object), check_dtype=False
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(span, max_size=40))
def test_nothing_overlaps_on_a_track(rows):
    frame = table(rows)
    found = tracks(frame)
    assert sum(len(t.start_ps) for t in found) == len(frame)
    for track in found:
        open_ends: list[int] = []
        for start, duration in zip(track.start_ps.tolist(), track.duration_ps.tolist(), strict=True):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or (track.nested and start + duration <= open_ends[-1])
            open_ends.append(start + duration)


@settings(deadline=None, max_examples=30)
@given(st.lists(span, max_size=30))
def test_perfetto_slices_close_in_order(rows):
    """What Perfetto would drop: an end without a begin, a slice never closed, time running backwards."""
    data = export_perfetto.render(tracks(table(rows)), counters(table(rows)))
    names: set[int] = set()
    open_slices: dict[int, int] = defaultdict(int)
    latest: dict[int, int] = {}
    for _, _, at, end in fields(data, 0, len(data)):
        packet = {number: (value, behind) for number, _, value, behind in fields(data, at, end)}
        assert packet[10][0] == 1
        if 60 in packet:
            inner = {n: v for n, _, v, _ in fields(data, *packet[60])}
            assert inner[1] not in names
            names.add(inner[1])
        if 11 in packet:
            event = {n: v for n, _, v, _ in fields(data, *packet[11])}
            track, kind = event[11], event[9]
            assert track in names
            assert packet[8][0] >= latest.get(track, 0)
            latest[track] = packet[8][0]
            open_slices[track] += {1: 1, 2: -1}.get(kind, 0)
            assert open_slices[track] >= 0
    assert not any(open_slices.values())


def test_counters_carry_every_byte(late_ring):
    frame = late_ring if isinstance(late_ring, pd.DataFrame) else late_ring.frame()
    for counter in counters(frame):
        track = counter.name.split(" ")[0]
        mine = frame[(frame["track"].astype(str) == track) & (frame["core"] == counter.core)]
        area = (counter.value[:-1] * np.diff(counter.time_ps)).sum() / 1e12
        assert area == pytest.approx(mine["bytes"].sum())
        assert counter.value[-1] == 0


def nested(duration=1000):
    rows = []
    for layer in range(3):
        start = layer * 10 * duration
        base = {"core": 0, "step": 0, "provenance": "modelled", "layer": layer, "kind": "idle"}
        region = base | {"track": "region"}
        rows += [
            region | {"name": "", "phase": "", "start_ps": start, "duration_ps": 9 * duration},
            region | {"name": "moe", "phase": "moe", "start_ps": start + 10, "duration_ps": 5 * duration},
            region | {"name": "route", "phase": "moe/route", "start_ps": start + 20, "duration_ps": duration},
            base
            | {"track": "hbm_read", "kind": "transfer", "name": "w", "queue": "hbm", "bytes": 500}
            | {"phase": "moe", "start_ps": start, "duration_ps": 4 * duration},
        ]
    return table(rows)


def test_phase_times_are_those_of_the_timeline(tmp_path):
    from analyzer import metrics, view
    from analyzer.capture import open_capture

    frame = nested()
    folder = written(tmp_path, frame)
    report = measure(folder, open_capture(folder)).report
    expected = {
        (p.layer, p.phase): p.time_ps for p in metrics.phases(view.core_step(frame, 0)) if p.phase or p.layer
    }
    stages = {(s["layer"], s["phase"]): s["own_ps"] for s in report["trace"]["stages"]}
    assert {k: stages[k] for k in expected} == expected
    assert {(p["layer"], p["phase"]): p["time_ps"] for p in report["phases"]}.items() >= expected.items()
    assert report["step"]["provenance"] == "modelled"
    assert report["hbm"]["read_bytes"] == 1500
    assert "measured" not in {p["provenance"] for p in report["phases"]}
    assert any("nothing in it was measured" in note for note in report["notes"])


def test_chrome_is_json_with_microseconds():
    data = json.loads(export_chrome.render(tracks(nested()), counters(nested()), packed=False))
    spans = [e for e in data["traceEvents"] if e["ph"] == "X"]
    assert len(spans) == 12
    assert {(e["ts"], e["dur"]) for e in spans if e["name"] == "route"} == {
        (0.00002, 0.001),
        (0.01002, 0.001),
        (0.02002, 0.001),
    }
    named = {e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"}
    assert named == {"region", "hbm_read hbm"}
    packed = export_chrome.render(tracks(nested()), [], packed=True)
    assert gzip.decompress(packed).startswith(b'{"displayTimeUnit"')


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    return written(folder, nested(1_000_000))


@pytest.mark.parametrize(("to", "suffix"), [("csv", "csv"), ("parquet", "parquet"), ("chrome", "json.gz")])
def test_verb(exported, tmp_path, to, suffix):
    out = tmp_path / f"out.{suffix}"
    done = CliRunner().invoke(build_app(), ["export", str(exported), "--to", to, "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(out)
    data = out.read_bytes()
    if to == "csv":
        assert len(pd.read_csv(io.BytesIO(data))) == 12
    elif to == "parquet":
        assert len(pd.read_parquet(out)) == 12
    again = CliRunner().invoke(build_app(), ["export", str(exported), "--to", to, "-o", str(out)])
    assert again.exit_code != 0  # not without --force
    assert out.read_bytes() == data


def test_unknown_format_is_refused(exported, tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "megascope",
            "export",
            str(exported),
            "--to",
            "svg",
            "-o",
            str(tmp_path / "x"),
        ],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 2
    assert "Formats: xplane, perfetto" in done.stderr


XPROF = """
import json, sys
from xprof.convert import raw_to_tool_data
out = {}
for tool in ("hlo_stats", "roofline_model", "trace_viewer", "op_profile"):
    data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], tool, {})
    out[tool] = data.decode() if isinstance(data, bytes) else data
print("RESULT" + json.dumps(out))
"""


@pytest.mark.slow
def test_xprof_opens_it(exported):
    pytest.importorskip("xprof")
    done = subprocess.run(
        [sys.executable, "-c", XPROF, str(place(exported))],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found = json.loads(re.search(r"^RESULT(.*)$", done.stdout, re.MULTILINE)[1])
    stats = json.loads(found["hlo_stats"])
    columns = [c["id"] for c in stats["cols"]]
    (row,) = [dict(zip(columns, [c["v"] for c in r["c"]], strict=True)) for r in stats["rows"]]
    assert row["hlo_op_name"] == "mlp.1"
    assert row["total_time"] == pytest.approx(29.0)  # us: three layers, 10 us apart, the last one 9 us long
    events = json.loads(found["trace_viewer"])["traceEvents"]
    routes = [e["dur"] for e in events if e.get("name") == "route"]
    assert routes == pytest.approx([1.0, 1.0, 1.0])
    assert "mlp.1" in found["op_profile"]
    assert "roofline" in found["roofline_model"].lower() or "mlp.1" in found["roofline_model"]
