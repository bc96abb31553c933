"""Products of a few activation rows with one weight tile.

A tile is `pack` square blocks of a weight matrix, `[pack, block, block]`, contiguous in HBM so that one
large copy brings it in. What the blocks mean depends on the matrix:

* `add_down_the_rows`: the blocks lie under one another (consecutive input rows), their products add up;
* `add_across_the_columns`: they lie side by side (consecutive output columns), one product each.

Operands are bfloat16, sums float32.
"""

from typing import Any

import jax
import jax.numpy as jnp

from megakernels.hooks import helper_module

helper_module(__file__)


def dot(rows: jax.Array, block: jax.Array) -> jax.Array:
    """`[batch, block]` bf16 times `[block, block]` bf16, float32 result."""
    return jnp.dot(rows, block, preferred_element_type=jnp.float32)


def add_down_the_rows(total: jax.Array, rows: Any, tile: Any) -> jax.Array:
    """`total + sum_i rows[i] @ tile[i]`.

    Args:
        total: `[batch, block]` float32.
        rows: `[pack, batch, block]` bfloat16, ref or array.
        tile: `[pack, block, block]` bfloat16, ref or array.
    """
    for i in range(tile.shape[0]):
        total = total + dot(rows[i], tile[i])
    return total


def add_across_the_columns(
    totals: tuple[jax.Array, ...], rows: jax.Array, tile: Any
) -> tuple[jax.Array, ...]:
    """`totals[i] + rows @ tile[i]` for each block `i` of the tile.

    Args:
        totals: `pack` arrays `[batch, block]` float32.
        rows: `[batch, block]` bfloat16.
        tile: `[pack, block, block]` bfloat16, ref or array.
    """
    return tuple(total + dot(rows, tile[i]) for i, total in enumerate(totals))
