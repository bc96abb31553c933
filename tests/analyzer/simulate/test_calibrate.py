"""Fitting recovers the parameters that were put in; validation reads cases and reports errors."""

import json

import pytest
from typer.testing import CliRunner

from analyzer.errors import InputError
from analyzer.machine import load_machine
from analyzer.simulate.calibrate import as_measured, fit, leave_one_out, write_machine
from analyzer.simulate.validate import read_cases, statistics

TPU7X = load_machine("tpu7x")
FITTED = ["hbm.bandwidth", "hbm.latency", "ici.link.latency"]
TRUE = {"hbm.bandwidth": 2.4e12, "hbm.latency": 1.1e-6, "ici.link.latency": 3.3e-6}


@pytest.fixture(scope="module")
def predict(kernel):
    kernels = [kernel(name) for name in ("nested_loops", "ring", "windows", "all_to_all")]

    def times(machine):
        return [one.run(machine, cores="mirrored").step_time_ps for one in kernels]

    return times


def test_fitting_recovers_what_was_put_in(predict):
    truth = TPU7X.with_overrides(TRUE)
    found = fit(TPU7X, FITTED, predict, predict(truth))
    assert found.rms < 2e-3
    assert set(found.determined) == set(FITTED)
    for name in FITTED:
        assert found.machine[name] == pytest.approx(TRUE[name], rel=0.05), name


def test_what_the_data_does_not_determine_keeps_its_value(predict):
    names = ["hbm.bandwidth", "mxu.push"]  # no kernel here has matrix work
    found = fit(TPU7X, names, predict, predict(TPU7X.with_overrides({"hbm.bandwidth": "x0.5"})))
    assert found.determined == ("hbm.bandwidth",)
    assert found.machine["mxu.push"] == TPU7X["mxu.push"]


def test_leave_one_out_is_small_where_the_model_is_right(predict):
    errors = leave_one_out(TPU7X, ["hbm.bandwidth"], predict, predict(TPU7X))
    assert max(map(abs, errors)) < 0.01


def test_machine_file_comes_back_as_written(tmp_path):
    machine = as_measured(TPU7X.with_overrides({"hbm.bandwidth": 3.0e12}), ["hbm.bandwidth"], 'a "test"')
    path = tmp_path / "mine.toml"
    write_machine(machine, path)
    read = load_machine("tpu7x", path)
    assert dict(read.parameters) == dict(machine.parameters)
    assert read.peaks == machine.peaks
    assert read.parameters["hbm.bandwidth"].kind == "measured"


# Kernels that tell every parameter of copies, messages and pushes apart.
SET = [
    ("stream", {"mib": 200}),
    ("chase", {}),
    ("remote_copy", {"kib": 256, "distance": 1}),
    ("remote_copy", {"kib": 16384, "distance": 1}),
    ("remote_copy", {"kib": 256, "distance": 2}),
    ("remote_copy", {"kib": 16384, "distance": 2}),
    ("all_gather", {"rows": 8, "columns": 512}),
    ("all_reduce", {"rows": 64, "columns": 4096, "wire": "f32"}),
    ("pushes", {}),
]
ALL = {
    "hbm.bandwidth": 2.7e12,
    "hbm.latency": 0.9e-6,
    "ici.sibling.latency": 1.5e-6,
    "ici.sibling.bandwidth": 500e9,
    "ici.link.latency": 2.6e-6,
    "ici.link.bandwidth": 40e9,
    "ici.send.cost": 0.25e-6,
    "ici.send.bandwidth": 110e9,
    "mxu.push": 2.6,
}


@pytest.mark.slow
def test_microkernels_determine_every_parameter(compiled):
    from pathlib import Path

    from conftest import Kernel

    file = Path(__file__).parents[3] / "megakernels/microkernels.py"
    kernels = [
        Kernel(name, compiled(*(f"{k}={v}" for k, v in options.items()), target=f"{file}:{name}"))
        for name, options in SET
    ]

    def times(machine):
        return [one.run(machine, cores="mirrored").step_time_ps for one in kernels]

    found = fit(TPU7X, list(ALL), times, times(TPU7X.with_overrides(ALL)))
    assert found.rms < 3e-3
    assert set(found.determined) == set(ALL)
    for name, value in ALL.items():
        assert found.machine[name] == pytest.approx(value, rel=0.06), name


