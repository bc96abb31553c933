"""Speculative decoding: the same text as without, however many proposals are accepted."""

from functools import partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from megakernels.k3.config import TINY
from megakernels.k3.dspark import (
    PROPOSALS,
    Sampling,
    ScriptedDrafter,
    accept_greedy,
    accept_sampled,
    cycles,
)

FIRST, CAPACITY = 5, 48


class Text:
    """A prompt and its greedy continuation, one token at a time, with the state before every token."""

    def __init__(self, models: Any) -> None:
        weights, forward = models.weights(TINY), models.forward(TINY)
        self.verify = partial(forward, weights)
        self.states = [models.begin(TINY, 1, CAPACITY)]
        self.tokens = [int(t) for t in models.tokens(TINY, FIRST)]
        for position in range(FIRST + 20):
            token = jnp.asarray([[self.tokens[position]]], jnp.int32)
            out, block = self.verify(self.states[-1], token, jnp.asarray([position], jnp.int32))
            self.states.append(models.after(block, jnp.int32(1)))
            if position + 1 == len(self.tokens):
                self.tokens.append(int(jnp.argmax(out.logits[0, 0])))


@pytest.fixture(scope="module")
def text(models) -> Text:
    return Text(models)


def same_state(ours: Any, theirs: Any, seen: int) -> None:
    np.testing.assert_allclose(ours.recurrent, theirs.recurrent, atol=2e-5)
    np.testing.assert_allclose(ours.conv, theirs.conv, atol=2e-5)
    np.testing.assert_allclose(ours.latent[:, :, :seen], theirs.latent[:, :, :seen], atol=2e-5)


@pytest.mark.parametrize("right", range(PROPOSALS + 1))
def test_any_accepted_length_gives_the_text_and_state_of_single_steps(text: Text, right: int) -> None:
    drafter = ScriptedDrafter(text.tokens, [right, 7 - right], TINY.vocab)
    at = FIRST - 1
    emitted = []
    run = cycles(text.verify, text.states[at], text.tokens[at], at, drafter=drafter)
    for cycle, expected in zip(islice(run, 2), (right, 7 - right), strict=True):
        assert cycle.accepted == expected
        emitted += cycle.tokens
        assert cycle.position == at + len(emitted)
        # Rows past the accepted one have written the cache; nothing of them is left in what is read again.
        same_state(cycle.state, text.states[cycle.position], cycle.position)
    assert emitted == text.tokens[FIRST : FIRST + len(emitted)]
    assert drafter.observed == list(range(at, at + len(emitted)))


def test_longest_prefix_only() -> None:
    logits = jnp.eye(8)  # row k says k
    proposals = jnp.asarray([0, 1, 9, 3, 4, 5, 6])
    assert [int(v) for v in accept_greedy(logits, proposals)] == [2, 2]
    assert [int(v) for v in accept_greedy(logits, jnp.arange(7))] == [7, 7]
    assert [int(v) for v in accept_greedy(logits, jnp.asarray([1, 1, 2, 3, 4, 5, 6]))] == [0, 0]


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's statistic in units of its degrees of freedom; about 1 when they agree."""
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = counts.sum() * probabilities[possible]
    return float(((counts[possible] - expected) ** 2 / expected).sum() / (possible.sum() - 1))


