"""MXFP4: weights of 4 bits (E2M1), 32 of which share a scale of 8 bits (E8M0, a power of two).

A weight row of n values is stored as n / 2 bytes, the first of two values in the low nibble, and n / 32 scale
bytes. A nibble is sign, two bits of exponent, one of mantissa; scale byte e means 2^(e - 127), 255 is NaN.
Every value has two significant bits, so bfloat16 holds it exactly: no decoding here rounds.
"""

import numpy as np

from megakernels.k3.config import MXFP4_GROUP

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SCALE_BIAS = 127
SCALE_NAN = 255
# Scales whose values are all normal, finite numbers of float32 and bfloat16: 0.5 * 2^-125 and 6 * 2^125.
SMALLEST_SCALE = 2
LARGEST_SCALE = 252


def check_shapes(packed: np.ndarray, scale: np.ndarray) -> None:
    """Refuse arrays that are not a packed pair.

    Raises:
        ValueError: The dtypes are not bytes, or the last axes do not belong together.
    """
    if packed.dtype != np.uint8 or scale.dtype != np.uint8:
        raise ValueError(f"MXFP4 weights and scales are bytes (uint8), not {packed.dtype} and {scale.dtype}")
    expected = (*scale.shape[:-1], scale.shape[-1] * MXFP4_GROUP // 2)
    if packed.shape != expected:
        raise ValueError(f"scales {scale.shape} belong to packed weights {expected}, not {packed.shape}")


def unpack(packed: np.ndarray) -> np.ndarray:
    """Bytes `[..., n / 2]` to nibbles `[..., n]`, uint8."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def pack(nibbles: np.ndarray) -> np.ndarray:
    """The inverse of `unpack`."""
    return (nibbles[..., 0::2] | nibbles[..., 1::2] << 4).astype(np.uint8)


def dequantize(packed: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Packed pair to float32 values.

    Args:
        packed: uint8 `[..., n / 2]`.
        scale: uint8 `[..., n / 32]`.

    Returns:
        float32 `[..., n]`, exact for scales up to 252; above, what float32 cannot hold becomes infinite, and
        a scale of 255 gives NaN.

    Raises:
        ValueError: The arrays are not a packed pair.
    """
    check_shapes(packed, scale)
    nibbles = unpack(packed)
    values = np.asarray(MAGNITUDES, np.float32)[nibbles & 7]
    values = np.where(nibbles & 8, -values, values)
    exponents = np.repeat(scale.astype(np.int32) - SCALE_BIAS, MXFP4_GROUP, axis=-1)
    with np.errstate(over="ignore", under="ignore"):
        values = np.ldexp(values, exponents).astype(np.float32)
    nan = np.repeat(scale == SCALE_NAN, MXFP4_GROUP, axis=-1)
    return np.where(nan, np.float32(np.nan), values)


def quantize(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nearest MXFP4 form of float32 values, for making weights: a scale that keeps each group's largest <= 6.

    Args:
        values: float32 `[..., n]`, n a multiple of 32.

    Returns:
        packed uint8 `[..., n / 2]`, scale uint8 `[..., n / 32]`.

    Raises:
        ValueError: n is no multiple of 32.
    """
    if values.shape[-1] % MXFP4_GROUP:
        raise ValueError(f"the last axis is {values.shape[-1]}; MXFP4 groups {MXFP4_GROUP} values")
    groups = values.reshape(*values.shape[:-1], -1, MXFP4_GROUP).astype(np.float64)
    largest = np.abs(groups).max(axis=-1)
    with np.errstate(divide="ignore"):
        exponent = np.where(largest > 0, np.ceil(np.log2(largest / MAGNITUDES[-1])), 0)
    scale = np.clip(exponent + SCALE_BIAS, SMALLEST_SCALE, LARGEST_SCALE).astype(np.uint8)
    scaled = groups / np.exp2(scale.astype(np.float64) - SCALE_BIAS)[..., None]
    between = (np.asarray(MAGNITUDES[1:]) + np.asarray(MAGNITUDES[:-1])) / 2
    nibbles = np.searchsorted(between, np.abs(scaled)).astype(np.uint8)
    nibbles |= np.where(scaled < 0, 8, 0).astype(np.uint8)
    return pack(nibbles.reshape(values.shape)), scale
