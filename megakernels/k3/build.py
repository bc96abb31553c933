"""Builds the decode step at a size: the Pallas call, the shapes it takes, and the facts about it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from megakernels.build import KernelBuild
from megakernels.common.gemv import LANES
from megakernels.hooks import Level, instrument
from megakernels.k3 import kda_state, mla_pack
from megakernels.k3.config import CONFIGS, KIMI_K3, K3Config
from megakernels.k3.facts import facts, vmem_bytes
from megakernels.k3.kernel import decode_kernel
from megakernels.k3.plan import ROWS
from megakernels.k3.step_plan import VMEM_BYTES, StepPlan
from megakernels.k3.step_refs import AXIS, REPLICATED, SCALARS, KernelState, Operands, staging

# The compiler keeps spills and constants of its own in VMEM.
VMEM_BUDGET = VMEM_BYTES - (4 << 20)
MEMBERS = 8  # ranks of a host of TPU7x: 4 chips of 2 TensorCores
WIDTH_RANKS = 4  # ranks that share an expert


def shape(*dims: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    """A shape, bfloat16 unless said otherwise."""
    return jax.ShapeDtypeStruct(dims, dtype)


def operand_shapes(plan: StepPlan) -> Operands:
    """Global shapes and dtypes of the operands."""
    p, c, f32, i32 = plan, plan.config, jnp.float32, jnp.int32
    kda, mla, moe = (p.cores, c.kda_layers), (p.cores, c.mla_layers), (p.cores, c.moe_layers)
    rank = c.kv_rank

    def tiles(lead: tuple[int, ...], matrix: Any) -> dict[str, jax.ShapeDtypeStruct]:
        return {matrix.name: shape(*lead, matrix.tiles, matrix.rows, LANES)}

    matrices = tiles(kda, p.kda.kda_in) | tiles((p.cores, c.layers), p.kda.mixer_out)
    matrices |= tiles(mla, p.mla.mla_latent) | tiles(mla, p.mla.mla_side) | tiles(mla, p.mla.mla_query)
    for matrix in (p.dense_in, p.dense_out):
        matrices |= tiles((p.cores, c.dense_layers), matrix)
    for matrix in (p.moe_in, p.shared_out, p.latent_up):
        matrices |= tiles(moe, matrix)
    arrays = {n: shape(*moe, p.experts.experts, *s, dtype=i32) for n, s in p.experts.shapes.items()}
    return Operands(
        scalars=shape(p.rows + p.batch + 1, dtype=i32),
        embedding=shape(c.vocab, p.embedding_rows, c.hidden // p.embedding_rows),
        constants=shape(c.layers + 1, 1, p.constants_width, dtype=f32),
        kda_constants=shape(*kda, 1, p.kda.constants_width, dtype=f32),
        decay_out=shape(*kda, LANES, p.kda.gated_width),
        mla_constants=shape(*mla, 1, p.mla.constants_width, dtype=f32),
        to_keys=shape(*mla, p.mla.heads, LANES, rank),
        to_values=shape(*mla, p.mla.heads, rank, LANES),
        lm_head=shape(p.cores, p.lm_head.tiles, p.lm_head.rows, LANES),
        **matrices,
        **arrays,
    )


def state_shapes(plan: StepPlan) -> KernelState:
    """Global shapes and dtypes of the state."""
    kda, mla = kda_state.state_shapes(plan.kda), mla_pack.state_shapes(plan.mla)
    return KernelState(kda.recurrent, kda.conv, mla.cache, kda.correction)


def decode_step(plan: StepPlan, interpret: Any = False) -> Any:
    """The per-core function: SCALARS, the other operands, the state; returns Results, then the state."""
    names, state = Operands._fields, [s for s in state_shapes(plan) if s is not None]
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    results = [
        jax.ShapeDtypeStruct((ROWS, LANES), jnp.int32),
        jax.ShapeDtypeStruct((1, plan.lm_head.tiles, ROWS, plan.lm_head.columns), jnp.float32),
        jax.ShapeDtypeStruct((1, len(plan.config.aux_layers), ROWS, plan.config.hidden), jnp.float32),
        *(jax.ShapeDtypeStruct((1, *s.shape[1:]), s.dtype) for s in state),
    ]
    call = pl.pallas_call(
        decode_kernel(plan),
        out_shape=results,
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)] + [in_hbm] * (len(names) - 1 + len(state)),
        out_specs=[in_hbm] * len(results),
        scratch_shapes=(staging(plan),),
        input_output_aliases={len(names) + i: 3 + i for i in range(len(state))},
        compiler_params=pltpu.CompilerParams(
            collective_id=0 if plan.cores > 1 else None,
            vmem_limit_bytes=VMEM_BYTES,
            disable_bounds_checks=True,
        ),
        interpret=interpret,
        name="k3",
    )

    def on_one_core(tokens: jax.Array, positions: jax.Array, accepted: jax.Array, *arrays: jax.Array) -> Any:
        # Without the constraint XLA may copy small operands into VMEM before the kernel starts. On donated
        # arrays it would cost a copy of each.
        weights = len(names) - 1
        placed = [pltpu.with_memory_space_constraint(array, pltpu.HBM) for array in arrays[:weights]]
        return tuple(call(jnp.concatenate([tokens, positions, accepted]), *placed, *arrays[weights:]))

    return on_one_core


def build_plan(plan: StepPlan, *, level: Level = "regions", interpret: Any = False) -> KernelBuild:
    """The kernel of a plan.

    Raises:
        ValueError: The ring is too shallow: some tiles are used while none is requested.
    """
    held = plan.moe_in.tiles + plan.shared_out.tiles
    if plan.ring_depth <= held:
        raise ValueError(
            f"a ring of {plan.ring_depth} banks is too shallow: it must hold {held} tiles of moe_in and "
            "shared_out, while none is requested, and one more"
        )
    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    state = [s for s in state_shapes(plan) if s is not None]
    scalars = [shape(n, dtype=jnp.int32) for n in (plan.rows, plan.batch, 1)]
    return KernelBuild(
        name="k3",
        function=instrument(decode_step(plan, interpret), level),
        arguments=(*scalars, *operand_shapes(plan)[1:], *state),
        in_specs=(
            *(everywhere for _ in SCALARS),
            *(everywhere if name in REPLICATED else split for name in Operands._fields[1:]),
            *(split for _ in state),
        ),
        out_specs=(everywhere, *(split for _ in range(2 + len(state)))),
        mesh_axes={AXIS: plan.cores},
        facts=facts(plan, level),
    )


def with_ring_that_fits(plan: StepPlan) -> StepPlan:
    """The plan with its ring as deep as VMEM allows.

    Raises:
        ValueError: Not even two banks fit.
    """
    sizes = vmem_bytes(plan)
    bank = sizes["ring.banks"] // plan.ring_depth
    depth = (VMEM_BUDGET - sum(sizes.values()) + sizes["ring.banks"]) // bank
    if depth < 2:
        raise ValueError(
            f"the arrays of {plan.rows} rows on {plan.cores} ranks take "
            f"{sum(sizes.values()) - sizes['ring.banks']} of {VMEM_BUDGET} bytes of VMEM: no room for a ring"
        )
    return dataclasses.replace(plan, ring_depth=depth)


def build(
    *,
    batch: int = 1,
    verify: bool = False,
    cores: int = 32,
    hosts: int | None = None,
    width_ranks: int | None = None,
    layers: int | None = None,
    model: str | K3Config = KIMI_K3.name,
    level: Level = "regions",
    interpret: Any = False,
    **sizes: Any,
) -> KernelBuild:
    """The decode step of Kimi K3, or of another config of the same shape.

    Args:
        batch: Sequences, each at its own position: 1, 2, 4 or 8.
        verify: 8 consecutive tokens of one sequence instead of one of each.
        cores: Ranks, one TensorCore each: 32 for a 2x2x4 slice, 16 for 2x2x2, 8 for 2x2x1, or fewer.
        hosts: Hosts they belong to; from 16 ranks on every 8 are a host unless this is given.
        width_ranks: Ranks that share an expert by width; 4 unless there are fewer, or this is given.
        layers: Take only this many layers.
        model: Name of a config in `megakernels.k3.config.CONFIGS`, or a config.
        level: Hook level, `off` or `regions`.
        interpret: `pltpu.InterpretParams` to simulate on a CPU, False to compile.
        **sizes: Further fields of `StepPlan`, such as `capacity` or `ring_depth`.

    Returns:
        A build whose function maps `step_refs.SCALARS`, the other arrays of `Operands`, and `KernelState` to
        those of `Results` and the new state.

    Raises:
        ValueError: A size does not split or tile; the message names it.
        KeyError: There is no such model.
        TypeError: An option does not exist.
    """
    config = CONFIGS[model] if isinstance(model, str) else model
    if layers is not None:
        aux = tuple(at for at in config.aux_layers if at < layers) or (layers - 1,)
        config = dataclasses.replace(config, layers=layers, aux_layers=aux)
    hosts = hosts or max(1, cores // MEMBERS)
    if cores % hosts:
        raise ValueError(f"{cores} ranks do not split over {hosts} hosts")
    plan = StepPlan(
        config=config,
        hosts=hosts,
        members=cores // hosts,
        width_ranks=width_ranks or min(WIDTH_RANKS, cores),
        batch=batch,
        verify=verify,
        **sizes,
    )
    if "ring_depth" not in sizes:
        plan = with_ring_that_fits(plan)
    if (used := sum(vmem_bytes(plan).values())) > VMEM_BYTES:
        raise ValueError(f"the arrays of this plan take {used} bytes of VMEM, and there are {VMEM_BYTES}")
    return build_plan(plan, level=level, interpret=interpret)
