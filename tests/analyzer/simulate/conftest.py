"""Captures of small kernels, and simulators made from them once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from analyzer.capture import open_capture
from analyzer.llo.reader import read_program
from analyzer.simulate import Scenario, Simulator

KERNELS = Path(__file__).with_name("kernels.py")
SHARED = Path(__file__).parents[3] / "../shared/data"


def line_of(text):
    """`kernels.py:<line>` of the line that holds `text`."""
    lines = KERNELS.read_text().splitlines()
    return f"kernels.py:{next(n for n, line in enumerate(lines, 1) if text in line)}"


SCENARIOS = {
    "data_dependent": Scenario(
        name="three rows", scalars={0: 3}, smem={1: list(range(7, 23))}, pops={line_of("jnp.argmax"): 5}
    )
}


class Kernel:
    """One compiled kernel: its program, simulator, manifest and scenario."""

    def __init__(self, name, capture):
        self.name = name
        opened = open_capture(capture)
        self.manifest = opened.manifest
        self.program = read_program(opened.kernel_program().bundles)
        self.simulator = Simulator(self.program)
        self.scenario = SCENARIOS.get(name, Scenario())

    def run(self, machine, **options):
        return self.simulator.simulate(machine, self.scenario, self.manifest, **options)


@pytest.fixture(scope="session")
def kernel(compiled):
    """Name of a kernel of kernels.py, or "mlp" at a small size -> Kernel."""
    made = {}

    def get(name, *options, level="regions"):
        key = (name, options, level)
        if key not in made:
            if name == "mlp":
                small = ("hidden=1024", "ffn=4096", "layers=3", "block=128", "ring_depth=4")
                made[key] = Kernel(name, compiled(*(options or small)))
            else:
                made[key] = Kernel(name, compiled(*options, target=f"{KERNELS}:{name}"))
        return made[key]

    return get


@pytest.fixture(scope="session")
def v6e_matmul():
    """The simulator of the public v6e matmul dump."""
    folder = SHARED / "v6e-matmul/dump"
    files = [f for f in folder.glob("*-final_bundles.txt") if "schedule" not in f.name]
    if not files:
        pytest.skip(f"{folder} is not there: no dump with measured times to compare with")
    return Simulator(read_program(files[0]))
