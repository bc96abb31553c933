"""Generating with the kernel: prefill in blocks of 8, then several decode steps per device call, or DSpark.

A block of 8 prompt tokens is a verify step whose rows are all accepted: prefill needs no second copy of the
weights and no other program. All processes of a slice run this in step; what they read back is the same on
all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from megakernels.k3.build import build_plan
from megakernels.k3.calls import At, Builder, Calls, Draw, Verified
from megakernels.k3.dspark import VERIFY_ROWS, Drafter, Sampling, TracedDrafter
from megakernels.k3.place import empty_state, place_weights
from megakernels.k3.step_plan import StepPlan
from megakernels.k3.step_refs import KernelState

STEPS_PER_CALL = 8
GREEDY = Sampling()
WITHOUT_HOOKS: Builder = partial(build_plan, level="off")


class Decoder:
    """The kernel over one set of weights on the devices, for `plan.batch` sequences.

    Args:
        plan: Sizes, decode form.
        arrays: Weight files' arrays as `weights.open_weights` or `place.packed_files` gives them.
        sampling: How tokens are chosen.
        seed: Of the random draws; greedy decoding makes none.
        builder: Makes the kernels.

    Attributes:
        tokens: The last token of each sequence, which has not been through the model yet, int32 `[batch]`.
        positions: Where they stand, int32 `[batch]`.
    """

    def __init__(
        self,
        plan: StepPlan,
        arrays: Mapping[str, np.ndarray],
        *,
        sampling: Sampling = GREEDY,
        seed: int = 0,
        builder: Builder = WITHOUT_HOOKS,
    ) -> None:
        self.plan = plan
        self._calls = Calls(plan, sampling, builder)
        self._seed, self._draws = np.uint32(seed), 0
        self._weights = place_weights(arrays, self._calls.mesh)
        self.tokens = np.zeros(plan.batch, np.int32)
        self.positions = np.zeros(plan.batch, np.int32)
        self._state: KernelState | None = None
        # While speculating: a verify state, and how many rows of its last block stand.
        self._block: tuple[KernelState, Any] | None = None

    @property
    def room(self) -> int:
        """Tokens the cache still takes."""
        return self.plan.capacity - VERIFY_ROWS - int(self.positions.max())

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Take in a prompt for each sequence, from position 0; the token after each.

        Raises:
            ValueError: There are not as many prompts as sequences, or one is empty or too long.
        """
        if len(prompts) != self.plan.batch:
            raise ValueError(f"{len(prompts)} prompts for {self.plan.batch} sequences")
        self.positions, self._state, self._block = np.zeros_like(self.positions), None, None
        for prompt in prompts:
            if not 0 < len(prompt) <= self.room:
                raise ValueError(f"a prompt of {len(prompt)} tokens; the cache takes 1 to {self.room}")
        state = empty_state(self.plan, self._calls.mesh) if self.plan.batch > 1 else None
        firsts = []
        for number, prompt in enumerate(prompts):
            block, first = self._prefill_one(prompt)
            firsts.append(first)
            if state is None:
                self._block = block
            else:
                state = self._calls.insert(state, self._calls.to_decode(*block), np.int32(number))
        self._state = state
        self.positions = np.asarray([len(prompt) for prompt in prompts], np.int32)
        self.tokens = np.asarray([int(np.asarray(first)) for first in firsts], np.int32)
        return [int(token) for token in self.tokens]

    def _prefill_one(self, prompt: Sequence[int]) -> tuple[tuple[KernelState, Any], jax.Array]:
        """The verify state after a prompt with how many rows of its last block stand, and the next token."""
        calls = self._calls
        state, found, kept = empty_state(calls.verify_plan, calls.mesh), None, 0
        for first in range(0, len(prompt), VERIFY_ROWS):
            block = list(prompt[first : first + VERIFY_ROWS])
            rows = np.asarray(block + [0] * (VERIFY_ROWS - len(block)), np.int32)
            at = At(rows, np.asarray([first], np.int32), np.int32(kept))
            found, state = calls.prefill_block(at, state, self._weights)
            kept = len(block)
        return (state, np.int32(kept)), calls.choose_row(found, np.int32(kept - 1), self._draw())

    def decode(self, count: int, per_call: int = STEPS_PER_CALL) -> list[list[int]]:
        """The next `count` tokens of each sequence.

        Raises:
            ValueError: The cache has no room for them, or nothing was prefilled.
        """
        if count > self.room:
            raise ValueError(f"{count} tokens more; the cache has room for {self.room}")
        state = self._state
        if state is None:
            if self._block is None:
                raise ValueError("there is no prompt to go on from")
            state, self._block = self._calls.to_decode(*self._block), None
        out = [np.zeros((0, self.plan.batch), np.int32)]
        for done in range(0, count, per_call):
            steps = min(per_call, count - done)
            at = At(self.tokens, self.positions, np.int32(0))
            tokens, state = self._calls.steps(
                np.int32(steps), at, self._draw(), state, self._weights, room=per_call
            )
            out.append(np.asarray(tokens)[:steps])
            self.tokens, self.positions = out[-1][-1], self.positions + np.int32(steps)
        self._state = state
        joined: list[list[int]] = np.concatenate(out).T.tolist()
        return joined

    def speculate(self, drafter: Drafter) -> Iterator[tuple[list[int], int]]:
        """Decode one sequence a cycle at a time while the cache has room.

        Yields:
            The tokens a cycle emits, the accepted proposals and the bonus, and how many proposals those were.

        Raises:
            ValueError: There are several sequences, or decode steps were made since the prefill.
        """
        state, kept = self._speculating()
        while self.room >= 0:
            anchor, position = int(self.tokens[0]), int(self.positions[0])
            rows = np.asarray([anchor, *drafter.propose(anchor, position)], np.int32)
            at = At(rows, self.positions, kept)
            found, state = self._calls.cycle(at, self._draw(), state, self._weights)
            emitted = self._advance(found, state)
            kept = np.int32(len(emitted))
            drafter.observe(rows[: len(emitted)], position, np.asarray(found.aux)[: len(emitted)])
            yield emitted, len(emitted) - 1

    def speculate_traced(
        self, drafter: TracedDrafter, memory: Any, cycles: int
    ) -> tuple[list[list[int]], Any]:
        """Several cycles in one device call, the drafter in it: the tokens of each, and the drafter's memory.

        Raises:
            ValueError: The cache may have no room for them, or see `speculate`.
        """
        state, kept = self._speculating()
        if (cycles - 1) * VERIFY_ROWS > self.room:
            raise ValueError(
                f"{cycles} cycles may take {cycles * VERIFY_ROWS} tokens more than there is room"
            )
        at = At(self.tokens, self.positions, kept)
        found, state, memory = self._calls.cycles(
            at, self._draw(), state, self._weights, memory, drafter=drafter, count=cycles
        )
        rows, accepted, bonus = (np.asarray(array) for array in found[:3])
        each = [Verified(rows[i], accepted[i], bonus[i], None) for i in range(cycles)]
        return [self._advance(one, state) for one in each], memory

    def _speculating(self) -> tuple[KernelState, Any]:
        if self._block is None:
            raise ValueError("speculation goes on from the prefill of one sequence, not from decode steps")
        return self._block

    def _advance(self, found: Verified, state: KernelState) -> list[int]:
        """Go on behind a cycle: the tokens it emits."""
        accepted, bonus = int(np.asarray(found.accepted)), int(np.asarray(found.bonus))
        self.positions = self.positions + np.int32(accepted + 1)
        self.tokens = np.asarray([bonus], np.int32)
        self._block = state, np.int32(accepted + 1)
        return [*(int(token) for token in np.asarray(found.rows)[1 : accepted + 1]), bonus]

    def _draw(self) -> Draw:
        """Random numbers not used yet."""
        self._draws += 1
        return Draw(self._seed, np.uint32(self._draws))
