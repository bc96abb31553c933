"""Builds a stack of KDA mixers at a size: the Pallas call, the shapes it takes, and the facts about it."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from megakernels.build import KernelBuild
from megakernels.common.gemv import LANES
from megakernels.hooks import Level, instrument
from megakernels.k3.kda_kernel import kda_kernel
from megakernels.k3.kda_refs import AXIS, Operands, staging
from megakernels.k3.kda_state import state_shapes
from megakernels.k3.plan import ROWS, MixerPlan

VMEM_BYTES = 64 << 20
NAME = "k3_kda"


def operand_shapes(plan: MixerPlan) -> Operands:
    """Global shapes and dtypes of the operands, in the order the call takes them."""
    p, lead = plan, (plan.cores, plan.layers)

    def shape(*dims: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype)

    return Operands(
        accepted=shape(1, dtype=jnp.int32),
        rows=shape(p.layers, ROWS, p.config.hidden),
        constants=shape(*lead, 1, p.constants_width, dtype=jnp.float32),
        decay_out=shape(*lead, LANES, p.gated_width),
        **{m.name: shape(*lead, m.tiles, m.rows, LANES) for m in p.matrices},
    )


def build_kda(plan: MixerPlan, *, level: Level = "regions", interpret: Any = False) -> KernelBuild:
    """The kernel of a plan: takes the operands, then the state, which is donated.

    Returns the outputs `[cores, layers, 8, hidden]` float32, equal on all cores, and the new state.
    """
    p = plan
    operands, state = operand_shapes(p), [s for s in state_shapes(p) if s is not None]
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    inputs = len(operands)
    results = [jax.ShapeDtypeStruct((1, p.layers, ROWS, p.config.hidden), jnp.float32)]
    results += [jax.ShapeDtypeStruct((1, *s.shape[1:]), s.dtype) for s in state]
    call = pl.pallas_call(
        kda_kernel(p),
        out_shape=results,
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), *[in_hbm] * (inputs - 1 + len(state))],
        out_specs=[in_hbm] * len(results),
        scratch_shapes=(staging(p),),
        input_output_aliases={inputs + i: 1 + i for i in range(len(state))},
        compiler_params=pltpu.CompilerParams(
            collective_id=0 if p.cores > 1 else None,
            vmem_limit_bytes=VMEM_BYTES,
            disable_bounds_checks=True,
        ),
        interpret=interpret,
        name=NAME,
    )

    def on_one_core(*arrays: jax.Array) -> Any:
        # Without the constraint XLA may copy small operands into VMEM before the kernel starts. On donated
        # arrays it would cost a copy of each.
        accepted, *rest = arrays
        placed = [pltpu.with_memory_space_constraint(array, pltpu.HBM) for array in rest[: inputs - 1]]
        return tuple(call(accepted, *placed, *rest[inputs - 1 :]))

    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    return KernelBuild(
        name=NAME,
        function=instrument(on_one_core, level),
        arguments=(*operands, *state),
        in_specs=(everywhere, everywhere, *[split] * (inputs - 2 + len(state))),
        out_specs=(split,) * len(results),
        mesh_axes={AXIS: p.cores},
        facts={
            "model": p.config.name,
            "part": "KDA mixers",
            "layers": p.layers,
            "batch": p.rows,
            "cores": p.cores,
            "operands": [*Operands._fields, *[n for n, s in state_shapes(p)._asdict().items() if s]],
            "bytes_per_rank": p.bytes_per_rank(),
        },
    )
