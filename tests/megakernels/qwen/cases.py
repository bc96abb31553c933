"""Runs of the Qwen decode kernel in interpret mode, inside the simulator's child."""

import dataclasses
import functools
import re
from collections.abc import Callable
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
from megakernels.qwen.plan import WINDOW_ALIGN, Plan
from megakernels.qwen.run import Decoder, packed_files
from megakernels.qwen.state import KernelState, after_rows, from_reference, to_reference

# Most of a test is XLA's work on a program that then runs for a second or two.
QUICK_COMPILE = {"xla_backend_optimization_level": 0}
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
    """The kernel of a plan, compiled."""

    def __init__(self, plan: Plan, dma: str, races: bool, level: str) -> None:
        interpret = pltpu.InterpretParams(
            dma_execution_mode=dma, detect_races=races, on_race="warn", uninitialized_memory="nan"
        )
        self.plan = plan
        self.build = build_plan(plan, level=level, interpret=interpret)
        mesh = self.build.mesh(jax.devices())
        self.shardings = [NamedSharding(mesh, spec) for spec in self.build.in_specs]
        self.function = jax.jit(self.build.global_function(mesh), compiler_options=QUICK_COMPILE)
        self.weights: list[jax.Array] = []

    def take(self, weights: dict[str, np.ndarray]) -> None:
        """Put weights in place."""
        packed = pack_all(self.plan, weights.__getitem__).values()
        self.weights = [jax.device_put(a, s) for a, s in zip(packed, self.shardings[3:], strict=False)]

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


runner = functools.cache(Runner)


