"""The step's operands: every weight is where the plan says, on as many ranks as it should be, else zeros."""

import dataclasses

import numpy as np
import pytest

from megakernels.common.gemv import unstack_columns
from megakernels.k3.config import KIMI_K3, SMALL, K3Config
from megakernels.k3.experts_build import pack_expert
from megakernels.k3.parameters import random_parameters
from megakernels.k3.plan import Matrix
from megakernels.k3.step_pack import bits, gated_rows, group_experts, operands, pack_all, values_of
from megakernels.k3.step_plan import NO_EXPERT, Gated, StepPlan

# Few layers of every kind, and sizes that leave half blocks, padding and members without work: 3 blocks of
# the latent and 6 of the hidden state over up to 4 members, 24 + 24 columns of the shared expert on a rank.
CONFIG = dataclasses.replace(
    SMALL,
    name="k3-pack",
    layers=4,
    hidden=768,
    vocab=512,
    heads=4,
    experts=8,
    active_experts=2,
    latent=768,
    expert_width=256,
    shared_width=192,
    dense_width=832,
    aux_layers=(1,),
)
PLANS = [StepPlan(CONFIG), StepPlan(CONFIG, members=2), StepPlan(CONFIG, hosts=2, members=2)]


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    return random_parameters(CONFIG, 4)


@pytest.fixture(scope="module", params=PLANS, ids=lambda p: f"{p.hosts}x{p.members}")
def packed(request, stored) -> tuple[StepPlan, dict[str, np.ndarray]]:
    return request.param, pack_all(request.param, stored)


def matrix_of(matrix: Matrix, tiles: np.ndarray) -> np.ndarray:
    """Tiles back to `[k, n]`, float32."""
    return np.concatenate([unstack_columns(t, matrix.k) for t in tiles], axis=1).astype(np.float32)


def blocks_of(matrix: Matrix, tiles: np.ndarray) -> np.ndarray:
    """Tiles to column blocks `[n / 128, k, 128]`."""
    return matrix_of(matrix, tiles).reshape(matrix.k, -1, 128).swapaxes(0, 1)


