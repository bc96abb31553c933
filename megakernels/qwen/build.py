"""Builds the decode step at a size: the Pallas call, the shapes it takes, and the facts about it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from megakernels.build import KernelBuild
from megakernels.common.gemv import LANES, MXU_COLUMNS
from megakernels.hooks import Level, instrument
from megakernels.qwen.config import CONFIGS, QwenConfig
from megakernels.qwen.facts import facts, vmem_bytes
from megakernels.qwen.kernel import decode_kernel
from megakernels.qwen.plan import ROWS, VMEM_BYTES, Plan
from megakernels.qwen.refs import AXIS, REPLICATED, SMEM_OPERANDS, Operands, operand_names, staging
from megakernels.qwen.state import state_shapes

# The compiler keeps spills and constants of its own in VMEM, 2.4 MiB in the full model.
VMEM_BUDGET = VMEM_BYTES - (5 << 20)


def operand_shapes(plan: Plan) -> Operands:
    """Global shapes and dtypes of the operands; those a plan does not have are None."""
    p, c = plan, plan.config
    layers = (p.cores, c.layers)
    weights = jnp.float8_e4m3fn if p.fp8 else jnp.bfloat16

    def shape(*dims: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype)

    return Operands(
        tokens=shape(p.rows, dtype=jnp.int32),
        positions=shape(p.batch, dtype=jnp.int32),
        accepted=shape(1, dtype=jnp.int32),
        embedding=shape(c.vocab, p.embedding_rows, c.hidden // p.embedding_rows),
        rope=shape(p.capacity, 1, LANES, dtype=jnp.float32),
        constants=shape(p.cores, c.layers + 1, 1, p.constants_width, dtype=jnp.float32),
        w_ab=shape(p.cores, c.gdn_layers, c.hidden // LANES, p.ab_rows, LANES),
        scales=shape(*layers, p.all_scale_rows, LANES, dtype=jnp.float32) if p.fp8 else None,
        **{m.name: shape(*layers, m.tiles, m.rows, LANES, dtype=weights) for m in p.layer_matrices},
        lm_head=shape(p.cores, p.lm_head.tiles, p.lm_head.rows, LANES),
    )


def decode_step(plan: Plan, interpret: Any = False) -> Any:
    """The per-core function: operands, then the state arrays; returns Results. State operands are donated."""
    names, state = operand_names(plan), [s for s in state_shapes(plan) if s is not None]
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    in_smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    per_core = [jax.ShapeDtypeStruct((1, *s.shape[1:]), s.dtype) for s in state]
    results = [
        jax.ShapeDtypeStruct((ROWS, LANES), jnp.int32),
        jax.ShapeDtypeStruct((1, plan.lm_head.tiles, ROWS, MXU_COLUMNS), jnp.float32),
        *per_core,
    ]
    call = pl.pallas_call(
        decode_kernel(plan),
        out_shape=results,
        in_specs=[in_smem if name in SMEM_OPERANDS else in_hbm for name in names] + [in_hbm] * len(state),
        out_specs=[in_hbm] * len(results),
        scratch_shapes=(staging(plan),),
        input_output_aliases={len(names) + i: 2 + i for i in range(len(state))},
        compiler_params=pltpu.CompilerParams(
            collective_id=0 if plan.cores > 1 else None,
            vmem_limit_bytes=VMEM_BYTES,
            disable_bounds_checks=True,
        ),
        interpret=interpret,
        name="qwen",
    )

    def on_one_core(*arrays: jax.Array) -> Any:
        # Without the constraint XLA may copy small operands into VMEM before the kernel starts. On donated
        # arrays it would cost a copy of each.
        placed = [
            pltpu.with_memory_space_constraint(array, pltpu.HBM)
            if name not in (*SMEM_OPERANDS, "state")
            else array
            for name, array in zip((*names, *("state" for _ in state)), arrays, strict=True)
        ]
        return tuple(call(*placed))

    return on_one_core


def build_plan(plan: Plan, *, level: Level = "regions", interpret: Any = False) -> KernelBuild:
    """The kernel of a plan."""
    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    names, shapes = operand_names(plan), operand_shapes(plan)
    state = [s for s in state_shapes(plan) if s is not None]
    return KernelBuild(
        name="qwen",
        function=instrument(decode_step(plan, interpret), level),
        arguments=(*(getattr(shapes, name) for name in names), *state),
        in_specs=(
            *(everywhere if name in REPLICATED else split for name in names),
            *(split for _ in state),
        ),
        out_specs=(everywhere, *(split for _ in range(1 + len(state)))),
        mesh_axes={AXIS: plan.cores},
        facts=facts(plan, level),
    )


def with_ring_that_fits(plan: Plan) -> Plan:
    """The plan with its ring no deeper than VMEM allows: fewer cores have taller tiles.

    Raises:
        ValueError: Not even two banks fit.
    """
    sizes = vmem_bytes(plan)
    bank = sizes["ring.banks"] // plan.ring_depth
    depth = min(plan.ring_depth, (VMEM_BUDGET - sum(sizes.values()) + sizes["ring.banks"]) // bank)
    if depth < 2:
        raise ValueError(f"the arrays of batch {plan.batch} on {plan.cores} cores leave no room for a ring")
    return dataclasses.replace(plan, ring_depth=depth, head_depth=min(depth, plan.head_depth))


def build(
    *,
    batch: int = 1,
    verify: bool = False,
    fp8: bool = False,
    cores: int = 8,
    layers: int | None = None,
    model: str | QwenConfig | Mapping[str, Any] = "qwen3.8-27b",
    level: Level = "regions",
    interpret: Any = False,
    **sizes: Any,
) -> KernelBuild:
    """The decode step of Qwen3.8-27B, or of another config of the same shape.

    Args:
        batch: Sequences, each at its own position: 1, 2, 4 or 8.
        verify: 8 consecutive tokens of one sequence instead of one of each.
        fp8: Layer weights in float8 with block scales, as the published FP8 checkpoint has them.
        cores: TensorCores, 1, 2, 4 or 8.
        layers: Take only this many layers, a multiple of 4 to keep the pattern.
        model: Name of a config in `megakernels.qwen.config.CONFIGS`, or a config, or its fields.
        level: Hook level, `off` or `regions`.
        interpret: `pltpu.InterpretParams` to simulate on a CPU, False to compile.
        **sizes: Further fields of `Plan`, such as `capacity` or `ring_depth`.

    Returns:
        A build whose function maps the arrays of `refs.Operands` and `state.KernelState` to next tokens
        int32 `[8, 128]`, logits, and the new state.

    Raises:
        ValueError: A size does not split or tile; the message names it.
        KeyError: There is no such model.
        TypeError: An option does not exist.
    """
    plan = plan_of(batch=batch, verify=verify, fp8=fp8, cores=cores, layers=layers, model=model, **sizes)
    return build_plan(plan, level=level, interpret=interpret)


def plan_of(*, model: str | QwenConfig | Mapping[str, Any], layers: int | None = None, **sizes: Any) -> Plan:
    """The plan that `build` builds for the same options; the fields of a config may come as a mapping."""
    if isinstance(model, Mapping):
        config = QwenConfig(**model)
    else:
        config = CONFIGS[model] if isinstance(model, str) else model
    if layers is not None:
        config = dataclasses.replace(config, layers=layers)
    plan = Plan(config=config, **sizes)
    return plan if "ring_depth" in sizes else with_ring_that_fits(plan)