def draw(probabilities: jax.Array, proposals: jax.Array, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens emitted, `[runs, rows]` with -1 after the bonus, and how many proposals were accepted."""
    keys = jax.random.split(jax.random.key(7), runs)
    count, bonus = jax.jit(jax.vmap(accept_sampled, (0, None, None)))(keys, probabilities, proposals)
    count, bonus = np.asarray(count), np.asarray(bonus)
    tokens = np.where(np.arange(len(proposals) + 1) < count[:, None], [*np.asarray(proposals), -1], -1)
    tokens[np.arange(runs), count] = bonus
    return tokens, count


def test_rejection_sampling_is_exact() -> None:
    """Every row's token, given that the row was reached, is distributed as the model says."""
    rng = np.random.RandomState(0)
    probabilities = rng.dirichlet(np.ones(6), 4).astype(np.float32)
    proposals = np.asarray([2, 0, 5])
    # Without a share of the proposals' own, rows past the first would hardly be reached.
    probabilities[np.arange(3), proposals] += 1.0
    probabilities /= probabilities.sum(-1, keepdims=True)
    tokens, count = draw(jnp.asarray(probabilities), jnp.asarray(proposals), 60_000)
    reached = [tokens[count >= row, row] for row in range(4)]
    assert min(len(row) for row in reached) > 4000
    fits = [
        chi_square(np.bincount(row, minlength=6), p) for row, p in zip(reached, probabilities, strict=True)
    ]
    # 20 degrees of freedom in all: 1.9 is passed by chance once in a hundred seeds.
    assert np.mean(fits) < 1.9, fits
    # How long the accepted prefix is: the product of the proposals' probabilities.
    own = probabilities[np.arange(3), proposals]
    assert abs((count == 3).mean() - own.prod()) < 0.01
    # The test would notice a draw that does not leave the rejected proposal out.
    biased = probabilities[0] * (1 - own[0]) + np.eye(6)[2] * own[0]
    assert chi_square(np.bincount(tokens[:, 0], minlength=6), biased) > 50


def test_an_impossible_proposal_is_never_accepted_and_a_certain_one_always() -> None:
    probabilities = jnp.asarray([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    tokens, count = draw(probabilities, jnp.asarray([2]), 500)
    assert (count == 0).all()
    assert set(tokens[:, 0]) == {0, 1}
    tokens, count = draw(probabilities[::-1], jnp.asarray([2]), 500)
    assert (count == 1).all()
    assert set(tokens[:, 1]) == {0, 1}


def test_top_p_keeps_the_likeliest() -> None:
    logits = jnp.log(jnp.asarray([[0.1, 0.5, 0.15, 0.25]]))
    np.testing.assert_allclose(Sampling(1.0, 0.7).probabilities(logits)[0], [0, 2 / 3, 0, 1 / 3], rtol=1e-5)
    np.testing.assert_allclose(Sampling(1.0, 1e-6).probabilities(logits)[0], [0, 1, 0, 0])
    np.testing.assert_allclose(Sampling(1.0).probabilities(logits)[0], [0.1, 0.5, 0.15, 0.25], rtol=1e-5)
    np.testing.assert_allclose(Sampling(0.0).probabilities(logits)[0], [0, 1, 0, 0])
    hot = np.asarray(Sampling(2.0).probabilities(logits)[0])
    np.testing.assert_allclose(hot[1] / hot[0], 5**0.5, rtol=1e-5)


@pytest.mark.parametrize("values", [(-1.0, 1.0), (1.0, 0.0), (1.0, 1.1)])
def test_sampling_out_of_range_is_refused(values: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="temperature"):
        Sampling(*values)


def test_sampled_decoding_repeats_with_its_seed(text: Text) -> None:
    def tokens(seed: int) -> list[int]:
        drafter = ScriptedDrafter(text.tokens, [7], TINY.vocab)
        at = FIRST - 1
        run = cycles(
            text.verify,
            text.states[at],
            text.tokens[at],
            at,
            drafter=drafter,
            sampling=Sampling(1.5, 0.95),
            seed=seed,
        )
        return [token for cycle in islice(run, 3) for token in cycle.tokens]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_a_full_cache_is_said(text: Text) -> None:
    at = CAPACITY - PROPOSALS
    drafter = ScriptedDrafter(text.tokens, [0], TINY.vocab)
    with pytest.raises(ValueError, match=f"position {at} does not fit a cache of {CAPACITY}"):
        next(cycles(text.verify, text.states[0], 1, at, drafter=drafter))
