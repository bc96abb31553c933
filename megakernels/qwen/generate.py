"""From a prompt to text: weights, tokenizer, prefill, decode, on whatever this machine has."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from megakernels.common.running import interpreter, no_weights, too_large
from megakernels.common.tokens import ByteTokens, Tokens, stop_tokens, tokenizer_of
from megakernels.qwen.build import with_ring_that_fits
from megakernels.qwen.checkpoint import random_source
from megakernels.qwen.config import SMALL, QwenConfig
from megakernels.qwen.pack import pack_all
from megakernels.qwen.plan import Plan
from megakernels.qwen.run import Decoder, packed_files
from megakernels.qwen.weights import layout_of, open_weights

# What a CPU can interpret in reasonable time.
INTERPRETED_HIDDEN = 1024
CAPACITY, INTERPRETED_CAPACITY = 4096, 256


def generate(
    prompt: str, count: int, weights: Path | None, capacity: int | None, note: Callable[[str], None]
) -> str:
    """Continue a prompt greedily.

    Args:
        prompt: Text to continue.
        count: Tokens to generate.
        weights: Folder of weights; None takes random ones of the small model, on a CPU.
        capacity: Tokens of the KV cache.
        note: Told what is being done.

    Raises:
        CheckpointError: The weights cannot be used here.
        ValueError: Prompt and tokens do not fit the cache, or there are too few devices.
    """
    on_tpu = jax.default_backend() == "tpu"
    config, layout, arrays = _weights(weights, on_tpu)
    if not on_tpu and config.hidden > INTERPRETED_HIDDEN:
        raise too_large("qwen", config.name, weights)
    sizes: dict[str, Any] = dict(layout)
    if on_tpu:
        # One ring depth for both forms of the kernel: the verify form, which prefills, has less room.
        plan = with_ring_that_fits(Plan(config=config, capacity=capacity or CAPACITY, verify=True, **sizes))
        plan = dataclasses.replace(plan, verify=False)
    else:
        note(f"no TPU here: {config.name} in interpret mode on the CPU, {sizes['cores']} simulated cores")
        size = capacity or INTERPRETED_CAPACITY
        plan = Plan(config=config, capacity=size, kv_tile=64, kv_slots=2, ring_depth=4, head_depth=2, **sizes)
    words, stop = vocabulary(weights, config, note)
    decoder = Decoder(plan, arrays, interpret=False if on_tpu else interpreter())
    tokens = words.encode(prompt)
    note(f"prefill of {len(tokens)} tokens")
    out = [decoder.prefill(tokens)]
    if count > 1:
        note(f"decoding {count - 1} more")
        out += decoder.decode(count - 1, stop=stop)
    return words.decode(until(stop, out))


def vocabulary(
    weights: Path | None, config: QwenConfig, note: Callable[[str], None]
) -> tuple[ByteTokens | Tokens, tuple[int, ...]]:
    """What turns text into tokens and back, and the tokens that end a text."""
    words = tokenizer_of(weights, config.vocab, note)
    return words, stop_tokens(weights) if weights and isinstance(words, Tokens) else ()


def until(stop: tuple[int, ...], tokens: list[int]) -> list[int]:
    """Tokens before the first that ends a text."""
    ends = [place for place, token in enumerate(tokens) if token in stop]
    return tokens[: ends[0]] if ends else tokens


def _weights(folder: Path | None, on_tpu: bool) -> tuple[QwenConfig, dict[str, Any], dict[str, np.ndarray]]:
    if folder is not None:
        return open_weights(folder)
    if on_tpu:
        raise no_weights("qwen")
    plan = Plan(config=SMALL, cores=1)
    return SMALL, layout_of(plan), packed_files(pack_all(plan, random_source(SMALL, 0).fetch))
