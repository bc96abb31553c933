"""Small kernels that use one mechanism each, inside the simulator's child. Faults are planted by name."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from megakernels.common.collectives import AllReduce, EntryBarrier, all_reduce_scratch
from megakernels.common.matmul import add_across_the_columns, add_down_the_rows
from megakernels.common.norm import rms_norm, rms_norm_blocks
from megakernels.common.ring import Ring, ring_scratch

HBM = pl.BlockSpec(memory_space=pltpu.HBM)


def interpret(dma: str, detect_races: bool) -> pltpu.InterpretParams:
    return pltpu.InterpretParams(
        dma_execution_mode=dma, detect_races=detect_races, on_race="warn", uninitialized_memory="nan"
    )


def ring(
    tiles: int, depth: int, distance: int, dma: str, detect_races: bool = False, fault: str | None = None
) -> dict[str, np.ndarray]:
    """Stream `tiles` tiles through a ring and write each one out doubled.

    Faults: "no_wait" reads a bank without waiting; "refill_early" requests the next tile into a bank before
    the last read of it.
    """
    shape = (8, 128)

    def kernel(source: Any, out: Any, scratch: Any, doubled: Any, left: Any) -> None:
        banks = Ring(scratch)

        def request(tile: jax.Array, bank: jax.Array) -> None:
            pl.when(tile < tiles)(lambda: banks.fill(bank, source.at[tile]).start())

        def first(tile: jax.Array, bank: jax.Array) -> jax.Array:
            request(tile, bank)
            return banks.following(bank)

        def use(tile: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            use_bank, fill_bank = state
            values = scratch.banks.at[use_bank] if fault == "no_wait" else banks.wait(use_bank)
            if fault == "refill_early":
                request(tile + distance, fill_bank)
            doubled[...] = values[...] * 2
            if fault != "refill_early":
                request(tile + distance, fill_bank)
            copy = pltpu.make_async_copy(doubled, out.at[tile], left)
            copy.start()
            copy.wait()
            if fault == "no_wait":
                banks.wait(use_bank)  # keeps the semaphores balanced, so that only the data can tell
            return banks.following(use_bank), banks.following(fill_bank)

        fill_bank = lax.fori_loop(0, distance, first, jnp.int32(0))
        lax.fori_loop(0, tiles, use, (jnp.int32(0), fill_bank))

    values = np.arange(tiles * 8 * 128, dtype=np.float32).reshape(tiles, *shape)
    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(values.shape, jnp.float32),
        in_specs=[HBM],
        out_specs=HBM,
        scratch_shapes=(
            ring_scratch(depth, shape, jnp.float32),
            pltpu.VMEM(shape, jnp.float32),
            pltpu.SemaphoreType.DMA,
        ),
        interpret=interpret(dma, detect_races),
    )
    return {"got": np.asarray(jax.jit(call)(values)), "want": values * 2}


def all_reduce(
    cores: int, rounds: int, dma: str, detect_races: bool = False, fault: str | None = None
) -> dict[str, np.ndarray]:
    """`whole = whole + sum over the cores of (rank + 1) * whole`, `rounds` times, in two posts per owner.

    Faults: "no_delivery_wait" reduces without waiting for the partial sums; "no_gather_wait" goes on without
    the other cores' columns; "reuse_early" overwrites partial sums while they are being sent;
    "read_after_post" still reads the buffer that the others may write once the partial sums are posted.
    """
    batch, share = 8, 256
    width = cores * share

    def kernel(
        source: Any, out: Any, whole: Any, partial: Any, unused: Any, scratch: Any, moved: Any
    ) -> None:
        exchange = AllReduce("core", cores, scratch)
        rank = lax.axis_index("core") if cores > 1 else jnp.int32(0)
        entry = EntryBarrier("core", cores)
        entry.signal()
        copy = pltpu.make_async_copy(source, whole, moved)
        copy.start()
        copy.wait()
        entry.wait()

        def one_round(_: jax.Array, carry: int) -> int:
            partial[...] = whole[...] * (rank + 1).astype(jnp.float32)
            for owner in range(cores):
                for half in range(2):
                    columns = pl.ds(owner * share + half * share // 2, share // 2)
                    exchange.post(partial.at[:, columns], jnp.int32(owner), half * share // 2)
            if fault == "read_after_post":
                unused[...] = whole[...]
            if fault == "reuse_early":
                partial[...] = jnp.zeros((batch, width), jnp.float32)
            exchange.reduce(whole)
            exchange.gather(whole)
            return carry

        lax.fori_loop(0, rounds, one_round, 0)
        copy = pltpu.make_async_copy(whole, out, moved)
        copy.start()
        copy.wait()

    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((batch, width), jnp.float32),
        in_specs=[HBM],
        out_specs=HBM,
        scratch_shapes=(
            pltpu.VMEM((batch, width), jnp.float32),
            pltpu.VMEM((batch, width), jnp.float32),
            pltpu.VMEM((batch, width), jnp.float32),
            all_reduce_scratch(cores, batch, width),
            pltpu.SemaphoreType.DMA,
        ),
        compiler_params=pltpu.CompilerParams(collective_id=0 if cores > 1 else None),
        interpret=interpret(dma, detect_races),
    )
    values = np.random.default_rng(0).integers(-4, 5, (batch, width)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()[:cores]), ("core",))
    function = jax.shard_map(call, mesh=mesh, in_specs=(P(),), out_specs=P(), check_vma=False)
    with _planted(fault):
        out = jax.jit(function)(values)
    factor = 1 + cores * (cores + 1) // 2  # exact in float32: small integers times a small power
    return {
        "got": np.stack([np.asarray(shard.data) for shard in out.addressable_shards]),
        "want": np.stack([values * float(factor) ** rounds] * cores),
    }


class _planted:
    """Makes the all-reduce forget a wait while a kernel is traced."""

    def __init__(self, fault: str | None) -> None:
        self.fault = fault
        self.copy_to = AllReduce._copy_to

    def __enter__(self) -> None:
        semaphore = {"no_delivery_wait": "delivered", "no_gather_wait": "gathered"}.get(self.fault or "")
        if semaphore is None:
            return
        copy_to = self.copy_to

        class Deaf:
            def __init__(self, copy: Any) -> None:
                self.start, self.wait_send, self.wait_recv = copy.start, copy.wait_send, lambda: None

        def deaf(
            exchange: AllReduce, rank: Any, source: Any, destination: Any, left: Any, arrived: Any
        ) -> Any:
            copy = copy_to(exchange, rank, source, destination, left, arrived)
            return Deaf(copy) if arrived is getattr(exchange.scratch, semaphore) else copy

        AllReduce._copy_to = deaf  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        AllReduce._copy_to = self.copy_to  # type: ignore[method-assign]


def norm(packs: int, pack: int, batch: int, block: int) -> dict[str, np.ndarray]:
    """RMSNorm by blocks in a kernel, and the reference, both rounded to bfloat16 blocks."""
    width = packs * pack * block
    random = np.random.default_rng(1)
    rows = (random.standard_normal((batch, width)) * 3).astype(np.float32)
    weight = random.standard_normal((1, width)).astype(np.float32)

    def kernel(rows: Any, weight: Any, out: Any) -> None:
        rms_norm_blocks(rows, weight, out, epsilon=1e-5)

    shape = (packs, pack, batch, block)
    call = pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct(shape, jnp.bfloat16), interpret=interpret("eager", False)
    )
    want = np.asarray(rms_norm(rows, weight, 1e-5)).reshape(batch, packs, pack, block).transpose(1, 2, 0, 3)
    return {"got": np.asarray(call(rows, weight).astype(jnp.float32)), "want": want}


def matmul(pack: int, batch: int, block: int) -> dict[str, np.ndarray]:
    """Both tile products in a kernel, and the plain product of the whole matrices."""
    random = np.random.default_rng(2)
    tile = random.standard_normal((pack, block, block)).astype(jnp.bfloat16)
    rows = random.standard_normal((pack, batch, block)).astype(jnp.bfloat16)
    start = random.standard_normal((batch, block)).astype(np.float32)

    def kernel(rows: Any, tile: Any, start: Any, down: Any, across: Any) -> None:
        down[...] = add_down_the_rows(start[...], rows, tile)
        sums = add_across_the_columns((start[...],) * pack, rows[0], tile)
        for i, total in enumerate(sums):
            across[i] = total

    down, across = pl.pallas_call(
        kernel,
        out_shape=(
            jax.ShapeDtypeStruct((batch, block), jnp.float32),
            jax.ShapeDtypeStruct((pack, batch, block), jnp.float32),
        ),
        interpret=interpret("eager", False),
    )(rows, tile, start)
    wide = [np.asarray(array, np.float32) for array in (rows, tile)]
    whole_rows = wide[0].transpose(1, 0, 2).reshape(batch, pack * block)
    whole_tile = wide[1].reshape(pack * block, block)
    return {
        "down": np.asarray(down),
        "want_down": start + whole_rows @ whole_tile,
        "across": np.asarray(across),
        "want_across": np.stack([start + wide[0][0] @ wide[1][i] for i in range(pack)]),
    }