def difference(ours: Any, theirs: Any) -> float:
    """Root mean square of the difference, relative to theirs."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))


HEAD = "lm_head.weight"
GAP = 0.1  # of the logits' size: how far every greedy choice is ahead of the next token


def with_clear_choices(
    weights: dict[str, np.ndarray], logits_of_run: Callable[[dict[str, np.ndarray]], np.ndarray]
) -> dict[str, np.ndarray]:
    """The weights with an lm_head changed by a few percent, so that no greedy choice of a run is a near tie.

    The best two of a thousand random logits are closer than rounding once in some thirty choices, so equal
    tokens could not be demanded; those of a trained model stand apart. Where a choice is close the rows of
    the runners-up shrink, or that of the winner grows where they win elsewhere.
    """
    head = np.asarray(weights[HEAD], np.float32)
    for _ in range(100):
        logits = logits_of_run(weights)
        limit = logits.max(-1, keepdims=True) - GAP * np.sqrt(np.mean(logits**2))
        winners = logits.argmax(-1)
        rivals = logits > limit
        rivals[np.arange(len(winners)), winners] = False
        if not rivals.any():
            return weights
        losers = np.setdiff1d(np.nonzero(rivals.any(0))[0], winners)
        head[losers] *= 1 - GAP / 2
        head[winners[rivals[:, winners].any(-1)]] *= 1 + GAP / 2
        weights = weights | {HEAD: np.asarray(jnp.asarray(head, jnp.bfloat16))}
    raise AssertionError("no lm_head with clear choices found")


@functools.cache
def stepper(config: QwenConfig, rounding: reference.KernelRounding | None) -> Any:
    """The reference, compiled."""
    return jax.jit(partial(reference.forward, config, rounding=rounding), compiler_options=QUICK_COMPILE)


_placed: dict[tuple[int, ...], tuple[Any, dict[str, jax.Array]]] = {}


def on_device(weights: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Weights as the reference takes them; if only the lm_head is another than before, it alone is placed."""
    rest = {name: value for name, value in weights.items() if name != HEAD}
    key = tuple(id(value) for value in rest.values())
    if key not in _placed:  # the arrays are kept beside the copies: an id is good while its array lives
        _placed.clear()
        _placed[key] = rest, {n: jnp.asarray(v) for n, v in dequantize_parameters(rest).items()}
    return _placed[key][1] | {HEAD: jnp.asarray(weights[HEAD])}


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of the reference: what it was fed and what it gave."""

    tokens: np.ndarray  # int32 [batch] or [8]
    positions: np.ndarray  # int32 [batch]
    accepted: int  # rows of the step before that are kept: verify only
    kept: int  # rows of this step that are kept
    logits: np.ndarray  # [rows, vocab]
    states: list[reference.ReferenceState]  # after every row


def reference_run(
    plan: Plan,
    start: reference.ReferenceState,
    first_position: int,
    keep: list[int],
    seed: int,
    published: bool = False,
) -> Callable[[dict[str, np.ndarray]], list[Step]]:
    """Weights -> steps of the reference. Decode feeds its own greedy tokens; verify takes random ones.

    keep: one entry per step; for verify how many of its rows are kept.
    published: round as the published model does, not as the kernel.
    """
    rounding = None if published else reference.KernelRounding(plan.cores, plan.kv_tile, WINDOW_ALIGN)
    forward = stepper(plan.config, rounding)
    if rounding:
        start = dataclasses.replace(start, conv=start.conv.astype(jnp.float32))

    def run(weights: dict[str, np.ndarray]) -> list[Step]:
        placed, state, steps = on_device(weights), start, []
        rng = np.random.RandomState(seed)
        tokens = rng.randint(0, plan.vocab * plan.cores, plan.rows).astype(np.int32)
        # Sequences stand at different places, so their tiles end at different times.
        positions = first_position + 5 * np.arange(plan.batch, dtype=np.int32)
        accepted = 0
        for rows in keep:
            shaped = tokens[None] if plan.verify else tokens[:, None]
            logits, _, states = forward(placed, state, shaped, positions)
            logits = np.asarray(logits).reshape(plan.rows, -1)
            steps.append(Step(tokens, positions, accepted, rows, logits, states))
            state, positions = states[rows - 1], positions + rows
            tokens = logits.argmax(-1).astype(np.int32)
            if plan.verify:
                tokens, accepted = rng.randint(0, plan.vocab * plan.cores, plan.rows).astype(np.int32), rows
        return steps

    return run


NAMES = ("recurrent", "conv", "keys", "values")


def run(
    sizes: dict[str, Any],
    first_position: int,
    steps: int = 0,
    accepted: list[int] | None = None,
    model: dict[str, Any] | None = None,
    dma: str = "on_wait",
    detect_races: bool = False,
    level: str = "off",
    seed: int = 0,
    swap_gate_and_up: bool = False,
    faults: tuple[str, ...] = (),
    published: bool = False,
    compared_rows: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Steps of the kernel and of the reference fed with the same tokens, from one random state.

    Args:
        sizes: Fields of the plan.
        first_position: Of the first sequence at the first step.
        steps: How many decode steps, or
        accepted: for verify, how many rows are kept of each of its steps.
        model: Fields of the config that differ from the small one's.
        dma: When the interpreter copies.
        detect_races: Look for races.
        level: Hook level.
        seed: Of state and tokens.
        swap_gate_and_up: Give the kernel wrong weights.
        faults: Weights to change in the reference alone, by the end of their names.
        published: Compare with the reference that rounds as the published model does, too.
        compared_rows: Of a verify step, after which rows states are compared; first, kept and last if empty.
    """
    config = dataclasses.replace(SMALL, **(model or {}))
    plan = Plan(config=config, verify=accepted is not None, **sizes)
    start = random_state(config, plan.batch, plan.capacity, seed)
    expect = reference_run(plan, start, first_position, accepted or [1] * steps, seed)
    weights = parameters(config, 0, plan.fp8)
    weights = with_clear_choices(weights, lambda w: np.concatenate([s.logits for s in expect(w)]))
    kernel = runner(plan, dma, detect_races, level)
    kernel.take(with_gate_and_up_swapped(weights) if swap_gate_and_up else weights)
    state = from_reference(plan, start)
    expected = expect(weights)
    result: dict[str, Any] = {
        "tokens": [],
        "expected": [step.logits.argmax(-1).tolist() for step in expected],
        "logits": [],
        "row_errors": [],
        "state_errors": [],
        "cores_agree": True,
    }
    for step in expected:
        by_core, logits, state = kernel.step(state, step.tokens, step.positions, step.accepted)
        result["cores_agree"] &= bool((by_core == by_core[0]).all())
        result["tokens"].append(by_core[0].tolist())
        result["logits"].append(logits)
        result["row_errors"].append([difference(a, b) for a, b in zip(logits, step.logits, strict=True)])
        if plan.verify:
            for rows in compared_rows or (1, step.kept, len(step.states)):
                theirs = step.states[rows - 1]
                result["state_errors"].append(state_error(plan, after_rows(plan, state, rows), theirs))
    if not plan.verify:
        result["state_errors"].append(state_error(plan, state, expected[-1].states[0]))
    if published:
        others = reference_run(plan, start, first_position, accepted or [1] * steps, seed, published=True)(
            weights
        )
        result["published_tokens"] = [step.logits.argmax(-1).tolist() for step in others]
        result["published_error"] = max(
            difference(ours, step.logits) for ours, step in zip(result["logits"], others, strict=True)
        )
    result["faults"] = {}
    for fault in faults:
        wrong = expect(with_fault(weights, fault))
        result["faults"][fault] = [
            [difference(a, b) for a, b in zip(ours, step.logits, strict=True)]
            for ours, step in zip(result["logits"], wrong, strict=True)
        ]
    return result


