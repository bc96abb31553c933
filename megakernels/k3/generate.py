"""From prompts to text: weights, tokenizer, prefill, decode, on a slice or, a small model, on a CPU."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from megakernels.common.running import interpreter, no_weights, too_large
from megakernels.common.tokens import tokenizer_of
from megakernels.k3.build import build_plan, with_ring_that_fits
from megakernels.k3.checkpoint import random_source, stored_tensors
from megakernels.k3.config import SMALL, K3Config
from megakernels.k3.dspark import VERIFY_ROWS, LookupDrafter, Sampling
from megakernels.k3.place import packed_files
from megakernels.k3.plan import round_up
from megakernels.k3.run import GREEDY, STEPS_PER_CALL, Decoder
from megakernels.k3.step_pack import pack_all
from megakernels.k3.step_plan import StepPlan
from megakernels.k3.topology import step_plan
from megakernels.k3.weights import LAYOUT, open_weights

BATCHES = (1, 2, 4, 8)
INTERPRETED_HIDDEN = 512  # what a CPU can interpret in reasonable time
CAPACITY, CACHE_TILE = 4096, 256
INTERPRETED_CAPACITY, INTERPRETED_TILE, INTERPRETED_RING = 128, 32, 4
# Runs where nothing else is given: a layer of each kind, as small as the kernel takes them.
DEMO = dataclasses.replace(
    SMALL,
    name="k3-demo",
    layers=4,
    hidden=256,
    vocab=512,
    heads=2,
    experts=8,
    active_experts=2,
    shared_width=256,
    dense_width=256,
    aux_layers=(1, 3),
)


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be generated.

    Attributes:
        prompts: Texts to continue, 1 to 8.
        count: Tokens for each.
        weights: Folder of weights; None takes random ones of a small model, on a CPU.
        capacity: Tokens the cache holds.
        sampling: How tokens are chosen.
        seed: Of the random draws.
        per_call: Decode steps in a device call.
        speculate: Draft from the text itself and verify; one prompt only.
        stop: A token that ends a text.
    """

    prompts: tuple[str, ...]
    count: int
    weights: Path | None = None
    capacity: int | None = None
    sampling: Sampling = GREEDY
    seed: int = 0
    per_call: int = STEPS_PER_CALL
    speculate: bool = False
    stop: int | None = None

    def __post_init__(self) -> None:
        """Refuse what the kernel cannot run."""
        if not 1 <= len(self.prompts) <= BATCHES[-1] or self.count < 1 or self.per_call < 1:
            raise ValueError(f"give 1 to {BATCHES[-1]} prompts, and at least one token and step per call")
        if self.speculate and len(self.prompts) > 1:
            raise ValueError("speculation runs one prompt at a time")

    @property
    def batch(self) -> int:
        """Sequences the kernel is built for."""
        return next(size for size in BATCHES if size >= len(self.prompts))


def join(coordinator: str | None, processes: int | None, process: int | None, *, asked: bool) -> None:
    """Become one of several processes, one per host, before anything else is asked of JAX.

    Args:
        coordinator: host:port of process 0; None where the slice says all.
        processes, process: How many, and which this is; with coordinator.
        asked: Several processes are wanted without a coordinator.

    Raises:
        ValueError: Half of what is needed is given, or the others are not found.
    """
    if coordinator is None and not asked:
        if processes is not None or process is not None:
            raise ValueError("--processes and --process need --coordinator")
        return
    if coordinator is not None and (processes is None or process is None):
        raise ValueError("--coordinator needs --processes and --process")
    try:
        jax.distributed.initialize(coordinator, processes, process)
    except RuntimeError as error:
        raise ValueError(f"the processes do not meet: {error}") from None


