"""Sums over all cores of a slice, in two or three hops instead of one to everybody.

The cores are `hosts * members`: rank = host * members + member. A core's share `[rows, parts * columns]` is a
partial sum of every row; afterwards every core holds the sum over all cores, the same bits everywhere.

    TwoHop     host members exchange whole shares and add them; the same member of every host exchanges the
               sums and adds those. 10 messages instead of 31 for 32 cores: for few rows, where messages and
               latencies count.
    ThreeHop   each member adds up some of the rows for its host (reduce-scatter), exchanges them with the
               same member of the other hosts, and sends the sums to its host (all-gather). One latency more,
               an eighth of the bytes: for many rows.

How a kernel uses either: `post` parts as they are computed, `send`, `relay` as soon as nothing better is left
to do, `receive`, `total` of every part, `finish`.

Shares travel as bfloat16 and are added in float32 in the order of members, then of hosts, each rounded to
bfloat16 after the host's sum (ThreeHop: and after the sum over hosts, before the all-gather).

Why no handshake is needed between rounds. Core p may write a mailbox of core q again once q has read it;
only a later message that q sent tells p so. A mailbox of the host exchange is read in `relay` (with one host:
in `total`), one of the cross exchange in `total` (ThreeHop: the gathered rows in `total`, sums of hosts in
`gather`, the scattered rows in `cross`). So between two uses of a reduction every core must take part in
another exchange (or several), with mailboxes of its own, such that

* it is sent by every core after that core's last `total` of the first use, and received by every core before
  its first `send` of the second use, and
* it reaches every core of both groups: all members of the host and the same member of all hosts.

Another TwoHop or ThreeHop does that: its hops are sent after this core's `total` and received before the next
`send`. An all-gather within the host alone does not, where there are several hosts: other hosts' cores may
still be reading their cross mailboxes. In a layer that reduces after attention, after the shared expert and
after the experts, with three scratches, each reduction has two others between its uses, and an all-gather
within the host has three. One reduction used round after round takes two scratches in turn.

By the same chain of messages a share has left before `post` may overwrite it; `finish` takes the counts from
the semaphores and may come at any time before the next `post`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.exchange import Exchange, ExchangeScratch, Group, exchange_scratch
from megakernels.hooks import helper_module

helper_module(__file__)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Cores of mesh axis `axis`: rank = host * members + member."""

    axis: str
    hosts: int
    members: int

    @property
    def host(self) -> Group:
        """The cores of this core's host."""
        return Group(self.axis, self.members)

    @property
    def cross(self) -> Group:
        """The same member of every host."""
        return Group(self.axis, self.hosts, self.members)


class Reduction(Protocol):
    """What TwoHop and ThreeHop have in common."""

    def post(self, part: Any, product: jax.Array) -> None:
        """Keep columns `part` of this core's share: the first `rows` of f32 `[>= rows, columns]`."""

    def send(self, name: str) -> None:
        """Send the share on its first hop; all parts have been posted."""

    def relay(self, name: str) -> None:
        """Wait for all hops but the last and send the last."""

    def receive(self) -> None:
        """Wait for the last hop."""

    def total(self, part: Any) -> jax.Array:
        """Columns `part` of the sum, f32 `[rows, columns]`: the same bits on every core."""

    def finish(self) -> None:
        """Wait until everything this core sent has left, so that it may `post` again."""


def folds(rows: int) -> int:
    """A lone bf16 row travels as two halves, because rows of bf16 come in pairs in memory."""
    return 2 if rows == 1 else 1


def to_wire(product: jax.Array, rows: int) -> jax.Array:
    """The live rows as they travel, bf16: `[rows, columns]`, a lone row as `[2, columns / 2]`."""
    product = product[:rows]
    if rows == 1:
        half = product.shape[1] // 2
        product = jnp.concatenate([product[:, :half], product[:, half:]], axis=0)
    return product.astype(jnp.bfloat16)


def from_wire(sum_: jax.Array, rows: int) -> jax.Array:
    """Back to `[rows, columns]`."""
    return jnp.concatenate([sum_[:1], sum_[1:]], axis=1) if rows == 1 else sum_


