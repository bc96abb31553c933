"""A kernel that costs nothing, with the operands, results and state of the real one; also run by path.

Its token depends on everything a real one's would: on the weights of every rank, on the recurrent state, the
convolution's last inputs, and the cached tokens, all in the real layout. So a decode loop that loses, doubles
or misplaces any of them gives other tokens than `expected`, which is plain Python.

    python stand_in.py COORDINATOR PROCESSES PROCESS    prints what a slice of several processes generates
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from megakernels.build import KernelBuild
from megakernels.k3.build import operand_shapes, state_shapes
from megakernels.k3.config import SMALL
from megakernels.k3.step_plan import StepPlan
from megakernels.k3.step_refs import AXIS, REPLICATED, KernelState
from megakernels.k3.weights import WEIGHTS, file_name

CONFIG = dataclasses.replace(
    SMALL,
    name="k3-stand-in",
    layers=3,
    hidden=256,
    vocab=256,
    heads=4,
    experts=4,
    mla_period=2,
    aux_layers=(1,),
)
TAPS = CONFIG.conv_taps - 1
GAIN = 0.5  # of the recurrent state per token


def plan(cores: int, batch: int = 1, hosts: int = 1) -> StepPlan:
    return StepPlan(CONFIG, hosts=hosts, members=cores // hosts, batch=batch, capacity=64, cache_tile=32)


def files(p: StepPlan, ranks: Sequence[int]) -> dict[str, np.ndarray]:
    """Weights of some ranks: zeros, but every operand's first element says which it is and whose."""
    shapes = operand_shapes(p)
    out = {}
    for number, name in enumerate(WEIGHTS):
        shape = getattr(shapes, name)
        for rank in ranks:
            whole = name in REPLICATED
            value = np.zeros(shape.shape if whole else shape.shape[1:], np.dtype(shape.dtype))
            value.reshape(-1)[0] = number if whole else number + rank % 3
            out[file_name(name, rank)] = value
    return out


def weight_sum(p: StepPlan) -> int:
    return sum(
        number if name in REPLICATED else sum(number + rank % 3 for rank in range(p.cores))
        for number, name in enumerate(WEIGHTS)
    )


def expected(p: StepPlan, prompt: Sequence[int], count: int) -> list[int]:
    """The tokens after a prompt."""
    text, state = list(prompt), np.float32(0)  # rounded as on the device
    for token in prompt[:-1]:
        state = np.float32(GAIN) * state + np.float32(token)
    while len(text) < len(prompt) + count:
        state = np.float32(GAIN) * state + np.float32(text[-1])
        last = [0] * TAPS + text[:-1]
        mixed = sum((i + 1) * t for i, t in enumerate(last[-TAPS:]))
        text.append(int(state) + mixed + sum(text) + weight_sum(p))
        text[-1] %= CONFIG.vocab
    return text[len(prompt) :]


