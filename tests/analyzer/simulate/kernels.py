"""Small kernels without data-dependent values: compiled for TPU7x, simulated, and run in interpret mode.

Each function gives a `KernelBuild`; `interpret` runs it on simulated CPU devices instead. Weights have
shapes of their own, so that an operand is known by its shape.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from megakernels.build import KernelBuild
from megakernels.hooks import decided

HBM = pl.BlockSpec(memory_space=pltpu.HBM)
CORES = 8


def _build(name, kernel, shapes, out, scratch, *, cores=1, interpret=False, collective=None):
    def function(*arrays):
        arrays = (
            [pltpu.with_memory_space_constraint(a, pltpu.HBM) for a in arrays] if not interpret else arrays
        )
        return pl.pallas_call(
            kernel,
            out_shape=out,
            in_specs=[HBM] * len(shapes),
            out_specs=HBM,
            scratch_shapes=scratch,
            interpret=interpret,
            compiler_params=pltpu.CompilerParams(collective_id=collective, disable_bounds_checks=True),
            name=name,
        )(*arrays)

    spec = PartitionSpec()
    return KernelBuild(
        name=name,
        function=function,
        arguments=tuple(shapes),
        in_specs=(spec,) * len(shapes),
        out_specs=spec,
        mesh_axes={"x": cores},
        facts={},
    )


def _f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def nested_loops(*, interpret=False):
    """Loops whose bounds are loop counters, and conditionals inside them: triangular reads of two weights."""

    def kernel(first, second, out, buffer, total, semaphore):
        total[...] = jnp.zeros_like(total)

        def read(source, row):
            copy = pltpu.make_async_copy(source.at[row], buffer, semaphore)
            copy.start()
            copy.wait()
            total[...] += buffer[...]

        def outer(i, carry):
            def inner(j, carry):
                @pl.when((i + j) % 2 == 0)
                def _():
                    read(first, i * 5 + j)

                    @pl.when(j > i // 2)
                    def _():
                        read(second, j)

                @pl.when((i + j) % 3 == 1)
                def _():
                    read(second, i)

                return carry

            return lax.fori_loop(0, i + 1, inner, carry)

        lax.fori_loop(0, 5, outer, 0)
        copy = pltpu.make_async_copy(total, out, semaphore)
        copy.start()
        copy.wait()

    tile = pltpu.VMEM((8, 512), jnp.float32)
    return _build(
        "nested_loops",
        kernel,
        [_f32(2048, 8, 512), _f32(1024, 8, 512)],
        _f32(8, 512),
        [tile, tile, pltpu.SemaphoreType.DMA],
        interpret=interpret,
    )


def ring(*, interpret=False, tiles=23, depth=4, distance=None):
    """A ring buffer of weight tiles with prefetch, two weights in turn, and writes back."""
    ahead = depth if distance is None else distance

    def kernel(first, second, out, banks, total, semaphores, done):
        def copy(source, tile, slot):
            return pltpu.make_async_copy(source.at[tile], banks.at[slot], semaphores.at[slot])

        def fetch(tile):
            slot = lax.rem(tile, depth)

            @pl.when(tile < tiles)
            def _():
                @pl.when(lax.rem(tile, 2) == 0)
                def _():
                    copy(first, tile, slot).start()

                @pl.when(lax.rem(tile, 2) == 1)
                def _():
                    copy(second, tile, slot).start()

        for tile in range(ahead):
            fetch(jnp.int32(tile))
        total[...] = jnp.zeros_like(total)

        def body(tile, carry):
            slot = lax.rem(tile, depth)
            copy(first, 0, slot).wait()
            total[...] += banks[slot]
            fetch(tile + ahead)

            @pl.when(lax.rem(tile, 4) == 3)
            def _():
                back = pltpu.make_async_copy(total, out.at[lax.div(tile, 4)], done)
                back.start()
                back.wait()

            return carry

        lax.fori_loop(0, tiles, body, 0)

    return _build(
        "ring",
        kernel,
        [_f32(2048, 64, 256), _f32(1024, 64, 256)],
        _f32(tiles // 4, 64, 256),
        [
            pltpu.VMEM((depth, 64, 256), jnp.float32),
            pltpu.VMEM((64, 256), jnp.float32),
            pltpu.SemaphoreType.DMA((depth,)),
            pltpu.SemaphoreType.DMA,
        ],
        interpret=interpret,
    )


def windows(*, interpret=False):
    """Strided windows of a matrix in, a strided window out, at computed places."""

    def kernel(matrix, out, buffer, semaphore):
        def body(i, carry):
            row, column = lax.rem(i * 3, 8), lax.rem(i, 4)
            source = matrix.at[pl.ds(row * 32, 32), pl.ds(column * 256, 256)]
            copy = pltpu.make_async_copy(source, buffer, semaphore)
            copy.start()
            copy.wait()
            target = out.at[pl.ds(column * 32, 32), pl.ds(row * 256, 256)]
            copy = pltpu.make_async_copy(buffer, target, semaphore)
            copy.start()
            copy.wait()
            return carry

        lax.fori_loop(0, 9, body, 0)

    return _build(
        "windows",
        kernel,
        [_f32(16384, 1024)],
        _f32(128, 2048),
        [pltpu.VMEM((32, 256), jnp.float32), pltpu.SemaphoreType.DMA],
        interpret=interpret,
    )


def all_to_all(*, interpret=False, rounds=3):
    """Every core sends a row to every other, several times, between local reads; a barrier first."""

    def kernel(weights, out, mine, received, semaphores):
        me = lax.axis_index("x")
        barrier = pltpu.get_barrier_semaphore()
        for other in range(1, CORES):
            pl.semaphore_signal(barrier, 1, device_id={"x": lax.rem(me + other, CORES)})
        pl.semaphore_wait(barrier, CORES - 1)
        local, sent, arrived = (semaphores.at[k] for k in range(3))

        def body(step, carry):
            copy = pltpu.make_async_copy(weights.at[step * CORES + me], mine, local)
            copy.start()
            copy.wait()

            def message(other):
                return pltpu.make_async_remote_copy(
                    mine, received.at[step, me], sent, arrived, device_id={"x": other}
                )

            for other in range(1, CORES):
                message(lax.rem(me + other, CORES)).start()
            for other in range(1, CORES):
                message(lax.rem(me + other, CORES)).wait()
            return carry

        lax.fori_loop(0, rounds, body, 0)
        copy = pltpu.make_async_copy(received.at[0, lax.rem(me + 1, CORES)], out.at[me * 7], local)
        copy.start()
        copy.wait()

    return _build(
        "all_to_all",
        kernel,
        [_f32(2048, 8, 256)],
        _f32(4096, 8, 256),  # large, so that XLA leaves it in HBM
        [
            pltpu.VMEM((8, 256), jnp.float32),
            pltpu.VMEM((rounds, CORES, 8, 256), jnp.float32),
            pltpu.SemaphoreType.DMA((3,)),
        ],
        cores=CORES,
        interpret=interpret,
        collective=0,
    )


def data_dependent(*, interpret=False):
    """A loop bound from SMEM, rows from an operand and from a vector maximum; layers and phases."""

    def kernel(count, rows, weights, x, out, buffer, ids, total, semaphores):
        copy = pltpu.make_async_copy(rows, ids, semaphores.at[0])
        copy.start()
        copy.wait()
        total[...] = x[...]
        best = decided(jnp.argmax(total[0:1], axis=1)[0])

        def body(i, carry):
            with jax.named_scope("layer"):
                pltpu.trace_value("layer", i)
                with jax.named_scope("expert"):
                    for source in (ids[i], best):
                        copy = pltpu.make_async_copy(weights.at[source], buffer, semaphores.at[1])
                        copy.start()
                        copy.wait()
                        total[...] += buffer[...]
            return carry

        lax.fori_loop(0, count[0], body, 0)
        copy = pltpu.make_async_copy(total, out, semaphores.at[0])
        copy.start()
        copy.wait()

    def function(count, rows, weights, x):
        weights = pltpu.with_memory_space_constraint(weights, pltpu.HBM)
        return pl.pallas_call(
            kernel,
            out_shape=_f32(8, 512),
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.SMEM),
                pl.BlockSpec(memory_space=pl.ANY),
                HBM,
                pl.BlockSpec(memory_space=pltpu.VMEM),
            ],
            out_specs=HBM,
            scratch_shapes=[
                pltpu.VMEM((8, 512), jnp.float32),
                pltpu.SMEM((16,), jnp.int32),
                pltpu.VMEM((8, 512), jnp.float32),
                pltpu.SemaphoreType.DMA((2,)),
            ],
            interpret=interpret,
            name="data_dependent",
        )(count, rows, weights, x)

    integers = (jax.ShapeDtypeStruct((n,), jnp.int32) for n in (1, 16))
    spec = PartitionSpec()
    return KernelBuild(
        name="data_dependent",
        function=function,
        arguments=(*integers, _f32(1024, 8, 512), _f32(8, 512)),
        in_specs=(spec,) * 4,
        out_specs=spec,
        mesh_axes={"x": 1},
        facts={},
    )


def scalar_arithmetic(*, interpret=False):
    """Rows chosen by integer and float arithmetic on scalars from SMEM; see `rows_of` for the meaning."""

    def kernel(integers, floats, weights, out, buffer, semaphore):
        a, b, f = integers[0], integers[1], floats[0]
        g = a.astype(jnp.float32) * f + 1.5
        chosen = jnp.where(g > 3.0, jnp.floor(g).astype(jnp.int32), jnp.ceil(g / 2.0).astype(jnp.int32))
        shifted = lax.shift_right_logical(a, 3) + lax.shift_left(a, 2) + jnp.maximum(a, -5)
        divisor = jnp.maximum(b, 1)
        rows = [
            chosen,
            shifted,
            a % divisor,
            a // divisor,
            lax.rem(a, divisor),
            lax.div(a, divisor),
            (f * 10.0).astype(jnp.int32),
            jnp.where((f > 1.0) & (f <= 9.0) | (f != 2.0), a ^ b, a & b),
            lax.shift_right_arithmetic(a, 2) + jnp.minimum(a, b),
        ]
        for row in rows:
            copy = pltpu.make_async_copy(weights.at[jnp.clip(row, 0, 1000)], buffer, semaphore)
            copy.start()
            copy.wait()
        copy = pltpu.make_async_copy(buffer, out, semaphore)
        copy.start()
        copy.wait()

    def function(integers, floats, weights):
        weights = pltpu.with_memory_space_constraint(weights, pltpu.HBM)
        smem = pl.BlockSpec(memory_space=pltpu.SMEM)
        return pl.pallas_call(
            kernel,
            out_shape=_f32(8, 1024),
            in_specs=[smem, smem, HBM],
            out_specs=HBM,
            scratch_shapes=[pltpu.VMEM((8, 1024), jnp.float32), pltpu.SemaphoreType.DMA],
            interpret=interpret,
            name="scalar_arithmetic",
        )(integers, floats, weights)

    spec = PartitionSpec()
    return KernelBuild(
        name="scalar_arithmetic",
        function=function,
        arguments=(jax.ShapeDtypeStruct((4,), jnp.int32), _f32(4), _f32(1024, 8, 1024)),
        in_specs=(spec,) * 3,
        out_specs=spec,
        mesh_axes={"x": 1},
        facts={},
    )


def counted(*, interpret=False):
    """As many rows as a vector has positive elements: a float sum that becomes a loop's bound."""

    def kernel(x, weights, out, row, buffer, semaphore):
        copy = pltpu.make_async_copy(x.at[3], row, semaphore)
        copy.start()
        copy.wait()
        count = decided(jnp.sum(jnp.where(row[0:1] > 0, 1.0, 0.0))).astype(jnp.int32)

        def body(i, carry):
            copy = pltpu.make_async_copy(weights.at[i], buffer, semaphore)
            copy.start()
            copy.wait()
            return carry

        lax.fori_loop(0, count, body, 0)
        copy = pltpu.make_async_copy(buffer, out, semaphore)
        copy.start()
        copy.wait()

    tile = pltpu.VMEM((8, 512), jnp.float32)
    return _build(
        "counted",
        kernel,
        [_f32(2048, 8, 512), _f32(1024, 8, 512)],
        _f32(8, 512),
        [tile, tile, pltpu.SemaphoreType.DMA],
        interpret=interpret,
    )


