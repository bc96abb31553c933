"""An all-reduce in one hop: every core sends its partial sum to every other and adds up what it received.

For the few rows of a decode step a message is small and its latency is what counts, so one hop with all the
bytes beats two hops (reduce-scatter, all-gather) with fewer. Partial sums travel as bfloat16 and are added in
float32 in rank order on every core, the core's own share rounded like the others, so that all cores hold the
same bits.

Mailbox j of a core receives from rank j; a core writes its own share into its own mailbox and sends from
there. Two exchanges with mailboxes of their own, used in turn, need no further handshake: p writes the
mailbox of exchange A on q again only in A's next round, which it enters after it received q's share of the
exchange B between, and q sends that after it has read its mailboxes of A.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.collectives import peer
from megakernels.hooks import helper_module, tag

helper_module(__file__)


class ExchangeScratch(NamedTuple):
    """What one exchange keeps."""

    mail: Any  # VMEM [cores, parts, rows, columns]
    sent: Any  # DMA semaphore: bytes that have left
    arrived: Any  # DMA semaphore: bytes that have arrived


def exchange_scratch(cores: int, shape: tuple[int, int, int], dtype: Any) -> ExchangeScratch:
    """Scratch for an exchange of `[parts, rows, columns]` over `cores`."""
    dma = pltpu.SemaphoreType.DMA
    return ExchangeScratch(pltpu.VMEM((cores, *shape), dtype), dma, dma)


@dataclass(frozen=True, slots=True)
class Exchange:
    """An all-to-all exchange over the `cores` of mesh axis `axis`, used round after round."""

    axis: str
    cores: int
    scratch: ExchangeScratch

    @property
    def rank(self) -> jax.Array:
        """This core's rank on the axis, int32 scalar."""
        return lax.axis_index(self.axis) if self.cores > 1 else jnp.int32(0)

    @property
    def own(self) -> Any:
        """The mailbox this core fills with its own share, `[parts, rows, columns]`."""
        return self.scratch.mail.at[self.rank]

    def send(self, name: str, first: Any = 0, parts: int = 0) -> None:
        """Send parts of this core's share to every other core.

        Parts may leave one after the other while later ones are still being computed; all must have been
        sent before `receive`.

        Args:
            name: Names the copies.
            first: Number of the first part to send.
            parts: How many; 0 for the whole share.
        """
        own = self.own if not parts else self.own.at[pl.ds(first, parts)]
        for steps in range(1, self.cores):
            tag(self._copy_to(peer(self.rank, steps, self.cores), own), name).start()

    def receive(self) -> Any:
        """Wait for the shares of all other cores; the mailboxes `[cores, parts, rows, columns]`."""
        for _ in range(self.cores - 1):
            self._copy_to(self.rank, self.own).wait_recv()
        return self.scratch.mail

    def finish(self) -> None:
        """Wait until this core's share has left; needed before it is written again."""
        for _ in range(self.cores - 1):
            self._copy_to(self.rank, self.own).wait_send()

    def _copy_to(self, rank: jax.Array, own: Any) -> Any:
        """Part of the own share into the same mailbox of `rank`; waits look only at the byte count."""
        return pltpu.make_async_remote_copy(
            own, own, self.scratch.sent, self.scratch.arrived, device_id={self.axis: rank}
        )
