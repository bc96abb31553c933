"""One step of KDA's delta rule on states held in VMEM: every key channel decays by a factor of its own.

A head's state S is `[key dim, value dim]` float32, key channels on sublanes and value channels on lanes. With
decays d (per key channel) and a write strength b:

    S <- diag(d) S;   e = b (v - S^T k);   S <- S + k e^T;   o = S^T q

The kernel reads S once: with u = S^T (d k) and w = S^T (d q) of the old state, e = b (v - u) and
o = w + (k.q) e. The sums run down the sublanes, so d, k and q are needed as columns repeated along lanes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from megakernels.common.delta_rule import as_columns
from megakernels.hooks import helper_module

helper_module(__file__)


class ChannelRow(NamedTuple):
    """What one row (token) brings to a head."""

    query: jax.Array  # [1, key dim] f32, normalized and scaled
    key: jax.Array  # [1, key dim] f32, normalized
    decay: jax.Array  # [1, key dim] f32, the factor itself
    value: jax.Array  # [1, value dim] f32
    beta: jax.Array  # [1, 1] f32


def channel_step(state: jax.Array, row: ChannelRow) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Advance a head's state `[key dim, value dim]` by one row.

    Returns:
        The new state, the output and the error e, `[1, value dim]` both.
    """
    width = row.value.shape[-1]
    key, decay = as_columns(row.key, width), as_columns(row.decay, width)
    query = as_columns(row.query, width)
    decayed = state * decay
    predicted = jnp.sum(decayed * key, axis=0, keepdims=True)
    queried = jnp.sum(decayed * query, axis=0, keepdims=True)
    key_query = jnp.sum(row.key * row.query, axis=-1, keepdims=True)
    error = row.beta * (row.value - predicted)
    return decayed + key * error, queried + key_query * error, error


def channel_replay(state: jax.Array, key: jax.Array, decay: jax.Array, error: jax.Array) -> jax.Array:
    """Apply a row again from what it left behind, `[1, n]` each: S <- diag(d) S + k e^T."""
    width = error.shape[-1]
    return as_columns(decay, width) * state + as_columns(key, width) * error
