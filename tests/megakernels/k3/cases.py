"""Runs of the K3 kernels in interpret mode, inside the simulator's child."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding

from megakernels.k3 import reference
from megakernels.k3.config import SMALL, K3Config
from megakernels.k3.kda_pack import pack_layers
from megakernels.k3.kda_state import KdaState, from_reference, to_reference
from megakernels.k3.mixer_build import build_kda
from megakernels.k3.parameters import mixer_shapes, random_tensor
from megakernels.k3.plan import ROWS, KdaPlan

# As few heads and columns as split over two ranks: interpreting costs time per access. SMALL for more ranks.
NARROW = dataclasses.replace(SMALL, name="k3-narrow", heads=2, hidden=256)
EXACT = ("A_log", "dt_bias", "conv1d.weight", "o_norm.weight")


def bf16(values: Any) -> np.ndarray:
    """Rounded to bfloat16, as float32."""
    return np.asarray(jnp.asarray(values, jnp.bfloat16).astype(jnp.float32))


def mixer_tensors(config: K3Config, layer: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors of one of many KDA layers, as the checkpoint holds them."""
    made = {n: random_tensor(f"{layer}.{n}", s, seed) for n, s in mixer_shapes(config, 0).items()}
    return {n: v if n.endswith(EXACT) else bf16(v) for n, v in made.items()}


def difference(ours: Any, theirs: Any) -> float:
    """Root mean square of the difference, relative to theirs; infinite where ours is not finite."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2))) if np.isfinite(a).all() else np.inf


def kda(
    sizes: dict[str, Any],
    steps: int = 1,
    accepted: tuple[int, ...] = (),
    dma: str = "on_wait",
    detect_races: bool = False,
    level: str = "off",
    seed: int = 0,
    spoil: str = "",
) -> dict[str, Any]:
    """Steps of a stack of KDA mixers beside the reference, from one random state.

    accepted: In verify, how many rows of each step's block are kept, step after step. spoil: Name of a tensor
    of layer 0 that is changed for the kernel only.
    """
    config = NARROW if sizes.get("cores", 1) <= NARROW.heads else SMALL
    plan = KdaPlan(config=config, **sizes)
    interpret = pltpu.InterpretParams(
        dma_execution_mode=dma, detect_races=detect_races, on_race="warn", uninitialized_memory="nan"
    )
    build = build_kda(plan, level=level, interpret=interpret)
    mesh = build.mesh(jax.devices())
    tensors = [mixer_tensors(config, layer, seed) for layer in range(plan.layers)]
    spoilt = [dict(p) for p in tensors]
    if spoil:
        spoilt[0][spoil] = spoilt[0][spoil] + 0.3 * np.sign(spoilt[0][spoil])
    packed = pack_layers(plan, spoilt)
    places = [NamedSharding(mesh, spec) for spec in build.in_specs]
    function = jax.jit(build.global_function(mesh))
    expect = jax.jit(lambda p, x, s, c: reference.kda(config, p, x, s, c))
    weights = [
        {n: jnp.asarray(v, jnp.float32 if n.endswith(EXACT) else jnp.bfloat16) for n, v in p.items()}
        for p in tensors
    ]
    rng = np.random.RandomState(seed)
    channels = (plan.layers, plan.batch, config.conv_taps - 1, config.conv_channels)
    recurrent = (
        rng.standard_normal((plan.layers, plan.batch, config.heads, 128, 128)).astype(np.float32) * 0.1
    )
    conv = bf16(rng.standard_normal(channels)).copy()
    state = from_reference(plan, recurrent, conv)
    kept = 0
    found: dict[str, Any] = {"out": [], "recurrent": [], "conv": [], "cores_agree": True, "values": []}
    for step in range(steps):
        shape = (1, 8) if plan.verify else (plan.batch, 1)
        x = bf16(rng.standard_normal((plan.layers, *shape, config.hidden)))
        rows = np.zeros((plan.layers, ROWS, config.hidden), np.float32)
        rows[:, : plan.rows] = x.reshape(plan.layers, plan.rows, -1)
        arrays = [np.asarray([kept], np.int32), rows, *packed.values()]
        typed = [np.asarray(a).astype(t.dtype) for a, t in zip(arrays, build.arguments, strict=False)] + [
            np.asarray(s) for s in state if s is not None
        ]
        placed = [jax.device_put(a, place) for a, place in zip(typed, places, strict=True)]
        out, *after = function(*placed)
        state = KdaState(*(np.asarray(a) for a in after))
        by_core = np.asarray(out)
        found["cores_agree"] &= bool((by_core == by_core[:1]).all())
        found["values"].append(by_core[0])
        for index, p in enumerate(weights):
            want, history, inputs, errors = expect(
                p,
                jnp.asarray(x[index], jnp.bfloat16),
                recurrent[index],
                jnp.asarray(conv[index], jnp.bfloat16),
            )
            want = np.asarray(want.astype(jnp.float32)).reshape(plan.rows, -1)
            found["out"].append(difference(by_core[0, index, : plan.rows], want))
            decays, keys, wrote = (np.asarray(a) for a in (inputs.decay, inputs.key, errors))
            keep = accepted[step] if plan.verify else 1
            for row in range(keep):
                recurrent[index] = recurrent[index] * decays[:, row, ..., None]
                recurrent[index] += keys[:, row, ..., None] * wrote[:, row, ..., None, :]
            conv[index] = np.asarray(history.astype(jnp.float32))[:, keep : keep + config.conv_taps - 1]
        kept = accepted[step] if plan.verify else 0
        ours = to_reference(plan, state, kept)
        found["recurrent"].append(difference(ours[0], recurrent))
        found["conv"].append(difference(ours[1], conv))
    return found
