"""Microkernels that tell the parameters of a machine model apart, each timed in phase `op`.

Streaming copies, a chase of small ones, remote copies to each distance, collectives, weight pushes,
straight-line code. Times of most of them on a TPU7x were published. Sizes are options:

    megascope compile megakernels/microkernels.py:stream --set mib=400 -o captures/stream-400
    megascope record  megakernels/microkernels.py:stream --set mib=400 -o captures/stream-400   # on a TPU
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from megakernels.build import KernelBuild
from megakernels.hooks import Level, instrument, phase

HBM = pl.BlockSpec(memory_space=pltpu.HBM)
CORES = 8


def _build(
    name: str,
    kernel: Callable[..., None],
    shapes: Sequence[jax.ShapeDtypeStruct],
    out: jax.ShapeDtypeStruct,
    scratch: Sequence[Any],
    *,
    level: Level = "regions",
    cores: int = CORES,
) -> KernelBuild:
    def function(*arrays: jax.Array) -> jax.Array:
        result: jax.Array = pl.pallas_call(
            kernel,
            out_shape=out,
            in_specs=[HBM] * len(shapes),
            out_specs=HBM,
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(
                collective_id=0 if cores > 1 else None,
                vmem_limit_bytes=64 << 20,
                disable_bounds_checks=True,
            ),
            name=name,
        )(*(pltpu.with_memory_space_constraint(a, pltpu.HBM) for a in arrays))
        return result

    spec = PartitionSpec()
    return KernelBuild(
        name=name,
        function=instrument(function, level),
        arguments=tuple(shapes),
        in_specs=(spec,) * len(shapes),
        out_specs=spec,
        mesh_axes={"x": cores},
        facts={},
    )


def _barrier() -> jax.Array:
    me = lax.axis_index("x")
    semaphore = pltpu.get_barrier_semaphore()
    for other in range(1, CORES):
        pl.semaphore_signal(semaphore, 1, device_id={"x": lax.rem(me + other, CORES)})
    pl.semaphore_wait(semaphore, CORES - 1)
    return me


def _copy_and_wait(source: Any, target: Any, semaphore: Any) -> None:
    copy = pltpu.make_async_copy(source, target, semaphore)
    copy.start()
    copy.wait()


def stream(*, level: Level = "regions", mib: int = 400, bank_mib: int = 2, banks: int = 12) -> KernelBuild:
    """HBM to VMEM through a ring of banks, nothing done with the bytes."""
    tiles = mib // bank_mib
    rows = bank_mib * (1 << 20) // (1024 * 2)

    def kernel(weights: Any, out: Any, ring: Any, semaphores: Any, done: Any) -> None:
        def copy(tile: Any) -> Any:
            slot = lax.rem(tile, banks)
            return pltpu.make_async_copy(weights.at[tile], ring.at[slot], semaphores.at[slot])

        with phase("op"):
            for tile in range(banks):
                copy(jnp.int32(tile)).start()

            def body(tile: Any, carry: int) -> int:
                copy(tile).wait()

                @pl.when(tile + banks < tiles)
                def _() -> None:
                    copy(tile + banks).start()

                return carry

            lax.fori_loop(0, tiles, body, 0)
        _copy_and_wait(ring.at[0], out, done)

    return _build(
        "stream",
        kernel,
        [jax.ShapeDtypeStruct((tiles, rows, 1024), jnp.bfloat16)],
        jax.ShapeDtypeStruct((rows, 1024), jnp.bfloat16),
        [
            pltpu.VMEM((banks, rows, 1024), jnp.bfloat16),
            pltpu.SemaphoreType.DMA((banks,)),
            pltpu.SemaphoreType.DMA,
        ],
        level=level,
        cores=1,
    )


def remote_copy(*, level: Level = "regions", kib: int = 256, distance: int = 1) -> KernelBuild:
    """One copy to the core `distance` away (1: the sibling core, 2: next chip), and one from it."""

    def kernel(x: Any, out: Any, mine: Any, theirs: Any, semaphores: Any) -> None:
        me = _barrier()
        _copy_and_wait(x, mine, semaphores.at[0])
        peer = lax.bitwise_xor(me, distance)
        with phase("op"):
            copy = pltpu.make_async_remote_copy(
                mine, theirs, semaphores.at[1], semaphores.at[2], device_id={"x": peer}
            )
            copy.start()
            copy.wait()
        _copy_and_wait(theirs, out, semaphores.at[0])

    shape = (kib * 1024 // (256 * 4), 256)
    return _build(
        "remote_copy",
        kernel,
        [jax.ShapeDtypeStruct(shape, jnp.float32)],
        jax.ShapeDtypeStruct(shape, jnp.float32),
        [
            pltpu.VMEM(shape, jnp.float32),
            pltpu.VMEM(shape, jnp.float32),
            pltpu.SemaphoreType.DMA((3,)),
        ],
        level=level,
    )


def _send_to_all(
    me: jax.Array, source: Callable[[jax.Array], Any], target: Any, sent: Any, arrived: Any
) -> None:
    for other in range(1, CORES):
        pltpu.make_async_remote_copy(
            source(lax.rem(me + other, CORES)),
            target,
            sent,
            arrived,
            device_id={"x": lax.rem(me + other, CORES)},
        ).start()


def _wait_for_all(me: jax.Array, source: Any, target: Any, sent: Any, arrived: Any) -> None:
    for _ in range(1, CORES):
        pltpu.make_async_remote_copy(source, target, sent, arrived, device_id={"x": me}).wait()


def all_gather(*, level: Level = "regions", rows: int = 8, columns: int = 1024) -> KernelBuild:
    """Every core's bf16 block to every core."""

    def kernel(x: Any, out: Any, blocks: Any, semaphores: Any) -> None:
        me = _barrier()
        _copy_and_wait(x, blocks.at[me], semaphores.at[0])
        with phase("op"):
            mine = blocks.at[me]
            _send_to_all(me, lambda _: mine, mine, semaphores.at[1], semaphores.at[2])
            _wait_for_all(me, mine, mine, semaphores.at[1], semaphores.at[2])
        _copy_and_wait(blocks, out, semaphores.at[0])

    return _build(
        "all_gather",
        kernel,
        [jax.ShapeDtypeStruct((rows, columns), jnp.bfloat16)],
        jax.ShapeDtypeStruct((CORES, rows, columns), jnp.bfloat16),
        [pltpu.VMEM((CORES, rows, columns), jnp.bfloat16), pltpu.SemaphoreType.DMA((3,))],
        level=level,
    )


