"""The full model compiled for TPU v7, and its step executed from the bundles: bytes, VMEM, time.

Done-when figures of the kernel are asserted here: no weight byte read twice, 64 MiB, and the modelled step.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from analyzer.analysis import analyze
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
    "1 core": {"cores": 1},
    "2 cores": {"cores": 2},
    "4 cores": {"cores": 4},
}
# Slices with as many cores as these are built for.
SLICES = {"1 core": "tpu7x:1x1x1", "2 cores": "tpu7x:1x1x1", "4 cores": "tpu7x:2x1x1"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("qwen")

    @cache
    def get(variant: str) -> tuple[dict[str, Any], Path]:
        path = folder / variant.replace(" ", "-")
        request = CompileRequest(
            target="qwen",
            topology=parse_topology(SLICES.get(variant, "tpu7x:2x2x1"), None),
            level="off",
            options=VARIANTS[variant],
        )
        return compile_kernel(request, path), path

    return get


@cache
def program_of(path: Path) -> Any:
    return read_program(open_capture(path).kernel_program().bundles)


@cache
def run(path: Path, position: int | None = None) -> Any:
    """The step at the positions of the facts, or at one other."""
    manifest = open_capture(path).manifest
    settings = manifest["facts"]["scenario"]["set"]
    if position is not None:
        settings = settings | {"scalars.1": str(position)}
    scenario = scenario_of(settings)
    return simulate(program_of(path), load_machine("tpu7x"), scenario=scenario, facts=manifest)


def tile_loops(manifest: dict[str, Any], path: Path) -> dict[str, Any]:
    """The loops over the tiles of a matrix, by their iterations in a step: "w_in tiles" -> loop."""
    executed, program = run(path).executed, program_of(path)
    by_count = {int(executed[loop.start]): loop for loop in program.loops}
    expected = {loop["name"]: loop["iterations"] for loop in manifest["facts"]["loops"]}
    return {name: by_count[count] for name, count in expected.items() if name.endswith(" tiles")}


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
    # A few thousand bundles: loops over layers and tiles are rolled, only the heads of a core are not.
    assert len(re.findall(r"^ *0x", text, re.M)) < (16_000 if variant == "1 core" else 8_000)


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


@pytest.mark.parametrize("variant", FIRST + REST)
def test_no_vector_register_is_spilled_in_a_tile_loop(compiled, variant) -> None:
    """Scalars are: addresses and conditions of copies, in slots that are free; see docs/kernels/qwen.md."""
    manifest, path = compiled(variant)
    program, loops = program_of(path), tile_loops(manifest, path)
    assert len(loops) == 5
    texts = {index: program.text(index) for index in program.spills}
    assert any("[vmem:" in text for text in texts.values())  # elsewhere there are some: the test can see them
    for name, loop in loops.items():
        inside = [i for i in texts if loop.start <= program.instruction_bundle[i] <= loop.end]
        assert not [texts[i] for i in inside if "[vmem:" in texts[i]], name


@pytest.mark.slow
def test_the_report_tells_vector_spills_from_scalar_ones(compiled) -> None:
    _, path = compiled("fp8 verify")  # with bfloat16 weights their arrival hides all spills
    found = [f for f in analyze(path, use_cache=False).report["findings"] if f["id"] == "MS401"]
    by_title = {title: [f for f in found if f["title"].startswith(title)] for title in ("Vector", "Scalar")}
    # The recurrence keeps more states than there are registers; tile loops spill scalars alone.
    assert [Path(f["source"]).name.partition(":")[0] for f in by_title["Vector"]] == ["gdn.py"]
    assert all("VMEM" in f["evidence"][0] for f in by_title["Vector"])
    assert by_title["Scalar"]
    assert all("SMEM" in f["evidence"][0] for f in by_title["Scalar"])


def test_batch_1_is_bound_by_bandwidth(compiled) -> None:
    simulation = run(compiled("batch 1")[1])
    read = sum(read for read, _ in simulation.operand_bytes.values())
    assert simulation.step_time_ps <= 1.08e12 * read / HBM_BYTES_PER_SECOND
    assert simulation.step_time_ps <= 2.2e9


def test_a_long_context_costs_little_more_than_its_bytes(compiled) -> None:
    path = compiled("batch 1")[1]
    short, long = run(path), run(path, position=4000)
    more_bytes = sum(read for read, _ in long.operand_bytes.values()) - sum(
        read for read, _ in short.operand_bytes.values()
    )
    assert more_bytes == 16 * 7 * 512 * 1024  # 7 more tiles of 512 tokens in 16 layers
    # 4 of the 8 tiles of a layer are there when it begins; the fifth is waited for behind weights.
    assert long.step_time_ps <= short.step_time_ps + 1.1e12 * more_bytes / HBM_BYTES_PER_SECOND + 16 * 3e6


@pytest.mark.slow
def test_verify_costs_at_most_a_quarter_more(compiled) -> None:
    verify, single = (run(compiled(name)[1]).step_time_ps for name in ("verify", "batch 1"))
    assert verify <= 1.25 * single
