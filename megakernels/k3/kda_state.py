"""State of a stack of KDA mixers in the kernel's layout (see kda_refs.KdaState), and conversions.

Heads are split over the cores in order. The convolution's channels are q | k | v of a core's heads.
"""

import jax
import jax.numpy as jnp
import numpy as np

from megakernels.common.gemv import LANES
from megakernels.k3.config import K3Config
from megakernels.k3.kda_refs import KdaState
from megakernels.k3.plan import ROWS, KdaPlan


def state_shapes(plan: KdaPlan) -> KdaState:
    """Shapes and dtypes, leading axes core and layer."""
    lead = (plan.cores, plan.layers)
    correction = None
    if plan.verify:
        correction = jax.ShapeDtypeStruct((*lead, plan.correction_blocks, ROWS, LANES), jnp.float32)
    return KdaState(
        jax.ShapeDtypeStruct((*lead, *plan.recurrent_shape), jnp.float32),
        jax.ShapeDtypeStruct((*lead, *plan.conv_shape), jnp.float32),
        correction,
    )


def split_channels(config: K3Config, cores: int, array: np.ndarray) -> np.ndarray:
    """`[..., q | k | v of all heads]` to `[cores, ..., q | k | v of a core's heads]`."""
    parts = np.split(array, 3, axis=-1)
    return np.stack(
        [np.concatenate([np.split(p, cores, -1)[core] for p in parts], -1) for core in range(cores)]
    )


def join_channels(array: np.ndarray) -> np.ndarray:
    """The inverse of `split_channels`."""
    by_core = [np.split(core, 3, axis=-1) for core in array]
    return np.concatenate([np.concatenate([parts[i] for parts in by_core], -1) for i in range(3)], -1)


def from_reference(plan: KdaPlan, recurrent: np.ndarray, conv: np.ndarray) -> KdaState:
    """The kernel's state for reference arrays of `plan.layers` layers (see state.State)."""
    by_core = np.stack(np.split(np.asarray(recurrent, np.float32), plan.cores, axis=2))
    inputs = split_channels(plan.config, plan.cores, np.asarray(conv, np.float32)).swapaxes(2, 3)
    shapes = state_shapes(plan)
    correction = None
    if plan.verify:
        past = inputs[:, :, :, 0].reshape(*inputs.shape[:3], -1, LANES).swapaxes(2, 3)
        inputs = np.zeros(shapes.conv.shape, np.float32)
        inputs[:, :, :, : past.shape[3]] = past
        correction = np.zeros(shapes.correction.shape, np.float32)
    return KdaState(by_core, inputs, correction)


def to_reference(plan: KdaPlan, state: KdaState, rows: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Recurrent and conv arrays as the reference has them; of a verify state, those after `rows` rows."""
    recurrent = np.asarray(state.recurrent, np.float64)
    conv = np.asarray(state.conv)
    if plan.verify:
        kinds = np.split(np.asarray(state.correction, np.float64), 3, axis=2)
        for row in range(rows):
            key, decay, error = (kind[:, :, None, :, row] for kind in kinds)
            recurrent = decay[..., None] * recurrent + key[..., None] * error[..., None, :]
        conv = conv[:, :, :, rows : rows + plan.config.conv_taps - 1].swapaxes(2, 3)
        conv = conv.reshape(*conv.shape[:3], 1, -1)
    joined = np.concatenate(list(recurrent), axis=2).astype(np.float32)
    return joined, join_channels(conv.swapaxes(2, 3))
