"""The verbs `route` and `weights` as they are for K3, called as functions."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from analyzer.errors import InputError, UsageError
from megakernels.cli import weights_verb
from megakernels.k3 import weights
from megakernels.k3.checkpoint import write_checkpoint
from megakernels.k3.config import TINY
from megakernels.k3.route_cli import route_verb
from megakernels.k3.routing import load, uniform


def test_a_random_routing_and_its_scenario(tmp_path, capsys) -> None:
    route_verb(
        "k3", output=tmp_path / "r.json", random=3, rows=2, model="k3-small", cores=4, scenario=tmp_path / "s"
    )
    routing = load(tmp_path / "r.json")
    assert routing.chosen.shape == (5, 2, 4)
    assert "k3-small, 2 rows" in capsys.readouterr().out
    scenario = tomllib.loads((tmp_path / "s").read_text())
    assert scenario["devices"] == len(scenario["cores"]) == 4
    counts = [next(iter(scenario["cores"][str(core)]["pops"].values())) for core in range(4)]
    assert sum(len(c) for c in counts) == 4 * 5


def test_the_reference_is_recorded(tmp_path) -> None:
    write_checkpoint(tmp_path / "tiny", TINY, 7)
    made, read = tmp_path / "made.json", tmp_path / "read.json"
    options = {"from_reference": True, "rows": 3, "prompt": "abcdef"}
    route_verb("k3", output=made, model="k3-tiny", seed=7, **options)
    route_verb("k3", output=read, checkpoint=tmp_path / "tiny", **options)
    assert load(made).chosen.shape == (TINY.moe_layers, 3, TINY.active_experts)
    np.testing.assert_array_equal(load(made).chosen, load(read).chosen)
    assert (load(made).chosen != uniform(TINY, 3, 7).chosen).any()
    assert load(read).source == "reference, weights tiny, last 3 of a prompt"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Give --random SEED or --from-reference"),
        ({"random": 1, "from_reference": True}, "one source"),
        ({"random": 1, "rows": 9}, "1 to 8 rows"),
        ({"random": 1, "model": "k4"}, "Models: kimi-k3"),
        ({"random": 1, "checkpoint": "x"}, "needs --from-reference"),
        ({"from_reference": True, "model": "k3-tiny", "prompt": "", "rows": 1}, "0 bytes for 1 rows"),
        ({"from_reference": True, "checkpoint": "/nonexistent"}, "no config.json"),
        ({"random": 1, "scenario": "s.toml", "cores": 7}, "Choose other --cores"),
    ],
)
def test_faults_of_the_user(tmp_path, options, said) -> None:
    paths = {name: Path(options[name]) for name in ("checkpoint", "scenario") if name in options}
    with pytest.raises((UsageError, InputError), match=said):
        route_verb("k3", output=tmp_path / "r.json", **{**options, **paths})
    assert not (tmp_path / "r.json").exists()


def test_weights_of_some_ranks(tmp_path, capsys) -> None:
    weights_verb("k3", to=tmp_path / "w", random=1, cores=4, hosts=2, ranks="2-3", check=True)
    assert "files for 4 cores" in capsys.readouterr().out
    _, layout, arrays = weights.open_weights(tmp_path / "w")
    assert (layout["hosts"], layout["members"]) == (2, 2)
    assert {name[:5] for name in arrays} == {"core2", "core3", "embed", "const"}
    with pytest.raises(InputError, match="is there already"):
        weights_verb("k3", to=tmp_path / "w", random=1, cores=4, hosts=2, ranks="2-3")
    for options, said in (({"fp8": True}, "means nothing for k3"), ({"ranks": "9"}, "0 to 7")):
        with pytest.raises(UsageError, match=said):
            weights_verb("k3", to=tmp_path / "x", random=1, **options)
