"""Products of a row with MXFP4 weights, exact: nibbles become float8 in registers, scales come after.

The MXU has no 4-bit type, and scales of groups of 32 along k cannot be taken into float8 weights without
rounding. Both are avoided, at the cost of a few vector operations and rows the MXU has to spare:

* E2M1 fits into E4M3: two exponent bits and one mantissa bit go to the lowest exponent bits and the highest
  mantissa bit, the sign stays. Every value, the subnormal 0.5 included, comes out 2^-6 times itself; the
  factor 2^6 goes into the scales. A byte of E4M3 so uses 4 of its 8 bits (`CODE`), and a word of 8 nibbles is
  packed such that one mask gives four weights, two shifts, an exclusive or and a mask the other four.
* The MXU is 256 deep: 8 groups, whose sums must stay apart until they are scaled. So a row stands in 8 rows
  of the left operand, in each with one group and zeros elsewhere. The product's 8 sublanes are the group
  sums; times the scales of the block, added over blocks, and last over sublanes, they are the result.

Stored form of a matrix `[k, n]` (packed at load time, as many bits as published):

    weights  int32 [k / 8, n]: 32 words for each block of 256 rows; word w holds rows 4 w .. 4 w + 3 of the
             block's first half, byte by byte, in the bits of `CODE`, and with the others of the second half
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

helper_module(__file__)

BLOCK = 256  # rows of a matrix that the MXU adds up
GROUPS = BLOCK // MXFP4_GROUP
WORDS = BLOCK // 8  # rows of 32-bit words that hold a block
EXPONENT_SHIFT = 6  # E2M1 read as E4M3 is 2^-6 times itself
CODE = 0x9C  # bits of an E4M3 byte that hold a nibble: sign, two of the exponent, one of the mantissa
SMALLEST_SCALE, LARGEST_SCALE = 1, 254 - EXPONENT_SHIFT
F32_MANTISSA_BITS = 23


def pack_weights(nibbles: np.ndarray) -> np.ndarray:
    """Nibbles uint8 `[k, n]` to words int32 `[k / 8, n]`; k a multiple of 256.

    Raises:
        ValueError: k is no multiple of 256.
    """
    k, n = nibbles.shape
    if k % BLOCK:
        raise ValueError(f"a matrix of {k} rows does not split into blocks of {BLOCK}")
    halves = nibbles.reshape(k // BLOCK, 2, WORDS, 4, n).astype(np.uint32)
    codes = (halves & 8) << 4 | (halves & 7) << 2
    words = np.zeros((k // BLOCK, WORDS, n), np.uint32)
    for j in (3, 2, 1, 0):
        first, second = codes[:, 0, :, j], codes[:, 1, :, j]
        # The free bits 6, 5, 1, 0 are such that `second` = (word << 2) ^ (word >> 2) in the bits of CODE.
        above = words >> np.uint32(8 * j + 9) & 1 if j < 3 else np.uint32(0)
        bit5 = second >> 7 ^ above
        bit1 = second >> 3 & 1 ^ bit5
        bit6 = (second >> 4 ^ first >> 2) & 1
        bit0 = (second >> 2 ^ first >> 4) & 1
        words |= (first | bit6 << 6 | bit5 << 5 | bit1 << 1 | bit0) << np.uint32(8 * j)
    return words.reshape(k // 8, n).view(np.int32)


def scale_words(k: int) -> int:
    """Rows of scale words of a matrix of k rows."""
    return -(-k // (4 * BLOCK)) * GROUPS


def pack_scales(scale: np.ndarray) -> np.ndarray:
    """Scale bytes uint8 `[k / 32, n]` to words int32 `[scale_words(k), n]`, 2^6 taken in.

    Raises:
        ValueError: A scale is so small or large that a scaled weight would leave float32's normal range.
    """
    if scale.min() < SMALLEST_SCALE or scale.max() > LARGEST_SCALE:
        raise ValueError(
            f"scales run from {scale.min()} to {scale.max()}; exact products need "
            f"{SMALLEST_SCALE} to {LARGEST_SCALE}"
        )
    groups, n = scale.shape
    rows = scale_words(groups * MXFP4_GROUP)
    padded = np.zeros((rows * 4, n), np.uint32)
    padded[:groups] = scale.astype(np.uint32) + EXPONENT_SHIFT
    by_block = padded.reshape(rows // GROUPS, 4, GROUPS, n)
    words = sum(by_block[:, b] << np.uint32(8 * b) for b in range(4))
    return np.asarray(words, np.uint32).reshape(rows, n).view(np.int32)


def as_float8(words: jax.Array) -> jax.Array:
    """Words int32 `[32, n]` of a block to its weights, 2^-6 times themselves: float8_e4m3fn `[256, n]`."""
    code = jnp.int32(CODE * 0x01010101 - (1 << 32))
    first = words & code
    second = (words << 2 ^ lax.shift_right_logical(words, 2)) & code
    halves = [pltpu.bitcast(half, jnp.float8_e4m3fn) for half in (first, second)]
    return jnp.concatenate(halves, axis=0)


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
