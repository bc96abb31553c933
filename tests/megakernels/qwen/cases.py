"""Runs of the Qwen decode kernel in interpret mode, inside the simulator's child."""

import dataclasses
import functools
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding

from megakernels.qwen import reference
from megakernels.qwen.build import build_plan
from megakernels.qwen.config import SMALL, QwenConfig
from megakernels.qwen.pack import pack_all
from megakernels.qwen.parameters import dequantize_parameters, quantize_parameters, random_parameters
from megakernels.qwen.plan import Plan
from megakernels.qwen.run import Decoder, packed_files
from megakernels.qwen.state import KernelState, after_rows, from_reference, to_reference

EXACT = ("A_log", "dt_bias", "linear_attn.norm.weight")


@functools.cache
def parameters(config: QwenConfig, seed: int, fp8: bool = False) -> dict[str, np.ndarray]:
    """Random weights as a checkpoint holds them: bfloat16 or float8 with scales, a few vectors float32."""
    values = random_parameters(config, seed)
    if fp8:
        values = quantize_parameters(values)
    return {
        name: value
        if name.endswith(EXACT) or value.dtype != np.float32
        else np.asarray(jnp.asarray(value, jnp.bfloat16))
        for name, value in values.items()
    }


def random_state(config: QwenConfig, batch: int, capacity: int, seed: int) -> reference.ReferenceState:
    """A state as if tokens had gone by, full cache included."""
    rng = np.random.RandomState(seed)
    empty = reference.initial_state(config, batch, capacity, jnp.bfloat16)
    return jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape) * 0.3, a.dtype), empty)


def logits_of(plan: Plan, array: jax.Array) -> np.ndarray:
    """The kernel's logits `[cores, tiles, 8, 256]` as `[rows, vocab]`."""
    by_row = np.asarray(array).transpose(2, 0, 1, 3).reshape(8, plan.cores, -1)[: plan.rows, :, : plan.vocab]
    return by_row.reshape(plan.rows, -1)


class Runner:
    """The kernel of a plan, compiled, with its weights in place."""

    def __init__(self, plan: Plan, weights: dict[str, np.ndarray], dma: str, races: bool, level: str) -> None:
        interpret = pltpu.InterpretParams(
            dma_execution_mode=dma, detect_races=races, on_race="warn", uninitialized_memory="nan"
        )
        self.plan = plan
        self.build = build_plan(plan, level=level, interpret=interpret)
        mesh = self.build.mesh(jax.devices())
        self.shardings = [NamedSharding(mesh, spec) for spec in self.build.in_specs]
        packed = pack_all(plan, weights.__getitem__)
        self.weights = [
            jax.device_put(a, s)
            for a, s in zip(packed.values(), self.shardings[3 : 3 + len(packed)], strict=True)
        ]
        self.function = jax.jit(self.build.global_function(mesh))

    def step(self, state: KernelState, tokens: Any, positions: Any, accepted: int = 0) -> Any:
        """Greedy tokens [rows] of every core, logits, new state."""
        scalars = [np.asarray(v, np.int32) for v in (tokens, positions, [accepted])]
        arrays = [*scalars, *self.weights, *(a for a in state if a is not None)]
        placed = [jax.device_put(a, s) for a, s in zip(arrays, self.shardings, strict=True)]
        next_tokens, logits, *after = self.function(*placed)
        by_core = np.stack(
            [np.asarray(shard.data)[: self.plan.rows, 0] for shard in next_tokens.addressable_shards]
        )
        return by_core, logits_of(self.plan, logits), KernelState(*after)


