"""The arrays a decode step takes and gives, and what a core keeps on chip while it runs."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.exchange import Exchange, ExchangeScratch, exchange_scratch
from megakernels.common.gemv import LANES
from megakernels.common.reduction import Mesh, Reduction, reduction, reduction_scratch
from megakernels.common.ring import RingScratch, ring_scratch
from megakernels.k3 import experts, kda_refs, mixer, mla_refs
from megakernels.k3.plan import ROWS
from megakernels.k3.residual import Residual, ResidualScratch, residual_scratch
from megakernels.k3.step_plan import StepPlan
from megakernels.k3.stream import WeightStream

AXIS = mixer.AXIS
SCALARS = ("tokens", "positions", "accepted")  # arguments that reach the kernel as one operand in SMEM
REPLICATED = ("scalars", "embedding", "constants")  # whole on every core, without a core axis


class Operands(NamedTuple):
    """Refs in the order the call takes them; each core's share, without the core axis.

    Tiles are bf16 `[layers of the kind, tiles, rows, 128]`, see common/gemv.py.
    """

    scalars: Any  # SMEM i32 [rows + batch + 1]: see the properties of Core
    embedding: Any  # bf16 [vocab, embedding rows, hidden / embedding rows]
    constants: Any  # f32 [layers + 1, 1, constants width]
    kda_constants: Any  # f32 [KDA layers, 1, constants width]
    decay_out: Any  # bf16 [KDA layers, 128, heads * 128]
    mla_constants: Any  # f32 [MLA layers, 1, constants width]
    to_keys: Any  # bf16 [MLA layers, heads, 128, kv rank]
    to_values: Any  # bf16 [MLA layers, heads, kv rank, 128]
    kda_in: Any  # the tiles
    mla_latent: Any
    mla_side: Any
    mla_query: Any
    mixer_out: Any  # of all layers
    dense_in: Any
    dense_out: Any
    moe_in: Any
    shared_out: Any
    latent_up: Any
    up: Any  # i32 [MoE layers, experts, ...]: see ExpertPlan.shapes
    up_scale: Any
    down: Any
    down_scale: Any
    lm_head: Any  # bf16 [tiles, rows, 128]


class Results(NamedTuple):
    """What a step gives; then come the state arrays."""

    next_tokens: Any  # i32 [8, 128]: the greedy token of each row, along lanes; the same on every core
    logits: Any  # f32 [tiles, 8, 256]: of the core's share of the vocabulary
    aux: Any  # f32 [aux layers, 8, hidden]: the residual stream that enters those layers


class KernelState(NamedTuple):
    """State arrays, updated in place, leading axes core and layer: see KdaState and MlaState."""

    recurrent: Any
    conv: Any
    cache: Any
    correction: Any = None  # verify only


class Staging(NamedTuple):
    """What a core keeps on chip, and its semaphores."""

    residual: ResidualScratch
    constants: Any  # f32 [2, 1, constants width]
    rows: Any  # bf16 [2, 8, hidden]: what a mixer multiplies
    mixed: Any  # bf16 [8, heads * 128]: what the output projection multiplies
    normed: Any  # bf16 [8, hidden]: what FFN and lm_head multiply
    kda: kda_refs.Staging
    mla: mla_refs.Staging
    experts: experts.Staging
    ffn_in: Any  # f32 [tiles, 8, columns]: results of moe_in or dense_in
    activated: Any  # bf16 [8, inner]: what shared_out or dense_out multiplies
    latent: Any  # bf16 [8, latent]: what latent_up multiplies
    logits: Any  # f32 [tiles, 8, 256]
    next_tokens: Any  # i32 [8, 128]
    embedded: Any  # bf16 [rows, embedding rows, hidden / embedding rows]
    aux: Any  # f32 [8, hidden]
    ring: RingScratch
    mixer_sum: Any  # scratch of the sum of the mixers' shares
    ffn_sum: Any  # of the dense FFN's, and of the shared expert's
    experts_sum: Any  # of the routed experts'
    latent_gather: ExchangeScratch
    output_gather: ExchangeScratch
    token_host: ExchangeScratch
    token_cross: ExchangeScratch
    started: Any  # DMA semaphore: what comes in once at the start
    constants_in: Any  # DMA semaphores [2]
    kda_small_in: Any  # DMA semaphores [2]
    mla_small_in: Any  # DMA semaphores [2]
    aux_out: Any  # DMA semaphore
    result_out: Any  # DMA semaphore


def mesh_of(plan: StepPlan) -> Mesh:
    """The ranks as the collectives see them."""
    return Mesh(AXIS, plan.hosts, plan.members)


def wire(plan: StepPlan) -> Any:
    """Of rows that are gathered: bfloat16, but a lone row of it is no whole word of memory."""
    return jnp.bfloat16 if plan.rows > 1 else jnp.float32


def staging(plan: StepPlan) -> Staging:
    """The scratch the call asks for."""
    p, c = plan, plan.config
    f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32
    vmem, dma = pltpu.VMEM, pltpu.SemaphoreType.DMA
    frame = {
        "rows",
        "mixed",
        "attended",
        "ring",
        "mail",
        "mail_sent",
        "mail_arrived",
        "small_in",
        "result_out",
    }
    unused: dict[str, Any] = dict.fromkeys(frame)
    wide = max(p.moe_in, p.dense_in, key=lambda matrix: matrix.n)
    parts, columns = p.kda.mixer_out.tiles, p.kda.mixer_out.columns
    mesh = mesh_of(p)
    return Staging(
        residual=residual_scratch(c.snapshots, c.hidden),
        constants=vmem((2, 1, p.constants_width), f32),
        rows=vmem((2, ROWS, c.hidden), bf16),
        mixed=vmem((ROWS, p.kda.gated_width), bf16),
        normed=vmem((ROWS, c.hidden), bf16),
        kda=kda_refs.staging(p.kda)._replace(**unused),
        mla=mla_refs.staging(p.mla)._replace(**unused),
        experts=experts.staging(p.experts),
        ffn_in=vmem((wide.tiles, ROWS, wide.columns), f32),
        activated=vmem((ROWS, max(p.shared.inner, p.dense.inner)), bf16),
        latent=vmem((ROWS, c.latent), bf16),
        logits=vmem((p.lm_head.tiles, ROWS, p.lm_head.columns), f32),
        next_tokens=vmem((ROWS, LANES), i32),
        embedded=vmem((p.rows, p.embedding_rows, c.hidden // p.embedding_rows), bf16),
        aux=vmem((ROWS, c.hidden), f32),
        ring=ring_scratch(p.ring_depth, (p.bank_rows, LANES), bf16),
        mixer_sum=reduction_scratch(mesh, p.rows, parts, columns),
        ffn_sum=reduction_scratch(mesh, p.rows, c.hidden // p.ffn_part, p.ffn_part),
        experts_sum=reduction_scratch(mesh, p.rows, c.latent // p.latent_part, p.latent_part),
        latent_gather=exchange_scratch(p.members, (p.latent.own, p.rows, LANES), wire(p)),
        output_gather=exchange_scratch(p.members, (p.hidden.own, p.rows, LANES), wire(p)),
        token_host=exchange_scratch(p.members, (2, ROWS, LANES), f32),
        token_cross=exchange_scratch(p.hosts, (2, ROWS, LANES), f32),
        started=dma,
        constants_in=dma((2,)),
        kda_small_in=dma((2,)),
        mla_small_in=dma((2,)),
        aux_out=dma,
        result_out=dma,
    )


@dataclass(frozen=True, slots=True)
class Core:
    """One core's view: sizes, arrays in HBM and on chip, the stream of weights, and the parts of a layer."""

    plan: StepPlan
    hbm: Operands
    out: Results
    state: KernelState
    vmem: Staging
    weights: WeightStream

    @property
    def tokens(self) -> Any:
        """SMEM ref i32 `[rows]`."""
        return self.hbm.scalars.at[pl.ds(0, self.plan.rows)]

    @property
    def positions(self) -> Any:
        """SMEM ref i32 `[batch]`: where the first row of each sequence stands."""
        return self.hbm.scalars.at[pl.ds(self.plan.rows, self.plan.batch)]

    @property
    def accepted(self) -> Any:
        """SMEM ref i32 `[1]`: rows of the previous verify block to keep; 0 in decode."""
        return self.hbm.scalars.at[pl.ds(self.plan.rows + self.plan.batch, 1)]

    @property
    def residual(self) -> Residual:
        """The residual stream."""
        return Residual(self.vmem.residual, self.plan.config.norm_eps)

    def constant(self, name: str, slot: Any) -> Any:
        """A small vector of the layer whose constants are in `slot`: a ref f32 `[1, width]`."""
        first, width = self.plan.constants[name]
        return self.vmem.constants.at[slot, :, pl.ds(first, width)]

    def gather(self, scratch: ExchangeScratch) -> Exchange:
        """An exchange within the host."""
        return Exchange(mesh_of(self.plan).host, scratch)

    def sum(self, scratch: Any) -> Reduction:
        """A sum over all cores."""
        return reduction(mesh_of(self.plan), self.plan.rows, scratch)

    @property
    def kda(self) -> mixer.Core:
        """What the KDA mixers see."""
        hbm, v = self.hbm, self.vmem
        operands = kda_refs.Operands(
            accepted=self.accepted,
            rows=None,
            constants=hbm.kda_constants,
            decay_out=hbm.decay_out,
            kda_in=hbm.kda_in,
            mixer_out=hbm.mixer_out,
        )
        state = kda_refs.KdaState(self.state.recurrent, self.state.conv, self.state.correction)
        staged = v.kda._replace(rows=v.rows, mixed=v.mixed, small_in=v.kda_small_in)
        return mixer.Core(self.plan.kda, operands, None, state, staged, self.weights)

    @property
    def mla(self) -> mixer.Core:
        """What the MLA mixers see."""
        hbm, v = self.hbm, self.vmem
        operands = mla_refs.Operands(
            positions=self.positions,
            rows=None,
            constants=hbm.mla_constants,
            to_keys=hbm.to_keys,
            to_values=hbm.to_values,
            mla_latent=hbm.mla_latent,
            mla_side=hbm.mla_side,
            mla_query=hbm.mla_query,
            mixer_out=hbm.mixer_out,
        )
        staged = v.mla._replace(rows=v.rows, mixed=v.mixed, small_in=v.mla_small_in)
        return mixer.Core(
            self.plan.mla, operands, None, mla_refs.MlaState(self.state.cache), staged, self.weights
        )

    @property
    def experts(self) -> experts.ExpertCore:
        """What the routed experts see."""
        hbm = self.hbm
        weights = experts.ExpertWeights(hbm.up, hbm.up_scale, hbm.down, hbm.down_scale)
        return experts.ExpertCore(self.plan.experts, weights, self.vmem.experts)
