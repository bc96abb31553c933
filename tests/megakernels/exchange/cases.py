"""The one-hop all-reduce on its own, in interpret mode, inside the simulator's child."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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
            exchange = Exchange("core", cores, (first, second)[turn % exchanges])
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
