"""Comparing reports, and the gate."""

import copy
import json

import pytest
import typer
from typer.testing import CliRunner

from analyzer import diff, diff_cli
from analyzer.errors import InputError, UsageError
from analyzer.reports import diff_text, plain
from analyzer.reports import json as json_report


@pytest.fixture
def report(late_ring, make_report):
    return make_report(late_ring)


def slower(report, factor=1.5):
    changed = copy.deepcopy(report)
    changed["step"]["time_ps"] = round(report["step"]["time_ps"] * factor)
    changed["phases"][0]["time_ps"] += changed["step"]["time_ps"] - report["step"]["time_ps"]
    return changed


def test_a_report_with_itself_is_empty(report):
    assert diff.is_empty(diff.compare(report, copy.deepcopy(report)))


def test_noise_in_names_and_addresses_is_no_difference(report):
    moved = copy.deepcopy(report)
    moved["capture"]["path"] = "elsewhere"
    for entry in (*moved["findings"], *moved["bubbles"], *moved["bubble_groups"]):
        if entry["source"]:
            file, _, line = entry["source"].rpartition(":")
            entry["source"] = f"/another/checkout/{file}:{int(line) + 40}"
        if entry["bundles"]:
            entry["bundles"] = [bundle + 7 for bundle in entry["bundles"]]
    result = diff.compare(report, moved)
    assert diff.is_empty(result)
    assert diff.breaches(result, moved, diff.Limits(regression=0, forbid_new=("MSxxx",))) == []


def test_what_changed_is_named_with_both_values(report):
    result = diff.compare(report, slower(report))
    step = result["figures"][0]
    assert (step["what"], step["unit"]) == ("step time", "ps")
    assert step["relative"] == pytest.approx(0.5, rel=1e-3)
    assert result["phases"][0]["what"] == "mlp"
    assert not diff.is_empty(result)
    shown = diff_text.render(result)
    assert "step time" in shown
    assert "+50.0%" in shown
    lines = shown.rstrip("\n").split("\n")
    assert len(lines) <= diff_text.MAX_LINES
    assert max(map(plain.width, lines)) <= diff_text.COLUMNS


def test_findings_appear_disappear_and_change(report):
    other = copy.deepcopy(report)
    gone = other["findings"].pop(0)
    other["findings"][0]["saving_ps"] += 5
    result = diff.compare(report, other)["findings"]
    assert [f["id"] for f in result["disappeared"]] == [gone["id"]]
    assert result["appeared"] == []
    assert [both["b"]["id"] for both in result["changed"]] == [other["findings"][0]["id"]]
    back = diff.compare(other, report)["findings"]
    assert [f["id"] for f in back["appeared"]] == [gone["id"]]


def test_two_findings_of_one_rule_in_one_file_keep_their_partners(report):
    first = copy.deepcopy(report["findings"][0]) | {"source": "k.py:10", "saving_ps": 100}
    second = copy.deepcopy(report["findings"][0]) | {"source": "k.py:90", "saving_ps": 50}
    before = copy.deepcopy(report) | {"findings": [first, second]}
    after = copy.deepcopy(report) | {
        "findings": [second | {"source": "k.py:93"}, first | {"source": "k.py:13", "saving_ps": 10}]
    }
    result = diff.compare(before, after)["findings"]
    assert result["appeared"] == result["disappeared"] == []
    assert [(both["a"]["saving_ps"], both["b"]["saving_ps"]) for both in result["changed"]] == [(100, 10)]


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("capture", "kernel", "qwen"),
        ("capture", "chip", "v6e"),
        ("capture", "cores", 4),
        ("capture", "batch", 1),
        ("step", "provenance", "measured"),
        ("scenario", "name", "busy experts"),
    ],
)
def test_what_is_not_comparable_is_refused_and_says_why(report, section, name, value):
    other = copy.deepcopy(report)
    other[section][name] = value
    with pytest.raises(UsageError, match=str(value)):
        diff.compare(report, other)
    forced = diff.compare(report, other, force=True)
    assert any(str(value) in reason for reason in forced["obstacles"])
    assert "not comparable" in diff_text.render(forced)
    other[section][name] = None
    if section != "step":
        diff.compare(report, other)


def test_another_number_of_layers_is_refused_with_both(report, run, tmp_path):
    fewer = copy.deepcopy(report)
    fewer["phases"] = [phase for phase in fewer["phases"] if phase["layer"] in (None, 0, 1)]
    layers = {phase["layer"] for phase in report["phases"]} - {None}
    with pytest.raises(UsageError, match=f"number of layers: {len(layers)} and 2"):
        diff.compare(report, fewer)
    assert diff.compare(report, fewer, force=True)["obstacles"]
    unmarked = report | {"phases": []}
    assert diff.compare(report, unmarked)["obstacles"] == []
    paths = [tmp_path / name for name in ("all.json", "fewer.json")]
    for path, one in zip(paths, (report, fewer), strict=True):
        path.write_text(json_report.render(one))
    for verb in ("diff", "gate"):
        with pytest.raises(UsageError, match="number of layers"):
            run(verb, *paths)


