"""The kernels known by name. Listing them imports no JAX; building one does."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megakernels.build import KernelBuild


def _lazy(module: str) -> Callable[..., "KernelBuild"]:
    """A builder that imports its module on first use."""

    def build(**options: Any) -> "KernelBuild":
        builder: Callable[..., KernelBuild] = importlib.import_module(module).build
        return builder(**options)

    build.__doc__ = f"Build the kernel of {module}; see `{module}.build` for the options."
    return build


# Name on the command line to builder. Every builder takes keyword options, each with a default.
KERNELS: dict[str, Callable[..., "KernelBuild"]] = {
    "mlp": _lazy("megakernels.mlp.build"),
}
