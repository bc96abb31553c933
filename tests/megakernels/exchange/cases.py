"""The one-hop exchange and reductions on their own, in interpret mode, inside the simulator's child."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from megakernels.common import reduction
from megakernels.common.collectives import EntryBarrier
from megakernels.common.exchange import Exchange, exchange_scratch

SHAPE = (4, 8, 128)


def sums(cores: int, rounds: int, group: int, dma: str, exchanges: int = 2) -> dict[str, np.ndarray]:
    """Rounds of `share <- (sum of shares) / cores + rank`, exchanges used in turn, parts sent in groups."""

    def kernel(x: Any, out: Any, first: Any, second: Any, vmem: Any, semaphore: Any) -> None:
        barrier = EntryBarrier("core", cores)
        barrier.signal()
        copy = pltpu.make_async_copy(x.at[0], vmem, semaphore)
        copy.start()
        copy.wait()
        barrier.wait()
        rank = lax.axis_index("core").astype(jnp.float32) if cores > 1 else 0.0
        for turn in range(rounds):
            exchange = Exchange.over("core", cores, (first, second)[turn % exchanges])
            for part in range(SHAPE[0]):
                exchange.own[part] = vmem[part].astype(jnp.bfloat16)
                if (part + 1) % group == 0:
                    exchange.send("share", part + 1 - group, group)
            mail = exchange.receive()
            total = sum(mail[sender].astype(jnp.float32) for sender in range(cores))
            vmem[...] = total / cores + rank
            exchange.finish()
        copy = pltpu.make_async_copy(vmem, out.at[0], semaphore)
        copy.start()
        copy.wait()

    anywhere = pl.BlockSpec(memory_space=pltpu.HBM)
    scratch = exchange_scratch(cores, SHAPE, jnp.bfloat16)
    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((1, *SHAPE), jnp.float32),
        in_specs=[anywhere],
        out_specs=anywhere,
        scratch_shapes=[scratch, scratch, pltpu.VMEM(SHAPE, jnp.float32), pltpu.SemaphoreType.DMA],
        compiler_params=pltpu.CompilerParams(collective_id=0 if cores > 1 else None),
        interpret=pltpu.InterpretParams(
            dma_execution_mode=dma, detect_races=True, on_race="warn", uninitialized_memory="nan"
        ),
    )
    mesh = Mesh(np.array(jax.devices()[:cores]), ("core",))
    split = PartitionSpec("core")
    function = jax.shard_map(call, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    x = np.random.RandomState(0).standard_normal((cores, *SHAPE)).astype(np.float32)
    out = jax.jit(function)(jax.device_put(x, NamedSharding(mesh, split)))
    shares = x
    for _ in range(rounds):
        rounded = np.asarray(jnp.asarray(shares, jnp.bfloat16), np.float32)
        shares = rounded.sum(0) / cores + np.arange(cores, dtype=np.float32)[:, None, None, None]
    return {"out": np.asarray(out), "expected": shares}


def reduce(
    hosts: int,
    members: int,
    rows: int,
    kind: str,
    dma: str,
    detect_races: bool = False,
    rounds: int = 3,
    pieces: int = 1,
    fault: str | None = None,
) -> dict[str, np.ndarray]:
    """The sum after rounds of `share <- (sum of shares) / cores + rank`, two reductions of one kind in turn.

    Faults: "no_relay_wait" adds up the host's shares without waiting for them; "no_finish" posts the next
    share while the last one leaves; "one_scratch" uses one reduction round after round.
    """
    parts, columns = 4, 256  # two blocks of 128 a part: 8 blocks
    mesh = reduction.Mesh("core", hosts, members)
    cores = hosts * members
    if kind == "two":
        scratch: Any = reduction.two_hop_scratch(mesh, rows, parts, columns, pieces)
    else:
        scratch = reduction.three_hop_scratch(mesh, rows, parts, columns)
    shape = (parts, 8, columns)

    def kernel(x: Any, out: Any, first: Any, second: Any, vmem: Any, semaphore: Any) -> None:
        barrier = EntryBarrier("core", cores)
        barrier.signal()
        copy = pltpu.make_async_copy(x.at[0], vmem, semaphore)
        copy.start()
        copy.wait()
        barrier.wait()
        rank = lax.axis_index("core").astype(jnp.float32)
        for turn in range(rounds):
            scratch = first if fault == "one_scratch" else (first, second)[turn % 2]
            sums = reduction.reduction(mesh, rows, scratch)
            for part in range(parts):
                sums.post(part, vmem[part])
            sums.send("share")
            sums.relay("sums")
            sums.receive()
            for part in range(parts):
                total = sums.total(part)
                vmem[part, :rows] = total if turn == rounds - 1 else total / cores + rank
            if fault != "no_finish":
                sums.finish()
        copy = pltpu.make_async_copy(vmem, out.at[0], semaphore)
        copy.start()
        copy.wait()

    anywhere = pl.BlockSpec(memory_space=pltpu.HBM)
    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((1, *shape), jnp.float32),
        in_specs=[anywhere],
        out_specs=anywhere,
        scratch_shapes=[scratch, scratch, pltpu.VMEM(shape, jnp.float32), pltpu.SemaphoreType.DMA],
        compiler_params=pltpu.CompilerParams(collective_id=0 if cores > 1 else None),
        interpret=pltpu.InterpretParams(
            dma_execution_mode=dma, detect_races=detect_races, on_race="warn", uninitialized_memory="nan"
        ),
    )
    grid = Mesh(np.array(jax.devices()[:cores]), ("core",))
    split = PartitionSpec("core")
    function = jax.shard_map(call, mesh=grid, in_specs=split, out_specs=split, check_vma=False)
    x = np.random.RandomState(0).standard_normal((cores, *shape)).astype(np.float32)
    with _deaf(fault == "no_relay_wait"):
        out = jax.jit(function)(jax.device_put(x, NamedSharding(grid, split)))
    ranks = np.arange(cores, dtype=np.float32)[:, None, None, None]
    shares = x[:, :, :rows]
    for _ in range(rounds - 1):
        shares = shares.sum(0) / cores + ranks
    return {"out": np.asarray(out)[:, :, :rows], "expected": shares.sum(0)}


@contextlib.contextmanager
def _deaf(yes: bool) -> Iterator[None]:
    """Exchanges within the host do not wait for what arrives."""
    receive = Exchange.receive

    def deaf(exchange: Exchange, parts: int = 0) -> Any:
        return exchange.scratch.mail if exchange.group.stride == 1 else receive(exchange, parts)

    Exchange.receive = deaf if yes else receive  # type: ignore[method-assign]
    try:
        yield
    finally:
        Exchange.receive = receive  # type: ignore[method-assign]
