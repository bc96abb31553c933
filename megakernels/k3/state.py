"""What sequences carry from step to step, and the state after any row of a verified block.

A step over several rows does not keep a state per row (434 MB each in the real model): it keeps the state
from before the block and, per row, what leads from one state to the next. Whoever knows how many rows were
accepted replays those.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from megakernels.k3.config import K3Config


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class State:
    """State of B sequences, all layers.

    recurrent: float32 `[KDA layers, B, heads, key, value]`.
    conv: dtype `[KDA layers, B, taps - 1, channels]`, the last inputs of the convolution, oldest first.
    latent: dtype `[MLA layers, B, capacity, latent | shared key part]`; rows at and past a sequence's
        position are never read.
    """

    recurrent: jax.Array
    conv: jax.Array
    latent: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Block:
    """What a step over `rows` rows of each sequence leaves.

    recurrent: As in State, before the first row.
    history: dtype `[KDA layers, B, taps - 1 + rows, channels]`, inputs of the convolution.
    keys, decays: float32 `[KDA layers, B, rows, heads, key]`; errors: `[..., value]`. A row turned state S
        into diag(decay) S + key error^T.
    latent: As in State, with all rows written.
    """

    recurrent: jax.Array
    history: jax.Array
    keys: jax.Array
    errors: jax.Array
    decays: jax.Array
    latent: jax.Array

    def after(self, rows: jax.Array) -> State:
        """The state after the first `rows` rows (int32 scalar, 0 to all of them).

        Later rows of the latent cache stay in it: the next step writes over them before it reads them.
        """
        if not self.keys.size:  # a model, or a cut of one, without KDA
            return State(self.recurrent, self.history, self.latent)

        def replay(row: jax.Array, state: jax.Array) -> jax.Array:
            key, error, decay = (
                jax.lax.dynamic_index_in_dim(array, row, 2, keepdims=False)
                for array in (self.keys, self.errors, self.decays)
            )
            return decay[..., None] * state + key[..., None] * error[..., None, :]

        taps = self.history.shape[2] - self.keys.shape[2]
        return State(
            recurrent=jax.lax.fori_loop(0, rows, replay, self.recurrent),
            conv=jax.lax.dynamic_slice_in_dim(self.history, rows, taps, 2),
            latent=self.latent,
        )


def initial_state(config: K3Config, batch: int, capacity: int, dtype: DTypeLike = jnp.float32) -> State:
    """The state of `batch` sequences of at most `capacity` tokens before their first."""
    c = config
    return State(
        recurrent=jnp.zeros((c.kda_layers, batch, c.heads, c.head_dim, c.head_dim), jnp.float32),
        conv=jnp.zeros((c.kda_layers, batch, c.conv_taps - 1, c.conv_channels), dtype),
        latent=jnp.zeros((c.mla_layers, batch, capacity, c.cache_width), dtype),
    )
