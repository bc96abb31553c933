"""User files to compile, and a function that compiles one and gives back what came of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

KERNEL = '''
import os, signal, sys, time
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

Shape = jax.ShapeDtypeStruct
X = Shape((256, 256), jnp.float32)
HBM = pl.BlockSpec(memory_space=pltpu.HBM)


def double(x):
    """One copy in, one addition, one copy out."""
    def kernel(x_hbm, out_hbm):
        def body(v, sem):
            copy = pltpu.make_async_copy(x_hbm, v, sem)
            copy.start()
            copy.wait()
            with jax.named_scope("add"):
                v[...] = v[...] + v[...]
            copy = pltpu.make_async_copy(v, out_hbm, sem)
            copy.start()
            copy.wait()
        pl.run_scoped(body, pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA)
    out = Shape(x.shape, x.dtype)
    call = pl.pallas_call(kernel, in_specs=[HBM], out_specs=HBM, out_shape=out, name="double")
    return call(pltpu.with_memory_space_constraint(x, pltpu.HBM))
'''


@pytest.fixture
def user_file(tmp_path: Path) -> Callable[[str], str]:
    """Writes a user's file: the kernel above and the code given; returns the target `file:build`."""

    def write(code: str, name: str = "kernel.py") -> str:
        path = tmp_path / name
        path.write_text(KERNEL + "\n" + code + "\n")
        return f"{path}:build"

    return write