def gated(shape: Gated, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gate and up, as rows of `[width, k]`, from the blocks of a gated FFN's first matrix."""
    pairs = blocks[: 2 * shape.pairs]
    halves = blocks[2 * shape.pairs : shape.blocks]
    gate = [b.T for b in pairs[0::2]] + [b.T[:64] for b in halves]
    up = [b.T for b in pairs[1::2]] + [b.T[64:] for b in halves]
    return np.concatenate(gate)[: shape.width], np.concatenate(up)[: shape.width]


def test_shapes_and_dtypes(packed) -> None:
    plan, arrays = packed
    c = CONFIG
    wide = {m.name: m for m in (*plan.kda.matrices, *plan.mla.matrices)}
    wide |= {n: getattr(plan, n) for n in ("dense_in", "dense_out", "moe_in", "shared_out", "latent_up")}
    layers = {o.name: len(o.layers) for o in operands(plan)}
    for name, matrix in wide.items():
        assert arrays[name].shape == (plan.cores, layers[name], matrix.tiles, matrix.rows, 128), name
        assert arrays[name].dtype.name == "bfloat16", name
    assert layers["mixer_out"] == c.layers
    assert arrays["lm_head"].shape[:2] == (plan.cores, plan.lm_head.tiles)
    assert arrays["embedding"].shape == (c.vocab, plan.embedding_rows, c.hidden // plan.embedding_rows)
    assert arrays["constants"].shape == (c.layers + 1, 1, plan.constants_width)
    assert arrays["kda_constants"].shape == (plan.cores, c.kda_layers, 1, plan.kda.constants_width)
    assert arrays["mla_constants"].shape == (plan.cores, c.mla_layers, 1, plan.mla.constants_width)
    assert arrays["to_values"].shape == (plan.cores, c.mla_layers, plan.mla.heads, c.kv_rank, 128)
    assert arrays["decay_out"].shape == (plan.cores, c.kda_layers, 128, plan.kda.gated_width)
    for name, shape in plan.experts.shapes.items():
        assert arrays[name].shape == (plan.cores, c.moe_layers, plan.experts.experts, *shape)
        assert arrays[name].dtype == np.int32
    assert {n for n, a in arrays.items() if a.dtype == np.float32} == {
        "constants",
        "kda_constants",
        "mla_constants",
    }


def test_moe_in_holds_latent_router_and_shared_expert(packed, stored) -> None:
    plan, arrays = packed
    for place, layer in enumerate(range(1, CONFIG.layers)):
        prefix = f"model.layers.{layer}.block_sparse_moe."
        latent, gates, ups = {}, [], []
        for rank in range(plan.cores):
            blocks = blocks_of(plan.moe_in, arrays["moe_in"][rank, place])
            host, member = divmod(rank, plan.members)
            latent[host, member] = np.concatenate([b.T for b in blocks[: plan.latent.own]])
            at = plan.latent.own
            router = np.concatenate([b.T for b in blocks[at : at + plan.router_blocks]])
            np.testing.assert_array_equal(router[: CONFIG.experts], stored[f"{prefix}gate.weight"])
            assert not router[CONFIG.experts :].any()
            at += plan.router_blocks
            gate, up = gated(plan.shared, blocks[at:])
            gates.append(gate)
            ups.append(up)
            assert not blocks[at + plan.shared.blocks :].any()
        for host in range(plan.hosts):
            whole = np.concatenate([latent[host, m] for m in range(plan.members)])
            np.testing.assert_array_equal(
                whole[: CONFIG.latent], stored[f"{prefix}routed_expert_down_proj.weight"]
            )
            assert not whole[CONFIG.latent :].any()
        for name, rows in (("gate", gates), ("up", ups)):
            np.testing.assert_array_equal(
                np.concatenate(rows), stored[f"{prefix}shared_experts.{name}_proj.weight"]
            )


def test_down_projections_stand_in_the_order_of_the_gate(packed, stored) -> None:
    """What follows a gated FFN sees its activations where its gate and up left them."""
    plan, arrays = packed
    for name, shape, place, tensor in (
        ("shared_out", plan.shared, 1, "model.layers.2.block_sparse_moe.shared_experts.down_proj.weight"),
        ("dense_out", plan.dense, 0, "model.layers.0.mlp.down_proj.weight"),
    ):
        matrix = getattr(plan, name)
        rows = [matrix_of(matrix, arrays[name][rank, place]) for rank in range(plan.cores)]
        assert all(not r[shape.width :].any() for r in rows)
        whole = np.concatenate([r[: shape.width] for r in rows])
        np.testing.assert_array_equal(whole.T, stored[tensor])


def test_dense_in_and_latent_up(packed, stored) -> None:
    plan, arrays = packed
    halves = [
        gated(plan.dense, blocks_of(plan.dense_in, arrays["dense_in"][r, 0])) for r in range(plan.cores)
    ]
    for part, name in enumerate(("gate", "up")):
        whole = np.concatenate([half[part] for half in halves])
        np.testing.assert_array_equal(whole, stored[f"model.layers.0.mlp.{name}_proj.weight"])
    for host in range(plan.hosts):
        columns = []
        for member in range(plan.members):
            matrix = matrix_of(plan.latent_up, arrays["latent_up"][host * plan.members + member, 2])
            assert not matrix[:, plan.hidden.own * 128 :].any()
            columns.append(matrix[:, : plan.hidden.own * 128])
        whole = np.concatenate(columns, axis=1).T
        assert not whole[CONFIG.hidden :].any()
        name = "model.layers.3.block_sparse_moe.routed_expert_up_proj.weight"
        np.testing.assert_array_equal(whole[: CONFIG.hidden], stored[name])


def test_mixers_embedding_and_head(packed, stored) -> None:
    plan, arrays = packed
    prefix = "model.layers.{}.self_attn."
    out = [matrix_of(plan.kda.mixer_out, arrays["mixer_out"][r, 3]) for r in range(plan.cores)]
    np.testing.assert_array_equal(np.concatenate(out).T, stored[prefix.format(3) + "o_proj.weight"])
    width = plan.kda.gated_width
    v = [matrix_of(plan.kda.kda_in, a[2])[:, 2 * width : 3 * width] for a in arrays["kda_in"]]
    np.testing.assert_array_equal(np.concatenate(v, 1).T, stored[prefix.format(2) + "v_proj.weight"])
    own = plan.mla.own_blocks * 128
    latent = [matrix_of(plan.mla.mla_latent, a[0])[:, :own] for a in arrays["mla_latent"]][: plan.mla.group]
    both = np.concatenate(latent, 1).T
    np.testing.assert_array_equal(both[: CONFIG.q_rank], stored[prefix.format(3) + "q_a_proj.weight"])
    norms = arrays["mla_constants"][-1, 0, 0]
    np.testing.assert_array_equal(norms[CONFIG.q_rank :], stored[prefix.format(3) + "kv_a_layernorm.weight"])
    np.testing.assert_array_equal(
        arrays["embedding"].reshape(CONFIG.vocab, -1).astype(np.float32), stored["model.embed_tokens.weight"]
    )
    head = [matrix_of(plan.lm_head, a)[:, : plan.vocab] for a in arrays["lm_head"]]
    np.testing.assert_array_equal(np.concatenate(head, 1).T, stored["lm_head.weight"])


def test_constants(packed, stored) -> None:
    plan, arrays = packed

    def vector(layer: int, name: str) -> np.ndarray:
        first, width = plan.constants[name]
        return arrays["constants"][layer, 0, first : first + width]

    c = CONFIG
    bias = vector(2, "router_bias")
    np.testing.assert_array_equal(
        bias[: c.experts], stored["model.layers.2.block_sparse_moe.gate.e_score_correction_bias"]
    )
    assert (bias[c.experts :] == np.float32(NO_EXPERT)).all()
    np.testing.assert_array_equal(
        vector(1, "ffn_score"),
        stored["model.layers.1.mlp_res_norm.weight"] * stored["model.layers.1.mlp_res_proj.weight"][0],
    )
    np.testing.assert_array_equal(vector(c.layers, "input_norm"), stored["model.norm.weight"])
    np.testing.assert_array_equal(
        vector(c.layers, "attn_score"),
        stored["model.output_attn_res_norm.weight"] * stored["model.output_attn_res_proj.weight"][0],
    )
    assert not vector(0, "expert_norm").any()


def test_every_rank_has_its_group_s_experts(packed, stored) -> None:
    plan, arrays = packed
    seen = []
    for rank in range(plan.cores):
        for index, expert in enumerate(group_experts(plan, rank)):
            seen.append(expert)
            prefix = f"model.layers.1.block_sparse_moe.experts.{expert}."
            mine = {n.removeprefix(prefix): v for n, v in stored.items() if n.startswith(prefix)}
            for name, value in pack_expert(plan.experts, mine, 0).items():
                np.testing.assert_array_equal(arrays[name][rank, 0, index], value)
    assert sorted(seen) == list(range(CONFIG.experts))


def test_a_long_rest_is_padded_to_a_pair() -> None:
    rows = np.arange(1, 201, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    for width in (24, 64, 128, 200):
        shape = Gated(width)
        blocks = values_of(gated_rows(shape, bits(rows[:width]), bits(-rows[:width]))).astype(np.float32)
        assert blocks.shape == (shape.blocks * 128, 2)
        gate, up = gated(shape, blocks.reshape(-1, 128, 2).swapaxes(1, 2))
        np.testing.assert_array_equal(gate, rows[:width])
        np.testing.assert_array_equal(up, -rows[:width])


def test_the_sizes_of_the_real_model() -> None:
    plan = StepPlan(KIMI_K3, hosts=4, members=8, width_ranks=4, batch=8)
    assert (plan.shared.pairs, plan.shared.has_half, plan.shared.inner) == (1, True, 192)
    assert (plan.dense.pairs, plan.dense.has_half, plan.dense.inner) == (8, True, 1088)
    assert [len(plan.latent.of(member)) for member in range(8)] == [4] * 7 + [0]
    assert group_experts(plan, 31) == range(784, 896)
    layers = {operand.name: len(operand.layers) for operand in operands(plan)}
    config: K3Config = plan.config
    assert layers["mixer_out"] == layers["kda_in"] + layers["mla_side"] == config.layers
