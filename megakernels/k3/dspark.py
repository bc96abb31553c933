"""DSpark speculative decoding: draft seven tokens, verify them in one step, keep what the model agrees with.

A verify step runs 8 consecutive rows: the anchor, which is the last committed token and has not been through
the model yet, and 7 proposals. Row k says which token follows the first k + 1 of them. The longest prefix of
proposals that the model accepts is committed, n of them, and one more token, the bonus, that row n itself
yields: it is the next anchor. The sequence's state is rolled to what it was after row n.

How long the accepted prefix is changes how fast the text comes, never which text: with greedy decoding the
tokens are those of one-by-one decoding, with sampling their distribution is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from megakernels.k3.reference import Output
from megakernels.k3.state import Block, State

PROPOSALS = 7
VERIFY_ROWS = PROPOSALS + 1

# Runs rows of one sequence: state, tokens int32 [1, rows], positions int32 [1] -> output and block.
Verify = Callable[[State, jax.Array, jax.Array], tuple[Output, Block]]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen from logits. temperature 0: the likeliest, top_p then has no say.

    Attributes:
        temperature: Logits are divided by it.
        top_p: Only the likeliest tokens that together have this probability are considered.

    Raises:
        ValueError: A value is out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ValueError("temperature must be at least 0, top_p above 0 and at most 1")

    def probabilities(self, logits: jax.Array) -> jax.Array:
        """What tokens are drawn from, float32 `[..., vocab]`, for logits of that shape."""
        if self.temperature == 0:
            return jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1], dtype=jnp.float32)
        probabilities = jax.nn.softmax(logits.astype(jnp.float32) / self.temperature, -1)
        if self.top_p == 1:
            return probabilities
        falling = -jnp.sort(-probabilities, -1)
        # A token stays when those likelier than it do not reach top_p yet; the likeliest always does.
        before = jnp.cumsum(falling, -1) - falling
        smallest = jnp.min(jnp.where(before < self.top_p, falling, jnp.inf), -1, keepdims=True)
        kept = jnp.where(probabilities >= smallest, probabilities, 0.0)
        return kept / jnp.sum(kept, -1, keepdims=True)


def leading(accepted: jax.Array) -> jax.Array:
    """How many of the flags `[n]` are true before the first that is not, int32."""
    return jnp.sum(jnp.cumprod(accepted.astype(jnp.int32)))


def accept_greedy(logits: jax.Array, proposals: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Accept the proposals that are what the model itself would have said.

    Args:
        logits: `[rows, vocab]`.
        proposals: int32 `[rows - 1]`.

    Returns:
        n (0 to rows - 1) and the bonus token, int32 scalars.
    """
    return accept_said(jnp.argmax(logits, -1).astype(jnp.int32), proposals)


