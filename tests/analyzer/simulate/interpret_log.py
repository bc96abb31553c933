"""Runs a kernel in interpret mode and prints its DMA starts, in order, as JSON. Run as a program.

    python interpret_log.py FUNCTION KERNEL_MODULE [OPTIONS_AS_JSON]

One line per core: [[source, destination, peer], ...], an end being [space, buffer, shape, start, size] in
elements.
Order is that of one core; values are real. Times mean nothing.
"""

import importlib.util
import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax.experimental.pallas import tpu as pltpu


def box(transforms, shape):
    """Start and size, per dimension of the buffer, of what a chain of indexers selects."""
    index = np.arange(int(np.prod(shape))).reshape(shape)
    for transform in transforms:
        where = tuple(
            slice(int(i.start), int(i.start) + int(i.size) * int(i.stride), int(i.stride))
            if hasattr(i, "size") and hasattr(i, "start")
            else int(i)
            for i in transform.indices
        )
        index = index[where]
    first = np.unravel_index(int(index.min()), shape)
    last = np.unravel_index(int(index.max()), shape)
    return [int(f) for f in first], [int(b) - int(a) + 1 for a, b in zip(first, last, strict=True)]


def main(function, module, options="{}"):
    spec = importlib.util.spec_from_file_location("kernels_under_test", module)
    kernels = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.getcwd())
    spec.loader.exec_module(kernels)
    log = {}
    original = interpreter.dma_start
    names = interpreter.TPU_MEMORY_SPACE_NAMES

    def dma_start(token, device, core, *rest, **named):
        source_space, source, source_at, target_space, target, target_at, _, _, peer, *_ = rest
        memory = interpreter._get_shared_memory().mem
        ends = []
        for space, buffer, at, owner in (
            (source_space, source, source_at, device),
            (target_space, target, target_at, device if peer is None else peer),
        ):
            label = names[int(space)]
            key = (label, int(buffer), int(owner), 0)
            shape = memory[key].content.shape if key in memory else None
            start, size = box(jax.tree.map(int, at), shape)
            ends.append([label, int(buffer), list(shape), start, size])
        log.setdefault(int(device), []).append([*ends, None if peer is None else int(peer)])
        return original(token, device, core, *rest, **named)

    interpreter.dma_start = dma_start
    build = getattr(kernels, function)(interpret=pltpu.InterpretParams(), **json.loads(options))
    mesh = build.mesh(jax.devices())
    rng = np.random.default_rng(0)
    arguments = [
        rng.standard_normal(a.shape).astype(a.dtype) if a.dtype != np.int32 else np.ones(a.shape, np.int32)
        for a in build.arguments
    ]
    jax.block_until_ready(jax.jit(build.global_function(mesh))(*arguments))
    for device in sorted(log):
        print(json.dumps([device, log[device]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
