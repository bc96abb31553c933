"""Products of a few activation rows with a weight tile stored as stacked columns of 128.

A tile of a `[k, n]` matrix lies as `[n / 128 * k, 128]`: its 128-column blocks under one another. A tile is
then one contiguous run of bytes in HBM and in VMEM alike, whatever its shape, so every tile shape shares the
banks of one ring and every copy is a plain linear one (no retiling descriptor).

The MXU is 256 wide, so two column blocks are multiplied at once: laid side by side they are just another
choice of registers, no data moves.

A product takes a register from each of four places at a time: two column blocks of two pairs, or, of a tile
with one pair, of its upper and its lower half. VMEM has four banks, registers a multiple of four apart share
one, and a bundle loads only one register of each (docs/llo.md, "Banks of VMEM"); laid out plainly, all four
places would lie in one, and their loads would take longer than the MXUs take the weights. So every half of a
column block is turned: its register r lies at r + `turn`, its last ones come first, and the four places lie
in four banks. A 256 x 256 bfloat16 tile then takes 18 bundles instead of 31, as compiled for TPU7x
(tests/megakernels/common/test_banks.py); one of float8, of half as many registers, 10 instead of 14.

That holds for a product whose result is stored or used on its own, of a tile of an even number of 256 x 256.
Others (added to an accumulator at once, or an odd number) the compiler cuts in other places: 26 bundles.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from megakernels.hooks import helper_module

helper_module(__file__)

LANES = 128
MXU_COLUMNS = 2 * LANES
REGISTER_BYTES = 4096
BANKS = 4  # of VMEM: registers that lie a multiple of so many apart share one


def units(block: int, k: int, itemsize: int) -> Iterator[tuple[slice, int]]:
    """Halves of a column block of a tile: rows, and by how many of them they are turned.

    Args:
        block: Its number in the tile.
        k: Rows of the tile.
        itemsize: Bytes of an element.
    """
    rows = REGISTER_BYTES // (LANES * itemsize)
    registers = k // rows
    halves = 2 if registers % 2 == 0 else 1
    size = registers // halves
    for half in range(halves):
        before = (block * halves + half) * size
        turn = (block + 2 * half - before) % BANKS % size
        yield slice(half * size * rows, (half + 1) * size * rows), turn * rows


def stack_tiles(values: np.ndarray, n: int, columns: int, itemsize: int | None = None) -> np.ndarray:
    """A matrix in tiles of whole columns, each in the stored form.

    Args:
        values: `[k, up to n]`; columns that are missing are zero.
        n: Columns of the matrix, a multiple of `columns`.
        columns: Of a tile, a multiple of 128.
        itemsize: Bytes of an element in the kernel, where `values` have another.

    Returns:
        `[n / columns, columns / 128 * k, 128]`, of the same type.
    """
    k = values.shape[0]
    stored = np.zeros((n // LANES, k, LANES), values.dtype)
    # Block by block: of a transposed matrix one piece would stride over all of it for every column.
    for block, first in enumerate(range(0, values.shape[1], LANES)):
        part = values[:, first : first + LANES]
        width = part.shape[1]
        for unit, turn in units(block % (columns // LANES), k, itemsize or values.dtype.itemsize):
            stored[block, unit.start + turn : unit.stop, :width] = part[unit.start : unit.stop - turn]
            stored[block, unit.start : unit.start + turn, :width] = part[unit.stop - turn : unit.stop]
    return stored.reshape(n // columns, -1, LANES)


def stack_columns(matrix: np.ndarray) -> np.ndarray:
    """A tile `[k, n]` to the stored form `[n / 128 * k, 128]`; n a multiple of 128."""
    n = matrix.shape[1]
    return stack_tiles(matrix, n, n)[0]


def unstack_columns(tile: np.ndarray, k: int) -> np.ndarray:
    """The inverse of `stack_columns`."""
    blocks = np.empty_like(tile).reshape(-1, k, LANES)
    for block, stored in enumerate(tile.reshape(-1, k, LANES)):
        for unit, turn in units(block, k, tile.dtype.itemsize):
            blocks[block, unit] = np.roll(stored[unit], -turn, axis=0)
    return np.ascontiguousarray(blocks.swapaxes(0, 1)).reshape(k, -1)


def column_block(tile: Any, k: int, block: int, rows: slice) -> jax.Array:
    """Some rows of a column block of a stored tile ref, `[rows, 128]`."""
    parts = []
    for unit, turn in units(block, k, tile.dtype.itemsize):
        cut, length = unit.stop - turn, unit.stop - unit.start
        for first, last, moved in ((unit.start, cut, turn), (cut, unit.stop, turn - length)):
            start, stop = max(first, rows.start), min(last, rows.stop)
            if start < stop:
                at = block * k + moved
                parts.append(tile[at + start : at + stop])
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=0)


def column_pair(tile: Any, k: int, pair: int, rows: slice | None = None) -> jax.Array:
    """Columns `256 * pair` to `256 * pair + 255` of a stored tile ref, `[rows, 256]`; by default all rows."""
    rows = slice(0, k) if rows is None else rows
    return jnp.concatenate([column_block(tile, k, 2 * pair + j, rows) for j in range(2)], axis=1)


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
        for start in range(0, k, MXU_COLUMNS):
            depth = min(MXU_COLUMNS, k - start)
            weights = column_pair(tile, k, pair, slice(start, start + depth))
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
    matrix = unstack_columns(np.asarray(tile[: columns // LANES * k]), k).astype(np.float64)
    return (np.asarray(rows, np.float64) @ matrix).astype(np.float32)
