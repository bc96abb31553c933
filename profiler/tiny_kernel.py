"""The smallest kernel that shows all of a dump: copies, a loop, a named scope, source lines. Imports JAX."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def _kernel(x_hbm: Any, out_hbm: Any, block: Any, semaphore: Any) -> None:
    def step(i: Any, _: Any) -> Any:
        copy_in = pltpu.make_async_copy(x_hbm.at[i], block, semaphore)
        copy_in.start()
        copy_in.wait()
        with jax.named_scope("double"):
            block[...] = block[...] + block[...]
        copy_out = pltpu.make_async_copy(block, out_hbm.at[i], semaphore)
        copy_out.start()
        copy_out.wait()
        return 0

    jax.lax.fori_loop(0, 4, step, 0)


def build() -> tuple[Any, tuple[Any, ...], dict[str, int]]:
    """Doubles four blocks of 8 x 128 on one core."""
    shape = jax.ShapeDtypeStruct((4, 8, 128), jnp.float32)
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)

    def tiny(x: jax.Array) -> Any:
        call = pl.pallas_call(
            _kernel,
            out_shape=shape,
            in_specs=[in_hbm],
            out_specs=in_hbm,
            scratch_shapes=(pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA),
            name="tiny",
        )
        return call(pltpu.with_memory_space_constraint(x, pltpu.HBM))

    return tiny, (shape,), {}
