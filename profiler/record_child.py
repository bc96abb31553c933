"""The process that compiles a kernel, runs it and records it. Imports JAX.

What runs is the compiled object whose dump lies in the capture: no second compile can come between them. It
talks to its parent as profiler/child.py does.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiler.child import Reporter, compile_on, serve
from profiler.device_layer import DeviceLayer, load_layer


def main(request_path: str, descriptor: str) -> int:
    """Record what the request names; the exit code is 0 where the parent got a result."""
    return serve(request_path, descriptor, record)


def record(request: Mapping[str, Any], report: Reporter) -> dict[str, Any]:
    """Compile, run untraced, run traced; with `dry_run` stop before the first run."""
    layer = None if request["dry_run"] else load_layer(request.get("device_layer"), request)

    def devices(topology: str) -> list[Any]:
        if layer is not None:
            return layer.devices()
        from jax.experimental import topologies

        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)

    result, compiled, arguments = compile_on(request, report, devices)
    result["executed"] = layer is not None
    if layer is not None:
        result["device_facts"] = layer.facts()
        result |= _run(request, report, layer, compiled, arguments, facts=result["facts"])
    return result


def _run(
    request: Mapping[str, Any],
    report: Reporter,
    layer: DeviceLayer,
    compiled: Any,
    arguments: tuple[Any, ...],
    *,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    report.enter("warm up")
    arrays = layer.put(arguments, sample_values(facts))
    for _ in range(request["warmup"]):
        layer.run(compiled, arrays)
    report.enter("measure")
    untraced = _timed(request["steps"], lambda _: layer.run(compiled, arrays))
    times: dict[str, Any] = {"step_seconds_untraced": untraced, "step_seconds_traced": None}
    if request["traced"]:
        report.enter("record")

        def step(number: int) -> None:
            with layer.step(number):
                layer.run(compiled, arrays)

        with layer.trace(Path(request["xplane"]), request["profiler_options"]):
            times["step_seconds_traced"] = _timed(request["steps"], step)
    if request.get("driver"):
        times["outcome"] = layer.outcome()  # type: ignore[attr-defined]
    return times


def sample_values(facts: Mapping[str, Any]) -> dict[int, list[int]]:
    """By argument: the whole numbers a kernel's facts want in its inputs for a typical step."""
    given = facts.get("sample_inputs") or {}
    inputs = [o for o in facts.get("operands") or [] if o["kind"] == "input"]
    # Where the function takes other arguments than the kernel has operands, the facts name them.
    named = facts.get("arguments")
    places = {o["name"]: o["index"] for o in inputs} if named is None else {n: i for i, n in enumerate(named)}
    return {places[name]: list(values) for name, values in given.items() if name in places}


def _timed(steps: int, run: Any) -> list[float]:
    """Seconds of each step by the host's clock: device time and dispatch."""
    seconds = []
    for number in range(steps):
        began = time.perf_counter()
        run(number)
        seconds.append(time.perf_counter() - began)
    return seconds
