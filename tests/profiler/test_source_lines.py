"""Turning off the reuse of lowered code; that lines come out right is tested on the compiled MLP kernel."""

import subprocess
import sys
from pathlib import Path

import pytest

from profiler import source_lines

ROOT = Path(__file__).parents[2]


def test_this_jax_has_the_list_it_needs() -> None:
    probe = "from profiler.source_lines import keep_every_line; print(keep_every_line(), keep_every_line())"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.parametrize(
    ("attribute", "value"), [("_NAME", "no_such_list"), ("_MODULE", "jax.no_such_module")]
)
def test_a_jax_without_it_is_said_not_failed(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: str
) -> None:
    monkeypatch.setattr(source_lines, attribute, value)
    assert source_lines.keep_every_line() is False
