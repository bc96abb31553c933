"""The process that compiles one kernel: `python -m profiler.child REQUEST.json FD`. Imports JAX.

It reads what to compile from the request, writes the optimized HLO into the folder named there, and
tells its parent what it does in JSON lines on file descriptor FD. Its own output and libtpu's go to the
log that the parent gave it as stdout and stderr.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from analyzer.cache import write_atomically
from profiler.load import TargetError, call_builder, check_return, find_target

_PROJECT = Path(__file__).resolve().parents[1]
_STDLIB = Path(os.__file__).parent


class Reporter:
    """Sends events to the parent; `stage` is what a failure will be blamed on."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # what the kernel's code starts must not keep it open
        self._stream = os.fdopen(descriptor, "w", buffering=1)
        self.stage = "start"

    def send(self, **event: Any) -> None:
        """Tell the parent."""
        self._stream.write(json.dumps(event, default=str) + "\n")
        self._stream.flush()

    def enter(self, stage: str) -> None:
        """Begin a stage."""
        self.stage = stage
        self.send(event="stage", stage=stage)
        print(f"[megascope] {stage}", flush=True)


def main(request_path: str, descriptor: str) -> int:
    """Compile what the request names; the exit code is 0 where the parent got a result."""
    return serve(request_path, descriptor, _compile)


def serve(
    request_path: str, descriptor: str, work: Callable[[Mapping[str, Any], "Reporter"], dict[str, Any]]
) -> int:
    """Do the work of a child process and send its result, or what went wrong, to the parent."""
    _die_with_parent()
    report = Reporter(int(descriptor))
    request = json.loads(Path(request_path).read_text())
    try:
        report.send(event="result", **work(request, report))
    except TargetError as error:
        report.send(
            event="failure", stage=report.stage, type="TargetError", message=error.fault, cure=error.cure
        )
    except BaseException as error:  # a user's file may raise anything, SystemExit included
        report.send(
            event="failure",
            stage=report.stage,
            type=type(error).__name__,
            message=_message(error),
            source=user_frame(error),
            errno=getattr(error, "errno", None),
            filename=str(getattr(error, "filename", None) or ""),
        )
        with contextlib.suppress(OSError):  # the log may be on a full disk
            traceback.print_exc()
    else:
        return 0
    return 1


def _compile(request: Mapping[str, Any], report: Reporter) -> dict[str, Any]:
    def described(topology: str) -> list[Any]:
        from jax.experimental import topologies

        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)

    return compile_on(request, report, described)[0]


def compile_on(
    request: Mapping[str, Any], report: Reporter, devices_of: Callable[[str], list[Any]]
) -> tuple[dict[str, Any], Any, tuple[Any, ...]]:
    """Compile the target of a request for some devices.

    Args:
        request: What to compile.
        report: Told of every stage.
        devices_of: Gives the devices; its argument is the name of the topology asked for.

    Returns:
        (what the manifest needs, the compiled object, the arguments it takes as shapes with shardings).
    """
    result: dict[str, Any] = {"libtpu_loaded_before": _libtpu_is_loaded(), "cache_hits": 0}
    report.enter("start")
    started = time.monotonic()
    import jax
    import jax.monitoring
    import numpy as np

    from megakernels.hooks import copy_names, instrument
    from profiler.source_lines import keep_every_line

    def count_cache_hits(event: str, **_: Any) -> None:
        result["cache_hits"] += event == "/jax/compilation_cache/cache_hits"

    jax.monitoring.register_event_listener(count_cache_hits)
    report.enter("topology")
    devices = devices_of(request["topology"])
    result["versions"] = _versions()
    result["device_kind"] = devices[0].device_kind
    result["devices"] = len(devices)

    report.enter("load")
    target = find_target(request["target"])
    report.enter("build")
    offered = {"level": request["level"], "cores": len(devices)}
    built = check_return(call_builder(target, request["options"], offered))

    report.enter("check")
    axes = dict(built[2] if isinstance(built, tuple) else built.mesh_axes)
    mesh = _mesh(np.array(devices), axes, request["topology"])
    function, arguments, described = _as_global(built, mesh)
    result |= described
    result["name"] = target.name if isinstance(built, tuple) else built.name

    jax.config.update("jax_enable_compilation_cache", False)  # a user's file may have turned it on
    with jax.set_mesh(mesh):
        report.enter("trace")
        result["exact_source_lines"] = keep_every_line()
        traced = time.monotonic()
        lowered = jax.jit(instrument(function, request["level"])).lower(*arguments)
        report.enter("compile")
        compiling = time.monotonic()
        compiled = lowered.compile()
    result["trace_seconds"] = round(compiling - traced, 3)
    result["compile_seconds"] = round(time.monotonic() - compiling, 3)
    result["total_seconds"] = round(time.monotonic() - started, 3)
    result["cache_enabled"] = bool(jax.config.jax_enable_compilation_cache)

    report.enter("write")
    text = compiled.as_text()
    if text:
        write_atomically(Path(request["hlo"], "after_optimizations.txt"), text.encode())
    result["sources"] = _user_sources(target.file)
    result["copy_names"] = copy_names()
    return result, compiled, arguments


