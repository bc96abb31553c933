"""Runs of the whole K3 decode step in interpret mode, inside the simulator's child."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding

from megakernels.k3 import kda_state, mla_pack, reference
from megakernels.k3.build import build_plan
from megakernels.k3.config import SMALL, K3Config
from megakernels.k3.parameters import random_parameters
from megakernels.k3.state import State, initial_state
from megakernels.k3.step_pack import pack_all
from megakernels.k3.step_plan import StepPlan
from megakernels.k3.step_refs import SCALARS, KernelState, Operands

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def config_for(cores: int, width_ranks: int) -> K3Config:
    """As small as splits: every kind of layer twice, a last MLA layer out of turn, several snapshots."""
    return dataclasses.replace(
        SMALL,
        name="k3-step",
        layers=5,
        mla_period=3,
        residual_block=2,
        hidden=256,
        heads=max(2, cores),
        vocab=256 * cores,
        q_rank=128,
        kv_rank=128,
        experts=16,
        active_experts=3,
        latent=256,
        expert_width=256 * width_ranks,
        shared_width=192 * cores,
        dense_width=160 * cores,
        aux_layers=(1, 2, 4),
    )


@functools.cache
def parameters(config: K3Config, seed: int, open_layers: int) -> dict[str, np.ndarray]:
    """Random weights of a model whose choices have margins.

    Rounding differs between kernel and reference, and a choice that hangs by a hair would differ with it. So
    experts come in pairs of opposite router rows, and the bias leaves one choice of each row to the data,
    which of a pair, in so many layers; the more rows, the fewer such layers may be, for a margin can be
    small. Mixtures of snapshots are smooth; some tokens have larger lm_head rows than others.
    """
    stored = random_parameters(config, seed)
    rng = np.random.RandomState(seed)
    for layer in range(config.dense_layers, config.layers):
        prefix = f"model.layers.{layer}.block_sparse_moe.gate."
        gate = stored[f"{prefix}weight"]
        gate[1::2] = -gate[::2]
        pairs = np.repeat(rng.permutation(config.experts // 2), 2)
        bias = (pairs * 4.0).astype(np.float32)
        if layer >= config.dense_layers + open_layers:
            bias[1::2] += 2.0
        stored[f"{prefix}e_score_correction_bias"] = bias
    for name in [name for name in stored if name.endswith("res_proj.weight")]:
        stored[name] = stored[name] * 0.25
    spread = np.exp2(np.round(4 * rng.standard_normal((config.vocab, 1))))
    stored["lm_head.weight"] = (stored["lm_head.weight"] * spread).astype(np.float32)
    return stored


def difference(ours: Any, theirs: Any) -> float:
    """Root mean square of the difference, relative to theirs; infinite where ours is not finite."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2))) if np.isfinite(a).all() else np.inf


@functools.cache
def compiled(plan: StepPlan, level: str, dma: str, detect_races: bool) -> Any:
    """The step's build, where its arguments go, and its function."""
    interpret = pltpu.InterpretParams(
        dma_execution_mode=dma, detect_races=detect_races, on_race="warn", uninitialized_memory="nan"
    )
    build = build_plan(plan, level=level, interpret=interpret)
    mesh = build.mesh(jax.devices())
    places = [NamedSharding(mesh, spec) for spec in build.in_specs]
    return build, places, jax.jit(build.global_function(mesh), compiler_options=QUICK)


@functools.cache
def expectation(config: K3Config) -> Any:
    return jax.jit(functools.partial(reference.forward, config), compiler_options=QUICK)


class Runner:
    """A compiled step with its weights in place."""

    def __init__(
        self, plan: StepPlan, stored: dict[str, np.ndarray], level: str, dma: str, detect_races: bool
    ) -> None:
        self.plan = plan
        self.build, self.places, self.function = compiled(plan, level, dma, detect_races)
        packed = pack_all(plan, stored)
        names = (*SCALARS, *Operands._fields[1:])
        self.weights = [self.put(i, packed[name]) for i, name in enumerate(names) if i >= len(SCALARS)]

    def put(self, number: int, values: Any) -> jax.Array:
        typed = np.asarray(values).astype(self.build.arguments[number].dtype)
        return jax.device_put(typed, self.places[number])

    def step(self, tokens: Any, positions: Any, accepted: int, state: list[Any]) -> list[Any]:
        scalars = [self.put(i, a) for i, a in enumerate((tokens, positions, [accepted]))]
        first = len(scalars) + len(self.weights)
        held = [self.put(first + i, a) for i, a in enumerate(state)]
        return [np.asarray(a) for a in self.function(*scalars, *self.weights, *held)]


