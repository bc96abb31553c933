"""A ring of VMEM banks that weight tiles stream through.

    HBM  --copy-->  bank 0 | bank 1 | ... | bank depth-1  -->  MXU

Each bank holds one tile and has one DMA semaphore. The life of a tile is `fill(bank, tile).start()`,
`wait(bank)`, reads of the bank; and only after those reads the next `fill` of that bank.

A kernel keeps this order by requesting tile t + distance right after its last read of tile t, with
distance <= depth. Tile n lives in bank n mod depth, so the bank of tile t + distance last held tile
t + distance - depth, which is tile t or one before it.

Banks are numbered by plain int32 scalars moved with `following`: an add, a compare and a select, where
`tile % depth` would cost a division and a FIFO pop for every tile.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from megakernels.hooks import helper_module

helper_module(__file__)


class RingScratch(NamedTuple):
    """What a ring keeps."""

    banks: Any  # VMEM [depth, *tile]
    full: Any  # DMA semaphores [depth]: bytes that have arrived in a bank and were not awaited yet


def ring_scratch(depth: int, tile_shape: tuple[int, ...], dtype: Any) -> RingScratch:
    """The scratch a kernel asks for to have a ring of `depth` tiles."""
    return RingScratch(pltpu.VMEM((depth, *tile_shape), dtype), pltpu.SemaphoreType.DMA((depth,)))


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring over its scratch refs."""

    scratch: RingScratch

    @property
    def depth(self) -> int:
        """Number of banks."""
        return int(self.scratch.banks.shape[0])

    def fill(self, bank: jax.Array, tile: Any) -> Any:
        """The copy of `tile` (an HBM ref of one tile) into `bank`, not started."""
        return pltpu.make_async_copy(tile, self.scratch.banks.at[bank], self.scratch.full.at[bank])

    def wait(self, bank: jax.Array) -> Any:
        """Stall until `bank` holds its whole tile; gives the ref to read it by.

        A wait looks only at the byte count of its descriptor, so the bank stands in for the source.
        """
        tile = self.scratch.banks.at[bank]
        pltpu.make_async_copy(tile, tile, self.scratch.full.at[bank]).wait()
        return tile

    def following(self, bank: jax.Array) -> jax.Array:
        """The bank after `bank`, int32 scalar."""
        return jnp.where(bank == self.depth - 1, 0, bank + 1)
