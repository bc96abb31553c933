"""Every rule on two real compiles: it fires on the fault at its line, and not without it.

Where a rule gives a saving, it is within 25 % of the difference between the two simulations.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from compile_many import compile_many

from analyzer import analysis, findings

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@dataclass(frozen=True)
class Pair:
    """A fault and the build without it.

    Attributes:
        line: text of the line that must be named; by default the comment `PLANT <fault>`.
        cores: which cores the report looks at.
        overrides: parameters of the machine for this pair.
        within: tolerance of the saving against the difference of the two simulations; None where the rule
            gives no saving.
    """

    rule: str
    fault: str
    good: str = "none"
    line: str | None = None
    within: float | None = 0.25
    cores: str = "auto"
    overrides: dict[str, str] = field(default_factory=dict)

    @property
    def file(self):
        return HERE / ("planted_units.py" if self.good.endswith("+good") else "planted.py")


def unit(rule, fault, **more):
    """A pair of planted_units.py."""
    return Pair(rule, fault, f"{fault}+good", **more)


ISSUE = "tile(t + depth).start()"
PAIRS = [
    Pair("MS101", "urgent", "urgent_first"),
    Pair("MS102", "shallow", "deep", line=ISSUE),
    Pair("MS103", "behind", "behind_first"),
    Pair("MS104", "store", "store_late"),
    unit("MS105", "small"),
    unit("MS107", "early"),
    Pair("MS111", "ramp"),
    Pair("MS112", "pause", "pause_deep", line=ISSUE),
    Pair("MS201", "exchange"),
    Pair("MS202", "barrier"),
    Pair("MS203", "pieces", "exchange", line="copy.start()  # PLANT exchange"),
    Pair("MS204", "uneven", line="copy.wait()", cores="all"),
    Pair("MS301", "pushes", "pushed_once", within=None),
    unit("MS302", "one_mxu"),
    Pair("MS303", "vector", within=None),
    unit("MS304", "convert"),
    unit("MS305", "transpose"),
    unit("MS305", "reduce"),
    unit("MS306", "idle_mxu"),
    unit("MS307", "narrow"),
    unit("MS308", "stacked"),
    unit("MS401", "spills", within=None),
    Pair("MS402", "division", line="lax.div("),
    Pair("MS403", "bounds", "no_bounds", within=None),
    unit("MS404", "never", within=None),
    unit("MS405", "straight", within=None, overrides={"fetch_resident": "256"}),
    unit("MS406", "overhead"),
    Pair("MS501", "twice", line="tile(t + depth).start()"),
    unit("MS502", "padded"),
    Pair("MS601", "uneven", line="acc[...] = lax.fori_loop(0, value", cores="all"),
]


def lines_with(pair):
    text = f"# PLANT {pair.fault}" if pair.line is None else pair.line
    lines = [n for n, line in enumerate(pair.file.read_text().split("\n"), 1) if text in line]
    assert lines, text
    return lines


def at(report, rule, lines=()):
    """Findings of a rule on one of these lines (anywhere where no lines are given)."""
    found = [f for f in report["findings"] if f["id"] == rule]
    if not lines:
        return found
    return [f for f in found if f["source"] and int(f["source"].rpartition(":")[2]) in lines]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.rule}-{pair.fault}")
def test_fires_on_the_fault_and_not_without_it(pair, planted):
    bad, good = (planted.report(name, pair.cores, **pair.overrides) for name in (pair.fault, pair.good))
    lines = lines_with(pair)
    fired = at(bad, pair.rule, lines)
    assert fired, [(f["id"], f["source"]) for f in bad["findings"]]
    assert fired[0]["source"].rpartition(":")[0] == str(pair.file)
    assert not at(good, pair.rule, lines)
    if pair.within is None:
        assert fired[0]["saving_ps"] is None
    else:
        truth = bad["step"]["time_ps"] - good["step"]["time_ps"]
        assert fired[0]["saving_ps"] == pytest.approx(truth, rel=pair.within)


def test_a_kernel_compiled_twice_is_counted(planted, tmp_path):
    once, twice = tmp_path / "once", tmp_path / "twice"
    for folder in (once, twice):
        shutil.copytree(planted.capture("none") / "dump", folder)
    for file in list(twice.iterdir()):
        stamp, _, rest = file.name.partition("-")
        shutil.copyfile(file, twice / f"{int(stamp) + 10**9}-{rest}")
    (finding,) = at(analysis.analyze(twice, use_cache=False).report, "MS602")
    assert finding["count"] == 1
    assert at(analysis.analyze(once, use_cache=False).report, "MS602") == []


@pytest.mark.slow
def test_what_more_buffers_gain_in_a_kernel_of_k3(tmp_path):
    """A ring of 4 buffers is full after each layer's first tiles; what 16 gain was foretold."""
    target = f"{HERE / 'k3_stacks'}.py:kda"
    jobs = [
        {
            "name": str(depth),
            "target": target,
            "topology": "2x2x4",
            "options": {"layers": 40, "ring_depth": depth},
        }
        for depth in (4, 16)
    ]
    compile_many(jobs, tmp_path)
    few, many = (analysis.analyze(tmp_path / name, use_cache=False).report for name in ("4", "16"))
    (finding,) = at(few, "MS112")
    assert finding["saving_ps"] == pytest.approx(few["step"]["time_ps"] - many["step"]["time_ps"], rel=0.25)
    assert at(many, "MS112") == []


