"""The MLP stack as one grid-less Pallas call: what one core does in a decode step.

    HBM -> VMEM  | tiles of layer 0 ......... | tiles of layer 1 ......... |  the ring runs across layers
    MXU               | gate_up .... | down ....         | gate_up .... | down ....
    VPU          |norm|                             |norm|
    ICI                                 posts ...|reduce|gather|      partial sums leave while down runs

While the layer's exchange and the next norm run, the tiles of the next layer keep arriving: as many as the
ring has banks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.collectives import AllReduce, AllReduceScratch, EntryBarrier, all_reduce_scratch
from megakernels.common.matmul import add_across_the_columns, add_down_the_rows
from megakernels.common.norm import rms_norm_blocks
from megakernels.common.ring import Ring, RingScratch, ring_scratch
from megakernels.hooks import layer, phase, tag
from megakernels.mlp.config import MlpConfig
from megakernels.mlp.stream import DOWN, GATE, UP, Stream, beginning, past_request, past_use

AXIS = "core"
PHASES = ("enter", "norm", "gate_up", "down", "reduce", "gather", "leave")


class Operands(NamedTuple):
    """The arrays in HBM, in the order the call takes them. Tiles are `[layers * tiles_per_matrix, *tile]`."""

    x: Any  # [batch, hidden] f32
    norm: Any  # [layers, 1, hidden] f32
    w_gate: Any  # tiles of bf16
    w_up: Any  # tiles of bf16
    w_down: Any  # tiles of bf16
    out: Any  # [batch, hidden] f32


class Staging(NamedTuple):
    """What the core keeps in VMEM, and its semaphores."""

    residual: Any  # [batch, hidden] f32: the residual stream, whole on every core
    norm: Any  # [layers, 1, hidden] f32: all norm weights; small, so resident for the whole step
    normed: Any  # [hidden_packs, pack, batch, block] bf16: what gate and up multiply
    gated: Any  # [ffn_blocks, batch, block] bf16: what down multiplies
    partial: Any  # [hidden_packs, batch, tile_columns] f32: this core's share of the down product
    ring: RingScratch  # the weight tiles
    all_reduce: AllReduceScratch  # the other cores' shares of our columns
    residual_moved: Any  # DMA semaphore: the residual stream, in and at the end out
    norm_moved: Any  # DMA semaphore: the norm weights


def staging(config: MlpConfig) -> Staging:
    """The scratch the call asks for."""
    c = config
    return Staging(
        residual=pltpu.VMEM((c.batch, c.hidden), jnp.float32),
        norm=pltpu.VMEM((c.layers, 1, c.hidden), jnp.float32),
        normed=pltpu.VMEM((c.hidden_packs, c.pack, c.batch, c.block), jnp.bfloat16),
        gated=pltpu.VMEM((c.ffn_blocks, c.batch, c.block), jnp.bfloat16),
        partial=pltpu.VMEM((c.hidden_packs, c.batch, c.tile_columns), jnp.float32),
        ring=ring_scratch(c.ring_depth, c.tile_shape, jnp.bfloat16),
        all_reduce=all_reduce_scratch(c.cores, c.batch, c.hidden),
        residual_moved=pltpu.SemaphoreType.DMA,
        norm_moved=pltpu.SemaphoreType.DMA,
    )


def mlp_kernel(config: MlpConfig) -> Callable[..., None]:
    """The kernel for `config`, taking the refs of `Operands` one by one and then a `Staging` of refs."""

    def kernel(*refs: Any) -> None:
        *operands, vmem = refs
        hbm = Operands(*operands)
        step = MlpStep(config, hbm, vmem, Ring(vmem.ring), AllReduce(AXIS, config.cores, vmem.all_reduce))
        stream = step.enter()
        lax.fori_loop(0, config.layers, step.one_layer, stream)
        step.leave()

    return kernel


@dataclass(frozen=True, slots=True)
class MlpStep:
    """One decode step on one core. Methods stand in the order they run."""

    config: MlpConfig
    hbm: Operands
    vmem: Staging
    ring: Ring
    all_reduce: AllReduce

    def enter(self) -> Stream:
        """Bring in the residual stream and the norm weights, and request the first tiles."""
        with phase("enter"):
            every_core_is_here = EntryBarrier(AXIS, self.config.cores)
            every_core_is_here.signal()
            x = tag(pltpu.make_async_copy(self.hbm.x, self.vmem.residual, self.vmem.residual_moved), "x")
            norm = tag(pltpu.make_async_copy(self.hbm.norm, self.vmem.norm, self.vmem.norm_moved), "norm")
            x.start()
            norm.start()
            stream = beginning(self.config.tiles_per_matrix)
            stream = lax.fori_loop(0, self.config.distance, lambda _, stream: self.request(stream), stream)
            x.wait()
            norm.wait()
            every_core_is_here.wait()
        return stream

    def one_layer(self, index: jax.Array, stream: Stream) -> Stream:
        """`residual += down(silu(gate(norm(residual))) * up(norm(residual)))`, summed over the cores."""
        with layer(index):
            with phase("norm"):
                self.norm(index)
            with phase("gate_up"):
                stream = self.gate_up(stream)
            with phase("down"):
                stream = self.down(stream)
            with phase("reduce"):
                self.all_reduce.reduce(self.vmem.residual)
            with phase("gather"):
                self.all_reduce.gather(self.vmem.residual)
        return stream

    def norm(self, index: jax.Array) -> None:
        """`normed = rms_norm(residual) * norm[index]`."""
        weight = self.vmem.norm.at[index]
        rms_norm_blocks(self.vmem.residual, weight, self.vmem.normed, epsilon=self.config.epsilon)

    def gate_up(self, stream: Stream) -> Stream:
        """`gated = silu(normed @ w_gate) * (normed @ w_up)`, one block of columns after another."""

        def one_pack(i: jax.Array, state: tuple[Stream, jax.Array, jax.Array]) -> Any:
            stream, gate, up = state
            rows = self.vmem.normed.at[i]
            gate = add_down_the_rows(gate, rows, self.ring.wait(stream.use_bank))
            stream = self.used(stream)
            up = add_down_the_rows(up, rows, self.ring.wait(stream.use_bank))
            stream = self.used(stream)
            return stream, gate, up

        def one_block(j: jax.Array, stream: Stream) -> Stream:
            state = (stream, self.zeros(), self.zeros())
            stream, gate, up = lax.fori_loop(0, self.config.hidden_packs, one_pack, state)
            self.vmem.gated[j] = (jax.nn.silu(gate) * up).astype(jnp.bfloat16)
            return stream

        return lax.fori_loop(0, self.config.ffn_blocks, one_block, stream)

    def down(self, stream: Stream) -> Stream:
        """`partial = gated @ w_down`, one pack of columns after another, each posted when it is finished."""

        def one_block(j: jax.Array, state: tuple[Stream, tuple[jax.Array, ...]]) -> Any:
            stream, sums = state
            sums = add_across_the_columns(sums, self.vmem.gated[j], self.ring.wait(stream.use_bank))
            return self.used(stream), sums

        def one_pack(i: jax.Array, stream: Stream) -> Stream:
            state = (stream, (self.zeros(),) * self.config.pack)
            stream, sums = lax.fori_loop(0, self.config.ffn_blocks, one_block, state)
            for column, finished in enumerate(sums):
                first = column * self.config.block
                self.vmem.partial[i, :, first : first + self.config.block] = finished
            self.post(i)
            return stream

        return lax.fori_loop(0, self.config.hidden_packs, one_pack, stream)

    def post(self, i: jax.Array) -> None:
        """Hand pack `i` of finished columns to its owner, or to the few that own it side by side."""
        finished = self.vmem.partial.at[i]
        share, pack = self.config.columns_per_core, self.config.tile_columns
        if pack <= share:
            packs_per_owner = share // pack
            owner = lax.div(i, packs_per_owner)
            first = pl.multiple_of((i - owner * packs_per_owner) * pack, pack)
            self.all_reduce.post(finished, owner, first)
            return
        owners_per_pack = pack // share
        for j in range(owners_per_pack):
            self.all_reduce.post(finished.at[:, pl.ds(j * share, share)], i * owners_per_pack + j)

    def leave(self) -> None:
        """Write the residual stream back."""
        with phase("leave"):
            out = tag(
                pltpu.make_async_copy(self.vmem.residual, self.hbm.out, self.vmem.residual_moved), "out"
            )
            out.start()
            out.wait()

    def used(self, stream: Stream) -> Stream:
        """Say that the last read of a tile is done: its bank is free for the tile `distance` later."""
        return self.request(past_use(stream, self.ring))

    def request(self, stream: Stream) -> Stream:
        """Start the copy of the next tile of the stream, if there is one."""
        ring, bank, tile = self.ring, stream.fill_bank, stream.tile
        any_left = tile < self.config.layers * self.config.tiles_per_matrix

        @pl.when(any_left & (stream.matrix == GATE))
        def _() -> None:
            tag(ring.fill(bank, self.hbm.w_gate.at[tile]), "w_gate").start()

        @pl.when(any_left & (stream.matrix == UP))
        def _() -> None:
            tag(ring.fill(bank, self.hbm.w_up.at[tile]), "w_up").start()

        @pl.when(any_left & (stream.matrix == DOWN))
        def _() -> None:
            tag(ring.fill(bank, self.hbm.w_down.at[tile]), "w_down").start()

        return past_request(stream, ring, self.config.tiles_per_matrix)

    def zeros(self) -> jax.Array:
        """A block of sums to start from, `[batch, block]` float32."""
        return jnp.zeros((self.config.batch, self.config.block), jnp.float32)
