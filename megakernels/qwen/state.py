"""What sequences carry between steps, in the kernel's layout, and conversions to the reference's.

Per core, leading axis the core:

    recurrent  f32  [cores, gdn layers, batch, value heads, key dim, value dim]
    conv       f32  [cores, gdn layers, taps - 1, batch, channels]       decode: last inputs, oldest first
               f32  [cores, gdn layers, channels / 128, 16, 128]         verify: 3 before the block, its 8
    kv         bf16 [cores, attention layers, batch, blocks, capacity, 128]    K blocks of all heads, V blocks
    correction f32  [cores, gdn layers, keys | errors | decays, 8, 128]  verify only

A verify step does not write the state after each of its 8 rows (8 x 151 MB): it leaves the state before the
block and, per row, the correction that leads from one state to the next. The following step is told how many
rows were accepted and replays those first; `after_rows` does the same on the host.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from megakernels.common.gemv import LANES
from megakernels.qwen.plan import HISTORY_ROWS, VERIFY_ROWS, Plan
from megakernels.qwen.reference import ReferenceState


class KernelState(NamedTuple):
    """The arrays above; correction is None unless the plan verifies."""

    recurrent: jax.Array
    conv: jax.Array
    kv: jax.Array
    correction: jax.Array | None = None


def state_shapes(plan: Plan) -> KernelState:
    """Shapes and dtypes of a plan's state, as a KernelState of ShapeDtypeStructs."""
    c = plan.config
    gdn = (plan.cores, c.gdn_layers)
    past = c.conv_taps - 1
    conv = (past, plan.batch, plan.conv_channels)
    if plan.verify:
        conv = (plan.conv_blocks, HISTORY_ROWS, LANES)

    def shape(dims: tuple[int, ...], dtype: object = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype)

    correction = shape((*gdn, plan.correction_blocks, VERIFY_ROWS, LANES)) if plan.verify else None
    return KernelState(
        shape((*gdn, plan.batch, plan.value_heads, c.key_dim, c.value_dim)),
        shape((*gdn, *conv)),
        shape(
            (plan.cores, c.attention_layers, plan.batch, plan.kv_blocks, plan.capacity, LANES), jnp.bfloat16
        ),
        correction,
    )


def empty_state(plan: Plan) -> KernelState:
    """A state before any token."""
    return jax.tree.map(lambda array: jnp.zeros(array.shape, array.dtype), state_shapes(plan))


def _split_channels(plan: Plan, conv: np.ndarray) -> np.ndarray:
    """`[..., all channels]` to `[cores, ..., channels of a core]`: each of q, k, v is split."""
    c = plan.config
    keys, values = c.key_heads * c.key_dim, c.value_heads * c.value_dim
    parts = np.split(conv, [keys, 2 * keys], axis=-1)
    assert parts[2].shape[-1] == values
    return np.stack(
        [np.concatenate([np.split(p, plan.cores, -1)[core] for p in parts], -1) for core in range(plan.cores)]
    )


def from_reference(plan: Plan, state: ReferenceState) -> KernelState:
    """The kernel's state that means the same as a reference state of at most `capacity` tokens."""
    c = plan.config
    recurrent = np.asarray(state.recurrent, np.float32)
    recurrent = np.stack(np.split(recurrent, plan.cores, axis=2))
    conv = _split_channels(plan, np.asarray(state.conv, np.float32)).swapaxes(2, 3)
    if plan.verify:
        past = conv[:, :, :, 0].reshape(*conv.shape[:3], -1, LANES).swapaxes(2, 3)
        conv = np.zeros(state_shapes(plan).conv.shape, np.float32)
        conv[:, :, :, : past.shape[3]] = past
    kv = np.zeros(state_shapes(plan).kv.shape, np.float32)
    tokens = state.keys.shape[2]
    for core in range(plan.cores):
        first = core * c.kv_heads // plan.cores
        for place, cache in enumerate((state.keys, state.values)):
            mine = np.asarray(cache, np.float32)[:, :, :, first : first + plan.kv_heads]
            mine = mine.reshape(*mine.shape[:3], -1, LANES).transpose(0, 1, 3, 2, 4)
            half = plan.kv_blocks // 2
            kv[core, :, :, place * half : (place + 1) * half, :tokens] = mine
    correction = empty_state(plan).correction
    return KernelState(jnp.asarray(recurrent), jnp.asarray(conv), jnp.asarray(kv, jnp.bfloat16), correction)


def to_reference(plan: Plan, state: KernelState, dtype: object = jnp.bfloat16) -> ReferenceState:
    """The reference's state that means the same as a kernel state (decode form)."""
    c = plan.config
    recurrent = np.concatenate(list(np.asarray(state.recurrent)), axis=2)
    conv = np.asarray(state.conv).swapaxes(2, 3)
    keys = plan.key_heads * c.key_dim
    parts = [np.split(conv[core], [keys, 2 * keys], axis=-1) for core in range(plan.cores)]
    conv = np.concatenate([np.concatenate([p[i] for p in parts], axis=-1) for i in range(3)], axis=-1)
    caches = []
    step = max(1, plan.cores // c.kv_heads)
    for place in range(2):
        half = plan.kv_blocks // 2
        heads = []
        for core in range(0, plan.cores, step):
            mine = np.asarray(state.kv[core, :, :, place * half : (place + 1) * half], np.float32)
            mine = mine.transpose(0, 1, 3, 2, 4)
            heads.append(mine.reshape(*mine.shape[:3], plan.kv_heads, c.head_dim))
        caches.append(jnp.asarray(np.concatenate(heads, axis=3), dtype))
    return ReferenceState(jnp.asarray(recurrent), jnp.asarray(conv, dtype), caches[0], caches[1])


def after_rows(plan: Plan, state: KernelState, rows: int | jax.Array) -> KernelState:
    """The decode-form state after the first `rows` rows (0 .. 8) of the block a verify step ran.

    Runs under jit as well, with the core axis sharded; `rows` may be traced.
    """
    c = plan.config
    assert state.correction is not None
    recurrent = state.recurrent[:, :, 0]
    for row in range(VERIFY_ROWS):
        key, error, decay = jnp.split(
            state.correction[:, :, :, row], [plan.key_heads, plan.key_heads + plan.value_heads], axis=2
        )
        key = jnp.repeat(key, plan.values_per_key, axis=2)
        factor = decay[:, :, 0, : plan.value_heads, None, None]
        after = factor * recurrent + key[..., :, None] * error[..., None, :]
        recurrent = jnp.where(row < rows, after, recurrent)
    conv = jax.lax.dynamic_slice_in_dim(state.conv, rows, c.conv_taps - 1, axis=3).swapaxes(2, 3)
    return KernelState(recurrent[:, :, None], conv.reshape(*conv.shape[:3], 1, -1), state.kv)
