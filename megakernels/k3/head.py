"""lm_head over the core's share of the vocabulary, and the greedy token over all of it."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.exchange import Exchange
from megakernels.common.greedy import NO_LOGIT, greedy
from megakernels.hooks import phase, tag
from megakernels.k3.plan import ROWS
from megakernels.k3.step_refs import Core, mesh_of
from megakernels.k3.stream import Stream


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
        mesh = mesh_of(p)
        exchanges = Exchange(mesh.host, v.token_host), Exchange(mesh.cross, v.token_cross)
        v.next_tokens[...] = greedy(best, place, lax.axis_index(mesh.axis) * p.vocab, exchanges)
