"""The KDA mixer: from the input projection's columns to what the output projection reads.

Roundings to bfloat16 stand where the published model code has them, so that the kernel and the bfloat16
reference differ only by the order of sums.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.delta_rule import causal_conv, l2_normalize
from megakernels.common.gemv import LANES
from megakernels.hooks import phase, tag
from megakernels.k3.channel_rule import ChannelRow, channel_replay, channel_step
from megakernels.k3.mixer import Core, Mixer, block_of
from megakernels.k3.plan import ROWS
from megakernels.k3.stream import Stream


def kda_mixer() -> Mixer:
    """The KDA mixer, for `mixer.mixer_kernel`."""
    return Mixer(("constants", "decay_out"), begin, run, end)


def begin(core: Core) -> None:
    """Request the first layer's state; clear rows that nobody writes, for they are multiplied along."""
    load_state(core, 0, 0)
    for padded in (core.vmem.convolved, core.vmem.delta_out):
        padded[...] = jnp.zeros_like(padded)


def end(core: Core) -> None:
    """Wait for the last layer's state to leave."""
    await_state_written(core, (core.plan.layers - 1) % 2)


def load_state(core: Core, index: Any, turn: Any) -> None:
    """Request the state of KDA layer `index`."""
    for name, copy in _state_copies(core, index, turn):
        tag(copy, name).start()


def await_state_written(core: Core, turn: Any) -> None:
    """Wait until the state last written from `turn` has left it."""
    v, state = core.vmem, core.state
    for here, there in ((v.recurrent, state.recurrent), (v.conv, state.conv)):
        pltpu.make_async_copy(here.at[turn], there.at[0], v.state_out.at[turn]).wait()
    if core.plan.verify:
        pltpu.make_async_copy(v.correction.at[turn], state.correction.at[0], v.state_out.at[turn]).wait()


def run(core: Core, index: Any, turn: Any, stream: Stream) -> Stream:
    """`mixed` = the gated, normalized outputs of KDA layer `index`, its state moved on by the step's rows."""
    v = core.vmem
    with phase("in_proj"):
        stream = core.multiply(stream, core.plan.kda_in, lambda: v.rows[turn], v.projected)
    p = core.plan
    with phase("state_in"):
        for _, copy in _state_copies(core, 0, turn):
            copy.wait()
        _prefetch_next(core, index, turn)
    with phase("conv"):
        _convolve(core, turn)
        _gates(core, turn)
    with phase("recurrence"):
        if p.verify:
            _replay(core, turn)
            _write_recurrent(core, index, turn)
            for head in range(p.heads):
                core.vmem.working[head] = core.vmem.recurrent[turn, 0, head]
        lax.fori_loop(0, p.rows, lambda row, _: _row(core, turn, row), None, unroll=p.rows == 1)
    with phase("state_out"):
        _write_rest(core, index, turn)
    with phase("out_norm"):
        _gated_norm(core, turn)
    return stream


def _state_copies(core: Core, index: Any, turn: Any) -> list[tuple[str, Any]]:
    v, state = core.vmem, core.state
    pairs = [("recurrent", state.recurrent, v.recurrent), ("conv", state.conv, v.conv)]
    if core.plan.verify:
        pairs.append(("correction", state.correction, v.correction))
    into = v.state_in.at[turn]
    return [(name, pltpu.make_async_copy(s.at[index], d.at[turn], into)) for name, s, d in pairs]


def _prefetch_next(core: Core, index: Any, turn: Any) -> None:
    """Request the next layer's state into the other buffer, once its last state has left that."""

    @pl.when(index > 0)
    def _() -> None:
        await_state_written(core, 1 - turn)

    @pl.when(index + 1 < core.plan.layers)
    def _() -> None:
        load_state(core, index + 1, 1 - turn)


def _convolve(core: Core, turn: Any) -> None:
    """Convolution and SiLU of q, k, v; then q and k normalized per head, q scaled."""
    p, c, v = core.plan, core.plan.config, core.vmem
    past = c.conv_taps - 1
    for block in range(p.conv_blocks):
        columns = slice(block * LANES, (block + 1) * LANES)
        taps = [core.constant(f"tap{t}", turn)[:, columns] for t in range(c.conv_taps)]
        now = block_of(core.vmem.projected, block)
        if p.verify:
            kept = [v.conv[turn, block, pl.ds(core.hbm.accepted[0] + t, 1)] for t in range(past)]
            line = jnp.concatenate([*kept, now], axis=0)
            history = [line[t : t + ROWS] for t in range(c.conv_taps)]
            v.conv[turn, block, : past + ROWS] = line
        else:
            earlier = [v.conv[turn, t, :, columns] for t in range(past)]
            live = now[: p.rows]
            for t, inputs in enumerate([*earlier[1:], live]):
                v.conv[turn, t, :, columns] = inputs
            history = [*earlier, live]
        value = jax.nn.silu(causal_conv(history, taps)).astype(jnp.bfloat16).astype(jnp.float32)
        if block < 2 * p.heads:
            value = l2_normalize(value)
        if block < p.heads:
            value = value * c.head_dim**-0.5
        v.convolved[block, : p.rows] = value


