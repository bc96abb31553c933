"""A kernel of your own, ready for `megascope compile examples/matvec.py:build --topology 1x1x1`.

`out = x @ w` for 8 rows and a matrix that stays in HBM: tiles of it stream through a few VMEM buffers.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.hooks import phase, tag

BATCH, WIDTH, TILE_ROWS = 8, 8192, 256
TILES = WIDTH // TILE_ROWS


def build(buffers: int = 3) -> tuple[Any, tuple[jax.ShapeDtypeStruct, ...], dict[str, int]]:
    """The function, the shapes it takes, and its mesh axes: none, for one core."""

    def kernel(x: Any, w: Any, out: Any, tiles: Any, arrived: Any) -> None:
        def copy_of(tile: jax.Array, buffer: jax.Array) -> Any:
            rows = pl.ds(tile * TILE_ROWS, TILE_ROWS)
            return tag(pltpu.make_async_copy(w.at[rows], tiles.at[buffer], arrived.at[buffer]), "w")

        with phase("first_tiles"):
            for i in range(buffers):
                copy_of(jnp.int32(i), jnp.int32(i)).start()
            out[...] = jnp.zeros_like(out)

        def one_tile(tile: jax.Array, buffer: jax.Array) -> jax.Array:
            with phase("wait"):
                copy_of(tile, buffer).wait()
            with phase("multiply"):
                columns = pl.ds(pl.multiple_of(tile * TILE_ROWS, TILE_ROWS), TILE_ROWS)
                out[...] += jnp.dot(x[:, columns], tiles[buffer], preferred_element_type=jnp.float32)
            pl.when(tile + buffers < TILES)(lambda: copy_of(tile + buffers, buffer).start())
            return jnp.where(buffer == buffers - 1, 0, buffer + 1)

        lax.fori_loop(0, TILES, one_tile, jnp.int32(0))

    def matvec(x: jax.Array, w: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32),
            in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM), pl.BlockSpec(memory_space=pltpu.HBM)],
            scratch_shapes=[
                pltpu.VMEM((buffers, TILE_ROWS, WIDTH), jnp.bfloat16),
                pltpu.SemaphoreType.DMA((buffers,)),
            ],
            name="matvec",
        )(*(pltpu.with_memory_space_constraint(operand, pltpu.HBM) for operand in (x, w)))

    bf16 = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((BATCH, WIDTH), (WIDTH, WIDTH))]
    return matvec, tuple(bf16), {}
