import pytest

from analyzer.errors import InputError
from analyzer.machine import load_machine
from analyzer.simulate import Scenario
from analyzer.simulate.scenario import Draw, sequence_of
from analyzer.simulate.scenario_file import read_scenario

TPU7X = load_machine("tpu7x")
TEXT = """
name = "three layers"
default = 1
[scalars]
0 = 3
[smem]
1 = [4, 5, 6]
[pops]
"kernels.py:PLACE" = { low = 10, high = 20, seed = 7 }
[cores.1]
delay_us = 2.5
[cores.1.scalars]
0 = 2
"""


def take(count, values, place="k.py:1"):
    sequence = sequence_of(values, place, 0)
    return [next(sequence) for _ in range(count)]


def test_values_in_turn():
    assert take(3, 5) == [5, 5, 5]
    assert take(5, [1, 2]) == [1, 2, 1, 2, 1]
    assert take(2, []) == [0, 0]


def test_draws_repeat_per_seed_and_place():
    draw = Draw(low=0, high=895, seed=1)
    assert take(50, draw) == take(50, draw)
    assert take(50, draw) != take(50, draw, "k.py:2")
    assert take(50, draw) != take(50, Draw(low=0, high=895, seed=2))
    assert all(0 <= v <= 895 for v in take(1000, draw))
    assert set(take(100, Draw(choices=(1, 4)))) == {1, 4}


def test_file_gives_values_to_every_core(kernel, tmp_path):
    one = kernel("data_dependent")
    place = next(iter(one.scenario.pops))
    path = tmp_path / "s.toml"
    path.write_text(TEXT.replace("kernels.py:PLACE", place))
    read = read_scenario(path)
    assert read.common.name == "three layers"
    assert read.delays_ps == {1: 2.5e6}
    assert read.cores[1].scalars == {0: 2}
    assert read.cores[1].pops == read.common.pops
    result = one.simulator.simulate(TPU7X, read.common, one.manifest)
    assert result.scenario.name == "three layers"
    assert result.operand_bytes[2] == (6 * 8 * 512 * 4, 0)
    pop = next(a for a in result.scenario.assumed if a.what == "vector to scalar pop")
    assert pop.given
    assert all(10 <= v <= 20 for v in pop.values)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x = 1", "'x' is no scenario entry"),
        ("[scalars]\n0 = true", "scalars.0 = True"),
        ("[pops]\nk = { low = 5, high = 1 }", "pops.k is no distribution"),
        ("[pops]\nk = { lo = 5 }", "pops.k is no distribution"),
        ("scalars = 3", "scalars is not a table"),
        ("[cores.x]\ndelay_us = 1", r"\[cores.x\] is no core"),
        ("[cores.1]\ndelay_us = -1", "delay_us = -1"),
        ("not toml", "not a readable scenario"),
    ],
)
def test_what_is_no_scenario_is_named(tmp_path, text, named):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=named):
        read_scenario(path)


def test_kernel_can_bring_its_own_scenario(kernel):
    """A capture's facts hold the values a kernel knows; a given scenario goes before them."""
    one = kernel("data_dependent")
    facts = one.manifest | {"scenario": {"name": "from the kernel", "scalars": {"0": 2}}}
    result = one.simulator.simulate(TPU7X, None, facts)
    assert result.scenario.name == "from the kernel"
    assert result.operand_bytes[2][0] == 4 * 8 * 512 * 4
    assert one.simulator.simulate(TPU7X, Scenario(), facts).scenario.name == "default"


def test_a_count_that_the_program_reads_as_a_float(kernel):
    """The sum is a float32; the scenario says 5 and means five rows."""
    from conftest import line_of

    one = kernel("counted")
    row = 8 * 512 * 4
    place = line_of("count = decided(jnp.sum")
    for given, rows in ((5, 5), (5.0, 5), (0, 0)):
        result = one.simulator.simulate(TPU7X, Scenario(pops={place: given}), one.manifest)
        assert result.operand_bytes[1] == (rows * row, 0)
        assert [a.values for a in result.scenario.assumed] == [[given]]
