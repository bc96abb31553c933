"""Weight operands on devices: each gets its own files only, from one process or from one per host."""

from collections.abc import Container, Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from megakernels.common.safetensors import CheckpointError
from megakernels.common.weight_files import file_name


def everywhere(mesh: Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def split(mesh: Mesh) -> NamedSharding:
    """The first axis is the core."""
    return NamedSharding(mesh, PartitionSpec(*mesh.axis_names))


def place_files(
    names: Sequence[str], replicated: Container[str], arrays: Mapping[str, np.ndarray], mesh: Mesh
) -> dict[str, jax.Array]:
    """Operands by name on the devices of a mesh with one axis, the core.

    Args:
        names: The operands.
        replicated: Those that are whole on every core; all others get a core axis.
        arrays: The files' arrays, by file name; of other processes' cores none are needed.
        mesh: The devices, in the order of the cores.

    Raises:
        CheckpointError: The files of a core of this process are not there.
    """
    local = [
        (core, device)
        for core, device in enumerate(mesh.devices.flat)
        if device.process_index == jax.process_index()
    ]
    placed: dict[str, jax.Array] = {}
    for name in names:
        whole = name in replicated
        files = {core: file_name(name, None if whole else core) for core, _ in local}
        missing = [file for file in files.values() if file not in arrays]
        if missing:
            raise CheckpointError(
                missing[0],
                "is not among the weights",
                f"Make those of ranks {local[0][0]} to {local[-1][0]} on this host.",
            )
        shares = [
            jax.device_put(arrays[files[core]][slice(None) if whole else None], device)
            for core, device in local
        ]
        shape = shares[0].shape if whole else (mesh.size, *shares[0].shape[1:])
        sharding = everywhere(mesh) if whole else split(mesh)
        placed[name] = jax.make_array_from_single_device_arrays(shape, sharding, shares)
    return placed
