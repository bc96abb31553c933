"""Builds the MLP megakernel at a size: the Pallas call, the shapes it takes, and the facts about it."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from megakernels.build import KernelBuild
from megakernels.hooks import Level, instrument
from megakernels.mlp.config import BF16_BYTES, F32_BYTES, MlpConfig
from megakernels.mlp.kernel import AXIS, mlp_kernel, staging

VMEM_LIMIT_BYTES = 64 << 20


def build(*, level: Level = "regions", interpret: Any = False, **sizes: Any) -> KernelBuild:
    """The MLP megakernel.

    Args:
        level: Hook level, `off` or `regions`.
        interpret: `pltpu.InterpretParams` to simulate on a CPU, False to compile.
        **sizes: Fields of `MlpConfig`; the defaults are the demo.

    Returns:
        A build whose function maps x `[batch, hidden]`, norm and the packed tiles (see `pack_weights`) to the
        residual stream after all layers, `[batch, hidden]` float32.

    Raises:
        ValueError: A size cannot be tiled; the message names the option.
        TypeError: An option does not exist.
    """
    config = MlpConfig(**sizes)
    c = config
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    call = pl.pallas_call(
        mlp_kernel(config),
        out_shape=jax.ShapeDtypeStruct((c.batch, c.hidden), jnp.float32),
        in_specs=[in_hbm] * 5,
        out_specs=in_hbm,
        scratch_shapes=(staging(config),),
        compiler_params=pltpu.CompilerParams(
            collective_id=0 if c.cores > 1 else None,
            vmem_limit_bytes=VMEM_LIMIT_BYTES,
            disable_bounds_checks=True,
        ),
        interpret=interpret,
        name="mlp",
    )

    def on_one_core(*operands: jax.Array) -> Any:
        # Without the constraint XLA may copy small operands into VMEM before the kernel starts.
        return call(*(pltpu.with_memory_space_constraint(operand, pltpu.HBM) for operand in operands))

    tiles = jax.ShapeDtypeStruct((c.cores * c.layers * c.tiles_per_matrix, *c.tile_shape), jnp.bfloat16)
    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    return KernelBuild(
        name="mlp",
        function=instrument(on_one_core, level),
        arguments=(
            jax.ShapeDtypeStruct((c.batch, c.hidden), jnp.float32),
            jax.ShapeDtypeStruct((c.layers, 1, c.hidden), jnp.float32),
            tiles,
            tiles,
            tiles,
        ),
        in_specs=(everywhere, everywhere, split, split, split),
        out_specs=everywhere,
        mesh_axes={AXIS: c.cores},
        facts=facts(config, level),
    )


def facts(config: MlpConfig, level: Level) -> dict[str, Any]:
    """What the analyzer may expect of a compiled step: counts per core and step, bytes, names. JSON values."""
    c = config
    matrix_bytes = c.layers * c.tiles_per_matrix * c.tile_bytes
    rows_bytes = c.batch * c.hidden * F32_BYTES
    operands = [
        ("x", "input", rows_bytes, 0),
        ("norm", "input", c.layers * c.hidden * F32_BYTES, 0),
        ("w_gate", "input", matrix_bytes, 0),
        ("w_up", "input", matrix_bytes, 0),
        ("w_down", "input", matrix_bytes, 0),
        ("out", "output", 0, rows_bytes),
    ]
    return {
        "model": "mlp",
        "batch": c.batch,
        "layers": c.layers,
        "hidden": c.hidden,
        "ffn": c.ffn,
        "cores": c.cores,
        "mesh_axes": {AXIS: c.cores},
        "level": level,
        "ring_depth": c.ring_depth,
        "prefetch_distance": c.distance,
        "tile_bytes": c.tile_bytes,
        "tiles_per_layer": c.tiles_per_layer,
        "tiles": c.tiles,
        "phases": ["norm", "gate_up", "down", "reduce", "gather"],
        "operands": [
            {"index": index, "name": name, "kind": kind, "read_bytes": read, "written_bytes": written}
            for index, (name, kind, read, written) in enumerate(operands)
        ],
        # Times the body of each loop runs in a step, outermost first.
        "loops": [
            {"name": "first requests", "iterations": c.distance},
            {"name": "layers", "iterations": c.layers},
            {"name": "gate_up blocks", "iterations": c.layers * c.ffn_blocks},
            {"name": "gate_up packs", "iterations": c.layers * c.ffn_blocks * c.hidden_packs},
            {"name": "down packs", "iterations": c.layers * c.hidden_packs},
            {"name": "down blocks", "iterations": c.layers * c.hidden_packs * c.ffn_blocks},
        ],
        "vmem": {
            name: math.prod(scratch.shape) * jnp.dtype(scratch.dtype).itemsize
            for name, scratch in staging(config)._asdict().items()
            if scratch.memory_space == pltpu.VMEM
        },
        "sent_bytes_per_core": 2 * c.layers * (c.cores - 1) * c.batch * c.columns_per_core * F32_BYTES,
    }
