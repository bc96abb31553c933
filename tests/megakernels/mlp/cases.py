"""Runs of the MLP kernel in interpret mode, inside the simulator's child."""

from typing import Any

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding

from megakernels.common.ring import Ring
from megakernels.mlp.build import build
from megakernels.mlp.config import MlpConfig
from megakernels.mlp.kernel import MlpStep
from megakernels.mlp.reference import mlp_stack, pack_weights, random_inputs


def stack(
    sizes: dict[str, Any],
    dma: str = "on_wait",
    detect_races: bool = False,
    level: str = "off",
    swap_gate_and_up: bool = False,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The kernel, `cores` [cores, batch, hidden], and the reference, `reference` [batch, hidden]."""
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


def with_fault(fault: str, **options: Any) -> dict[str, np.ndarray]:
    """The same with a planted fault.

    "no_ring_wait" reads tiles without waiting for them; "one_too_far" requests one tile more than the ring
    has banks, which overwrites a tile before it is used; "no_requests" never asks for a tile.
    """
    sound = Ring.wait, MlpStep.request, MlpConfig.distance, MlpConfig.__post_init__
    try:
        match fault:
            case "no_ring_wait":
                Ring.wait = lambda ring, bank: ring.scratch.banks.at[bank]
            case "one_too_far":
                MlpConfig.distance = property(lambda config: config.ring_depth + 1)
                MlpConfig.__post_init__ = lambda config: None  # it refuses just this
            case "no_requests":
                MlpStep.request = lambda step, stream: stream
        return stack(**options)
    finally:
        Ring.wait, MlpStep.request, MlpConfig.distance, MlpConfig.__post_init__ = sound
