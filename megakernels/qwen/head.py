"""lm_head over the core's share of the vocabulary, and the greedy token over all of it."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.gemv import MXU_COLUMNS, tile_product
from megakernels.common.greedy import NO_LOGIT, greedy
from megakernels.hooks import phase, tag
from megakernels.qwen.constants import await_constants
from megakernels.qwen.norm import norm, put_plain_rows, squares_of
from megakernels.qwen.plan import ROWS
from megakernels.qwen.refs import Core
from megakernels.qwen.stream import Stream


def lm_head(core: Core, stream: Stream) -> None:
    """Logits of this core's share of the vocabulary, and the greedy token over all of it."""
    p, v = core.plan, core.vmem
    slot = p.config.layers % 2
    with phase("final_norm"):
        await_constants(core, jnp.int32(p.config.layers))
        norm(core, "input_norm", slot, squares_of(core), put_plain_rows)
        stream = core.weights.head_start(stream)
    lane = lax.broadcasted_iota(jnp.int32, (v.logits.shape[1], MXU_COLUMNS), 1)

    def one(number: Any, state: Any) -> Any:
        stream, best, place = state
        tile = core.weights.head_tile(stream)
        logits = tile_product(v.normed[:ROWS], tile, MXU_COLUMNS)
        stream = core.weights.head_used(stream)
        v.logits[number] = logits
        column = number * MXU_COLUMNS + lane
        better = (logits > best) & (column < p.vocab)
        return stream, jnp.where(better, logits, best), jnp.where(better, column, place)

    with phase("lm_head"):
        start = (stream, jnp.full(lane.shape, NO_LOGIT, jnp.float32), jnp.zeros(lane.shape, jnp.int32))
        _, best, place = lax.fori_loop(0, p.lm_head.tiles, one, start)
        tag(pltpu.make_async_copy(v.logits, core.out.logits, v.result_out), "logits").start()
    with phase("sampling"):
        exchange = core.exchange(v.token_exchange)
        v.next_tokens[...] = greedy(best, place, exchange.rank * p.vocab, [exchange])