def random_state(config: K3Config, batch: int, capacity: int, seed: int) -> State:
    """A state as if tokens had gone by, full cache included."""
    rng = np.random.RandomState(seed)
    empty = initial_state(config, batch, capacity, jnp.bfloat16)
    return jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape) * 0.1, a.dtype), empty)


def kernel_state(plan: StepPlan, state: State) -> list[np.ndarray]:
    """The reference's state in the kernel's layout."""
    kda = kda_state.from_reference(plan.kda, np.asarray(state.recurrent), np.asarray(state.conv, np.float32))
    mla = mla_pack.from_reference(plan.mla, np.asarray(state.latent, np.float32))
    arrays = KernelState(kda.recurrent, kda.conv, mla.cache, kda.correction)
    return [a for a in arrays if a is not None]


def logits_of(plan: StepPlan, array: np.ndarray) -> np.ndarray:
    """The kernel's logits `[cores, tiles, 8, columns]` as `[rows, vocab]`."""
    by_row = array.transpose(2, 0, 1, 3).reshape(8, plan.cores, -1)[: plan.rows, :, : plan.vocab]
    return by_row.reshape(plan.rows, -1)


def steps(
    sizes: dict[str, Any],
    count: int = 1,
    first_position: int = 20,
    accepted: tuple[int, ...] = (),
    dma: str = "on_wait",
    detect_races: bool = False,
    level: str = "off",
    seed: int = 0,
    spoil: str = "",
) -> dict[str, Any]:
    """Steps of the kernel beside the reference, from one random state, each on its own tokens.

    Sequence b stands 5 * b tokens further on. accepted: In verify, rows of each step's block to keep. spoil:
    Name of a tensor that is changed for the kernel only.
    """
    cores = sizes.get("hosts", 1) * sizes.get("members", 1)
    config = config_for(cores, sizes.get("width_ranks", 1))
    plan = StepPlan(config, capacity=64, cache_tile=32, **sizes)
    stored = dict(parameters(config, seed, 4 if plan.rows < 4 else 1))
    weights = reference.load(config, stored, jnp.bfloat16)
    if spoil:
        stored[spoil] = stored[spoil] + 0.5 * np.sign(stored[spoil])
    runner = Runner(plan, stored, level, dma, detect_races)
    expect = expectation(config)
    state = random_state(config, plan.batch, plan.capacity, seed)
    ours = kernel_state(plan, state)
    positions = first_position + 5 * np.arange(plan.batch)
    rng = np.random.RandomState(seed)
    kept = 0
    found: dict[str, Any] = {"logits": [], "aux": [], "tokens": [], "recurrent": [], "conv": [], "cache": []}
    found["values"], found["cores_agree"] = [], True
    for number in range(count):
        tokens = rng.randint(0, config.vocab, (1, 8) if plan.verify else (plan.batch, 1))
        next_tokens, logits, aux, *ours = runner.step(tokens.reshape(-1), positions, kept, ours)
        want, block = expect(
            weights, state, jnp.asarray(tokens, jnp.int32), jnp.asarray(positions, jnp.int32)
        )
        want_logits = np.asarray(want.logits).reshape(plan.rows, -1)
        got = logits_of(plan, logits)
        found["logits"].append(difference(got, want_logits))
        found["tokens"].append((next_tokens[: plan.rows, 0].tolist(), want_logits.argmax(-1).tolist()))
        want_aux = np.asarray(want.aux.astype(jnp.float32)).reshape(plan.rows, -1, config.hidden)
        found["aux"].append(difference(aux[0, :, : plan.rows].swapaxes(0, 1), want_aux))
        found["cores_agree"] &= bool((aux == aux[:1]).all())
        found["values"].append(got)
        kept = accepted[number] if plan.verify else 1
        state = block.after(jnp.int32(kept))
        kernel = KernelState(*ours)
        recurrent, conv = kda_state.to_reference(
            plan.kda, kda_state.KdaState(kernel.recurrent, kernel.conv, kernel.correction), kept
        )
        found["recurrent"].append(difference(recurrent, state.recurrent))
        found["conv"].append(difference(conv, np.asarray(state.conv, np.float32)))
        cache = kernel.cache[0, :, :, : plan.capacity, : config.cache_width].astype(np.float32)
        found["cache"].append(difference(cache, np.asarray(state.latent, np.float32)))
        positions = positions + kept
        kept = kept if plan.verify else 0
    return found
