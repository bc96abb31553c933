"""Instrumentation a kernel carries: phases, layer numbers and the names of its copies.

A kernel says what it is doing with three hooks::

    with layer(index), phase("gate_up"):
        tag(copy, "w_gate").start()

and the level decides what becomes of them. At `off` they leave nothing in the program. At `regions` a
phase is a named scope and a layer a named scope holding its index as a trace value; libtpu turns both
into `vtrace` markers when its region trace flag is set. Markers are scheduling edges, so the two levels
compile to different programs with the same numerics: compile both to see what the probe costs.

`decided` marks where data decides a scalar. It changes nothing, except under `watching` in interpret mode:
then the values are recorded (megakernels/recording.py).

`tag` never adds an instruction. It notes which source line starts or awaits which copy, so that a report
can say "w_gate" where the bundles only hold the line.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import io_callback
from jax.experimental.pallas import tpu as pltpu
from jax.extend import source_info_util

type Level = Literal["off", "regions"]
LEVELS: tuple[Level, ...] = ("off", "regions")
LAYER_SCOPE = "layer"  # name of the scope around a layer, and label of the trace value in it

_level: ContextVar[Level] = ContextVar("megascope_hook_level", default="off")
_watcher: ContextVar["tuple[tuple[str, ...], Watcher] | None"] = ContextVar("megascope_watcher", default=None)
_copy_names: dict[tuple[str, int], set[str]] = {}
_helper_files: set[str] = set()
_JAX_FOLDER = str(Path(jax.__file__).parent)


def helper_module(file: str) -> None:
    """Make instructions traced in `file` carry the source line of its caller instead.

    The compiler keeps one source line per instruction, the innermost that is not excluded. A module of
    shared mechanisms calls `helper_module(__file__)`, and a wait for a weight tile is then reported at the
    kernel's line that asked for the tile rather than at one line of the ring for every kernel.
    """
    _helper_files.add(file)
    source_info_util.register_exclusion(file)


helper_module(__file__)


def at_callers_line[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """A loop or branch body of a helper module, whose instructions are to carry the kernel's line.

    JAX traces such a body with a call stack of its own, in which the kernel no longer appears: a copy started
    in it would have no source line at all.
    """
    line = source_info_util.current().traceback

    @functools.wraps(function)
    def body(*args: P.args, **kwargs: P.kwargs) -> R:
        with source_info_util.user_context(line, name_stack=source_info_util.current_name_stack()):
            return function(*args, **kwargs)

    return body


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
        pltpu.trace_value(LAYER_SCOPE, jnp.int32(index) if isinstance(index, int) else index)
        yield


type Watcher = Callable[[int, str, int | float], None]


@contextlib.contextmanager
def watching(axes: tuple[str, ...], saw: Watcher) -> Iterator[None]:
    """Have kernels that are traced inside, for interpret mode, report every `decided` value.

    Args:
        axes: Mesh axes, outermost first; a core's place on them is its rank.
        saw: Called with rank, place (`file.py:line`) and value each time one is met.
    """
    token = _watcher.set((axes, saw))
    try:
        yield
    finally:
        _watcher.reset(token)


def decided(value: jax.Array) -> jax.Array:
    """Mark a scalar that comes out of vector data, such as a count or an index; gives it back.

    Stands on the line where the vector becomes the scalar: the simulator knows the value by that line.
    """
    watcher, place = _watcher.get(), _kernel_line()
    if watcher is None or place is None:
        return value
    axes, saw = watcher
    name = f"{place[0].rsplit('/', 1)[-1]}:{place[1]}"

    def note(rank: Any, seen: Any) -> Any:
        saw(int(rank), name, seen.item())
        return seen

    # What comes back is used in place of the value: that keeps the order in which a core meets them.
    return io_callback(note, jax.ShapeDtypeStruct(value.shape, value.dtype), lax.axis_index(axes), value)


class NamedCopy:
    """An asynchronous copy whose `start` and waits note the source line they stand on."""

    def __init__(self, copy: Any, name: str) -> None:
        self._copy = copy
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """`start`, `wait`, `wait_send`, `wait_recv` of the copy itself."""
        place = _kernel_line()
        if place is not None:
            _copy_names.setdefault(place, set()).add(self._name)
        return getattr(self._copy, attribute)


def tag(copy: Any, name: str) -> NamedCopy:
    """Name an asynchronous copy; use what comes back in its place."""
    return NamedCopy(copy, name)


def copy_names() -> list[dict[str, Any]]:
    """Every line of a tagged copy traced in this process: `file`, `line` (1-based), `name`.

    A line that starts copies of several names has none; what is copied from an operand has that one's.
    """
    return [
        {"file": file, "line": line, "name": next(iter(names))}
        for (file, line), names in sorted(_copy_names.items())
        if len(names) == 1
    ]


def _kernel_line() -> tuple[str, int] | None:
    """File and line of the innermost caller that is neither JAX nor a helper: what the compiler records."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _helper_files and not file.startswith(_JAX_FOLDER):
            return file, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None
