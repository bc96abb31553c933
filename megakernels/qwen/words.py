"""Few bfloat16 rows as 32-bit words, two elements each.

In memory rows of bfloat16 come in pairs, and fewer than 8 of them in tiles of their own: as such they would
be shuffled between sublanes by a table that is reloaded for every tile, and a lone row would travel with an
empty one. Instead the two halves of a row's columns share words: the low 16 bits are an element of the first
half, the high 16 bits one of the second. Every element stays in the sublane it was computed in.
"""

import jax
import jax.numpy as jnp
from jax import lax

HALF_WORD = 16


def _rounded_bits(values: jax.Array) -> jax.Array:
    """Bits of finite float32 values, the upper 16 rounded to nearest even as a bfloat16's are."""
    bits = lax.bitcast_convert_type(values, jnp.uint32)
    odd = (bits >> HALF_WORD) & jnp.uint32(1)
    return bits + jnp.uint32(0x7FFF) + odd


def to_words(rows: jax.Array) -> jax.Array:
    """float32 `[rows, 2 n]` as words uint32 `[rows, n]`."""
    half = rows.shape[1] // 2
    low, high = _rounded_bits(rows[:, :half]), _rounded_bits(rows[:, half:])
    return (low >> HALF_WORD) | (high & jnp.uint32(0xFFFF0000))


def from_words(words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Elements of the first and of the second half, float32, in the shape of the words."""
    first, second = words << HALF_WORD, words & jnp.uint32(0xFFFF0000)
    return lax.bitcast_convert_type(first, jnp.float32), lax.bitcast_convert_type(second, jnp.float32)
