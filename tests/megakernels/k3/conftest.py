"""`models`: weights and compiled forwards of small models, made once."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from megakernels.k3 import reference
from megakernels.k3.config import K3Config
from megakernels.k3.parameters import random_parameters
from megakernels.k3.state import Block, initial_state

SEED = 5  # that of the goldens
# These models are small and their programs large: compiling is what takes the time.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@functools.cache
def stored_weights(config: K3Config) -> dict[str, np.ndarray]:
    return random_parameters(config, SEED)


@functools.cache
def loaded_weights(config: K3Config, dtype: Any) -> reference.Weights:
    return reference.load(config, stored_weights(config), dtype)


@functools.cache
def compiled_forward(config: K3Config, aux_stream: reference.AuxStream) -> Callable[..., Any]:
    return jax.jit(
        functools.partial(reference.forward, config, aux_stream=aux_stream), compiler_options=QUICK
    )


class Models:
    """Makes what tests ask for, and keeps it."""

    quick = QUICK

    def stored(self, config: K3Config) -> dict[str, np.ndarray]:
        return stored_weights(config)

    def weights(self, config: K3Config, dtype: Any = jnp.float32) -> reference.Weights:
        return loaded_weights(config, dtype)

    def forward(self, config: K3Config, aux_stream: reference.AuxStream = "prefix") -> Callable[..., Any]:
        """`reference.forward` of a config, compiled; `(weights, state, tokens, positions)`."""
        return compiled_forward(config, aux_stream)

    @functools.cached_property
    def after(self) -> Callable[..., Any]:
        """`Block.after`, compiled."""
        return jax.jit(Block.after, compiler_options=QUICK)

    def tokens(self, config: K3Config, *shape: int, seed: int = 3) -> jax.Array:
        return jnp.asarray(np.random.RandomState(seed).randint(0, config.vocab, shape), jnp.int32)

    def begin(self, config: K3Config, batch: int = 1, capacity: int = 48, dtype: Any = jnp.float32) -> Any:
        return initial_state(config, batch, capacity, dtype)


@pytest.fixture(scope="session")
def models() -> Models:
    return Models()
