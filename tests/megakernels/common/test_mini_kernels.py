"""Tile products, delta rule, convolution, online softmax and rotation, each against its own reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from megakernels.common import delta_rule, flash, gemv, rope
from megakernels.qwen.parameters import dequantize, quantize


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("k", "columns"), [(256, 256), (384, 512), (128, 1280)])
def test_tile_product(k: int, columns: int) -> None:
    rows = jnp.asarray(normal(8, k), jnp.bfloat16)
    matrix = np.asarray(jnp.asarray(normal(k, columns, seed=1), jnp.bfloat16))
    tile = gemv.stack_columns(matrix)
    assert tile.shape == (columns // 128 * k, 128)
    np.testing.assert_array_equal(gemv.unstack_columns(tile, k), matrix)
    product = gemv.tile_product(rows, jnp.asarray(tile), columns)
    expected = gemv.tile_product_reference(np.asarray(rows), tile, columns)
    np.testing.assert_allclose(product, expected, atol=1e-3)
    np.testing.assert_allclose(product, np.asarray(rows, np.float32) @ matrix.astype(np.float32), atol=1e-3)


@pytest.mark.parametrize(("k", "columns"), [(256, 256), (384, 512), (128, 256)])
def test_scaled_tile_product(k: int, columns: int) -> None:
    values, scales = quantize(normal(k, columns, seed=1))
    assert values.dtype == jnp.float8_e4m3fn
    rows = jnp.asarray(normal(8, k), jnp.bfloat16)
    zeros = jnp.zeros((8, 128), jnp.bfloat16)
    blocks = [gemv.split_by_parity(rows[:, b * 128 : (b + 1) * 128], zeros, b) for b in range(k // 128)]
    lanes = np.zeros((8, 128), np.float32)
    lanes[: k // 128, : columns // 128] = scales
    tile = jnp.asarray(gemv.stack_columns(values))
    product = gemv.scaled_tile_product(jnp.concatenate(blocks, axis=1), tile, columns, jnp.asarray(lanes))
    expected = np.asarray(rows, np.float32) @ dequantize(values, scales)
    np.testing.assert_allclose(product, expected, atol=1e-3)


def delta_inputs(heads: int) -> tuple[list[jax.Array], delta_rule.DeltaRow]:
    states = [jnp.asarray(normal(128, 128, seed=10 + i)) for i in range(heads)]
    unit = delta_rule.l2_normalize(jnp.asarray(normal(1, 128, seed=1)))
    row = delta_rule.DeltaRow(
        query=jnp.asarray(normal(1, 128)) * 0.1,
        key=unit,
        values=[jnp.asarray(normal(1, 128, seed=20 + i)) for i in range(heads)],
        decays=[jnp.full((1, 1), 0.9 - 0.1 * i) for i in range(heads)],
        betas=[jnp.full((1, 1), 0.3 + 0.2 * i) for i in range(heads)],
    )
    return states, row


def test_delta_step_and_its_replay() -> None:
    before, row = delta_inputs(3)
    after, again = list(before), list(before)
    outputs, errors = delta_rule.delta_step(row, after.__getitem__, after.__setitem__)
    delta_rule.delta_replay(row.key, row.decays, errors, again.__getitem__, again.__setitem__)
    for head in range(3):
        state, output = delta_rule.delta_step_reference(
            before[head],
            (row.query[0], row.key[0], row.values[head][0]),
            row.decays[head][0, 0],
            row.betas[head][0, 0],
        )
        np.testing.assert_allclose(after[head], state, atol=1e-5)
        np.testing.assert_allclose(again[head], state, atol=1e-5)
        np.testing.assert_allclose(outputs[head][0], output, atol=1e-5)


def test_causal_conv() -> None:
    inputs, taps = normal(4, 8, 128), normal(4, 1, 128, seed=1)
    total = delta_rule.causal_conv([jnp.asarray(i) for i in inputs], [jnp.asarray(t) for t in taps])
    np.testing.assert_allclose(total, np.einsum("trc,tc->rc", inputs, taps[:, 0]), atol=1e-5)


@pytest.mark.parametrize("block", [16, 32, 96])
def test_softmax_over_blocks(block: int) -> None:
    query = jnp.asarray(normal(6, 256) * 0.1, jnp.bfloat16)
    keys = jnp.asarray(normal(96, 256, seed=1), jnp.bfloat16)
    values = jnp.asarray(normal(96, 256, seed=2), jnp.bfloat16)
    # Row 3 sees its first token in the last block only.
    visible = (
        jnp.asarray(np.random.RandomState(3).rand(6, 96) < 0.5).at[3, :90].set(False).at[:, 95].set(True)
    )
    so_far = flash.softmax_start(6, 256)
    for first in range(0, 96, block):
        part = slice(first, first + block)
        so_far = flash.softmax_block(so_far, query, keys[part], values[part], visible[:, part])
    expected = flash.attention_reference(query, keys, values, visible)
    np.testing.assert_allclose(flash.softmax_finish(so_far), expected, atol=2e-2)


def test_a_row_that_saw_nothing_gives_zero() -> None:
    zeros = jnp.zeros((16, 128), jnp.bfloat16)
    start = flash.softmax_start(2, 128)
    after = flash.softmax_block(start, zeros[:2], zeros, zeros, jnp.zeros((2, 16), bool))
    np.testing.assert_array_equal(flash.softmax_finish(after), np.zeros((2, 128)))


@pytest.mark.parametrize("positions", [[0, 1, 2], [500, 4095, 262143]])
def test_rotate(positions: list[int]) -> None:
    rows, dims, theta = normal(3, 128), 64, 1e7
    table = rope.rope_table(262144, dims, theta)[positions]
    rotated = rope.rotate(jnp.asarray(rows), jnp.asarray(table), dims, roll=jnp.roll)
    expected = rope.rotate_reference(rows, np.asarray(positions), dims, theta)
    np.testing.assert_allclose(rotated, expected, atol=1e-5)
    np.testing.assert_array_equal(rotated[:, dims:], rows[:, dims:])
