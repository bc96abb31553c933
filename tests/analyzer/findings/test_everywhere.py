"""All rules over every capture at hand: none fails, none says a thing it cannot back."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from compile_many import compile_many

from analyzer import analysis
from analyzer.errors import MegascopeError
from analyzer.reports import text

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
K3 = ("kda", "mla", "experts")
JAX = ("all_gather", "grid_matmul", "pipelined_matmul", "flash_attention", "paged_attention")
DATA = ROOT / "../shared/data"
OLD = sorted((DATA / "old-formats").glob("*bundles.txt")) if DATA.is_dir() else []
TRACES = sorted(DATA.rglob("*.xplane.pb")) if DATA.is_dir() else []
GOLDENS = sorted(
    file
    for file in (ROOT / "tests/goldens").rglob("*final_bundles.txt")
    if "schedule-analysis" not in file.name
)
SCHEMA = json.loads((ROOT / "docs/schema/report.schema.json").read_text())


def jobs(file, functions, topology):
    """What `compile_many` takes, for functions of one file."""
    return [
        {"name": name, "target": f"{file}:{name}", "topology": topology, "options": {}} for name in functions
    ]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MEGASCOPE_DEBUG", "1")


def check(report):
    """Time, provenance and a way to verify on every finding; figures that are not known are null."""
    jsonschema.validate(report, SCHEMA)
    step = report["step"]["time_ps"]
    for finding in report["findings"]:
        assert finding["provenance"] in ("measured", "modelled", "counted", "assumed")
        assert finding["evidence"]
        assert finding["verify_with"]
        assert finding["might_be_wrong_because"]
        assert finding["try"]
        assert not re.search(r"\bnan\b", " ".join(finding["evidence"]))
        assert finding["time_ps"] is not None or finding["provenance"] == "counted"
        if finding["saving_ps"] is None:
            assert "not estimated" in finding["saving_basis"]
        else:
            assert 0 <= finding["saving_ps"] <= step
        if finding["time_ps"] is not None:
            assert 0 <= finding["time_ps"] <= step * 1.001
        if finding["source"]:
            file, _, line = finding["source"].rpartition(":")
            assert file
            assert int(line) > 0
    savings = [f["saving_ps"] for f in report["findings"] if f["saving_ps"] is not None]
    assert savings == sorted(savings, reverse=True)
    unpriced = [f["saving_ps"] is None for f in report["findings"]]
    assert unpriced == sorted(unpriced)


def digest(report):
    """The digest of a report that has passed."""
    check(report)
    shown = text.render(report)
    assert len(shown.splitlines()) <= text.MAX_LINES
    assert report["step"]["verdict"] in shown
    return shown


@pytest.mark.parametrize("options", [("layers=2",), ("layers=2", "prefetch_distance=1")])
def test_the_mlp_kernel(compiled, options):
    digest(analysis.analyze(compiled(*options)).report)


def test_the_planted_kernels(planted):
    for name in ("none", "shallow", "pieces", "convert", "idle_mxu+good", "padded", "never"):
        check(planted.report(name))
    check(planted.report("uneven", cores="all"))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["qwen", "examples/matvec.py:build"])
def test_other_kernels_of_the_repository(compiled, target):
    topology = "1x1x1" if "matvec" in target else "2x2x1"
    target = target if target == "qwen" else str(ROOT / target)
    digest(analysis.analyze(compiled(target=target, topology=topology)).report)


@pytest.mark.slow
def test_the_stacks_of_k3(tmp_path):
    compile_many(jobs(HERE / "k3_stacks.py", K3, "2x2x4"), tmp_path)
    for name in K3:
        digest(analysis.analyze(tmp_path / name).report)


@pytest.mark.slow
def test_the_whole_step_of_k3(compiled):
    """One step, 93 layers, 32 cores: what bounds it, in thirty lines."""
    report = analysis.analyze(compiled(target="k3", topology="2x2x4")).report
    shown = digest(report)
    assert report["step"]["bound_by"]
    assert "layers" in shown
    assert report["findings"][0]["saving_ps"] > 0.02 * report["step"]["time_ps"]
    assert report["findings"][0]["id"] in shown


@pytest.mark.slow
def test_kernels_of_jax(tmp_path):
    compile_many(jobs(HERE.parent / "simulate/jax_kernels.py", JAX, "2x2x1"), tmp_path)
    for name in JAX:
        digest(analysis.analyze(tmp_path / name).report)


def reported(file, *codes, **options):
    """The report of a file; None where it is refused, which must be by name and with one of these codes."""
    try:
        return analysis.analyze(file, **options).report
    except MegascopeError as error:
        refusal = error
    assert refusal.exit_code in codes
    assert file.name in str(refusal)
    return None


@pytest.mark.parametrize("file", GOLDENS, ids=lambda path: f"{path.parent.name}-{path.name[-40:-18]}")
def test_goldens(file):
    report = reported(file, 3, chip=chip_of(file))
    if report is not None:
        digest(report)


def chip_of(file):
    """The chip a golden's folder is named after; tpu7x where it names none."""
    return next((chip for chip in ("v5e", "v5p", "v6e") if chip in str(file)), "tpu7x")


@pytest.mark.skipif(not DATA.is_dir(), reason="no ../shared/data beside the project")
def test_the_v6e_dump():
    report = analysis.analyze(DATA / "v6e-matmul" / "dump").report
    digest(report)
    assert report["capture"]["chip"] == "v6e"
    assert report["ici"]["messages"] == 0
    # Nothing says how many cores, which batch, or what lies in VMEM: unknown, not zero.
    assert report["capture"]["batch"] is None
    assert report["vmem"]["used_bytes"] is None


@pytest.mark.skipif(not TRACES, reason="no ../shared/data beside the project")
@pytest.mark.parametrize("file", TRACES, ids=lambda path: f"{path.parents[3].name}-{path.name}")
def test_traces_are_reported_or_refused_by_name(file):
    report = reported(file, 3, 4)
    if report is not None:
        check(report)
        assert {f["provenance"] for f in report["findings"]} <= {"measured", "counted"}


@pytest.mark.skipif(not OLD, reason="no ../shared/data beside the project")
@pytest.mark.parametrize("file", OLD, ids=lambda path: path.name[:24])
def test_old_formats_are_reported_or_refused_by_name(file):
    report = reported(file, 3, chip="v5e")
    if report is not None:
        digest(report)
        assert report["not_understood"]["of"] > 0
