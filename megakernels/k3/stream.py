"""The weight tiles of a stack in the order they are used, and how they come into VMEM.

One schedule for the whole call: the tiles of the layer's first matrix, of its second, and so on, layer after
layer. Tile s + depth is requested right after the last read of tile s, into the bank that tile s leaves, so
the ring is always full of requests and runs over layer boundaries without a pause.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.gemv import tile_product
from megakernels.common.ring import Ring
from megakernels.hooks import helper_module, tag
from megakernels.k3.plan import Matrix

helper_module(__file__)


class Stream(NamedTuple):
    """Where the kernel stands: int32 scalars, moved by adds, compares and selects only."""

    bank: jax.Array  # bank of the next tile to use
    fill_bank: jax.Array  # bank of the next tile to request
    layer: jax.Array  # layer of the next tile to request
    tile: jax.Array  # its number in the layer, counted over all matrices


class Section(NamedTuple):
    """A matrix of every layer, and its tiles in HBM."""

    matrix: Matrix
    hbm: Any  # [layers, tiles, rows, 128]


@dataclass(frozen=True, slots=True)
class WeightStream:
    """Requests and awaits tiles."""

    layers: int
    sections: tuple[Section, ...]
    ring: Ring

    @property
    def tiles_per_layer(self) -> int:
        """Tiles of one layer."""
        return sum(section.matrix.tiles for section in self.sections)

    def start(self) -> Stream:
        """Request the first tiles of the call."""
        stream = Stream(*(jnp.int32(0) for _ in Stream._fields))
        return lax.fori_loop(0, self.ring.depth, lambda _, stream: self.request(stream), stream)

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
        any_left = stream.layer < self.layers
        first = 0
        for section in self.sections:
            matrix = section.matrix
            here = (stream.tile >= first) & (stream.tile < first + matrix.tiles)

            @pl.when(any_left & here)
            def _(section: Section = section, first: int = first) -> None:
                bank = self.ring.scratch.banks.at[stream.fill_bank, pl.ds(0, section.matrix.rows)]
                tile = section.hbm.at[stream.layer, stream.tile - first]
                full = self.ring.scratch.full.at[stream.fill_bank]
                tag(pltpu.make_async_copy(tile, bank, full), section.matrix.name).start()

            first += matrix.tiles
        layer_done = stream.tile == self.tiles_per_layer - 1
        return stream._replace(
            fill_bank=self.ring.following(stream.fill_bank),
            layer=jnp.where(layer_done, stream.layer + 1, stream.layer),
            tile=jnp.where(layer_done, 0, stream.tile + 1),
        )

    def multiply(
        self, stream: Stream, matrix: Matrix, rows: Callable[[], Any], emit: Callable[[Any, jax.Array], None]
    ) -> Stream:
        """Multiply `rows()` by a matrix tile by tile: `emit(tile number, product [8, columns])`."""

        def one(number: Any, stream: Stream) -> Stream:
            emit(number, tile_product(rows(), self.tile(stream, matrix), matrix.columns))
            return self.used(stream)

        return lax.fori_loop(0, matrix.tiles, one, stream)
