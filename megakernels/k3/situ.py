"""SiTU, the activation of all FFNs of K3."""

import jax
import jax.numpy as jnp

from megakernels.hooks import helper_module

helper_module(__file__)


def situ(gate: jax.Array, up: jax.Array, gate_cap: float, up_cap: float) -> jax.Array:
    """`gate_cap tanh(gate / gate_cap) sigmoid(gate) * up_cap tanh(up / up_cap)`, float32."""
    activated = gate_cap * jnp.tanh(gate * (1 / gate_cap)) * jax.nn.sigmoid(gate)
    return activated * up_cap * jnp.tanh(up * (1 / up_cap))
