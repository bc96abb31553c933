"""The device calls of a decode loop: prefill a block, several decode steps, one or several DSpark cycles.

The state is donated to every call that changes it. Even so XLA copies it into and out of a call, though not
between the steps of one: results of a kernel that talks to other cores may not share memory with the
program's arguments. Hence several steps or cycles per call. What the host reads back is put on every device,
so that every process of a slice can read it.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from megakernels.build import KernelBuild
from megakernels.common.place import everywhere
from megakernels.k3.dspark import Sampling, TracedDrafter, accept_said, accept_sampled
from megakernels.k3.place import after_rows, all_logits, insert, of_any_core, slice_mesh
from megakernels.k3.step_plan import StepPlan
from megakernels.k3.step_refs import KernelState

# Makes a kernel of a plan; `build.build_plan` with hooks and interpreter set.
type Builder = Callable[[StepPlan], KernelBuild]


class At(NamedTuple):
    """Where a step stands. int32 each.

    tokens: `[rows]`. positions: `[batch]`, of each sequence's first row. kept: Rows of the verify block
    before that stand, a scalar; 0 for decode steps.
    """

    tokens: Any
    positions: Any
    kept: Any


class Draw(NamedTuple):
    """Names random numbers: a seed, and which draw of it, uint32."""

    seed: Any
    number: Any

    @property
    def key(self) -> jax.Array:
        """As jax.random takes it."""
        return jax.random.fold_in(jax.random.key(self.seed), self.number)


class Rows(NamedTuple):
    """What a step gives: the likeliest tokens int32 `[rows]`; logits and aux as the kernel leaves them."""

    said: jax.Array
    logits: jax.Array
    aux: jax.Array


class Verified(NamedTuple):
    """What a cycle gives: the rows that ran, int32 `[8]`; how many proposals stand; the bonus token; aux.

    aux: float32 `[8, aux layers, hidden]`; None after several cycles.
    """

    rows: Any
    accepted: Any
    bonus: Any
    aux: Any


@dataclass(frozen=True)
class Calls:
    """Device calls of one plan and way of sampling, compiled when first used.

    Attributes:
        plan: Sizes, decode form.
        sampling: How tokens are chosen.
        builder: Makes the kernels.
    """

    plan: StepPlan
    sampling: Sampling
    builder: Builder

    @cached_property
    def verify_plan(self) -> StepPlan:
        """The plan of verify steps, of one sequence."""
        return dataclasses.replace(self.plan, batch=1, verify=True)

    @cached_property
    def verify_build(self) -> KernelBuild:
        """The kernel of verify steps."""
        return self.builder(self.verify_plan)

    @cached_property
    def decode_build(self) -> KernelBuild:
        """The kernel of decode steps."""
        return self.builder(self.plan)

    @cached_property
    def mesh(self) -> Mesh:
        """The devices."""
        return slice_mesh(self.verify_build)

    @cached_property
    def prefill_block(self) -> Callable[..., tuple[Rows, KernelState]]:
        """(at, state, weights): a verify step whose rows are given."""
        return jax.jit(partial(self._step, self.verify_build), donate_argnums=1)

    @cached_property
    def choose_row(self) -> Callable[..., jax.Array]:
        """(rows of a verify step, row, draw): the token after that row."""

        def choose(found: Rows, row: Any, draw: Draw) -> jax.Array:
            one = Rows(found.said[row][None], found.logits[:, :, row][:, :, None], found.aux)
            return self._readable(self._choose(dataclasses.replace(self.plan, batch=1), one, draw.key)[0])

        return jax.jit(choose)

    @cached_property
    def to_decode(self) -> Callable[..., KernelState]:
        """(verify state, rows that stand): the decode state of one sequence."""
        return jax.jit(partial(after_rows, self.verify_plan))

    @cached_property
    def insert(self) -> Callable[..., KernelState]:
        """(state, decode state of one sequence, its number): the state with that sequence in it."""
        return jax.jit(insert, donate_argnums=0)

    @cached_property
    def steps(self) -> Callable[..., tuple[jax.Array, KernelState]]:
        """(number of steps, at, draw, state, weights, room=): tokens int32 `[room, batch]`, and the state.

        Compiled once for any number of steps up to `room`; tokens after theirs are 0.
        """

        def many(count: Any, at: At, draw: Draw, state: KernelState, weights: Any, *, room: int) -> Any:
            def one(number: Any, carry: Any) -> Any:
                at, state, out = carry
                found, state = self._step(self.decode_build, at, state, weights)
                tokens = self._choose(self.plan, found, jax.random.fold_in(draw.key, number))
                return At(tokens, at.positions + 1, at.kept), state, out.at[number].set(tokens)

            out = jnp.zeros((room, self.plan.batch), jnp.int32)
            _, state, out = lax.fori_loop(0, count, one, (at, state, out))
            return self._readable(out), state

        return jax.jit(many, static_argnames="room", donate_argnums=3)

    @cached_property
    def cycle(self) -> Callable[..., tuple[Verified, KernelState]]:
        """(at, draw, state, weights): one cycle over an anchor and its proposals, and the state."""

        def one(at: At, draw: Draw, state: KernelState, weights: Any) -> Any:
            found, state = self._verify(at, draw.key, state, weights)
            return jax.tree.map(self._readable, found), state

        return jax.jit(one, donate_argnums=2)

    @cached_property
    def cycles(self) -> Callable[..., Any]:
        """(at, draw, state, weights, memory, drafter=, count=): several cycles with the drafter among them.

        `at.tokens` is the anchor alone. Gives what the cycles gave, stacked; the state; the drafter's memory.
        """

        def many(
            at: At,
            draw: Draw,
            state: KernelState,
            weights: Any,
            memory: Any,
            *,
            drafter: TracedDrafter,
            count: int,
        ) -> Any:
            def one(carry: Any, number: Any) -> Any:
                at, state, memory = carry
                proposals = drafter.propose(memory, at.tokens[0], at.positions[0])
                now = at._replace(tokens=jnp.concatenate([at.tokens, proposals]))
                key = jax.random.fold_in(draw.key, number)
                found, state = self._verify(now, key, state, weights)
                kept = found.accepted + 1
                memory = drafter.observe(memory, found.rows, kept, at.positions[0], found.aux)
                after = At(found.bonus[None], at.positions + kept, kept)
                return (after, state, memory), found._replace(aux=None)

            (_, state, memory), found = lax.scan(one, (at, state, memory), jnp.arange(count))
            return jax.tree.map(self._readable, found), state, memory

        return jax.jit(many, static_argnames=("drafter", "count"), donate_argnums=2)

    def _verify(
        self, at: At, key: jax.Array, state: KernelState, weights: Any
    ) -> tuple[Verified, KernelState]:
        """Run an anchor and its proposals, and accept what stands."""
        found, state = self._step(self.verify_build, at, state, weights)
        rows = jnp.asarray(at.tokens)
        if self.sampling.temperature == 0:
            accepted, bonus = accept_said(found.said, rows[1:])
        else:
            probabilities = self.sampling.probabilities(all_logits(self.verify_plan, self.mesh, found.logits))
            accepted, bonus = accept_sampled(key, probabilities, rows[1:])
        aux = of_any_core(self.mesh, found.aux)  # the residual stream is the same on every core
        return Verified(rows, accepted, bonus, aux.swapaxes(0, 1)), state

    def _step(self, build: KernelBuild, at: At, state: KernelState, weights: Any) -> tuple[Rows, KernelState]:
        """One step over global arrays."""
        function = build.global_function(self.mesh)
        arrays = [array for array in state if array is not None]
        accepted = jnp.asarray(at.kept, jnp.int32)[None]
        said, logits, aux, *after = function(at.tokens, at.positions, accepted, *weights, *arrays)
        return Rows(said[: at.tokens.shape[0], 0], logits, aux), KernelState(*after)

    def _choose(self, plan: StepPlan, found: Rows, key: jax.Array) -> jax.Array:
        """The next token of each row, int32 `[rows]`."""
        if self.sampling.temperature == 0:
            return found.said
        probabilities = self.sampling.probabilities(all_logits(plan, self.mesh, found.logits))
        return jax.random.categorical(key, jnp.log(probabilities)).astype(jnp.int32)

    def _readable(self, value: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(value, everywhere(self.mesh))
