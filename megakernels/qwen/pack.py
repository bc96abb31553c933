"""Checkpoint tensors to the kernel's operands: which part of which tensor a core gets, and in what layout.

Every function here works on one layer of one core, so a loader never needs more than that in memory.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import ml_dtypes
import numpy as np

from megakernels.common.gemv import LANES, stack_tiles
from megakernels.common.rope import rope_table
from megakernels.qwen.parameters import SCALE_SUFFIX
from megakernels.qwen.plan import Matrix, Plan

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn

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


def share(plan: Plan, matrix: Matrix, layer: int, core: int, fetch: Fetch) -> np.ndarray:
    """A core's share `[k, n]` of one of a layer's matrices, without padding columns."""
    return _share(plan, matrix, (layer, core), fetch, 1)


def _share(plan: Plan, matrix: Matrix, place: tuple[int, int], fetch: Fetch, block: int) -> np.ndarray:
    """The same in steps of `block` rows and columns: of the tensors themselves, or of their block scales."""
    layer, core = place
    prefix = f"model.layers.{layer}."

    def cut(first: int, count: int) -> slice:
        return slice(first // block, (first + count) // block)

    if matrix.name == "w_in":
        parts = [
            (p.name, cut(p.rows.start, p.rows.stop - p.rows.start)) for p in input_parts(plan, layer, core)
        ]
        return np.concatenate([fetch(name)[rows] for name, rows in parts]).T
    if matrix.name == "w_gate_up":
        rows = cut(core * plan.intermediate, plan.intermediate)
        halves = [fetch(f"{prefix}mlp.{name}_proj.weight")[rows] for name in ("gate", "up")]
        width = halves[0].shape[1]
        return np.stack([half.reshape(-1, LANES // block, width) for half in halves], 1).reshape(-1, width).T
    if matrix.name == "w_down":
        return fetch(f"{prefix}mlp.down_proj.weight")[:, cut(core * plan.intermediate, plan.intermediate)].T
    below = "self_attn.o_proj" if plan.config.is_attention(layer) else "linear_attn.out_proj"
    return fetch(f"{prefix}{below}.weight")[:, cut(core * plan.gate_channels, plan.gate_channels)].T


def tiles(matrix: Matrix, values: np.ndarray) -> np.ndarray:
    """`[k, up to n]` to stored tiles `[tiles, rows, 128]` of the same dtype, padding columns zero."""
    # Copied as plain integers: several times faster than as bfloat16.
    raw = values.view({1: np.uint8, 2: np.uint16}[values.dtype.itemsize])
    return stack_tiles(raw, matrix.n, matrix.columns).view(values.dtype)


def pack_matrix(plan: Plan, matrix: Matrix, layer: int, core: int, fetch: Fetch) -> np.ndarray:
    """One of a layer's matrices, `[tiles, rows, 128]`, float8 or bfloat16.

    Raises:
        ValueError: With fp8, the checkpoint's tensor is not float8.
    """
    values = share(plan, matrix, layer, core, fetch)
    if not plan.fp8:
        return tiles(matrix, values.astype(BF16))
    if values.dtype != FP8:
        raise ValueError(f"{matrix.name} of layer {layer} is {values.dtype}, the plan wants float8_e4m3fn")
    return tiles(matrix, values)


def pack_scales(plan: Plan, layer: int, core: int, fetch: Fetch) -> np.ndarray:
    """Block scales of all matrices of a layer, float32 `[all_scale_rows, 128]`; see `Plan.scale_rows`."""
    stacked = np.zeros((plan.all_scale_rows, LANES), np.float32)
    for matrix in plan.layer_matrices:
        first, rows, tiles_of_piece = plan.scale_rows(matrix)
        scales = _share(plan, matrix, (layer, core), lambda name: fetch(name + SCALE_SUFFIX), LANES)
        width = matrix.columns // LANES * tiles_of_piece
        for piece, start in enumerate(range(0, scales.shape[1], width)):
            part = scales[:, start : start + width].astype(np.float32)
            at = first + piece * rows
            stacked[at : at + part.shape[0], : part.shape[1]] = part
    return stacked


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


def _pack_matrix_of(matrix: Matrix, plan: Plan, layer: int, core: int, fetch: Fetch) -> np.ndarray:
    return pack_matrix(plan, matrix, layer, core, fetch)


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
        **({"scales": stack(pack_scales, layers)} if plan.fp8 else {}),
        **{matrix.name: stack(partial(_pack_matrix_of, matrix), layers) for matrix in plan.layer_matrices},
        "lm_head": np.stack([pack_lm_head(plan, core, fetch) for core in cores]),
    }
