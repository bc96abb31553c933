"""Runs of the K3 kernels in interpret mode, inside the simulator's child."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding

from megakernels.k3 import fp4, mla_pack, mxfp4, reference
from megakernels.k3.config import SMALL, K3Config
from megakernels.k3.experts import ExpertPlan
from megakernels.k3.experts_build import build_experts, pack_experts, routing_rows
from megakernels.k3.kda_pack import pack_layers
from megakernels.k3.kda_state import KdaState, from_reference, to_reference
from megakernels.k3.mixer_build import build_kda, build_mla
from megakernels.k3.mla_plan import MlaPlan
from megakernels.k3.parameters import expert_shapes, mixer_shapes, random_tensor
from megakernels.k3.plan import ROWS, KdaPlan

# Compiling takes most of the time of these runs.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
# As few heads and columns as split over two ranks: interpreting costs time per access. SMALL for more ranks.
NARROW = dataclasses.replace(SMALL, name="k3-narrow", heads=2, hidden=256)
EXACT = ("A_log", "dt_bias", "conv1d.weight", "o_norm.weight")


def bf16(values: Any) -> np.ndarray:
    """Rounded to bfloat16, as float32."""
    return np.asarray(jnp.asarray(values, jnp.bfloat16).astype(jnp.float32))


def mixer_tensors(config: K3Config, kind: int, layer: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors of one of many mixers, of the kind of layer `kind`, as the checkpoint holds them."""
    made = {n: random_tensor(f"{layer}.{n}", s, seed) for n, s in mixer_shapes(config, kind).items()}
    return {n: v if n.endswith(EXACT) else bf16(v) for n, v in made.items()}


def difference(ours: Any, theirs: Any) -> float:
    """Root mean square of the difference, relative to theirs; infinite where ours is not finite."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2))) if np.isfinite(a).all() else np.inf


@functools.cache
def compiled(builder: Any, plan: Any, level: str, dma: str, detect_races: bool) -> Any:
    """A kernel's build, where its arguments go, and its function: traced and compiled once per plan."""
    build = builder(plan, level=level, interpret=interpreted(dma, detect_races))
    mesh = build.mesh(jax.devices())
    places = [NamedSharding(mesh, spec) for spec in build.in_specs]
    return build, places, jax.jit(build.global_function(mesh), compiler_options=QUICK)


@functools.cache
def expectation(part: Any, config: K3Config) -> Any:
    """A part of the reference, compiled once per config."""
    return jax.jit(functools.partial(part, config), compiler_options=QUICK)


class Runner:
    """A compiled kernel with its weights in place."""

    def __init__(self, kernel: Any, packed: dict[str, np.ndarray]) -> None:
        self.build, self.places, self.function = kernel
        self.weights = [self.put(2 + i, values) for i, values in enumerate(packed.values())]

    def put(self, number: int, values: Any) -> jax.Array:
        typed = np.asarray(values).astype(self.build.arguments[number].dtype)
        return jax.device_put(typed, self.places[number])

    def step(self, scalars: Any, rows: Any, state: Any) -> tuple[np.ndarray, list[np.ndarray]]:
        """Outputs by core, and the new state."""
        first = 2 + len(self.weights)
        held = [self.put(first + i, a) for i, a in enumerate(state)]
        out, *after = self.function(self.put(0, scalars), self.put(1, rows), *self.weights, *held)
        return np.asarray(out), [np.asarray(a) for a in after]


def interpreted(dma: str, detect_races: bool) -> pltpu.InterpretParams:
    return pltpu.InterpretParams(
        dma_execution_mode=dma, detect_races=detect_races, on_race="warn", uninitialized_memory="nan"
    )


def padded_rows(x: np.ndarray) -> np.ndarray:
    """`[layers, B, rows, hidden]` as `[layers, 8, hidden]`, dead rows zero."""
    flat = x.reshape(x.shape[0], -1, x.shape[-1])
    return np.pad(flat, ((0, 0), (0, ROWS - flat.shape[1]), (0, 0)))


