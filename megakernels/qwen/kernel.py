"""A whole decode step as one grid-less Pallas call: what one core does.

    HBM -> VMEM  | w_in | w_out | w_gate_up | w_down | w_in | ...                      the stream never pauses
    MXU          | w_in |       w_out |        w_gate_up | w_down |       | w_in ...
    VPU           norm    mixer         norm                       norm
    ICI                           exchange                 exchange

While a mixer or an exchange runs, tiles of what follows keep arriving, as many as the ring has banks.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.collectives import EntryBarrier
from megakernels.common.exchange import Exchange
from megakernels.common.gemv import LANES, MXU_COLUMNS, scaled_tile_product, tile_product
from megakernels.common.ring import Ring
from megakernels.hooks import layer, phase, tag
from megakernels.qwen import attention, gdn
from megakernels.qwen.constants import await_constants, load_constants
from megakernels.qwen.head import lm_head
from megakernels.qwen.norm import norm, put_rows, squares_of
from megakernels.qwen.plan import ROWS, Matrix, Plan
from megakernels.qwen.refs import AXIS, REPLICATED, Core, Operands, Results, Staging, operand_names
from megakernels.qwen.stream import Stream, WeightRefs, WeightStream
from megakernels.qwen.words import from_words, to_words

# Where a layer is: the slot of its constants and scales, and the stream of tiles.
type Place = tuple[jax.Array, Stream]


def decode_kernel(plan: Plan) -> Callable[..., None]:
    """The kernel for `plan`: refs of Operands, the old state (aliased, not used), Results, then a Staging."""
    names = operand_names(plan)
    inputs = len(names)
    states = 4 if plan.verify else 3

    def kernel(*refs: Any) -> None:
        *arrays, vmem = refs
        operands = dict(zip(names, arrays[:inputs], strict=True))
        shares = {name: ref if name in REPLICATED else ref.at[0] for name, ref in operands.items()}
        hbm = Operands(**{"scales": None} | shares)
        next_tokens, *per_core = arrays[inputs + states :]
        out = Results(next_tokens, *(ref.at[0] for ref in per_core))
        weights = WeightRefs(hbm.w_in, hbm.w_out, hbm.w_gate_up, hbm.w_down, hbm.lm_head)
        core = Core(plan, hbm, out, vmem, weight_stream(plan, vmem, weights))
        kv_tiles = enter(core)
        stream = core.weights.start()
        first_rows(core)
        stream = lax.fori_loop(0, plan.config.layers, lambda i, s: one_layer(core, i, kv_tiles, s), stream)
        lm_head(core, stream)
        leave(core)

    return kernel


def weight_stream(plan: Plan, vmem: Staging, weights: WeightRefs) -> WeightStream:
    """The stream of tiles; with fp8 lm_head has a ring of its own."""
    ring = Ring(vmem.ring)
    return WeightStream(plan, ring, Ring(vmem.head_ring) if plan.fp8 else ring, weights)


def enter(core: Core) -> Any:
    """Request everything the first layers need besides tiles; the length of the list of KV tiles."""
    p, hbm, v = core.plan, core.hbm, core.vmem
    with phase("enter"):
        EntryBarrier(AXIS, p.cores).signal()
        for row in range(p.rows):
            embedding = hbm.embedding.at[hbm.tokens[row]]
            tag(pltpu.make_async_copy(embedding, v.embedded.at[row], v.started), "embedding").start()
            position = hbm.positions[0] + row if p.verify else hbm.positions[row]
            rope = hbm.rope.at[position]
            tag(pltpu.make_async_copy(rope, v.rope_rows.at[row], v.started), "rope").start()
        load_constants(core, jnp.int32(0))
        if p.config.gdn_layers:
            gdn.load_state(core, 0, 0)
        kv_tiles = attention.list_tiles(core)
        if p.config.attention_layers:
            attention.load_window(core, 0, 0)
            attention.load_first_tiles(core, 0, kv_tiles)
        for padded in (v.residual, v.mixed, v.delta_out, v.rope, v.normed, v.mixed_rows):
            padded[...] = jnp.zeros_like(padded)
    return kv_tiles


def first_rows(core: Core) -> None:
    """Put the embeddings into the residual stream; meet the other cores."""
    p, hbm, v = core.plan, core.hbm, core.vmem
    with phase("embedding"):
        for row in range(p.rows):
            pltpu.make_async_copy(hbm.embedding.at[0], v.embedded.at[row], v.started).wait()
            pltpu.make_async_copy(hbm.rope.at[0], v.rope_rows.at[row], v.started).wait()
        width = p.config.hidden // p.embedding_rows
        for row in range(p.rows):
            v.rope[row : row + 1] = v.rope_rows[row]
            embedded = v.embedded[row].astype(jnp.float32)
            for i in range(p.embedding_rows):
                v.residual[row : row + 1, i * width : (i + 1) * width] = embedded[i : i + 1]
        EntryBarrier(AXIS, p.cores).wait()


def one_layer(core: Core, index: Any, kv_tiles: Any, stream: Stream) -> Stream:
    """`residual += mixer(norm(residual))`, then `residual += ffn(norm(residual))`."""
    p, v = core.plan, core.vmem
    period = p.config.attention_period
    slot = lax.rem(index, 2)
    with layer(index):
        with phase("norm"):
            await_constants(core, index)
            load_constants(core, index + 1)
            norm(core, "input_norm", slot, squares_of(core))
        with phase("in_proj"):
            stream = in_proj(core, (slot, stream))
        is_attention = lax.rem(index, period) == period - 1

        @pl.when(is_attention)
        def _() -> None:
            attention.attention_mixer(core, lax.div(index, period), slot, kv_tiles)

        @pl.when(jnp.logical_not(is_attention))
        def _() -> None:
            gdn.gdn_mixer(core, index - lax.div(index, period), slot)

        mixer = core.exchange(v.mixer_exchange)
        with phase("out_proj"):
            put_rows(core, v.mixed_rows, 0, v.mixed[...].astype(jnp.bfloat16))
            stream = out_proj(core, mixer, (slot, stream))
        with phase("mixer_all_reduce"):
            squares = all_reduce(core, mixer, p.w_out)
        with phase("norm"):
            norm(core, "post_norm", slot, squares)
        with phase("gate_up"):
            stream = gate_up(core, (slot, stream))
        ffn = core.exchange(v.ffn_exchange)
        with phase("down"):
            stream = down(core, ffn, (slot, stream))
        with phase("ffn_all_reduce"):
            all_reduce(core, ffn, p.w_down)
    return stream


def multiply(
    core: Core, place: Place, matrix: Matrix, rows: Callable[[], Any], emit: Callable[..., None]
) -> Stream:
    """Multiply `rows()` by a matrix tile by tile: `emit(tile number, product [8, columns])`."""
    slot, stream = place

    def one(number: Any, stream: Stream) -> Stream:
        tile = core.weights.tile(stream, matrix)
        if core.plan.fp8:
            scales = tile_scales(core, matrix, slot, number)
            product = scaled_tile_product(rows(), tile, matrix.columns, scales)
        else:
            product = tile_product(rows(), tile, matrix.columns)
        emit(number, product)
        return core.weights.used(stream)

    return lax.fori_loop(0, matrix.tiles, one, stream)


def tile_scales(core: Core, matrix: Matrix, slot: Any, number: Any) -> jax.Array:
    """The scales of a tile, its column blocks from lane 0 on; `[row blocks, 128]` float32."""
    first, rows, tiles = core.plan.scale_rows(matrix)
    piece = lax.div(number, tiles)
    start = pl.multiple_of(first + piece * rows, ROWS)
    scales = core.vmem.scales[slot, pl.ds(start, rows), :]
    lane = (number - piece * tiles) * (matrix.columns // LANES)
    return pltpu.roll(scales, lax.rem(LANES - lane, LANES), 1)


def in_proj(core: Core, place: Place) -> Stream:
    """`projected = normed @ w_in`."""
    v = core.vmem

    def emit(number: Any, product: jax.Array) -> None:
        v.projected[number] = product

    return multiply(core, place, core.plan.w_in, lambda: v.normed[...], emit)


def give(core: Core, exchange: Exchange, matrix: Matrix, number: Any, product: jax.Array) -> None:
    """Put tile `number` of this core's share of a sum, `[8, columns]`, where the others get it from."""
    p = core.plan
    if not p.as_words:
        exchange.own[number] = product.astype(jnp.bfloat16)
        return
    words = to_words(product[: p.rows])
    group, blocks = p.tiles_per_message(matrix), matrix.columns // MXU_COLUMNS
    later = [(number >= first).astype(jnp.int32) for first in range(group, matrix.tiles, group)]
    message = sum(later, jnp.int32(0))
    first = pl.multiple_of((number - message * group) * (blocks * p.rows), p.rows)
    for block in range(blocks):
        place = pl.ds(first + block * p.rows, p.rows)
        exchange.own[message, place] = words[:, block * LANES : (block + 1) * LANES]


