"""MXFP4 against compressed-tensors (goldens) and against ml_dtypes' 4-bit and scale types."""

from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megakernels.k3.decode import decode_bits, scale_bits
from megakernels.k3.mxfp4 import LARGEST_SCALE, MXFP4_GROUP, dequantize, pack, quantize, unpack

GOLDENS = Path(__file__).parents[2] / "goldens" / "k3.npz"


def every_pair() -> tuple[np.ndarray, np.ndarray]:
    """All 256 bytes under every scale: packed [255, 256], scale [255, 16]."""
    packed = np.broadcast_to(np.arange(256, dtype=np.uint8), (255, 256)).copy()
    return packed, np.broadcast_to(np.arange(255, dtype=np.uint8)[:, None], (255, 16)).copy()


def test_every_byte_under_every_scale_as_compressed_tensors_decodes_it() -> None:
    with np.load(GOLDENS) as file:
        values, scales = file["mxfp4.values"].reshape(-1), file["mxfp4.scales"]
    packed, scale = every_pair()
    with np.errstate(over="ignore"):
        expected = values[None] * scales[:, None]  # float32 holds every product up to its range
    np.testing.assert_array_equal(dequantize(packed, scale), expected)


def test_every_byte_under_every_scale_as_ml_dtypes_decodes_it() -> None:
    packed, scale = every_pair()
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(255, 512)
    values = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    scales = np.repeat(scale, MXFP4_GROUP, -1).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    ours = dequantize(packed, scale)[: LARGEST_SCALE + 1]
    np.testing.assert_array_equal(ours, (values * scales)[: LARGEST_SCALE + 1])
    np.testing.assert_array_equal(ours, ours.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_a_scale_that_is_nan_spoils_its_group_only() -> None:
    values = dequantize(np.full((1, 32), 0x22, np.uint8), np.asarray([[255, 127]], np.uint8))
    assert np.isnan(values[0, :32]).all()
    assert (values[0, 32:] == 1).all()


def test_the_low_nibble_comes_first() -> None:
    assert unpack(np.asarray([0x21], np.uint8)).tolist() == [1, 2]
    assert pack(np.asarray([1, 2], np.uint8)).tolist() == [0x21]


def test_decoding_by_bits_is_exact() -> None:
    nibbles = jnp.arange(16, dtype=jnp.int32)
    expected = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    ours = np.asarray(decode_bits(nibbles).astype(jnp.float32))
    np.testing.assert_array_equal(ours, expected)
    assert np.signbit(ours[8])
    scales = np.arange(1, 255, dtype=np.uint8)
    np.testing.assert_array_equal(
        np.asarray(scale_bits(jnp.asarray(scales, jnp.int32)).astype(jnp.float32)),
        scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32),
    )


@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
@settings(max_examples=40, deadline=None)
def test_quantizing_what_mxfp4_holds_changes_nothing(seed: int, size: float) -> None:
    rng = np.random.RandomState(seed)
    values = (rng.standard_normal((3, 64)) * size).astype(np.float32)
    once = dequantize(*quantize(values))
    np.testing.assert_array_equal(dequantize(*quantize(once)), once)
    largest = np.abs(values).reshape(3, 2, 32).max(-1, keepdims=True)
    # The widest gap is 2 where the largest value is between 3 and 6 times the scale.
    assert (np.abs(once - values).reshape(3, 2, 32) <= largest / 3).all()


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 16\)"):
        dequantize(np.zeros((2, 32), np.uint8), np.zeros((2, 1), np.uint8))
    with pytest.raises(ValueError, match="uint8"):
        dequantize(np.zeros((2, 16), np.int8), np.zeros((2, 1), np.uint8))
    with pytest.raises(ValueError, match="33"):
        quantize(np.zeros((1, 33), np.float32))
