"""An all-reduce over one mesh axis, written as remote copies: reduce-scatter, then all-gather.

Every core holds a partial sum of the whole `[batch, width]` result and owns `width / cores` of its columns.

    reduce-scatter   each core posts the columns of every other owner into that owner's mailbox, one mailbox per
                     sender; the owner adds the mailboxes to its own columns, in rank order
    all-gather       each owner copies its finished columns into the same place on every other core

Posting may begin as soon as some columns are finished, while others are still being computed.

Why no further handshake is needed between one all-reduce and the next (cores p and q, rounds r and r+1):

* q's mailbox for p is free again. p posts for round r+1 only after it has received q's finished columns of round r,
  and q sends those after it has read its mailboxes of round r.
* The finished columns land in a buffer nobody is reading. q sends them after it has received p's partial sums of the
  same round, and p posts those after its last read of the buffer in the previous round. That is the caller's duty:
  `post` only when done with reading the `whole` buffer given to `gather`.
* One arrival semaphore per direction suffices: by the first point no byte of round r+1 arrives at a core that still
  waits for bytes of round r.
* The sources of copies on their way out are not overwritten: `reduce` waits until the partial sums have left, `gather`
  until the finished columns have.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend import source_info_util

source_info_util.register_exclusion(__file__)


def peer(rank: jax.Array, distance: int, cores: int) -> jax.Array:
    """The rank `distance` (1 .. cores-1) steps after `rank` on the axis, wrapping around; int32 scalar."""
    beyond = rank + distance
    return jnp.where(beyond >= cores, beyond - cores, beyond)


@dataclass(frozen=True, slots=True)
class EntryBarrier:
    """Says that every core on the axis has entered the kernel, so that its VMEM may be written from afar.

    `signal` first thing in the kernel, `wait` before the first remote copy: what lies between hides the latency.
    The kernel must be compiled with a `collective_id`.
    """

    axis: str
    cores: int

    def signal(self) -> None:
        """Tell every other core that this one is here."""
        if self.cores == 1:
            return
        rank = lax.axis_index(self.axis)
        barrier = pltpu.get_barrier_semaphore()
        for distance in range(1, self.cores):
            pl.semaphore_signal(barrier, 1, device_id={self.axis: peer(rank, distance, self.cores)})

    def wait(self) -> None:
        """Stall until every other core is here."""
        if self.cores > 1:
            pl.semaphore_wait(pltpu.get_barrier_semaphore(), self.cores - 1)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """The buffers and semaphores of one all-reduce, used round after round.

    Attributes:
        axis: Mesh axis name.
        cores: Size of the axis.
        mailboxes: VMEM ref `[cores, batch, width / cores]` float32; mailbox j receives the partial sums of rank j.
        posted, delivered: DMA semaphores of the reduce-scatter: bytes sent, bytes received.
        shared, gathered: DMA semaphores of the all-gather: bytes sent, bytes received.
    """

    axis: str
    cores: int
    mailboxes: Any
    posted: Any
    delivered: Any
    shared: Any
    gathered: Any

    @property
    def columns_per_owner(self) -> int:
        """Columns each core owns."""
        return int(self.mailboxes.shape[-1])

    def columns_of(self, owner: jax.Array) -> Any:
        """The column range core `owner` reduces, as a dynamic slice."""
        return pl.ds(
            pl.multiple_of(owner * self.columns_per_owner, self.columns_per_owner), self.columns_per_owner
        )

    def post(self, partial: Any, owner: jax.Array, offset: int | jax.Array = 0) -> None:
        """Hand finished columns of the partial sum to their owner.

        Args:
            partial: VMEM ref `[batch, n]` float32, not written again before `reduce` returns.
            owner: Rank that owns these columns.
            offset: First of the columns, counted from the owner's first.
        """
        rank = lax.axis_index(self.axis) if self.cores > 1 else jnp.int32(0)
        place = self.mailboxes.at[rank, :, pl.ds(offset, partial.shape[-1])]
        if self.cores == 1:
            place[...] = partial[...]
            return

        @pl.when(owner == rank)
        def _() -> None:
            place[...] = partial[...]

        @pl.when(owner != rank)
        def _() -> None:
            pltpu.make_async_remote_copy(
                partial, place, self.posted, self.delivered, device_id={self.axis: owner}
            ).start()

    def reduce(self, whole: Any) -> None:
        """Wait for every partial sum of this core's columns and add them to `whole` in rank order.

        Args:
            whole: VMEM ref `[batch, width]` float32; this core's own columns are updated.
        """
        rank = lax.axis_index(self.axis) if self.cores > 1 else jnp.int32(0)
        for _ in range(self.cores - 1):
            self._one_mailbox().wait_recv()
        own = self.columns_of(rank)
        total = whole[:, own]
        for sender in range(self.cores):
            total = total + self.mailboxes[sender]
        whole[:, own] = total
        for _ in range(self.cores - 1):
            self._one_mailbox().wait_send()

    def gather(self, whole: Any) -> None:
        """Copy this core's columns of `whole` to every other core, and wait for theirs and for the sends to end."""
        if self.cores == 1:
            return
        rank = lax.axis_index(self.axis)
        own = whole.at[:, self.columns_of(rank)]
        for distance in range(1, self.cores):
            pltpu.make_async_remote_copy(
                own, own, self.shared, self.gathered, device_id={self.axis: peer(rank, distance, self.cores)}
            ).start()
        arriving = pltpu.make_async_remote_copy(
            own, own, self.shared, self.gathered, device_id={self.axis: rank}
        )
        for _ in range(self.cores - 1):
            arriving.wait_recv()
        for _ in range(self.cores - 1):
            arriving.wait_send()

    def _one_mailbox(self) -> Any:
        """A descriptor worth the bytes of one mailbox, for waiting only."""
        box = self.mailboxes.at[0]
        rank = lax.axis_index(self.axis)
        return pltpu.make_async_remote_copy(
            box, box, self.posted, self.delivered, device_id={self.axis: rank}
        )
