"""One small streaming kernel with one fault at a time: `megascope compile planted.py:build --set fault=NAME`.

Weights stream through a ring of VMEM buffers; each tile is multiplied with a small activation block. Lines
that a finding must name carry a `PLANT <name>` comment.
"""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

from megakernels.build import KernelBuild
from megakernels.hooks import phase

TILES, SIDE, ROWS, DEPTH, CORES = 48, 512, 8, 8, 8
EXCHANGES = ("exchange", "pieces", "late")
GROW = 400
HBM = pl.BlockSpec(memory_space=pltpu.HBM)


# Buffers of the ring where a fault needs another number than DEPTH; powers of two: nothing is divided.
DEPTHS = {"shallow": 2, "deep": 32, "pause": 8, "pause_deep": 32}


def kernel(fault, x_hbm, bias_hbm, w_hbm, out_hbm, trail_hbm, *scratch):
    """What one core does."""
    x, bias, acc, stage, ring, ring_sem, sem, bias_sem, stage_sem, far, far_sem = scratch
    me = lax.axis_index("core")
    depth = DEPTHS.get(fault, DEPTH)

    def ring_slot(t):
        return t & (depth - 1)

    def tile(t):
        return pltpu.make_async_copy(w_hbm.at[t], ring.at[ring_slot(t)], ring_sem.at[ring_slot(t)])

    def exchange():
        """Send our block to the neighbour; gives what waits for the one from the other side."""
        peer = lax.rem(me + 1, CORES)
        pieces = [pl.ds(row, 1) for row in range(ROWS)] if fault == "pieces" else [pl.ds(0, ROWS)]
        copies = []
        for piece in pieces:
            copy = pltpu.make_async_remote_copy(
                acc.at[piece], far.at[piece], far_sem.at[0], far_sem.at[1], device_id={"core": peer}
            )
            copy.start()  # PLANT exchange
            copies.append(copy)
        return copies

    def barrier():
        semaphore = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(semaphore, 1, device_id={"core": lax.rem(me + 1, CORES)})
        pl.semaphore_wait(semaphore, 1)

    def grow(value):
        """Work on vectors that takes about `value` loop turns."""

        def turn(_, block):
            return block * 1.0001 + 0.5

        acc[...] = lax.fori_loop(0, value, turn, acc[...])

    first = pltpu.make_async_copy(x_hbm, x, sem)
    if fault in DEPTHS:
        first.start()
    if fault != "ramp":
        for t in range(depth):
            tile(t).start()
            if fault == "twice":
                tile(t).start()
    barrier()
    if fault not in DEPTHS:
        first.start()
    first.wait()
    if not fault.startswith("urgent") and fault not in DEPTHS:
        first = pltpu.make_async_copy(bias_hbm.at[0], bias, bias_sem)
        first.start()
        first.wait()
    acc[...] = jnp.zeros_like(acc)
    grow(GROW)
    if fault == "uneven":

        @pl.when(me == 3)
        def _():
            grow(4 * GROW)  # PLANT uneven

    if fault == "ramp":
        for t in range(depth):
            tile(t).start()  # PLANT ramp

    def one_tile(t, turn):
        if fault.startswith("pause"):

            @pl.when(t == TILES // 2)
            def _():
                grow(4 * GROW)

        early = pltpu.make_async_copy(bias_hbm.at[t], bias, bias_sem)
        if fault == "behind_first":
            early.start()
        if fault.startswith("behind"):

            @pl.when((t > 0) & (t + depth - 1 < TILES))
            def _():
                tile(t + depth - 1).start()

        if fault == "behind":
            early.start()  # PLANT behind
        tile(t).wait()
        if fault == "twice":
            tile(t).wait()
        if fault.startswith("behind"):
            early.wait()
        if fault == "pushes":
            for part in range(4):
                rows, tile_now = x[...] * (part + 1), ring[ring_slot(t)]
                acc[...] += jnp.dot(rows, tile_now, preferred_element_type=jnp.float32)  # PLANT pushes
        elif fault == "one_mxu" or fault.startswith("pause"):
            part = ring[ring_slot(t), :256, :256]
            product = jnp.dot(x[:, :256], part, preferred_element_type=jnp.float32)  # PLANT one_mxu
            acc[:, :256] += product
        else:
            product = jnp.dot(x[...], ring[ring_slot(t)], preferred_element_type=jnp.float32)
            acc[...] += product + bias[...]

        copy = pltpu.make_async_copy(bias_hbm.at[t], bias, bias_sem)
        if fault == "urgent_first":
            copy.start()

        if not fault.startswith("behind"):

            @pl.when(t + depth < TILES)
            def _():
                tile(t + depth).start()
                if fault == "twice":
                    tile(t + depth).start()  # PLANT twice

        if fault == "urgent":
            copy.start()  # PLANT urgent
        if fault in ("urgent", "urgent_first"):
            copy.wait()
        if fault in ("store", "store_late"):
            slot = ring_slot(t)
            stage[slot] = acc[...]
            copy = pltpu.make_async_copy(stage.at[slot], trail_hbm.at[t], stage_sem.at[slot])
            if fault == "store_late":

                @pl.when(t >= depth)
                def _():
                    copy.wait()

            copy.start()
            if fault == "store":
                copy.wait()  # PLANT store
        if fault == "barrier":
            semaphore = pltpu.get_barrier_semaphore()
            pl.semaphore_signal(semaphore, 1, device_id={"core": lax.rem(me + 1, CORES)})
            pl.semaphore_wait(semaphore, 1)  # PLANT barrier
        if fault == "late":

            @pl.when(me == 3)
            def _():
                grow(400)  # PLANT late

        if fault in EXCHANGES:
            for copy in exchange():
                copy.wait()  # PLANT exchange
        if fault == "division":
            acc[pl.ds(0, 1), pl.ds(0, 128)] = jnp.full((1, 128), divisions(t), jnp.float32)  # PLANT division
        return turn

    if fault in ("bounds", "no_bounds"):
        many_small_copies(bias_hbm, bias, bias_sem)
    if fault == "vector":
        arithmetic(acc)
    with phase("tiles") if fault.startswith("push") else nullcontext():
        lax.fori_loop(0, TILES, one_tile, 0)
    if fault == "store_late":
        for slot in range(depth):
            pltpu.make_async_copy(stage.at[slot], trail_hbm.at[slot], stage_sem.at[slot]).wait()
    if fault not in EXCHANGES:
        for copy in exchange():
            copy.wait()
    last = pltpu.make_async_copy(acc, out_hbm, sem)
    last.start()
    last.wait()


def divisions(t):
    """Scalar work that hides behind nothing."""
    value = t + 7
    for divisor in (3, 5, 7, 11, 13, 17, 19, 23):
        value = lax.div(value * 12345 + divisor, divisor) + lax.rem(value + 99991, divisor + 1)
    return value.astype(jnp.float32)


def arithmetic(acc):
    """Independent multiplications and additions, many more than anything else."""

    def turn(_, block):
        for step in range(12):
            block = jnp.maximum(block * 1.01 + step, block * 0.99 - step)  # PLANT vector
        return block

    acc[...] = lax.fori_loop(0, 300, turn, acc[...])


def many_small_copies(bias_hbm, bias, bias_sem):
    """Copies whose issue is the work: addresses, and where they are on, checks."""

    def copy(t):
        row = (t * 5) & 31
        return pltpu.make_async_copy(bias_hbm.at[row], bias, bias_sem)

    lax.fori_loop(0, 2000, lambda t, _: copy(t).start(), None)  # PLANT bounds
    lax.fori_loop(0, 2000, lambda t, _: copy(t).wait(), None)


def build(fault: str = "none"):
    """The kernel with a fault, on every core of a 2x2x1 slice."""
    shape, depth = jax.ShapeDtypeStruct, DEPTHS.get(fault, DEPTH)
    arguments = (
        shape((CORES * ROWS, SIDE), jnp.bfloat16),
        shape((TILES, 1, SIDE), jnp.float32),
        shape((TILES, SIDE, SIDE), jnp.bfloat16),
    )

    def on_one_core(x, bias, w):
        operands = [pltpu.with_memory_space_constraint(a, pltpu.HBM) for a in (x, bias, w)]
        return pl.pallas_call(
            lambda *refs: kernel(fault, *refs),
            in_specs=[HBM] * 3,
            out_specs=[HBM] * 2,
            out_shape=[
                shape((ROWS, SIDE), jnp.float32),
                shape((TILES, ROWS, SIDE), jnp.float32),
            ],
            scratch_shapes=[
                pltpu.VMEM((ROWS, SIDE), jnp.bfloat16),
                pltpu.VMEM((1, SIDE), jnp.float32),
                pltpu.VMEM((ROWS, SIDE), jnp.float32),
                pltpu.VMEM((DEPTH, ROWS, SIDE), jnp.float32),
                pltpu.VMEM((depth, SIDE, SIDE), jnp.bfloat16),
                pltpu.SemaphoreType.DMA((depth,)),
                pltpu.SemaphoreType.DMA,
                pltpu.SemaphoreType.DMA,
                pltpu.SemaphoreType.DMA((DEPTH,)),
                pltpu.VMEM((ROWS, SIDE), jnp.float32),
                pltpu.SemaphoreType.DMA((2,)),
            ],
            compiler_params=pltpu.CompilerParams(
                collective_id=0, disable_bounds_checks=fault != "bounds", vmem_limit_bytes=64 << 20
            ),
            name="planted",
        )(*operands)

    return KernelBuild(
        name="planted",
        function=on_one_core,
        arguments=arguments,
        in_specs=(P("core"), P(), P()),
        out_specs=(P("core"), P("core")),
        mesh_axes={"core": CORES},
        facts={},
    )
