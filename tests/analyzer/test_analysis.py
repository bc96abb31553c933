"""What is kept between runs: by key, checked, pruned, and not needed."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from analyzer import analysis, cache
from analyzer.capture import Capture, open_capture
from analyzer.errors import InputError, UsageError
from analyzer.machine import load_machine


@pytest.fixture
def capture(compiled, tmp_path, monkeypatch):
    """A dump with a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return open_capture(compiled("layers=2") / "dump", chip="tpu7x")


def test_second_time_comes_from_the_cache_and_is_the_same(capture):
    first = analysis.analyze(capture, chip="tpu7x")
    second = analysis.analyze(capture, chip="tpu7x")
    assert (first.from_cache, second.from_cache) == (False, True)
    assert second.report == json.loads(json.dumps(first.report))
    assert second.timeline.equals(first.timeline)
    assert second.core_step().window_ps == first.report["step"]["time_ps"]
    assert not analysis.analyze(capture, chip="tpu7x", use_cache=False).from_cache


def test_values_that_decide_what_runs_are_asked_for(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels = Path(__file__).parent / "simulate/kernels.py"
    opened = open_capture(compiled(target=f"{kernels}:data_dependent"))
    (note,) = [n for n in analysis.analyze(opened).report["notes"] if "what runs may differ" in n]
    names = re.findall(r"--set (\S+)=N", note)
    assert {"scalars.0", "smem.1"} <= set(names)
    assert any(name.startswith("pops.kernels.py:") for name in names)
    given = analysis.analyze(opened, scenario=dict.fromkeys(names, "1")).report["notes"]
    assert not [n for n in given if "what runs may differ" in n]
    bound = analysis.analyze(opened, scenario={"scalars.0": "1"}).report
    assert not [n for n in bound["notes"] if "what runs may differ" in n], "only the bound decides what runs"
    assert [value["given"] for value in bound["scenario"]["assumed_values"]].count(False) > 0


def test_a_scenario_file_goes_over_the_kernels_own(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels = Path(__file__).parent / "simulate/kernels.py"
    opened = open_capture(compiled(target=f"{kernels}:all_to_all"))
    plain = analysis.analyze(opened)
    file = tmp_path / "late.toml"
    file.write_text('name = "one late"\n[cores.3]\ndelay_us = 20\n')
    late = analysis.analyze(opened, scenario_file=file)
    assert late.report["scenario"]["name"] == "one late"
    assert late.report["scenario"]["file"] == str(file)
    assert late.report["scenario"]["delayed_cores"] == [3]
    assert any(f"scenario file {file}" in note for note in late.report["notes"])
    assert late.report["step"]["time_ps"] - plain.report["step"]["time_ps"] > 15_000_000
    assert analysis.analyze(opened, scenario_file=file).from_cache
    assert analysis.analyze(opened).report["step"] == plain.report["step"]
    file.write_text('name = "one late"\n[cores.3]\ndelay_us = 5\n')
    again = analysis.analyze(opened, scenario_file=file)
    assert not again.from_cache
    assert again.report["step"]["time_ps"] < late.report["step"]["time_ps"]
    over = analysis.analyze(opened, scenario_file=file, scenario={"default": "0"})
    assert over.report["scenario"]["name"] == "one late, changed by --set"


@pytest.mark.parametrize("file", ["analysis.json", "timeline.parquet", "stories.parquet"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_damage_is_noticed_and_mended(capture, file, damage):
    first = analysis.analyze(capture, chip="tpu7x", use_cache=False)
    path = capture.cache_dir / file
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    else:
        path.unlink()
    again = analysis.analyze(capture, chip="tpu7x")
    assert not again.from_cache
    assert again.report == first.report
    kept = analysis.analyze(capture, chip="tpu7x")
    assert kept.from_cache
    for table in ("timeline", "residency", "stories"):
        pd.testing.assert_frame_equal(getattr(kept, table), getattr(first, table))
        assert len(getattr(kept, table)) > 0


def test_the_key_depends_on_inputs_machine_and_scenario(capture):
    machine = load_machine("tpu7x")
    plain = cache.key_of(capture, machine, {})
    assert plain == cache.key_of(capture, load_machine("tpu7x"), {})
    others = [
        cache.key_of(capture, machine.with_overrides({"hbm.bandwidth": "x2"}), {}),
        cache.key_of(capture, machine, {"default": "1"}),
        cache.key_of(capture, load_machine("v6e"), {}),
    ]
    bundles = capture.kernel_program().bundles
    original = bundles.read_bytes()
    try:
        bundles.write_bytes(original + b"\n")
        others.append(cache.key_of(capture, machine, {}))
    finally:
        bundles.write_bytes(original)
    assert len({plain, *others}) == 5


def test_variants_leave_the_plain_result_alone_and_are_pruned(capture):
    plain = analysis.analyze(capture, chip="tpu7x").report["step"]["time_ps"]
    for factor in range(2, 4 + cache.VARIANTS_KEPT):
        analysis.analyze(capture, chip="tpu7x", overrides={"hbm.bandwidth": f"/{factor}"})
    assert len(list((capture.cache_dir / "variants").iterdir())) == cache.VARIANTS_KEPT
    again = analysis.analyze(capture, chip="tpu7x")
    assert again.from_cache
    assert again.report["step"]["time_ps"] == plain


def test_nowhere_to_write_gives_the_report_and_a_note(capture, monkeypatch):
    def nowhere(self):
        raise InputError("cache", "cannot be written", "")

    monkeypatch.setattr(Capture, "cache_dir", property(nowhere))
    done = analysis.analyze(capture, chip="tpu7x")
    assert done.report["step"]["time_ps"] > 0
    assert any("not kept" in note for note in done.report["notes"])


def test_a_chip_nobody_knows_is_asked_for(capture):
    capture.manifest["chip"] = None
    with pytest.raises(UsageError, match="--chip"):
        analysis.analyze(capture)


def test_written_files_have_the_usual_permissions(tmp_path):
    import os

    umask = os.umask(0o022)
    try:
        cache.write_atomically(tmp_path / "a", b"x")
    finally:
        os.umask(umask)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    with pytest.raises(OSError, match="No such file"):
        cache.write_atomically(tmp_path / "missing" / "a", b"x")


def test_all_cores_or_one_as_asked(capture):
    every = analysis.analyze(capture, chip="tpu7x", cores="all")
    one = analysis.analyze(capture, chip="tpu7x", cores="mirrored")
    assert every.report["reported"]["cores_in_timeline"] == len(every.report["hbm"]["per_core"]) > 1
    assert one.report["reported"]["cores_in_timeline"] == 1
    assert any("mirrored" in note for note in one.report["notes"])
    assert any("all" in note and "simulated" in note for note in every.report["notes"])
    ends = [c["bubble_ps"] for c in every.report["hbm"]["per_core"]]
    assert len(ends) == every.report["reported"]["cores_in_timeline"]
