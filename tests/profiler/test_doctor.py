"""Each check of the doctor, sound and ill; the real thing where it can be had."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiler import doctor
from profiler.doctor import Status

PROJECT = Path(__file__).parents[2]
needs_libtpu = pytest.mark.skipif(
    doctor.installed_version("libtpu") is None, reason="libtpu is not installed"
)


def test_python() -> None:
    assert doctor.check_python((3, 12, 1)).status is Status.OK
    assert doctor.check_python((3, 11, 9)).status is Status.PROBLEM
    assert "Python 3.12" in doctor.check_python((3, 11, 9)).cure


@pytest.mark.parametrize(
    ("name", "version", "status"),
    [
        ("jax", "0.12.0.1", Status.OK),
        ("jax", "0.12.3.dev20260901", Status.OK),
        ("jax", "0.10.2", Status.PROBLEM),
        ("jax", "0.13.0", Status.PROBLEM),
        ("jax", None, Status.PROBLEM),
        ("libtpu", "0.0.50.1", Status.OK),
        ("libtpu", "0.0.99", Status.NOTE),
        ("xprof", "2.19.0", Status.PROBLEM),
    ],
)
def test_package(name: str, version: str | None, status: Status) -> None:
    check = doctor.check_package(name, version)
    assert check.status is status
    assert bool(check.cure) == (status is not Status.OK)


def test_version_numbers() -> None:
    assert doctor.version_numbers("0.12.0.dev1") == (0, 12, 0)
    assert doctor.version_numbers("1.2rc1.3") == (1,)
    assert doctor.version_numbers("") == ()


def test_jax_and_jaxlib_of_two_versions() -> None:
    assert doctor.check_pair("0.12.0.1", "0.12.0").status is Status.OK
    assert doctor.check_pair("0.12.1", "0.12.0").status is Status.PROBLEM
    assert doctor.check_pair(None, "0.12.0").status is Status.OK


def test_environment() -> None:
    assert list(doctor.check_environment({})) == []
    names = [
        c.name
        for c in doctor.check_environment({"LIBTPU_INIT_ARGS": "--x", "JAX_COMPILATION_CACHE_DIR": "/c"})
    ]
    assert names == ["LIBTPU_INIT_ARGS", "JAX_COMPILATION_CACHE_DIR"]


def test_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert doctor.check_lock(path).found == "none"
    path.touch()
    assert doctor.check_lock(path).status is Status.OK
    with path.open("rb+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        check = doctor.check_lock(path)
        assert (check.status, "held by a running process" in check.found) == (Status.NOTE, True)
    assert doctor.check_lock(path).status is Status.OK


def test_space_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_space("disk", tmp_path).found.endswith(f"free in {tmp_path}")
    monkeypatch.setattr(doctor, "MIN_DISK", 1 << 62)
    assert doctor.check_space("disk", tmp_path).status is Status.PROBLEM
    meminfo = tmp_path / "meminfo"
    assert doctor.check_memory(meminfo).found == "unknown on this system"
    for text, status in {
        "MemTotal: 9 kB\nMemAvailable: 8388608 kB\n": Status.OK,
        "MemAvailable: 1024 kB\n": Status.PROBLEM,
        "MemAvailable: many\n": Status.NOTE,
    }.items():
        meminfo.write_text(text)
        assert doctor.check_memory(meminfo).status is status


def test_hardware(tmp_path: Path) -> None:
    assert doctor.check_hardware(tmp_path).status is Status.NOTE
    (tmp_path / "vfio").mkdir()
    for name in ("vfio/0", "vfio/1", "vfio/vfio"):
        (tmp_path / name).touch()
    assert doctor.check_hardware(tmp_path).found == "2 device files"


def test_without_libtpu_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda name: None)
    checks = list(doctor.run_checks())
    assert [c.name for c in checks if c.status is Status.PROBLEM] == [
        "jax",
        "jaxlib",
        "libtpu",
        "xprof",
        "compile",
    ]


@needs_libtpu
def test_flag_that_this_libtpu_does_not_take() -> None:
    checks = list(doctor.check_flags({"--xla_nosuch=1": "no such thing", "--xla_jf_dump_llo_text=true": ""}))
    assert [c.status for c in checks] == [Status.PROBLEM, Status.OK]
    assert checks[0].found == "Unknown command line flag 'xla_nosuch': no such thing"


@needs_libtpu
def test_topology_that_this_libtpu_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DEFAULT_SHAPES", {"tpu7x": "3x3x1", "v6e": "2x2"})
    bad, good = doctor.check_topologies()
    assert (bad.status, good.status, good.found) == (Status.PROBLEM, Status.OK, "4 cores")
    assert "INVALID_ARGUMENT" in bad.found


@needs_libtpu
def test_a_compile_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text("raise RuntimeError('broken')\n")
    monkeypatch.setattr(doctor, "_TINY", tmp_path / "tiny.py")
    (check,) = doctor.check_compile()
    assert check.status is Status.PROBLEM
    assert "RuntimeError: broken" in check.found


@needs_libtpu
def test_the_verb() -> None:
    command = [sys.executable, str(PROJECT / "megascope.py"), "doctor", "--format", "json"]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": "/nowhere"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    result = json.loads(done.stdout)
    by_name = {c["name"]: c for c in result["checks"]}
    assert by_name["compile"]["status"] == "ok"
    assert by_name["source lines"]["status"] == "ok"
    assert by_name["JAX_COMPILATION_CACHE_DIR"]["status"] == "note"
    assert all(c["cure"] for c in result["checks"] if c["status"] == "problem")
    assert done.returncode == (0 if result["ok"] else 1)