def state_error(plan: Plan, state: KernelState, expected: reference.ReferenceState) -> float:
    """The worst of a kernel state's arrays against the reference's."""
    back = to_reference(plan, state)
    return max(difference(getattr(back, name), getattr(expected, name)) for name in NAMES)


def with_gate_and_up_swapped(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every FFN's gate where its up should be and the other way round."""
    other = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
    return {n: weights[re.sub("gate_proj|up_proj", lambda m: other[m[0]], n)] for n in weights}


def with_fault(weights: dict[str, np.ndarray], fault: str) -> dict[str, np.ndarray]:
    """One small vector of one layer a little wrong: its first 16 elements up by a twentieth."""
    name = next(name for name in weights if name.endswith(fault))
    value = np.array(weights[name], np.float32)
    value.reshape(-1)[:16] += 0.05
    return weights | {name: value.astype(weights[name].dtype)}


def generate(
    sizes: dict[str, Any], model: dict[str, Any], prompt: int, count: int, per_call: int
) -> dict[str, Any]:
    """Greedy tokens after a random prompt: the decoder's (verify blocks, then steps) and the reference's."""
    config = dataclasses.replace(SMALL, **model)
    plan = Plan(config=config, **sizes)
    tokens = np.random.RandomState(1).randint(0, config.vocab, prompt).tolist()
    prefill, step = (jax.jit(partial(f, config)) for f in (reference.prefill, reference.decode_step))

    def logits_of_run(weights: dict[str, np.ndarray]) -> np.ndarray:
        placed = on_device(weights)
        state = reference.initial_state(config, 1, plan.capacity, jnp.bfloat16)
        after, state = prefill(placed, state, jnp.asarray([tokens]))
        chosen = [after[0, -1]]
        for i in range(count - 1):
            at = jnp.asarray([prompt + i], jnp.int32)
            token = jnp.argmax(chosen[-1]).astype(jnp.int32)[None]
            _, logits, state = step(placed, state, token, at)
            chosen.append(logits[0])
        return np.stack(chosen)

    weights = with_clear_choices(parameters(config, 0), logits_of_run)
    interpret = pltpu.InterpretParams(dma_execution_mode="on_wait", uninitialized_memory="nan")
    decoder = Decoder(plan, packed_files(pack_all(plan, weights.__getitem__)), interpret=interpret)
    ours = [decoder.prefill(tokens), *decoder.decode(count - 1, per_call)]
    theirs = logits_of_run(weights).argmax(-1).tolist()
    # Once more, ended by a token in the middle of the second call.
    end = theirs[per_call + 2]
    first = decoder.prefill(tokens)
    stopped = [first, *decoder.decode(count - 1, per_call, stop=[end])]
    return {
        "ours": ours,
        "theirs": theirs,
        "stopped_by": end,
        "stopped": stopped,
        "steps_after_stop": decoder.position - len(tokens),
    }
