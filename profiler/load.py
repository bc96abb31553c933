"""Finds the kernel a user named, in the process that compiles it. Imports JAX.

A target is a kernel of `megakernels.registry` (`mlp`) or a function in a file (`my/kernel.py:build`).
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from megakernels.build import KernelBuild

SHAPE_OF_RETURN = (
    "build() must return a megakernels.build.KernelBuild, or a tuple (function, arguments, mesh_axes) with "
    "arguments a tuple of jax.ShapeDtypeStruct and mesh_axes a dict of axis name to size"
)

# Parameters of builders that other arguments of the command decide.
_NOT_OPTIONS = ("level", "interpret")


class TargetError(Exception):
    """The target cannot be turned into a kernel: `fault` says what is wrong, `cure` what to do."""

    def __init__(self, fault: str, cure: str) -> None:
        super().__init__(fault)
        self.fault = fault
        self.cure = cure


@dataclass(frozen=True, slots=True)
class Target:
    """A kernel's builder. `file` is the user's file, None for a kernel of the registry."""

    name: str
    builder: Callable[..., Any]
    file: Path | None


def find_target(text: str) -> Target:
    """Import what `text` names.

    Raises:
        TargetError: no such kernel, file or function.
        Exception: whatever the user's file raises when it is imported.
    """
    path, _, function = text.rpartition(":")
    if text.endswith(".py"):
        path, function = text, "build"
    if not path:
        return _registered(text)
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise TargetError(f"there is no file {file}", "Check the path; the form is path/to/file.py:build.")
    module = _import_file(file)
    builder = getattr(module, function, None)
    if builder is None:
        callables = [
            n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__
        ]
        raise TargetError(
            f"no function {function!r} in {file}",
            f"Functions there: {', '.join(sorted(callables)[:12]) or 'none'}. {SHAPE_OF_RETURN}.",
        )
    if not callable(builder):
        raise TargetError(f"{function!r} in {file} is {_a(builder)}, not a function", SHAPE_OF_RETURN + ".")
    return Target(file.stem, builder, file)


def call_builder(target: Target, options: Mapping[str, Any], offered: Mapping[str, Any]) -> Any:
    """Call the builder with the user's options, and with those of `offered` that it takes.

    Raises:
        TargetError: an option that the builder does not take, or one that it needs is missing.
        Exception: whatever the builder raises.
    """
    signature = inspect.signature(target.builder)
    parameters = signature.parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if target.file is None and takes_any:
        named += [n for n in offered if n not in named]  # every kernel of the registry takes them
    unknown = [] if takes_any else sorted(set(options) - set(named))
    if unknown:
        raise TargetError(
            f"{target.name} takes no option {', '.join(unknown)}",
            f"Options of this kernel: {', '.join(n for n in named if n not in _NOT_OPTIONS) or 'none'}.",
        )
    arguments = {k: v for k, v in offered.items() if k in named} | dict(options)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise TargetError(f"{target.name}: {error}", "Give it with --set NAME=VALUE.") from error
    _check_numbers(target, options)
    return target.builder(**arguments)


def _check_numbers(target: Target, options: Mapping[str, Any]) -> None:
    """Refuse an option that is no number where the builder says it takes one.

    Raises:
        TargetError: names the option.
    """
    try:
        kinds = get_type_hints(target.builder)
    except Exception:  # annotations that cannot be evaluated say nothing
        return
    for name, value in options.items():
        kind = kinds.get(name)
        optional = kind == int | None
        if (kind is not int and not optional) or (optional and value is None):
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise TargetError(f"{name} is {value!r}; it must be a whole number", f"Such as --set {name}=4.")


def _registered(name: str) -> Target:
    from megakernels import registry

    builder = registry.KERNELS.get(name)
    if builder is None:
        raise TargetError(
            f"there is no kernel {name!r}",
            f"Kernels: {', '.join(sorted(registry.KERNELS))}; for your own give path/to/file.py:build.",
        )
    return Target(name, builder, None)


def _import_file(file: Path) -> Any:
    # The folder of the file comes first, as for `python file.py`, so that it can import its siblings.
    sys.path.insert(0, str(file.parent))
    # A file named like a module that is loaded already (jax.py) must not take that module's place.
    name = f"megascope_target_{file.stem}" if file.stem in sys.modules else file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise TargetError(f"{file} is not a Python file", "The form is path/to/file.py:build.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def check_return(value: Any) -> KernelBuild | tuple[Any, ...]:
    """What build() returned, if it is one of the two accepted forms.

    Raises:
        TargetError: it is neither.
    """
    if isinstance(value, KernelBuild):
        return value
    if not isinstance(value, tuple) or len(value) not in (3, 4):
        what = f"a tuple of {len(value)}" if isinstance(value, tuple) else _a(value)
        raise TargetError(f"build() returned {what}", SHAPE_OF_RETURN + ".")
    function, arguments, axes = value[:3]
    if not callable(function):
        raise TargetError(f"build() returned {_a(function)} as the function", SHAPE_OF_RETURN + ".")
    if not isinstance(arguments, tuple | list):
        raise TargetError(f"build() returned {_a(arguments)} as the arguments", SHAPE_OF_RETURN + ".")
    if not isinstance(axes, Mapping) or not all(
        isinstance(k, str) and isinstance(v, int) and not isinstance(v, bool) and v > 0
        for k, v in axes.items()
    ):
        raise TargetError(f"build() returned mesh axes {axes!r}", SHAPE_OF_RETURN + ".")
    return value


def _a(value: object) -> str:
    """The type of a value with its article: "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
