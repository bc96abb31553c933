"""What a kernel hands to whoever compiles or runs it: the function, its arguments, and what it knows of itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class KernelBuild:
    """One kernel, ready to be compiled for a device mesh or run on one.

    Attributes:
        name: The kernel's name, as it is to appear in captures and reports.
        function: The per-core function, called under `jax.shard_map` with each core's shard.
        arguments: Global (unsharded) shapes, `jax.ShapeDtypeStruct`, one per argument of `function`.
        in_specs: One `jax.sharding.PartitionSpec` per argument.
        out_specs: Partition specs of the results, in the structure that `function` returns.
        mesh_axes: Axis name to size, outermost first; the product is the number of cores.
        facts: JSON values that the compiled program cannot tell: `model`, `batch`, `context`, `layers`,
            tile sizes, `operands` (a list of `{"name": ..., "role": "weight" | "activation" | "state" |
            "output"}` by operand index), `scenario` (values that data would decide). Kept in the capture.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    in_specs: tuple[Any, ...]
    out_specs: Any
    mesh_axes: Mapping[str, int]
    facts: Mapping[str, Any] = field(default_factory=dict)
