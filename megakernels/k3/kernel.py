"""A whole decode step as one grid-less Pallas call: what one core does.

    HBM -> VMEM  | attention | out | moe_in | experts | shared_out | latent_up | next attention | ...
    MXU            | attention | out  | moe_in | shared | experts | latent_up | next attention
    VPU    residual   mixer      residual  top-k                norm
    ICI                       sum              latent gather   sum         gather

The trunk's weights come through one ring of tiles (stream.py) that runs over layer boundaries, the experts'
through slots of their own as soon as the router has chosen them.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.collectives import EntryBarrier
from megakernels.common.ring import Ring
from megakernels.hooks import layer, phase, tag
from megakernels.k3 import kda, mixer, mla
from megakernels.k3.ffn import dense_ffn, mixture
from megakernels.k3.head import lm_head
from megakernels.k3.step_plan import StepPlan
from megakernels.k3.step_refs import AXIS, REPLICATED, Core, KernelState, Operands, Results, Staging
from megakernels.k3.stream import Leg, Section, Stream, WeightStream

KDA, MLA, OUT, DENSE, MIXTURE, HEAD, NOTHING = range(7)  # legs of the stream


def decode_kernel(plan: StepPlan) -> Callable[..., None]:
    """The kernel for `plan`: refs of Operands, the old state (aliased, not used), Results, state, Staging."""
    names = Operands._fields

    def kernel(*refs: Any) -> None:
        *arrays, vmem = refs
        states = 4 if plan.verify else 3
        given = dict(zip(names, arrays, strict=False))
        hbm = Operands(**{n: ref if n in REPLICATED else ref.at[0] for n, ref in given.items()})
        next_tokens, *per_core = arrays[len(names) + states :]
        logits, aux, *state = (ref.at[0] for ref in per_core)
        weights = weight_stream(plan, hbm, vmem)
        core = Core(plan, hbm, Results(next_tokens, logits, aux), KernelState(*state), vmem, weights)
        stream = enter(core)
        stream = lax.fori_loop(0, plan.config.layers, lambda i, stream: one_layer(core, i, stream), stream)
        final_norm(core)
        lm_head(core, stream)
        leave(core)

    return kernel


def mla_before(plan: StepPlan, index: Any) -> Any:
    """MLA layers before layer `index`: its own number among them, if it is one."""
    period = plan.config.mla_period
    if period & (period - 1):
        return lax.div(index, jnp.int32(period))
    return lax.shift_right_logical(index, jnp.int32(period.bit_length() - 1))  # no sign to look after


def is_mla(plan: StepPlan, index: Any) -> Any:
    """Whether the mixer of layer `index` (int32) is MLA."""
    c = plan.config
    last = index - mla_before(plan, index) * c.mla_period == c.mla_period - 1
    return last | (index == c.layers - 1)


def weight_stream(plan: StepPlan, hbm: Operands, vmem: Staging) -> WeightStream:
    """The trunk's tiles in the order they are used."""
    p, c = plan, plan.config

    def of_layers(matrix: Any, number: Callable[[Any], Any]) -> Section:
        tiles = getattr(hbm, matrix.name)
        return Section(matrix, lambda layer, tile: tiles.at[number(layer), tile])

    def kda_number(index: Any) -> Any:
        return index - mla_before(p, index)

    def mla_number(index: Any) -> Any:
        return mla_before(p, index)

    attention = (p.mla.mla_latent, p.mla.mla_side, p.mla.mla_query)
    legs = {
        KDA: (of_layers(p.kda.kda_in, kda_number),),
        MLA: tuple(of_layers(matrix, mla_number) for matrix in attention),
        OUT: (of_layers(p.kda.mixer_out, lambda index: index),),
        DENSE: tuple(of_layers(matrix, lambda index: index) for matrix in (p.dense_in, p.dense_out)),
        MIXTURE: tuple(
            of_layers(matrix, lambda index: index - c.dense_layers)
            for matrix in (p.moe_in, p.shared_out, p.latent_up)
        ),
        HEAD: (Section(p.lm_head, lambda _, tile: hbm.lm_head.at[tile]),),
    }

    def following(leg: Any, index: Any) -> tuple[Any, Any]:
        ffn = jnp.where(index < c.dense_layers, DENSE, MIXTURE)
        after = index + 1
        mixer_leg = jnp.where(is_mla(p, after), MLA, KDA)
        next_layer = jnp.where(after < c.layers, mixer_leg, HEAD)
        then = jnp.where(leg == OUT, ffn, jnp.where(leg >= HEAD, NOTHING, next_layer))
        return jnp.where(leg < OUT, OUT, then), jnp.where(leg > OUT, after, index)

    ffn, start = (DENSE, MIXTURE), (KDA, MLA, HEAD)
    then = {KDA: (OUT,), MLA: (OUT,), OUT: ffn, DENSE: start, MIXTURE: start, HEAD: ()}
    return WeightStream(tuple(Leg(legs[n], then[n]) for n in legs), following, Ring(vmem.ring))