@pytest.mark.slow
def test_markers_in_a_short_loop_are_told_from_markers_around_it(tmp_path):
    """The two levels are compiled in processes of their own: libtpu reads its flags once."""
    reports = {}
    for good in (False, True):
        out = tmp_path / f"marked-{good}"
        command = [
            sys.executable,
            ROOT / "megascope.py",
            "compile",
            f"{HERE}/planted_units.py:build",
            "-o",
            out,
        ]
        options = ["--topology", "1x1x1", "--set", "fault=marked", "--probe-effect"]
        options += ["--set", "good=true"] if good else []
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        reports[good] = analysis.analyze(out, use_cache=False).report
    (finding,) = at(reports[False], "MS603")
    truth = (
        reports[False]["step"]["time_ps"]
        - analysis.analyze(tmp_path / "marked-False" / "level-off", use_cache=False).report["step"]["time_ps"]
    )
    assert finding["saving_ps"] == pytest.approx(truth, rel=0.25)
    assert at(reports[True], "MS603") == []


def test_every_rule_has_a_pair():
    elsewhere = {"MS602", "MS603"}
    assert {pair.rule for pair in PAIRS} | elsewhere == {rule.identifier for rule in findings.rules()}


def test_three_faults_of_one_kernel_rank_by_what_removing_each_gains(planted):
    report = planted.report("three")
    rules = {"transpose": "MS305", "overhead": "MS406", "reduce": "MS305"}
    gains = {
        name: report["step"]["time_ps"] - planted.report(f"three+{name}")["step"]["time_ps"] for name in rules
    }
    order = sorted(gains, key=lambda name: -gains[name])
    assert gains[order[0]] > 1.2 * gains[order[1]] > 1.44 * gains[order[2]]
    assert [f["id"] for f in report["findings"][:3]] == [rules[name] for name in order]
    for finding, name in zip(report["findings"], order, strict=False):
        assert finding["saving_ps"] == pytest.approx(gains[name], rel=0.3), name


def test_costlier_faults_rank_higher(planted):
    """Across builds: the fault that costs more has the larger saving, as the first finding."""
    order = ["exchange", "barrier", "store", "urgent"]
    clean = {"store": "store_late", "urgent": "urgent_first"}
    times = {name: planted.report(name)["step"]["time_ps"] for name in (*order, "none", *clean.values())}
    truth = [times[name] - times[clean.get(name, "none")] for name in order]
    assert truth == sorted(truth, reverse=True)
    savings = [planted.report(name)["findings"][0]["saving_ps"] for name in order]
    assert savings == sorted(savings, reverse=True)
