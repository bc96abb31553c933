"""A stack of KDA mixers as one grid-less Pallas call: the attention part of K3's layers, by itself.

Each layer gets rows of its own, so every one can be held against the reference. Weight tiles stream over the
layer boundaries; a layer's state comes in while the layer before it computes and leaves behind it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.collectives import EntryBarrier
from megakernels.common.exchange import Exchange
from megakernels.common.ring import Ring
from megakernels.hooks import layer, phase, tag
from megakernels.k3.kda import await_state_written, kda_mixer, load_state
from megakernels.k3.kda_refs import AXIS, Core, KdaState, Operands, Results
from megakernels.k3.plan import MixerPlan
from megakernels.k3.stream import Section, Stream, WeightStream

PHASES = (
    "enter",
    "rows_in",
    "in_proj",
    "state_in",
    "conv",
    "recurrence",
    "state_out",
    "out_norm",
    "out_proj",
    "all_reduce",
    "leave",
)


def kda_kernel(plan: MixerPlan) -> Callable[..., None]:
    """The kernel: refs of Operands, the old state (aliased, not used), Results flat, then a Staging."""
    inputs = len(Operands._fields)
    states = 3 if plan.verify else 2

    def kernel(*refs: Any) -> None:
        *arrays, vmem = refs
        hbm = Operands(*arrays[:2], *(ref.at[0] for ref in arrays[2:inputs]))
        out, *state = (ref.at[0] for ref in arrays[inputs + states :])
        sections = tuple(Section(m, getattr(hbm, m.name)) for m in plan.matrices)
        weights = WeightStream(plan.layers, sections, Ring(vmem.ring))
        core = Core(plan, hbm, Results(out, KdaState(*state)), vmem, weights)
        stream = enter(core)
        lax.fori_loop(0, plan.layers, lambda index, stream: one_layer(core, index, stream), stream)
        leave(core)

    return kernel


def enter(core: Core) -> Stream:
    """Request what the first layer needs; meet the other cores."""
    v = core.vmem
    with phase("enter"):
        EntryBarrier(AXIS, core.plan.cores).signal()
        load_small(core, 0, 0)
        load_state(core, 0, 0)
        stream = core.weights.start()
        for padded in (
            v.convolved,
            v.delta_out,
            v.attended,
        ):  # dead rows are multiplied along: no NaN in them
            padded[...] = jnp.zeros_like(padded)
        EntryBarrier(AXIS, core.plan.cores).wait()
    return stream


def one_layer(core: Core, index: jax.Array, stream: Stream) -> Stream:
    """`out[index] = kda(rows[index])`."""
    p, v = core.plan, core.vmem
    turn = lax.rem(index, 2)
    with layer(index):
        with phase("rows_in"):
            for _, copy in small_copies(core, 0, turn):
                copy.wait()
            pl.when(index + 1 < p.layers)(lambda: load_small(core, index + 1, 1 - turn))
        with phase("in_proj"):

            def keep(number: Any, product: jax.Array) -> None:
                v.projected[number] = product

            stream = core.weights.multiply(stream, p.kda_in, lambda: v.rows[turn], keep)
        kda_mixer(core, index, turn)
        exchange = core.exchange(turn)
        with phase("out_proj"):

            def post(number: Any, product: jax.Array) -> None:
                exchange.own[number] = share(core, product)

            stream = core.weights.multiply(stream, p.kda_out, lambda: v.mixed[...], post)
            exchange.send("mixer_share")
        with phase("all_reduce"):
            all_reduce(core, exchange, index, turn)
    return stream


def small_copies(core: Core, index: Any, turn: Any) -> list[tuple[str, Any]]:
    """The copies of a layer's rows and of the weights that are too small for tiles."""
    hbm, v = core.hbm, core.vmem
    names = ("rows", "constants", "decay_out")
    into = v.small_in.at[turn]
    return [
        (name, pltpu.make_async_copy(getattr(hbm, name).at[index], getattr(v, name).at[turn], into))
        for name in names
    ]


def load_small(core: Core, index: Any, turn: Any) -> None:
    """Request them."""
    for name, copy in small_copies(core, index, turn):
        tag(copy, name).start()


def share(core: Core, product: jax.Array) -> jax.Array:
    """Live rows of a product as they travel: bfloat16, a lone row folded into two."""
    product = product[: core.plan.rows]
    if core.plan.fold == 2:
        half = product.shape[1] // 2
        product = jnp.concatenate([product[:, :half], product[:, half:]], axis=0)
    return product.astype(jnp.bfloat16)


def all_reduce(core: Core, exchange: Exchange, index: Any, turn: Any) -> None:
    """Sum the cores' shares in rank order, so that all hold the same bits, and write the layer's output."""
    p, v = core.plan, core.vmem
    out = pltpu.make_async_copy(v.attended.at[turn], core.out.out.at[index], v.result_out.at[turn])
    pl.when(index > 1)(out.wait)  # the layer before the last has left the buffer
    mail = exchange.receive()
    columns = p.kda_out.columns
    width = columns // p.fold
    for part in range(p.kda_out.tiles):
        total = mail[0, part].astype(jnp.float32)
        for sender in range(1, p.cores):
            total = total + mail[sender, part].astype(jnp.float32)
        for fold in range(p.fold):
            first = part * columns + fold * width
            live = total[fold : fold + 1] if p.fold == 2 else total
            v.attended[turn, : p.rows, first : first + width] = live
    exchange.finish()
    tag(out, "out").start()


def leave(core: Core) -> None:
    """Wait for everything still on its way out."""
    p, v = core.plan, core.vmem
    with phase("leave"):
        for index in range(max(0, p.layers - 2), p.layers):
            turn = index % 2
            attended = v.attended.at[turn]
            pltpu.make_async_copy(attended, core.out.out.at[0], v.result_out.at[turn]).wait()
        await_state_written(core, (p.layers - 1) % 2)
