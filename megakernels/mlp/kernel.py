"""The MLP stack as one grid-less Pallas call.

    HBM -> VMEM   | tiles of layer 0 ......... | tiles of layer 1 ......... |   never stops: the ring runs across layers
    MXU           | gate_up ...... | down .... | gate_up ...... | down .... |
    VPU           |norm|                        |norm|
    ICI                             posts ...>|reduce|gather|                   partial sums leave while down still runs

Tiles are used in one fixed order, the *stream*: in each layer w_gate and w_up tiles in turn, then the w_down tiles.
A `Stream` is where the kernel stands in it: which bank holds the next tile to use, and which tile to request next.
Both move one step per tile. Their arithmetic is adds, compares and selects on scalars.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.collectives import AllReduce, EntryBarrier
from megakernels.common.matmul import add_across_the_columns, add_down_the_rows
from megakernels.common.norm import rms_norm_blocks
from megakernels.common.ring import Ring
from megakernels.hooks import layer, phase, tag
from megakernels.mlp.config import MlpConfig

AXIS = "core"
GATE, UP, DOWN = range(3)


class Staging(NamedTuple):
    """Everything the kernel keeps in VMEM, and its semaphores."""

    residual: Any  # [batch, hidden] f32: the residual stream, whole on every core
    norm: Any  # [layers, 1, hidden] f32: all norm weights; small, so resident for the whole step
    normed: Any  # [hidden_packs, pack, batch, block] bf16: what gate and up multiply
    gated: Any  # [ffn_blocks, batch, block] bf16: silu(gate) * up, what down multiplies
    partial: Any  # [hidden_packs, batch, tile_columns] f32: this core's part of the down product
    mailboxes: Any  # [cores, batch, columns_per_core] f32: the other cores' parts of our columns
    banks: Any  # [ring_depth, pack, block, block] bf16: weight tiles
    banks_full: Any  # DMA semaphores [ring_depth]
    moved: Any  # DMA semaphores [2]: the residual (in, and out at the end), the norm weights
    exchange: Any  # DMA semaphores [4]: see AllReduce


def staging(config: MlpConfig) -> Staging:
    """The scratch the kernel asks for, in the order of `Staging`."""
    c = config
    return Staging(
        residual=pltpu.VMEM((c.batch, c.hidden), jnp.float32),
        norm=pltpu.VMEM((c.layers, 1, c.hidden), jnp.float32),
        normed=pltpu.VMEM((c.hidden_packs, c.pack, c.batch, c.block), jnp.bfloat16),
        gated=pltpu.VMEM((c.ffn_blocks, c.batch, c.block), jnp.bfloat16),
        partial=pltpu.VMEM((c.hidden_packs, c.batch, c.tile_columns), jnp.float32),
        mailboxes=pltpu.VMEM((c.cores, c.batch, c.columns_per_core), jnp.float32),
        banks=pltpu.VMEM((c.ring_depth, *c.tile_shape), jnp.bfloat16),
        banks_full=pltpu.SemaphoreType.DMA((c.ring_depth,)),
        moved=pltpu.SemaphoreType.DMA((2,)),
        exchange=pltpu.SemaphoreType.DMA((4,)),
    )


class Stream(NamedTuple):
    """Where the kernel stands in the stream of tiles; int32 scalars.

    Tile numbers run through one matrix over all layers. Where a layer's last w_down tile ends is where the next
    layer's first w_gate tile begins, so the number needs no reset at a layer boundary.
    """

    use_bank: Any  # bank of the next tile to use
    fill_bank: Any  # bank of the next tile to request
    matrix: Any  # GATE, UP or DOWN: matrix of the next tile to request
    tile: Any  # its number
    layer_end: Any  # number of the first tile of the layer after it


def mlp_kernel(config: MlpConfig) -> Callable[..., None]:
    """The kernel body for `config`."""
    c = config

    def kernel(x: Any, norm: Any, w_gate: Any, w_up: Any, w_down: Any, out: Any, vmem: Staging) -> None:
        ring = Ring(vmem.banks, vmem.banks_full, c.ring_depth)
        all_reduce = AllReduce(AXIS, c.cores, vmem.mailboxes, *(vmem.exchange.at[i] for i in range(4)))
        entry = EntryBarrier(AXIS, c.cores)

        def request(stream: Stream) -> Stream:
            """Start the copy of the next tile of the stream, if there is one, and step past it."""
            left = stream.tile < c.layers * c.tiles_per_matrix

            @pl.when(left & (stream.matrix == GATE))
            def _() -> None:
                tag(ring.fill(stream.fill_bank, w_gate.at[stream.tile]), "w_gate").start()

            @pl.when(left & (stream.matrix == UP))
            def _() -> None:
                tag(ring.fill(stream.fill_bank, w_up.at[stream.tile]), "w_up").start()

            @pl.when(left & (stream.matrix == DOWN))
            def _() -> None:
                tag(ring.fill(stream.fill_bank, w_down.at[stream.tile]), "w_down").start()

            return past_request(stream)

        def past_request(stream: Stream) -> Stream:
            """gate, up, gate, up, ... to the end of the layer; then back to its start for down, down, ..."""
            was_gate, was_up = stream.matrix == GATE, stream.matrix == UP
            after = stream.tile + 1
            ends = after == stream.layer_end
            layer_start = stream.layer_end - c.tiles_per_matrix
            after_up = jnp.where(ends, DOWN, GATE)
            after_down = jnp.where(ends, GATE, DOWN)
            return stream._replace(
                fill_bank=ring.following(stream.fill_bank),
                matrix=jnp.where(was_gate, UP, jnp.where(was_up, after_up, after_down)),
                tile=jnp.where(was_gate, stream.tile, jnp.where(was_up & ends, layer_start, after)),
                layer_end=jnp.where(
                    (stream.matrix == DOWN) & ends, after + c.tiles_per_matrix, stream.layer_end
                ),
            )

        def past_use(stream: Stream) -> Stream:
            """Step past a tile whose last read is done, and request the tile `distance` after it."""
            return request(stream._replace(use_bank=ring.following(stream.use_bank)))

        def normalise(index: jax.Array) -> None:
            rms_norm_blocks(vmem.residual, vmem.norm.at[index], vmem.normed, epsilon=c.epsilon)

        def gate_up(stream: Stream) -> Stream:
            """gated[j] = silu(normed @ w_gate[:, block j]) * (normed @ w_up[:, block j])."""

            def one_pack(i: jax.Array, state: Any) -> Any:
                stream, gate, up = state
                gate = add_down_the_rows(gate, vmem.normed.at[i], ring.wait(stream.use_bank))
                stream = past_use(stream)
                up = add_down_the_rows(up, vmem.normed.at[i], ring.wait(stream.use_bank))
                stream = past_use(stream)
                return stream, gate, up

            def one_block(j: jax.Array, stream: Stream) -> Stream:
                zero = jnp.zeros((c.batch, c.block), jnp.float32)
                stream, gate, up = lax.fori_loop(0, c.hidden_packs, one_pack, (stream, zero, zero))
                vmem.gated[j] = (jax.nn.silu(gate) * up).astype(jnp.bfloat16)
                return stream

            return lax.fori_loop(0, c.ffn_blocks, one_block, stream)

        def down(stream: Stream) -> Stream:
            """partial[i] = gated @ w_down[:, pack i of columns], each pack posted as soon as it is finished."""

            def one_block(j: jax.Array, state: Any) -> Any:
                stream, sums = state
                sums = add_across_the_columns(sums, vmem.gated[j], ring.wait(stream.use_bank))
                return past_use(stream), sums

            def one_pack(i: jax.Array, stream: Stream) -> Stream:
                zero = jnp.zeros((c.batch, c.block), jnp.float32)
                stream, sums = lax.fori_loop(0, c.ffn_blocks, one_block, (stream, (zero,) * c.pack))
                for column, values in enumerate(sums):
                    vmem.partial[i, :, column * c.block : (column + 1) * c.block] = values
                post_columns(i)
                return stream

            return lax.fori_loop(0, c.hidden_packs, one_pack, stream)

        def post_columns(i: jax.Array) -> None:
            """Send pack i of the finished columns to whom it belongs: one owner, or a few side by side."""
            finished = vmem.partial.at[i]
            packs_per_owner = c.columns_per_core // c.tile_columns
            if packs_per_owner >= 1:
                owner = lax.div(i, packs_per_owner)
                place = (i - owner * packs_per_owner) * c.tile_columns
                all_reduce.post(finished, owner, pl.multiple_of(place, c.tile_columns))
                return
            owners_per_pack = c.tile_columns // c.columns_per_core
            for part in range(owners_per_pack):
                columns = pl.ds(part * c.columns_per_core, c.columns_per_core)
                all_reduce.post(finished.at[:, columns], i * owners_per_pack + part)

        def one_layer(index: jax.Array, stream: Stream) -> Stream:
            with layer(index):
                with phase("norm"):
                    normalise(index)
                with phase("gate_up"):
                    stream = gate_up(stream)
                with phase("down"):
                    stream = down(stream)
                with phase("reduce"):
                    all_reduce.reduce(vmem.residual)
                with phase("gather"):
                    all_reduce.gather(vmem.residual)
            return stream

        with phase("enter"):
            entry.signal()
            residual_in = tag(pltpu.make_async_copy(x, vmem.residual, vmem.moved.at[0]), "x")
            norm_in = tag(pltpu.make_async_copy(norm, vmem.norm, vmem.moved.at[1]), "norm")
            residual_in.start()
            norm_in.start()
            first = Stream(*(jnp.int32(v) for v in (0, 0, GATE, 0, c.tiles_per_matrix)))
            stream = lax.fori_loop(0, c.distance, lambda _, s: request(s), first)
            residual_in.wait()
            norm_in.wait()
            entry.wait()
        lax.fori_loop(0, c.layers, one_layer, stream)
        with phase("leave"):
            residual_out = tag(pltpu.make_async_copy(vmem.residual, out, vmem.moved.at[0]), "out")
            residual_out.start()
            residual_out.wait()

    return kernel
