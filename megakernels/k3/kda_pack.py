"""The checkpoint's KDA tensors in the layout the kernel reads."""

from collections.abc import Mapping

import numpy as np

from megakernels.common.gemv import LANES, stack_tiles
from megakernels.k3.config import BF16_BYTES
from megakernels.k3.kda_state import split_channels
from megakernels.k3.plan import KdaPlan, Matrix

type Tensors = Mapping[str, np.ndarray]


def heads_of(array: np.ndarray, cores: int, core: int) -> np.ndarray:
    """A core's share of the first axis."""
    return np.split(array, cores)[core]


def cut(matrix: Matrix, values: np.ndarray) -> np.ndarray:
    """`[k, n]` as tiles `[tiles, rows, 128]`, of the values' type but for use as bfloat16."""
    return stack_tiles(values, matrix.n, matrix.columns, BF16_BYTES)


def pack_in(plan: KdaPlan, p: Tensors, core: int) -> np.ndarray:
    """Tiles of q | k | v | gate | f_a | b, b padded with zero columns."""
    wide = [heads_of(p[f"{name}_proj.weight"], plan.cores, core) for name in "qkvg"]
    beta = heads_of(p["b_proj.weight"], plan.cores, core)
    padding = np.zeros((LANES - beta.shape[0], beta.shape[1]), beta.dtype)
    return cut(plan.kda_in, np.concatenate([*wide, p["f_a_proj.weight"], beta, padding]).T)


def pack_out(plan: KdaPlan, p: Tensors, core: int) -> np.ndarray:
    """Tiles of the rows of o_proj that a core's heads feed."""
    return cut(plan.mixer_out, heads_of(p["o_proj.weight"].T, plan.cores, core))


def pack_constants(plan: KdaPlan, p: Tensors, core: int) -> np.ndarray:
    """A layer's constants row `[1, width]`."""
    c = plan.config
    taps = np.concatenate([p[f"{name}_conv1d.weight"][:, 0] for name in "qkv"]).T
    values = {f"tap{t}": tap for t, tap in enumerate(split_channels(c, plan.cores, taps)[core])}
    rate = np.repeat(np.exp(p["A_log"][: c.heads].astype(np.float64)), c.head_dim)
    values["rate"] = heads_of(rate, plan.cores, core)
    values["dt_bias"] = heads_of(p["dt_bias"], plan.cores, core)
    values["out_norm"] = p["o_norm.weight"]
    row = np.zeros((1, plan.constants_width), np.float32)
    for name, (first, width) in plan.constants.items():
        row[0, first : first + width] = values[name]
    return row


def pack_decay_out(plan: KdaPlan, p: Tensors, core: int) -> np.ndarray:
    """f_b of a core's heads, `[128, heads * 128]`."""
    return np.ascontiguousarray(heads_of(p["f_b_proj.weight"], plan.cores, core).T)


def pack_layers(plan: KdaPlan, layers: list[Tensors]) -> dict[str, np.ndarray]:
    """The weight operands by name, float32, leading axes core and layer.

    Args:
        plan: The sizes.
        layers: Per layer the tensors of `self_attn`, names relative to it, shapes as in the checkpoint.
    """
    packers = {
        "constants": pack_constants,
        "decay_out": pack_decay_out,
        "kda_in": pack_in,
        "mixer_out": pack_out,
    }
    return {
        name: np.stack([np.stack([packer(plan, p, core) for p in layers]) for core in range(plan.cores)])
        for name, packer in packers.items()
    }
