"""Checkpoint tensors to the step's operands: which part of which tensor a rank gets, and in what layout.

Every function here works on one layer of one rank, so a loader never needs more than that in memory. Matrices
are moved as the 16 bits of their bfloat16 values: numpy copies integers several times faster.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import ml_dtypes
import numpy as np

from megakernels.common.gemv import LANES, stack_tiles
from megakernels.k3 import kda_pack, mla_pack
from megakernels.k3.config import K3Config
from megakernels.k3.experts_build import pack_expert
from megakernels.k3.parameters import FLOAT32_NAMES, expert_shapes, mixer_shapes
from megakernels.k3.plan import Matrix
from megakernels.k3.step_plan import HALF, NO_EXPERT, Gated, Shared, StepPlan
from megakernels.k3.step_refs import REPLICATED

BF16 = ml_dtypes.bfloat16

# Gives a tensor of the checkpoint by name, `[out, in]`: bfloat16, or float32 that holds bfloat16's values
# where the checkpoint says bfloat16.
type Fetch = Callable[[str], np.ndarray]
# One layer of one rank: plan, layer (of the model), rank, fetch.
type Packer = Callable[[StepPlan, int, int, Fetch], np.ndarray]

EXPERTS = ("up", "up_scale", "down", "down_scale")


@dataclass(frozen=True, slots=True)
class Operand:
    """A weight operand: the layers of the model it has, in order, and what makes one of them on one rank.

    The routed experts are not among them: their four come together, see `pack_one_expert`.
    """

    name: str
    layers: tuple[int, ...]
    pack: Packer


def operands(plan: StepPlan) -> tuple[Operand, ...]:
    """The operands with a layer axis, in the order of their names in this file."""
    c = plan.config
    kda = tuple(layer for layer in range(c.layers) if not c.is_mla(layer))
    mla = tuple(layer for layer in range(c.layers) if c.is_mla(layer))
    dense, moe = tuple(range(c.dense_layers)), tuple(range(c.dense_layers, c.layers))
    return (
        Operand("constants", tuple(range(c.layers + 1)), pack_constants),
        Operand("kda_constants", kda, partial(_kda, kda_pack.pack_constants)),
        Operand("decay_out", kda, partial(_kda, kda_pack.pack_decay_out)),
        Operand("kda_in", kda, partial(_kda, kda_pack.pack_in)),
        Operand("mla_constants", mla, partial(_mla, mla_pack.pack_constants)),
        Operand("to_keys", mla, partial(_mla, mla_pack.pack_to_keys)),
        Operand("to_values", mla, partial(_mla, mla_pack.pack_to_values)),
        Operand("mla_latent", mla, partial(_mla, mla_pack.pack_latent)),
        Operand("mla_side", mla, partial(_mla, mla_pack.pack_side)),
        Operand("mla_query", mla, partial(_mla, mla_pack.pack_query)),
        Operand("mixer_out", tuple(range(c.layers)), partial(_kda, kda_pack.pack_out)),
        Operand("dense_in", dense, pack_dense_in),
        Operand("dense_out", dense, pack_dense_out),
        Operand("moe_in", moe, pack_moe_in),
        Operand("shared_out", moe, pack_shared_out),
        Operand("latent_up", moe, pack_latent_up),
    )


def bits(values: np.ndarray) -> np.ndarray:
    """The bits of bfloat16 values, uint16."""
    return np.asarray(values).astype(BF16, copy=False).view(np.uint16)


def values_of(raw: np.ndarray) -> np.ndarray:
    """The inverse of `bits`; float32 goes through."""
    return raw.view(BF16) if raw.dtype == np.uint16 else raw


class _Mixer(Mapping[str, np.ndarray]):
    """A layer's `self_attn` tensors as kda_pack and mla_pack take them, fetched when asked for."""

    def __init__(self, config: K3Config, layer: int, fetch: Fetch) -> None:
        self._names = mixer_shapes(config, layer)
        self._prefix, self._fetch = f"model.layers.{layer}.self_attn.", fetch

    def __getitem__(self, name: str) -> np.ndarray:
        values = self._fetch(self._prefix + name)
        # The norms of the latents are kept in bfloat16 and used in float32, among the constants.
        small = name.endswith(FLOAT32_NAMES) or name.endswith("layernorm.weight")
        return np.asarray(values).astype(np.float32, copy=False) if small else bits(values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _kda(pack: Callable[..., np.ndarray], plan: StepPlan, layer: int, rank: int, fetch: Fetch) -> np.ndarray:
    return values_of(np.ascontiguousarray(pack(plan.kda, _Mixer(plan.config, layer, fetch), rank)))


def _mla(pack: Callable[..., np.ndarray], plan: StepPlan, layer: int, rank: int, fetch: Fetch) -> np.ndarray:
    return values_of(np.ascontiguousarray(pack(plan.mla, _Mixer(plan.config, layer, fetch), rank)))


def padded_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """`[n, k]` with zero rows added."""
    out = np.zeros((count, rows.shape[1]), rows.dtype)
    out[: rows.shape[0]] = rows
    return out


def tiles(matrix: Matrix, rows: np.ndarray) -> np.ndarray:
    """`[up to n, k]`, the columns of a matrix as rows, to bf16 tiles `[tiles, rows, 128]`."""
    return stack_tiles(rows.T, matrix.n, matrix.columns).view(BF16)


def own_rows(shared: Shared, member: int, rows: np.ndarray) -> np.ndarray:
    """A member's blocks of rows, and zeros for blocks that do not exist: `[own * 128, k]`."""
    own = shared.of(member)
    return padded_rows(rows[own.start * LANES : own.stop * LANES], shared.own * LANES)


def gated_rows(shape: Gated, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """A rank's rows of gate and up `[width, k]` each in blocks of 128 as `Gated` orders them."""
    paired = shape.pairs * LANES
    both = [padded_rows(m[:paired], paired).reshape(shape.pairs, LANES, m.shape[1]) for m in (gate, up)]
    blocks = [np.stack(both, axis=1).reshape(2 * paired, gate.shape[1])]
    if shape.has_half:
        blocks += [padded_rows(m[paired:], HALF) for m in (gate, up)]
    return np.concatenate(blocks)


def _gated_in(shape: Gated, prefix: str, rank: int, fetch: Fetch) -> np.ndarray:
    own = slice(rank * shape.width, (rank + 1) * shape.width)
    gate, up = (bits(fetch(f"{prefix}{name}_proj.weight")[own]) for name in ("gate", "up"))
    return gated_rows(shape, gate, up)


def _gated_out(shape: Gated, matrix: Matrix, prefix: str, rank: int, fetch: Fetch) -> np.ndarray:
    own = slice(rank * shape.width, (rank + 1) * shape.width)
    columns = bits(fetch(f"{prefix}down_proj.weight")[:, own])
    rows = np.zeros((columns.shape[0], shape.inner), np.uint16)
    rows[:, : shape.width] = columns
    return tiles(matrix, rows)


def pack_dense_in(plan: StepPlan, layer: int, rank: int, fetch: Fetch) -> np.ndarray:
    """Tiles of a rank's gate and up of the dense FFN."""
    prefix = f"model.layers.{layer}.mlp."
    return tiles(plan.dense_in, _gated_in(plan.dense, prefix, rank, fetch))


def pack_dense_out(plan: StepPlan, layer: int, rank: int, fetch: Fetch) -> np.ndarray:
    """Tiles of the rows of the dense FFN's down projection that a rank's width feeds."""
    prefix = f"model.layers.{layer}.mlp."
    return _gated_out(plan.dense, plan.dense_out, prefix, rank, fetch)


def pack_moe_in(plan: StepPlan, layer: int, rank: int, fetch: Fetch) -> np.ndarray:
    """Tiles of own latent columns | router | shared expert's gate and up."""
    prefix = f"model.layers.{layer}.block_sparse_moe."
    latent = bits(fetch(f"{prefix}routed_expert_down_proj.weight"))
    router = bits(fetch(f"{prefix}gate.weight"))
    parts = [
        own_rows(plan.latent, rank % plan.members, latent),
        padded_rows(router, plan.router_blocks * LANES),
        _gated_in(plan.shared, f"{prefix}shared_experts.", rank, fetch),
    ]
    return tiles(plan.moe_in, np.concatenate(parts))


def pack_shared_out(plan: StepPlan, layer: int, rank: int, fetch: Fetch) -> np.ndarray:
    """Tiles of the rows of the shared expert's down projection that a rank's width feeds."""
    prefix = f"model.layers.{layer}.block_sparse_moe.shared_experts."
    return _gated_out(plan.shared, plan.shared_out, prefix, rank, fetch)


def pack_latent_up(plan: StepPlan, layer: int, rank: int, fetch: Fetch) -> np.ndarray:
    """Tiles of own columns of the projection from the latent."""
    weight = bits(fetch(f"model.layers.{layer}.block_sparse_moe.routed_expert_up_proj.weight"))
    return tiles(plan.latent_up, own_rows(plan.hidden, rank % plan.members, weight))


def pack_constants(plan: StepPlan, layer: int, rank: int, fetch: Fetch) -> np.ndarray:
    """The small vectors of a layer, float32 `[1, width]`, the same on every rank; see StepPlan.constants."""
    del rank
    c = plan.config
    row = np.zeros((1, plan.constants_width), np.float32)

    def get(name: str) -> np.ndarray:
        return np.asarray(fetch(name)).astype(np.float32, copy=False).reshape(-1)

    def put(name: str, values: np.ndarray) -> None:
        first, width = plan.constants[name]
        row[0, first : first + width] = values

    if layer == c.layers:
        prefix = "model.output_attn_res_"
        put("attn_score", get(f"{prefix}norm.weight") * get(f"{prefix}proj.weight"))
        put("input_norm", get("model.norm.weight"))
        return row
    prefix = f"model.layers.{layer}."
    for name, mixture in (("attn_score", "self_attention_res"), ("ffn_score", "mlp_res")):
        put(name, get(f"{prefix}{mixture}_norm.weight") * get(f"{prefix}{mixture}_proj.weight"))
    put("input_norm", get(f"{prefix}input_layernorm.weight"))
    put("post_norm", get(f"{prefix}post_attention_layernorm.weight"))
    if c.is_moe(layer):
        bias = np.full(plan.router_blocks * LANES, NO_EXPERT, np.float32)
        bias[: c.experts] = get(f"{prefix}block_sparse_moe.gate.e_score_correction_bias")
        put("router_bias", bias)
        put("expert_norm", get(f"{prefix}block_sparse_moe.routed_expert_norm.weight"))
    return row


def pack_lm_head(plan: StepPlan, rank: int, fetch: Fetch) -> np.ndarray:
    """Tiles of a rank's share of the vocabulary."""
    own = slice(rank * plan.vocab, (rank + 1) * plan.vocab)
    return tiles(plan.lm_head, bits(fetch("lm_head.weight")[own]))


def pack_embedding(plan: StepPlan, fetch: Fetch, tokens: slice = slice(None)) -> np.ndarray:
    """bf16 `[vocab, r, hidden / r]`, or of some tokens: an embedding cut into rows under one another."""
    weight = values_of(bits(fetch("model.embed_tokens.weight")[tokens]))
    return weight.reshape(weight.shape[0], plan.embedding_rows, -1)


def group_experts(plan: StepPlan, rank: int) -> range:
    """The routed experts of a rank's group."""
    first = rank // plan.width_ranks * plan.experts.experts
    return range(first, first + plan.experts.experts)


def expert_tensors(layer: int, expert: int, config: K3Config) -> dict[str, str]:
    """What `pack_expert` calls an expert's tensors -> their names in the checkpoint."""
    prefix = f"model.layers.{layer}.block_sparse_moe.experts.{expert}."
    return {
        f"{name}_{kind}": f"{prefix}{name}_{kind}"
        for name in expert_shapes(config)
        for kind in ("packed", "scale")
    }


def pack_one_expert(
    plan: StepPlan, layer: int, expert: int, member: int, fetch: Fetch
) -> dict[str, np.ndarray]:
    """The four arrays of one expert on a member of its group, int32."""
    names = expert_tensors(layer, expert, plan.config)
    return pack_expert(plan.experts, {name: fetch(full) for name, full in names.items()}, member)


def pack_experts(plan: StepPlan, layer: int, rank: int, fetch: Fetch) -> dict[str, np.ndarray]:
    """The four arrays of the experts of a rank's group, `[experts, ...]` int32."""
    member = rank % plan.width_ranks
    each = [pack_one_expert(plan, layer, e, member, fetch) for e in group_experts(plan, rank)]
    return {name: np.stack([arrays[name] for arrays in each]) for name in EXPERTS}


def pack_all(plan: StepPlan, stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every weight operand, all ranks; for small configs.

    Args:
        plan: The sizes.
        stored: The checkpoint's text tensors (see `parameters.random_stored`).
    """
    fetch = stored.__getitem__
    packed = {"embedding": pack_embedding(plan, fetch)}
    for operand in operands(plan):
        if operand.name in REPLICATED:
            packed[operand.name] = np.stack([operand.pack(plan, n, 0, fetch) for n in operand.layers])
            continue
        packed[operand.name] = np.stack(
            [np.stack([operand.pack(plan, n, r, fetch) for n in operand.layers]) for r in range(plan.cores)]
        )
    moe = range(plan.config.dense_layers, plan.config.layers)
    by_rank = [[pack_experts(plan, n, r, fetch) for n in moe] for r in range(plan.cores)]
    for name in EXPERTS:
        packed[name] = np.stack([np.stack([arrays[name] for arrays in layers]) for layers in by_rank])
    packed["lm_head"] = np.stack([pack_lm_head(plan, rank, fetch) for rank in range(plan.cores)])
    return packed