def generate(request: Request, note: Callable[[str], None]) -> list[str]:
    """Continue the prompts; of several processes the first gives the texts, the others nothing.

    Args:
        request: What.
        note: Told what is being done.

    Raises:
        CheckpointError: The weights cannot be used here.
        ValueError: Prompt and tokens do not fit the cache, or there are too few devices.
    """
    on_tpu = jax.default_backend() == "tpu"
    if not on_tpu and jax.process_count() > 1:
        raise ValueError("interpret mode runs in one process; several need a TPU slice")
    config, layout, arrays = _weights(request.weights, on_tpu)
    if not on_tpu and config.hidden > INTERPRETED_HIDDEN:
        raise too_large("k3", config.name, request.weights)
    plan = _plan(request, config, layout, on_tpu)
    builder = build_plan
    if not on_tpu:
        note(f"no TPU here: {config.name} in interpret mode on the CPU, {plan.cores} simulated cores")
        builder = partial(build_plan, interpret=interpreter())
    words = tokenizer_of(request.weights, config.vocab, note)
    decoder = Decoder(
        plan,
        arrays,
        sampling=request.sampling,
        seed=request.seed,
        builder=partial(builder, level="off"),
    )
    prompts = [words.encode(text) for text in request.prompts]
    note(f"prefill of {' + '.join(str(len(prompt)) for prompt in prompts)} tokens")
    # Sequences the kernel has room for and nobody asked for repeat the last prompt.
    firsts = decoder.prefill(prompts + prompts[-1:] * (request.batch - len(prompts)))
    began = time.perf_counter()
    if request.speculate:
        rest = [_speculate(request, decoder, prompts[0], note)]
    else:
        rest = _decode(request, decoder, firsts)
    seconds = time.perf_counter() - began
    kept = [_until(request.stop, [first, *more]) for first, more in zip(firsts, rest, strict=True)]
    kept = kept[: len(prompts)]
    if on_tpu and seconds > 0:
        made = sum(len(tokens) - 1 for tokens in kept)
        note(f"{made} tokens in {seconds:.2f} s, {made / seconds:.1f} tok/s (measured, compiling included)")
    return [words.decode(tokens) for tokens in kept] if jax.process_index() == 0 else []


def _decode(request: Request, decoder: Decoder, firsts: list[int]) -> list[list[int]]:
    """What follows the first token of each sequence; no more calls once all of them have stopped."""
    rest: list[list[int]] = [[] for _ in firsts]
    left = request.count - 1
    while left > 0 and not all(
        request.stop in (first, *more) for first, more in zip(firsts, rest, strict=True)
    ):
        steps = min(left, request.per_call)
        for more, tokens in zip(rest, decoder.decode(steps, request.per_call), strict=True):
            more.extend(tokens)
        left -= steps
    return rest


def _speculate(
    request: Request, decoder: Decoder, prompt: list[int], note: Callable[[str], None]
) -> list[int]:
    """What follows the first token, a DSpark cycle at a time."""
    drafter = LookupDrafter(list(prompt))
    made: list[int] = []
    accepted: list[int] = []
    cycles = decoder.speculate(drafter)
    while len(made) < request.count - 1 and request.stop not in made:
        tokens, count = next(cycles, ([], -1))
        if count < 0:
            raise ValueError(f"the cache is full after {len(made) + 1} tokens; give a larger --capacity")
        made += tokens
        accepted.append(count)
    if accepted:
        mean = sum(accepted) / len(accepted)
        note(f"{len(accepted)} cycles, {mean:.2f} of {VERIFY_ROWS - 1} proposals accepted in the mean")
    return made[: request.count - 1]


def _until(stop: int | None, tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(stop)] if stop in tokens else tokens


def _plan(request: Request, config: K3Config, layout: Mapping[str, int], on_tpu: bool) -> StepPlan:
    """Sizes for the machine at hand."""
    tile = CACHE_TILE if on_tpu else INTERPRETED_TILE
    capacity = round_up(request.capacity or (CAPACITY if on_tpu else INTERPRETED_CAPACITY), tile)
    sizes: dict[str, Any] = {"batch": request.batch, "capacity": capacity, "cache_tile": tile, **layout}
    plan = StepPlan(config, **sizes)
    if not on_tpu:
        # These tiles are used up before those that take their place are requested.
        held = plan.moe_in.tiles + plan.shared_out.tiles
        return dataclasses.replace(plan, ring_depth=held + INTERPRETED_RING)
    # One ring depth for both forms of the kernel, that of the one with less room.
    verify = with_ring_that_fits(dataclasses.replace(plan, batch=1, verify=True))
    decode = with_ring_that_fits(plan)
    return dataclasses.replace(plan, ring_depth=min(verify.ring_depth, decode.ring_depth))


def _weights(folder: Path | None, on_tpu: bool) -> tuple[K3Config, Mapping[str, int], dict[str, np.ndarray]]:
    if folder is not None:
        return open_weights(folder)
    if on_tpu:
        raise no_weights("k3")
    plan = step_plan(DEMO, 1)
    packed = pack_all(plan, stored_tensors(random_source(DEMO, 0)))
    layout = {name: getattr(plan, name) for name in LAYOUT}
    return DEMO, layout, packed_files(packed)
