"""The MLA mixer, absorbed, over a latent cache in HBM that all heads share.

Every head attends to the same cached vectors: the latent c and the shared key part r. A head's query is taken
into their space (K_h^T q), so all rows of all heads are one product with each cache tile, and the values are
the latents themselves, taken out again at the end (V_h o). Nothing is rotated: K3 has no position encoding.

The cache of a sequence at position p is read in two parts. Tokens before p rounded down to 16 come in tiles,
as they are. The 32 tokens from there on come as a window, because the step writes into it: bf16 rows share
memory in groups of 16, so new rows are put into their groups in VMEM and the window goes back whole. Query
rows are masked to their own sequence, so one product serves all sequences.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.exchange import Exchange, ExchangeScratch, Group
from megakernels.common.flash import Softmax, softmax_block, softmax_finish, softmax_start
from megakernels.common.gemv import LANES
from megakernels.hooks import phase, tag
from megakernels.k3.mixer import AXIS, Core, Mixer, block_of
from megakernels.k3.mla_plan import WINDOW, WINDOW_ALIGN
from megakernels.k3.plan import ROWS
from megakernels.k3.stream import Stream

SEQUENCE_SHIFT = 16  # an entry of the tile list is sequence << 16 | tile


def mla_mixer() -> Mixer:
    """The MLA mixer, for `mixer.mixer_kernel`."""
    return Mixer(("constants", "to_keys", "to_values"), begin, run, end)


def begin(core: Core) -> None:
    """List the cache tiles and request the first layer's; clear the rows of `mixed` that nobody writes."""
    _list_tiles(core)
    _load_window(core, 0, 0)
    _load_first_tiles(core, 0)
    core.vmem.mixed[...] = jnp.zeros_like(core.vmem.mixed)


def end(core: Core) -> None:
    """Wait for the last layer's windows to leave."""
    _await_window_written(core, (core.plan.layers - 1) % 2)


def run(core: Core, index: Any, turn: Any, stream: Stream) -> Stream:
    """`mixed` = the gated attention output of MLA layer `index`, its cache extended by the step's rows."""
    p, v = core.plan, core.vmem
    with phase("latent_proj"):
        stream = core.multiply(stream, p.mla_latent, lambda: v.rows[turn], v.own_latent)
        _send_latents(core, turn)
    with phase("side_proj"):
        stream = core.multiply(stream, p.mla_side, lambda: v.rows[turn], v.side)
    with phase("latent_gather"):
        _receive_latents(core, turn)
        query_latent = _normed(core, turn, 0, "q_norm").astype(jnp.bfloat16)
        _entry(core, turn)
    with phase("query_proj"):
        stream = core.multiply(stream, p.mla_query, lambda: query_latent, v.query)
        _absorb(core, turn)
    with phase("attention"):
        so_far = _tiles(core, index)
        so_far = _windows(core, index, turn, so_far)
        _values(core, turn, so_far)
    with phase("cache_prefetch"):
        _prefetch_next(core, index, turn)
    return stream


def _gather(core: Core, turn: Any) -> Exchange:
    """Columns of the latents go round among the ranks of a group."""
    p, v = core.plan, core.vmem
    scratch = ExchangeScratch(v.latents.at[turn], v.latents_sent.at[turn], v.latents_arrived.at[turn])
    return Exchange(Group(AXIS, p.group), scratch)


def _send_latents(core: Core, turn: Any) -> None:
    """Tell the other ranks of the group this rank's columns of the latents."""
    p, gather = core.plan, _gather(core, turn)
    for block in range(p.own_blocks):
        gather.own[block] = block_of(core.vmem.own_latent, block)[: p.rows]
    gather.send("latents")


def _receive_latents(core: Core, turn: Any) -> None:
    gather = _gather(core, turn)
    gather.receive()
    gather.finish()


