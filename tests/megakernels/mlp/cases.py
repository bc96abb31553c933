"""Runs of the MLP kernel in interpret mode, inside the simulator's child."""

from typing import Any

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding

from megakernels.common.ring import Ring
from megakernels.mlp.build import build
from megakernels.mlp.config import MlpConfig
from megakernels.mlp.reference import mlp_stack, pack_weights, random_inputs


def stack(
    sizes: dict[str, Any],
    dma: str = "on_wait",
    detect_races: bool = False,
    level: str = "off",
    swap_gate_and_up: bool = False,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The kernel on every core and the reference: `cores` [cores, batch, hidden] and `reference` [batch, hidden]."""
    config = MlpConfig(**sizes)
    x, weights = random_inputs(config, seed)
    reference = jax.jit(mlp_stack, static_argnames="epsilon")(x, weights, epsilon=config.epsilon)
    if swap_gate_and_up:
        weights = weights._replace(w_gate=weights.w_up, w_up=weights.w_gate)
    interpret = pltpu.InterpretParams(
        dma_execution_mode=dma, detect_races=detect_races, on_race="warn", uninitialized_memory="nan"
    )
    kernel = build(level=level, interpret=interpret, **sizes)
    mesh = kernel.mesh(jax.devices())
    operands = [
        jax.device_put(array, NamedSharding(mesh, spec))
        for array, spec in zip((x, *pack_weights(config, weights)), kernel.in_specs, strict=True)
    ]
    out = jax.jit(kernel.global_function(mesh))(*operands)
    return {
        "cores": np.stack([np.asarray(shard.data) for shard in out.addressable_shards]),
        "reference": np.asarray(reference),
    }


def without_ring_wait(**options: Any) -> dict[str, np.ndarray]:
    """The same with a planted fault: tiles are read without waiting for them; waited for after the last read."""
    whole_wait = Ring.wait

    def no_wait(ring: Ring, bank: Any) -> Any:
        return ring.scratch.banks.at[bank]

    Ring.wait = no_wait
    try:
        return stack(**options)
    finally:
        Ring.wait = whole_wait
