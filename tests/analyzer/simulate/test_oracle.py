"""Generated code against the plain interpreter: identical events, identical executed bundles."""

import pytest
from oracle import Oracle, events_of

from analyzer.simulate import Scenario
from analyzer.simulate.execute import Core

NAMES = ["nested_loops", "ring", "windows", "all_to_all", "data_dependent", "mlp"]


def compare(simulator, scenario, rank, cores_per_chip=2):
    compiled, words = simulator.compiled, simulator.words
    trace = Core(compiled, scenario, words, rank, cores_per_chip).run().trace
    oracle = Oracle(compiled, words, scenario, rank, cores_per_chip)
    expected = oracle.run()
    assert events_of(compiled, trace) == expected
    blocks = compiled.program.blocks
    assert sum(blocks[b].end - blocks[b].start for b in trace if isinstance(b, int)) == oracle.executed
    return expected


@pytest.mark.parametrize("name", NAMES)
def test_generated_code_makes_the_events_of_the_interpreter(kernel, name):
    one = kernel(name)
    events = compare(one.simulator, one.scenario, rank=0)
    assert events
    if name in ("all_to_all", "mlp"):
        other = compare(one.simulator, one.scenario, rank=5)
        assert other != events, "another core sends to other peers"


def test_public_v6e_dump(v6e_matmul):
    events = compare(v6e_matmul, Scenario(), rank=0, cores_per_chip=1)
    assert sum(e[0] == "DMA" for e in events) == 40
