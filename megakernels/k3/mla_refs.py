"""The arrays a stack of MLA mixers takes, and what a core keeps on chip while it runs."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.gemv import LANES
from megakernels.common.reduction import share_shape
from megakernels.common.ring import RingScratch, ring_scratch
from megakernels.k3.mla_plan import WINDOW, MlaPlan
from megakernels.k3.plan import ROWS


class Operands(NamedTuple):
    """Refs in the order the call takes them; from `constants` on each core's share, without the core axis."""

    positions: Any  # SMEM i32 [batch]: where the first row of each sequence stands
    rows: Any  # bf16 [layers, 8, hidden]: what each layer's mixer gets, normed; dead rows zero
    constants: Any  # f32 [layers, 1, constants width]
    to_keys: Any  # bf16 [layers, heads, 128, kv rank]: a head's key part of kv_b
    to_values: Any  # bf16 [layers, heads, kv rank, 128]: its value part
    mla_latent: Any  # the tiles: bf16 [layers, tiles, rows, 128]
    mla_side: Any
    mla_query: Any
    mixer_out: Any


class MlaState(NamedTuple):
    """The cache, updated in place; leading axes core and layer (refs: without the core axis).

    cache: bf16 `[batch, stored tokens, latent | shared key part, padded to 128]`, the same on every core.
        Rows at and past a sequence's position are never used, but must be finite.
    """

    cache: Any


class Staging(NamedTuple):
    """What a core keeps on chip, and its semaphores. A leading 2 is a pair used in turn by layers."""

    rows: Any  # bf16 [2, 8, hidden]
    constants: Any  # f32 [2, 1, constants width]
    to_keys: Any  # bf16 [2, heads, 128, kv rank]
    to_values: Any  # bf16 [2, heads, kv rank, 128]
    own_latent: Any  # f32 [tiles, 8, 256]: this rank's columns of the latents
    side: Any  # f32 [tiles, 8, 256]: gate | shared key part
    query: Any  # f32 [tiles, 8, columns]
    latents: Any  # f32 [2, group, own blocks, rows, 128]: everybody's columns; mailbox j is from rank j
    latents_sent: Any  # DMA semaphores [2]
    latents_arrived: Any  # DMA semaphores [2]
    queries: Any  # bf16 [heads * rows, cache width]: absorbed and scaled
    entry: Any  # f32 [8, cache width]: the rows' own cache entries
    cache: Any  # bf16 [slots, cache tile, cache width]
    window: Any  # bf16 [2, batch, 32, cache width]
    mixed: Any  # bf16 [8, heads * 128]: what the output projection multiplies
    attended: Any  # f32 [2, 8, hidden]
    ring: RingScratch
    mail: Any  # bf16 [2, cores, ...]: see common/reduction.py
    mail_sent: Any  # DMA semaphores [2, 1]
    mail_arrived: Any  # DMA semaphores [2, 1]
    entries: Any  # SMEM i32 [max cache tiles]: sequence * 65536 + tile
    small_in: Any  # DMA semaphores [2]
    cache_in: Any  # DMA semaphores [slots]
    window_in: Any  # DMA semaphores [2]
    window_out: Any  # DMA semaphores [2]
    result_out: Any  # DMA semaphores [2]


def staging(plan: MlaPlan) -> Staging:
    """The scratch the call asks for."""
    p, c = plan, plan.config
    f32, bf16 = jnp.float32, jnp.bfloat16
    vmem, dma = pltpu.VMEM, pltpu.SemaphoreType.DMA
    share = share_shape(p.rows, p.mixer_out.tiles, p.mixer_out.columns)

    def product(matrix: Any) -> Any:
        return vmem((matrix.tiles, ROWS, matrix.columns), f32)

    return Staging(
        rows=vmem((2, ROWS, c.hidden), bf16),
        constants=vmem((2, 1, p.constants_width), f32),
        to_keys=vmem((2, p.heads, LANES, c.kv_rank), bf16),
        to_values=vmem((2, p.heads, c.kv_rank, LANES), bf16),
        own_latent=product(p.mla_latent),
        side=product(p.mla_side),
        query=product(p.mla_query),
        latents=vmem((2, p.group, p.own_blocks, p.rows, LANES), f32),
        latents_sent=dma((2,)),
        latents_arrived=dma((2,)),
        queries=vmem((p.query_rows, p.cache_width), bf16),
        entry=vmem((ROWS, p.cache_width), f32),
        cache=vmem((p.cache_slots, p.cache_tile, p.cache_width), bf16),
        window=vmem((2, p.batch, WINDOW, p.cache_width), bf16),
        mixed=vmem((ROWS, p.gated_width), bf16),
        attended=vmem((2, ROWS, c.hidden), f32),
        ring=ring_scratch(p.ring_depth, (p.bank_rows, LANES), bf16),
        mail=vmem((2, p.cores, *share), bf16),
        mail_sent=dma((2, 1)),
        mail_arrived=dma((2, 1)),
        entries=pltpu.SMEM((p.max_cache_tiles,), jnp.int32),
        small_in=dma((2,)),
        cache_in=dma((p.cache_slots,)),
        window_in=dma((2,)),
        window_out=dma((2,)),
        result_out=dma((2,)),
    )