def builder(p: StepPlan) -> KernelBuild:
    """The stand-in for a plan."""
    c, names = p.config, WEIGHTS
    shapes = state_shapes(p)

    def on_one_core(tokens: Any, positions: Any, accepted: Any, *arrays: Any) -> Any:
        weights, state = arrays[: len(names)], KernelState(*arrays[len(names) :])
        firsts = {n: w.reshape(-1)[0].astype(jnp.float32) for n, w in zip(names, weights, strict=True)}
        whole = sum(firsts.pop(name) for name in names if name in REPLICATED)
        total = whole + lax.psum(sum(firsts.values()), AXIS)
        step = verify if p.verify else decode
        # Heads are the same everywhere; the last of each rank is looked at.
        said, state = step(tokens, positions, accepted[0], total, state)
        rank = lax.axis_index(AXIS)
        column = rank * p.vocab + jnp.arange(p.lm_head.tiles * p.lm_head.columns)
        logits = jnp.where(column[None] == said[:, None], 9.0, 0.0)
        logits = jnp.pad(logits, ((0, 8 - p.rows), (0, 0))).reshape(8, p.lm_head.tiles, -1).swapaxes(0, 1)
        next_tokens = jnp.zeros((8, 128), jnp.int32).at[: p.rows].set(said[:, None])
        aux = jnp.zeros((1, len(c.aux_layers), 8, c.hidden)).at[0, :, : p.rows].set(said[:, None])
        return next_tokens, logits[None], aux, *(s for s in state if s is not None)

    def token(recurrent: Any, past: Any, cached: Any, position: Any, total: Any) -> Any:
        seen = jnp.sum(jnp.where(jnp.arange(cached.shape[0]) <= position, cached, 0.0))
        mixed = sum((i + 1) * past[i] for i in range(TAPS))
        return (jnp.floor(recurrent) + mixed + seen + total).astype(jnp.int32) % c.vocab

    def decode(tokens: Any, positions: Any, kept: Any, total: Any, state: KernelState) -> Any:
        entered = tokens.astype(jnp.float32)
        recurrent = GAIN * state.recurrent[0, -1, :, -1, 0, 0] + entered
        past = state.conv[0, -1, :, :, -1]  # [taps - 1, batch]
        rows = jnp.arange(p.batch)
        cache = state.cache.at[:, :, rows, positions].set(entered[:, None].astype(state.cache.dtype))
        cached = cache[0, -1, :, :, 0].astype(jnp.float32)
        said = jnp.stack(
            [token(recurrent[b], past[:, b], cached[b], positions[b], total) for b in range(p.batch)]
        )
        conv = jnp.concatenate([past[1:], entered[None]])
        return said, KernelState(
            jnp.broadcast_to(recurrent[:, None, None, None], state.recurrent.shape),
            jnp.broadcast_to(conv[None, None, :, :, None], state.conv.shape),
            cache,
        )

    def verify(tokens: Any, positions: Any, kept: Any, total: Any, state: KernelState) -> Any:
        entered = tokens.astype(jnp.float32)
        heads = p.kda.heads
        recurrent = state.recurrent[0, -1, 0, -1, 0, 0]
        key, decay, error = (state.correction[0, -1, i * heads, :, 0] for i in range(3))
        for row in range(8):
            recurrent = jnp.where(row < kept, decay[row] * recurrent + key[row] * error[row], recurrent)
        past = lax.dynamic_slice_in_dim(state.conv[0, -1, 0, :, 0], kept, TAPS)
        cache = lax.dynamic_update_slice_in_dim(
            state.cache,
            jnp.broadcast_to(
                entered[:, None].astype(state.cache.dtype), (*state.cache.shape[:3], 8, p.mla.cache_width)
            ),
            positions[0],
            axis=3,
        )
        cached = cache[0, -1, 0, :, 0].astype(jnp.float32)
        history, now, said = jnp.concatenate([past, entered]), recurrent, []
        for row in range(8):
            now = GAIN * now + entered[row]
            said.append(token(now, history[row : row + TAPS], cached, positions[0] + row, total))
        kinds = jnp.stack([jnp.ones(8), jnp.full(8, GAIN), entered])  # key, decay, error
        correction = jnp.repeat(kinds, heads, axis=0)[None, None, :, :, None]
        conv = jnp.zeros(state.conv.shape).at[:, :, :, : TAPS + 8].set(history[None, None, None, :, None])
        return jnp.stack(said), KernelState(
            jnp.broadcast_to(recurrent, state.recurrent.shape),
            conv,
            cache,
            jnp.broadcast_to(correction, state.correction.shape),
        )

    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    states = [s for s in shapes if s is not None]
    return KernelBuild(
        name="stand-in",
        function=on_one_core,
        arguments=(),
        in_specs=(
            *[everywhere] * 3,
            *(everywhere if n in REPLICATED else split for n in names),
            *[split] * len(states),
        ),
        out_specs=(everywhere, split, split, *[split] * len(states)),
        mesh_axes={AXIS: p.cores},
        facts={},
    )


def main(coordinator: str, processes: str, process: str) -> None:
    """One process of a slice of two cores each: decode and speculate, print the tokens."""
    from megakernels.k3.dspark import Sampling, ScriptedDrafter
    from megakernels.k3.generate import join
    from megakernels.k3.run import Decoder

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    join(coordinator, int(processes), int(process), asked=False)
    p = plan(2 * int(processes), hosts=int(processes))
    own = [rank for rank in range(p.cores) if rank // 2 == int(process)]
    # So cool that only the likeliest token is drawn.
    decoder = Decoder(p, files(p, own), builder=builder, sampling=Sampling(0.2, 0.9))
    prompt = list(range(5, 16))
    out = decoder.prefill([prompt])
    text = prompt + expected(p, prompt, 20)
    cycles = decoder.speculate(ScriptedDrafter(text, (3, 0, 7), CONFIG.vocab))
    for _ in range(3):
        out += next(cycles)[0]
    out += decoder.decode(3, per_call=2)[0]
    print(json.dumps(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
