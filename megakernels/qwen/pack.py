"""Checkpoint tensors to the kernel's operands: which part of which tensor a core gets, and in what layout.

Every function here works on one layer of one core, so a loader never needs more than that in memory.
"""

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np

from megakernels.common.gemv import LANES, stack_columns
from megakernels.common.rope import rope_table
from megakernels.qwen.plan import Matrix, Plan

BF16 = ml_dtypes.bfloat16

# Gives a tensor of the checkpoint by name, `[out, in]`.
Fetch = Callable[[str], np.ndarray]


class Part(NamedTuple):
    """Rows of a tensor."""

    name: str
    rows: slice


def input_parts(plan: Plan, layer: int, core: int) -> list[Part]:
    """The rows of the checkpoint's tensors that become the columns of w_in, in order."""
    c = plan.config
    prefix = f"model.layers.{layer}."

    def part(name: str, first: int, count: int) -> Part:
        return Part(f"{prefix}{name}.weight", slice(first, first + count))

    if not c.is_attention(layer):
        keys, values = plan.key_heads * c.key_dim, plan.value_heads * c.value_dim
        all_keys = c.key_heads * c.key_dim
        return [
            part("linear_attn.in_proj_qkv", core * keys, keys),
            part("linear_attn.in_proj_qkv", all_keys + core * keys, keys),
            part("linear_attn.in_proj_qkv", 2 * all_keys + core * values, values),
            part("linear_attn.in_proj_z", core * values, values),
        ]
    heads = range(core * plan.query_heads, (core + 1) * plan.query_heads)
    first, width = core * c.kv_heads // plan.cores * c.head_dim, plan.kv_heads * c.head_dim
    return [
        *(part("self_attn.q_proj", 2 * head * c.head_dim, c.head_dim) for head in heads),
        *(part("self_attn.q_proj", (2 * head + 1) * c.head_dim, c.head_dim) for head in heads),
        part("self_attn.k_proj", first, width),
        part("self_attn.v_proj", first, width),
    ]


def tiles(matrix: Matrix, values: np.ndarray) -> np.ndarray:
    """`[k, up to n]` to stored tiles bf16 `[tiles, rows, 128]`, padding columns zero."""
    whole = np.zeros((matrix.k, matrix.n), BF16)
    whole[:, : values.shape[1]] = values
    columns = matrix.columns
    return np.stack([stack_columns(whole[:, t * columns : (t + 1) * columns]) for t in range(matrix.tiles)])


def pack_w_in(plan: Plan, layer: int, core: int, fetch: Fetch) -> np.ndarray:
    """`[tiles, rows, 128]` of the input projection."""
    rows = [fetch(part.name)[part.rows] for part in input_parts(plan, layer, core)]
    return tiles(plan.w_in, np.concatenate(rows).astype(BF16).T)


def pack_w_out(plan: Plan, layer: int, core: int, fetch: Fetch) -> np.ndarray:
    """`[tiles, rows, 128]` of the output projection."""
    below = "self_attn.o_proj" if plan.config.is_attention(layer) else "linear_attn.out_proj"
    width = plan.gate_channels
    weight = fetch(f"model.layers.{layer}.{below}.weight")[:, core * width : (core + 1) * width]
    return tiles(plan.w_out, weight.astype(BF16).T)


def pack_w_gate_up(plan: Plan, layer: int, core: int, fetch: Fetch) -> np.ndarray:
    """`[tiles, rows, 128]` of gate and up, 128 columns of each in turn."""
    rows = slice(core * plan.intermediate, (core + 1) * plan.intermediate)
    both = [
        fetch(f"model.layers.{layer}.mlp.{name}_proj.weight")[rows].astype(BF16) for name in ("gate", "up")
    ]
    pairs = np.stack([half.reshape(-1, LANES, plan.config.hidden) for half in both], axis=1)
    return tiles(plan.w_gate_up, pairs.reshape(-1, plan.config.hidden).T)


def pack_w_down(plan: Plan, layer: int, core: int, fetch: Fetch) -> np.ndarray:
    """`[tiles, rows, 128]` of down."""
    columns = slice(core * plan.intermediate, (core + 1) * plan.intermediate)
    return tiles(plan.w_down, fetch(f"model.layers.{layer}.mlp.down_proj.weight")[:, columns].astype(BF16).T)


