"""Sums over all cores of a slice, in two or three hops instead of one to everybody.

The cores are `hosts * members`: rank = host * members + member. A core's share `[rows, parts * columns]` is a
partial sum of every row; afterwards every core holds the sum over all cores, the same bits everywhere.

    TwoHop     host members exchange whole shares and add them; the same member of every host exchanges the
               sums and adds those. 10 messages instead of 31 for 32 cores: for few rows, where messages and
               latencies count.
    ThreeHop   each member adds up some of the columns for its host (reduce-scatter), exchanges them with the
               same member of the other hosts, and sends the sums to its host (all-gather). One latency more,
               an eighth of the bytes: for many rows.

How a kernel uses either: `post` parts as they are computed, `send`, `relay` as soon as nothing better is left
to do, `receive`, `total` of every part, `finish`.

Shares travel as bfloat16 and are added in float32 in the order of members, then of hosts, each rounded to
bfloat16 after the host's sum (ThreeHop: and after the sum over hosts, before the all-gather).

Why no handshake is needed between rounds. Core p may write a mailbox of core q again once q has read it;
only a later message that q sent tells p so. A mailbox of the host exchange is read in `relay` (with one host:
in `total`), one of the cross exchange in `total` (ThreeHop: the gathered columns in `total`, sums of hosts in
`gather`, scattered columns in `cross`). So between two uses of a reduction every core must take part in
another exchange (or several), with mailboxes of its own, such that

* it is sent by every core after that core's last `total` of the first use, and received by every core before
  its first `send` of the second use, and
* it reaches every core of both groups: all members of the host and the same member of all hosts.

Another TwoHop or ThreeHop does that: its hops are sent after this core's `total` and received before the next
`send`. An all-gather within the host alone does not, where there are several hosts: other hosts' cores may
still be reading their cross mailboxes. In a layer that reduces after attention, after the shared expert and
after the experts, with three scratches, each reduction has two others between its uses, and an all-gather
within the host has three. One reduction used round after round takes two scratches in turn.

`finish` may come at any time before the next `post`; `post` itself only touches what is this core's own.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.exchange import Exchange, ExchangeScratch, FlatExchange, Group, exchange_scratch
from megakernels.hooks import helper_module

helper_module(__file__)

LANES = 128

# Shares from which on another way is faster on 4 hosts of 8 cores, by analyzer/machine/tpu7x.toml and
# benchmarks/reductions.py.
PIECE_BYTES = 40 << 10
THREE_HOP_BYTES = 80 << 10


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


def share_bytes(rows: int, parts: int, columns: int) -> int:
    """Bytes of a share on the wire."""
    return rows * parts * columns * 2


def share_shape(rows: int, parts: int, columns: int) -> tuple[int, int, int]:
    """A share `[rows, parts * columns]` as `to_wire` makes it; rows of bf16 come in pairs in memory."""
    fold = 2 if rows == 1 else 1
    return parts, rows * fold, columns // fold


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
    """What a TwoHop keeps; a pair of semaphores for each piece of a share."""

    host: ExchangeScratch
    cross: ExchangeScratch | None  # None where there is one host


def two_hop_scratch(
    mesh: Mesh, rows: int, parts: int, columns: int, pieces: int | None = None
) -> TwoHopScratch:
    """Scratch to sum `[rows, parts * columns]`; the share travels in two pieces where that is faster."""
    if pieces is None:
        pieces = 2 if share_bytes(rows, parts, columns) > PIECE_BYTES and parts > 1 else 1
    share = share_shape(rows, parts, columns)
    return TwoHopScratch(
        exchange_scratch(mesh.members, share, jnp.bfloat16, (pieces,)),
        exchange_scratch(mesh.hosts, share, jnp.bfloat16, (pieces,)) if mesh.hosts > 1 else None,
    )


@dataclass(frozen=True, slots=True)
class TwoHop:
    """A sum over the host, then over hosts.

    A large share travels in pieces: while the second still comes in from the host, the sum of the first is on
    its way to the other hosts.
    """

    mesh: Mesh
    rows: int
    scratch: TwoHopScratch

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """First part and number of parts of each piece."""
        parts, pieces = self.scratch.host.mail.shape[1], self.scratch.host.sent.shape[0]
        ends = [-(-parts * i // pieces) for i in range(pieces + 1)]
        return [(first, end - first) for first, end in pairwise(ends)]

    def post(self, part: Any, product: jax.Array) -> None:
        """Keep columns `part` of this core's share: the first `rows` of f32 `[>= rows, columns]`."""
        self._host(0).own[part] = to_wire(product, self.rows)

    def send(self, name: str, first: int = 0, parts: int = 0) -> None:
        """Send the share, or `parts` parts of it from `first` on, to the other members of the host."""
        last = first + parts if parts else self.scratch.host.mail.shape[1]
        for number, (start, length) in enumerate(self.pieces):
            begin, end = max(first, start), min(last, start + length)
            if begin < end:
                self._host(number).send(name, begin, end - begin)

    def relay(self, name: str) -> None:
        """Add up the host's shares and send the sum to the same member of the other hosts."""
        if self.mesh.hosts == 1:
            return
        for number, (first, parts) in enumerate(self.pieces):
            mail, cross = self._host(number).receive(parts), self._cross(number)
            for part in range(first, first + parts):
                cross.own[part] = add_up(mail, self.mesh.members, part).astype(jnp.bfloat16)
            cross.send(name, first, parts)

    def receive(self) -> None:
        """Wait for the last hop."""
        for number, (_, parts) in enumerate(self.pieces):
            (self._cross if self.mesh.hosts > 1 else self._host)(number).receive(parts)

    def total(self, part: Any) -> jax.Array:
        """Columns `part` of the sum, f32 `[rows, columns]`: the same bits on every core."""
        mail = (self.scratch.cross or self.scratch.host).mail
        return from_wire(add_up(mail, mail.shape[0], part), self.rows)

    def finish(self) -> None:
        """Wait until everything this core sent has left, so that it may `post` again."""
        for number, (_, parts) in enumerate(self.pieces):
            self._host(number).finish(parts)
            if self.mesh.hosts > 1:
                self._cross(number).finish(parts)

    def _host(self, piece: int) -> Exchange:
        """The first hop of a piece."""
        return Exchange(self.mesh.host, _with_semaphores(self.scratch.host, piece))

    def _cross(self, piece: int) -> Exchange:
        """The second hop of a piece."""
        assert self.scratch.cross is not None
        return Exchange(self.mesh.cross, _with_semaphores(self.scratch.cross, piece))


