"""RMSNorm of a few wide rows, block by block so that no more than a block is in registers at once."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import source_info_util

source_info_util.register_exclusion(__file__)


def rms_norm(rows: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """Reference: `rows * rsqrt(mean(rows^2) + epsilon) * weight` along the last axis, float32."""
    mean_square = jnp.mean(rows * rows, axis=-1, keepdims=True)
    return rows * lax.rsqrt(mean_square + epsilon) * weight


def rms_norm_blocks(rows: Any, weight: Any, normed: Any, *, epsilon: float) -> None:
    """RMSNorm in two passes over column blocks.

    Args:
        rows: Ref `[batch, width]` float32.
        weight: Ref `[1, width]` float32.
        normed: Ref `[packs, pack, batch, block]` written in `normed.dtype`; `packs * pack * block == width`.
        epsilon: Added to the mean square.
    """
    packs, pack, batch, block = normed.shape
    width = packs * pack * block
    places = [
        (i, j, slice((i * pack + j) * block, (i * pack + j + 1) * block))
        for i in range(packs)
        for j in range(pack)
    ]

    squares = jnp.zeros((batch, block), jnp.float32)
    for _, _, columns in places:
        values = rows[:, columns]
        squares = squares + values * values
    scale = lax.rsqrt(jnp.sum(squares, axis=-1, keepdims=True) * (1.0 / width) + epsilon)

    for i, j, columns in places:
        normed[i, j] = (rows[:, columns] * scale * weight[:, columns]).astype(normed.dtype)
