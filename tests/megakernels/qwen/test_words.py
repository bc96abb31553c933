"""Rows as words: each half rounded as bfloat16 rounds, ties to even, and back."""

import jax.numpy as jnp
import numpy as np
import pytest

from megakernels.qwen.words import from_words, to_words


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_words_hold_both_halves_as_bfloat16_rounds_them(rows) -> None:
    rng = np.random.RandomState(rows)
    values = (rng.standard_normal((rows, 512)) * 10.0 ** rng.randint(-30, 30, (rows, 512))).astype(np.float32)
    bits = values.view(np.uint32)
    bits[:, ::7] = bits[:, ::7] & 0xFFFF0000 | 0x8000  # halfway between two bfloat16
    values[:, ::11] = 0.0
    values[:, 1::11] = -0.0
    words = to_words(jnp.asarray(values))
    assert (words.shape, words.dtype) == ((rows, 256), jnp.uint32)
    back = np.concatenate([np.asarray(half) for half in from_words(words)], axis=1)
    expected = np.asarray(jnp.asarray(values).astype(jnp.bfloat16).astype(jnp.float32))
    np.testing.assert_array_equal(back.view(np.uint32), expected.view(np.uint32))