def _with_semaphores(scratch: ExchangeScratch, number: int) -> ExchangeScratch:
    """The mailboxes with one pair of their semaphores."""
    return ExchangeScratch(scratch.mail, scratch.sent.at[number], scratch.arrived.at[number])


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["share", "scatter", "cross", "gather"],
    meta_fields=["columns"],
)
@dataclass(frozen=True, slots=True)
class ThreeHopScratch:
    """What a ThreeHop keeps: columns in blocks of 128, as many consecutive ones for each member."""

    columns: int  # of a part
    share: Any  # VMEM bf16 [blocks, rows, 128]
    scatter: ExchangeScratch  # mail [members, own blocks, rows, 128]
    cross: ExchangeScratch | None  # mail [hosts, own blocks, rows, 128]; None where there is one host
    gather: ExchangeScratch  # mail [blocks, rows, 128]

    def _asdict(self) -> dict[str, Any]:
        """The fields by name, as a NamedTuple gives them to whoever counts VMEM."""
        return {field: getattr(self, field) for field in self.__slots__}


def three_hop_scratch(mesh: Mesh, rows: int, parts: int, columns: int) -> ThreeHopScratch:
    """Scratch to sum `[rows, parts * columns]`, at least two rows.

    Raises:
        ValueError: The blocks of 128 columns do not divide among the members of a host.
    """
    blocks, odd = divmod(parts * columns, LANES)
    if odd or columns % LANES or blocks % mesh.members:
        raise ValueError(
            f"{parts} parts of {columns} columns do not divide into blocks of {LANES} for each of "
            f"{mesh.members} cores"
        )
    own = (blocks // mesh.members, rows, LANES)
    return ThreeHopScratch(
        columns,
        pltpu.VMEM((blocks, rows, LANES), jnp.bfloat16),
        exchange_scratch(mesh.members, own, jnp.bfloat16),
        exchange_scratch(mesh.hosts, own, jnp.bfloat16) if mesh.hosts > 1 else None,
        exchange_scratch(blocks, (rows, LANES), jnp.bfloat16),
    )


@dataclass(frozen=True, slots=True)
class ThreeHop:
    """A sum in which each member of a host adds up an equal share of the columns.

    `relay` is `cross` and `gather`; call those where something can be done between.
    """

    mesh: Mesh
    rows: int
    scratch: ThreeHopScratch

    def post(self, part: Any, product: jax.Array) -> None:
        """Keep columns `part` of this core's share: the first `rows` of f32 `[>= rows, columns]`."""
        blocks = product.shape[1] // LANES
        for block in range(blocks):
            live = product[: self.rows, block * LANES : (block + 1) * LANES]
            self.scratch.share[part * blocks + block] = live.astype(jnp.bfloat16)

    def send(self, name: str) -> None:
        """Send every member of the host the columns it adds up; all parts have been posted."""
        share, blocks = self.scratch.share, self.scratch.scatter.mail.shape[1]

        def share_of(member: jax.Array) -> Any:
            return share.at[pl.ds(member * blocks, blocks)]

        self._scatter.send_each(name, share_of)
        own = share_of(self.mesh.host.member())
        for block in range(blocks):
            self._scatter.own[block] = own[block]

    def cross(self, name: str) -> None:
        """Add up the host's shares of the own columns and send the sum to the same member of other hosts."""
        mail = self._scatter.receive()
        into = self._cross if self.mesh.hosts > 1 else self._gather
        self._add_up(mail, into)
        if self.mesh.hosts > 1:
            into.send(name)

    def gather(self, name: str) -> None:
        """Add up the hosts' sums of the own columns and send them to the host's other members."""
        if self.mesh.hosts > 1:
            self._add_up(self._cross.receive(), self._gather)
        self._gather.send(name)

    def relay(self, name: str) -> None:
        """Wait for the first two hops and send the last."""
        self.cross(name)
        self.gather(name)

    def receive(self) -> None:
        """Wait for the last hop."""
        self._gather.receive()

    def total(self, part: Any) -> jax.Array:
        """Columns `part` of the sum, f32 `[rows, columns]`: the same bits on every core."""
        blocks = self.scratch.columns // LANES
        values = [self.scratch.gather.mail[part * blocks + block] for block in range(blocks)]
        return jnp.concatenate([value.astype(jnp.float32) for value in values], axis=1)

    def finish(self) -> None:
        """Wait until everything this core sent has left, so that it may `post` again."""
        self._scatter.finish()
        if self.mesh.hosts > 1:
            self._cross.finish()
        self._gather.finish()

    def _add_up(self, mail: Any, into: Exchange) -> None:
        """Sum of the mailboxes, in order, into the own mailbox of the next exchange."""
        for block in range(mail.shape[1]):
            into.own[block] = add_up(mail, mail.shape[0], block).astype(jnp.bfloat16)

    @property
    def _scatter(self) -> Exchange:
        return Exchange(self.mesh.host, self.scratch.scatter)

    @property
    def _cross(self) -> Exchange:
        assert self.scratch.cross is not None
        return Exchange(self.mesh.cross, self.scratch.cross)

    @property
    def _gather(self) -> Exchange:
        return FlatExchange(self.mesh.host, self.scratch.gather)


def reduction_scratch(mesh: Mesh, rows: int, parts: int, columns: int) -> TwoHopScratch | ThreeHopScratch:
    """Scratch to sum `[rows, parts * columns]` the way that is modelled to be faster."""
    large = share_bytes(rows, parts, columns) > THREE_HOP_BYTES
    divides = not columns % LANES and not parts * columns // LANES % mesh.members
    if large and divides and mesh.hosts > 1 and mesh.members > 1:
        return three_hop_scratch(mesh, rows, parts, columns)
    return two_hop_scratch(mesh, rows, parts, columns)


def reduction(mesh: Mesh, rows: int, scratch: TwoHopScratch | ThreeHopScratch) -> TwoHop | ThreeHop:
    """The reduction that `scratch` was made for."""
    if isinstance(scratch, ThreeHopScratch):
        return ThreeHop(mesh, rows, scratch)
    return TwoHop(mesh, rows, scratch)
