"""A ring of VMEM banks that weight tiles stream through.

    HBM  --copy-->  bank 0 | bank 1 | ... | bank depth-1  --> MXU
                    ^ fill cursor             ^ use cursor

Each bank holds one tile and has one DMA semaphore. A tile's life is: `fill(bank, tile).start()`, `wait(bank)`,
reads of the bank, and only after those reads the next `fill` of the same bank. The kernel keeps that order by
filling bank b, on behalf of tile t + distance, right after the last read of tile t, with distance <= depth: the bank
of tile t + distance then held tile t + distance - depth, which was used at or before tile t.

Cursors are plain int32 bank numbers moved with `following`: an add, a compare and a select, where `tile % depth`
would cost a division and a FIFO pop per tile.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu
from jax.extend import source_info_util

# A wait or a copy built here is reported at the kernel's line that asked for it.
source_info_util.register_exclusion(__file__)


@dataclass(frozen=True, slots=True)
class Ring:
    """VMEM banks and the semaphore that tells when each is full.

    Attributes:
        banks: VMEM ref `[depth, *tile]`.
        full: DMA semaphore ref `[depth]`; holds the bytes that have arrived in a bank and were not awaited.
        depth: Number of banks.
    """

    banks: Any
    full: Any
    depth: int

    def fill(self, bank: jax.Array, tile: Any) -> Any:
        """The copy of `tile` (an HBM ref of one tile) into `bank`, not yet started."""
        return pltpu.make_async_copy(tile, self.banks.at[bank], self.full.at[bank])

    def wait(self, bank: jax.Array) -> Any:
        """Stall until `bank` holds its whole tile; gives the ref `[*tile]` to read it by.

        Only the byte count of the descriptor matters to a wait, so the bank stands in for the source.
        """
        filled = self.banks.at[bank]
        pltpu.make_async_copy(filled, filled, self.full.at[bank]).wait()
        return filled

    def following(self, bank: jax.Array) -> jax.Array:
        """The bank after `bank`, int32 scalar."""
        return jnp.where(bank == self.depth - 1, 0, bank + 1)
