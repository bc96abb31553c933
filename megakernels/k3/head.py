"""lm_head over the core's share of the vocabulary, and the greedy token over all of it."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.exchange import Exchange
from megakernels.common.gemv import LANES
from megakernels.hooks import phase, tag
from megakernels.k3.plan import ROWS
from megakernels.k3.step_refs import Core, mesh_of
from megakernels.k3.stream import Stream

NO_LOGIT = -3e38  # below any logit, above minus infinity
NO_TOKEN = 3e38


def lm_head(core: Core, stream: Stream) -> None:
    """Logits of the rows in `normed`, and the greedy token of each."""
    p, v = core.plan, core.vmem
    columns = p.lm_head.columns
    lane = lax.broadcasted_iota(jnp.int32, (ROWS, columns), 1)

    def one(number: Any, state: Any) -> Any:
        stream, best, place = state
        logits, stream = core.weights.next_product(stream, p.lm_head, v.normed[...])
        v.logits[number] = logits
        column = number * columns + lane
        better = (logits > best) & (column < p.vocab)
        return stream, jnp.where(better, logits, best), jnp.where(better, column, place)

    with phase("lm_head"):
        start = (stream, jnp.full(lane.shape, NO_LOGIT, jnp.float32), jnp.zeros(lane.shape, jnp.int32))
        _, best, place = lax.fori_loop(0, p.lm_head.tiles, one, start)
        tag(pltpu.make_async_copy(v.logits, core.out.logits, v.result_out), "logits").start()
    with phase("sampling"):
        v.next_tokens[...] = greedy(core, best, place)


def greedy(core: Core, best: jax.Array, place: jax.Array) -> jax.Array:
    """The token with the highest logit of all cores, i32 `[8, 128]`; of equal ones the first."""
    p, v = core.plan, core.vmem
    mesh = mesh_of(p)
    highest = jnp.max(best, axis=-1, keepdims=True)
    rank = lax.axis_index(mesh.axis)
    # Token numbers stay below 2^24, where float32 is exact.
    token = jnp.where(best == highest, (place + rank * p.vocab).astype(jnp.float32), NO_TOKEN)
    token = jnp.min(token, axis=-1, keepdims=True)
    found = tuple(jnp.broadcast_to(value, (ROWS, LANES)) for value in (highest, token))
    found = best_of(Exchange(mesh.host, v.token_host), found)
    return best_of(Exchange(mesh.cross, v.token_cross), found)[1].astype(jnp.int32)


def best_of(exchange: Exchange, found: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    """The highest logit of the members of a group, and its token, `[8, 128]` each."""
    for part, value in enumerate(found):
        exchange.own[part] = value
    exchange.send("token_share")
    mail = exchange.receive()
    highest, token = mail[0, 0], mail[0, 1]
    for sender in range(1, exchange.group.size):
        better = mail[sender, 0] > highest
        highest = jnp.where(better, mail[sender, 0], highest)
        token = jnp.where(better, mail[sender, 1], token)
    exchange.finish()
    return highest, token
