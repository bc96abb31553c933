"""Products of a few rows with MXFP4 weights, exact: nibbles become float8 in registers, scales come after.

The MXU has no 4-bit type, and scales of groups of 32 along k cannot be taken into float8 weights without
rounding. Both are avoided, at the cost of a few vector operations and rows the MXU has to spare:

* E2M1 fits into E4M3: two exponent bits and one mantissa bit go to the lowest exponent bits and the highest
  mantissa bit, the sign stays. Every value, the subnormal 0.5 included, comes out 2^-6 times itself. Two
  shifts, three masks and an or make four weights; the factor 2^6 goes into the scales.
* The MXU is 256 deep: 8 groups, whose sums must stay apart until they are scaled. So each row stands in 8
  rows of the left operand, in each with one group and zeros elsewhere. The product's 8 sublanes are the
  group sums; times the scales of the block, added over blocks, and last over sublanes, they are the result.

Stored form of a matrix `[k, n]` (packed at load time, a permutation of the published bytes):

    weights  int32 [k / 8, n]: 32 words for each block of 256 rows; the low nibbles of word w, byte by byte,
             are rows 4 w .. 4 w + 3 of the block's first half, the high nibbles those of its second half
    scales   int32 [ceil(k / 1024) * 8, n]: byte b of word 8 q + g is group g of block 4 q + b
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from megakernels.hooks import helper_module
from megakernels.k3.config import MXFP4_GROUP

helper_module(__file__)

BLOCK = 256  # rows of a matrix that the MXU adds up
GROUPS = BLOCK // MXFP4_GROUP
WORDS = BLOCK // 8  # rows of 32-bit words that hold a block
EXPONENT_SHIFT = 6  # E2M1 read as E4M3 is 2^-6 times itself
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
    bytes_ = halves[:, 0] | halves[:, 1] << 4
    words = sum(bytes_[:, :, j] << np.uint32(8 * j) for j in range(4))
    return np.asarray(words, np.uint32).reshape(k // 8, n).view(np.int32)


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
    low = (words & 0x08080808) << 4 | (words & 0x07070707) << 2
    # The topmost sign stays where it is; bits shifted in from above are masked away.
    high = words & jnp.int32(-0x7F7F7F80) | words >> 2 & 0x1C1C1C1C
    halves = [pltpu.bitcast(half, jnp.float8_e4m3fn) for half in (low, high)]
    return jnp.concatenate(halves, axis=0)


def block_scales(words: jax.Array, place: int) -> jax.Array:
    """Scales of one of the four blocks that words int32 `[8, n]` hold: float32 `[8, n]`."""
    exponent = lax.shift_right_logical(words, 8 * place) & 0xFF
    return lax.bitcast_convert_type(exponent << F32_MANTISSA_BITS, jnp.float32)


def spread_groups(rows: jax.Array) -> jax.Array:
    """Rows bf16 `[m, 256]` to `[8 m, 256]`: row 8 i + g holds group g of row i and zeros."""
    m = rows.shape[0]
    # float32 for the moves along sublanes, which bf16 packs in pairs; both ways are exact.
    wide = rows.astype(jnp.float32)
    copies = [jnp.broadcast_to(wide[i : i + 1], (GROUPS, BLOCK)) for i in range(m)]
    group = lax.broadcasted_iota(jnp.int32, (GROUPS, BLOCK), 1) // MXFP4_GROUP
    own = group == lax.broadcasted_iota(jnp.int32, (GROUPS, BLOCK), 0)
    return jnp.concatenate([jnp.where(own, c, 0.0) for c in copies], axis=0).astype(rows.dtype)


def product(spread: Callable[[int], jax.Array], weights: Any, scales: Any, columns: slice) -> jax.Array:
    """`rows @ matrix` for some columns of a stored matrix, float32 `[m, columns]`.

    Args:
        spread: Gives `spread_groups` of the rows' block b, bf16 `[8 m, 256]`.
        weights: Ref int32 `[k / 8, n]`.
        scales: Ref int32 `[scale_words(k), n]`.
        columns: Which, a multiple of 256 wide.
    """
    sums: list[jax.Array] = []
    for block in range(weights.shape[0] // WORDS):
        tile = as_float8(weights[block * WORDS : (block + 1) * WORDS, columns])
        by_group = jnp.dot(spread(block), tile, preferred_element_type=jnp.float32)
        first = block // 4 * GROUPS
        factor = block_scales(scales[first : first + GROUPS, columns], block % 4)
        parts = [by_group[i : i + GROUPS] * factor for i in range(0, by_group.shape[0], GROUPS)]
        sums = [s + p for s, p in zip(sums, parts, strict=True)] if sums else parts
    return jnp.concatenate([jnp.sum(s, axis=0, keepdims=True) for s in sums], axis=0)
