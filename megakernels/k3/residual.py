"""Attention residuals: before every mixer and FFN the running prefix is mixed with snapshots of itself.

    score of a row v = (v . w) / sqrt(mean(v^2) + eps);  shares = softmax over rows;  out = sum of shares v

Rows are the snapshots taken so far and the prefix. All ranks hold all of them, in float32 with values that
bfloat16 holds, and compute the same bits. A snapshot's norm is the same in every layer and kept beside it.
The snapshots are mixed before the prefix is known, while what changes it is on its way (`begin_mix`).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from megakernels.common.gemv import LANES
from megakernels.k3.plan import ROWS

NO_SCORE = -1e30  # below any score
STRIP = 512  # columns handled at a time, so that values stay in registers


class ResidualScratch(NamedTuple):
    """What the residual stream keeps on chip, float32."""

    prefix: Any  # [8, hidden]
    mixed: Any  # [8, hidden]
    snapshots: Any  # [snapshots, 8, hidden]
    scales: Any  # [snapshots, 8, 128]: 1 / root mean square of a snapshot's rows, along lanes
    scores: Any  # [snapshots, 8, 128]
    highest: Any  # [8, 128]: of the scores
    total: Any  # [8, 128]: of the snapshots' shares, not yet divided


def residual_scratch(snapshots: int, hidden: int) -> ResidualScratch:
    """The scratch for that many snapshots."""

    def vmem(*shape: int) -> Any:
        return pltpu.VMEM(shape, jnp.float32)

    rows = (ROWS, hidden)
    return ResidualScratch(
        prefix=vmem(*rows),
        mixed=vmem(*rows),
        snapshots=vmem(snapshots, *rows),
        scales=vmem(snapshots, ROWS, LANES),
        scores=vmem(snapshots, ROWS, LANES),
        highest=vmem(ROWS, LANES),
        total=vmem(ROWS, LANES),
    )


def along_lanes(column: jax.Array) -> jax.Array:
    """`[8, 1]` as `[8, 128]`."""
    return jnp.broadcast_to(column, (column.shape[0], LANES))


def rounded(values: jax.Array) -> jax.Array:
    """To bfloat16 and back."""
    return values.astype(jnp.bfloat16).astype(jnp.float32)


@dataclass(frozen=True, slots=True)
class Residual:
    """The residual stream over its scratch refs."""

    scratch: ResidualScratch
    eps: float

    @property
    def hidden(self) -> int:
        """Width of the stream."""
        return int(self.scratch.prefix.shape[-1])

    def strips(self) -> list[slice]:
        """The columns in strips."""
        return [slice(first, min(first + STRIP, self.hidden)) for first in range(0, self.hidden, STRIP)]

    def clear(self) -> None:
        """Zeros everywhere: rows that nobody writes are computed along."""
        for ref in self.scratch:
            ref[...] = jnp.zeros_like(ref)

    def take_snapshot(self, number: Any) -> None:
        """Put the prefix aside as snapshot `number`, and begin anew."""
        s = self.scratch
        s.scales[number] = self._inverse_root(self._sums(s.prefix, [s.prefix])[0])
        s.snapshots[number] = s.prefix[...]
        s.prefix[...] = jnp.zeros_like(s.prefix)

    def add(self, columns: slice, values: jax.Array) -> None:
        """`prefix += values` for some columns of the live rows; both the values and the sum are rounded."""
        prefix = self.scratch.prefix
        live = slice(values.shape[0])
        prefix[live, columns] = rounded(prefix[live, columns] + rounded(values))

    def begin_mix(self, snapshots: Any, score_weight: Any) -> None:
        """Mix the first `snapshots` snapshots, for `mix` to add the prefix.

        Args:
            snapshots: How many there are, int32.
            score_weight: Ref f32 `[1, hidden]`.
        """
        s = self.scratch

        def score(number: Any, highest: jax.Array) -> jax.Array:
            (dots,) = self._sums(s.snapshots.at[number], [score_weight])
            value = along_lanes(jnp.sum(dots, -1, keepdims=True)) * s.scales[number]
            s.scores[number] = value
            return jnp.maximum(highest, value)

        def take(number: Any, total: jax.Array) -> jax.Array:
            weight = jnp.exp(s.scores[number] - s.highest[...])
            for columns in self.strips():
                s.mixed[:, columns] += weight[:, :1] * s.snapshots[number, :, columns]
            return total + weight

        s.mixed[...] = jnp.zeros_like(s.mixed)
        s.highest[...] = lax.fori_loop(0, snapshots, score, jnp.full_like(s.highest, NO_SCORE))
        s.total[...] = lax.fori_loop(0, snapshots, take, jnp.zeros_like(s.total))

    def mix(self, score_weight: Any) -> jax.Array:
        """`mixed` = the mixture of the prefix and what `begin_mix` mixed with the same weight, rounded.

        Returns:
            Sums of squares of the mixture's rows, f32 `[8, 1]`.
        """
        s = self.scratch
        squares, dots = self._sums(s.prefix, [s.prefix, score_weight])
        score = along_lanes(jnp.sum(dots, -1, keepdims=True)) * self._inverse_root(squares)
        highest = jnp.maximum(score, s.highest[...])
        own, others = jnp.exp(score - highest), jnp.exp(s.highest[...] - highest)
        share = 1.0 / (own + others * s.total[...])
        own, others = (own * share)[:, :1], (others * share)[:, :1]
        squares = jnp.zeros((ROWS, LANES), jnp.float32)
        for columns in self.strips():
            value = rounded(own * s.prefix[:, columns] + others * s.mixed[:, columns])
            s.mixed[:, columns] = value
            squares = squares + fold_lanes(value * value)
        return jnp.sum(squares, -1, keepdims=True)

    def normed(self, squares: jax.Array, weight: Any, rows: Any) -> None:
        """`rows` = RMS norm of `mixed`, of sums of squares `[8, 1]`; weight is a ref f32 `[1, hidden]`."""
        s = self.scratch
        scale = lax.rsqrt(squares * (1.0 / self.hidden) + self.eps)
        for columns in self.strips():
            value = rounded(s.mixed[:, columns] * scale)
            rows[:, columns] = (value * weight[:, columns]).astype(jnp.bfloat16)

    def _sums(self, rows: Any, factors: list[Any]) -> list[jax.Array]:
        """Sums of rows times each factor over columns, still apart by lane: `[8, 128]` each."""
        sums = [jnp.zeros((ROWS, LANES), jnp.float32) for _ in factors]
        for columns in self.strips():
            value = rows[:, columns]
            sums = [s + fold_lanes(value * f[:, columns]) for s, f in zip(sums, factors, strict=True)]
        return sums

    def _inverse_root(self, squares: jax.Array) -> jax.Array:
        """1 / root mean square of rows from partial sums of their squares, `[8, 128]` along lanes."""
        mean = jnp.sum(squares, -1, keepdims=True) * (1.0 / self.hidden)
        return along_lanes(lax.rsqrt(mean + self.eps))


def fold_lanes(values: jax.Array) -> jax.Array:
    """`[8, n * 128]` added up to `[8, 128]`."""
    total = values[:, :LANES]
    for first in range(LANES, values.shape[1], LANES):
        total = total + values[:, first : first + LANES]
    return total