def test_a_what_if_is_not_compared_with_the_plain_model(report):
    other = copy.deepcopy(report)
    other["notes"].append("what-if: hbm.bandwidth = 6e+12 bytes/s instead of 3e+12")
    with pytest.raises(UsageError, match="machine parameters"):
        diff.compare(report, other)


def test_unknown_stays_unknown(report):
    other = copy.deepcopy(report)
    other["hbm"]["read_bytes"] = None
    row = next(r for r in diff.compare(report, other)["figures"] if r["what"] == "HBM read")
    assert (row["b"], row["change"], row["relative"]) == (None, None, None)
    assert "unknown" in diff_text.render(diff.compare(report, other))


def test_gate_reasons(report):
    worse = slower(report, 1.05)
    result = diff.compare(report, worse)
    assert len(diff.breaches(result, worse, diff.Limits(regression=0.02))) == 1
    assert diff.breaches(result, worse, diff.Limits(regression=0.06)) == []
    assert "mlp" in diff.breaches(result, worse, diff.Limits(0.06, phase_regression=0.01))[0]
    assert diff.breaches(result, worse, diff.Limits(0.06, forbid=("MS1xx",)))[0].startswith(
        "forbidden finding MS101"
    )
    assert diff.breaches(result, worse, diff.Limits(0.06, forbid=("MS9xx",), forbid_new=("MS1xx",))) == []
    clean = copy.deepcopy(report) | {"findings": []}
    assert "new finding" in diff.breaches(
        diff.compare(clean, report), report, diff.Limits(forbid_new=("ms1xx",))
    )[0]  # fmt: skip


def test_patterns_and_shares():
    assert diff.matches("MS1xx", "MS101")
    assert diff.matches("ms101", "MS101")
    assert not diff.matches("MS1xx", "MS201")
    assert diff.share("2%", "--x") == pytest.approx(0.02)
    assert diff.share("0.5", "--x") == 0.5
    for wrong in ("", "two", "-1%", "nan", "inf"):
        with pytest.raises(UsageError):
            diff.share(wrong, "--x")


def test_a_gate_on_a_misspelt_rule_does_not_pass(run, kept):
    for option in ("--forbid", "--forbid-new"):
        with pytest.raises(UsageError, match=f"{option} MS1x: no such rule. Rules: MS101, "):
            run("gate", kept[0], kept[0], option, "MS1x")


@pytest.fixture
def run():
    app = typer.Typer()
    diff_cli.register(app)
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def kept(tmp_path, report):
    """Reports kept as files: the plain one and a slower one."""
    paths = tmp_path / "a.json", tmp_path / "b.json"
    paths[0].write_text(json_report.render(report))
    paths[1].write_text(json_report.render(slower(report)))
    return paths


def test_verbs_on_kept_reports(run, kept):
    a, b = kept
    assert run("diff", a, a).stdout == "no difference\n"
    assert "+50.0%" in run("diff", a, b).stdout
    data = json.loads(run("diff", a, b, "--format", "json").stdout)
    assert data["figures"][0]["change"] > 0
    passed = run("gate", a, a)
    assert (passed.exit_code, passed.stdout) == (0, "gate passed: step time +0.00%\n")
    failed = run("gate", a, b)
    assert failed.exit_code == 1
    assert "more than 2.00%" in failed.stdout
    assert run("gate", b, a, "--forbid-new", "MSxxx").exit_code == 0
    assert run("gate", a, b, "--max-regression", "60%").exit_code == 0
    data = json.loads(run("gate", a, b, "--format", "json").stdout)
    assert data["passed"] is False
    assert data["reasons"]


def test_a_file_that_is_no_report_is_an_input_error(run, tmp_path, kept):
    wrong = tmp_path / "c.json"
    for content in ("", "{}", "[]", '{"schema_version": "9.0", "step": {}}'):
        wrong.write_text(content)
        with pytest.raises(InputError):
            run("diff", kept[0], wrong)


@pytest.mark.slow
def test_captures_with_a_planted_regression(run, compiled):
    good, bad = compiled("layers=4"), compiled("layers=4", "prefetch_distance=1")
    assert run("diff", good, good).stdout == "no difference\n"
    failed = run("gate", good, bad, "--forbid-new", "MS1xx")
    assert failed.exit_code == 1
    assert "MS101" in failed.stdout
    assert run("gate", bad, good, "--forbid", "MS101").exit_code == 0
