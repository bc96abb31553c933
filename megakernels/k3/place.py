"""Weights and state on the devices of a slice, from one process or from one per host.

Every process holds the shares of its own devices only. What all have to know goes in as numpy values, which
are the same in every process.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from megakernels.build import KernelBuild
from megakernels.common import weight_files
from megakernels.common.place import place_files, split
from megakernels.k3.build import state_shapes
from megakernels.k3.step_plan import StepPlan
from megakernels.k3.step_refs import AXIS, REPLICATED, KernelState
from megakernels.k3.weights import WEIGHTS


def slice_mesh(build: KernelBuild) -> Mesh:
    """The kernel's mesh: ranks of a host are the devices of a process.

    Raises:
        ValueError: There are too few devices.
    """
    return build.mesh(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))


def place_weights(arrays: Mapping[str, np.ndarray], mesh: Mesh) -> list[jax.Array]:
    """Weight operands on the devices, in the order the call takes them; each core gets its own files only.

    Args:
        arrays: Files' arrays as `weights.open_weights` or `packed_files` gives them; of other hosts' ranks
            none are needed.
        mesh: From `slice_mesh`.

    Raises:
        CheckpointError: The files of a rank of this host are not there.
    """
    return list(place_files(WEIGHTS, REPLICATED, arrays, mesh).values())


def packed_files(packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Operands with a core axis (`step_pack.pack_all`) as the arrays of weight files."""
    return weight_files.packed_files(packed, REPLICATED)


def empty_state(plan: StepPlan, mesh: Mesh) -> KernelState:
    """The state before the first token, made on the devices."""
    shapes = state_shapes(plan)

    def zeros() -> KernelState:
        return KernelState(*(None if s is None else jnp.zeros(s.shape, s.dtype) for s in shapes))

    made: KernelState = jax.jit(zeros, out_shardings=split(mesh))()
    return made


def after_rows(plan: StepPlan, state: KernelState, rows: jax.Array) -> KernelState:
    """The decode state of one sequence after the first `rows` rows (int32) of a verify step's block.

    Args:
        plan: Of the verify step that left the state.
        state: Its state: that from before the block, and what leads from row to row.
        rows: How many stand, 0 to 8.
    """

    def replay(row: jax.Array, recurrent: jax.Array) -> jax.Array:
        at = partial(lax.dynamic_index_in_dim, index=row, axis=3, keepdims=False)
        key, decay, error = (at(kind) for kind in jnp.split(state.correction, 3, axis=2))
        return decay[..., None] * recurrent + key[..., None] * error[..., None, :]

    recurrent = lax.fori_loop(0, rows, replay, state.recurrent[:, :, 0])[:, :, None]
    taps = plan.config.conv_taps - 1
    conv = lax.dynamic_slice_in_dim(state.conv, rows, taps, axis=3).swapaxes(2, 3)
    return KernelState(recurrent, conv.reshape(*conv.shape[:3], 1, -1), state.cache)


def insert(state: KernelState, one: KernelState, number: jax.Array) -> KernelState:
    """A decode state of several sequences with sequence `number` (int32) replaced by a lone one's."""

    def put(whole: jax.Array, part: jax.Array, axis: int) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(whole, part, number, axis=axis)

    return KernelState(
        put(state.recurrent, one.recurrent, 2), put(state.conv, one.conv, 3), put(state.cache, one.cache, 2)
    )


def all_logits(plan: StepPlan, mesh: Mesh, logits: Any) -> jax.Array:
    """Logits of the live rows over the whole vocabulary, float32 `[rows, vocab]`, from the kernel's tiles.

    Gathered once, on every core: left to the compiler, each step of a softmax would be a sum over cores.
    """
    gather = partial(lax.all_gather, axis_name=AXIS, tiled=True)
    whole = jax.shard_map(
        gather, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec(), check_vma=False
    )(logits)
    by_row = whole.transpose(2, 0, 1, 3)[: plan.rows]
    return by_row.reshape(plan.rows, plan.cores, -1)[..., : plan.vocab].reshape(plan.rows, -1)


def of_any_core(mesh: Mesh, array: Any) -> jax.Array:
    """What every core has alike, of an array with a core axis, without sending it."""

    def own(share: jax.Array) -> jax.Array:
        return share[0]

    alike: jax.Array = jax.shard_map(
        own, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec(), check_vma=False
    )(array)
    return alike
