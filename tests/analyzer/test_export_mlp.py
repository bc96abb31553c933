"""A real kernel, compiled, simulated, exported, opened by xprof and by our reader: the same phase times."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from analyzer.analysis import analyze
from analyzer.export_cli import encode
from analyzer.export_xplane import place

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        __import__("importlib.util").util.find_spec("libtpu") is None, reason="libtpu is not installed"
    ),
]
XPROF = """
import sys
from xprof.convert import raw_to_tool_data
data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], "trace_viewer", {})
print("RESULT" + (data.decode() if isinstance(data, bytes) else data).replace("\\n", " "))
"""


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    from profiler.compile import CompileRequest, compile_kernel
    from profiler.topology import parse_topology

    out = tmp_path_factory.mktemp("mlp") / "capture"
    compile_kernel(CompileRequest("mlp", parse_topology("2x2x1"), options={"layers": 2}), out)
    return analyze(out, use_cache=False)


@pytest.fixture(scope="module")
def exported(simulated, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    file = place(folder)
    file.parent.mkdir(parents=True)
    file.write_bytes(encode(simulated, "xplane"))
    return folder


def test_our_reader(simulated, exported):
    report = analyze(exported, use_cache=False).report
    own = {(s["layer"], s["phase"]): s["own_ps"] for s in report["trace"]["stages"]}
    expected = {(p["layer"], p["phase"]): p["time_ps"] for p in simulated.report["phases"] if p["phase"]}
    assert len(expected) > 4
    assert {key: own[key] for key in expected} == pytest.approx(expected, abs=2)
    assert report["step"]["time_ps"] == simulated.report["step"]["time_ps"]
    assert report["hbm"]["read_bytes"] == simulated.report["hbm"]["read_bytes"]
    assert report["step"]["provenance"] == "modelled"


def test_xprof(simulated, exported):
    pytest.importorskip("xprof")
    done = subprocess.run(
        [sys.executable, "-c", XPROF, str(place(exported))],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    events = json.loads(re.search(r"^RESULT(.*)$", done.stdout, re.MULTILINE)[1])["traceEvents"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    seen: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("ph") == "X" and threads[event["pid"], event["tid"]] == "XLA TraceMe":
            seen[event["name"]] += event["dur"]
    frame = simulated.timeline
    regions = frame[(frame["track"].astype(str) == "region") & (frame["name"] != "")]
    expected = (regions.groupby("name")["duration_ps"].sum() / 1e6).to_dict()
    assert {name: seen[name] for name in expected} == pytest.approx(expected, rel=1e-3)
