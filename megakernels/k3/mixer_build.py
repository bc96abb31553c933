"""Builds a stack of mixers at a size: the Pallas call, the shapes it takes, and the facts about it."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from megakernels.build import KernelBuild
from megakernels.common.gemv import LANES
from megakernels.hooks import Level, instrument
from megakernels.k3 import kda_refs, kda_state, mla_pack, mla_refs
from megakernels.k3.kda import kda_mixer
from megakernels.k3.mixer import AXIS, Mixer, mixer_kernel
from megakernels.k3.mla import mla_mixer
from megakernels.k3.mla_plan import MlaPlan
from megakernels.k3.plan import ROWS, KdaPlan

VMEM_BYTES = 64 << 20


def shape(*dims: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    """A shape, bfloat16 unless said otherwise."""
    return jax.ShapeDtypeStruct(dims, dtype)


def tile_shapes(plan: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """The matrices' tiles, by name."""
    lead = (plan.cores, plan.layers)
    return {m.name: shape(*lead, m.tiles, m.rows, LANES) for m in plan.matrices}


def kda_operands(plan: KdaPlan) -> kda_refs.Operands:
    """Global shapes and dtypes of the operands of a KDA stack."""
    p, lead = plan, (plan.cores, plan.layers)
    return kda_refs.Operands(
        accepted=shape(1, dtype=jnp.int32),
        rows=shape(p.layers, ROWS, p.config.hidden),
        constants=shape(*lead, 1, p.constants_width, dtype=jnp.float32),
        decay_out=shape(*lead, LANES, p.gated_width),
        **tile_shapes(p),
    )


def build_kda(plan: KdaPlan, *, level: Level = "regions", interpret: Any = False) -> KernelBuild:
    """A stack of KDA mixers; see `build_mixer`."""
    return build_mixer(
        "k3_kda",
        plan,
        kda_mixer(),
        operands=kda_operands(plan),
        state=kda_state.state_shapes(plan),
        scratch=kda_refs.staging(plan),
        level=level,
        interpret=interpret,
    )


def mla_operands(plan: MlaPlan) -> mla_refs.Operands:
    """Global shapes and dtypes of the operands of an MLA stack."""
    p, lead, rank = plan, (plan.cores, plan.layers), plan.config.kv_rank
    return mla_refs.Operands(
        positions=shape(p.batch, dtype=jnp.int32),
        rows=shape(p.layers, ROWS, p.config.hidden),
        constants=shape(*lead, 1, p.constants_width, dtype=jnp.float32),
        to_keys=shape(*lead, p.heads, LANES, rank),
        to_values=shape(*lead, p.heads, rank, LANES),
        **tile_shapes(p),
    )


def build_mla(plan: MlaPlan, *, level: Level = "regions", interpret: Any = False) -> KernelBuild:
    """A stack of MLA mixers; see `build_mixer`."""
    return build_mixer(
        "k3_mla",
        plan,
        mla_mixer(),
        operands=mla_operands(plan),
        state=mla_pack.state_shapes(plan),
        scratch=mla_refs.staging(plan),
        level=level,
        interpret=interpret,
    )


def build_mixer(
    name: str,
    plan: Any,
    mixer: Mixer,
    *,
    operands: Any,
    state: Any,
    scratch: Any,
    level: Level,
    interpret: Any,
) -> KernelBuild:
    """The kernel of a plan: takes the operands, then the state, which is donated.

    Returns the outputs `[cores, layers, 8, hidden]` float32, equal on all cores, and the new state.
    """
    p, inputs = plan, len(operands)
    states = [s for s in state if s is not None]
    small = operands._fields.index("rows")  # what comes before lives in SMEM
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    in_smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    results = [jax.ShapeDtypeStruct((1, p.layers, ROWS, p.config.hidden), jnp.float32)]
    results += [jax.ShapeDtypeStruct((1, *s.shape[1:]), s.dtype) for s in states]
    call = pl.pallas_call(
        mixer_kernel(p, mixer, type(operands), type(state)),
        out_shape=results,
        in_specs=[in_smem] * small + [in_hbm] * (inputs - small + len(states)),
        out_specs=[in_hbm] * len(results),
        scratch_shapes=(scratch,),
        input_output_aliases={inputs + i: 1 + i for i in range(len(states))},
        compiler_params=pltpu.CompilerParams(
            collective_id=0 if p.cores > 1 else None,
            vmem_limit_bytes=VMEM_BYTES,
            disable_bounds_checks=True,
        ),
        interpret=interpret,
        name=name,
    )

    def on_one_core(*arrays: jax.Array) -> Any:
        # Without the constraint XLA may copy small operands into VMEM before the kernel starts. On donated
        # arrays it would cost a copy of each.
        placed = [pltpu.with_memory_space_constraint(a, pltpu.HBM) for a in arrays[small:inputs]]
        return tuple(call(*arrays[:small], *placed, *arrays[inputs:]))

    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    return KernelBuild(
        name=name,
        function=instrument(on_one_core, level),
        arguments=(*operands, *states),
        in_specs=(*[everywhere] * (small + 1), *[split] * (inputs - small - 1 + len(states))),
        out_specs=(split,) * len(results),
        mesh_axes={AXIS: p.cores},
        facts={
            "model": p.config.name,
            "layers": p.layers,
            "batch": p.rows,
            "cores": p.cores,
            "operands": [*operands._fields, *[n for n, s in state._asdict().items() if s is not None]],
            "bytes_per_rank": p.bytes_per_rank(),
        },
    )
