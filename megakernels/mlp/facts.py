"""What an analyzer may expect of a compiled MLP step, counted from the configuration."""

import math
from typing import Any

import jax
from jax.experimental.pallas import tpu as pltpu

from megakernels.mlp.config import F32_BYTES, MlpConfig
from megakernels.mlp.kernel import AXIS, PHASES, Operands, staging


def facts(config: MlpConfig, level: str) -> dict[str, Any]:
    """JSON values. Counts and bytes are per core and step."""
    c = config
    return {
        "model": "mlp",
        "batch": c.batch,
        "layers": c.layers,
        "hidden": c.hidden,
        "ffn": c.ffn,
        "cores": c.cores,
        "mesh_axes": {AXIS: c.cores},
        "level": level,
        "phases": list(PHASES),
        "ring_depth": c.ring_depth,
        "prefetch_distance": c.distance,
        "tile_bytes": c.tile_bytes,
        "tiles_per_layer": c.tiles_per_layer,
        "tiles": c.tiles,
        "operands": _operands(c),
        "loops": _loops(c),
        "vmem": _vmem(c),
        "sent_bytes": 2 * c.layers * (c.cores - 1) * c.batch * c.columns_per_core * F32_BYTES,
    }


def _operands(config: MlpConfig) -> list[dict[str, Any]]:
    """Every array in HBM with the bytes a step reads from it and writes to it."""
    c = config
    matrix = c.layers * c.tiles_per_matrix * c.tile_bytes
    rows = c.batch * c.hidden * F32_BYTES
    read = Operands(
        x=rows, norm=c.layers * c.hidden * F32_BYTES, w_gate=matrix, w_up=matrix, w_down=matrix, out=0
    )
    return [
        {
            "index": index,
            "name": name,
            "kind": "output" if name == "out" else "input",
            "read_bytes": read_bytes,
            "written_bytes": rows if name == "out" else 0,
        }
        for index, (name, read_bytes) in enumerate(read._asdict().items())
    ]


def _loops(config: MlpConfig) -> list[dict[str, Any]]:
    """Every loop of the kernel in program order, with how often its body runs in a step."""
    c = config
    return [
        {"name": "first requests", "iterations": c.distance},
        {"name": "layers", "iterations": c.layers},
        {"name": "gate_up blocks", "iterations": c.layers * c.ffn_blocks},
        {"name": "gate_up packs", "iterations": c.layers * c.ffn_blocks * c.hidden_packs},
        {"name": "down packs", "iterations": c.layers * c.hidden_packs},
        {"name": "down blocks", "iterations": c.layers * c.hidden_packs * c.ffn_blocks},
    ]


def _vmem(config: MlpConfig) -> dict[str, int]:
    """Bytes of every VMEM buffer by its name in `Staging`."""
    buffers = jax.tree_util.tree_leaves_with_path(staging(config))
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): math.prod(buffer.shape)
        * buffer.dtype.itemsize
        for path, buffer in buffers
        if getattr(buffer, "memory_space", None) == pltpu.VMEM
    }
