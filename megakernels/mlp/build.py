"""Builds the MLP megakernel at a size: the Pallas call, the shapes it takes, and the facts about it."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from megakernels.build import KernelBuild
from megakernels.hooks import Level, instrument
from megakernels.mlp.config import MlpConfig
from megakernels.mlp.facts import facts
from megakernels.mlp.kernel import AXIS, mlp_kernel, staging

DEMO = MlpConfig()
VMEM_LIMIT_BYTES = 64 << 20


def build(
    *,
    level: Level = "regions",
    interpret: Any = False,
    hidden: int = DEMO.hidden,
    ffn: int = DEMO.ffn,
    layers: int = DEMO.layers,
    batch: int = DEMO.batch,
    cores: int = DEMO.cores,
    block: int = DEMO.block,
    pack: int = DEMO.pack,
    ring_depth: int = DEMO.ring_depth,
    prefetch_distance: int | None = DEMO.prefetch_distance,
) -> KernelBuild:
    """The MLP megakernel; the sizes are those of `MlpConfig`.

    Args:
        level: Hook level, `off` or `regions`.
        interpret: `pltpu.InterpretParams` to simulate on a CPU, False to compile.
        hidden: Width of the residual stream.
        ffn: Width between the matrices, over all cores.
        layers: Layers in the stack.
        batch: Rows decoded together.
        cores: TensorCores the weights are sharded over.
        block: Side of a square weight block.
        pack: Blocks in a tile.
        ring_depth: VMEM banks that tiles stream through.
        prefetch_distance: Tiles requested ahead of the one in use; None means `ring_depth`.

    Returns:
        A build whose function maps x `[batch, hidden]`, norm and the packed tiles (see `pack_weights`) to
        the residual stream after all layers, `[batch, hidden]` float32.

    Raises:
        ValueError: A size cannot be tiled; the message names the option.
    """
    config = MlpConfig(
        hidden=hidden,
        ffn=ffn,
        layers=layers,
        batch=batch,
        cores=cores,
        block=block,
        pack=pack,
        ring_depth=ring_depth,
        prefetch_distance=prefetch_distance,
    )
    row_shape, norm_shape = (batch, hidden), (layers, 1, hidden)
    tiles_shape = (cores * layers * config.tiles_per_matrix, *config.tile_shape)
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    call = pl.pallas_call(
        mlp_kernel(config),
        out_shape=jax.ShapeDtypeStruct(row_shape, jnp.float32),
        in_specs=[in_hbm] * 5,
        out_specs=in_hbm,
        scratch_shapes=(staging(config),),
        compiler_params=pltpu.CompilerParams(
            collective_id=0 if cores > 1 else None,
            vmem_limit_bytes=VMEM_LIMIT_BYTES,
            disable_bounds_checks=True,
        ),
        interpret=interpret,
        name="mlp",
    )

    def mlp_on_one_core(
        x: jax.Array, norm: jax.Array, w_gate: jax.Array, w_up: jax.Array, w_down: jax.Array
    ) -> Any:
        # Without the constraint XLA may copy small operands into VMEM before the kernel starts.
        operands = (x, norm, w_gate, w_up, w_down)
        return call(*(pltpu.with_memory_space_constraint(operand, pltpu.HBM) for operand in operands))

    tiles = jax.ShapeDtypeStruct(tiles_shape, jnp.bfloat16)
    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    return KernelBuild(
        name="mlp",
        function=instrument(mlp_on_one_core, level),
        arguments=(
            jax.ShapeDtypeStruct(row_shape, jnp.float32),
            jax.ShapeDtypeStruct(norm_shape, jnp.float32),
            tiles,
            tiles,
            tiles,
        ),
        in_specs=(everywhere, everywhere, split, split, split),
        out_specs=everywhere,
        mesh_axes={AXIS: cores},
        facts=facts(config, level),
    )
