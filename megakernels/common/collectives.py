"""An all-reduce over one mesh axis, written as remote copies: reduce-scatter, then all-gather.

Every core holds a partial sum of the whole `[batch, width]` result and owns `width / cores` columns of it.

    post     hand finished columns of the partial sum to their owner: into a mailbox, one per sender
    reduce   the owner adds its mailboxes to its own columns, in rank order
    gather   each owner copies its columns into the same place on every other core

Posting may begin as soon as some columns are finished, while others are still being computed.

Why no further handshake is needed between rounds (cores p and q, rounds r and r + 1):

* q's mailbox for p is free again: p posts for round r + 1 only after it has received q's columns of round
  r, and q sends those after it has read its mailboxes of round r.
* Gathered columns land in a buffer nobody reads: q sends its columns of round r after it has received p's
  partial sums of round r, and p posts those after its last read of the buffer. This is the caller's duty:
  post only once done with reading the `whole` that `gather` writes.
* One arrival semaphore per direction is enough: by the first point no byte of round r + 1 arrives at a
  core that still waits for bytes of round r.
* No source changes while it is being sent: `reduce` returns when the partial sums have left, `gather` when
  the columns have.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.hooks import at_callers_line, helper_module, tag

helper_module(__file__)


def peer(rank: jax.Array, steps: int, cores: int) -> jax.Array:
    """The rank `steps` (1 .. cores - 1) after `rank`, wrapping around; int32 scalar."""
    beyond = rank + steps
    return jnp.where(beyond >= cores, beyond - cores, beyond)


@dataclass(frozen=True, slots=True)
class EntryBarrier:
    """Says that every core on the axis has entered the kernel, so that its VMEM may be written from afar.

    `signal` first thing in the kernel, `wait` before the first remote copy: what lies between hides the
    latency. The kernel must be compiled with a `collective_id` when there is more than one core.
    """

    axis: str
    cores: int

    def signal(self) -> None:
        """Tell every other core that this one is here."""
        if self.cores == 1:
            return
        rank = lax.axis_index(self.axis)
        for steps in range(1, self.cores):
            other = peer(rank, steps, self.cores)
            pl.semaphore_signal(pltpu.get_barrier_semaphore(), 1, device_id={self.axis: other})

    def wait(self) -> None:
        """Stall until every other core is here."""
        if self.cores > 1:
            pl.semaphore_wait(pltpu.get_barrier_semaphore(), self.cores - 1)


class AllReduceScratch(NamedTuple):
    """What an all-reduce keeps; a DMA semaphore counts bytes."""

    mailboxes: Any  # VMEM [cores, batch, width / cores] f32: mailbox j receives from rank j
    posted: Any  # DMA semaphore: partial sums that have left
    delivered: Any  # DMA semaphore: partial sums that have arrived
    sent: Any  # DMA semaphore: finished columns that have left
    gathered: Any  # DMA semaphore: finished columns that have arrived


def all_reduce_scratch(cores: int, batch: int, width: int) -> AllReduceScratch:
    """The scratch a kernel asks for to all-reduce `[batch, width]` over `cores`."""
    dma = pltpu.SemaphoreType.DMA
    return AllReduceScratch(pltpu.VMEM((cores, batch, width // cores), jnp.float32), dma, dma, dma, dma)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """An all-reduce over the `cores` of mesh axis `axis`, used round after round."""

    axis: str
    cores: int
    scratch: AllReduceScratch

    @property
    def columns_per_owner(self) -> int:
        """Columns each core owns."""
        return int(self.scratch.mailboxes.shape[-1])

    def post(self, partial: Any, owner: jax.Array, first: int | jax.Array = 0) -> None:
        """Hand finished columns of the partial sum to their owner.

        Args:
            partial: VMEM ref `[batch, n]` float32, not written again before `reduce` returns.
            owner: Rank that owns these columns.
            first: Number of the first of them, counted from the owner's first column.
        """
        mailbox = self.scratch.mailboxes.at[self._rank(), :, pl.ds(first, partial.shape[-1])]

        def keep() -> None:
            mailbox[...] = partial[...]

        def send() -> None:
            copy = self._copy_to(owner, partial, mailbox, self.scratch.posted, self.scratch.delivered)
            tag(copy, "reduce_scatter").start()

        if self.cores == 1:
            keep()
        else:
            lax.cond(owner == self._rank(), at_callers_line(keep), at_callers_line(send))

    def reduce(self, whole: Any) -> None:
        """Wait for all partial sums of this core's columns and add them to those columns of `whole`.

        Args:
            whole: VMEM ref `[batch, width]` float32.
        """
        for _ in range(self.cores - 1):
            self._one_mailbox().wait_recv()
        own = self._columns_of(self._rank())
        total = whole[:, own]
        for sender in range(self.cores):
            total = total + self.scratch.mailboxes[sender]
        whole[:, own] = total
        for _ in range(self.cores - 1):
            self._one_mailbox().wait_send()

    def gather(self, whole: Any) -> None:
        """Send this core's columns of `whole` to every other core and wait for all of theirs."""
        if self.cores == 1:
            return
        own = whole.at[:, self._columns_of(self._rank())]
        semaphores = (self.scratch.sent, self.scratch.gathered)
        for steps in range(1, self.cores):
            other = peer(self._rank(), steps, self.cores)
            tag(self._copy_to(other, own, own, *semaphores), "all_gather").start()
        one_share = self._copy_to(self._rank(), own, own, *semaphores)
        for _ in range(self.cores - 1):
            one_share.wait_recv()
        for _ in range(self.cores - 1):
            one_share.wait_send()

    def _rank(self) -> jax.Array:
        return lax.axis_index(self.axis) if self.cores > 1 else jnp.int32(0)

    def _columns_of(self, owner: jax.Array) -> Any:
        """The columns core `owner` owns, as a dynamic slice."""
        first = pl.multiple_of(owner * self.columns_per_owner, self.columns_per_owner)
        return pl.ds(first, self.columns_per_owner)

    def _one_mailbox(self) -> Any:
        """A copy of the size of one mailbox, to wait by."""
        box = self.scratch.mailboxes.at[0]
        return self._copy_to(self._rank(), box, box, self.scratch.posted, self.scratch.delivered)

    def _copy_to(self, rank: jax.Array, source: Any, destination: Any, left: Any, arrived: Any) -> Any:
        """A remote copy. A wait looks only at its byte count, so any rank serves to wait by."""
        return pltpu.make_async_remote_copy(source, destination, left, arrived, device_id={self.axis: rank})