def enter(core: Core) -> Stream:
    """Request everything the first layers need; put the embeddings into the stream; tell the other cores."""
    p, c, hbm, v = core.plan, core.plan.config, core.hbm, core.vmem
    with phase("enter"):
        EntryBarrier(AXIS, p.cores).signal()
        for row in range(p.rows):
            embedding = hbm.embedding.at[core.tokens[row]]
            tag(pltpu.make_async_copy(embedding, v.embedded.at[row], v.started), "embedding").start()
        load_constants(core, jnp.int32(0))
        for mixers, part in ((kda.kda_mixer(), core.kda), (mla.mla_mixer(), core.mla)):
            mixer.load_small(part, mixers.small, 0, 0)
            mixers.begin(part)
        stream = core.weights.start(MLA if c.is_mla(0) else KDA)
        core.residual.clear()
        for padded in (v.activated, v.latent, v.experts.routing):
            padded[...] = jnp.zeros_like(padded)
    with phase("embedding"):
        width = c.hidden // p.embedding_rows
        for row in range(p.rows):
            pltpu.make_async_copy(hbm.embedding.at[0], v.embedded.at[row], v.started).wait()
        for row in range(p.rows):
            embedded = v.embedded[row].astype(jnp.float32)
            for i in range(p.embedding_rows):
                columns = slice(i * width, (i + 1) * width)
                v.residual.prefix[row : row + 1, columns] = embedded[i : i + 1]
        begin_attention(core, jnp.int32(0))
        if c.is_mla(0):
            EntryBarrier(AXIS, p.cores).wait()
    return stream


def constants_copy(core: Core, index: Any) -> Any:
    """The copy of the small vectors of layer `index`."""
    v = core.vmem
    slot = lax.rem(index, jnp.int32(2))
    return pltpu.make_async_copy(core.hbm.constants.at[index], v.constants.at[slot], v.constants_in.at[slot])


def begin_attention(core: Core, index: Any) -> None:
    """Begin the mixture before layer `index`, the final one after the last: its prefix is not known yet."""
    block = core.plan.config.residual_block
    constants_copy(core, index).wait()
    score_weight = core.constant("attn_score", lax.rem(index, jnp.int32(2)))
    core.residual.begin_mix(lax.div(index + (block - 1), jnp.int32(block)), score_weight)


def load_constants(core: Core, index: Any) -> None:
    """Request the small vectors of layer `index`; those after the last layer's are the final norm's."""
    tag(constants_copy(core, index), "constants").start()


