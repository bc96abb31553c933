"""One step of the delta rule on states held in VMEM, and the short convolution before it.

A head's state S is `[key dim, value dim]` float32, key channels on sublanes and value channels on lanes.
With a decay d and a write strength b (scalars per value head):

    S <- d S;   e = b (v - S^T k);   S <- S + k e^T;   o = S^T q

The kernel reads S once: with u = S^T k and w = S^T q of the old state, e = b (v - d u) and
o = d w + (k.q) e. Both sums run down the sublanes, so k and q are needed as columns repeated along the
lanes: one transposition each, shared by the value heads of a key head.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from megakernels.hooks import helper_module

helper_module(__file__)


class DeltaRow(NamedTuple):
    """What one row (token) brings to the value heads of one key head."""

    query: jax.Array  # [1, key dim] f32, normalized and scaled
    key: jax.Array  # [1, key dim] f32, normalized
    values: Sequence[jax.Array]  # per value head [1, value dim] f32
    decays: Sequence[jax.Array]  # per value head [1, 1] f32, the factor itself
    betas: Sequence[jax.Array]  # per value head [1, 1] f32


def as_columns(row: jax.Array, width: int) -> jax.Array:
    """`[1, n]` to `[n, width]` with every column equal to the row."""
    return jnp.broadcast_to(row, (width, row.shape[-1])).T


def delta_step(
    row: DeltaRow, read: Callable[[int], jax.Array], write: Callable[[int, jax.Array], None]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Advance the states of the value heads of one key head by one row.

    Args:
        row: The row's vectors.
        read: Gives the state of value head i, `[key dim, value dim]`.
        write: Takes the new state of value head i.

    Returns:
        Outputs and errors e (what was written along k), per value head `[1, value dim]`.
    """
    width = row.values[0].shape[-1]
    key, query = as_columns(row.key, width), as_columns(row.query, width)
    key_query = jnp.sum(row.key * row.query, axis=-1, keepdims=True)
    outputs, errors = [], []
    for head, (value, decay, beta) in enumerate(zip(row.values, row.decays, row.betas, strict=True)):
        state = read(head)
        predicted = jnp.sum(state * key, axis=0, keepdims=True)
        queried = jnp.sum(state * query, axis=0, keepdims=True)
        error = beta * (value - decay * predicted)
        write(head, decay * state + key * error)
        outputs.append(decay * queried + key_query * error)
        errors.append(error)
    return outputs, errors


def delta_replay(
    key: jax.Array,
    decays: Sequence[jax.Array],
    errors: Sequence[jax.Array],
    read: Callable[[int], jax.Array],
    write: Callable[[int, jax.Array], None],
) -> None:
    """Apply a row again from what it left behind: S <- d S + k e^T for each value head of one key head."""
    columns = as_columns(key, errors[0].shape[-1])
    for head, (decay, error) in enumerate(zip(decays, errors, strict=True)):
        write(head, decay * read(head) + columns * error)


def delta_step_reference(
    state: jax.Array,
    vectors: tuple[jax.Array, jax.Array, jax.Array],
    decay: float | jax.Array,
    beta: float | jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """One head, one row, in the order of the equations.

    Args:
        state: `[key dim, value dim]` float32.
        vectors: Query and key `[key dim]`, value `[value dim]`.
        decay: The factor d.
        beta: The write strength b.

    Returns:
        The new state and the output `[value dim]`.
    """
    query, key, value = vectors
    state = decay * state
    error = beta * (value - jnp.einsum("kv,k->v", state, key, precision="highest"))
    state = state + key[:, None] * error[None, :]
    return state, jnp.einsum("kv,k->v", state, query, precision="highest")


def causal_conv(history: Sequence[jax.Array], taps: Sequence[jax.Array]) -> jax.Array:
    """Sum of taps times inputs, oldest first: arrays `[rows, channels]` and taps `[1, channels]`, float32."""
    total = history[0] * taps[0]
    for inputs, tap in zip(history[1:], taps[1:], strict=True):
        total = total + inputs * tap
    return total


def l2_normalize(rows: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """`rows / sqrt(sum rows^2 + epsilon)` along lanes, float32."""
    return rows * lax.rsqrt(jnp.sum(rows * rows, axis=-1, keepdims=True) + epsilon)
