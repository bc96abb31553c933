"""The arrays a stack of KDA mixers takes, and what a core keeps on chip while it runs."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.gemv import LANES
from megakernels.common.reduction import share_shape
from megakernels.common.ring import RingScratch, ring_scratch
from megakernels.k3.plan import ROWS, KdaPlan


class Operands(NamedTuple):
    """Refs in the order the call takes them; from `constants` on each core's share, without the core axis."""

    accepted: Any  # SMEM i32 [1]: rows of the previous verify block to keep; 0 in decode
    rows: Any  # bf16 [layers, 8, hidden]: what each layer's mixer gets, normed; dead rows zero
    constants: Any  # f32 [layers, 1, constants width]
    decay_out: Any  # bf16 [layers, 128, heads * 128]: the decay's second factor
    kda_in: Any  # the tiles: bf16 [layers, tiles, rows, 128]
    mixer_out: Any


class KdaState(NamedTuple):
    """State arrays, updated in place; leading axes core and layer (refs: without the core axis).

    recurrent: f32 `[batch, heads, key, value]`.
    conv: f32, values that bf16 holds; decode `[taps - 1, batch, channels]`, the last inputs, oldest first;
        verify `[channels / 128, 16, 128]`, 3 from before the block, the block's 8, unused.
    correction: f32 `[keys | decays | errors, 8, 128]` of the block's rows; None in decode.
    """

    recurrent: Any
    conv: Any
    correction: Any = None


class Staging(NamedTuple):
    """What a core keeps in VMEM, and its semaphores. A leading 2 is a pair used in turn by layers."""

    rows: Any  # bf16 [2, 8, hidden]
    constants: Any  # f32 [2, 1, constants width]
    decay_out: Any  # bf16 [2, 128, heads * 128]
    projected: Any  # f32 [tiles, 8, 256]: results of the input projection
    convolved: Any  # f32 [channels / 128, 8, 128]: q, k normalized, v
    decays: Any  # f32 [heads, 8, 128]: the factors
    betas: Any  # f32 [8, 128]: heads along lanes
    delta_out: Any  # f32 [heads, 8, 128]
    mixed: Any  # bf16 [8, heads * 128]: what the output projection multiplies
    attended: Any  # f32 [2, 8, hidden]
    recurrent: Any  # f32 [2, batch, heads, key, value]
    conv: Any  # f32 [2, ...]
    ring: RingScratch
    mail: Any  # bf16 [2, cores, ...]: see common/reduction.py
    mail_sent: Any  # DMA semaphores [2, 1]
    mail_arrived: Any  # DMA semaphores [2, 1]
    small_in: Any  # DMA semaphores [2]: rows, constants, decay_out
    state_in: Any  # DMA semaphores [2]
    state_out: Any  # DMA semaphores [2]
    result_out: Any  # DMA semaphores [2]
    working: Any = None  # f32 [heads, key, value]: verify only, the state inside the block
    correction: Any = None  # f32 [2, correction blocks, 8, 128]: verify only


def staging(plan: KdaPlan) -> Staging:
    """The scratch the call asks for."""
    p, c = plan, plan.config
    f32, bf16 = jnp.float32, jnp.bfloat16
    vmem, dma = pltpu.VMEM, pltpu.SemaphoreType.DMA
    share = share_shape(p.rows, p.mixer_out.tiles, p.mixer_out.columns)
    return Staging(
        rows=vmem((2, ROWS, c.hidden), bf16),
        constants=vmem((2, 1, p.constants_width), f32),
        decay_out=vmem((2, LANES, p.gated_width), bf16),
        projected=vmem((p.kda_in.tiles, ROWS, p.kda_in.columns), f32),
        convolved=vmem((p.conv_blocks, ROWS, LANES), f32),
        decays=vmem((p.heads, ROWS, LANES), f32),
        betas=vmem((ROWS, LANES), f32),
        delta_out=vmem((p.heads, ROWS, LANES), f32),
        mixed=vmem((ROWS, p.gated_width), bf16),
        attended=vmem((2, ROWS, c.hidden), f32),
        recurrent=vmem((2, *p.recurrent_shape), f32),
        conv=vmem((2, *p.conv_shape), f32),
        ring=ring_scratch(p.ring_depth, (p.bank_rows, LANES), bf16),
        mail=vmem((2, p.cores, *share), bf16),
        mail_sent=dma((2, 1)),
        mail_arrived=dma((2, 1)),
        small_in=dma((2,)),
        state_in=dma((2,)),
        state_out=dma((2,)),
        result_out=dma((2,)),
        working=vmem((p.heads, LANES, LANES), f32) if p.verify else None,
        correction=vmem((2, p.correction_blocks, ROWS, LANES), f32) if p.verify else None,
    )