def send_finished(core: Core, exchange: Exchange, matrix: Matrix, number: Any, name: str) -> None:
    """Send the message that is complete with tile `number`."""
    group = core.plan.tiles_per_message(matrix)

    @pl.when(lax.rem(number, group) == group - 1)
    def _() -> None:
        if group == matrix.tiles:
            exchange.send(name)
        elif core.plan.as_words:
            exchange.send(name, lax.div(number, group), 1)
        else:
            exchange.send(name, number - (group - 1), group)


def out_proj(core: Core, mixer: Exchange, place: Place) -> Stream:
    """This core's share of the mixer's output goes to all others."""
    v, matrix = core.vmem, core.plan.w_out

    def emit(number: Any, product: jax.Array) -> None:
        give(core, mixer, matrix, number, product)
        send_finished(core, mixer, matrix, number, "mixer_share")

    return multiply(core, place, matrix, lambda: v.mixed_rows[...], emit)


def gate_up(core: Core, place: Place) -> Stream:
    """`gated = silu(normed @ gate) * (normed @ up)`."""
    v = core.vmem

    def emit(number: Any, product: jax.Array) -> None:
        gated = (jax.nn.silu(product[:, :LANES]) * product[:, LANES:]).astype(jnp.bfloat16)
        if core.plan.fp8:
            odd, zeros = lax.rem(number, 2) == 1, jnp.zeros_like(gated)
            halves = [jnp.where(odd, zeros, gated), jnp.where(odd, gated, zeros)]
            gated = jnp.concatenate(halves, axis=0)
        v.gated[number] = gated

    return multiply(core, place, core.plan.w_gate_up, lambda: v.normed[...], emit)


