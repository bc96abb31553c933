"""A scenario recorded in interpret mode makes the simulator run what the interpreter ran."""

import subprocess
import sys
from pathlib import Path

import k3_kernels
import pytest
from conftest import line_of

from analyzer.machine import load_machine
from analyzer.simulate.scenario_file import read_scenario

HERE = Path(__file__).parent
TPU7X = load_machine("tpu7x")


@pytest.fixture
def recorded(tmp_path):
    def run(function, module):
        out = tmp_path / "seen.toml"
        command = [sys.executable, HERE / "record_run.py", function, HERE / module, out]
        subprocess.run(command, check=True, timeout=300, cwd=HERE.parents[2])
        return read_scenario(out)

    return run


def test_arguments_and_decided_values(kernel, recorded):
    """Three rows, of which an operand names one each, and the position of a vector's maximum the others."""
    seen = recorded("data_dependent", "kernels.py")
    assert seen.common.scalars == {0: 3}
    assert seen.common.smem == {1: list(range(7, 23))}
    assert seen.common.pops == {line_of("jnp.argmax"): [5]}
    one = kernel("data_dependent")
    result = one.simulator.simulate(TPU7X, seen.common)
    assert result.operand_bytes == one.run(TPU7X).operand_bytes
    assert result.scenario.name == "data_dependent, recorded"
    assert all(value.given for value in result.scenario.assumed)
    assert result.scenario.assumed_branches == ()


@pytest.mark.slow
def test_routing_of_every_core(recorded, tmp_path):
    """K3's experts: counts and experts of each group, in order, as the routing says."""
    seen = recorded("recorded_experts", "k3_kernels.py")
    file = tmp_path / "routing.toml"
    file.write_text(k3_kernels.scenario())
    made = read_scenario(file)
    assert {rank: core.pops for rank, core in seen.cores.items()} == {
        rank: core.pops for rank, core in made.cores.items()
    }
    assert len(seen.cores) == k3_kernels.EXPERTS.cores
