"""The Gated DeltaNet mixer: from the input projection's columns to what the output projection reads."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.delta_rule import DeltaRow, causal_conv, delta_replay, delta_step, l2_normalize
from megakernels.common.gemv import LANES
from megakernels.hooks import phase, tag
from megakernels.qwen.plan import ROWS
from megakernels.qwen.refs import Core


def load_state(core: Core, index: Any, slot: Any) -> None:
    """Request the state of GDN layer `index` into `slot`."""
    v, out = core.vmem, core.out
    tag(_copy(out.recurrent.at[index], v.recurrent.at[slot], v.state_in.at[slot]), "recurrent").start()
    tag(_copy(out.conv.at[index], v.conv.at[slot], v.state_in.at[slot]), "conv").start()
    if core.plan.verify:
        tag(_copy(out.correction.at[index], v.correction.at[slot], v.state_in.at[slot]), "correction").start()


def await_state_written(core: Core, slot: Any) -> None:
    """Wait until the state last written from `slot` has left it."""
    v, out = core.vmem, core.out
    _copy(v.recurrent.at[slot], out.recurrent.at[0], v.state_out.at[slot]).wait()
    _copy(v.conv.at[slot], out.conv.at[0], v.state_out.at[slot]).wait()
    if core.plan.verify:
        _copy(v.correction.at[slot], out.correction.at[0], v.state_out.at[slot]).wait()


def gdn_mixer(core: Core, index: Any, constants: Any) -> None:
    """`mixed` = the gated, normalized outputs of GDN layer `index`, its state moved on by the step's rows.

    Args:
        core: The core's view; `projected` and `normed` are set.
        index: Number among the GDN layers.
        constants: Slot of the layer's constants and w_ab.
    """
    slot = lax.rem(index, 2)
    with phase("state_in"):
        _await_state(core, slot)
        _prefetch_next(core, index, slot)
    with phase("conv"):
        _convolve(core, slot, constants)
        _gates(core, constants)
    with phase("recurrence"):
        if core.plan.verify:
            _replay(core, slot)
            _write_recurrent(core, index, slot)
            for head in range(core.plan.value_heads):
                core.vmem.working[head] = core.vmem.recurrent[slot, 0, head]
        lax.fori_loop(
            0, core.plan.rows, lambda row, _: _row(core, slot, row), None, unroll=core.plan.rows == 1
        )
    with phase("state_out"):
        _write_rest(core, index, slot)
    with phase("out_norm"):
        _gated_norm(core, constants)


def _copy(source: Any, destination: Any, semaphore: Any) -> Any:
    return pltpu.make_async_copy(source, destination, semaphore)


def _await_state(core: Core, slot: Any) -> None:
    v, out = core.vmem, core.out
    _copy(out.recurrent.at[0], v.recurrent.at[slot], v.state_in.at[slot]).wait()
    _copy(out.conv.at[0], v.conv.at[slot], v.state_in.at[slot]).wait()
    if core.plan.verify:
        _copy(out.correction.at[0], v.correction.at[slot], v.state_in.at[slot]).wait()


def _prefetch_next(core: Core, index: Any, slot: Any) -> None:
    """Request the next layer's state into the other slot, once that slot's last state has left."""

    @pl.when(index > 0)
    def _() -> None:
        await_state_written(core, 1 - slot)

    @pl.when(index + 1 < core.plan.config.gdn_layers)
    def _() -> None:
        load_state(core, index + 1, 1 - slot)


def _convolve(core: Core, slot: Any, constants: Any) -> None:
    """Convolution and SiLU of q, k, v; then q and k normalized per head, q scaled."""
    p, c, v = core.plan, core.plan.config, core.vmem
    past = c.conv_taps - 1
    for block in range(p.conv_blocks):
        columns = slice(block * LANES, (block + 1) * LANES)
        taps = [core.constant(f"tap{t}", constants)[:, columns] for t in range(c.conv_taps)]
        now = core.projected(block).astype(jnp.bfloat16).astype(jnp.float32)
        if p.verify:
            kept = [v.conv[slot, block, pl.ds(core.hbm.accepted[0] + t, 1)] for t in range(past)]
            line = jnp.concatenate([*kept, now], axis=0)
            history = [line[t : t + ROWS] for t in range(c.conv_taps)]
            v.conv[slot, block, : past + ROWS] = line
        else:
            earlier = [v.conv[slot, t, :, columns] for t in range(past)]
            live = now[: p.rows]
            for t, inputs in enumerate([*earlier[1:], live]):
                v.conv[slot, t, :, columns] = inputs
            history = [*earlier, live]
        value = jax.nn.silu(causal_conv(history, taps))
        if block < 2 * p.key_heads:
            value = l2_normalize(value)
        if block < p.key_heads:
            value = value * c.key_dim**-0.5
        v.convolved[block, : p.rows] = value


def _gates(core: Core, constants: Any) -> None:
    """Decay exp(-exp(A_log) softplus(a + dt_bias)) and write strength sigmoid(b), value heads along lanes."""
    p, v = core.plan, core.vmem
    half = p.ab_rows // 2
    stacked = v.w_ab.at[constants]
    weight = jnp.concatenate([stacked[block] for block in range(stacked.shape[0])], axis=1)
    both_last = (((1,), (1,)), ((), ()))
    product = lax.dot_general(v.normed[...], weight, both_last, preferred_element_type=jnp.float32)
    if p.fp8:  # even and odd blocks of columns lie in halves
        product = product[:ROWS] + product[ROWS:]
    a = product[:, :half] + core.constant("dt_bias", constants)
    softplus = jnp.maximum(a, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(a)))
    v.gates[0, :, :half] = jnp.exp(core.constant("a", constants) * softplus)
    v.gates[1, :, :half] = jax.nn.sigmoid(product[:, half:])


def _row(core: Core, slot: Any, row: Any) -> None:
    """Advance the states by one row: its own sequence's in decode, the one sequence's in verify."""
    p, v = core.plan, core.vmem
    states = v.working if p.verify else v.recurrent.at[slot, row]
    here = pl.ds(row, 1)
    decays, betas = v.gates[0, here, :], v.gates[1, here, :]
    for key_head in range(p.key_heads):
        heads = range(key_head * p.values_per_key, (key_head + 1) * p.values_per_key)
        inputs = DeltaRow(
            query=v.convolved[key_head, here, :],
            key=v.convolved[p.key_heads + key_head, here, :],
            values=[v.convolved[2 * p.key_heads + head, here, :] for head in heads],
            decays=[decays[:, head : head + 1] for head in heads],
            betas=[betas[:, head : head + 1] for head in heads],
        )

        def read(i: int, first: int = heads.start) -> jax.Array:
            return states[first + i]

        def write(i: int, state: jax.Array, first: int = heads.start) -> None:
            states[first + i] = state

        outputs, errors = delta_step(inputs, read, write)
        for head, output, error in zip(heads, outputs, errors, strict=True):
            v.delta_out[head, here, :] = output
            if p.verify:
                v.correction[slot, p.key_heads + head, here] = error
        if p.verify:
            v.correction[slot, key_head, here] = inputs.key
    if p.verify:
        v.correction[slot, p.correction_blocks - 1, here] = decays


def _replay(core: Core, slot: Any) -> None:
    """Apply the accepted rows of the previous block to the state from before it."""
    p, v = core.plan, core.vmem

    def one(row: Any, _: None) -> None:
        here = pl.ds(row, 1)
        decays = v.correction[slot, p.correction_blocks - 1, here]
        for key_head in range(p.key_heads):
            heads = range(key_head * p.values_per_key, (key_head + 1) * p.values_per_key)

            def read(i: int, first: int = heads.start) -> jax.Array:
                return v.recurrent[slot, 0, first + i]

            def write(i: int, state: jax.Array, first: int = heads.start) -> None:
                v.recurrent[slot, 0, first + i] = state

            delta_replay(
                v.correction[slot, key_head, here],
                [decays[:, head : head + 1] for head in heads],
                [v.correction[slot, p.key_heads + head, here] for head in heads],
                read,
                write,
            )

    lax.fori_loop(0, core.hbm.accepted[0], one, None)


def _write_recurrent(core: Core, index: Any, slot: Any) -> None:
    v, out = core.vmem, core.out
    tag(_copy(v.recurrent.at[slot], out.recurrent.at[index], v.state_out.at[slot]), "recurrent").start()


def _write_rest(core: Core, index: Any, slot: Any) -> None:
    v, out = core.vmem, core.out
    if core.plan.verify:
        out_correction = out.correction.at[index]
        tag(_copy(v.correction.at[slot], out_correction, v.state_out.at[slot]), "correction").start()
    else:
        _write_recurrent(core, index, slot)
    tag(_copy(v.conv.at[slot], out.conv.at[index], v.state_out.at[slot]), "conv").start()


def _gated_norm(core: Core, constants: Any) -> None:
    """RMS norm of each value head, times SiLU of its gate z."""
    p, v = core.plan, core.vmem
    weight = core.constant("out_norm", constants)
    first_gate = p.conv_blocks
    for head in range(p.value_heads):
        value = v.delta_out[head]
        scale = lax.rsqrt(jnp.mean(value * value, axis=-1, keepdims=True) + p.config.norm_eps)
        gate = jax.nn.silu(core.projected(first_gate + head))
        v.mixed[:, head * LANES : (head + 1) * LANES] = value * scale * weight * gate
