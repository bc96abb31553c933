"""Online-softmax attention over blocks of keys and values as they arrive from HBM."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from megakernels.hooks import helper_module

helper_module(__file__)

# Stands for minus infinity: finite, so that a row which has seen nothing yet gives 0 and not NaN.
NOTHING = -1e30


class Softmax(NamedTuple):
    """Attention so far: values summed with weights exp(score - highest)."""

    highest: jax.Array  # [rows, 1] f32
    total: jax.Array  # [rows, 1] f32
    values: jax.Array  # [rows, value dim] f32


def softmax_start(rows: int, width: int) -> Softmax:
    """Before the first block."""
    return Softmax(
        jnp.full((rows, 1), NOTHING, jnp.float32),
        jnp.zeros((rows, 1), jnp.float32),
        jnp.zeros((rows, width), jnp.float32),
    )


def softmax_block(
    so_far: Softmax, query: jax.Array, keys: jax.Array, values: jax.Array, visible: jax.Array
) -> Softmax:
    """Take in one block of tokens.

    Args:
        so_far: What earlier blocks gave.
        query: `[rows, key dim]` bfloat16, scaled already.
        keys: `[tokens, key dim]` bfloat16.
        values: `[tokens, value dim]` bfloat16, finite in invisible rows too.
        visible: `[rows, tokens]` bool.
    """
    both_last = (((1,), (1,)), ((), ()))
    scores = lax.dot_general(query, keys, both_last, preferred_element_type=jnp.float32)
    scores = jnp.where(visible, scores, NOTHING)
    highest = jnp.maximum(so_far.highest, jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.where(visible, jnp.exp(scores - highest), 0.0)
    keep = jnp.exp(so_far.highest - highest)
    total = so_far.total * keep + jnp.sum(weights, axis=-1, keepdims=True)
    update = jnp.dot(weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
    return Softmax(highest, total, so_far.values * keep + update)


def softmax_finish(so_far: Softmax) -> jax.Array:
    """The attention output `[rows, value dim]` float32; a row that saw no token gives 0."""
    return so_far.values / jnp.maximum(so_far.total, 1e-30)


def attention_reference(
    query: jax.Array, keys: jax.Array, values: jax.Array, visible: jax.Array
) -> jax.Array:
    """The same in one piece, float32."""
    scores = jnp.einsum("rd,td->rt", query.astype(jnp.float32), keys.astype(jnp.float32), precision="highest")
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
    return jnp.einsum("rt,td->rd", weights, values.astype(jnp.float32), precision="highest")
