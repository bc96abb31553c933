"""The few calls of a recording that need the hardware. Imports JAX.

Everything else of `megascope record` is the same with and without a TPU: tests put another layer in this
place and nowhere else.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class DeviceLayer(Protocol):
    """What a recording asks of the hardware."""

    def devices(self) -> list[Any]:
        """The devices to run on, of all processes."""

    def facts(self) -> dict[str, Any]:
        """What the devices say of themselves."""

    def put(self, arguments: tuple[Any, ...], values: Mapping[int, Sequence[int]]) -> tuple[Any, ...]:
        """Arrays for shapes with shardings, on the devices; values: what whole numbers to put in some."""

    def run(self, compiled: Any, arrays: tuple[Any, ...]) -> None:
        """One step; returns when it is complete."""

    def trace(self, folder: Path, options: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        """Record what happens inside the block into a log folder."""

    def step(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Mark what happens inside the block as step `number` of the trace."""


class TpuLayer:
    """The TPUs of this machine, or of a slice of several.

    Args:
        distributed: `coordinator`, `processes`, `process`, where several processes record together.
    """

    def __init__(self, distributed: Mapping[str, Any] | None = None) -> None:
        import jax

        self._jax = jax
        if distributed:
            jax.distributed.initialize(
                distributed["coordinator"], distributed["processes"], distributed["process"]
            )

    def devices(self) -> list[Any]:
        """Every TPU core of the slice.

        Raises:
            RuntimeError: JAX finds no TPU.
        """
        return list(self._jax.devices("tpu"))

    def facts(self) -> dict[str, Any]:
        """Kind, count and memory of the devices, and the runtime's version."""
        local = self._jax.local_devices()
        memory = local[0].memory_stats() or {}
        return {
            "device_kind": local[0].device_kind,
            "local_devices": len(local),
            "processes": self._jax.process_count(),
            "process": self._jax.process_index(),
            "coordinates": [list(getattr(d, "coords", ())) for d in local],
            "hbm_bytes": memory.get("bytes_limit"),
            "platform_version": local[0].client.platform_version,
        }

    def put(self, arguments: tuple[Any, ...], values: Mapping[int, Sequence[int]]) -> tuple[Any, ...]:
        """Small random numbers for floats; for whole numbers, which may be indices, `values` or zeros.

        Raises:
            ValueError: Values are not as many as their argument has elements.
        """
        jax = self._jax
        import jax.numpy as jnp

        def make(index: int, leaf: Any) -> Any:
            given = values.get(index)
            if given is not None and len(given) != leaf.size:
                raise ValueError(
                    f"the kernel's facts give {len(given)} values for argument {index}, {leaf.shape}"
                )

            def fill() -> Any:
                if given is not None:
                    return jnp.asarray(given, leaf.dtype).reshape(leaf.shape)
                if jnp.issubdtype(leaf.dtype, jnp.floating):
                    noise = jax.random.normal(jax.random.key(index), leaf.shape, jnp.float32)
                    return (0.02 * noise).astype(leaf.dtype)
                return jnp.zeros(leaf.shape, leaf.dtype)

            return jax.jit(fill, out_shardings=leaf.sharding)()

        leaves, tree = jax.tree.flatten(arguments)
        arrays = [make(index, leaf) for index, leaf in enumerate(leaves)]
        return tuple(jax.block_until_ready(tree.unflatten(arrays)))

    def run(self, compiled: Any, arrays: tuple[Any, ...]) -> None:
        """One step; returns when it is complete."""
        self._jax.block_until_ready(compiled(*arrays))

    @contextlib.contextmanager
    def trace(self, folder: Path, options: Mapping[str, Any]) -> Iterator[None]:
        """JAX's profiler with the options given."""
        asked = self._jax.profiler.ProfileOptions()
        asked.python_tracer_level = 0
        if options:
            asked.advanced_configuration = dict(options)
        self._jax.profiler.start_trace(folder, profiler_options=asked)
        try:
            yield
        finally:
            self._jax.profiler.stop_trace()

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """A step annotation: xprof's step view and our `Steps` line come from it."""
        with self._jax.profiler.StepTraceAnnotation("step", step_num=number):
            yield


def load_layer(place: str | None, request: Mapping[str, Any]) -> DeviceLayer:
    """The TPUs, or what `file.py:function` makes of the request (tests).

    A request may name a driver, `module:function`: a layer on the TPUs that brings its own operands and goes
    on from step to step.
    """
    import importlib
    import importlib.util

    if place is None and request.get("driver"):
        module, _, function = request["driver"].partition(":")
        driver: DeviceLayer = getattr(importlib.import_module(module), function)(request)
        return driver
    if place is None:
        return TpuLayer(request.get("distributed"))

    path, _, function = place.rpartition(":")
    spec = importlib.util.spec_from_file_location("megascope_device_layer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    layer: DeviceLayer = getattr(module, function)(request)
    return layer
