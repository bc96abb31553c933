"""The words of `megascope compile`."""

import subprocess
import sys
from pathlib import Path

import pytest

from analyzer.errors import UsageError
from profiler.cli import check_flags, check_level, parse_options

PROJECT = Path(__file__).parents[2]


def test_options_are_json_where_they_read_as_json() -> None:
    pairs = ["layers=4", "x=true", "dtype=bf16", "tile=[1, 2]", "ring-depth=3", "empty=", "eq=a=b", "f=1e-3"]
    assert parse_options(pairs) == {
        "layers": 4,
        "x": True,
        "dtype": "bf16",
        "tile": [1, 2],
        "ring_depth": 3,
        "empty": "",
        "eq": "a=b",
        "f": 0.001,
    }


@pytest.mark.parametrize("pair", ["layers", "=4", "a b=3", "3x=1"])
def test_options_that_are_none(pair: str) -> None:
    with pytest.raises(UsageError, match="not of the form NAME=VALUE"):
        parse_options([pair])


@pytest.mark.parametrize("flag", ["garbage", "xla_tpu=1", "", "--xla_a=1 --xla_b=2"])
def test_flags_that_libtpu_would_ignore_or_split(flag: str) -> None:
    assert check_flags(["--xla_a=1", "--xla_b"]) == ("--xla_a=1", "--xla_b")
    with pytest.raises(UsageError, match="not one flag of libtpu"):
        check_flags([flag])


def test_level() -> None:
    assert check_level("off") == "off"
    with pytest.raises(UsageError, match="Levels: off, regions"):
        check_level("full")


def test_the_parent_never_imports_jax() -> None:
    code = (
        "import profiler.compile, profiler.cli, sys; "
        "print([m for m in ('jax', 'numpy', 'pandas', 'megakernels.hooks') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT
    )
    assert done.stdout.strip() == "[]"
