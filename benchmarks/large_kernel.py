"""A kernel of benchmark size: a stack of streamed matrix products, unrolled, in a loop.

`unroll` products are written out in the loop body, so that the program has tens of thousands of bundles,
and the loop runs `loops` times. Weights stream through a ring of VMEM banks, an all-reduce by remote copies
ends every eighth product.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from megakernels.build import KernelBuild
from megakernels.hooks import Level, instrument, layer, phase

ROWS, WIDTH, BLOCK, DEPTH, CORES = 8, 2048, 512, 8, 8
TILES = (WIDTH // BLOCK) ** 2


def build(*, level: Level = "regions", unroll: int = 96, loops: int = 24) -> KernelBuild:
    """The benchmark kernel; every product reads a [2048, 2048] bf16 matrix in 16 tiles."""
    products = unroll * loops

    def kernel(  # noqa: PLR0917 -- one reference per operand and scratch
        x_hbm, weights, out_hbm, x, accumulator, received, ring, semaphores, exchange
    ):
        me = lax.axis_index("x")
        barrier = pltpu.get_barrier_semaphore()
        for other in range(1, CORES):
            pl.semaphore_signal(barrier, 1, device_id={"x": lax.rem(me + other, CORES)})
        pl.semaphore_wait(barrier, CORES - 1)

        def tile_copy(product, tile, slot):
            return pltpu.make_async_copy(weights.at[product, tile], ring.at[slot], semaphores.at[slot])

        def all_reduce():
            for other in range(1, CORES):
                pltpu.make_async_remote_copy(
                    x,
                    received.at[me],
                    exchange.at[0],
                    exchange.at[1],
                    device_id={"x": lax.rem(me + other, CORES)},
                ).start()
            for _ in range(1, CORES):
                pltpu.make_async_remote_copy(
                    x, received.at[0], exchange.at[0], exchange.at[1], device_id={"x": me}
                ).wait()
            x[...] += received[...].sum(0)

        copy = pltpu.make_async_copy(x_hbm, x, exchange.at[0])
        copy.start()
        copy.wait()
        received[...] = jnp.zeros_like(received)
        for tile in range(DEPTH):
            tile_copy(0, tile, tile % DEPTH).start()

        def body(index, carry):
            with layer(index):
                for position in range(unroll):
                    product = index * unroll + position
                    with phase("product"):
                        accumulator[...] = jnp.zeros_like(accumulator)
                        for tile in range(TILES):
                            slot = tile % DEPTH
                            tile_copy(0, 0, slot).wait()
                            k, n = divmod(tile, WIDTH // BLOCK)
                            part = x[:, k * BLOCK : (k + 1) * BLOCK].astype(jnp.bfloat16)
                            accumulator[:, n * BLOCK : (n + 1) * BLOCK] += jnp.dot(
                                part, ring[slot], preferred_element_type=jnp.float32
                            )
                            ahead = tile + DEPTH
                            following = product + ahead // TILES

                            @pl.when(following < products)
                            def _(following=following, ahead=ahead, slot=slot):
                                tile_copy(following, ahead % TILES, slot).start()

                        x[...] = accumulator[...] * lax.rsqrt(jnp.mean(accumulator[...] ** 2) + 1e-6)
                    if position % 8 == 7:
                        with phase("all_reduce"):
                            all_reduce()
            return carry

        lax.fori_loop(0, loops, body, 0)
        copy = pltpu.make_async_copy(x, out_hbm, exchange.at[0])
        copy.start()
        copy.wait()

    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),
        in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)] * 2,
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        scratch_shapes=[
            pltpu.VMEM((ROWS, WIDTH), jnp.float32),
            pltpu.VMEM((ROWS, WIDTH), jnp.float32),
            pltpu.VMEM((CORES, ROWS, WIDTH), jnp.float32),
            pltpu.VMEM((DEPTH, BLOCK, BLOCK), jnp.bfloat16),
            pltpu.SemaphoreType.DMA((DEPTH,)),
            pltpu.SemaphoreType.DMA((2,)),
        ],
        compiler_params=pltpu.CompilerParams(
            collective_id=0, vmem_limit_bytes=64 << 20, disable_bounds_checks=True
        ),
        name="large",
    )

    def function(x, weights):
        return call(*(pltpu.with_memory_space_constraint(a, pltpu.HBM) for a in (x, weights)))

    shapes = (
        jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),
        jax.ShapeDtypeStruct((products, TILES, BLOCK, BLOCK), jnp.bfloat16),
    )
    return KernelBuild(
        name="large",
        function=instrument(function, level),
        arguments=shapes,
        in_specs=(PartitionSpec(),) * 2,
        out_specs=PartitionSpec(),
        mesh_axes={"x": CORES},
        facts={"layers": loops},
    )
