"""The kernels known by name. Listing the names imports no JAX; looking one up does."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megakernels.build import KernelBuild

type Builder = Callable[..., "KernelBuild"]


class _LazyBuilders(Mapping[str, Builder]):
    """Name to `module.build`, imported when it is looked up."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def __getitem__(self, name: str) -> Builder:
        builder: Builder = importlib.import_module(self._modules[name]).build
        return builder

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


# Name on the command line to builder. A builder takes keyword options, each with a default; the compile
# command offers `level` and `cores` to those that take them.
KERNELS: Mapping[str, Builder] = _LazyBuilders(
    {"mlp": "megakernels.mlp.build", "qwen": "megakernels.qwen.build", "k3": "megakernels.k3.build"}
)
