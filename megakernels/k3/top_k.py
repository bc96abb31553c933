"""The router's choice: the scores of the best experts of each row, 0 for the others."""

import jax
import jax.numpy as jnp
from jax import lax

from megakernels.common.gemv import LANES
from megakernels.hooks import helper_module
from megakernels.k3.step_plan import NO_EXPERT

helper_module(__file__)

TAKEN = 2 * NO_EXPERT  # below every key, that of an expert that does not exist included
NOWHERE = 1e9  # above every expert's number


def chosen(scores: list[jax.Array], keys: list[jax.Array], active: int) -> list[jax.Array]:
    """Scores of the `active` experts with the highest keys, 0 for the others.

    Of equal keys the expert with the lower number comes first.

    Args:
        scores: Blocks f32 `[8, 128]`, experts along lanes.
        keys: The same with the correction bias; NO_EXPERT where there is none.
        active: How many to take.
    """
    lane = lax.broadcasted_iota(jnp.int32, scores[0].shape, 1).astype(jnp.float32)
    numbers = [lane + float(LANES * block) for block in range(len(keys))]

    def take(_: jax.Array, left: list[jax.Array]) -> list[jax.Array]:
        best = along_lanes(tree(jnp.maximum, left), jnp.max)
        first = [jnp.where(key == best, number, NOWHERE) for key, number in zip(left, numbers, strict=True)]
        taken = along_lanes(tree(jnp.minimum, first), jnp.min)
        return [jnp.where(n == taken, TAKEN, key) for key, n in zip(left, numbers, strict=True)]

    left = lax.fori_loop(0, active, take, keys)
    return [jnp.where(key == TAKEN, score, 0.0) for key, score in zip(left, scores, strict=True)]


def tree(combine: object, values: list[jax.Array]) -> jax.Array:
    """Values combined pair by pair: a short chain of operations."""
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]  # type: ignore[operator]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def along_lanes(values: jax.Array, reduce: object) -> jax.Array:
    """`[8, 128]` reduced over lanes, the result in all of them."""
    return jnp.broadcast_to(reduce(values, axis=-1, keepdims=True), values.shape)  # type: ignore[operator]