def all_reduce(
    *, level: Level = "regions", rows: int = 8, columns: int = 8192, wire: str = "f32"
) -> KernelBuild:
    """Reduce-scatter by copies, a sum, all-gather; `wire` is the type that travels."""
    dtype = {"f32": jnp.float32, "bf16": jnp.bfloat16}[wire]
    part = columns // CORES

    def kernel(  # noqa: PLR0917 -- one reference per operand and scratch
        x: Any,
        out: Any,
        mine: Any,
        sending: Any,
        received: Any,
        gathered: Any,
        total: Any,
        semaphores: Any,
    ) -> None:
        me = _barrier()
        _copy_and_wait(x, mine, semaphores.at[0])
        with phase("op"):
            for core in range(CORES):
                sending[core] = mine[:, core * part : (core + 1) * part].astype(dtype)
            _send_to_all(me, lambda to: sending.at[to], received.at[me], semaphores.at[1], semaphores.at[2])
            received[me] = sending[me]
            _wait_for_all(me, sending.at[0], received.at[0], semaphores.at[1], semaphores.at[2])
            gathered[me] = received[...].astype(jnp.float32).sum(0).astype(dtype)
            own = gathered.at[me]
            _send_to_all(me, lambda _: own, own, semaphores.at[1], semaphores.at[3])
            _wait_for_all(me, own, own, semaphores.at[1], semaphores.at[3])
            for core in range(CORES):
                total[:, core * part : (core + 1) * part] = gathered[core].astype(jnp.float32)
        _copy_and_wait(total, out, semaphores.at[0])

    shape = (rows, columns)
    blocks = pltpu.VMEM((CORES, rows, part), dtype)
    return _build(
        "all_reduce",
        kernel,
        [jax.ShapeDtypeStruct(shape, jnp.float32)],
        jax.ShapeDtypeStruct(shape, jnp.float32),
        [
            pltpu.VMEM(shape, jnp.float32),
            blocks,
            blocks,
            blocks,
            pltpu.VMEM(shape, jnp.float32),
            pltpu.SemaphoreType.DMA((4,)),
        ],
        level=level,
    )


