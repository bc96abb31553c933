"""An exchange in one hop: every core of a group sends its share to every other and reads what it received.

For the few rows of a decode step a message is small and its latency is what counts, so within a group of
about 8 one hop with all the bytes beats two hops (reduce-scatter, all-gather) with fewer. Sums over more
cores are put together from exchanges over groups: see reduction.py.

Mailbox j of a core receives from member j of its group; a core writes its own share into its own mailbox and
sends from there. Where shares are summed they travel as bfloat16 and are added in float32 in member order on
every core, the core's own share rounded like the others, so that all cores hold the same bits.

Two exchanges with mailboxes of their own, used in turn, need no further handshake: p writes the mailbox of
exchange A on q again only in A's next round, which it enters after it received q's share of the exchange B
between, and q sends that after it has read its mailboxes of A. B may be over another group, as long as every
member of A's group is in it.
"""

from collections.abc import Callable
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


@dataclass(frozen=True, slots=True)
class Group:
    """The cores of mesh axis `axis` that share everything but one digit of their rank.

    Member m of the group of rank r is the rank with `(rank // stride) % size == m` and all else equal: with
    stride 1, blocks of `size` consecutive ranks (the cores of a host); with the members of a host as stride,
    the same member of every host. The axis is a multiple of `size * stride` long.
    """

    axis: str
    size: int
    stride: int = 1

    @property
    def binary(self) -> bool:
        """Are member numbers bits of the rank? Then no division is needed."""
        return not (self.size & (self.size - 1) or self.stride & (self.stride - 1))

    def rank(self) -> jax.Array:
        """This core's rank on the axis, int32 scalar."""
        return lax.axis_index(self.axis)

    def member(self) -> jax.Array:
        """This core's number in its group, int32 scalar."""
        if self.size == 1:
            return jnp.int32(0)
        rank = self.rank()
        if self.binary:
            shift = self.stride.bit_length() - 1
            return lax.bitwise_and(lax.shift_right_logical(rank, jnp.int32(shift)), jnp.int32(self.size - 1))
        return lax.rem(lax.div(rank, jnp.int32(self.stride)), jnp.int32(self.size))

    def rank_of(self, member: Any) -> jax.Array:
        """Rank of member number `member` of this core's group, int32 scalar."""
        return self.rank() + (member - self.member()) * self.stride

    def others(self) -> list[tuple[jax.Array, jax.Array]]:
        """Number and rank of every other member, in the order in which to send to them.

        In step s the members pair up (s flips bits of the number), so no core is sent to by two at once.
        Even steps come first: ranks 2c and 2c + 1 are cores of one chip, which share its links, so a host's
        messages go to each of its chips once, then to their other cores, and to the sibling core last.
        Larger steps come first: the way is longer.
        """
        member = self.member()
        if not self.binary:
            numbers = [peer(member, steps, self.size) for steps in range(1, self.size)]
            return [(number, self.rank_of(number)) for number in numbers]
        rank = self.rank()
        steps_in_order = sorted(range(1, self.size), reverse=True)
        if self.stride == 1:
            steps_in_order.sort(key=lambda steps: (steps == 1, steps % 2))
        return [
            (lax.bitwise_xor(member, jnp.int32(steps)), lax.bitwise_xor(rank, jnp.int32(steps * self.stride)))
            for steps in steps_in_order
        ]


class ExchangeScratch(NamedTuple):
    """What one exchange keeps."""

    mail: Any  # VMEM [members, parts, rows, columns]
    sent: Any  # DMA semaphore: bytes that have left
    arrived: Any  # DMA semaphore: bytes that have arrived


def exchange_scratch(
    members: int, shape: tuple[int, ...], dtype: Any, semaphores: tuple[int, ...] = ()
) -> ExchangeScratch:
    """Scratch for an exchange of shares of `shape`, parts first, over `members` cores.

    Args:
        members: Cores that take part.
        shape: Of a share.
        dtype: Of a share.
        semaphores: Shape of an array of semaphores, of which the caller picks one each.
    """
    dma = pltpu.SemaphoreType.DMA(semaphores) if semaphores else pltpu.SemaphoreType.DMA
    return ExchangeScratch(pltpu.VMEM((members, *shape), dtype), dma, dma)


@dataclass(frozen=True, slots=True)
class Exchange:
    """An all-to-all exchange over `group`, used round after round."""

    group: Group
    scratch: ExchangeScratch

    @classmethod
    def over(cls, axis: str, cores: int, scratch: ExchangeScratch) -> "Exchange":
        """An exchange among all `cores` of an axis."""
        return cls(Group(axis, cores), scratch)

    @property
    def rank(self) -> jax.Array:
        """This core's number in the group, int32 scalar."""
        return self.group.member()

    @property
    def own(self) -> Any:
        """The mailbox this core fills with its own share, `[parts, rows, columns]`."""
        return self.scratch.mail.at[self.group.member()]

    def send(self, name: str, first: Any = 0, parts: int = 0) -> None:
        """Send parts of this core's share to every other core.

        Parts may leave one after the other while later ones are still being computed; all must have been
        sent before `receive`.

        Args:
            name: Names the copies.
            first: Number of the first part to send.
            parts: How many; 0 for the whole share.
        """
        if self.group.size == 1:
            return
        own = self.own if not parts else self.own.at[pl.ds(first, parts)]
        for _, rank in self.group.others():
            tag(self._copy_to(rank, own, own), name).start()

    def send_each(self, name: str, share_of: Callable[[jax.Array], Any]) -> None:
        """Send every other core a share of its own, where all of them get the same with `send`.

        Args:
            name: Names the copies.
            share_of: The share of a member (int32 scalar), VMEM ref `[parts, rows, columns]`.
        """
        for member, rank in self.group.others():
            tag(self._copy_to(rank, share_of(member), self.own), name).start()

    def receive(self, parts: int = 0) -> Any:
        """Wait for `parts` parts (0: all) of all other cores; the mail `[members, parts, rows, columns]`."""
        for _ in range(self.group.size - 1):
            self._one_share(parts).wait_recv()
        return self.scratch.mail

    def finish(self, parts: int = 0) -> None:
        """Wait until this core's share, or `parts` parts of it, has left."""
        for _ in range(self.group.size - 1):
            self._one_share(parts).wait_send()

    def _one_share(self, parts: int) -> Any:
        """A copy as large as a share, to wait by: a wait looks only at the byte count."""
        own = self.own.at[pl.ds(0, parts)] if parts else self.own
        return self._copy_to(self.group.rank(), own, own)

    def _copy_to(self, rank: jax.Array, source: Any, target: Any) -> Any:
        """`source` into `target` of `rank`."""
        return pltpu.make_async_remote_copy(
            source, target, self.scratch.sent, self.scratch.arrived, device_id={self.group.axis: rank}
        )


@dataclass(frozen=True, slots=True)
class FlatExchange(Exchange):
    """An exchange whose mailboxes are one array without a dimension for members: `[parts of all, ...]`."""

    @property
    def own(self) -> Any:
        """The mailbox this core fills with its own share, `[parts, ...]`."""
        mail = self.scratch.mail
        parts = mail.shape[0] // self.group.size
        return mail.at[pl.ds(self.group.member() * parts, parts)]