def difference(ours: Any, theirs: Any) -> float:
    """Root mean square of the difference, relative to theirs."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))


def unexplained(tokens: np.ndarray, logits: np.ndarray, expected: np.ndarray) -> list[tuple[int, int]]:
    """(row, token) where a token is not the kernel's argmax, or clearly not the reference's.

    Of 2040 random logits the two highest are often closer than rounding: not clear is a gap below 0.05 of
    their size, a few times the error of one.
    """
    wrong = []
    for row, token in enumerate(tokens):
        size = np.sqrt(np.mean(expected[row] ** 2))
        close = expected[row].max() - expected[row, token] < 0.05 * size
        if token != logits[row].argmax() or not close:
            wrong.append((row, int(token)))
    return wrong


def decode(
    sizes: dict[str, Any],
    steps: int,
    first_position: int,
    model: dict[str, Any] | None = None,
    dma: str = "on_wait",
    detect_races: bool = False,
    level: str = "off",
    seed: int = 0,
    swap_gate_and_up: bool = False,
) -> dict[str, Any]:
    """Steps of the kernel and of the reference fed with the same tokens, from one random state."""
    config = dataclasses.replace(SMALL, **(model or {}))
    plan = Plan(config=config, **sizes)
    weights = parameters(config, seed, plan.fp8)
    packed = weights
    if swap_gate_and_up:
        other = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
        packed = {n: weights[re.sub("gate_proj|up_proj", lambda m: other[m[0]], n)] for n in weights}
    runner = Runner(plan, packed, dma, detect_races, level)
    ours_reference = jax.jit(partial(reference.decode_step, config))
    expected = random_state(config, plan.batch, plan.capacity, seed)
    state = from_reference(plan, expected)
    on_device = {name: jnp.asarray(value) for name, value in dequantize_parameters(weights).items()}
    tokens = np.random.RandomState(seed).randint(0, config.vocab, plan.batch).astype(np.int32)
    result: dict[str, Any] = {
        "tokens": [],
        "expected": [],
        "logits": [],
        "logits_error": [],
        "cores_agree": True,
        "unexplained_tokens": [],
    }
    for step in range(steps):
        # Sequences stand at different places, so their tiles end at different times.
        positions = first_position + step + 5 * np.arange(plan.batch, dtype=np.int32)
        by_core, logits, state = runner.step(state, tokens, positions)
        next_tokens, expected_logits, expected = ours_reference(on_device, expected, tokens, positions)
        result["cores_agree"] &= bool((by_core == by_core[0]).all())
        result["tokens"].append(by_core[0].tolist())
        result["expected"].append(np.asarray(next_tokens).tolist())
        result["logits"].append(logits)
        result["unexplained_tokens"] += unexplained(by_core[0], logits, np.asarray(expected_logits))
        result["logits_error"].append(difference(logits, expected_logits))
        tokens = np.asarray(next_tokens)
    back = to_reference(plan, state)
    result["state_error"] = {
        name: difference(getattr(back, name), getattr(expected, name))
        for name in ("recurrent", "conv", "keys", "values")
    }
    return result


def verify(
    sizes: dict[str, Any],
    accepted: list[int],
    first_position: int,
    model: dict[str, Any] | None = None,
    dma: str = "on_wait",
    detect_races: bool = False,
    level: str = "off",
    seed: int = 0,
) -> dict[str, Any]:
    """Verify steps; after each, accepted[i] of its 8 rows are kept."""
    config = dataclasses.replace(SMALL, **(model or {}))
    plan = Plan(config=config, verify=True, **sizes)
    weights = parameters(config, seed, plan.fp8)
    runner = Runner(plan, weights, dma, detect_races, level)
    run = jax.jit(partial(reference.forward, config))
    expected = random_state(config, 1, plan.capacity, seed)
    state = from_reference(plan, expected)
    on_device = {name: jnp.asarray(value) for name, value in dequantize_parameters(weights).items()}
    rng = np.random.RandomState(seed)
    result: dict[str, Any] = {
        "tokens": [],
        "expected": [],
        "logits_error": [],
        "state_error": [],
        "unexplained_tokens": [],
    }
    position, kept = first_position, 0
    for keep in accepted:
        tokens = rng.randint(0, config.vocab, 8).astype(np.int32)
        by_core, logits, state = runner.step(state, tokens, [position], kept)
        expected_logits, _, states = run(
            on_device, expected, tokens[None], jnp.asarray([position], jnp.int32)
        )
        result["tokens"].append(by_core[0].tolist())
        reference_logits = np.asarray(expected_logits[0])
        result["expected"].append(reference_logits.argmax(-1).tolist())
        result["logits_error"].append(difference(logits, reference_logits))
        result["unexplained_tokens"] += unexplained(by_core[0], logits, reference_logits)
        for row in range(8):
            back = to_reference(plan, after_rows(plan, state, row + 1))
            names = ("recurrent", "conv", "keys", "values")
            result["state_error"].append(
                max(difference(getattr(back, n), getattr(states[row], n)) for n in names)
            )
        expected, kept = states[keep - 1], keep
        position += keep
    return result


def generate(
    sizes: dict[str, Any], model: dict[str, Any], prompt: int, count: int, per_call: int
) -> dict[str, Any]:
    """Greedy tokens after a random prompt: the decoder's (verify blocks, then steps) and the reference's."""
    config = dataclasses.replace(SMALL, **model)
    plan = Plan(config=config, **sizes)
    weights = parameters(config, 0)
    tokens = np.random.RandomState(1).randint(0, config.vocab, prompt).tolist()
    interpret = pltpu.InterpretParams(dma_execution_mode="on_wait", uninitialized_memory="nan")
    decoder = Decoder(plan, packed_files(pack_all(plan, weights.__getitem__)), interpret=interpret)
    ours = [decoder.prefill(tokens), *decoder.decode(count - 1, per_call)]
    on_device = {name: jnp.asarray(value) for name, value in weights.items()}
    state = reference.initial_state(config, 1, plan.capacity, jnp.bfloat16)
    prefill, step = (jax.jit(partial(f, config)) for f in (reference.prefill, reference.decode_step))
    logits, state = prefill(on_device, state, jnp.asarray([tokens]))
    theirs = [int(logits[0, -1].argmax())]
    for i in range(count - 1):
        at = jnp.asarray([prompt + i], jnp.int32)
        token, _, state = step(on_device, state, jnp.asarray([theirs[-1]], jnp.int32), at)
        theirs.append(int(token[0]))
    return {"ours": ours, "theirs": theirs}
