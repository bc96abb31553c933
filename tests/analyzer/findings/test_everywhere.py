"""All rules over every capture at hand: none fails, none says a thing it cannot back."""

from pathlib import Path

import pytest

from analyzer import analysis
from analyzer.errors import MegascopeError

DATA = Path(__file__).parents[3] / "../shared/data"
OLD = sorted((DATA / "old-formats").glob("*bundles.txt")) if DATA.is_dir() else []


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MEGASCOPE_DEBUG", "1")


def check(report):
    for finding in report["findings"]:
        assert finding["provenance"] in ("measured", "modelled", "counted", "assumed")
        assert finding["evidence"]
        assert finding["verify_with"]
        assert finding["might_be_wrong_because"]
        assert finding["time_ps"] is not None or finding["provenance"] == "counted"
        if finding["saving_ps"] is None:
            assert "not estimated" in finding["saving_basis"]
        else:
            assert 0 <= finding["saving_ps"] <= report["step"]["time_ps"]
        if finding["time_ps"] is not None:
            assert 0 <= finding["time_ps"] <= report["step"]["time_ps"] * 1.001
    savings = [f["saving_ps"] for f in report["findings"] if f["saving_ps"] is not None]
    assert savings == sorted(savings, reverse=True)


@pytest.mark.parametrize("options", [("layers=2",), ("layers=2", "prefetch_distance=1")])
def test_the_mlp_kernel(compiled, options):
    check(analysis.analyze(compiled(*options)).report)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["qwen", "examples/matvec.py:build"])
def test_other_kernels_of_the_repository(compiled, target):
    topology = "1x1x1" if "matvec" in target else "2x2x1"
    target = target if target == "qwen" else str(Path(__file__).parents[3] / target)
    check(analysis.analyze(compiled(target=target, topology=topology)).report)


@pytest.mark.skipif(not DATA.is_dir(), reason="no ../shared/data beside the project")
def test_the_v6e_dump():
    report = analysis.analyze(DATA / "v6e-matmul" / "dump").report
    check(report)
    assert report["capture"]["chip"] == "v6e"
    assert report["ici"]["messages"] == 0


@pytest.mark.skipif(not OLD, reason="no ../shared/data beside the project")
@pytest.mark.parametrize("file", OLD, ids=lambda path: path.name[:24])
def test_old_formats_are_reported_or_refused_by_name(file):
    try:
        report, refusal = analysis.analyze(file, chip="v5e").report, None
    except MegascopeError as error:
        report, refusal = None, error
    if refusal is not None:
        assert refusal.exit_code == 3
        assert file.name in str(refusal)
    else:
        check(report)
        assert report["not_understood"]["of"] > 0
