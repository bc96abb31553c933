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
from megakernels.qwen.plan import ROWS, Matrix, Plan
from megakernels.qwen.refs import AXIS, REPLICATED, Core, Operands, Results, Staging, operand_names
from megakernels.qwen.stream import Stream, WeightRefs, WeightStream

# Where a layer is: the slot of its constants and scales, and the stream of tiles.
type Place = tuple[jax.Array, Stream]

NO_LOGIT = -3e38  # below any logit, above minus infinity


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


def load_constants(core: Core, index: Any) -> None:
    """Request the small vectors of layer `index`, and its w_ab if it is a GDN layer."""
    p, hbm, v = core.plan, core.hbm, core.vmem
    slot = lax.rem(index, 2)
    source = hbm.constants.at[index]
    tag(pltpu.make_async_copy(source, v.constants.at[slot], v.constants_in.at[slot]), "constants").start()
    if p.fp8:

        @pl.when(index < p.config.layers)
        def scales() -> None:
            copy = pltpu.make_async_copy(hbm.scales.at[index], v.scales.at[slot], v.constants_in.at[slot])
            tag(copy, "scales").start()

    @pl.when(has_w_ab(core, index))
    def _() -> None:
        source = hbm.w_ab.at[index - lax.div(index, p.config.attention_period)]
        tag(pltpu.make_async_copy(source, v.w_ab.at[slot], v.constants_in.at[slot]), "w_ab").start()


def await_constants(core: Core, index: Any) -> None:
    """Wait for what `load_constants` requested."""
    hbm, v = core.hbm, core.vmem
    slot = lax.rem(index, 2)
    pltpu.make_async_copy(hbm.constants.at[0], v.constants.at[slot], v.constants_in.at[slot]).wait()
    if core.plan.fp8:

        @pl.when(index < core.plan.config.layers)
        def scales() -> None:
            pltpu.make_async_copy(hbm.scales.at[0], v.scales.at[slot], v.constants_in.at[slot]).wait()

    @pl.when(has_w_ab(core, index))
    def _() -> None:
        pltpu.make_async_copy(hbm.w_ab.at[0], v.w_ab.at[slot], v.constants_in.at[slot]).wait()


def has_w_ab(core: Core, index: Any) -> Any:
    """Whether `index` (up to the number of layers, which stands for the final norm) is a GDN layer."""
    c = core.plan.config
    return (lax.rem(index, c.attention_period) != c.attention_period - 1) & (index < c.layers)


def squares_of(core: Core) -> jax.Array:
    """Sum of squares of the residual stream, `[8, 128]` partial sums along lanes."""
    residual = core.vmem.residual
    return sum_squares([residual[:, first : first + 512] for first in range(0, residual.shape[1], 512)])


def sum_squares(pieces: list[jax.Array]) -> jax.Array:
    """Squares of arrays `[rows, n * 128]` added up to `[rows, 128]`."""
    total = jnp.zeros((pieces[0].shape[0], LANES), jnp.float32)
    for piece in pieces:
        for first in range(0, piece.shape[1], LANES):
            part = piece[:, first : first + LANES]
            total = total + part * part
    return total


def norm(
    core: Core, weight: str, slot: Any, squares: jax.Array, put: Callable[..., None] | None = None
) -> None:
    """`normed` = RMS norm of the residual stream, given the partial sums of its squares.

    Args:
        core: The core's view.
        weight: Name of the norm's weight among the constants.
        slot: Where the layer's constants are.
        squares: `[8, 128]` float32.
        put: Writes rows into `normed`; `put_rows` unless given.
    """
    put = put or put_rows
    c, v = core.plan.config, core.vmem
    first, _ = core.plan.constants[weight]
    scale = lax.rsqrt(jnp.sum(squares, axis=-1, keepdims=True) * (1.0 / c.hidden) + c.norm_eps)
    for start in range(0, c.hidden, 512):
        columns = slice(start, start + 512)
        weights = v.constants[slot, :, first + start : first + start + 512]
        put(core, v.normed, start, (v.residual[:, columns] * scale * weights).astype(jnp.bfloat16))


