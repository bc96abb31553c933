"""The arrays the kernel takes and what a core keeps on chip while it runs."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.exchange import Exchange, ExchangeScratch, exchange_scratch
from megakernels.common.gemv import LANES, MXU_COLUMNS
from megakernels.common.ring import RingScratch, ring_scratch
from megakernels.qwen.plan import HISTORY_ROWS, ROWS, WINDOW, Matrix, Plan, round_up
from megakernels.qwen.stream import WeightStream

AXIS = "core"
SMEM_OPERANDS = ("tokens", "positions", "accepted")
REPLICATED = (*SMEM_OPERANDS, "embedding", "rope")  # whole on every core; all others have a core axis


class Operands(NamedTuple):
    """Refs in the order the call takes them; each core's share, without the leading core axis.

    `operand_names` gives those a plan has.
    """

    tokens: Any  # SMEM i32 [rows]
    positions: Any  # SMEM i32 [batch]: where the first row of each sequence stands
    accepted: Any  # SMEM i32 [1]: rows of the previous verify block to keep; 0 in decode
    embedding: Any  # bf16 [vocab, embedding rows, hidden / embedding rows]
    rope: Any  # f32 [capacity, 1, 128]
    constants: Any  # f32 [layers + 1, 1, constants width]
    w_ab: Any  # bf16 [gdn layers, hidden / 128, ab rows, 128]
    scales: Any  # f32 [layers, all scale rows, 128], or None without fp8
    w_in: Any  # the tiles: see stream.py
    w_out: Any
    w_gate_up: Any
    w_down: Any
    lm_head: Any


class Results(NamedTuple):
    """Refs of the results; the state arrays are updated in place."""

    next_tokens: Any  # i32 [8, 128], a row's greedy token in every lane
    logits: Any  # f32 [tiles, 8, 256]: this core's share of the vocabulary, padding included
    recurrent: Any
    conv: Any
    kv: Any
    correction: Any = None


class Staging(NamedTuple):
    """What a core keeps in VMEM and SMEM, and its semaphores. A leading 2 is a pair used in turn."""

    residual: Any  # f32 [8, hidden]: the residual stream, whole on every core
    normed: Any  # bf16 [8 or 16, hidden]: what the input projections multiply
    projected: Any  # f32 [tiles, 8, columns]: results of the input projection
    mixed: Any  # f32 [8, gate channels]: what a mixer gives
    mixed_rows: Any  # bf16 [8 or 16, gate channels]: the same as the output projection multiplies it
    gated: Any  # bf16 [tiles, 8 or 16, 128]: what down multiplies
    logits: Any  # f32 [tiles, 8, 256]
    next_tokens: Any  # i32 [8, 128]
    embedded: Any  # bf16 [rows, embedding rows, hidden / embedding rows]
    rope_rows: Any  # f32 [rows, 1, 128]
    rope: Any  # f32 [8, 128]
    constants: Any  # f32 [2, 1, constants width]
    w_ab: Any  # bf16 [2, hidden / 128, ab rows, 128]
    convolved: Any  # f32 [channels / 128, 8, 128]: q, k normalized, v
    gates: Any  # f32 [2, 8, 128]: decay and beta, value heads along lanes
    delta_out: Any  # f32 [value heads, 8, 128]
    recurrent: Any  # f32 [2, batch, value heads, key dim, value dim]
    conv: Any  # f32 [2, ...]
    queries: Any  # bf16 [kv heads, query rows, head dim]
    new_kv: Any  # f32 [kv blocks, 8, 128]
    kv: Any  # bf16 [slots, kv blocks, kv tile, 128]
    window: Any  # bf16 [2, batch, kv blocks, 32, 128]
    ring: RingScratch
    mixer_exchange: ExchangeScratch
    ffn_exchange: ExchangeScratch
    token_exchange: ExchangeScratch
    kv_entries: Any  # SMEM i32 [max tiles]: sequence * 65536 + tile
    started: Any  # DMA semaphore: what comes in once at the start
    constants_in: Any  # DMA semaphores [2]
    state_in: Any  # DMA semaphores [2]
    state_out: Any  # DMA semaphores [2]
    kv_in: Any  # DMA semaphores [slots]
    window_in: Any  # DMA semaphores [2]
    window_out: Any  # DMA semaphores [2]
    result_out: Any  # DMA semaphore
    working: Any = None  # f32 [value heads, key dim, value dim]: verify only, the state inside the block
    correction: Any = None  # f32 [2, correction blocks, 8, 128]: verify only
    scales: Any = None  # f32 [2, all scale rows, 128]: fp8 only
    head_ring: Any = None  # RingScratch of bf16 lm_head tiles: fp8 only


def operand_names(plan: Plan) -> list[str]:
    """Names of the operands of a plan: all of `Operands`, without scales unless it is fp8."""
    return [name for name in Operands._fields if plan.fp8 or name != "scales"]


def staging(plan: Plan) -> Staging:
    """The scratch the call asks for."""
    p, c = plan, plan.config
    f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32
    vmem, dma = pltpu.VMEM, pltpu.SemaphoreType.DMA
    width = c.hidden // p.embedding_rows
    past = c.conv_taps - 1
    conv = (p.conv_blocks, HISTORY_ROWS, LANES) if p.verify else (past, p.batch, p.conv_channels)
    state = (p.value_heads, c.key_dim, c.value_dim)

    def shares(matrix: Matrix) -> tuple[tuple[int, int, int], Any]:
        if p.as_words:
            messages = matrix.tiles // p.tiles_per_message(matrix)
            return (messages, p.rows * matrix.n // MXU_COLUMNS // messages, LANES), jnp.uint32
        return (matrix.tiles, ROWS, matrix.columns), bf16

    return Staging(
        residual=vmem((ROWS, c.hidden), f32),
        normed=vmem((p.packed_rows, c.hidden), bf16),
        projected=vmem((p.w_in.tiles, ROWS, p.w_in.columns), f32),
        mixed=vmem((ROWS, p.gate_channels), f32),
        mixed_rows=vmem((p.packed_rows, p.gate_channels), bf16),
        gated=vmem((p.w_gate_up.tiles, p.packed_rows, LANES), bf16),
        logits=vmem((p.lm_head.tiles, ROWS, MXU_COLUMNS), f32),
        next_tokens=vmem((ROWS, LANES), i32),
        embedded=vmem((p.rows, p.embedding_rows, width), bf16),
        rope_rows=vmem((p.rows, 1, LANES), f32),
        rope=vmem((ROWS, LANES), f32),
        constants=vmem((2, 1, p.constants_width), f32),
        w_ab=vmem((2, c.hidden // LANES, p.ab_rows, LANES), bf16),
        convolved=vmem((p.conv_channels // LANES, ROWS, LANES), f32),
        gates=vmem((2, ROWS, round_up(p.ab_rows // 2, LANES)), f32),
        delta_out=vmem((p.value_heads, ROWS, c.value_dim), f32),
        recurrent=vmem((2, p.batch, *state), f32),
        conv=vmem((2, *conv), f32),
        queries=vmem((p.kv_heads, p.query_heads // p.kv_heads * p.rows, c.head_dim), bf16),
        new_kv=vmem((p.kv_blocks, ROWS, LANES), f32),
        kv=vmem((p.kv_slots, p.kv_blocks, p.kv_tile, LANES), bf16),
        window=vmem((2, p.batch, p.kv_blocks, WINDOW, LANES), bf16),
        ring=ring_scratch(p.ring_depth, (p.bank, LANES), jnp.float8_e4m3fn if p.fp8 else bf16),
        mixer_exchange=exchange_scratch(p.cores, *shares(p.w_out)),
        ffn_exchange=exchange_scratch(p.cores, *shares(p.w_down)),
        token_exchange=exchange_scratch(p.cores, (2, ROWS, LANES), f32),
        kv_entries=pltpu.SMEM((p.max_kv_tiles,), i32),
        started=dma,
        constants_in=dma((2,)),
        state_in=dma((2,)),
        state_out=dma((2,)),
        kv_in=dma((p.kv_slots,)),
        window_in=dma((2,)),
        window_out=dma((2,)),
        result_out=dma,
        working=vmem(state, f32) if p.verify else None,
        correction=vmem((2, p.correction_blocks, ROWS, LANES), f32) if p.verify else None,
        scales=vmem((2, p.all_scale_rows, LANES), f32) if p.fp8 else None,
        head_ring=ring_scratch(p.head_depth, (p.lm_head.rows, LANES), bf16) if p.fp8 else None,
    )


@dataclass(frozen=True, slots=True)
class Core:
    """One core's view: sizes, arrays in HBM, arrays on chip, and its two moving parts."""

    plan: Plan
    hbm: Operands
    out: Results
    vmem: Staging
    weights: WeightStream

    def exchange(self, scratch: ExchangeScratch) -> Exchange:
        """An exchange with the other cores over its scratch."""
        return Exchange.over(AXIS, self.plan.cores, scratch)

    def constant(self, name: str, slot: Any) -> Any:
        """A small vector of the layer whose constants are in `slot`, `[1, width]` f32."""
        first, width = self.plan.constants[name]
        return self.vmem.constants[slot, :, first : first + width]

    def projected(self, block: int) -> Any:
        """128 columns of the input projection's result, `[8, 128]` f32."""
        columns = self.plan.w_in.columns
        tile, first = divmod(block * LANES, columns)
        return self.vmem.projected[tile, :, first : first + LANES]
