"""The MLP stack in plain JAX, and the packing of its matrices into the tiles the kernel streams."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from megakernels.common.norm import rms_norm
from megakernels.mlp.config import MlpConfig


class MlpWeights(NamedTuple):
    """Whole matrices, as a checkpoint would hold them."""

    norm: jax.Array  # [layers, hidden] f32
    w_gate: jax.Array  # [layers, hidden, ffn] bf16
    w_up: jax.Array  # [layers, hidden, ffn] bf16
    w_down: jax.Array  # [layers, ffn, hidden] bf16


def mlp_stack(x: jax.Array, weights: MlpWeights, epsilon: float) -> jax.Array:
    """The reference: `x + down(silu(gate(norm(x))) * up(norm(x)))`, layer after layer.

    Activations enter each product in bfloat16 and sums are float32, as in the kernel.

    Args:
        x: `[batch, hidden]` float32.
        weights: The whole matrices.
        epsilon: Added to the mean square in RMSNorm.

    Returns:
        `[batch, hidden]` float32.
    """

    def dot(rows: jax.Array, matrix: jax.Array) -> jax.Array:
        return jnp.dot(rows.astype(jnp.bfloat16), matrix, preferred_element_type=jnp.float32)

    for norm, w_gate, w_up, w_down in zip(*weights, strict=True):
        normed = rms_norm(x, norm, epsilon)
        x = x + dot(jax.nn.silu(dot(normed, w_gate)) * dot(normed, w_up), w_down)
    return x


def pack_weights(config: MlpConfig, weights: MlpWeights) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Cut the matrices into tiles in the order the kernel reads them, one core after the other.

    Returns:
        norm `[layers, 1, hidden]`, then w_gate, w_up and w_down as tiles,
        `[cores * layers * tiles_per_matrix, *tile_shape]`; the first axis is the one to shard.
    """
    c = config

    def rows_in_packs(matrix: jax.Array) -> jax.Array:
        """For w_gate and w_up: ffn block outermost, then packs of input-row blocks."""
        cut = matrix.reshape(c.layers, c.hidden_packs, c.pack, c.block, c.cores, c.ffn_blocks, c.block)
        return cut.transpose(4, 0, 5, 1, 2, 3, 6).reshape(-1, *c.tile_shape)

    def columns_in_packs(matrix: jax.Array) -> jax.Array:
        """For w_down: packs of output-column blocks outermost, then the ffn block."""
        cut = matrix.reshape(c.layers, c.cores, c.ffn_blocks, c.block, c.hidden_packs, c.pack, c.block)
        return cut.transpose(1, 0, 4, 2, 5, 3, 6).reshape(-1, *c.tile_shape)

    norm = weights.norm.reshape(c.layers, 1, c.hidden)
    return norm, rows_in_packs(weights.w_gate), rows_in_packs(weights.w_up), columns_in_packs(weights.w_down)


def random_inputs(config: MlpConfig, seed: int = 0) -> tuple[jax.Array, MlpWeights]:
    """An input and weights of sensible scale: every layer changes the residual by about its own size."""
    keys = jax.random.split(jax.random.key(seed), 5)
    c = config

    def matrix(key: jax.Array, rows: int, columns: int) -> jax.Array:
        values = jax.random.normal(key, (c.layers, rows, columns), jnp.float32)
        return (values * rows**-0.5).astype(jnp.bfloat16)

    x = jax.random.normal(keys[0], (c.batch, c.hidden), jnp.float32)
    norm = 1.0 + 0.1 * jax.random.normal(keys[1], (c.layers, c.hidden), jnp.float32)
    weights = MlpWeights(
        norm,
        matrix(keys[2], c.hidden, c.ffn),
        matrix(keys[3], c.hidden, c.ffn),
        matrix(keys[4], c.ffn, c.hidden),
    )
    return x, weights
