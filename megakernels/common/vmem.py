"""How much VMEM a kernel's scratch takes."""

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu


def scratch_bytes(scratch: Any) -> dict[str, int]:
    """Bytes of every VMEM array of a scratch NamedTuple, as the hardware tiles them: name -> bytes.

    Nested tuples give names with a dot; fields that are None are left out.
    """
    return {name: _tiled_bytes(ref) for name, ref in _arrays(scratch) if ref.memory_space == pltpu.VMEM}


def _arrays(scratch: Any) -> Iterator[tuple[str, Any]]:
    for name, value in scratch._asdict().items():
        if value is None:
            continue
        if hasattr(value, "_asdict"):
            yield from ((f"{name}.{below}", ref) for below, ref in _arrays(value))
        elif hasattr(value, "memory_space"):
            yield name, value


def _tiled_bytes(ref: Any) -> int:
    """Size with the last two axes padded to memory tiles; few rows take a tile of as many (1, 2, 4, 8)."""
    *outer, rows, lanes = ref.shape
    size = jnp.dtype(ref.dtype).itemsize
    packed = 4 // size
    tile = min(8 * packed, max(packed, 1 << (rows - 1).bit_length()))
    padded = -(-rows // tile) * tile * (-(-lanes // 128) * 128)
    return math.prod(outer) * padded * size
