"""The layer that stands for the hardware, on a CPU: every call of it but the TPU itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
CODE = """
import json, sys
from pathlib import Path
import jax, jax.numpy as jnp
from profiler.device_layer import TpuLayer
layer = TpuLayer()
Shape = jax.ShapeDtypeStruct
arguments = (
    Shape((8, 128), jnp.bfloat16),
    {"i": Shape((4,), jnp.int32), "q": Shape((4, 4), jnp.float8_e4m3fn)},
)
arrays = layer.put(arguments, {1: [7, 0, 3, 9]})
try:
    layer.put(arguments, {1: [7]})
    short = ""
except ValueError as error:
    short = str(error)
compiled = jax.jit(lambda x, rest: x * 2).lower(*arguments).compile()
with layer.trace(Path(sys.argv[1]), {"tpu_trace_mode": "TRACE_COMPUTE_AND_SYNC"}):
    for number in range(2):
        with layer.step(number):
            layer.run(compiled, arrays)
try:
    layer.devices()
    refused = ""
except RuntimeError as error:
    refused = str(error)
largest = lambda x: float(abs(x.astype(jnp.float32)).max())
leaves = [[list(x.shape), str(x.dtype), largest(x)] for x in jax.tree.leaves(arrays)]
print("RESULT" + json.dumps({"leaves": leaves, "refused": refused, "short": short, "facts": layer.facts()}))
"""


def test_put_run_trace(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    line = next(text for text in done.stdout.splitlines() if text.startswith("RESULT"))
    found = json.loads(line.removeprefix("RESULT"))
    floats, indices, small = found["leaves"]
    assert floats[:2] == [[8, 128], "bfloat16"]
    assert 0 < floats[2] < 1
    assert indices == [[4], "int32", 9.0]
    assert "1 values for argument 1, (4,)" in found["short"]
    assert small[1] == "float8_e4m3fn"
    assert "tpu" in found["refused"]
    assert found["facts"]["processes"] == 1
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 1
