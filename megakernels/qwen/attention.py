"""The gated attention mixer over a KV cache in HBM.

The cache of a sequence at position p is read in two parts. Tokens before g = p rounded down to 16 come in
tiles of `kv_tile` tokens, as they are. The 32 tokens from g on come as a window, because the step writes into
it: bf16 rows share memory in groups of 16, so a new row is put into its group in VMEM and the group goes back
whole. Tiles of all sequences form one list, the same for every layer, made at the start of the step.

Query rows of one KV head lie together, `head * rows + row`; each is masked to the tokens of its own sequence,
so one product serves all sequences and the rows of other sequences ride along.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.flash import Softmax, softmax_block, softmax_finish, softmax_start
from megakernels.common.gemv import LANES
from megakernels.common.rope import rotate
from megakernels.hooks import phase, tag
from megakernels.qwen.plan import ROWS, WINDOW, WINDOW_ALIGN
from megakernels.qwen.refs import Core

SEQUENCE_SHIFT = 16  # an entry of the tile list is sequence << 16 | tile


def window_start(core: Core, sequence: Any) -> Any:
    """First token of a sequence's window: its position rounded down to 16."""
    return pl.multiple_of(core.hbm.positions[sequence] // WINDOW_ALIGN * WINDOW_ALIGN, WINDOW_ALIGN)


def list_tiles(core: Core) -> Any:
    """Write the list of KV tiles to SMEM; how many there are, int32."""
    count = jnp.int32(0)
    for sequence in range(core.plan.batch):
        tiles = pl.cdiv(window_start(core, sequence), core.plan.kv_tile)

        def put(tile: Any, at: Any, sequence: int = sequence) -> Any:
            core.vmem.kv_entries[at] = (sequence << SEQUENCE_SHIFT) + tile
            return at + 1

        count = lax.fori_loop(0, tiles, put, count)
    return count


def load_window(core: Core, index: Any, slot: Any) -> None:
    """Request the windows of attention layer `index`, all sequences, into `slot`."""
    for sequence in range(core.plan.batch):
        tag(_window_copy(core, index, slot, sequence), "kv_window").start()


def load_first_tiles(core: Core, index: Any, count: Any) -> None:
    """Request the first KV tiles of attention layer `index`, one per slot."""
    for slot in range(core.plan.kv_slots):

        @pl.when(slot < count)
        def _(slot: int = slot) -> None:
            tag(_tile_copy(core, index, slot, slot), "kv").start()


def await_window_written(core: Core, slot: Any) -> None:
    """Wait until the windows last written from `slot` have left it."""
    v = core.vmem
    for sequence in range(core.plan.batch):
        window = v.window.at[slot, sequence]
        pltpu.make_async_copy(window, window, v.window_out.at[slot]).wait()


def attention_mixer(core: Core, index: Any, constants: Any, count: Any) -> None:
    """`mixed` = the gated attention output of attention layer `index`, its cache extended by the step's rows.

    Args:
        core: The core's view; `projected` is set.
        index: Number among the attention layers.
        constants: Slot of the layer's constants.
        count: Length of the list of KV tiles.
    """
    slot = lax.rem(index, 2)
    with phase("qk_norm_rope"):
        _queries(core, constants)
        _keys_values(core, constants)
    with phase("attention"):
        so_far = _tiles(core, index, count)
        so_far = _windows(core, index, slot, so_far)
        _gated(core, so_far)
    with phase("kv_prefetch"):
        _prefetch_next(core, index, slot, count)


def _tile_copy(core: Core, index: Any, entry: Any, slot: Any) -> Any:
    item = core.vmem.kv_entries[entry]
    tile = lax.bitwise_and(item, (1 << SEQUENCE_SHIFT) - 1)
    size = core.plan.kv_tile
    tokens = pl.ds(pl.multiple_of(tile * size, size), size)
    source = core.out.kv.at[index, lax.shift_right_logical(item, SEQUENCE_SHIFT), :, tokens]
    return pltpu.make_async_copy(source, core.vmem.kv.at[slot], core.vmem.kv_in.at[slot])


def _window_ref(core: Core, index: Any, sequence: Any) -> Any:
    return core.out.kv.at[index, sequence, :, pl.ds(window_start(core, sequence), WINDOW)]


def _window_copy(core: Core, index: Any, slot: Any, sequence: Any) -> Any:
    window = core.vmem.window.at[slot, sequence]
    return pltpu.make_async_copy(_window_ref(core, index, sequence), window, core.vmem.window_in.at[slot])


def _normalized(core: Core, block: int, weight: jax.Array) -> list[jax.Array]:
    """A head's 128-lane blocks from `block` on, RMS-normalized and rotated."""
    c = core.plan.config
    blocks = [core.projected(block + i) for i in range(c.head_dim // LANES)]
    squares = sum(jnp.sum(b * b, axis=-1, keepdims=True) for b in blocks)
    scale = lax.rsqrt(squares * (1.0 / c.head_dim) + c.norm_eps)
    blocks = [b * scale * weight[:, i * LANES : (i + 1) * LANES] for i, b in enumerate(blocks)]
    return [rotate(blocks[0], core.vmem.rope[...], c.rope_dims), *blocks[1:]]


def _queries(core: Core, constants: Any) -> None:
    """Normalized, rotated and scaled queries, gathered per KV head."""
    p, c = core.plan, core.plan.config
    per_head = c.head_dim // LANES
    weight = core.constant("q_norm", constants) * c.head_dim**-0.5
    group = p.query_heads // p.kv_heads
    for kv_head in range(p.kv_heads):
        heads = [_normalized(core, (kv_head * group + h) * per_head, weight) for h in range(group)]
        rows = [jnp.concatenate([b[: p.rows] for b in blocks], axis=1) for blocks in heads]
        core.vmem.queries[kv_head] = jnp.concatenate(rows, axis=0).astype(jnp.bfloat16)


def _keys_values(core: Core, constants: Any) -> None:
    """The step's own keys and values, in the order of the cache's blocks."""
    p, c = core.plan, core.plan.config
    per_head = c.head_dim // LANES
    weight = core.constant("k_norm", constants)
    first = 2 * p.query_heads * per_head
    for kv_head in range(p.kv_heads):
        for i, block in enumerate(_normalized(core, first + kv_head * per_head, weight)):
            core.vmem.new_kv[kv_head * per_head + i] = block
    for i in range(p.kv_heads * per_head):
        core.vmem.new_kv[p.kv_heads * per_head + i] = core.projected(first + p.kv_heads * per_head + i)


def _attend(
    core: Core, so_far: tuple[Softmax, ...], blocks: list[jax.Array], visible: jax.Array
) -> tuple[Softmax, ...]:
    """Take in one block of tokens for every KV head; blocks `[tokens, 128]` in cache order."""
    p = core.plan
    per_head = p.config.head_dim // LANES
    after = []
    for kv_head, state in enumerate(so_far):
        keys = blocks[kv_head * per_head : (kv_head + 1) * per_head]
        values = blocks[(p.kv_heads + kv_head) * per_head : (p.kv_heads + kv_head + 1) * per_head]
        query = core.vmem.queries[kv_head]
        after.append(
            softmax_block(
                state, query, jnp.concatenate(keys, axis=1), jnp.concatenate(values, axis=1), visible
            )
        )
    return tuple(after)


def _row_numbers(core: Core, tokens: int) -> jax.Array:
    """Row of the step (0 .. rows - 1) of each query row, `[query rows, tokens]` int32."""
    shape = (core.vmem.queries.shape[1], tokens)
    return lax.bitwise_and(lax.broadcasted_iota(jnp.int32, shape, 0), core.plan.rows - 1)


def _tiles(core: Core, index: Any, count: Any) -> tuple[Softmax, ...]:
    """Attention over the listed KV tiles; each slot is refilled as soon as it was read."""
    p, v = core.plan, core.vmem
    query_rows = v.queries.shape[1]
    start = tuple(softmax_start(query_rows, p.config.head_dim) for _ in range(p.kv_heads))

    def one(entry: Any, state: Any) -> Any:
        slot, so_far = state
        pltpu.make_async_copy(v.kv.at[slot], v.kv.at[slot], v.kv_in.at[slot]).wait()
        item = v.kv_entries[entry]
        sequence = lax.shift_right_logical(item, SEQUENCE_SHIFT)
        first = lax.bitwise_and(item, (1 << SEQUENCE_SHIFT) - 1) * p.kv_tile
        token = first + lax.broadcasted_iota(jnp.int32, (query_rows, p.kv_tile), 1)
        visible = token < window_start(core, sequence)
        if p.batch > 1:
            visible = visible & (_row_numbers(core, p.kv_tile) == sequence)
        so_far = _attend(core, so_far, [v.kv[slot, block] for block in range(p.kv_blocks)], visible)

        @pl.when(entry + p.kv_slots < count)
        def _() -> None:
            tag(_tile_copy(core, index, entry + p.kv_slots, slot), "kv").start()

        return jnp.where(slot == p.kv_slots - 1, 0, slot + 1), so_far

    return lax.fori_loop(0, count, one, (jnp.int32(0), start))[1]


def _windows(core: Core, index: Any, slot: Any, so_far: tuple[Softmax, ...]) -> tuple[Softmax, ...]:
    """Put the new rows into the windows, attend to them, and write the windows back."""
    p, v = core.plan, core.vmem
    for sequence in range(p.batch):
        window = v.window.at[slot, sequence]
        pltpu.make_async_copy(window, window, v.window_in.at[slot]).wait()

    def one(sequence: Any, so_far: Any) -> Any:
        position, first = core.hbm.positions[sequence], window_start(core, sequence)
        token = lax.broadcasted_iota(jnp.int32, (WINDOW, LANES), 0)
        blocks = []
        for block in range(p.kv_blocks):
            rows = v.window[slot, sequence, block].astype(jnp.float32)
            for row in range(ROWS) if p.verify else (sequence,):
                offset = position - first + (row if p.verify else 0)
                rows = jnp.where(token == offset, v.new_kv[block, pl.ds(row, 1), :], rows)
            blocks.append(rows.astype(jnp.bfloat16))
            v.window[slot, sequence, block] = blocks[-1]
        tag(_window_write(core, index, slot, sequence), "kv_window").start()
        shape = (v.queries.shape[1], WINDOW)
        last = position + (_row_numbers(core, WINDOW) if p.verify else 0)
        visible = first + lax.broadcasted_iota(jnp.int32, shape, 1) <= last
        if p.batch > 1:
            visible = visible & (_row_numbers(core, WINDOW) == sequence)
        return _attend(core, so_far, blocks, visible)

    return lax.fori_loop(0, p.batch, one, so_far, unroll=p.batch == 1)


def _window_write(core: Core, index: Any, slot: Any, sequence: Any) -> Any:
    window = core.vmem.window.at[slot, sequence]
    return pltpu.make_async_copy(window, _window_ref(core, index, sequence), core.vmem.window_out.at[slot])


def _gated(core: Core, so_far: tuple[Softmax, ...]) -> None:
    """`mixed` = attention output times sigmoid of its gate, query heads side by side."""
    p, c = core.plan, core.plan.config
    per_head = c.head_dim // LANES
    group = p.query_heads // p.kv_heads
    for kv_head, state in enumerate(so_far):
        out = softmax_finish(state)
        for h in range(group):
            head = kv_head * group + h
            for i in range(per_head):
                gate = core.projected((p.query_heads + head) * per_head + i)[: p.rows]
                value = out[h * p.rows : (h + 1) * p.rows, i * LANES : (i + 1) * LANES]
                first = (head * per_head + i) * LANES
                core.vmem.mixed[: p.rows, first : first + LANES] = value * jax.nn.sigmoid(gate)


def _prefetch_next(core: Core, index: Any, slot: Any, count: Any) -> None:
    """Request the next attention layer's window and first tiles, a few layers before they are needed."""

    @pl.when(index > 0)
    def _() -> None:
        await_window_written(core, 1 - slot)

    @pl.when(index + 1 < core.plan.config.attention_layers)
    def _() -> None:
        load_window(core, index + 1, 1 - slot)
        load_first_tiles(core, index + 1, count)
