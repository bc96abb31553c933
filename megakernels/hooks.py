"""Instrumentation a kernel carries: phases, layer numbers and the names of its copies.

A kernel says what it is doing with three hooks::

    with layer(index):
        with phase("gate_up"):
            tag(copy, "w_gate").start()

and the level decides what becomes of them. At `off` they leave nothing in the program. At `regions` a phase is a
named scope and a layer a named scope holding its index as a trace value; libtpu turns both into `vtrace` markers
when the region trace flag is set. Markers are scheduling edges, so the two levels compile to different programs
with the same numerics: compile both to see what the probe costs.

`tag` never adds an instruction. It notes which source line starts which copy, so that a report can say
"w_gate, kernel.py line 120" where the bundles only hold the line.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Literal

import jax
from jax.experimental.pallas import tpu as pltpu
from jax.extend import source_info_util

# The caller's line, not this file's, is what the compiler should record for anything traced here.
source_info_util.register_exclusion(__file__)

type Level = Literal["off", "regions"]
LEVELS: tuple[Level, ...] = ("off", "regions")
LAYER_SCOPE = "layer"

_level: ContextVar[Level] = ContextVar("megascope_hook_level", default="off")
_copy_names: dict[tuple[str, int], str] = {}


def instrument[**P, R](function: Callable[P, R], level: Level) -> Callable[P, R]:
    """Give back `function` with its hooks set to `level` whenever it is traced.

    Raises:
        ValueError: `level` is not one of `LEVELS`.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown hook level {level!r}; choose one of {', '.join(LEVELS)}")

    @functools.wraps(function)
    def at_level(*args: P.args, **kwargs: P.kwargs) -> R:
        token = _level.set(level)
        try:
            return function(*args, **kwargs)
        finally:
            _level.reset(token)

    return at_level


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Mark the enclosed part of a kernel as phase `name` (`norm`, `gate_up`, ...). Phases nest."""
    if _level.get() == "off":
        yield
        return
    with jax.named_scope(name):
        yield


@contextlib.contextmanager
def layer(index: int | jax.Array) -> Iterator[None]:
    """Mark the enclosed part of a kernel as layer `index` (int32 scalar, may be a traced loop counter)."""
    if _level.get() == "off":
        yield
        return
    with jax.named_scope(LAYER_SCOPE):
        pltpu.trace_value(LAYER_SCOPE, jax.numpy.int32(index))
        yield


def tag[C](copy: C, name: str) -> C:
    """Name the copy that is started or awaited on this source line; gives the same copy back."""
    caller = sys._getframe(1)
    _copy_names[(caller.f_code.co_filename, caller.f_lineno)] = name
    return copy


def copy_names() -> list[dict[str, Any]]:
    """Every tagged line seen while tracing in this process: `file`, `line` (1-based), `name`."""
    return [{"file": file, "line": line, "name": name} for (file, line), name in sorted(_copy_names.items())]
