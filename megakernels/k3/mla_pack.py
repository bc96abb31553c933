"""The checkpoint's MLA tensors, and the cache, in the layout the kernel reads."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from megakernels.common.gemv import LANES
from megakernels.k3.kda_pack import cut, heads_of
from megakernels.k3.mla_plan import MlaPlan
from megakernels.k3.mla_refs import MlaState

type Tensors = Mapping[str, np.ndarray]


def padded(matrix: np.ndarray, columns: int) -> np.ndarray:
    """`[k, n]` with zero columns added."""
    return np.pad(matrix, ((0, 0), (0, columns - matrix.shape[1])))


def pack_latent(plan: MlaPlan, p: Tensors, core: int) -> np.ndarray:
    """Tiles of a core's columns of q_a | kv_a's latent."""
    both = np.concatenate([p["q_a_proj.weight"], p["kv_a_proj_with_mqa.weight"][: plan.config.kv_rank]])
    own = heads_of(both, plan.group, core % plan.group)
    return cut(plan.mla_latent, padded(own.T, plan.mla_latent.n))


def pack_side(plan: MlaPlan, p: Tensors, core: int) -> np.ndarray:
    """Tiles of the gate of a core's heads and the shared key part."""
    gate = heads_of(p["g_proj.weight"], plan.cores, core)
    shared = p["kv_a_proj_with_mqa.weight"][plan.config.kv_rank :]
    return cut(plan.mla_side, padded(np.concatenate([gate, shared]).T, plan.mla_side.n))


def pack_query(plan: MlaPlan, p: Tensors, core: int) -> np.ndarray:
    """Tiles of q_b of a core's heads: latent parts, then shared parts padded to 128."""
    c = plan.config
    heads = heads_of(p["q_b_proj.weight"].reshape(c.heads, c.query_dim, c.q_rank), plan.cores, core)
    latent, shared = heads[:, : c.nope_dim], heads[:, c.nope_dim :]
    shared = np.pad(shared, ((0, 0), (0, LANES - c.rope_dim), (0, 0)))
    return cut(plan.mla_query, np.concatenate([latent, shared]).reshape(-1, c.q_rank).T)


def pack_to_keys(plan: MlaPlan, p: Tensors, core: int) -> np.ndarray:
    """Key part of kv_b of a core's heads, `[heads, 128, rank]`."""
    return _expand(plan, p, core)[:, : plan.config.nope_dim]


def pack_to_values(plan: MlaPlan, p: Tensors, core: int) -> np.ndarray:
    """Value part of kv_b of a core's heads, `[heads, rank, 128]`."""
    return _expand(plan, p, core)[:, plan.config.nope_dim :].swapaxes(1, 2)


def _expand(plan: MlaPlan, p: Tensors, core: int) -> np.ndarray:
    c = plan.config
    both = p["kv_b_proj.weight"].reshape(c.heads, c.nope_dim + c.value_dim, c.kv_rank)
    return heads_of(both, plan.cores, core)


def pack_constants(plan: MlaPlan, p: Tensors, core: int) -> np.ndarray:
    """A layer's constants row `[1, width]`: the norms of the two latents."""
    return np.concatenate([p["q_a_layernorm.weight"], p["kv_a_layernorm.weight"]])[None]


def pack_layers(plan: MlaPlan, layers: list[Tensors]) -> dict[str, np.ndarray]:
    """The weight operands by name, float32, leading axes core and layer.

    Args:
        plan: The sizes.
        layers: Per layer the tensors of `self_attn`, names relative to it, shapes as in the checkpoint.
    """
    packers = {
        "constants": pack_constants,
        "to_keys": pack_to_keys,
        "to_values": pack_to_values,
        "mla_latent": pack_latent,
        "mla_side": pack_side,
        "mla_query": pack_query,
        "mixer_out": lambda plan, p, core: cut(
            plan.mixer_out, heads_of(p["o_proj.weight"].T, plan.cores, core)
        ),
    }
    return {
        name: np.stack([np.stack([packer(plan, p, core) for p in layers]) for core in range(plan.cores)])
        for name, packer in packers.items()
    }


def state_shapes(plan: MlaPlan) -> MlaState:
    """Shape and dtype of the cache, leading axes core and layer."""
    p = plan
    return MlaState(
        jax.ShapeDtypeStruct((p.cores, p.layers, p.batch, p.stored_tokens, p.cache_width), jnp.bfloat16)
    )


def from_reference(plan: MlaPlan, latent: np.ndarray) -> MlaState:
    """The kernel's cache for a reference one `[layers, B, at most capacity, cache width]`."""
    shape = state_shapes(plan).cache.shape
    cache = np.zeros(shape, np.float32)
    cache[:, :, :, : latent.shape[2], : latent.shape[3]] = latent
    return MlaState(cache)
