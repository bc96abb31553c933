"""The full model compiled for TPU v7, and its step executed from the bundles: bytes, VMEM, time.

Done-when figures of the kernel are asserted here: no weight byte read twice, 64 MiB, and the modelled step.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from analyzer.capture import open_capture
from analyzer.llo.reader import read_program
from analyzer.machine import load_machine
from analyzer.options import scenario_of
from analyzer.simulate import simulate
from profiler.compile import CompileRequest, compile_kernel
from profiler.topology import parse_topology

HBM_BYTES_PER_SECOND = 3.15e12
VARIANTS: dict[str, dict[str, Any]] = {
    "batch 1": {},
    "batch 2": {"batch": 2},
    "batch 4": {"batch": 4},
    "batch 8": {"batch": 8},
    "verify": {"verify": True},
    "fp8": {"fp8": True},
    "fp8 batch 8": {"fp8": True, "batch": 8},
    "fp8 verify": {"fp8": True, "verify": True},
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("qwen")

    @cache
    def get(variant: str) -> tuple[dict[str, Any], Path]:
        path = folder / variant.replace(" ", "-")
        request = CompileRequest(
            target="qwen",
            topology=parse_topology("tpu7x:2x2x1", None),
            level="off",
            options=VARIANTS[variant],
        )
        return compile_kernel(request, path), path

    return get


@cache
def run(path: Path) -> Any:
    capture = open_capture(path)
    program = read_program(capture.kernel_program().bundles)
    scenario = scenario_of(capture.manifest["facts"]["scenario"]["set"])
    return simulate(program, load_machine("tpu7x"), scenario=scenario, facts=capture.manifest)


FIRST = ["batch 1"]
REST = [pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS if name not in FIRST]


@pytest.mark.parametrize("variant", FIRST + REST)
def test_compiles_in_time_and_fits(compiled, variant) -> None:
    manifest, path = compiled(variant)
    assert manifest["seconds"]["total"] < 90
    assert manifest["facts"]["vmem_bytes"] <= 64 << 20
    text = open_capture(path).kernel_program().bundles.read_text()
    assert "BoundsCheck" not in text
    assert not [note for note in manifest["notes"] if "VMEM before the kernel starts" in note]
    # A few thousand bundles: loops over layers and tiles are rolled.
    assert len(re.findall(r"^ *0x", text, re.M)) < 8000


@pytest.mark.parametrize("variant", FIRST + REST)
def test_every_byte_moves_once(compiled, variant) -> None:
    manifest, path = compiled(variant)
    simulation, facts = run(path), manifest["facts"]
    moved = dict(simulation.operand_bytes)
    for operand in facts["operands"]:
        read, written = moved.get(operand["index"], (0, 0))
        name = operand["name"]
        if name in facts["weight_bytes"]:
            assert (read, written) == (facts["weight_bytes"][name], 0), name
    read_all = sum(facts["weight_bytes"].values())
    assert read_all <= 1.03 * facts["ideal_weight_bytes"]
    assert simulation.sent_bytes == facts["sent_bytes_per_core"]


def test_batch_1_is_bound_by_bandwidth(compiled) -> None:
    simulation = run(compiled("batch 1")[1])
    read = sum(read for read, _ in simulation.operand_bytes.values())
    assert simulation.step_time_ps <= 1.08e12 * read / HBM_BYTES_PER_SECOND
    assert simulation.step_time_ps <= 2.2e9


@pytest.mark.slow
def test_verify_costs_at_most_a_quarter_more(compiled) -> None:
    verify, single = (run(compiled(name)[1]).step_time_ps for name in ("verify", "batch 1"))
    assert verify <= 1.25 * single