def typed_weights(p: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """As the reference takes them: matrices bfloat16, the float32 tensors as they are."""
    return {n: jnp.asarray(v, jnp.float32 if n.endswith(EXACT) else jnp.bfloat16) for n, v in p.items()}


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
    tensors = [mixer_tensors(config, 0, layer, seed) for layer in range(plan.layers)]
    spoilt = [dict(p) for p in tensors]
    if spoil:
        spoilt[0][spoil] = spoilt[0][spoil] + 0.3 * np.sign(spoilt[0][spoil])
    runner = Runner(compiled(build_kda, plan, level, dma, detect_races), pack_layers(plan, spoilt))
    expect = expectation(reference.kda, config)
    weights = [typed_weights(p) for p in tensors]
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
        by_core, after = runner.step([kept], padded_rows(x), [s for s in state if s is not None])
        state = KdaState(*after)
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


def mla(
    sizes: dict[str, Any],
    first_position: int,
    steps: int = 1,
    dma: str = "on_wait",
    detect_races: bool = False,
    level: str = "off",
    seed: int = 0,
    spoil: str = "",
) -> dict[str, Any]:
    """Steps of a stack of MLA mixers beside the reference, from a cache full of noise.

    Sequence b stands 5 * b tokens further on. A verify step keeps 3 rows, so that the next writes over 5.
    """
    config = NARROW if sizes.get("cores", 1) <= NARROW.heads else SMALL
    plan = MlaPlan(config=config, **sizes)
    tensors = [mixer_tensors(config, config.layers - 1, layer, seed) for layer in range(plan.layers)]
    spoilt = [dict(p) for p in tensors]
    if spoil:
        spoilt[0][spoil] = spoilt[0][spoil] + 0.3 * np.sign(spoilt[0][spoil])
    packed = mla_pack.pack_layers(plan, spoilt)
    runner = Runner(compiled(build_mla, plan, level, dma, detect_races), packed)
    expect = expectation(reference.mla, config)
    weights = [typed_weights(p) for p in tensors]
    rng = np.random.RandomState(seed)
    latent = bf16(rng.standard_normal((plan.layers, plan.batch, plan.capacity, config.cache_width))).copy()
    state = list(mla_pack.from_reference(plan, latent))
    positions = first_position + 5 * np.arange(plan.batch)
    found: dict[str, Any] = {"out": [], "cache": [], "cores_agree": True, "values": []}
    for _ in range(steps):
        shape = (1, 8) if plan.verify else (plan.batch, 1)
        x = bf16(rng.standard_normal((plan.layers, *shape, config.hidden)))
        by_core, state = runner.step(positions, padded_rows(x), state)
        found["cores_agree"] &= bool((by_core == by_core[:1]).all())
        found["cores_agree"] &= bool((state[0] == state[0][:1]).all())
        found["values"].append(by_core[0])
        for index, p in enumerate(weights):
            want, cache = expect(
                p,
                jnp.asarray(x[index], jnp.bfloat16),
                jnp.asarray(positions, jnp.int32),
                jnp.asarray(latent[index], jnp.bfloat16),
            )
            want = np.asarray(want.astype(jnp.float32)).reshape(plan.rows, -1)
            found["out"].append(difference(by_core[0, index, : plan.rows], want))
            latent[index] = np.asarray(cache.astype(jnp.float32))
        ours = state[0][0, :, :, : plan.capacity, : config.cache_width].astype(np.float32)
        found["cache"].append(difference(ours, latent))
        positions = positions + (3 if plan.verify else 1)
    return found


def fp4_product(m: int, k: int, n: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A product with MXFP4 weights in a kernel, and the same from the decoded weights in float64."""
    rng = np.random.RandomState(seed)
    nibbles = rng.randint(0, 16, (n, k)).astype(np.uint8)
    scale = rng.randint(110, 140, (n, k // 32)).astype(np.uint8)
    x = bf16(rng.standard_normal((m, k)))
    want = x.astype(np.float64) @ mxfp4.dequantize(mxfp4.pack(nibbles), scale).astype(np.float64).T

    def kernel(rows: Any, weights: Any, scales: Any, out: Any) -> None:
        for row in range(m):
            blocks = [rows[row : row + 1, b * 256 : (b + 1) * 256] for b in range(k // 256)]
            spread = [fp4.spread_groups(block) for block in blocks]
            sums = fp4.group_sums(spread.__getitem__, weights, scales)
            out[row : row + 1] = jnp.sum(sums, axis=0, keepdims=True)

    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        interpret=interpreted("on_wait", False),
    )
    got = jax.jit(call)(jnp.asarray(x, jnp.bfloat16), fp4.pack_weights(nibbles.T), fp4.pack_scales(scale.T))
    return {"got": np.asarray(got), "want": want}


def experts(
    sizes: dict[str, Any],
    dma: str = "on_wait",
    detect_races: bool = False,
    level: str = "off",
    seed: int = 0,
    lone: bool = False,
) -> dict[str, Any]:
    """A stack of expert layers, the cores' shares added up, beside the decoded experts in float64.

    Activations are rounded to bfloat16 where the kernel rounds. lone: All rows choose the same experts, so
    that most groups of ranks have none.
    """
    width = 256 * sizes.get("width_ranks", 1)
    config = dataclasses.replace(SMALL, experts=12, active_experts=3, latent=512, expert_width=width)
    plan = ExpertPlan(config=config, **sizes)
    build, places, function = compiled(build_experts, plan, level, dma, detect_races)
    rng = np.random.RandomState(seed)
    stored: list[list[dict[str, np.ndarray]]] = []
    for index in range(plan.layers):
        stored.append([])
        for expert in range(config.experts):
            tensors = {}
            for name, shape in expert_shapes(config).items():
                packed, scale = mxfp4.quantize(random_tensor(f"{index}.{expert}.{name}", shape, seed))
                tensors |= {f"{name}_packed": packed, f"{name}_scale": scale}
            stored[-1].append(tensors)
    shape = (plan.layers, plan.rows, config.active_experts)
    chosen = np.argsort(rng.random_sample((plan.layers, plan.rows, config.experts)), -1)[..., : shape[-1]]
    if lone:
        chosen = np.broadcast_to([0, 1, 2], shape)
    weights = rng.dirichlet(np.ones(config.active_experts), shape[:2]).astype(np.float32)
    z = bf16(rng.standard_normal((plan.layers, plan.rows, config.latent)))
    arrays = {
        "routing": routing_rows(plan, chosen, weights),
        "rows": np.pad(z, ((0, 0), (0, ROWS - plan.rows), (0, 0))),
        **pack_experts(plan, stored),
    }
    placed = [
        jax.device_put(np.asarray(a).astype(t.dtype), place)
        for a, t, place in zip(arrays.values(), build.arguments, places, strict=True)
    ]
    by_core = np.asarray(function(*placed))
    want = np.zeros((plan.layers, plan.rows, config.latent))
    for index, row, k in np.ndindex(*shape):
        tensors = stored[index][chosen[index, row, k]]
        w = {
            n: mxfp4.dequantize(tensors[f"{n}_packed"], tensors[f"{n}_scale"]).astype(np.float64)
            for n in expert_shapes(config)
        }
        gate, up = (bf16(w[f"w{i}.weight"] @ z[index, row]).astype(np.float64) for i in (1, 3))
        inner = 4 * np.tanh(gate / 4) / (1 + np.exp(-gate)) * 25 * np.tanh(up / 25)
        want[index, row] += weights[index, row, k] * (w["w2.weight"] @ bf16(inner).astype(np.float64))
    total = by_core.sum(0)
    return {
        "error": difference(total[:, : plan.rows], want),
        "dead": float(np.abs(total[:, plan.rows :]).max(initial=0.0)),
        "values": total,
    }
