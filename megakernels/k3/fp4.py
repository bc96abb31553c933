"""Products of a row with MXFP4 weights, exact: nibbles become float8 in registers, scales come after.

The MXU has no 4-bit type, and scales of groups of 32 along k cannot be taken into float8 weights without
rounding. Both are avoided, at the cost of a few vector operations and rows the MXU has to spare:

* Every value of E2M1 is one of E4M3, and TPU7x converts registers of one to the other: four operations for
  1,024 words of 8 nibbles, as published.
* The MXU is 256 deep: 8 groups, whose sums must stay apart until they are scaled. So a row stands in 8 rows
  of the left operand, in each with one group and zeros elsewhere. The product's 8 sublanes are the group
  sums; times the scales of the block, added over blocks, and last over sublanes, they are the result.

Stored form of a matrix `[k, n]` (packed at load time, as many bits as published):

    weights  int32 [k / 8, n]: word w holds rows 8 w .. 8 w + 7, the first in the lowest bits
    scales   int32 [ceil(k / 1024) * 8, n]: byte b of word 8 q + g is group g of block 4 q + b
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.gemv import LANES
from megakernels.hooks import helper_module
from megakernels.k3.config import MXFP4_GROUP
from megakernels.k3.mxfp4 import LARGEST_SCALE, SMALLEST_SCALE

helper_module(__file__)

BLOCK = 256  # rows of a matrix that the MXU adds up
GROUPS = BLOCK // MXFP4_GROUP
NIBBLES = 8  # in a word
WORDS = BLOCK // NIBBLES  # rows of 32-bit words that hold a block
F32_MANTISSA_BITS = 23


def pack_weights(nibbles: np.ndarray) -> np.ndarray:
    """Nibbles uint8 `[k, n]` to words int32 `[k / 8, n]`; k a multiple of 256.

    Raises:
        ValueError: k is no multiple of 256.
    """
    k, n = nibbles.shape
    if k % BLOCK:
        raise ValueError(f"a matrix of {k} rows does not split into blocks of {BLOCK}")
    rows = nibbles.reshape(-1, NIBBLES, n)
    words = rows[:, 0].astype(np.uint32)
    for place in range(1, NIBBLES):
        words |= rows[:, place].astype(np.uint32) << np.uint32(4 * place)
    return words.view(np.int32)


def scale_words(k: int) -> int:
    """Rows of scale words of a matrix of k rows."""
    return -(-k // (4 * BLOCK)) * GROUPS


def pack_scales(scale: np.ndarray) -> np.ndarray:
    """Scale bytes uint8 `[k / 32, n]` to words int32 `[scale_words(k), n]`.

    Raises:
        ValueError: A weight times its scale would leave float32's normal range.
    """
    if scale.min() < SMALLEST_SCALE or scale.max() > LARGEST_SCALE:
        raise ValueError(
            f"scales run from {scale.min()} to {scale.max()}; exact products need "
            f"{SMALLEST_SCALE} to {LARGEST_SCALE}"
        )
    groups, n = scale.shape
    rows = scale_words(groups * MXFP4_GROUP)
    padded = np.zeros((rows * 4, n), np.uint32)
    padded[:groups] = scale
    by_block = padded.reshape(rows // GROUPS, 4, GROUPS, n)
    words = sum(by_block[:, b] << np.uint32(8 * b) for b in range(4))
    return np.asarray(words, np.uint32).reshape(rows, n).view(np.int32)


def as_float8(words: jax.Array) -> jax.Array:
    """Words int32 `[32, n]` of a block to its weights, float8_e4m3fn `[256, n]`."""
    return pltpu.bitcast(words, jnp.float4_e2m1fn).astype(jnp.float8_e4m3fn)


def block_scales(words: jax.Array, place: int) -> jax.Array:
    """Scales of one of the four blocks that words int32 `[8, n]` hold: float32 `[8, n]`."""
    left = F32_MANTISSA_BITS - 8 * place
    moved = words << left if left > 0 else lax.shift_right_logical(words, -left)
    return lax.bitcast_convert_type(moved & 0xFF << F32_MANTISSA_BITS, jnp.float32)


def spread_groups(rows: jax.Array) -> jax.Array:
    """Rows bf16 `[m, 256]` to `[8 m, 256]`: row 8 i + g holds group g of row i and zeros."""
    m = rows.shape[0]
    # float32 for the moves along sublanes, which bf16 packs in pairs; both ways are exact.
    wide = rows.astype(jnp.float32)
    copies = [jnp.broadcast_to(wide[i : i + 1], (GROUPS, BLOCK)) for i in range(m)]
    group = lax.broadcasted_iota(jnp.int32, (GROUPS, BLOCK), 1) // MXFP4_GROUP
    own = group == lax.broadcasted_iota(jnp.int32, (GROUPS, BLOCK), 0)
    return jnp.concatenate([jnp.where(own, c, 0.0) for c in copies], axis=0).astype(rows.dtype)


def block_product(spread: jax.Array, words: jax.Array, scales: jax.Array, place: int) -> jax.Array:
    """Group sums of rows with one block of a matrix, scaled: float32 `[8 m, n]`.

    Args:
        spread: `spread_groups` of the rows' block, bf16 `[8 m, 256]`.
        words: The block's weights, int32 `[32, n]`.
        scales: The scale words that hold the block's, int32 `[8, n]`.
        place: Which of the four blocks they hold.
    """
    weights = as_float8(words)
    # 128 columns at a time: then the compiler feeds both matrix units in the same cycles.
    halves = [weights[:, first : first + LANES] for first in range(0, words.shape[1], LANES)]
    by_group = [jnp.dot(spread, half, preferred_element_type=jnp.float32) for half in halves]
    factor = jnp.concatenate([block_scales(scales, place)] * (spread.shape[0] // GROUPS), axis=0)
    return jnp.concatenate(by_group, axis=1) * factor


def group_sums(spread: Callable[[int], jax.Array], weights: Any, scales: Any) -> jax.Array:
    """Group sums of rows with a stored matrix, float32 `[8 m, n]`: 8 of them added up are a row's product.

    Args:
        spread: Gives `spread_groups` of the rows' block b, bf16 `[8 m, 256]`.
        weights: Ref int32 `[k / 8, n]`.
        scales: Ref int32 `[scale_words(k), n]`.
    """
    total = None
    for block in range(weights.shape[0] // WORDS):
        words = weights[block * WORDS : (block + 1) * WORDS]
        first = block // 4 * GROUPS
        sums = block_product(spread(block), words, scales[first : first + GROUPS], block % 4)
        total = sums if total is None else total + sums
    return total
