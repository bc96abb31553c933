"""Builds a stack of expert layers at a size, and packs the checkpoint's experts for it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from megakernels.build import KernelBuild
from megakernels.common.gemv import LANES
from megakernels.hooks import Level, instrument
from megakernels.k3 import fp4
from megakernels.k3.experts import ExpertPlan
from megakernels.k3.experts_stack import REPLICATED, Operands, experts_kernel, stack_staging
from megakernels.k3.mixer import AXIS
from megakernels.k3.mxfp4 import unpack
from megakernels.k3.plan import ROWS

VMEM_BYTES = 64 << 20
NAME = "k3_experts"

type Tensors = Mapping[str, np.ndarray]


def operand_shapes(plan: ExpertPlan) -> Operands:
    """Global shapes and dtypes of the operands, in the order the call takes them."""
    p, lead = plan, (plan.cores, plan.layers)
    arrays = {n: jax.ShapeDtypeStruct((*lead, p.experts, *s), jnp.int32) for n, s in p.shapes.items()}
    return Operands(
        routing=jax.ShapeDtypeStruct((p.layers, ROWS, p.lanes), jnp.float32),
        rows=jax.ShapeDtypeStruct((p.layers, ROWS, p.config.latent), jnp.bfloat16),
        **arrays,
    )


def build_experts(plan: ExpertPlan, *, level: Level = "regions", interpret: Any = False) -> KernelBuild:
    """The kernel of a plan: partial sums `[cores, layers, 8, latent]` float32; those of all cores add up."""
    p, operands = plan, operand_shapes(plan)
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    call = pl.pallas_call(
        experts_kernel(p),
        out_shape=jax.ShapeDtypeStruct((1, p.layers, ROWS, p.config.latent), jnp.float32),
        in_specs=[in_hbm] * len(operands),
        out_specs=in_hbm,
        scratch_shapes=(stack_staging(p),),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=VMEM_BYTES, disable_bounds_checks=True),
        interpret=interpret,
        name=NAME,
    )

    def on_one_core(*arrays: jax.Array) -> Any:
        # Without the constraint XLA may copy small operands into VMEM before the kernel starts.
        return call(*(pltpu.with_memory_space_constraint(array, pltpu.HBM) for array in arrays))

    split = PartitionSpec(AXIS)
    return KernelBuild(
        name=NAME,
        function=instrument(on_one_core, level),
        arguments=tuple(operands),
        in_specs=tuple(PartitionSpec() if n in REPLICATED else split for n in Operands._fields),
        out_specs=split,
        mesh_axes={AXIS: p.cores},
        facts={
            "model": p.config.name,
            "layers": p.layers,
            "batch": p.rows,
            "cores": p.cores,
            "operands": list(Operands._fields),
            "expert_bytes_per_rank": p.expert_bytes,
        },
    )


def pack_expert(plan: ExpertPlan, tensors: Tensors, member: int) -> dict[str, np.ndarray]:
    """One expert's arrays on member `member` of its group.

    Args:
        plan: The sizes.
        tensors: `w1.weight_packed`, `w1.weight_scale` and so on, as in the checkpoint.
        member: Which slice of the width.
    """
    own = slice(member * plan.width, (member + 1) * plan.width)

    def turns(gate: np.ndarray, up: np.ndarray) -> list[np.ndarray]:
        """Columns of gate and up in turns of 128 of each, input first."""
        both = [m[own].reshape(plan.width // LANES, LANES, -1) for m in (gate, up)]
        return list(np.concatenate(both, axis=1).swapaxes(1, 2))

    nibbles = {n: unpack(tensors[f"{n}.weight_packed"]) for n in ("w1", "w2", "w3")}
    scales = {n: tensors[f"{n}.weight_scale"] for n in ("w1", "w2", "w3")}
    groups = slice(own.start // 32, own.stop // 32)
    return {
        "up": np.concatenate([fp4.pack_weights(t) for t in turns(nibbles["w1"], nibbles["w3"])]),
        "up_scale": np.concatenate([fp4.pack_scales(t) for t in turns(scales["w1"], scales["w3"])]),
        "down": fp4.pack_weights(nibbles["w2"][:, own].T),
        "down_scale": fp4.pack_scales(scales["w2"][:, groups].T),
    }


def pack_experts(plan: ExpertPlan, layers: list[list[Tensors]]) -> dict[str, np.ndarray]:
    """The weight operands by name, leading axes core, layer and expert of the rank.

    Args:
        plan: The sizes.
        layers: Per layer and expert its tensors.
    """
    packed: dict[str, list[list[np.ndarray]]] = {name: [] for name in plan.shapes}
    for core in range(plan.cores):
        group, member = divmod(core, plan.width_ranks)
        first = group * plan.experts
        per_layer = [
            [pack_expert(plan, expert, member) for expert in experts[first : first + plan.experts]]
            for experts in layers
        ]
        for name, arrays in packed.items():
            arrays.append([np.stack([expert[name] for expert in experts]) for experts in per_layer])
    return {name: np.stack([np.stack(layer) for layer in arrays]) for name, arrays in packed.items()}


def routing_rows(plan: ExpertPlan, chosen: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Routing weights as the kernel takes them, `[layers, 8, lanes]` float32.

    Args:
        plan: The sizes.
        chosen: int32 `[layers, rows, active experts]`.
        weights: float32, the same shape.
    """
    whole = np.zeros((plan.layers, ROWS, plan.lanes), np.float32)
    np.put_along_axis(whole[:, : plan.rows], chosen, weights, axis=-1)
    return whole