CASES = """
[[case]]
name = "ring"
capture = "{capture}"
measured_us = {measured}
source = "made up"
[[case]]
name = "gone"
capture = "nowhere"
measured_us = 1.0
"""


def test_validate_reports_errors_and_what_failed(compiled, kernel, tmp_path):
    import megascope

    one = kernel("ring")
    modelled = one.run(TPU7X).step_time_ps / 1e6
    path = tmp_path / "cases.toml"
    from conftest import KERNELS

    capture = compiled(target=f"{KERNELS}:ring")
    path.write_text(CASES.format(capture=capture, measured=modelled / 1.1))
    app = megascope.build_app()
    done = CliRunner().invoke(app, ["validate", str(path), "--format", "json"])
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert report["cases"][0]["error"] == pytest.approx(0.1, abs=1e-3)
    assert report["failures"][0]["name"] == "gone"
    assert report["statistics"]["all"]["cases"] == 1
    path.write_text(path.read_text().replace("measured_us = ", "outside_us = 0.5\nmeasured_us = ", 1))
    outside = CliRunner().invoke(app, ["validate", str(path), "--format", "json"])
    with_it = json.loads(outside.stdout)["cases"][0]["modelled_us"]
    assert with_it == pytest.approx(report["cases"][0]["modelled_us"] + 0.5)


def test_bounds_verb(compiled):
    from conftest import KERNELS

    import megascope

    app = megascope.build_app()
    capture = str(compiled(target=f"{KERNELS}:ring"))
    done = CliRunner().invoke(app, ["bounds", capture, "--format", "json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["step_ps"] > 0
    assert {b["name"] for b in report["bounds"]} >= {"perfect prefetch", "infinite MXU"}
    text = CliRunner().invoke(app, ["bounds", capture, "--what-if", "hbm.bandwidth=x2"])
    assert "perfect prefetch" in text.stdout
    wrong = CliRunner().invoke(app, ["bounds", capture, "--what-if", "hbm.colour=x2"])
    assert wrong.exit_code != 0


def test_calibrate_verb_finds_parameters_again_and_writes_a_machine(compiled, kernel, tmp_path):
    from conftest import KERNELS

    import megascope

    fast = TPU7X.with_overrides({"hbm.bandwidth": 2.0e12, "hbm.latency": 1.0e-6})
    rows = []
    for name in ("nested_loops", "ring", "windows"):
        time = kernel(name).run(fast).step_time_ps / 1e6
        capture = compiled(target=f"{KERNELS}:{name}")
        rows.append(f'[[case]]\nname = "{name}"\ncapture = "{capture}"\nmeasured_us = {time}\n')
    path, out = tmp_path / "cases.toml", tmp_path / "mine.toml"
    path.write_text("".join(rows))
    fits = ["--fit", "hbm.bandwidth", "--fit", "hbm.latency"]
    app = megascope.build_app()
    tested = CliRunner().invoke(app, ["calibrate", str(path), *fits, "--self-test"])
    assert tested.exit_code == 0, tested.output
    assert "2 of 2 parameters determined" in tested.stdout
    done = CliRunner().invoke(app, ["calibrate", str(path), *fits, "-o", str(out)])
    assert done.exit_code == 0, done.output
    machine = load_machine("tpu7x", out)
    assert machine["hbm.bandwidth"] == pytest.approx(2.0e12, rel=0.03)
    assert machine["hbm.latency"] == pytest.approx(1.0e-6, rel=0.03)
    assert machine.parameters["hbm.latency"].kind == "measured"
    assert machine.parameters["mxu.push"].kind == TPU7X.parameters["mxu.push"].kind


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", r"no \[\[case\]\]"),
        ("[[case]]\nmeasured_us = 1", "names no capture"),
        ('[[case]]\ncapture = "x"\nmeasured_us = 0', "measured_us = 0"),
        ('[[case]]\ncapture = "x"\nmeasured_us = 1\ncolour = 2', "unknown entry 'colour'"),
        ('[[case]]\ncapture = "x"\nmeasured_us = 1\ncores = "some"', "cores = 'some'"),
        ('[[case]]\ncapture = "x"\nmeasured_us = 5\noutside_us = 70', "outside_us = 70"),
    ],
)
def test_bad_case_files_are_named(tmp_path, text, named):
    path = tmp_path / "cases.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=named):
        read_cases(path)


def test_no_outcomes_have_no_statistics():
    assert statistics([]) is None
