"""Recordings from end to end: real compiles, real captures; only the hardware calls are stood in for."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from analyzer.analysis import analyze
from analyzer.capture import open_capture
from analyzer.errors import DataAbsentError, InputError, UsageError
from profiler.record import RecordRequest, host_folder, plan, probe_lines, record_flags, record_kernel
from profiler.topology import parse_topology

PROJECT = Path(__file__).parents[2]
TINY = f"{PROJECT / 'profiler/tiny_kernel.py'}:build"
FAKE = f"{Path(__file__).with_name('fake_device.py')}"
pytestmark = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("libtpu") is None, reason="libtpu is not installed"
)


def request(**changes) -> RecordRequest:
    wanted = RecordRequest(
        TINY,
        parse_topology("1x1", "v6e"),
        timeout_seconds=300,
        device_layer=f"{FAKE}:layer",
        steps=2,
        warmup=1,
    )
    return dataclasses.replace(wanted, **changes)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("recording") / "capture"
    record_kernel(request(), out)
    return out


def test_manifest(recorded):
    manifest = json.loads((recorded / "manifest.json").read_text())
    assert (manifest["kind"], manifest["chip"], manifest["program"]) == ("record", "v6e", "tiny.1")
    record = manifest["record"]
    assert record["executed"] is True
    assert (record["steps"], record["warmup"], record["level"]) == (2, 1, "regions")
    assert len(record["step_seconds_untraced"]) == len(record["step_seconds_traced"]) == 2
    assert record["device_facts"]["device_kind"]
    assert "--xla_xprof_register_llo_debug_info=true" in manifest["flags"]
    assert any(name.startswith("xplane/") for name in manifest["files"])
    assert manifest["versions"]["libtpu"]


def test_probe_effect(recorded):
    effect = json.loads((recorded / "manifest.json").read_text())["record"]["probe_effect"]
    assert effect["bundles_with_markers"] > effect["bundles_without_markers"] > 0
    assert effect["step_seconds_without_markers"] >= 0.001
    lines = probe_lines(effect)
    assert len(lines) == 4
    assert "tracing off, no markers" in lines[1]
    assert f"{effect['bundles_with_markers']:,} bundles" in lines[2]


def test_the_trace_and_the_bundles_beside_it_are_one_program(recorded):
    opened = open_capture(recorded)
    assert (opened.kind, opened.trace) == ("record", recorded / "xplane")
    report = analyze(opened, use_cache=False).report
    join = report["trace"]["join"]
    assert join["joined"], join
    rows = {row["phase"]: row for row in report["trace"]["comparison"]}
    assert rows["double"]["measured_ps"] == rows["double"]["modelled_ps"] > 0
    filled = {row["phase"]: row for row in report["trace"]["occupancy"]}
    assert 0 < filled["double"]["units"]["VALU"] <= 1
    assert filled["double"]["bundles"] > 0
    assert sum(row["bundles"] for row in filled.values()) == report["step"]["executed_bundles"]
    assert report["hbm"]["read_bytes"] == report["hbm"]["write_bytes"] == 4 * 8 * 128 * 4
    assert report["step"]["executed_bundles"] > report["step"]["static_bundles"] > 0


@pytest.mark.slow
def test_dry_run_does_all_but_run(tmp_path):
    out = tmp_path / "dry"
    manifest = record_kernel(request(dry_run=True, device_layer=None), out)
    assert manifest["record"]["executed"] is False
    assert any("nothing was run" in note for note in manifest["notes"])
    assert not (out / "xplane").exists()
    assert analyze(out, use_cache=False).report["step"]["provenance"] == "modelled"


@pytest.mark.slow
def test_without_markers_nothing_is_traced(tmp_path):
    manifest = record_kernel(request(level="none"), tmp_path / "none")
    assert manifest["probe_level"] == "off"
    assert manifest["record"]["step_seconds_traced"] is None
    assert "probe_effect" not in manifest["record"]


@pytest.mark.slow
def test_a_profiler_that_writes_nothing_is_named(tmp_path):
    out = tmp_path / "empty"
    with pytest.raises(InputError, match="the profiler wrote no xplane file"):
        record_kernel(request(device_layer=f"{FAKE}:layer_without_a_trace"), out)
    assert not out.exists()


@pytest.mark.slow
def test_a_run_that_fails_says_so(tmp_path):
    out = tmp_path / "failed"
    with pytest.raises(InputError, match="the core halted unexpectedly") as caught:
        record_kernel(request(device_layer=f"{FAKE}:layer_that_fails"), out)
    assert "\n" not in str(caught.value)
    assert not out.exists()
    assert out.with_name("failed.compile.log").is_file()


def test_no_tpu_is_explained(tmp_path):
    with pytest.raises(DataAbsentError, match="there is no TPU on this machine") as caught:
        record_kernel(request(device_layer=None), tmp_path / "out", dev=tmp_path)
    assert caught.value.exit_code == 4
    assert "--dry-run" in caught.value.cure
    assert list(tmp_path.iterdir()) == []


def test_an_existing_capture_is_kept(recorded):
    with pytest.raises(UsageError, match="exists"):
        record_kernel(request(), recorded)


@pytest.mark.slow
def test_hosts_end_in_one_capture(tmp_path):
    out = tmp_path / "slice"
    several = {"coordinator": "localhost:1", "processes": 3}
    record_kernel(request(distributed={**several, "process": 1}), out)
    assert host_folder(out, 1).is_dir()
    manifest = record_kernel(
        request(distributed={**several, "process": 0}, gather_seconds=1), out, force=True
    )
    names = sorted(p.name for p in (out / "xplane").rglob("*.xplane.pb"))
    assert names == ["host0.xplane.pb", "host1.xplane.pb"]
    assert not host_folder(out, 1).exists()
    assert "process 2 of 3 left no trace: its cores are missing" in manifest["notes"]
    assert analyze(out, use_cache=False).report["capture"]["cores"] == 2


def test_plan_and_flags_by_level():
    flags = {
        level: record_flags(Path("d"), request(level=level)) for level in ("none", "regions", "instructions")
    }
    region, instructions = (
        "--xla_enable_custom_call_region_trace=true",
        "--xla_xprof_enable_custom_call_tracing=true",
    )
    assert region not in flags["none"]
    assert region in flags["regions"]
    assert instructions not in flags["regions"]
    assert {region, instructions} <= set(flags["instructions"])
    assert "5 steps under JAX's profiler" in plan(request(steps=5))[2]
    assert len(plan(request(level="none"))) == 3


def test_verb_without_a_tpu():
    done = subprocess.run(
        [sys.executable, "-m", "megascope", "record", "mlp", "-o", "never"],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    if done.returncode == 0:
        pytest.skip("there is a TPU here")
    assert done.returncode == 4
    assert "under JAX's profiler (regions)" in done.stderr
    assert done.stdout == ""