def _gates(core: Core, turn: Any) -> None:
    """Decay factors exp(bound sigmoid(exp(A_log) (f_b f_a x + dt_bias))), and beta = sigmoid(W_b x)."""
    p, v = core.plan, core.vmem
    inner = block_of(core.vmem.projected, 4 * p.heads).astype(jnp.bfloat16)
    for head in range(p.heads):
        columns = slice(head * LANES, (head + 1) * LANES)
        raw = jnp.dot(inner, v.decay_out[turn, :, columns], preferred_element_type=jnp.float32)
        raw = raw.astype(jnp.bfloat16).astype(jnp.float32) + core.constant("dt_bias", turn)[:, columns]
        rate = core.constant("rate", turn)[:, columns]
        v.decays[head] = jnp.exp(p.config.decay_bound * jax.nn.sigmoid(rate * raw))
    v.betas[...] = jax.nn.sigmoid(block_of(core.vmem.projected, 4 * p.heads + 1))


def _row(core: Core, turn: Any, row: Any) -> None:
    """Advance the states by one row: its own sequence's in decode, the one sequence's in verify."""
    p, v = core.plan, core.vmem
    states = v.working if p.verify else v.recurrent.at[turn, row]
    here = pl.ds(row, 1)
    betas = v.betas[here, :]
    for head in range(p.heads):
        inputs = ChannelRow(
            query=v.convolved[head, here, :],
            key=v.convolved[p.heads + head, here, :],
            decay=v.decays[head, here, :],
            value=v.convolved[2 * p.heads + head, here, :],
            beta=betas[:, head : head + 1],
        )
        states[head], output, error = channel_step(states[head], inputs)
        v.delta_out[head, here, :] = output
        if p.verify:
            left = (inputs.key, inputs.decay, error)
            for kind, values in enumerate(left):
                v.correction[turn, kind * p.heads + head, here] = values


def _replay(core: Core, turn: Any) -> None:
    """Apply the accepted rows of the previous block to the state from before it."""
    p, v = core.plan, core.vmem

    def one(row: Any, _: None) -> None:
        here = pl.ds(row, 1)
        for head in range(p.heads):
            left = (v.correction[turn, kind * p.heads + head, here] for kind in range(3))
            v.recurrent[turn, 0, head] = channel_replay(v.recurrent[turn, 0, head], *left)

    lax.fori_loop(0, core.hbm.accepted[0], one, None)


def _write_recurrent(core: Core, index: Any, turn: Any) -> None:
    v, state = core.vmem, core.state
    copy = pltpu.make_async_copy(v.recurrent.at[turn], state.recurrent.at[index], v.state_out.at[turn])
    tag(copy, "recurrent").start()


def _write_rest(core: Core, index: Any, turn: Any) -> None:
    v, state, left = core.vmem, core.state, core.vmem.state_out.at[turn]
    if core.plan.verify:
        copy = pltpu.make_async_copy(v.correction.at[turn], state.correction.at[index], left)
        tag(copy, "correction").start()
    else:
        _write_recurrent(core, index, turn)
    tag(pltpu.make_async_copy(v.conv.at[turn], state.conv.at[index], left), "conv").start()


def _gated_norm(core: Core, turn: Any) -> None:
    """RMS norm of each head's output, times the sigmoid of its gate."""
    p, v = core.plan, core.vmem
    weight = core.constant("out_norm", turn)
    for head in range(p.heads):
        value = v.delta_out[head].astype(jnp.bfloat16).astype(jnp.float32)
        scale = lax.rsqrt(jnp.mean(value * value, axis=-1, keepdims=True) + p.config.norm_eps)
        gate = jax.nn.sigmoid(block_of(core.vmem.projected, 3 * p.heads + head))
        columns = slice(head * LANES, (head + 1) * LANES)
        v.mixed[:, columns] = (value * scale * weight * gate).astype(jnp.bfloat16)