def _data_dependent_arguments():
    x = np.zeros((8, 512), np.float32)
    x[0, 5] = 1
    weights = np.zeros((1024, 8, 512), np.float32)
    return np.array([3], np.int32), np.arange(7, 23, dtype=np.int32), weights, x


def _counted_arguments():
    x = np.zeros((2048, 8, 512), np.float32)
    x[3, 0, :5] = 1
    return x, np.zeros((1024, 8, 512), np.float32)


# What record_run.py runs a kernel on.
ARGUMENTS = {"data_dependent": _data_dependent_arguments, "counted": _counted_arguments}


def many_operands(*, interpret=False):
    """Reads 32 operands, one after the other, operand i i times: their addresses come in a table."""
    sizes = [_f32(8, 128 * (1 + i % 3)) for i in range(32)]

    def kernel(*refs):
        *sources, out, buffer, semaphore = refs
        for times, source in enumerate(sources):
            here = buffer.at[:, : source.shape[1]]

            def read(_, carry, source=source, here=here):
                copy = pltpu.make_async_copy(source, here, semaphore)
                copy.start()
                copy.wait()
                return carry

            lax.fori_loop(0, times, read, None)
        copy = pltpu.make_async_copy(buffer, out, semaphore)
        copy.start()
        copy.wait()

    scratch = [pltpu.VMEM((8, 384), jnp.float32), pltpu.SemaphoreType.DMA]
    return _build("many_operands", kernel, sizes, _f32(8, 384), scratch, interpret=interpret)
