"""The weight tiles of a step in the order they are used, and how they come into VMEM.

One schedule for the whole step::

    layer 0: w_in tiles, w_out tiles, w_gate_up tiles, w_down tiles; layer 1: the same; ... ; lm_head tiles

Tile s + depth is requested right after the last read of tile s, into the bank that tile s leaves, so the
ring is always full of requests and runs over layer boundaries and into lm_head without a pause.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.ring import Ring
from megakernels.hooks import tag
from megakernels.qwen.plan import Matrix, Plan


class Stream(NamedTuple):
    """Where the kernel stands: int32 scalars, moved by adds, compares and selects only."""

    bank: jax.Array  # bank of the next tile to use
    fill_bank: jax.Array  # bank of the next tile to request
    layer: jax.Array  # layer of the next tile to request; `layers` while lm_head is requested
    tile: jax.Array  # its number in the layer, counted over all matrices


class WeightRefs(NamedTuple):
    """The tiles in HBM: `[layers, tiles, rows, 128]` each, lm_head `[tiles, rows, 128]`."""

    w_in: Any
    w_out: Any
    w_gate_up: Any
    w_down: Any
    lm_head: Any


@dataclass(frozen=True, slots=True)
class WeightStream:
    """Requests and awaits tiles."""

    plan: Plan
    ring: Ring
    head_ring: Ring  # the same unless lm_head is wider than the layers' weights
    hbm: WeightRefs

    def start(self) -> Stream:
        """Request the first tiles of the step."""
        stream = Stream(*(jnp.int32(0) for _ in Stream._fields))
        return lax.fori_loop(0, self.plan.ring_depth, lambda _, stream: self.request(stream), stream)

    def tile(self, stream: Stream, matrix: Matrix) -> Any:
        """Stall until the next tile, one of `matrix`, is there; the ref `[rows, 128]` to read it by."""
        tile = self.ring.scratch.banks.at[stream.bank, pl.ds(0, matrix.rows)]
        pltpu.make_async_copy(tile, tile, self.ring.scratch.full.at[stream.bank]).wait()
        return tile

    def used(self, stream: Stream) -> Stream:
        """The tile was read for the last time: request the one that takes its bank."""
        return self.request(stream._replace(bank=self.ring.following(stream.bank)))

    def request(self, stream: Stream) -> Stream:
        """Start the copy of the next tile of the schedule, if there is one."""
        plan, hbm = self.plan, self.hbm
        in_layers = stream.layer < plan.config.layers

        @pl.when(in_layers & (stream.tile < plan.first_tile(plan.w_out)))
        def _() -> None:
            tag(self._fill(stream, plan.w_in, hbm.w_in.at[stream.layer]), "w_in").start()

        @pl.when(in_layers & self._between(stream, plan.w_out))
        def _() -> None:
            tag(self._fill(stream, plan.w_out, hbm.w_out.at[stream.layer]), "w_out").start()

        @pl.when(in_layers & self._between(stream, plan.w_gate_up))
        def _() -> None:
            tag(self._fill(stream, plan.w_gate_up, hbm.w_gate_up.at[stream.layer]), "w_gate_up").start()

        @pl.when(in_layers & (stream.tile >= plan.first_tile(plan.w_down)))
        def _() -> None:
            tag(self._fill(stream, plan.w_down, hbm.w_down.at[stream.layer]), "w_down").start()

        self._request_head(stream, in_layers)
        layer_done = in_layers & (stream.tile == plan.tiles_per_layer - 1)
        return stream._replace(
            fill_bank=self.ring.following(stream.fill_bank),
            layer=jnp.where(layer_done, stream.layer + 1, stream.layer),
            tile=jnp.where(layer_done, 0, stream.tile + 1),
        )

    def head_start(self, stream: Stream) -> Stream:
        """The stream at lm_head's first tile; with a ring of its own, all banks of that are requested."""
        if not self.plan.fp8:
            return stream
        zero = jnp.int32(0)
        return Stream(zero, zero, stream.layer, jnp.int32(self.plan.head_depth))

    def head_tile(self, stream: Stream) -> Any:
        """Stall until the next tile of lm_head is there; the ref `[rows, 128]` to read it by."""
        rows = self.plan.lm_head.rows
        tile = self.head_ring.scratch.banks.at[stream.bank, pl.ds(0, rows)]
        pltpu.make_async_copy(tile, tile, self.head_ring.scratch.full.at[stream.bank]).wait()
        return tile

    def head_used(self, stream: Stream) -> Stream:
        """The tile was read for the last time: request the one that takes its bank."""
        ring, limit = self.head_ring, self.plan.lm_head.tiles

        @pl.when(stream.tile < limit)
        def _() -> None:
            tag(self._fill_head(stream, stream.fill_bank), "lm_head").start()

        bank, fill = ring.following(stream.bank), ring.following(stream.fill_bank)
        return stream._replace(bank=bank, fill_bank=fill, tile=stream.tile + 1)

    def _request_head(self, stream: Stream, in_layers: jax.Array) -> None:
        """After the last layer's tiles the first of lm_head follow, as many as its ring takes."""
        own = self.plan.fp8
        limit = min(self.plan.lm_head.tiles, self.plan.head_depth) if own else self.plan.lm_head.tiles

        @pl.when(jnp.logical_not(in_layers) & (stream.tile < limit))
        def _() -> None:
            tag(self._fill_head(stream, stream.tile if own else stream.fill_bank), "lm_head").start()

    def _fill_head(self, stream: Stream, bank: jax.Array) -> Any:
        scratch, rows = self.head_ring.scratch, self.plan.lm_head.rows
        source = self.hbm.lm_head.at[stream.tile]
        return pltpu.make_async_copy(source, scratch.banks.at[bank, pl.ds(0, rows)], scratch.full.at[bank])

    def _between(self, stream: Stream, matrix: Matrix) -> jax.Array:
        first = self.plan.first_tile(matrix)
        return (stream.tile >= first) & (stream.tile < first + matrix.tiles)

    def _fill(self, stream: Stream, matrix: Matrix, tiles: Any) -> Any:
        """The copy of the next tile, out of the tiles of one matrix, into its bank."""
        bank = self.ring.scratch.banks.at[stream.fill_bank, pl.ds(0, matrix.rows)]
        tile = tiles.at[stream.tile - self.plan.first_tile(matrix)]
        return pltpu.make_async_copy(tile, bank, self.ring.scratch.full.at[stream.fill_bank])