def put_rows(core: Core, packed: Any, first: int, rows: jax.Array) -> None:
    """Write rows `[8, n]` at column `first` as matrices multiply them.

    With fp8, even blocks of 128 columns go to the upper half and odd ones to the lower (see common/gemv.py);
    the other halves stay zero from the start of the step.
    """
    if not core.plan.fp8:
        packed[:, first : first + rows.shape[1]] = rows
        return
    for start in range(first, first + rows.shape[1], LANES):
        half = slice(ROWS, None) if start // LANES % 2 else slice(ROWS)
        packed[half, start : start + LANES] = rows[:, start - first : start - first + LANES]


def put_plain_rows(core: Core, packed: Any, first: int, rows: jax.Array) -> None:
    """Write rows `[8, n]` at column `first` as bfloat16 matrices multiply them."""
    del core
    packed[:ROWS, first : first + rows.shape[1]] = rows


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


def share(core: Core, product: jax.Array) -> jax.Array:
    """Live rows of a product as they travel: bfloat16, a lone row folded into two."""
    product = product[: core.plan.rows]
    if core.plan.fold == 2:
        half = product.shape[1] // 2
        product = jnp.concatenate([product[:, :half], product[:, half:]], axis=0)
    return product.astype(jnp.bfloat16)


def out_proj(core: Core, mixer: Exchange, place: Place) -> Stream:
    """This core's share of the mixer's output goes to all others."""
    v = core.vmem

    def emit(number: Any, product: jax.Array) -> None:
        mixer.own[number] = share(core, product)

        group = core.plan.tiles_per_message(core.plan.w_out)

        @pl.when(lax.rem(number, group) == group - 1)
        def _() -> None:
            mixer.send("mixer_share", number - (group - 1), group)

    return multiply(core, place, core.plan.w_out, lambda: v.mixed_rows[...], emit)


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
    v = core.vmem

    def rows() -> jax.Array:
        return jnp.concatenate([v.gated[i] for i in range(core.plan.w_gate_up.tiles)], axis=1)

    def emit(number: Any, product: jax.Array) -> None:
        ffn.own[number] = share(core, product)

        group = core.plan.tiles_per_message(core.plan.w_down)

        @pl.when(lax.rem(number, group) == group - 1)
        def _() -> None:
            ffn.send("ffn_share", number - (group - 1), group)

    return multiply(core, place, core.plan.w_down, rows, emit)


def all_reduce(core: Core, exchange: Exchange, matrix: Matrix) -> jax.Array:
    """Add every core's share to the residual stream; partial sums of its squares, `[8, 128]`."""
    p, residual = core.plan, core.vmem.residual
    mail = exchange.receive()
    width = matrix.columns // p.fold
    for part in range(matrix.tiles):
        total = mail[0, part].astype(jnp.float32)
        for sender in range(1, p.cores):
            total = total + mail[sender, part].astype(jnp.float32)
        for fold in range(p.fold):
            first = part * matrix.columns + fold * width
            rows = total[fold : fold + 1] if p.fold == 2 else total
            residual[: p.rows, first : first + width] += rows
    exchange.finish()
    return squares_of(core)


def lm_head(core: Core, stream: Stream) -> None:
    """Logits of this core's share of the vocabulary, and the greedy token over all of it."""
    p, v = core.plan, core.vmem
    rank = core.exchange(v.token_exchange).rank
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
        highest = jnp.max(best, axis=-1, keepdims=True)
        # Token numbers stay below 2^24, where float32 is exact.
        token = jnp.where(best == highest, (place + rank * p.vocab).astype(jnp.float32), 3e38)
        token = jnp.min(token, axis=-1, keepdims=True)
        exchange = core.exchange(v.token_exchange)
        exchange.own[0] = jnp.broadcast_to(highest, (v.logits.shape[1], LANES))
        exchange.own[1] = jnp.broadcast_to(token, (v.logits.shape[1], LANES))
        exchange.send("token_share")
        mail = exchange.receive()
        highest, token = mail[0, 0], mail[0, 1]
        for sender in range(1, p.cores):
            better = mail[sender, 0] > highest
            highest = jnp.where(better, mail[sender, 0], highest)
            token = jnp.where(better, mail[sender, 1], token)
        v.next_tokens[...] = token.astype(jnp.int32)
        exchange.finish()


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