def _normed(core: Core, turn: Any, first: int, weight: str) -> jax.Array:
    """RMS norm of one latent, whose blocks of 128 begin at `first`: `[8, width]` f32 of bf16 values."""
    p, v = core.plan, core.vmem
    weights = core.constant(weight, turn)
    blocks = range(first, first + weights.shape[-1] // LANES)
    latent = jnp.concatenate([v.latents[turn, b // p.own_blocks, b % p.own_blocks] for b in blocks], axis=1)
    if p.rows < ROWS:
        latent = jnp.concatenate([latent, jnp.zeros((ROWS - p.rows, latent.shape[1]), jnp.float32)], axis=0)
    mean_square = jnp.mean(latent * latent, axis=-1, keepdims=True)
    normed = latent * lax.rsqrt(mean_square + p.config.latent_norm_eps)
    rounded = normed.astype(jnp.bfloat16).astype(jnp.float32)
    return (rounded * weights).astype(jnp.bfloat16).astype(jnp.float32)


def _entry(core: Core, turn: Any) -> None:
    """What the rows leave in the cache: the normed latent, and the shared key part as it is."""
    p, v = core.plan, core.vmem
    width = p.config.kv_rank
    v.entry[:, :width] = _normed(core, turn, p.config.q_rank // LANES, "kv_norm")
    v.entry[:, width:] = block_of(v.side, p.heads)


def _absorb(core: Core, turn: Any) -> None:
    """Queries in the space of the cache, scaled; heads above one another."""
    p, v = core.plan, core.vmem
    scale = p.config.query_dim**-0.5
    latent, shared = [], []
    for head in range(p.heads):
        own = block_of(v.query, head).astype(jnp.bfloat16)
        product = jnp.dot(own, v.to_keys[turn, head], preferred_element_type=jnp.float32)
        latent.append(product[: p.rows])
        shared.append(block_of(v.query, p.heads + head)[: p.rows])
    queries = jnp.concatenate([jnp.concatenate(latent, axis=0), jnp.concatenate(shared, axis=0)], axis=1)
    v.queries[...] = (queries * scale).astype(jnp.bfloat16)


def _window_start(core: Core, sequence: Any) -> Any:
    """First token of a sequence's window: its position rounded down to 16."""
    position = core.hbm.positions[sequence]
    return pl.multiple_of(position // WINDOW_ALIGN * WINDOW_ALIGN, WINDOW_ALIGN)


def _tile_count(core: Core) -> Any:
    """Length of the list of cache tiles, int32."""
    tiles = [pl.cdiv(_window_start(core, s), core.plan.cache_tile) for s in range(core.plan.batch)]
    return sum(tiles[1:], tiles[0])


def _list_tiles(core: Core) -> None:
    """Write the list of cache tiles to SMEM."""
    count = jnp.int32(0)
    for sequence in range(core.plan.batch):
        tiles = pl.cdiv(_window_start(core, sequence), core.plan.cache_tile)

        def put(tile: Any, at: Any, sequence: int = sequence) -> Any:
            core.vmem.entries[at] = (sequence << SEQUENCE_SHIFT) + tile
            return at + 1

        count = lax.fori_loop(0, tiles, put, count)


def _tile_copy(core: Core, index: Any, entry: Any, slot: Any) -> Any:
    item = core.vmem.entries[entry]
    size = core.plan.cache_tile
    first = lax.bitwise_and(item, (1 << SEQUENCE_SHIFT) - 1) * size
    tokens = pl.ds(pl.multiple_of(first, size), size)
    source = core.state.cache.at[index, lax.shift_right_logical(item, SEQUENCE_SHIFT), tokens]
    return pltpu.make_async_copy(source, core.vmem.cache.at[slot], core.vmem.cache_in.at[slot])


def _load_first_tiles(core: Core, index: Any) -> None:
    """Request the first cache tiles of layer `index`, one per slot."""
    count = _tile_count(core)
    for slot in range(core.plan.cache_slots):

        @pl.when(slot < count)
        def _(slot: int = slot) -> None:
            tag(_tile_copy(core, index, slot, slot), "cache").start()


def _window_ref(core: Core, index: Any, sequence: Any) -> Any:
    return core.state.cache.at[index, sequence, pl.ds(_window_start(core, sequence), WINDOW)]


def _load_window(core: Core, index: Any, turn: Any) -> None:
    """Request the windows of layer `index`, all sequences."""
    v = core.vmem
    for sequence in range(core.plan.batch):
        window = v.window.at[turn, sequence]
        copy = pltpu.make_async_copy(_window_ref(core, index, sequence), window, v.window_in.at[turn])
        tag(copy, "cache_window").start()


def _await_window_written(core: Core, turn: Any) -> None:
    for sequence in range(core.plan.batch):
        window = core.vmem.window.at[turn, sequence]
        pltpu.make_async_copy(window, window, core.vmem.window_out.at[turn]).wait()


def _row_numbers(core: Core, tokens: int) -> jax.Array:
    """Row of the step (0 .. rows - 1) of each query row, `[query rows, tokens]` int32."""
    shape = (core.plan.query_rows, tokens)
    return lax.bitwise_and(lax.broadcasted_iota(jnp.int32, shape, 0), core.plan.rows - 1)


def _attend(core: Core, so_far: Softmax, tokens: jax.Array, visible: jax.Array) -> Softmax:
    """Take in cached tokens `[tokens, cache width]`, which are keys and, in their latent part, values."""
    values = tokens[:, : core.plan.config.kv_rank]
    return softmax_block(so_far, core.vmem.queries[...], tokens, values, visible)


def _tiles(core: Core, index: Any) -> Softmax:
    """Attention over the listed cache tiles; each slot is refilled as soon as it was read."""
    p, v = core.plan, core.vmem
    count = _tile_count(core)

    def one(entry: Any, state: tuple[Any, Softmax]) -> tuple[Any, Softmax]:
        slot, so_far = state
        pltpu.make_async_copy(v.cache.at[slot], v.cache.at[slot], v.cache_in.at[slot]).wait()
        item = v.entries[entry]
        sequence = lax.shift_right_logical(item, SEQUENCE_SHIFT)
        first = lax.bitwise_and(item, (1 << SEQUENCE_SHIFT) - 1) * p.cache_tile
        token = first + lax.broadcasted_iota(jnp.int32, (p.query_rows, p.cache_tile), 1)
        visible = token < _window_start(core, sequence)
        if p.batch > 1:
            visible = visible & (_row_numbers(core, p.cache_tile) == sequence)
        so_far = _attend(core, so_far, v.cache[slot], visible)

        @pl.when(entry + p.cache_slots < count)
        def _() -> None:
            tag(_tile_copy(core, index, entry + p.cache_slots, slot), "cache").start()

        return jnp.where(slot == p.cache_slots - 1, 0, slot + 1), so_far

    start = (jnp.int32(0), softmax_start(p.query_rows, p.config.kv_rank))
    return lax.fori_loop(0, count, one, start)[1]


def _windows(core: Core, index: Any, turn: Any, so_far: Softmax) -> Softmax:
    """Put the new rows into the windows, attend to them, and write the windows back."""
    p, v = core.plan, core.vmem
    for sequence in range(p.batch):
        window = v.window.at[turn, sequence]
        pltpu.make_async_copy(window, window, v.window_in.at[turn]).wait()

    def one(sequence: Any, so_far: Softmax) -> Softmax:
        position, first = core.hbm.positions[sequence], _window_start(core, sequence)
        token = lax.broadcasted_iota(jnp.int32, (WINDOW, p.cache_width), 0)
        tokens = v.window[turn, sequence].astype(jnp.float32)
        for row in range(ROWS) if p.verify else (sequence,):
            offset = position - first + (row if p.verify else 0)
            tokens = jnp.where(token == offset, v.entry[pl.ds(row, 1), :], tokens)
        rounded = tokens.astype(jnp.bfloat16)
        v.window[turn, sequence] = rounded
        there = _window_ref(core, index, sequence)
        copy = pltpu.make_async_copy(v.window.at[turn, sequence], there, v.window_out.at[turn])
        tag(copy, "cache_window").start()
        last = position + (_row_numbers(core, WINDOW) if p.verify else 0)
        visible = first + lax.broadcasted_iota(jnp.int32, (p.query_rows, WINDOW), 1) <= last
        if p.batch > 1:
            visible = visible & (_row_numbers(core, WINDOW) == sequence)
        return _attend(core, so_far, rounded, visible)

    return lax.fori_loop(0, p.batch, one, so_far, unroll=p.batch == 1)


def _values(core: Core, turn: Any, so_far: Softmax) -> None:
    """`mixed` = what the heads attended to, taken out of the latent, times the sigmoid of their gates."""
    p, v = core.plan, core.vmem
    attended = softmax_finish(so_far).astype(jnp.bfloat16)
    for head in range(p.heads):
        latent = attended[head * p.rows : (head + 1) * p.rows]
        value = jnp.dot(latent, v.to_values[turn, head], preferred_element_type=jnp.float32)
        value = value.astype(jnp.bfloat16).astype(jnp.float32)
        gate = jax.nn.sigmoid(block_of(v.side, head)[: p.rows]).astype(jnp.bfloat16).astype(jnp.float32)
        v.mixed[: p.rows, head * LANES : (head + 1) * LANES] = (value * gate).astype(jnp.bfloat16)


def _prefetch_next(core: Core, index: Any, turn: Any) -> None:
    """Request the next layer's windows and first tiles."""

    @pl.when(index > 0)
    def _() -> None:
        _await_window_written(core, 1 - turn)

    @pl.when(index + 1 < core.plan.layers)
    def _() -> None:
        _load_window(core, index + 1, 1 - turn)
        _load_first_tiles(core, index + 1)
