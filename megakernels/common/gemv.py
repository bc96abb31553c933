"""Products of a few activation rows with a weight tile stored as stacked columns of 128.

A tile of a `[k, n]` matrix lies as `[n / 128 * k, 128]`: its 128-column blocks under one another. A tile is
then one contiguous run of bytes in HBM and in VMEM alike, whatever its shape, so every tile shape shares the
banks of one ring and every copy is a plain linear one (no retiling descriptor).

The MXU is 256 wide, so two column blocks are multiplied at once: laid side by side they are just another
choice of registers, no data moves.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from megakernels.hooks import helper_module

helper_module(__file__)

LANES = 128
MXU_COLUMNS = 2 * LANES


def stack_columns(matrix: np.ndarray) -> np.ndarray:
    """`[k, n]` to the stored form `[n / 128 * k, 128]`; n a multiple of 128."""
    k, n = matrix.shape
    return np.ascontiguousarray(matrix.reshape(k, n // LANES, LANES).swapaxes(0, 1)).reshape(-1, LANES)


def unstack_columns(tile: np.ndarray, k: int) -> np.ndarray:
    """The inverse of `stack_columns`."""
    return np.ascontiguousarray(tile.reshape(-1, k, LANES).swapaxes(0, 1)).reshape(k, -1)


def column_pair(tile: Any, k: int, pair: int) -> jax.Array:
    """Columns `256 * pair` to `256 * pair + 255` of a stored tile ref, `[k, 256]`."""
    first = 2 * pair * k
    return jnp.concatenate([tile[first : first + k], tile[first + k : first + 2 * k]], axis=1)


def tile_product(rows: jax.Array, tile: Any, columns: int) -> jax.Array:
    """`rows @ tile`, float32.

    Args:
        rows: `[m, k]` bfloat16.
        tile: Ref of the stored form, at least `columns / 128 * k` rows, bfloat16.
        columns: Columns of the tile, a multiple of 256.

    Returns:
        `[m, columns]` float32.
    """
    k = rows.shape[-1]
    products = [
        jnp.dot(rows, column_pair(tile, k, pair), preferred_element_type=jnp.float32)
        for pair in range(columns // MXU_COLUMNS)
    ]
    return products[0] if len(products) == 1 else jnp.concatenate(products, axis=1)


def split_by_parity(rows: Any, zeros: Any, block: int) -> Any:
    """One 128-wide block of rows as `scaled_tile_product` takes it: even ones over zeros, odd ones under."""
    return jnp.concatenate([zeros, rows] if block % 2 else [rows, zeros], axis=0)


def scaled_tile_product(rows: jax.Array, tile: Any, columns: int, scales: jax.Array) -> jax.Array:
    """`rows @ (tile * scales)` for a float8 tile with one scale per 128 x 128 block, float32.

    The MXU takes bfloat16 rows against float8 weights as they are. It is 256 deep, two blocks of k with a
    scale each, whose products must stay apart until they are scaled: so the even blocks of the rows stand in
    the upper half of `rows` and the odd ones in the lower, zeros elsewhere. That costs rows, which are free
    in a product of so few, and no second push of the weights.

    Args:
        rows: `[2 * m, k]` bfloat16, see `split_by_parity`.
        tile: Ref of the stored form, float8.
        columns: Columns of the tile, a multiple of 256.
        scales: `[at least k / 128, 128]` float32: row b holds the scales of row block b, lane j that of the
            tile's column block j.

    Returns:
        `[m, columns]` float32.
    """
    m, k = rows.shape[0] // 2, rows.shape[1]
    products = []
    for pair in range(columns // MXU_COLUMNS):
        lanes = (scales.shape[0], LANES)
        both = [jnp.broadcast_to(scales[:, 2 * pair + j : 2 * pair + j + 1], lanes) for j in range(2)]
        by_block = jnp.concatenate(both, axis=1)
        total = jnp.zeros((m, MXU_COLUMNS), jnp.float32)
        first = 2 * pair * k
        for start in range(0, k, MXU_COLUMNS):
            depth = min(MXU_COLUMNS, k - start)
            left = tile[first + start : first + start + depth]
            right = tile[first + k + start : first + k + start + depth]
            weights = jnp.concatenate([left, right], axis=1)
            product = jnp.dot(rows[:, start : start + depth], weights, preferred_element_type=jnp.float32)
            block = start // LANES
            total = total + product[:m] * by_block[block : block + 1]
            if depth > LANES:
                total = total + product[m:] * by_block[block + 1 : block + 2]
        products.append(total)
    return products[0] if len(products) == 1 else jnp.concatenate(products, axis=1)


def tile_product_reference(rows: np.ndarray, tile: np.ndarray, columns: int) -> np.ndarray:
    """What `tile_product` means, float64 inside."""
    k = rows.shape[-1]
    matrix = unstack_columns(np.asarray(tile[: columns // LANES * k], np.float64), k)
    return (np.asarray(rows, np.float64) @ matrix).astype(np.float32)
