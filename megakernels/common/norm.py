"""RMSNorm of a few wide rows, block by block: a whole row set would overflow the vector registers."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from megakernels.hooks import helper_module

helper_module(__file__)


def rms_norm(rows: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """Reference: `rows * rsqrt(mean(rows^2) + epsilon) * weight` along the last axis, float32."""
    mean_square = jnp.mean(rows * rows, axis=-1, keepdims=True)
    return rows * lax.rsqrt(mean_square + epsilon) * weight


def rms_norm_blocks(rows: Any, weight: Any, normed: Any, *, epsilon: float) -> None:
    """RMSNorm in two passes over column blocks: sum the squares, then scale.

    Args:
        rows: Ref `[batch, width]` float32.
        weight: Ref `[1, width]` float32.
        normed: Ref `[packs, pack, batch, block]`, written in its dtype; `packs * pack * block == width`.
        epsilon: Added to the mean square.
    """
    packs, pack, batch, block = normed.shape
    width = packs * pack * block
    columns = {
        (i, j): slice((i * pack + j) * block, (i * pack + j + 1) * block)
        for i in range(packs)
        for j in range(pack)
    }
    squares = jnp.zeros((batch, block), jnp.float32)
    for part in columns.values():
        values = rows[:, part]
        squares = squares + values * values
    scale = lax.rsqrt(jnp.sum(squares, axis=-1, keepdims=True) * (1.0 / width) + epsilon)
    for place, part in columns.items():
        normed[place] = (rows[:, part] * scale * weight[:, part]).astype(normed.dtype)
