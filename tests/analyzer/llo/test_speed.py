"""The input of benchmarks/llo_read.py is a sound program, and reading it keeps to the bound on memory.

Its bounds on time are checked by the benchmark itself, where the machine can be kept quiet.
"""

import importlib.util
import sys
import tracemalloc
from pathlib import Path

import pytest
from llo_helpers import GOLDENS, ROOT

from analyzer.llo.reader import parse_program, read_program

_spec = importlib.util.spec_from_file_location("llo_read", ROOT / "benchmarks/llo_read.py")
benchmark = importlib.util.module_from_spec(_spec)
sys.modules["llo_read"] = benchmark
_spec.loader.exec_module(benchmark)
GOLDEN = next((GOLDENS / "tpu7x").glob("*call.1-*-final_bundles.txt"))


@pytest.fixture(scope="module")
def big(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("big") / "1796000000000000000-unrolled.1-04-final_bundles.txt"
    file.write_bytes(benchmark.unroll(GOLDEN.read_bytes(), 5_000_000))
    return file


def test_unrolled_text_is_a_sound_program(big):
    program, one = read_program(big), read_program(GOLDEN)
    copies = program.bundle_count // one.bundle_count
    assert program.bundle_count == copies * one.bundle_count
    assert program.not_understood.count == 0
    assert program.notes == []
    assert len(program.loops) == copies * len(one.loops)


def test_memory_per_byte_of_text(big):
    data = big.read_bytes()
    tracemalloc.start()
    program = parse_program(data, big)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert program.bundle_count > 10_000
    assert peak + len(data) < benchmark.MAX_BYTES_PER_BYTE * len(data)
