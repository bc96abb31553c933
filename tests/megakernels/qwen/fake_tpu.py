"""Stands in for the TPUs of a recorded generation: compiles are real, a step chooses the next token."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from megakernels.qwen.recording import SCALARS, STATES, DecodeLayer
from megakernels.qwen.refs import operand_names


class FakeDecode(DecodeLayer):
    """`DecodeLayer` but for the hardware."""

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(request)
        self._request = request

    def devices(self) -> list[Any]:
        from jax.experimental import topologies

        name = self._request["topology"]
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)

    def facts(self) -> dict[str, Any]:
        return {"device_kind": self.devices()[0].device_kind, "local_devices": 8, "process": 0}

    def weights_on(self, mesh: Any) -> list[Any]:
        assert mesh.size == self._plan.cores
        return list(operand_names(self._plan)[SCALARS:])

    def empty(self, shape: Any) -> Any:
        return np.zeros((), shape.dtype)

    def execute(self, compiled: Any, arrays: tuple[Any, ...]) -> Any:
        assert compiled.as_text()  # the real compiled object
        token, position, accepted, *weights = arrays[:-STATES]
        assert weights == operand_names(self._plan)[SCALARS:]
        assert accepted[0] == 0
        # Each step goes on from the state of the one before.
        assert [float(s) for s in arrays[-STATES:]] == [float(position[0])] * STATES
        state = [s + 1 for s in arrays[-STATES:]]
        chosen = np.full((8, 128), token[0] + 1, np.int32)
        return chosen, None, *state

    @contextlib.contextmanager
    def step(self, number: int) -> Any:
        yield

    @contextlib.contextmanager
    def trace(self, folder: Path, options: Any) -> Any:
        yield
        from analyzer.analysis import analyze
        from analyzer.capture import open_capture
        from analyzer.export_xplane import export_xplane

        dump = open_capture(Path(self._request["dump"]), chip="tpu7x")
        analysis = analyze(dump, chip="tpu7x", use_cache=False)
        run = Path(folder) / "plugins/profile/2026_01_01_00_00_00"
        run.mkdir(parents=True)
        (run / "vm.xplane.pb").write_bytes(export_xplane(analysis.timeline, analysis.report))


def layer(request: dict[str, Any]) -> FakeDecode:
    """The layer of a request."""
    return FakeDecode(request)
