"""Records a kernel in interpret mode and writes the scenario. Run as a program.

    python record_run.py FUNCTION KERNEL_MODULE SCENARIO_FILE

FUNCTION(interpret=...) gives the build; ARGUMENTS of the module, if there is one, the arrays by that name.
"""

import importlib.util
import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding


def main(function, module, out):
    spec = importlib.util.spec_from_file_location("kernels_under_test", module)
    kernels = importlib.util.module_from_spec(spec)
    sys.path[:0] = [os.getcwd(), str(Path(module).parent)]
    spec.loader.exec_module(kernels)
    from megakernels.recording import recording, save

    build = getattr(kernels, function)(interpret=pltpu.InterpretParams())
    arguments = kernels.ARGUMENTS[function]()
    mesh = build.mesh(jax.devices())
    placed = [
        jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(arguments, build.in_specs, strict=True)
    ]
    with recording(build, arguments) as seen:
        jax.block_until_ready(jax.jit(build.global_function(mesh))(*placed))
    save(seen.scenario(f"{function}, recorded"), Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
