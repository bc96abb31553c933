"""Faults planted on purpose, found by real compiles: right line, right price, gone in the good build."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "megakernels" / "mlp" / "kernel.py"


@pytest.fixture
def report(tmp_path):
    """Capture -> report as data, through the command."""

    def run(capture, *more):
        command = [sys.executable, ROOT / "megascope.py", "report", capture, "--format", "json", *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def lines_with(text):
    return {number for number, line in enumerate(KERNEL.read_text().split("\n"), 1) if text in line}


def place(source):
    file, _, line = source.rpartition(":")
    return Path(file).name, int(line)


@pytest.mark.slow
def test_prefetch_distance_of_one_is_found_priced_and_gone_when_mended(compiled, report):
    bad = report(compiled("layers=4", "prefetch_distance=1"))
    good = report(compiled("layers=4"))
    truth = bad["step"]["time_ps"] - good["step"]["time_ps"]
    assert truth > 0.3 * bad["step"]["time_ps"]

    starts = lines_with("tag(ring.fill(bank")
    assert len(starts) == 3
    worst = [b for b in bad["bubble_groups"] if b["cause"] == "issued_late"][:3]
    assert [b["cause"] for b in bad["bubble_groups"][:3]] == ["issued_late"] * 3
    assert {place(b["source"]) for b in worst} == {("kernel.py", line) for line in starts}
    assert sum(b["total_ps"] for b in worst) > 0.9 * bad["hbm"]["bubble_ps"]
    assert all(b["bundles"] and b["lateness_ps"] > 0 and b["provenance"] == "modelled" for b in worst)

    finding = bad["findings"][0]
    assert finding["id"] == "MS101"
    assert place(finding["source"])[1] in starts
    assert finding["saving_ps"] == pytest.approx(truth, rel=0.25)
    assert finding["saving_basis"].startswith("replayed")

    assert not [b for b in good["bubble_groups"] if b["cause"] == "issued_late"]
    assert not [f for f in good["findings"] if f["id"] == "MS101"]
    assert good["hbm"]["utilization"] > 2 * bad["hbm"]["utilization"]
    assert good["hbm"]["read_bytes"] == bad["hbm"]["read_bytes"]


@pytest.mark.slow
def test_a_shallow_ring_is_not_called_late(compiled, report):
    shallow = report(compiled("layers=4", "ring_depth=2"))
    causes = {b["cause"]: b["total_ps"] for b in shallow["bubble_groups"]}
    assert causes.get("issued_late", 0) < 0.2 * sum(causes.values())
    assert causes["buffer_not_free"] + causes.get("latency", 0) > 0.5 * sum(causes.values())
