"""The real model compiled for 32 cores, and its step executed from the bundles: bytes, VMEM, time."""

import dataclasses
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from analyzer.analysis import analyze
from analyzer.capture import open_capture
from analyzer.llo.reader import read_program
from analyzer.machine import load_machine
from analyzer.simulate import simulate
from analyzer.simulate.simulator import as_scenario
from megakernels.k3.config import KIMI_K3
from megakernels.k3.step_plan import StepPlan
from megakernels.k3.vmem_plan import uses
from profiler.compile import CompileRequest, compile_kernel
from profiler.topology import parse_topology

pytestmark = pytest.mark.slow

VARIANTS: dict[str, dict[str, Any]] = {
    "batch 1": {},
    "batch 2": {"batch": 2},
    "batch 4": {"batch": 4},
    "batch 8": {"batch": 8},
    "verify": {"verify": True},
}
LOCAL_EXPERTS = 2  # of a rank and layer at batch 1, as if the router were even
ROOT = Path(__file__).parents[3]
HOT = 100  # executions of a loop in a step, from which on a spill in it counts


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("k3")

    @cache
    def get(variant: str) -> tuple[dict[str, Any], Path]:
        path = folder / variant.replace(" ", "-")
        request = CompileRequest(
            target="k3",
            topology=parse_topology("tpu7x:2x2x4", None),
            level="off",
            options=VARIANTS[variant],
        )
        return compile_kernel(request, path), path

    return get


def step_plan() -> StepPlan:
    return StepPlan(KIMI_K3, hosts=4, members=8, width_ranks=4)


@cache
def program_of(path: Path) -> Any:
    return read_program(open_capture(path).kernel_program().bundles)


@cache
def run(path: Path) -> Any:
    """The step in the scenario of its facts."""
    manifest = open_capture(path).manifest
    scenario = as_scenario(manifest["facts"]["scenario"])
    return simulate(program_of(path), load_machine("tpu7x"), scenario=scenario, facts=manifest)


@pytest.mark.parametrize("variant", VARIANTS)
def test_compiles_in_time_and_fits(compiled, variant) -> None:
    manifest, path = compiled(variant)
    assert manifest["seconds"]["total"] < 90
    assert manifest["facts"]["vmem_bytes"] <= 64 << 20
    assert "BoundsCheck" not in open_capture(path).kernel_program().bundles.read_text()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_weight_is_read_once(compiled, variant) -> None:
    manifest, path = compiled(variant)
    moved, facts = dict(run(path).operand_bytes), manifest["facts"]
    for operand in facts["operands"]:
        if operand["kind"] == "input" and operand["name"] in facts["weight_bytes"]:
            assert moved[operand["index"]] == (operand["read_bytes"], 0), operand["name"]
    for name in ("expert_up", "expert_up_scale", "expert_down", "expert_down_scale"):
        operand = next(o for o in facts["operands"] if o["name"] == name)
        assert moved[operand["index"]] == (operand["read_bytes"], 0), name


def test_bytes_of_a_rank_with_two_experts_per_layer(compiled) -> None:
    manifest, path = compiled("batch 1")
    facts = manifest["facts"]
    experts = {"expert_up", "expert_up_scale", "expert_down", "expert_down_scale"}
    by_name = {o["index"]: o["name"] for o in facts["operands"]}
    moved = run(path).operand_bytes
    others = sum(read for index, (read, _) in moved.items() if by_name.get(index) not in experts)
    both = LOCAL_EXPERTS * facts["expert_bytes"] * facts["expert_layers"]
    assert others + both <= 7.0e9


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_vector_register_is_spilled_in_a_loop_over_tiles(compiled, variant) -> None:
    """Loops over tiles are those that start copies of weights and push; see docs/kernels/k3.md for others."""
    _, path = compiled(variant)
    program, executed = program_of(path), run(path).executed
    spills = [i for i in program.spills if "[vmem:" in program.text(i)]
    assert spills  # elsewhere there are some: the test can see them
    pushes = program.find(lambda opcode: opcode.startswith("vmatpush"))
    inner = [loop for loop in program.loops if loop.depth == 2 and executed[loop.start] > HOT]
    per_loop = {loop.start: [i for i in spills if _inside(program, i, loop)] for loop in inner}
    tiles = [loop for loop in inner if any(_inside(program, i, loop) for i in pushes)]
    assert len(tiles) >= 4
    for loop in tiles:
        # A product of a tile takes 600 to 900 bundles, attention to one of the cache 300, an expert 2,000.
        if 500 < loop.end - loop.start < 1200:
            assert len(per_loop[loop.start]) <= 2, hex(loop.start)


def _inside(program: Any, index: int, loop: Any) -> bool:
    return bool(loop.start <= program.instruction_bundle[index] <= loop.end)


def test_the_ring_is_filled_as_planned(compiled) -> None:
    manifest, path = compiled("batch 1")
    names = {o["index"]: o["name"] for o in manifest["facts"]["operands"]}
    copies = run(path).timeline.sort_values("issued_ps", kind="stable")
    plan = dataclasses.replace(step_plan(), ring_depth=manifest["facts"]["ring_depth"])
    planned = [use.matrix for use in uses(plan)]
    matrices = set(planned)
    made = [names.get(operand) for operand in copies["operand"].dropna().astype(int)]
    assert [name for name in made if name in matrices] == planned


def test_waits_for_hbm_are_a_small_part_of_the_step(compiled) -> None:
    report = analyze(compiled("batch 1")[1], use_cache=False).report
    assert report["time"]["stalled_dma_ps"] <= 0.05 * report["time"]["window_ps"]
    # Five exposed collectives in a layer: the mixer's sum in two hops, the experts' in two, the output's
    # gather; MLA layers have one more, the gather of their latents.
    layers, mla_layers = 93, 24
    assert report["ici"]["exposed_phases"] <= 5 * layers + mla_layers + 5


@pytest.mark.parametrize(("variant", "most_ps"), [("batch 1", 3.35e9), ("batch 8", 6.9e9)])
def test_modelled_step(compiled, variant, most_ps) -> None:
    assert run(compiled(variant)[1]).step_time_ps <= most_ps


def test_the_decode_loop_compiles_for_the_whole_slice() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.megakernels.k3_step.compile_loop"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    memory = json.loads(done.stdout.splitlines()[-1])
    assert memory["arguments"] == pytest.approx(54.2e9, rel=0.01)
    # The state is donated; XLA keeps one more copy of it (docs/kernels/k3.md), and nothing else.
    assert 0 < memory["aliased"] < memory["temporary"] < 1.1 * memory["aliased"]
