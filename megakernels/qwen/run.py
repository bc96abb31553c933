"""Generating text with the kernel: prefill in blocks of 8 by its verify form, then decode steps.

Prefill needs no second copy of the weights and no second program text: a block of 8 prompt tokens is a verify
step whose rows are all accepted. Several decode steps run in one device call, the state donated; between the
steps of a call nothing returns to the host.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from megakernels.build import KernelBuild
from megakernels.common import weight_files
from megakernels.common.place import everywhere, place_files, split
from megakernels.hooks import Level
from megakernels.qwen.build import build_plan
from megakernels.qwen.pack import pack_rope
from megakernels.qwen.plan import VERIFY_ROWS, WINDOW, Plan
from megakernels.qwen.refs import REPLICATED, SMEM_OPERANDS, operand_names
from megakernels.qwen.state import KernelState, after_rows, empty_state
from megakernels.qwen.weights import weight_names

STEPS_PER_CALL = 8
NO_TOKEN = -1  # stands for a token that is never chosen


class Decoder:
    """The kernel over one set of weights on the devices, for one sequence.

    Args:
        plan: Sizes; batch 1, decode form.
        arrays: Weight files' arrays as `weights.open_weights` or `packed_files` gives them.
        level: Hook level of the decode step.
        interpret: `pltpu.InterpretParams` on a CPU, False on a TPU.
    """

    def __init__(
        self, plan: Plan, arrays: Mapping[str, np.ndarray], level: Level = "off", interpret: Any = False
    ) -> None:
        self.plan = plan
        self.verify_plan = dataclasses.replace(plan, verify=True)
        self._decode = build_plan(plan, level=level, interpret=interpret)
        self._verify = build_plan(self.verify_plan, level="off", interpret=interpret)
        self.mesh = self._decode.mesh(jax.devices())
        self._weights = place_weights(plan, arrays, self.mesh)
        self._state: KernelState = empty_state(plan)
        self.position = 0
        self.token = 0
        self._prefill_block = jax.jit(self._step_of(self._verify), donate_argnums=3)
        self._steps = jax.jit(self._many, donate_argnums=1, static_argnums=4)
        self._to_decode = jax.jit(functools.partial(after_rows, self.verify_plan))

    @property
    def room(self) -> int:
        """Tokens the cache still takes."""
        return self.plan.capacity - WINDOW - VERIFY_ROWS - self.position

    def prefill(self, tokens: Sequence[int]) -> int:
        """Take in a prompt from position 0; the greedy token after it.

        Raises:
            ValueError: The prompt is empty or longer than the cache.
        """
        self.position = 0
        if not 0 < len(tokens) <= self.room:
            raise ValueError(f"a prompt of {len(tokens)} tokens; the cache takes 1 to {self.room}")
        state, accepted, next_tokens = _placed(empty_state(self.verify_plan), self.mesh), 0, None
        for first in range(0, len(tokens), VERIFY_ROWS):
            block = list(tokens[first : first + VERIFY_ROWS])
            padded = np.asarray(block + [0] * (VERIFY_ROWS - len(block)), np.int32)
            scalars = (jnp.asarray([first], jnp.int32), jnp.asarray([accepted], jnp.int32))
            next_tokens, state = self._prefill_block(padded, *scalars, state, self._weights)
            accepted = len(block)
        self._state = self._to_decode(state, jnp.int32(accepted))
        self.position = len(tokens)
        self.token = int(np.asarray(next_tokens)[accepted - 1])
        return self.token

    def decode(self, count: int, per_call: int = STEPS_PER_CALL, stop: Sequence[int] = ()) -> list[int]:
        """The next greedy tokens after the last one.

        Args:
            count: How many.
            per_call: Steps in a device call.
            stop: Tokens after which no more steps run; the one that ended it is the last of the result.

        Raises:
            ValueError: The cache has no room for them.
        """
        if count > self.room:
            raise ValueError(f"{count} tokens more; the cache has room for {self.room}")
        out: list[int] = []
        ends = np.asarray(stop or [NO_TOKEN], np.int32)
        while len(out) < count and self.token not in stop:
            steps = min(per_call, count - len(out))
            start = jnp.asarray([self.token], jnp.int32), jnp.asarray([self.position], jnp.int32)
            limits = jnp.int32(steps), ends
            tokens, made, self._state = self._steps(start, self._state, self._weights, limits, per_call)
            out += [int(t) for t in np.asarray(tokens)[: int(made), 0]]
            self.position, self.token = self.position + int(made), out[-1]
        return out

    def _step_of(self, build: KernelBuild) -> Callable[..., Any]:
        """One step over global arrays: (tokens, positions, accepted, state, weights) -> (tokens, state)."""
        function = build.global_function(self.mesh)

        def step(tokens: Any, positions: Any, accepted: Any, state: KernelState, weights: Any) -> Any:
            arrays = [array for array in state if array is not None]
            next_tokens, _, *after = function(tokens, positions, accepted, *weights, *arrays)
            return next_tokens[: tokens.shape[0], 0], KernelState(*after)

        return step

    def _many(
        self, start: tuple[Any, Any], state: KernelState, weights: Any, limits: tuple[Any, Any], room: int
    ) -> Any:
        """Decode steps from a token and its position; compiled once for any limits.

        Args:
            start: Token int32 [1], position int32 [1].
            state: Before the first step; donated.
            weights: The operands.
            limits: How many steps at most, and int32 tokens after which there are no more.
            room: Tokens of the result, at least as many as steps.

        Returns:
            Tokens int32 [room, 1], how many of them were made, the state after them.
        """
        steps, ends = limits
        step = self._step_of(self._decode)
        none_accepted = jnp.zeros(1, jnp.int32)

        def going_on(carry: Any) -> Any:
            made, token, *_ = carry
            return (made < steps) & ((made == 0) | ~jnp.any(token == ends))

        def one(carry: Any) -> Any:
            made, token, position, state, tokens = carry
            token, state = step(token, position, none_accepted, state, weights)
            return made + 1, token, position + 1, state, tokens.at[made].set(token)

        first = (jnp.int32(0), *start, state, jnp.zeros((room, 1), jnp.int32))
        made, _, _, state, tokens = lax.while_loop(going_on, one, first)
        return tokens, made, state


def _placed(state: KernelState, mesh: Mesh) -> KernelState:
    return jax.tree.map(lambda array: jax.device_put(array, split(mesh)), state)


def packed_files(packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Operands with a core axis (`pack_all`) as the arrays of weight files."""
    return weight_files.packed_files(packed, REPLICATED)


def place_weights(plan: Plan, arrays: Mapping[str, np.ndarray], mesh: Mesh) -> list[jax.Array]:
    """Weight operands on the devices, in the order the call takes them; each core gets its own files only.

    Raises:
        CheckpointError: The files of a core are not there.
    """
    placed = place_files(weight_names(plan), REPLICATED, arrays, mesh)
    placed["rope"] = jax.device_put(pack_rope(plan), everywhere(mesh))
    return [placed[name] for name in operand_names(plan) if name not in SMEM_OPERANDS]
