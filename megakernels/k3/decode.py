"""MXFP4 decoded with shifts and masks, as a kernel does it; exact."""

import jax
import jax.numpy as jnp


def decode_bits(nibbles: jax.Array) -> jax.Array:
    """Nibbles (int32, low 4 bits) to the bfloat16 values they stand for, scale aside, with shifts and masks.

    A magnitude with exponent e > 0 and mantissa m is 2^(e - 1) * (1 + m / 2): its bits move into bfloat16's
    fields as they are, 126 added to the exponent. e = 0 stands for 0 and 0.5 and is chosen explicitly, for
    the trick that makes it a subnormal first fails on a TPU, which reads subnormals as zero.
    """
    magnitude = nibbles & 7
    sign = (nibbles & 8) << 12
    normal = (magnitude << 6) + (126 << 7)
    bits = jnp.where(magnitude > 1, normal, jnp.where(magnitude == 1, 126 << 7, 0)) | sign
    return jax.lax.bitcast_convert_type(bits.astype(jnp.uint16), jnp.bfloat16)


def scale_bits(scale: jax.Array) -> jax.Array:
    """Scale bytes (int32) to bfloat16 powers of two; exact for bytes 1 to 254."""
    return jax.lax.bitcast_convert_type((scale << 7).astype(jnp.uint16), jnp.bfloat16)