def down(core: Core, ffn: Exchange, place: Place) -> Stream:
    """This core's share of the FFN's output goes to all others."""
    v, matrix = core.vmem, core.plan.w_down

    def rows() -> jax.Array:
        return jnp.concatenate([v.gated[i] for i in range(core.plan.w_gate_up.tiles)], axis=1)

    def emit(number: Any, product: jax.Array) -> None:
        give(core, ffn, matrix, number, product)
        send_finished(core, ffn, matrix, number, "ffn_share")

    return multiply(core, place, matrix, rows, emit)


def all_reduce(core: Core, exchange: Exchange, matrix: Matrix) -> jax.Array:
    """Add every core's share to the residual stream; partial sums of its squares, `[8, 128]`."""
    p, residual = core.plan, core.vmem.residual
    mail = exchange.receive()
    if p.as_words:
        for message in range(mail.shape[1]):
            add_words(core, mail, matrix, message)
    else:
        for part in range(matrix.tiles):
            total = mail[0, part].astype(jnp.float32)
            for sender in range(1, p.cores):
                total = total + mail[sender, part].astype(jnp.float32)
            first = part * matrix.columns
            residual[:, first : first + matrix.columns] += total
    exchange.finish()
    return squares_of(core)


def add_words(core: Core, mail: Any, matrix: Matrix, message: int) -> None:
    """`all_reduce` of few rows: shares are added as they lie, 128 columns of all rows under one another."""
    p = core.plan
    totals = from_words(mail[0, message])
    for sender in range(1, p.cores):
        totals = tuple(t + more for t, more in zip(totals, from_words(mail[sender, message]), strict=True))
    half = matrix.columns // 2
    for place in range(totals[0].shape[0] // p.rows):
        tile, block = divmod(place, half // LANES)
        for piece, total in enumerate(totals):
            tiles_before = message * p.tiles_per_message(matrix) + tile
            first = tiles_before * matrix.columns + piece * half + block * LANES
            rows = total[place * p.rows : (place + 1) * p.rows]
            core.vmem.residual[: p.rows, first : first + LANES] += rows


def leave(core: Core) -> None:
    """Write the tokens; wait for everything still on its way out."""
    p, v, out = core.plan, core.vmem, core.out
    with phase("leave"):
        tokens = tag(pltpu.make_async_copy(v.next_tokens, out.next_tokens, v.result_out), "next_tokens")
        tokens.start()
        if p.config.gdn_layers:
            gdn.await_state_written(core, (p.config.gdn_layers - 1) % 2)
        if p.config.attention_layers:
            attention.await_window_written(core, (p.config.attention_layers - 1) % 2)
        pltpu.make_async_copy(v.logits, out.logits, v.result_out).wait()
        tokens.wait()
