"""The greedy token over a vocabulary whose logits are spread over cores."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from megakernels.common.exchange import Exchange
from megakernels.common.gemv import LANES
from megakernels.hooks import helper_module

helper_module(__file__)

NO_LOGIT = -3e38  # below any logit, above minus infinity
NO_TOKEN = 3e38


def greedy(best: jax.Array, place: jax.Array, first: Any, exchanges: Sequence[Exchange]) -> jax.Array:
    """The token with the highest logit of all cores; of equal ones the first.

    Args:
        best: f32 `[8, n]`, highest logits this core has met, lane by lane.
        place: i32 `[8, n]`, where each stands in the core's share of the vocabulary.
        first: i32, the share's first token.
        exchanges: One after the other they reach every core; mailboxes f32 `[2, 8, 128]`, members in the
            order of their shares.

    Returns:
        i32 `[8, 128]`, the same in all lanes and on all cores.
    """
    highest = jnp.max(best, axis=-1, keepdims=True)
    # Token numbers stay below 2^24, where float32 is exact.
    token = jnp.where(best == highest, (place + first).astype(jnp.float32), NO_TOKEN)
    token = jnp.min(token, axis=-1, keepdims=True)
    highest, token = (jnp.broadcast_to(value, (best.shape[0], LANES)) for value in (highest, token))
    for exchange in exchanges:
        highest, token = _best_of(exchange, highest, token)
    return token.astype(jnp.int32)


def _best_of(exchange: Exchange, highest: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The highest logit of the members of a group, and its token."""
    exchange.own[0] = highest
    exchange.own[1] = token
    exchange.send("token_share")
    mail = exchange.receive()
    highest, token = mail[0, 0], mail[0, 1]
    for sender in range(1, exchange.group.size):
        better = mail[sender, 0] > highest
        highest = jnp.where(better, mail[sender, 0], highest)
        token = jnp.where(better, mail[sender, 1], token)
    exchange.finish()
    return highest, token
