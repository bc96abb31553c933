"""Scenario values from a command line."""

import pytest

from analyzer.errors import UsageError
from analyzer.options import merged, scenario_of
from analyzer.simulate.scenario import Scenario


def test_none_is_none():
    assert scenario_of({}) is None


def test_every_kind_of_value():
    scenario = scenario_of(
        {
            "default": "0x10",
            "devices": "4",
            "scalars.3": "-7",
            "smem.1": "1,2,3",
            "smem.2": "9",
            "pops.k.py:30": "5,6",
            "words.#allocation12": "2",
        }
    )
    assert scenario is not None
    assert (scenario.default, scenario.devices) == (16, 4)
    assert scenario.scalars == {3: -7}
    assert scenario.smem == {1: [1, 2, 3], 2: 9}
    assert scenario.pops == {"k.py:30": [5, 6]}
    assert scenario.words == {"#allocation12": 2}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("colour", "1", "no such scenario value"),
        ("pops.", "1", "no such scenario value"),
        ("default", "x", "not an integer"),
        ("scalars.x", "1", "not an integer"),
        ("scalars.1", "1,2", "one value is expected"),
        ("pops.k.py:3", "", "not an integer"),
    ],
)
def test_what_is_wrong_is_said(name, value, words):
    with pytest.raises(UsageError, match=words):
        scenario_of({name: value})


def test_given_values_go_over_the_kernels_own():
    base = Scenario(name="decode", smem={0: 5, 1: 6}, pops={"a.py:1": 1}, default=3)
    given = scenario_of({"smem.1": "8", "pops.b.py:2": "4"})
    result = merged(base, given)
    assert result.name == "decode, changed by --set"
    assert result.smem == {0: 5, 1: 8}
    assert result.pops == {"a.py:1": 1, "b.py:2": 4}
    assert result.default == 3
    assert merged(base, None) is base
