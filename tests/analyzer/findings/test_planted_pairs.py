"""Every rule of this list on two real compiles: it fires on the fault at its line, and not without it."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLANTED = Path(__file__).with_name("planted.py")


@dataclass(frozen=True)
class Pair:
    """A fault and the build without it; within: tolerance of the saving, None where it is not promised."""

    rule: str
    fault: str
    good: str = "none"
    within: float | None = 0.25
    line: str | None = None


PAIRS = [
    Pair("MS101", "urgent", "urgent_first"),
    Pair("MS103", "urgent", "urgent_first", within=None),
    Pair("MS104", "store", "store_late"),
    Pair("MS111", "ramp"),
    Pair("MS201", "exchange"),
    Pair("MS202", "barrier"),
    Pair("MS302", "one_mxu", within=None),
    Pair("MS303", "vector", within=None),
    Pair("MS401", "spills", within=None),
    Pair("MS402", "division", line="lax.div("),
    Pair("MS403", "bounds", "no_bounds", within=None),
    Pair("MS501", "twice", line="tile(t + DEPTH).start()"),
]


def lines_with(text):
    return [n for n, line in enumerate(PLANTED.read_text().split("\n"), 1) if text in line]


@pytest.fixture(scope="module")
def reports(compiled):
    """Name of a fault -> report, made once."""
    made = {}

    def make(fault):
        if fault not in made:
            capture = compiled(f"fault={fault}", target=f"{PLANTED}:build")
            command = [sys.executable, ROOT / "megascope.py", "report", capture, "--format", "json"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            made[fault] = json.loads(done.stdout)
            assert not [note for note in made[fault]["notes"] if note.startswith("rule ")]
        return made[fault]

    return make


def at(report, rule, lines):
    """Findings of a rule on one of these lines (anywhere where no lines are given)."""
    found = [f for f in report["findings"] if f["id"] == rule]
    if not lines:
        return found
    return [f for f in found if f["source"] and int(f["source"].rpartition(":")[2]) in lines]


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.rule)
def test_fires_on_the_fault_and_not_without_it(pair, reports):
    bad, good = reports(pair.fault), reports(pair.good)
    text = f"# PLANT {pair.fault}" if pair.line is None else pair.line
    lines = lines_with(text) if text else []
    assert lines or not text
    fired = at(bad, pair.rule, lines)
    assert fired, [(f["id"], f["source"]) for f in bad["findings"]]
    assert not at(good, pair.rule, lines)
    truth = bad["step"]["time_ps"] - good["step"]["time_ps"]
    if pair.within is not None:
        assert fired[0]["saving_ps"] == pytest.approx(truth, rel=pair.within)
    elif fired[0]["saving_ps"] is not None and truth > 0:
        assert fired[0]["saving_ps"] <= 1.25 * truth


@pytest.mark.slow
def test_costlier_faults_rank_higher(reports):
    """Across builds: the fault that costs more has the larger saving, as the first finding."""
    order = ["exchange", "barrier", "store", "urgent"]
    clean = {"store": "store_late", "urgent": "urgent_first"}
    truth = [
        reports(name)["step"]["time_ps"] - reports(clean.get(name, "none"))["step"]["time_ps"]
        for name in order
    ]
    assert truth == sorted(truth, reverse=True)
    savings = [reports(name)["findings"][0]["saving_ps"] for name in order]
    assert savings == sorted(savings, reverse=True)


@pytest.mark.slow
def test_a_kernel_compiled_twice_is_counted(compiled, tmp_path):
    dump = compiled("fault=none", target=f"{PLANTED}:build") / "dump"
    for file in dump.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
        stamp, _, rest = file.name.partition("-")
        (tmp_path / f"{int(stamp) + 10**9}-{rest}").write_bytes(file.read_bytes())
    command = [sys.executable, ROOT / "megascope.py", "report", tmp_path, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (finding,) = at(json.loads(done.stdout), "MS602", [])
    assert finding["count"] == 1
