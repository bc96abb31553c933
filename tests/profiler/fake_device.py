"""Stands in for TPUs where the hardware call itself is.

Compiles are real, a run does nothing, the profiler writes the simulated step of the real dump as its trace.
"""

import contextlib
import time
from pathlib import Path

from jax.experimental import topologies


class FakeLayer:
    """A slice that is not there."""

    def __init__(self, request):
        self._request = request
        self.runs = 0
        self._steps: list[int] = []

    def devices(self):
        name = self._request["topology"]
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)

    def facts(self):
        return {"device_kind": self.devices()[0].device_kind, "local_devices": 1, "process": 0}

    def put(self, arguments, values):
        return arguments

    def run(self, compiled, arrays):
        assert compiled.as_text()  # the real compiled object
        assert len(arrays) == 1
        self.runs += 1
        time.sleep(0.001)

    @contextlib.contextmanager
    def step(self, number):
        self._steps.append(number)
        yield

    @contextlib.contextmanager
    def trace(self, folder, options):
        assert self.runs == self._request["warmup"] + self._request["steps"]
        yield
        assert self._steps == list(range(self._request["steps"]))
        from analyzer.analysis import analyze
        from analyzer.capture import open_capture
        from analyzer.export_xplane import export_xplane

        analysis = analyze(open_capture(Path(self._request["dump"]), chip="v6e"), chip="v6e", use_cache=False)
        run = Path(folder) / "plugins/profile/2026_01_01_00_00_00"
        run.mkdir(parents=True)
        (run / "vm.xplane.pb").write_bytes(export_xplane(analysis.timeline, analysis.report))


def layer(request):
    return FakeLayer(request)


def layer_without_a_trace(request):
    fake = FakeLayer(request)
    fake.trace = lambda folder, options: contextlib.nullcontext()
    return fake


def layer_that_fails(request):
    fake = FakeLayer(request)

    def run(compiled, arrays):
        raise RuntimeError("INTERNAL: the core halted unexpectedly")

    fake.run = run
    return fake