def one_layer(core: Core, index: Any, stream: Stream) -> Stream:
    """Mix the residuals, `prefix += mixer`, mix again, `prefix += ffn`."""
    p, c, v = core.plan, core.plan.config, core.vmem
    slot = lax.rem(index, jnp.int32(2))
    mla_index = mla_before(p, index)
    kda_index = index - mla_index
    here = is_mla(p, index)
    turn = lax.rem(jnp.where(here, mla_index, kda_index), jnp.int32(2))
    with layer(index):
        with phase("attention_residual"):
            load_constants(core, index + 1)
            write_aux(core, index)
            squares = core.residual.mix(core.constant("attn_score", slot))
            core.residual.normed(squares, core.constant("input_norm", slot), v.rows.at[turn])
            take_snapshot(core, index)
        stream = lax.cond(
            here,
            lambda stream: run_mixer(core.mla, mla.mla_mixer(), mla_index, turn, stream),
            lambda stream: run_mixer(core.kda, kda.kda_mixer(), kda_index, turn, stream),
            stream,
        )
        stream = out_proj(core, index, stream)
        with phase("ffn_residual"):
            squares = core.residual.mix(core.constant("ffn_score", slot))
            core.residual.normed(squares, core.constant("post_norm", slot), v.normed)

        def meanwhile() -> None:
            begin_attention(core, index + 1)

        return lax.cond(
            index < c.dense_layers,
            lambda stream: dense_ffn(core, stream, meanwhile),
            lambda stream: mixture(core, index - c.dense_layers, slot, stream, meanwhile),
            stream,
        )


def run_mixer(part: mixer.Core, mixers: mixer.Mixer, index: Any, turn: Any, stream: Stream) -> Stream:
    """`mixed` = what the mixer makes of its rows, before the output projection."""
    mixer.next_small(part, mixers.small, index, turn)
    return mixers.run(part, index, turn, stream)


def out_proj(core: Core, index: Any, stream: Stream) -> Stream:
    """`prefix += mixed @ mixer_out`, summed over the cores; the mixture before the FFN is begun meanwhile."""
    p, v = core.plan, core.vmem
    matrix, slot = p.kda.mixer_out, lax.rem(index, jnp.int32(2))
    taken = lax.div(index, jnp.int32(p.config.residual_block)) + 1
    total = core.sum(v.mixer_sum)
    with phase("out_proj"):
        if not p.config.is_mla(0):  # whose mixers say nothing: this is the first message
            pl.when(index == 0)(EntryBarrier(AXIS, p.cores).wait)
        stream = core.weights.multiply(stream, matrix, lambda: v.mixed[...], total.post)
        total.send("mixer_share")
    with phase("mixer_sum"):
        total.relay("mixer_sum")
        core.residual.begin_mix(taken, core.constant("ffn_score", slot))
        total.receive()
        for part in range(matrix.tiles):
            columns = slice(part * matrix.columns, (part + 1) * matrix.columns)
            core.residual.add(columns, total.total(part))
        total.finish()
    return stream


def take_snapshot(core: Core, index: Any) -> None:
    """In every so many layers the stream is put aside, and begun anew."""
    block = jnp.int32(core.plan.config.residual_block)

    @pl.when(lax.rem(index, block) == 0)
    def _() -> None:
        core.residual.take_snapshot(lax.div(index, block))


def write_aux(core: Core, index: Any) -> None:
    """What enters some layers goes to the drafter."""
    v = core.vmem
    for number, at in enumerate(core.plan.config.aux_layers):

        @pl.when(index == at)
        def _(number: int = number) -> None:
            copy = pltpu.make_async_copy(v.aux, core.out.aux.at[number], v.aux_out)
            if number:
                copy.wait()
            v.aux[...] = v.residual.prefix[...]
            tag(copy, "aux").start()


def final_norm(core: Core) -> None:
    """`normed` = the norm of the final mixture."""
    c = core.plan.config
    with phase("final_norm"):
        slot = c.layers % 2
        squares = core.residual.mix(core.constant("attn_score", slot))
        core.residual.normed(squares, core.constant("input_norm", slot), core.vmem.normed)


def leave(core: Core) -> None:
    """Write the tokens; wait for everything still on its way out."""
    v, out = core.vmem, core.out
    with phase("leave"):
        tokens = tag(pltpu.make_async_copy(v.next_tokens, out.next_tokens, v.result_out), "next_tokens")
        tokens.start()
        kda.kda_mixer().end(core.kda)
        mla.mla_mixer().end(core.mla)
        pltpu.make_async_copy(v.aux, out.aux.at[0], v.aux_out).wait()
        pltpu.make_async_copy(v.logits, out.logits, v.result_out).wait()
        tokens.wait()