def accept_said(said: jax.Array, proposals: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same from what the model says after each row, int32 `[rows]`."""
    accepted = leading(said[:-1] == proposals)
    return accepted, said[accepted]


def accept_sampled(
    key: jax.Array, probabilities: jax.Array, proposals: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Exact rejection sampling against proposals that are certain of themselves (one-hot).

    A proposal d is accepted with the model's probability p(d). A rejected one is replaced by a draw from p
    with d left out. Either way the token is distributed as p: d comes out with p(d), any other token t with
    (1 - p(d)) * p(t) / (1 - p(d)).

    Args:
        key: A jax.random key.
        probabilities: float32 `[rows, vocab]`, what each row's token is drawn from.
        proposals: int32 `[rows - 1]`.

    Returns:
        n (0 to rows - 1) and the bonus token, int32 scalars.
    """
    to_accept, to_draw = jax.random.split(key)
    own = jnp.take_along_axis(probabilities[:-1], proposals[:, None], -1)[:, 0]
    accepted = leading(jax.random.uniform(to_accept, proposals.shape) < own)
    row = probabilities[accepted]
    # The row after the last proposal has none to leave out.
    rejected = jnp.where(
        accepted < proposals.shape[0], proposals[jnp.minimum(accepted, proposals.shape[0] - 1)], -1
    )
    row = jnp.where(jnp.arange(row.shape[0]) == rejected, 0.0, row)
    return accepted, jax.random.categorical(to_draw, jnp.log(row)).astype(jnp.int32)


class Drafter(Protocol):
    """What proposes tokens."""

    def propose(self, anchor: int, position: int) -> Sequence[int]:
        """The 7 tokens it expects after `anchor`, which stands at `position`."""
        ...

    def observe(self, tokens: np.ndarray, position: int, aux: np.ndarray) -> None:
        """Hear of rows that are now part of the sequence.

        Args:
            tokens: int32 `[rows]`, the anchor and the accepted proposals.
            position: Of the first of them.
            aux: `[rows, aux layers, hidden]`, the model's auxiliary hidden states at those rows.
        """
        ...


class TracedDrafter(Protocol):
    """What proposes tokens inside a device call: pure functions over a memory, a tree of arrays.

    A call is compiled once for a drafter, which must be hashable for that.
    """

    def propose(self, memory: Any, anchor: jax.Array, position: jax.Array) -> jax.Array:
        """The tokens it expects after `anchor`, int32 `[7]`."""
        ...

    def observe(
        self, memory: Any, tokens: jax.Array, count: jax.Array, position: jax.Array, aux: jax.Array
    ) -> Any:
        """The memory once the first `count` of rows `tokens` `[8]` are part of the sequence.

        position: Of the first row. aux: `[8, aux layers, hidden]`.
        """
        ...


@dataclass(slots=True)
class ScriptedDrafter:
    """Proposes from a text known beforehand, right as often as told; for tests and measurements.

    Attributes:
        text: The tokens of the sequence by position.
        right: How many proposals of each cycle are taken from the text, cycle after cycle, the last for ever;
            those after them are wrong.
        vocab: A wrong proposal is the right one plus 1, modulo this.
        observed: Positions it was told of, in order.
    """

    text: Sequence[int]
    right: Sequence[int]
    vocab: int
    cycle: int = 0
    observed: list[int] | None = None

    def propose(self, anchor: int, position: int) -> Sequence[int]:
        """The next tokens of the text (0 beyond its end), spoilt from the agreed one on."""
        right = self.right[min(self.cycle, len(self.right) - 1)]
        self.cycle += 1
        following = [*self.text[position + 1 : position + VERIFY_ROWS], *[0] * PROPOSALS][:PROPOSALS]
        return [t if k < right else (t + 1) % self.vocab for k, t in enumerate(following)]

    def observe(self, tokens: np.ndarray, position: int, aux: np.ndarray) -> None:
        """Note the positions."""
        self.observed = [*(self.observed or []), *range(position, position + len(tokens))]


@dataclass(slots=True)
class LookupDrafter:
    """Proposes what followed when the last two tokens stood in the sequence before; needs no model.

    Attributes:
        text: The tokens of the sequence so far.
    """

    text: list[int]

    def propose(self, anchor: int, position: int) -> Sequence[int]:
        """What followed the latest earlier pair like the last one, filled up with zeros."""
        text = [*self.text[:position], anchor]
        starts = range(len(text) - 3, -1, -1)
        found = next((i + 2 for i in starts if len(text) > 2 and text[i : i + 2] == text[-2:]), len(text))
        return [*text[found : found + PROPOSALS], *[0] * PROPOSALS][:PROPOSALS]

    def observe(self, tokens: np.ndarray, position: int, aux: np.ndarray) -> None:
        """Take the rows into the text."""
        self.text[position:] = [int(token) for token in tokens]


@dataclass(frozen=True, slots=True)
class Cycle:
    """One draft, verify, accept.

    tokens: What was emitted, the accepted proposals and the bonus. accepted: How many proposals those were.
    state: After the rows that stand, the next anchor not among them. position: Of the next anchor.
    """

    tokens: tuple[int, ...]
    accepted: int
    state: State
    position: int


def cycles(
    verify: Verify,
    state: State,
    anchor: int,
    position: int,
    *,
    drafter: Drafter,
    sampling: Sampling = Sampling(),
    seed: int = 0,
) -> Iterator[Cycle]:
    """Decode one sequence for ever, a cycle at a time.

    Args:
        verify: The model, over 8 rows.
        state: Of the sequence before the anchor.
        anchor: The last token of the sequence so far.
        position: Of the anchor.
        drafter: Makes the proposals.
        sampling: How tokens are chosen.
        seed: Of the random draws; greedy decoding makes none.

    Yields:
        Every cycle.

    Raises:
        ValueError: The cache has no room for another block.
    """
    key = jax.random.key(seed)
    while True:
        capacity = state.latent.shape[2]
        if position + VERIFY_ROWS > capacity:
            raise ValueError(
                f"a block of {VERIFY_ROWS} rows at position {position} does not fit a cache of {capacity} "
                "tokens; begin with a larger one"
            )
        proposals = jnp.asarray(drafter.propose(anchor, position), jnp.int32)
        rows = jnp.concatenate([jnp.asarray([anchor], jnp.int32), proposals])
        output, block = verify(state, rows[None], jnp.asarray([position], jnp.int32))
        if sampling.temperature == 0:
            count, bonus = accept_greedy(output.logits[0], proposals)
        else:
            key, now = jax.random.split(key)
            count, bonus = accept_sampled(now, sampling.probabilities(output.logits[0]), proposals)
        accepted = int(count)
        state = block.after(jnp.int32(accepted + 1))
        drafter.observe(np.asarray(rows[: accepted + 1]), position, np.asarray(output.aux[0, : accepted + 1]))
        position += accepted + 1
        anchor = int(bonus)
        yield Cycle((*(int(t) for t in proposals[:accepted]), anchor), accepted, state, position)
