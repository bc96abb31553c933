import json
import os
import subprocess
import sys

import pytest

from analyzer.errors import InputError, UsageError
from analyzer.machine import known_chips, load_machine
from analyzer.machine.record_peaks import CHIPS

PROGRAM = """
import json
from analyzer.machine.record_peaks import CHIPS, jax_peaks
print(json.dumps({chip: jax_peaks(version) for chip, version in CHIPS.items()}))
"""


def test_peaks_are_those_of_jax():
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=120,
    )
    stated = json.loads(done.stdout.splitlines()[-1])
    assert set(stated) == set(CHIPS) == set(known_chips())
    for chip, peaks in stated.items():
        peaks.pop("source")
        recorded = load_machine(chip).peaks
        assert {name: getattr(recorded, name) for name in peaks} == peaks, chip


@pytest.mark.parametrize("chip", known_chips())
def test_every_parameter_states_its_source(chip):
    machine = load_machine(chip)
    assert set(machine.parameters) == set(load_machine("tpu7x").parameters)
    assert all(p.source and p.unit and p.kind for p in machine.parameters.values())
    assert machine["hbm.bandwidth"] <= machine.peaks.hbm_bytes_per_s


def test_overrides_multiply_divide_and_set():
    machine = load_machine("tpu7x")
    changed = machine.with_overrides({"hbm.bandwidth": "x2", "mxu.push": "/2", "ici.latency": 0})
    assert changed["hbm.bandwidth"] == 2 * machine["hbm.bandwidth"]
    assert changed["mxu.push"] == machine["mxu.push"] / 2
    assert changed["ici.link.latency"] == changed["ici.sibling.latency"] == changed["ici.hop.latency"] == 0
    assert changed.parameters["hbm.bandwidth"].overridden == machine["hbm.bandwidth"]
    assert machine["ici.link.latency"] > 0


@pytest.mark.parametrize(
    "bad",
    [
        {"hbm.colour": 1},
        *({"hbm.bandwidth": value} for value in ("fast", -1, "inf", "x1e400", "nan", "x0", 0, "/inf")),
        {"issue.clock": "x0"},
        {"ici.bandwidth": 0},
    ],
)
def test_bad_override_is_a_usage_error(bad):
    with pytest.raises(UsageError):
        load_machine("tpu7x").with_overrides(bad)


def test_unknown_chip_names_the_known_ones():
    with pytest.raises(UsageError, match="tpu7x"):
        load_machine("v9")
    assert load_machine("TPU7x") == load_machine("tpu7x")


def test_broken_machine_file_is_an_input_error(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('chip = "x"\n')
    with pytest.raises(InputError, match="lacks"):
        load_machine("x", path)
