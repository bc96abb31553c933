"""Exact products with MXFP4 weights: every code through float8, whole products in a kernel."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from megakernels.k3.fp4 import as_float8, block_scales, pack_scales, pack_weights, spread_groups


def test_every_code_becomes_float8_exactly() -> None:
    rng = np.random.RandomState(0)
    nibbles = rng.randint(0, 16, (256, 128)).astype(np.uint8)
    nibbles[:16, 0] = nibbles[-16:, 0] = np.arange(16)
    words = pack_weights(nibbles)
    assert words.shape == (32, 128)
    ours = np.asarray(jax.jit(as_float8)(jnp.asarray(words)).astype(jnp.float32))
    expected = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(np.signbit(ours), nibbles >= 8)


def test_scales_are_powers_of_two() -> None:
    scale = np.random.RandomState(1).randint(2, 253, (40, 128)).astype(np.uint8)  # 1280 rows: 5 blocks
    words = jnp.asarray(pack_scales(scale))
    assert words.shape == (16, 128)
    for block in range(5):
        ours = block_scales(words[block // 4 * 8 : block // 4 * 8 + 8], block % 4)
        theirs = np.exp2(scale[8 * block : 8 * block + 8].astype(np.float64) - 127)
        np.testing.assert_array_equal(np.asarray(ours, np.float64), theirs)


@pytest.mark.parametrize("scale", [1, 253])
def test_scales_out_of_range_are_refused(scale: int) -> None:
    with pytest.raises(ValueError, match="exact products need 2 to 252"):
        pack_scales(np.full((8, 128), scale, np.uint8))


def test_blocks_must_be_whole() -> None:
    with pytest.raises(ValueError, match="300 rows"):
        pack_weights(np.zeros((300, 128), np.uint8))


def test_spread_rows_keep_their_groups_apart() -> None:
    rows = jnp.asarray(np.random.RandomState(2).standard_normal((2, 256)), jnp.bfloat16)
    spread = np.asarray(spread_groups(rows).astype(jnp.float32))
    for i in range(2):
        for group in range(8):
            row = np.zeros(256, np.float32)
            here = slice(32 * group, 32 * group + 32)
            row[here] = np.asarray(rows[i].astype(jnp.float32))[here]
            np.testing.assert_array_equal(spread[8 * i + group], row)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1280, 512), (8, 768, 256)])
def test_product_equals_the_decoded_weights(simulated, m: int, k: int, n: int) -> None:
    run = simulated("k3:fp4_product", m=m, k=k, n=n).clean()
    error = np.abs(run["got"] - run["want"]).max() / np.abs(run["want"]).max()
    assert error < 1e-6  # sums in float32 of exact products
