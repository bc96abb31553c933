"""The decode loop around the kernel in interpret mode, inside the simulator's child."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from megakernels.k3 import reference
from megakernels.k3.build import build_plan
from megakernels.k3.checkpoint import random_source, stored_tensors
from megakernels.k3.config import SMALL, K3Config
from megakernels.k3.dspark import ScriptedDrafter
from megakernels.k3.place import packed_files
from megakernels.k3.run import Decoder
from megakernels.k3.state import initial_state
from megakernels.k3.step_pack import pack_all
from megakernels.k3.step_plan import StepPlan

# Every expert is visited by every row: a router that rounds otherwise changes a token's weight a little,
# where it would change the token if it chose another expert.
CONFIG = dataclasses.replace(
    SMALL,
    name="k3-loop",
    layers=3,
    hidden=256,
    vocab=128,
    heads=2,
    mla_period=2,
    experts=4,
    active_experts=4,
    shared_width=256,
    dense_width=256,
    aux_layers=(1,),
)


def greedy(config: K3Config, stored: dict[str, np.ndarray], prompt: list[int], count: int) -> list[int]:
    """The reference's tokens after a prompt."""
    weights = reference.load(config, stored, jnp.bfloat16)
    forward = jax.jit(functools.partial(reference.forward, config))
    length = len(prompt) + count
    state = initial_state(config, 1, length, jnp.bfloat16)
    text = list(prompt)
    while len(text) < length:
        padded = text + [0] * (length - len(text))
        out, _ = forward(weights, state, jnp.asarray([padded], jnp.int32), jnp.zeros(1, jnp.int32))
        text.append(int(out.logits[0, len(text) - 1].argmax()))
    return text[len(prompt) :]


def generate(cores: int, prompt: int, right: tuple[int, ...], count: int, seed: int = 0) -> dict[str, Any]:
    """Prefill, cycles with so many proposals right, then `count` decode steps; beside the reference."""
    stored = stored_tensors(random_source(CONFIG, seed))
    plan = StepPlan(CONFIG, members=cores, capacity=64, cache_tile=32, ring_depth=8)
    interpret = pltpu.InterpretParams(dma_execution_mode="on_wait", uninitialized_memory="nan")
    decoder = Decoder(
        plan,
        packed_files(pack_all(plan, stored)),
        builder=functools.partial(build_plan, level="off", interpret=interpret),
    )
    rows = np.random.RandomState(seed).randint(0, CONFIG.vocab, prompt).tolist()
    total = 1 + sum(n + 1 for n in right) + count
    theirs = greedy(CONFIG, stored, rows, total)
    ours = decoder.prefill([rows])
    drafter = ScriptedDrafter(rows + theirs, right, CONFIG.vocab)
    accepted = []
    for _, (tokens, n) in zip(right, decoder.speculate(drafter), strict=False):
        ours += tokens
        accepted.append(n)
    if count:
        ours += decoder.decode(count, per_call=2)[0]
    return {"ours": ours, "theirs": theirs, "accepted": accepted}
