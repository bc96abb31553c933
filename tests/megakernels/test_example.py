"""examples/matvec.py as docs/your-own-kernel.md uses it: its numbers, and the bubble that buffers remove."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "matvec.py"


def snippet() -> str:
    """The check the page tells the reader to run, at one buffer and at the default."""
    page = (ROOT / "docs" / "your-own-kernel.md").read_text()
    [code] = [
        part.split("```")[0] for part in page.split("```python\n") if "force_tpu_interpret_mode" in part
    ]
    return code


@pytest.mark.slow
@pytest.mark.parametrize("call", ["build()", "build(buffers=1)"])
def test_the_pages_check_passes(call: str) -> None:
    code = snippet().replace("build()", call)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "non-zero count" not in done.stdout
    assert "RACE" not in done.stdout + done.stderr


@pytest.mark.slow
def test_the_pages_check_can_fail() -> None:
    code = snippet().replace("@ w.astype", "@ -w.astype")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert "AssertionError" in done.stderr


def test_the_example_is_short_enough_to_read() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60


def report(folder: Path, *options: str) -> dict[str, Any]:
    def megascope(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "megascope.py", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    megascope("compile", str(EXAMPLE), "--topology", "1x1x1", "-o", str(folder), *options)
    return json.loads(megascope("report", str(folder), "--format", "json"))


@pytest.mark.slow
def test_one_buffer_leaves_hbm_idle_at_the_line_that_starts_the_next_copy(tmp_path: Path) -> None:
    one = report(tmp_path / "one", "--set", "buffers=1")
    three = report(tmp_path / "three")
    line = next(
        n for n, code in enumerate(EXAMPLE.read_text().splitlines(), 1) if "pl.when(tile + buffers" in code
    )

    def idle(result: dict[str, Any]) -> int:
        """Picoseconds of HBM idle charged to that line."""
        return sum(
            b["duration_ps"] for b in result["bubbles"] if str(b["source"]).endswith(f"matvec.py:{line}")
        )

    assert idle(one) > 0.3 * one["step"]["time_ps"]
    assert idle(three) < 0.01 * three["step"]["time_ps"]
    assert three["step"]["time_ps"] < 0.6 * one["step"]["time_ps"]
    assert one["hbm"]["read_bytes"] == three["hbm"]["read_bytes"] == 2 * (8192 * 8192 + 8 * 8192)
