"""What a kernel hands to the profiler: a function, the shapes it takes, where they live, facts about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

TOKEN_SPACING = 7919


@dataclass(frozen=True, slots=True)
class KernelBuild:
    """One kernel at one size, ready to be compiled or run.

    Attributes:
        name: The kernel's name; the Pallas call carries the same one.
        function: The per-core function, run under `jax.shard_map`.
        arguments: Global shapes and dtypes, in the order `function` takes them.
        in_specs: One `PartitionSpec` per argument.
        out_specs: `PartitionSpec` (or a tree of them) of the result.
        mesh_axes: Mesh axis name to size, outermost first; the product is the number of cores.
        facts: JSON values the analyzer and the reports use: sizes, operands, expected trips and bytes.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    in_specs: tuple[PartitionSpec, ...]
    out_specs: Any
    mesh_axes: dict[str, int]
    facts: dict[str, Any]

    @property
    def cores(self) -> int:
        """TensorCores the kernel runs on."""
        return int(np.prod(list(self.mesh_axes.values()), dtype=np.int64))

    def mesh(self, devices: list[Any]) -> Mesh:
        """The kernel's mesh over the first `cores` of `devices`.

        Raises:
            ValueError: There are fewer devices than cores.
        """
        if len(devices) < self.cores:
            raise ValueError(
                f"{self.name} needs {self.cores} cores and {len(devices)} are there; "
                "build it for fewer cores or take a larger topology"
            )
        grid = np.array(devices[: self.cores]).reshape(tuple(self.mesh_axes.values()))
        return Mesh(grid, tuple(self.mesh_axes))

    def global_function(self, mesh: Mesh) -> Callable[..., Any]:
        """The kernel over global arrays on `mesh`, ready for `jax.jit`."""
        return jax.shard_map(
            self.function, mesh=mesh, in_specs=self.in_specs, out_specs=self.out_specs, check_vma=False
        )

    def shaped_arguments(self, mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The arguments with their shardings on `mesh`, as `jit(...).lower` takes them."""
        return tuple(
            jax.ShapeDtypeStruct(argument.shape, argument.dtype, sharding=NamedSharding(mesh, spec))
            for argument, spec in zip(self.arguments, self.in_specs, strict=True)
        )


def distinct_tokens(rows: int, vocab: int) -> list[int]:
    """Tokens for the rows of a made-up step, whose embeddings lie apart."""
    return [TOKEN_SPACING * (row + 1) % vocab for row in range(rows)]
