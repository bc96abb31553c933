"""A stack of mixers of one kind as one grid-less Pallas call: the attention part of K3's layers, by itself.

Each layer gets rows of its own, so every one can be held against the reference. Weight tiles stream over the
layer boundaries; a layer's state comes in while the layer before it computes and leaves behind it.

This is the frame: rows in, the output projection, the sum over ranks. What lies between is a `Mixer`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.collectives import EntryBarrier
from megakernels.common.exchange import ExchangeScratch
from megakernels.common.gemv import LANES
from megakernels.common.reduction import Mesh, TwoHop, TwoHopScratch
from megakernels.common.ring import Ring
from megakernels.hooks import layer, phase, tag
from megakernels.k3.plan import Matrix
from megakernels.k3.stream import Stream, WeightStream, stack_stream

AXIS = "core"


@dataclass(frozen=True, slots=True)
class Core:
    """One core's view: sizes, arrays in HBM, arrays on chip, and the stream of weights.

    plan, hbm, state and vmem are of the mixer's own types; the frame relies on the names they share.
    """

    plan: Any
    hbm: Any  # Operands, each core's share without the core axis
    out: Any  # f32 [layers, 8, hidden]: the mixers' outputs, summed over the cores
    state: Any  # updated in place
    vmem: Any  # Staging
    weights: WeightStream

    def sum(self, turn: Any) -> TwoHop:
        """The sum over all cores, in one hop, of the layers of one parity; two in turn need no handshake."""
        v = self.vmem
        scratch = ExchangeScratch(v.mail.at[turn], v.mail_sent.at[turn], v.mail_arrived.at[turn])
        return TwoHop(Mesh(AXIS, 1, self.plan.cores), self.plan.rows, TwoHopScratch(scratch, None))

    def constant(self, name: str, turn: Any) -> Any:
        """A small vector of the layer whose constants are in `turn`, `[1, width]` f32."""
        first, width = self.plan.constants[name]
        return self.vmem.constants[turn, :, first : first + width]

    def multiply(self, stream: Stream, matrix: Matrix, rows: Callable[[], Any], result: Any) -> Stream:
        """`result[tile] = rows() @ tile`, f32 `[tiles, 8, columns]`."""

        def keep(number: Any, product: jax.Array) -> None:
            result[number] = product

        return self.weights.multiply(stream, matrix, rows, keep)


def block_of(result: Any, block: int) -> jax.Array:
    """128 columns of a product `[tiles, 8, columns]`: `[8, 128]` f32, rounded as the model rounds."""
    tile, first = divmod(block * LANES, result.shape[-1])
    return result[tile, :, first : first + LANES].astype(jnp.bfloat16).astype(jnp.float32)


@dataclass(frozen=True, slots=True)
class Mixer:
    """What a kind of mixer does between the rows and the output projection.

    Attributes:
        small: Operands copied whole, layer by layer, into a pair of buffers of the same name.
        begin: Requests what the first layer needs besides.
        run: Takes core, layer, turn (layer modulo 2) and stream; sets `mixed`; gives the stream back.
        end: Waits for what is still on its way out.
    """

    small: tuple[str, ...]
    begin: Callable[[Core], None]
    run: Callable[[Core, Any, Any, Stream], Stream]
    end: Callable[[Core], None]


def mixer_kernel(plan: Any, mixer: Mixer, operands: type, state: type) -> Callable[..., None]:
    """The kernel: refs of the operands, the old state (aliased, not used), output, new state, a Staging.

    Args:
        plan: The sizes.
        mixer: What is stacked.
        operands: NamedTuple type of the operands; refs in SMEM have no core axis, nor has `rows`.
        state: NamedTuple type of the state.
    """
    fields: tuple[str, ...] = operands._fields  # type: ignore[attr-defined]
    first = fields.index("rows") + 1

    def kernel(*refs: Any) -> None:
        *arrays, vmem = refs
        inputs = len(fields)
        states = (len(arrays) - inputs - 1) // 2
        hbm = operands(*arrays[:first], *(ref.at[0] for ref in arrays[first:inputs]))
        out, *after = (ref.at[0] for ref in arrays[inputs + states :])
        weights = stack_stream(plan.layers, plan.matrices, hbm, Ring(vmem.ring))
        core = Core(plan, hbm, out, state(*after), vmem, weights)
        stream = enter(core, mixer)
        lax.fori_loop(0, plan.layers, lambda index, stream: one_layer(core, mixer, index, stream), stream)
        leave(core, mixer)

    return kernel


def enter(core: Core, mixer: Mixer) -> Stream:
    """Request what the first layer needs; meet the other cores."""
    with phase("enter"):
        EntryBarrier(AXIS, core.plan.cores).signal()
        load_small(core, ("rows", *mixer.small), 0, 0)
        mixer.begin(core)
        stream = core.weights.start()
        core.vmem.attended[...] = jnp.zeros_like(core.vmem.attended)
        EntryBarrier(AXIS, core.plan.cores).wait()
    return stream


def one_layer(core: Core, mixer: Mixer, index: jax.Array, stream: Stream) -> Stream:
    """`out[index] = mixer(rows[index])`."""
    p, v = core.plan, core.vmem
    turn = lax.rem(index, 2)
    with layer(index):
        with phase("rows_in"):
            next_small(core, ("rows", *mixer.small), index, turn)
        stream = mixer.run(core, index, turn, stream)
        total = core.sum(turn)
        with phase("out_proj"):
            stream = core.weights.multiply(stream, p.mixer_out, lambda: v.mixed[...], total.post)
            total.send("mixer_share")
        with phase("all_reduce"):
            write_sum(core, total, index, turn)
    return stream


def next_small(core: Core, names: tuple[str, ...], index: Any, turn: Any) -> None:
    """Wait for the small operands of a layer; request those of the next."""
    for _, copy in small_copies(core, names, 0, turn):
        copy.wait()
    pl.when(index + 1 < core.plan.layers)(lambda: load_small(core, names, index + 1, 1 - turn))


def small_copies(core: Core, names: tuple[str, ...], index: Any, turn: Any) -> list[tuple[str, Any]]:
    """The copies of operands of a layer that are too small for tiles."""
    hbm, v = core.hbm, core.vmem
    into = v.small_in.at[turn]
    return [
        (name, pltpu.make_async_copy(getattr(hbm, name).at[index], getattr(v, name).at[turn], into))
        for name in names
    ]


def load_small(core: Core, names: tuple[str, ...], index: Any, turn: Any) -> None:
    """Request them."""
    for name, copy in small_copies(core, names, index, turn):
        tag(copy, name).start()


def write_sum(core: Core, total: TwoHop, index: Any, turn: Any) -> None:
    """Wait for the sum of the cores' shares and write it as the layer's output."""
    p, v = core.plan, core.vmem
    out = pltpu.make_async_copy(v.attended.at[turn], core.out.at[index], v.result_out.at[turn])
    pl.when(index > 1)(out.wait)  # the layer before the last has left the buffer
    total.receive()
    columns = p.mixer_out.columns
    for part in range(p.mixer_out.tiles):
        v.attended[turn, : p.rows, part * columns : (part + 1) * columns] = total.total(part)
    total.finish()
    tag(out, "out").start()


def leave(core: Core, mixer: Mixer) -> None:
    """Wait for everything still on its way out."""
    p, v = core.plan, core.vmem
    with phase("leave"):
        for index in range(max(0, p.layers - 2), p.layers):
            turn = index % 2
            attended = v.attended.at[turn]
            pltpu.make_async_copy(attended, core.out.at[0], v.result_out.at[turn]).wait()
        mixer.end(core)
