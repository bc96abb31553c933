"""What the doctor says of traces: real ones, damaged ones, and recordings that lack what was asked for."""

import json
from pathlib import Path

import pytest

from analyzer.xplane.writer import PlaneWriter, encode_space
from profiler.doctor import Status
from profiler.doctor_trace import check_trace

SHARED = Path(__file__).parents[2] / "../shared/data"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the project")


def found(path: Path) -> dict[str, tuple[Status, str]]:
    return {c.name: (c.status, c.found) for c in check_trace(path)}


@needs_data
def test_a_full_trace() -> None:
    checks = found(SHARED / "v6e-matmul")
    assert checks["scopes"] == (Status.OK, "336 events on 1 cores")
    assert checks["program"][1].endswith("2843 bundles")
    assert "not usable" in checks["flops of the kernel"][1]
    assert not any(status is Status.PROBLEM for status, _ in checks.values())


@needs_data
def test_what_only_some_cores_have() -> None:
    checks = found(SHARED / "v6e-hostoffload")
    assert checks["asynchronous operations"] == (Status.NOTE, "600 events on 1 of 4 cores")
    assert checks["kernel"] == (Status.NOTE, "no Pallas kernel in the trace")


@needs_data
def test_damage_is_a_problem() -> None:
    (only,) = check_trace(SHARED / "bad-inputs/utf8_mangled.xplane.pb")
    assert only.status is Status.PROBLEM
    assert "as binary" in only.cure


@pytest.mark.parametrize(("level", "missing"), [("counters", {"scopes", "counters"}), ("none", set())])
def test_asked_for_and_not_received(tmp_path: Path, level: str, missing: set[str]) -> None:
    plane = PlaneWriter(0, "/device:TPU:0")
    text = '%k.1 = f32[8] custom-call(), custom_call_target="tpu_custom_call"'
    plane.line("XLA Ops", [(plane.event_kind(text, "k.1"), 10, 20, {})])
    (tmp_path / "xplane").mkdir()
    (tmp_path / "xplane" / "host.xplane.pb").write_bytes(encode_space([plane]))
    (tmp_path / "manifest.json").write_text(json.dumps({"record": {"level": level}}))
    checks = list(check_trace(tmp_path))
    assert {c.name for c in checks if c.status is Status.PROBLEM} == missing
    assert all(f"asked for {level}" in c.found and c.cure for c in checks if c.name in missing)
