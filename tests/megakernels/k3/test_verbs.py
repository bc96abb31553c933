"""The verbs `route`, `weights` and `run` as they are for K3, called as functions."""

import json
import tomllib
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from analyzer.errors import InputError, UsageError
from megakernels.cli import run_verb, weights_verb
from megakernels.common.weight_files import SCHEMA_VERSION
from megakernels.k3 import reference, weights
from megakernels.k3.checkpoint import write_checkpoint
from megakernels.k3.config import TINY
from megakernels.k3.parameters import random_tensor
from megakernels.k3.route_cli import route_verb
from megakernels.k3.routing import load


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


def test_the_reference_is_recorded(tmp_path, monkeypatch) -> None:
    """The rows are the last of the prompt, the weights those asked for; a stand-in says which both are."""

    def forward(config: Any, weights: Any, state: Any, tokens: Any, positions: Any) -> Any:
        moe = jnp.arange(config.moe_layers)[:, None, None, None]
        first = jnp.round(jnp.abs(weights["lm_head.weight"][0, 0]).astype(jnp.float32) * 64).astype(jnp.int32)
        chosen = tokens[None, :, :, None] + first + moe + jnp.arange(config.active_experts)
        return reference.Output(None, None, chosen % config.experts), None

    monkeypatch.setattr(reference, "forward", forward)
    write_checkpoint(tmp_path / "tiny", TINY, 7)
    made, read = tmp_path / "made.json", tmp_path / "read.json"
    options = {"from_reference": True, "rows": 3, "prompt": "abcdXY"}
    route_verb("k3", output=made, model="k3-tiny", seed=7, **options)
    route_verb("k3", output=read, checkpoint=tmp_path / "tiny", **options)
    head = random_tensor("lm_head.weight", (TINY.vocab, TINY.hidden), 7)[0, 0]
    first = round(float(np.abs(head.astype(ml_dtypes.bfloat16))) * 64)
    tokens = np.asarray([token % TINY.vocab for token in b"dXY"])
    chosen = np.arange(TINY.moe_layers)[:, None, None] + tokens[:, None] + first + np.arange(3)
    np.testing.assert_array_equal(load(made).chosen, chosen % TINY.experts)
    np.testing.assert_array_equal(load(read).chosen, load(made).chosen)
    assert load(read).source == "reference, weights tiny, last 3 of a prompt"
    assert load(made).source == "reference, weights random, seed 7, last 3 of a prompt"


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


def test_a_routing_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        route_verb("k3", output=tmp_path / "f" / "r.json", random=1)


def test_weights_of_some_ranks(tmp_path, capsys) -> None:
    weights_verb("k3", to=tmp_path / "w", random=1, cores=4, hosts=2, ranks="2-3", check=True)
    assert "files for 4 cores" in capsys.readouterr().out
    _, layout, arrays = weights.open_weights(tmp_path / "w")
    assert (layout["hosts"], layout["members"]) == (2, 2)
    assert {name[:5] for name in arrays} == {"core2", "core3", "embed", "const"}
    with pytest.raises(InputError, match="is there already"):
        weights_verb("k3", to=tmp_path / "w", random=1, cores=4, hosts=2, ranks="2-3")
    for options, said in (
        ({"fp8": True}, "means nothing for k3"),
        ({"ranks": "9"}, "0 to 7. See `megascope weights --help`"),
    ):
        with pytest.raises(UsageError, match=said):
            weights_verb("k3", to=tmp_path / "x", random=1, **options)


@pytest.mark.parametrize(
    ("kernel", "options", "said"),
    [
        ("k3", {"prompt": ["a", "b"], "speculate": True}, "one prompt at a time"),
        ("k3", {"top_p": 2.0}, "top_p above 0"),
        ("k3", {"tokens": 0}, "at least one token"),
        ("k3", {"processes": 2}, "need --coordinator"),
        ("k3", {"record": Path("x")}, "megascope record k3"),
        ("k3", {"weights": Path("/nonexistent")}, "megascope weights k3"),
        ("qwen", {"top_p": 0.5}, "continues one prompt, greedily"),
        ("qwen", {"seed": 1}, "continues one prompt, greedily"),
        ("qwen", {"per_call": 8}, "continues one prompt, greedily"),
        ("qwen", {"stop": 0}, "continues one prompt, greedily"),
        ("qwen", {"process": 0}, "continues one prompt, greedily"),
        ("mlp", {}, "Kernels: qwen, k3"),
    ],
)
def test_what_cannot_be_run(kernel, options, said) -> None:
    with pytest.raises((UsageError, InputError), match=said):
        run_verb(kernel, **options)


def test_weights_of_another_kernel_are_not_run(tmp_path) -> None:
    manifest = {"schema_version": SCHEMA_VERSION, "files": {}, "layout": {"cores": 1}}
    (tmp_path / "weights.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="weights of another kernel"):
        run_verb("k3", weights=tmp_path)
