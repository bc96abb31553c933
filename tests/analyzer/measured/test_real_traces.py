"""Traces of real TPUs against what is known of them from other tools and by hand."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from analyzer.analysis import analyze
from analyzer.cli import render
from analyzer.errors import InputError
from analyzer.measured.load import load
from analyzer.timeline import missing_columns

ROOT = Path(__file__).parents[3]
SHARED = ROOT / "../shared/data"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the project")
SCHEMA = json.loads((ROOT / "docs/schema/report.schema.json").read_text())


@pytest.fixture(scope="module")
def matmul():
    return analyze(SHARED / "v6e-matmul", use_cache=False)


@pytest.fixture(scope="module")
def offload():
    return analyze(SHARED / "v6e-hostoffload", use_cache=False)


def test_calls_of_the_kernel(matmul):
    runs = matmul.report["trace"]["runs"]
    assert [row["duration_ps"] for row in runs["listed"]] == [75_566_172, 75_785_000, 75_911_328]
    assert runs["listed"][0]["start_to_start_ps"] == 318_428_750
    assert matmul.report["step"]["time_ps"] == 75_785_000
    assert matmul.report["step"]["provenance"] == "measured"


def test_stages_sum_once(matmul):
    stages = matmul.report["trace"]["stages"]
    share = {stage["phase"]: 100 * stage["share"] for stage in stages}
    expected = {
        "ep_wait_in": 76.3,
        "ep_run_kernel": 19.2,
        "ep_run_kernel/init": 9.5,
        "ep_run_kernel/acc": 9.6,
        "ep_finalize": 2.5,
        "ep_copy_in": 0.7,
        "ep_copy_out": 0.1,
    }
    assert {name: share[name] for name in expected} == pytest.approx(expected, abs=0.1)
    assert sum(stage["own_share"] for stage in stages) == pytest.approx(1, abs=1e-9)
    # The phases of the contract are those of the median call, and count each picosecond once as well.
    phases = matmul.report["phases"]
    assert sum(p["time_ps"] for p in phases) == matmul.report["step"]["time_ps"]
    waiting = next(p for p in phases if p["phase"] == "ep_wait_in")
    assert 100 * waiting["share"] == pytest.approx(76.3, abs=0.2)


def test_bandwidth_is_counted_over_measured(matmul):
    hbm = matmul.report["hbm"]
    assert (hbm["read_bytes"], hbm["write_bytes"], hbm["copies"]) == (48 << 20, 16 << 20, 40)
    first = matmul.report["trace"]["runs"]["listed"][0]
    assert first["bytes_per_s"] == pytest.approx(888.1e9, rel=1e-3)
    assert hbm["provenance"]["utilization"] == "counted / measured"
    assert hbm["peak_bytes_per_s"] == pytest.approx(1637.993e9)
    assert "888 GB/s" in render(matmul.report, "text")
    assert "counted / measured" in render(matmul.report, "text")


def test_what_the_trace_claims_is_not_used(matmul):
    entries = {e["name"]: e for e in matmul.report["trace"]["not_usable"]}
    assert entries["flops of the kernel"]["in_trace"] == "1,076,887,552"
    assert entries["bytes_accessed of the kernel"]["in_trace"] == "0"
    assert "1,768 samples" in entries["counters (% util, fills, spills)"]["in_trace"]
    assert all(e["reason"] for e in entries.values())
    text = render(matmul.report, "text")
    assert text.count("not usable") == 3
    assert " 0 % util" not in text
    kernel = next(o for o in matmul.report["trace"]["operations"] if o["name"] == "custom-call")
    assert (kernel["flops"], kernel["bytes"]) == (None, None)


def test_bad_samples_are_flagged_and_cut(matmul):
    trace = matmul.report["trace"]
    assert trace["flagged_total"] == 6
    row = trace["flagged"][0]
    assert (row["recorded_duration_ps"], row["duration_ps"]) == (81_386_618_828, 1_907_578)
    # They now end exactly where the call ends.
    device = load(SHARED / "v6e-matmul").devices[0]
    counters, calls = device.lines["_counters_"], device.lines["XLA Ops"]
    assert set(counters.end_ps[counters.mended].tolist()) == set(calls.end_ps.tolist())


def test_bundles_of_another_compile_are_refused(matmul):
    join = matmul.report["trace"]["join"]
    assert join["joined"] is False
    assert "bundles: 2843 in the trace, 2705 in the dump" in join["reason"]
    assert "vtrace markers: 11 in the trace, 0 in the dump" in join["reason"]
    assert matmul.report["trace"]["comparison"] == []
    assert "2843 in" in render(matmul.report, "text")


def test_no_kernel_and_copies_dominate(offload):
    report = offload.report
    assert report["capture"]["kernel"] is None
    assert "no kernel found; copies take 97%" in report["step"]["verdict"]
    assert any("no Pallas kernel" in note for note in report["notes"])
    assert any("on 1 of 4 cores only (/device:TPU:0)" in note for note in report["notes"])
    categories = {c["name"]: c for c in report["trace"]["operations"]}
    assert categories["copy-done"]["share"] > 0.95
    assert categories["copy-start"]["bytes"] == 600 * 5_368_709_120
    assert categories["loop fusion"]["flops"] > 0
    assert report["hbm"]["utilization"] is None
    assert report["trace"]["runs"]["count"] == 100
    assert report["capture"]["cores"] == 4


@pytest.mark.parametrize("name", ["matmul", "offload"])
def test_contract(name, request):
    analysis = request.getfixturevalue(name)
    jsonschema.validate(json.loads(render(analysis.report, "json")), SCHEMA)
    text = render(analysis.report, "text").splitlines()
    assert len(text) <= 30
    assert max(map(len, text)) <= 100
    assert missing_columns(analysis.timeline) == []
    assert set(analysis.timeline["provenance"].astype(str)) == {"measured"}
    for output_format in ("md", "sarif"):
        assert render(analysis.report, output_format)


def test_async_copies_have_a_track_each(offload):
    frame = offload.timeline
    transfers = frame[frame["queue"].astype(str).str.startswith("async:")]
    assert len(transfers) == 600
    for _, lane in transfers.groupby(["core", transfers["track"].astype(str), "queue"]):
        ends = (lane["start_ps"] + lane["duration_ps"]).to_numpy()[:-1]
        assert (lane["start_ps"].to_numpy()[1:] >= ends).all()


def test_three_good_hosts_of_four(tmp_path):
    run = tmp_path / "plugins/profile/2026_01_01_00_00_00"
    run.mkdir(parents=True)
    for host in range(3):
        shutil.copy(SHARED / "v6e-matmul/plugins/profile/run1/host0.xplane.pb", run / f"host{host}.xplane.pb")
    shutil.copy(SHARED / "bad-inputs/truncated.xplane.pb", run / "host3.xplane.pb")
    report = analyze(tmp_path, use_cache=False).report
    assert report["capture"]["cores"] == 3
    assert "3 of 4 hosts read" in report["notes"]
    assert any("left out host3.xplane.pb: is truncated" in note for note in report["notes"])


@pytest.mark.parametrize("name", ["empty", "lfs_pointer", "truncated", "utf8_mangled", "amd_mi300"])
def test_bad_files_fail_with_their_cause(name):
    with pytest.raises(InputError) as caught:
        analyze(SHARED / "bad-inputs" / f"{name}.xplane.pb")
    assert caught.value.exit_code == 3
    assert caught.value.cure


def test_the_dump_beside_a_trace_is_still_simulated_when_asked_for():
    from analyzer.capture import open_capture

    opened = open_capture(SHARED / "v6e-matmul", program="matmul_optimized.1")
    report = analyze(opened, use_cache=False).report
    assert report["step"]["provenance"] == "modelled"
