"""jax's own Pallas kernels at sizes that keep their operands in HBM where they can be."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from megakernels.build import KernelBuild

CORES = 8


def _build(name, function, arguments, *, cores=1, specs=None, out=None):
    return KernelBuild(
        name=name,
        function=function,
        arguments=tuple(arguments),
        in_specs=specs or (PartitionSpec(),) * len(arguments),
        out_specs=out or PartitionSpec(),
        mesh_axes={"x": cores},
        facts={},
    )


def _shape(*dimensions, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(dimensions, dtype)


def all_gather():
    """[64, 1024] bf16 per core over 8 cores: the ring kernel of ops.tpu.all_gather."""
    from jax.experimental.pallas.ops.tpu.all_gather import ag_kernel

    vmem = pl.BlockSpec(memory_space=pltpu.VMEM)

    def function(x):
        return pl.pallas_call(
            functools.partial(ag_kernel, axis_name="x", mesh=None),
            out_shape=_shape(CORES, 64, 1024),
            in_specs=[vmem],
            out_specs=vmem,
            scratch_shapes=[(pltpu.SemaphoreType.DMA,) * 2] * 2,
            compiler_params=pltpu.CompilerParams(collective_id=0),
            name="all_gather",
        )(x)

    return _build("all_gather", function, [_shape(64, 1024)], cores=CORES)


def grid_matmul():
    """[2048, 4096] x [4096, 4096] bf16, blocks of 512 x 1024 x 512: ops.tpu.matmul, a grid kernel."""
    from jax.experimental.pallas.ops.tpu.matmul import matmul

    def function(x, y):
        x, y = (pltpu.with_memory_space_constraint(a, pltpu.HBM) for a in (x, y))
        return matmul(x, y, block_shape=(512, 1024), block_k=512)

    return _build("grid_matmul", function, [_shape(2048, 4096), _shape(4096, 4096)])


def pipelined_matmul():
    """[1024, 4096] x [4096, 2048] bf16 with pltpu.emit_pipeline, blocks of 512 x 512 x 512."""
    rows, inner, columns, block = 1024, 4096, 2048, 512

    def inside(x, y, out, total):
        @pl.when(pl.program_id(2) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == inner // block - 1)
        def _():
            out[...] = total[...].astype(out.dtype)

    def kernel(x, y, out, total):
        def run(x, y, out):
            return inside(x, y, out, total)

        pltpu.emit_pipeline(
            run,
            grid=(rows // block, columns // block, inner // block),
            in_specs=[
                pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
                pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
            ],
            out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        )(x, y, out)

    def function(x, y):
        x, y = (pltpu.with_memory_space_constraint(a, pltpu.HBM) for a in (x, y))
        hbm = pl.BlockSpec(memory_space=pltpu.HBM)
        return pl.pallas_call(
            kernel,
            out_shape=_shape(rows, columns),
            in_specs=[hbm, hbm],
            out_specs=hbm,
            scratch_shapes=[pltpu.VMEM((block, block), jnp.float32)],
            name="pipelined_matmul",
        )(x, y)

    return _build("pipelined_matmul", function, [_shape(rows, inner), _shape(inner, columns)])


def flash_attention():
    """Causal attention, 1 x 8 heads x 4096 x 128 bf16, blocks of 512: ops.tpu.flash_attention."""
    from jax.experimental.pallas.ops.tpu import flash_attention as module

    sizes = module.BlockSizes(block_q=512, block_k_major=512, block_k=512, block_b=1)

    def function(q, k, v):
        q, k, v = (pltpu.with_memory_space_constraint(a, pltpu.HBM) for a in (q, k, v))
        return module.flash_attention(q, k, v, causal=True, block_sizes=sizes)

    return _build("flash_attention", function, [_shape(1, 8, 4096, 128)] * 3)


def paged_attention():
    """8 sequences, 32 heads, 8 KV heads, pages of 16 x 128 bf16: ops.tpu.paged_attention."""
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as op

    def function(q, k, v, lengths, pages):
        k, v = (pltpu.with_memory_space_constraint(a, pltpu.HBM) for a in (k, v))
        return op(q, k, v, lengths, pages, pages_per_compute_block=8)

    pages = _shape(8, 1024, 16, 128)
    integers = [_shape(8, dtype=jnp.int32), _shape(8, 32, dtype=jnp.int32)]
    return _build("paged_attention", function, [_shape(8, 32, 128), pages, pages, *integers])
