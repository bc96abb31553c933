"""Partial rotary position encoding of rows that lie along lanes.

Pairs (i, i + half) of the first `2 * half` lanes rotate by position * frequency[i]. A table row holds what
one position needs, 128 float32: cos | cos | -sin | sin, each `half` wide, zero beyond. Reading a row of a
table is exact at any position, where sines of large angles computed in float32 are not.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from megakernels.hooks import helper_module

helper_module(__file__)

LANES = 128


def rope_table(positions: int, dims: int, theta: float) -> np.ndarray:
    """Table for positions 0 .. positions - 1, float32 `[positions, 128]`; 2 * dims lanes of it are used."""
    half = dims // 2
    frequencies = 1.0 / theta ** (np.arange(half, dtype=np.float64) * 2 / dims)
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    table = np.zeros((positions, LANES), np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    table[:, : 4 * half] = np.concatenate([cos, cos, -sin, sin], axis=1)
    return table


def rotate(rows: jax.Array, table: jax.Array, dims: int, roll: Any = pltpu.roll) -> jax.Array:
    """Rotate the first `dims` lanes of `rows` `[m, 128]` float32 by table rows `[m, 128]`.

    Lane i takes cos * itself plus (-sin or sin) * its partner, which stands half a turn away.
    """
    half = dims // 2
    lane = jax.lax.broadcasted_iota(jnp.int32, rows.shape, 1)
    sines = roll(table, LANES - dims, 1)
    partner = jnp.where(lane < half, roll(rows, LANES - half, 1), roll(rows, half, 1))
    return jnp.where(lane < dims, rows * table + partner * sines, rows)


def rotate_reference(rows: np.ndarray, positions: np.ndarray, dims: int, theta: float) -> np.ndarray:
    """What `rotate` means, float64 inside; rows `[m, n]`, positions `[m]`."""
    half = dims // 2
    angles = positions[:, None] / theta ** (np.arange(half) * 2 / dims)
    first, second = rows[:, :half], rows[:, half:dims]
    cos, sin = np.cos(angles), np.sin(angles)
    out = [first * cos - second * sin, second * cos + first * sin, rows[:, dims:]]
    return np.concatenate(out, axis=1).astype(np.float32)