def _mesh(devices: Any, axes: dict[str, int], topology: str) -> Any:
    """The device mesh; no axes, or a product of 1, means one core, whatever the slice."""
    from math import prod

    from jax.sharding import Mesh

    from profiler.topology import parse_topology, shapes_with

    wanted = prod(axes.values())
    if wanted == 1:
        names = tuple(axes) or ("core",)
        return Mesh(devices[:1].reshape((1,) * len(names)), names)
    if wanted != devices.size:
        chip = parse_topology(topology).chip
        shapes = shapes_with(chip, wanted)
        raise TargetError(
            f"the mesh axes {axes} need {wanted} cores, and topology {topology} has {devices.size}",
            f"Use --topology {chip}:{shapes[0]}, or a mesh of {devices.size}."
            if shapes
            else f"Make the axes multiply to {devices.size}.",
        )
    return Mesh(devices.reshape(tuple(axes.values())), tuple(axes))


def _as_global(built: Any, mesh: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A jit-able function over global arguments with shardings, and what the manifest says of them."""
    import jax
    from jax.sharding import NamedSharding

    if isinstance(built, tuple):
        function, arguments, _, *specs = built
        facts: dict[str, Any] = {}
        in_specs = tuple(specs[0]) if specs else (None,) * len(arguments)
        named = function
    else:
        facts, arguments, in_specs = dict(built.facts), built.arguments, tuple(built.in_specs)
        function, named = built.global_function(mesh), built.function
    if len(in_specs) != len(arguments):
        raise TargetError(
            f"build() gave {len(in_specs)} partition specs for {len(arguments)} arguments",
            "Give one for each.",
        )

    def placed(argument: Any, spec: Any) -> Any:
        if not hasattr(argument, "shape") or not hasattr(argument, "dtype"):
            raise TargetError(
                f"an argument is of type {type(argument).__name__}, not a jax.ShapeDtypeStruct",
                "Give shapes and dtypes only.",
            )
        sharding = NamedSharding(mesh, spec) if spec is not None else getattr(argument, "sharding", None)
        return jax.ShapeDtypeStruct(argument.shape, argument.dtype, sharding=sharding)

    placed_arguments = tuple(
        jax.tree.map(lambda leaf, s=spec: placed(leaf, s), argument)
        for argument, spec in zip(arguments, in_specs, strict=True)
    )
    names = _parameter_names(named, len(arguments))
    return (
        function,
        placed_arguments,
        {
            "facts": facts,
            "mesh_axes": {str(k): int(v) for k, v in mesh.shape.items()},
            "arguments": _describe(placed_arguments, names),
        },
    )


def _parameter_names(function: Any, count: int) -> list[str]:
    import inspect

    try:
        names = [
            n
            for n, p in inspect.signature(function).parameters.items()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        names = []
    return [names[i] if i < len(names) else f"argument{i}" for i in range(count)]


def _describe(arguments: tuple[Any, ...], names: list[str]) -> list[dict[str, Any]]:
    import jax

    rows = []
    for name, argument in zip(names, arguments, strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(argument)[0]:
            sharding = leaf.sharding
            rows.append(
                {
                    "name": name + jax.tree_util.keystr(path),
                    "shape": list(leaf.shape),
                    "dtype": str(leaf.dtype),
                    "sharding": str(sharding.spec) if hasattr(sharding, "spec") else None,
                    "shard_shape": list(sharding.shard_shape(leaf.shape)) if sharding is not None else None,
                }
            )
    return rows


def _versions() -> dict[str, str | None]:
    from importlib import metadata

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        **{n: version(n) for n in ("jax", "jaxlib", "libtpu", "numpy")},
    }


def _libtpu_is_loaded() -> bool:
    try:
        return "libtpu" in Path("/proc/self/maps").read_text()
    except OSError:
        return False


def _user_sources(file: Path | None) -> list[str]:
    """Python files of the kernel that are loaded: the user's and its siblings, or ours under megakernels."""
    root = file.parent if file else _PROJECT / "megakernels"
    found = set()
    for module in list(sys.modules.values()):
        origin = getattr(module, "__file__", None)
        if not origin or not str(origin).endswith(".py"):
            continue
        path = Path(origin).resolve()
        if path.is_relative_to(root) and not {"site-packages", "dist-packages", ".venv"} & set(path.parts):
            found.add(str(path))
    return sorted(found)


def user_frame(error: BaseException) -> str | None:
    """`file:line` of the user's own code that failed, None where none is to be found.

    It is the innermost user frame of the traceback; a fault found while lowering has none, and there the
    equation being lowered knows its line.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = [(frame, line) for frame, line in traceback.walk_tb(current.__traceback__)]
        for frame, line in reversed(frames):
            place = _line_of_equation(frame.f_locals.get("eqn"))
            if place is None and _is_users(frame.f_code.co_filename):
                place = f"{frame.f_code.co_filename}:{line}"
            if place:
                return place
        current = current.__cause__ or current.__context__
    return None


def _line_of_equation(equation: Any) -> str | None:
    """`file:line` of a JAX equation; its place in JAX is private, so any surprise means None."""
    try:
        from jax._src import source_info_util

        frame = source_info_util.user_frame(equation.source_info.traceback)
        return f"{frame.file_name}:{frame.start_line}" if frame and _is_users(frame.file_name) else None
    except Exception:
        return None


def _is_users(name: str) -> bool:
    path = Path(name)
    ours = path.is_relative_to(_PROJECT / "profiler") or path == _PROJECT / "megakernels" / "hooks.py"
    library = {"site-packages", "dist-packages"} & set(path.parts) or path.is_relative_to(_STDLIB)
    return not (ours or library or name.startswith("<"))


def _die_with_parent() -> None:
    """Ask Linux to end this process when its parent is gone; elsewhere a write to the parent fails soon."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the code called sys.exit({error.code!r})"
    return str(error) or repr(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
