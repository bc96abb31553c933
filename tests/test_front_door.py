"""The command as a shell sees it: start-up cost, one-line errors, exit codes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("jax", "pandas", "numpy", "pyarrow", "plotly", "dash", "flask", "mcp", "pydantic")


def megascope(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "megascope.py"), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


def into(file: int, *arguments: str, buffered: bool) -> subprocess.CompletedProcess[str]:
    """The command with its output in an open file; buffered: as Python does in a plain shell."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    if not buffered:
        environment["PYTHONUNBUFFERED"] = "1"
    return subprocess.run(
        [sys.executable, str(ROOT / "megascope.py"), *arguments],
        stdout=file,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )


def test_help_lists_every_verb() -> None:
    done = megascope("--help")
    assert done.returncode == 0
    for verb in ("compile", "report", "show", "dashboard", "agent", "mcp"):
        assert verb in done.stdout


def test_help_imports_nothing_heavy() -> None:
    probe = (
        "import sys, megascope\n"
        "app = megascope.build_app()\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_help_answers_in_under_a_second() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        assert megascope("--help").returncode == 0
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 1.0


@pytest.mark.parametrize("verb", ["report", "show", "dashboard"])
def test_missing_capture_is_one_line_and_exit_3(verb: str, tmp_path: Path) -> None:
    done = megascope(verb, str(tmp_path / "nowhere"))
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("report", ""), ("diff", ".", ""), ("dashboard", "")])
def test_an_empty_path_is_not_the_current_folder(arguments: tuple[str, ...]) -> None:
    done = megascope(*arguments)
    assert done.returncode == 3
    assert "is empty" in done.stderr
    assert done.stdout == ""


def test_unknown_verb_is_a_usage_error() -> None:
    assert megascope("frobnicate").returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full: nothing to fill up")
@pytest.mark.parametrize("buffered", [True, False])
def test_no_room_for_the_output_is_no_internal_error(buffered: bool) -> None:
    with Path("/dev/full").open("w") as full:
        done = into(full.fileno(), "doctor", "--format", "json", buffered=buffered)
    assert "internal error" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == 3
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("verb", ["--help", "doctor"])
def test_a_reader_that_left_is_no_fault(verb: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = into(writing, verb, buffered=True)
    os.close(writing)
    assert done.returncode == 0
    assert "rror" not in done.stderr
    assert "Exception" not in done.stderr
