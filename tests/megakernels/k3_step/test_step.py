"""The whole K3 step in Pallas against the reference: meshes, batches, verify, both interpreter modes."""

import contextlib
import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from megakernels.k3.build import build_plan
from megakernels.k3.config import KIMI_K3
from megakernels.k3.step_plan import StepPlan
from profiler.record_child import sample_values

EAGER = {"dma": "eager", "detect_races": True}
CACHE_TILE = 32  # of the runs; the first position lies so that steps cross into the next tile

# The kernel rounds where the bfloat16 reference does, and its shares of sums as they travel: the two are
# about as far apart as the reference is from itself in float32 (0.4 % to 2 %; logits, in which few tokens
# decide, up to 5 %). Seeds are such that no token hangs by less.
TOLERANCE, LOGITS_TOLERANCE = 0.04, 0.08


def close(run: dict) -> None:
    assert run["cores_agree"]
    for ours, theirs in run["tokens"]:
        assert ours == theirs
    assert max(run["logits"]) < LOGITS_TOLERANCE
    for what in ("aux", "recurrent", "conv", "cache"):
        assert max(run[what]) < TOLERANCE, (what, run[what])


@pytest.mark.parametrize(
    ("sizes", "seed"),
    [({}, 0), ({"hosts": 2, "width_ranks": 2, "batch": 2}, 1)],
    ids=["one rank", "two hosts"],
)
def test_steps_equal_the_reference(simulated, sizes: dict, seed: int) -> None:
    first = CACHE_TILE - 3
    close(simulated("k3_step:steps", sizes=sizes, count=6, first_position=first, seed=seed).clean())


def test_without_races(simulated) -> None:
    close(simulated("k3_step:steps", sizes={"hosts": 2}, **EAGER).clean())


def test_verify_recovers_the_state_after_any_row(simulated) -> None:
    accepted = (1, 2, 3, 4, 5, 6, 7, 8)
    options = {"sizes": {"verify": True}, "first_position": 10, "seed": 3}
    close(simulated("k3_step:steps", count=8, accepted=accepted, **options).clean())


def test_hooks_change_no_number(simulated) -> None:
    runs = [simulated("k3_step:steps", sizes={}, level=level).clean() for level in ("off", "regions")]
    np.testing.assert_array_equal(runs[0]["values"], runs[1]["values"])


@pytest.mark.parametrize(
    "tensor",
    [
        "layers.1.mlp_res_proj.weight",
        "layers.3.self_attention_res_proj.weight",
        "layers.3.post_attention_layernorm.weight",
        "layers.1.block_sparse_moe.routed_expert_norm.weight",
        "layers.2.block_sparse_moe.routed_expert_up_proj.weight",
        "layers.4.block_sparse_moe.shared_experts.down_proj.weight",
        "layers.0.mlp.gate_proj.weight",
        "norm.weight",
    ],
)
def test_a_wrong_tensor_is_noticed(simulated, tensor: str) -> None:
    run = simulated("k3_step:steps", sizes={}, spoil=f"model.{tensor}").clean()
    assert max(run["logits"]) > 2 * LOGITS_TOLERANCE or max(run["aux"]) > 2 * TOLERANCE


@pytest.mark.parametrize("sizes", [{"batch": 2}, {"verify": True}], ids=str)
def test_a_recorded_step_is_a_typical_one(sizes: dict[str, Any]) -> None:
    config = dataclasses.replace(KIMI_K3, layers=2, aux_layers=(1,))
    built = build_plan(StepPlan(config, hosts=4, members=8, width_ranks=4, ring_depth=9, **sizes))
    values = sample_values(built.facts)
    assert sorted(values) == [0, 1, 2]
    for index, given in values.items():
        assert len(given) == math.prod(built.arguments[index].shape)
    tokens, positions, _ = values.values()
    assert len(set(tokens)) == len(tokens)
    assert min(positions) >= 400


def test_a_ring_in_which_the_kernel_would_wait_for_itself_is_refused() -> None:
    config = dataclasses.replace(KIMI_K3, layers=5, aux_layers=(1,))
    with pytest.raises(ValueError, match="8 tiles of moe_in and shared_out"):
        build_plan(StepPlan(config, hosts=4, members=8, width_ranks=4, ring_depth=8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({"hosts": 2, "members": 4, "width_ranks": 4, "batch": 8}, {"seed": 0}),
        ({"members": 8, "width_ranks": 2, "batch": 1}, {}),
        ({"hosts": 2, "members": 2, "width_ranks": 4, "batch": 4}, {"seed": 1, "dma": "eager"}),
        (
            {"hosts": 4, "members": 2, "width_ranks": 2, "verify": True},
            {"seed": 0, "count": 3, "accepted": (1, 8, 3)},
        ),
    ],
    ids=lambda given: " ".join(f"{name}={value}" for name, value in given.items()),
)
def test_more_ranks(simulated, sizes: dict, options: dict) -> None:
    options = {"count": 6, "first_position": 10, "timeout": 550} | options
    close(simulated("k3_step:steps", sizes=sizes, **options).clean())


@pytest.mark.slow
def test_32_ranks_of_four_hosts(simulated, monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=32")
    sizes = {"hosts": 4, "members": 8, "width_ranks": 4}
    with contextlib.closing(type(simulated)()) as of_32:
        close(of_32("k3_step:steps", sizes=sizes, count=2, timeout=550).clean())