def add_up(mail: Any, members: int, *place: Any) -> jax.Array:
    """Sum of `mail[member, *place]` in float32, in member order."""
    total = mail[(0, *place)].astype(jnp.float32)
    for member in range(1, members):
        total = total + mail[(member, *place)].astype(jnp.float32)
    return total


class TwoHopScratch(NamedTuple):
    """What a TwoHop keeps."""

    host: ExchangeScratch
    cross: ExchangeScratch | None  # None where there is one host


def two_hop_scratch(mesh: Mesh, rows: int, parts: int, columns: int) -> TwoHopScratch:
    """Scratch to sum `[rows, parts * columns]`."""
    fold = folds(rows)
    share = (parts, rows * fold, columns // fold)
    return TwoHopScratch(
        exchange_scratch(mesh.members, share, jnp.bfloat16),
        exchange_scratch(mesh.hosts, share, jnp.bfloat16) if mesh.hosts > 1 else None,
    )


@dataclass(frozen=True, slots=True)
class TwoHop:
    """A sum over the host, then over hosts."""

    mesh: Mesh
    rows: int
    scratch: TwoHopScratch

    @property
    def host(self) -> Exchange:
        """The first hop."""
        return Exchange(self.mesh.host, self.scratch.host)

    @property
    def cross(self) -> Exchange:
        """The second hop."""
        assert self.scratch.cross is not None
        return Exchange(self.mesh.cross, self.scratch.cross)

    def post(self, part: Any, product: jax.Array) -> None:
        """Keep columns `part` of this core's share: the first `rows` of f32 `[>= rows, columns]`."""
        self.host.own[part] = to_wire(product, self.rows)

    def send(self, name: str, first: Any = 0, parts: int = 0) -> None:
        """Send the share, or `parts` parts of it from `first` on, to the other members of the host."""
        self.host.send(name, first, parts)

    def relay(self, name: str) -> None:
        """Add up the host's shares and send the sum to the same member of the other hosts."""
        if self.mesh.hosts == 1:
            return
        mail = self.host.receive()
        cross = self.cross
        for part in range(mail.shape[1]):
            cross.own[part] = add_up(mail, self.mesh.members, part).astype(jnp.bfloat16)
        cross.send(name)

    def receive(self) -> None:
        """Wait for the last hop."""
        (self.cross if self.mesh.hosts > 1 else self.host).receive()

    def total(self, part: Any) -> jax.Array:
        """Columns `part` of the sum, f32 `[rows, columns]`: the same bits on every core."""
        last, senders = (
            (self.cross, self.mesh.hosts) if self.mesh.hosts > 1 else (self.host, self.mesh.members)
        )
        return from_wire(add_up(last.scratch.mail, senders, part), self.rows)

    def finish(self) -> None:
        """Wait until everything this core sent has left, so that it may `post` again."""
        self.host.finish()
        if self.mesh.hosts > 1:
            self.cross.finish()


class ThreeHopScratch(NamedTuple):
    """What a ThreeHop keeps; a row is folded into two."""

    share: Any  # VMEM bf16 [members, rows / members, parts, 2, columns / 2]: rows by the member they go to
    scatter: ExchangeScratch
    cross: ExchangeScratch | None
    gather: ExchangeScratch


def three_hop_scratch(mesh: Mesh, rows: int, parts: int, columns: int) -> ThreeHopScratch:
    """Scratch to sum `[rows, parts * columns]`; rows is a multiple of the members of a host."""
    own = (rows // mesh.members, parts, 2, columns // 2)
    return ThreeHopScratch(
        pltpu.VMEM((mesh.members, *own), jnp.bfloat16),
        exchange_scratch(mesh.members, own, jnp.bfloat16),
        exchange_scratch(mesh.hosts, own, jnp.bfloat16) if mesh.hosts > 1 else None,
        exchange_scratch(mesh.members, own, jnp.bfloat16),
    )


@dataclass(frozen=True, slots=True)
class ThreeHop:
    """A sum in which member m of each host adds up rows m * rows / members and following.

    `relay` is `cross` and `gather`; call those where something can be done between.
    """

    mesh: Mesh
    rows: int
    scratch: ThreeHopScratch

    @property
    def own_rows(self) -> int:
        """Rows each member adds up."""
        return self.rows // self.mesh.members

    @property
    def first_row(self) -> jax.Array:
        """The first row this core adds up, int32 scalar."""
        return self.mesh.host.member() * self.own_rows

    def post(self, part: Any, product: jax.Array) -> None:
        """Keep columns `part` of this core's share: the first `rows` of f32 `[>= rows, columns]`."""
        for row in range(self.rows):
            member, own = divmod(row, self.own_rows)
            self.scratch.share[member, own, part] = to_wire(product[row : row + 1], 1)

    def send(self, name: str) -> None:
        """Send every member of the host the rows it adds up; all parts have been posted."""
        scatter = Exchange(self.mesh.host, self.scratch.scatter)
        scatter.own[...] = self.scratch.share[self.mesh.host.member()]
        scatter.send_each(name, self.scratch.share)

    def cross(self, name: str) -> None:
        """Add up the host's shares of the own rows and send the sum to the same member of the other hosts."""
        mail = Exchange(self.mesh.host, self.scratch.scatter).receive()
        into = self._cross if self.mesh.hosts > 1 else self._gather
        for row in range(self.own_rows):
            for part in range(mail.shape[2]):
                into.own[row, part] = add_up(mail, self.mesh.members, row, part).astype(jnp.bfloat16)
        if self.mesh.hosts > 1:
            into.send(name)

    def gather(self, name: str) -> None:
        """Add up the hosts' sums of the own rows and send the rows to the host's other members."""
        gather = self._gather
        if self.mesh.hosts > 1:
            mail = self._cross.receive()
            for row in range(self.own_rows):
                for part in range(mail.shape[2]):
                    gather.own[row, part] = add_up(mail, self.mesh.hosts, row, part).astype(jnp.bfloat16)
        gather.send(name)

    def relay(self, name: str) -> None:
        """Wait for the first two hops and send the last."""
        self.cross(name)
        self.gather(name)

    def receive(self) -> None:
        """Wait for the last hop."""
        self._gather.receive()

    def total(self, part: Any) -> jax.Array:
        """Columns `part` of the sum, f32 `[rows, columns]`: the same bits on every core."""
        mail = self.scratch.gather.mail
        rows = [divmod(row, self.own_rows) for row in range(self.rows)]
        return jnp.concatenate([from_wire(mail[m, own, part].astype(jnp.float32), 1) for m, own in rows])

    def finish(self) -> None:
        """Wait until everything this core sent has left, so that it may `post` again."""
        Exchange(self.mesh.host, self.scratch.scatter).finish()
        if self.mesh.hosts > 1:
            self._cross.finish()
        self._gather.finish()

    @property
    def _cross(self) -> Exchange:
        assert self.scratch.cross is not None
        return Exchange(self.mesh.cross, self.scratch.cross)

    @property
    def _gather(self) -> Exchange:
        return Exchange(self.mesh.host, self.scratch.gather)


THREE_HOP_BYTES = 64 << 10  # of a share, from which on three hops are modelled to be faster


def in_three_hops(mesh: Mesh, rows: int, parts: int, columns: int) -> bool:
    """Is a share so large that the third latency costs less than the bytes it saves?"""
    return (
        mesh.hosts > 1
        and mesh.members > 1
        and rows % mesh.members == 0
        and rows * parts * columns * 2 > THREE_HOP_BYTES
    )


def reduction_scratch(mesh: Mesh, rows: int, parts: int, columns: int) -> TwoHopScratch | ThreeHopScratch:
    """Scratch to sum `[rows, parts * columns]` the faster way."""
    if in_three_hops(mesh, rows, parts, columns):
        return three_hop_scratch(mesh, rows, parts, columns)
    return two_hop_scratch(mesh, rows, parts, columns)


def reduction(mesh: Mesh, rows: int, scratch: TwoHopScratch | ThreeHopScratch) -> TwoHop | ThreeHop:
    """The reduction that `scratch` was made for."""
    if isinstance(scratch, ThreeHopScratch):
        return ThreeHop(mesh, rows, scratch)
    return TwoHop(mesh, rows, scratch)
