"""The weight tiles of a step in the order they are used, and how they come into VMEM.

One schedule for the whole call, made of legs: the matrices that are used together, tile by tile. A leg
follows another as the layers go: attention of one kind or the other, its output, the FFN, the next layer.
Tiles live in a ring of VMEM banks. A bank that was used is filled again when the next tile is taken up (not
before: a copy that waits for the last read of its bank would hold up the scheduling of all reads), or later
with `refill` where something more urgent has to be read first: copies are served in the order of their
requests. So the ring runs over layer boundaries without a pause, as far ahead as it is deep.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.gemv import tile_product
from megakernels.common.ring import Ring
from megakernels.hooks import at_callers_line, helper_module, tag
from megakernels.k3.plan import Matrix

helper_module(__file__)


class Stream(NamedTuple):
    """Where the kernel stands: int32 scalars, moved by adds, compares and selects only."""

    bank: jax.Array  # bank of the next tile to use
    fill_bank: jax.Array  # bank of the next tile to request
    leg: jax.Array  # leg of the next tile to request; the number of legs after the last tile
    layer: jax.Array  # its layer
    tile: jax.Array  # its number in the leg, counted over all matrices


class Section(NamedTuple):
    """A matrix that many layers have, and where its tiles are in HBM."""

    matrix: Matrix
    tile: Callable[[Any, Any], Any]  # (layer, tile number) to the ref `[rows, 128]`


class Leg(NamedTuple):
    """Matrices whose tiles follow one another, and the numbers of the legs that may come next."""

    sections: tuple[Section, ...]
    then: tuple[int, ...]

    @property
    def tiles(self) -> int:
        """Tiles of the leg."""
        return sum(section.matrix.tiles for section in self.sections)


@dataclass(frozen=True, slots=True)
class WeightStream:
    """Requests and awaits tiles.

    Attributes:
        legs: All there are.
        following: From the leg and layer that end to those that come next, int32 scalars; the number of legs
            as leg says that nothing comes.
        ring: Where tiles live.
    """

    legs: tuple[Leg, ...]
    following: Callable[[Any, Any], tuple[Any, Any]]
    ring: Ring

    def start(self, leg: int = 0) -> Stream:
        """Request the first tiles of the call, from a leg of layer 0 on."""
        zero = jnp.int32(0)
        stream = Stream(zero, zero, jnp.int32(leg), zero, zero)
        return self._requests(stream, self._after(leg, 0, range(self.ring.depth - 1)), self.ring.depth - 1)

    def tile(self, stream: Stream, matrix: Matrix) -> Any:
        """Stall until the next tile, one of `matrix`, is there; the ref `[rows, 128]` to read it by."""
        tile = self.ring.scratch.banks.at[stream.bank, pl.ds(0, matrix.rows)]
        pltpu.make_async_copy(tile, tile, self.ring.scratch.full.at[stream.bank]).wait()
        return tile

    def refill(self, stream: Stream, matrix: Matrix, tiles: int) -> Stream:
        """Request what takes the banks of `tiles` tiles, taken up without a refill, of `matrix` and after."""
        return self._requests(stream, self._ahead(matrix, 0, tiles), tiles)

    def _requests(self, stream: Stream, among: frozenset[str], tiles: int) -> Stream:
        body = at_callers_line(lambda _, stream: self._request(stream, among))
        return lax.fori_loop(0, tiles, body, stream)

    def _ahead(self, matrix: Matrix, first: int, tiles: int) -> frozenset[str]:
        """Names of the matrices that can take the banks of some tiles of `matrix`: a ring further on."""
        for number, leg in enumerate(self.legs):
            before = 0
            for section in leg.sections:
                if section.matrix == matrix:
                    distance = before + first + self.ring.depth - 1
                    return self._after(number, distance, range(tiles))
                before += section.matrix.tiles
        raise ValueError(f"{matrix.name} is in no leg of the stream")

    def _after(self, leg: int, distance: int, tiles: range) -> frozenset[str]:
        """Names of the matrices that tiles `distance + i` from the first of a leg on can be of."""
        found, open_ = set(), {(leg, distance + i) for i in tiles}
        while open_:
            number, tile = open_.pop()
            here = self.legs[number]
            if tile >= here.tiles:
                open_ |= {(then, tile - here.tiles) for then in here.then}
                continue
            ends = accumulate(section.matrix.tiles for section in here.sections)
            found.add(next(s.matrix.name for s, end in zip(here.sections, ends, strict=True) if tile < end))
        return frozenset(found)

    def _request(self, stream: Stream, among: frozenset[str]) -> Stream:
        """Start the copy of the next tile of the schedule, if there is one; it is of a matrix in `among`."""
        last = jnp.int32(0)
        for number, leg in enumerate(self.legs):
            if among.isdisjoint(section.matrix.name for section in leg.sections):
                continue
            here = stream.leg == number
            pl.when(here)(at_callers_line(partial(self._start_copy, stream, leg, among)))
            last = jnp.where(here, leg.tiles - 1, last)
        ends = stream.tile == last
        leg, layer = self.following(stream.leg, stream.layer)
        return stream._replace(
            fill_bank=self.ring.following(stream.fill_bank),
            leg=jnp.where(ends, leg, stream.leg),
            layer=jnp.where(ends, layer, stream.layer),
            tile=jnp.where(ends, 0, stream.tile + 1),
        )

    def _start_copy(self, stream: Stream, leg: Leg, among: frozenset[str]) -> None:
        first = 0
        possible = [section for section in leg.sections if section.matrix.name in among]
        for section in leg.sections:
            matrix = section.matrix
            last = first + matrix.tiles

            def start(section: Section = section, first: int = first) -> None:
                bank = self.ring.scratch.banks.at[stream.fill_bank, pl.ds(0, section.matrix.rows)]
                tile = section.tile(stream.layer, stream.tile - first)
                full = self.ring.scratch.full.at[stream.fill_bank]
                tag(pltpu.make_async_copy(tile, bank, full), section.matrix.name).start()

            if possible == [section]:
                start()
            elif section in possible:
                pl.when((stream.tile >= first) & (stream.tile < last))(at_callers_line(start))
            first = last

    def multiply(
        self,
        stream: Stream,
        matrix: Matrix,
        rows: Callable[[], Any],
        emit: Callable[[Any, jax.Array], None],
        *,
        first: int = 0,
        tiles: int | None = None,
        refill: bool = True,
    ) -> Stream:
        """Multiply `rows()` by a matrix, or some of its tiles: `emit(tile number, product [8, columns])`."""

        def one(number: Any, stream: Stream) -> Stream:
            product, stream = self.product(stream, matrix, rows(), among)
            emit(number, product)
            return stream

        tiles = matrix.tiles - first if tiles is None else tiles
        among, last = self._ahead(matrix, first, tiles) if refill else None, first + tiles
        if tiles == 1:
            # As a loop all the same: in one block with what stands around it the product is scheduled worse
            # (33 bundles for a 256 x 256 tile instead of 18).
            last = jnp.where(stream.bank >= 0, last, first)
        return lax.fori_loop(first, last, at_callers_line(one), stream)

    def next_product(self, stream: Stream, matrix: Matrix, rows: jax.Array) -> tuple[jax.Array, Stream]:
        """`rows` times the next tile, one of `matrix`: f32 `[8, columns]`."""
        return self.product(stream, matrix, rows, self._ahead(matrix, 0, matrix.tiles))

    def product(
        self, stream: Stream, matrix: Matrix, rows: jax.Array, among: frozenset[str] | None
    ) -> tuple[jax.Array, Stream]:
        """The same; what is requested is of a matrix in `among`, or nothing is requested now."""
        if among is not None:
            stream = self._request(stream, among)
        product = tile_product(rows, self.tile(stream, matrix), matrix.columns)
        return product, stream._replace(bank=self.ring.following(stream.bank))


def stack_stream(layers: int, matrices: tuple[Matrix, ...], hbm: Any, ring: Ring) -> WeightStream:
    """The stream of a stack of equal layers.

    Args:
        layers: How many.
        matrices: Of a layer, in the order they are used.
        hbm: Holds the tiles of each under its name, `[layers, tiles, rows, 128]`.
        ring: Where they go.
    """

    def section(matrix: Matrix) -> Section:
        tiles = getattr(hbm, matrix.name)
        return Section(matrix, lambda layer, tile: tiles.at[layer, tile])

    def following(leg: Any, layer: Any) -> tuple[Any, Any]:
        return jnp.where(layer == layers - 1, 1, leg), layer + 1

    return WeightStream((Leg(tuple(section(matrix) for matrix in matrices), (0,)),), following, ring)