def chase(*, level: Level = "regions", copies: int = 200) -> KernelBuild:
    """Small copies one after the other: latency."""

    def kernel(rows: Any, out: Any, buffer: Any, semaphore: Any) -> None:
        with phase("op"):

            def body(row: Any, carry: int) -> int:
                _copy_and_wait(rows.at[row], buffer, semaphore)
                return carry

            lax.fori_loop(0, copies, body, 0)
        _copy_and_wait(buffer, out, semaphore)

    return _build(
        "chase",
        kernel,
        [jax.ShapeDtypeStruct((4096, 8, 512), jnp.float32)],
        jax.ShapeDtypeStruct((8, 512), jnp.float32),
        [pltpu.VMEM((8, 512), jnp.float32), pltpu.SemaphoreType.DMA],
        level=level,
        cores=1,
    )


def pushes(*, level: Level = "regions", times: int = 50) -> KernelBuild:
    """A few rows times weights that stay in VMEM, over and over: weight pushes and nothing else."""
    size = 2048

    def kernel(  # noqa: PLR0917 -- one reference per operand and scratch
        x_hbm: Any,
        weights_hbm: Any,
        out: Any,
        x: Any,
        weights: Any,
        total: Any,
        semaphore: Any,
    ) -> None:
        _copy_and_wait(x_hbm, x, semaphore)
        _copy_and_wait(weights_hbm, weights, semaphore)
        with phase("op"):

            def body(_: Any, carry: int) -> int:
                total[...] += jnp.dot(x[...], weights[...], preferred_element_type=jnp.float32)
                return carry

            total[...] = jnp.zeros_like(total)
            lax.fori_loop(0, times, body, 0)
        _copy_and_wait(total, out, semaphore)

    return _build(
        "pushes",
        kernel,
        [jax.ShapeDtypeStruct((8, size), jnp.bfloat16), jax.ShapeDtypeStruct((size, size), jnp.bfloat16)],
        jax.ShapeDtypeStruct((8, size), jnp.float32),
        [
            pltpu.VMEM((8, size), jnp.bfloat16),
            pltpu.VMEM((size, size), jnp.bfloat16),
            pltpu.VMEM((8, size), jnp.float32),
            pltpu.SemaphoreType.DMA,
        ],
        level=level,
        cores=1,
    )


def straight_line(*, level: Level = "regions", rows: int = 2048, times: int = 8) -> KernelBuild:
    """Vector work written out line by line, in a loop: limited by instruction fetch where it does not fit."""

    def kernel(x_hbm: Any, out: Any, x: Any, semaphore: Any) -> None:
        _copy_and_wait(x_hbm, x, semaphore)
        with phase("op"):

            def body(_: Any, carry: int) -> int:
                for row in range(rows):
                    at = row % 64 * 8
                    x[at : at + 8] = x[at : at + 8] * 1.5 + float(row)
                return carry

            lax.fori_loop(0, times, body, 0)
        _copy_and_wait(x, out, semaphore)

    shape = jax.ShapeDtypeStruct((512, 128), jnp.float32)
    return _build(
        "straight_line",
        kernel,
        [shape],
        shape,
        [pltpu.VMEM((512, 128), jnp.float32), pltpu.SemaphoreType.DMA],
        level=level,
        cores=1,
    )