def pack_lm_head(plan: Plan, core: int, fetch: Fetch) -> np.ndarray:
    """`[tiles, rows, 128]` of a core's share of the vocabulary."""
    rows = slice(core * plan.vocab, (core + 1) * plan.vocab)
    return tiles(plan.lm_head, fetch("lm_head.weight")[rows].astype(BF16).T)


def pack_w_ab(plan: Plan, layer: int, core: int, fetch: Fetch) -> np.ndarray:
    """in_proj_a over in_proj_b, bf16 `[hidden / 128, ab_rows, 128]`; rows without a head are zero."""
    heads = slice(core * plan.value_heads, (core + 1) * plan.value_heads)
    stacked = np.zeros((plan.ab_rows, plan.config.hidden), BF16)
    for first, name in ((0, "a"), (plan.ab_rows // 2, "b")):
        weight = fetch(f"model.layers.{layer}.linear_attn.in_proj_{name}.weight")[heads]
        stacked[first : first + plan.value_heads] = weight
    return np.ascontiguousarray(stacked.reshape(plan.ab_rows, -1, LANES).swapaxes(0, 1))


def pack_constants(plan: Plan, layer: int, core: int, fetch: Fetch) -> np.ndarray:
    """The small vectors of a layer, float32 `[1, constants_width]`; row `layers` holds the final norm.

    Norm weights of the (1 + w) form get their 1 here; `a` is -exp(A_log).
    """
    c = plan.config
    row = np.zeros((1, plan.constants_width), np.float32)

    def put(name: str, values: np.ndarray) -> None:
        first, _ = plan.constants[name]
        row[0, first : first + values.size] = values

    def get(name: str) -> np.ndarray:
        return fetch(name).astype(np.float32)

    if layer == c.layers:
        put("input_norm", 1.0 + get("model.norm.weight"))
        return row
    prefix = f"model.layers.{layer}."
    put("input_norm", 1.0 + get(prefix + "input_layernorm.weight"))
    put("post_norm", 1.0 + get(prefix + "post_attention_layernorm.weight"))
    if c.is_attention(layer):
        put("q_norm", 1.0 + get(prefix + "self_attn.q_norm.weight"))
        put("k_norm", 1.0 + get(prefix + "self_attn.k_norm.weight"))
        return row
    taps = get(prefix + "linear_attn.conv1d.weight")[:, 0, :]
    mine = np.concatenate([taps[p.rows] for p in input_parts(plan, layer, core)[:3]])
    for tap in range(c.conv_taps):
        put(f"tap{tap}", mine[:, tap])
    heads = slice(core * plan.value_heads, (core + 1) * plan.value_heads)
    put("out_norm", get(prefix + "linear_attn.norm.weight"))
    put("a", -np.exp(get(prefix + "linear_attn.A_log")[heads]))
    put("dt_bias", get(prefix + "linear_attn.dt_bias")[heads])
    return row


def pack_embedding(plan: Plan, fetch: Fetch) -> np.ndarray:
    """bf16 `[vocab, rows, hidden / rows]`: a token's embedding cut into rows under one another."""
    weight = fetch("model.embed_tokens.weight").astype(BF16)
    return weight.reshape(plan.config.vocab, plan.embedding_rows, -1)


def pack_rope(plan: Plan) -> np.ndarray:
    """Rotation table float32 `[capacity, 1, 128]`."""
    return rope_table(plan.capacity, plan.config.rope_dims, plan.config.rope_theta)[:, None, :]


def pack_all(plan: Plan, fetch: Fetch) -> dict[str, np.ndarray]:
    """Every weight operand, all cores; for small configs. Shapes as `operands.weight_shapes` says."""
    layers, cores = range(plan.config.layers), range(plan.cores)
    gdn = [layer for layer in layers if not plan.config.is_attention(layer)]

    def stack(pack: Callable[[Plan, int, int, Fetch], np.ndarray], which: range | list[int]) -> np.ndarray:
        return np.stack([np.stack([pack(plan, layer, core, fetch) for layer in which]) for core in cores])

    return {
        "embedding": pack_embedding(plan, fetch),
        "rope": pack_rope(plan),
        "constants": stack(pack_constants, range(plan.config.layers + 1)),
        "w_ab": stack(pack_w_ab, gdn),
        "w_in": stack(pack_w_in, layers),
        "w_out": stack(pack_w_out, layers),
        "w_gate_up": stack(pack_w_gate_up, layers),
        "w_down": stack(pack_w_down, layers),
        "lm_head": np.stack([pack_lm_head(plan, core, fetch) for core in cores]),
    }
