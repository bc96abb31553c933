"""The whole K3 step in Pallas against the reference: meshes, batches, verify, both interpreter modes."""

import contextlib

import numpy as np
import pytest

EAGER = {"dma": "eager", "detect_races": True}
CACHE_TILE = 32  # of the runs; the first position lies so that steps cross into the next tile

# The kernel rounds where the bfloat16 reference does, and its shares of sums as they travel: the two are
# about as far apart as the reference is from itself in float32 (measured 0.5 % to 3 %).
TOLERANCE = 0.04


def close(run: dict) -> None:
    assert run["cores_agree"]
    for ours, theirs in run["tokens"]:
        assert ours == theirs
    for what in ("logits", "aux", "recurrent", "conv", "cache"):
        assert max(run[what]) < TOLERANCE, (what, run[what])


@pytest.mark.parametrize(
    "sizes", [{}, {"hosts": 2, "width_ranks": 2, "batch": 2}], ids=["one rank", "two hosts"]
)
def test_steps_equal_the_reference(simulated, sizes: dict) -> None:
    close(simulated("k3_step:steps", sizes=sizes, count=6, first_position=CACHE_TILE - 3).clean())


def test_without_races(simulated) -> None:
    close(simulated("k3_step:steps", sizes={"hosts": 2}, **EAGER).clean())


def test_verify_recovers_the_state_after_any_row(simulated) -> None:
    accepted = (1, 2, 3, 4, 5, 6, 7, 8)
    run = simulated("k3_step:steps", sizes={"verify": True}, count=8, first_position=10, accepted=accepted)
    close(run.clean())


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
    assert max(run["logits"] + run["aux"]) > 2 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [
        {"hosts": 2, "members": 4, "width_ranks": 4, "batch": 8},
        {"members": 8, "width_ranks": 2, "batch": 1},
        {"hosts": 2, "members": 2, "width_ranks": 4, "batch": 4},
        {"hosts": 4, "members": 2, "width_ranks": 2, "verify": True},
    ],
    ids=lambda sizes: " ".join(f"{name}={value}" for name, value in sizes.items()),
)
def test_more_ranks(simulated, sizes: dict) -> None:
    accepted = (1, 8, 3, 5, 2, 4)
    count = 3 if sizes.get("verify") else 6
    run = simulated("k3_step:steps", sizes=sizes, count=count, first_position=10, accepted=accepted, timeout=900)
    close(run.clean())


@pytest.mark.slow
def test_32_ranks_of_four_hosts(simulated, monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=32")
    sizes = {"hosts": 4, "members": 8, "width_ranks": 4}
    with contextlib.closing(type(simulated)()) as of_32:
        close(of_32("k3_step:steps", sizes=sizes, count=2, timeout=900).clean())
