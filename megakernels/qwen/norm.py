"""RMS norm of the residual stream into the rows that matrices multiply."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from megakernels.common.gemv import LANES
from megakernels.qwen.plan import ROWS
from megakernels.qwen.refs import Core


def squares_of(core: Core) -> jax.Array:
    """Sum of squares of the residual stream, `[8, 128]` partial sums along lanes."""
    residual = core.vmem.residual
    return sum_squares([residual[:, first : first + 512] for first in range(0, residual.shape[1], 512)])


def sum_squares(pieces: list[jax.Array]) -> jax.Array:
    """Squares of arrays `[rows, n * 128]` added up to `[rows, 128]`."""
    total = jnp.zeros((pieces[0].shape[0], LANES), jnp.float32)
    for piece in pieces:
        for first in range(0, piece.shape[1], LANES):
            part = piece[:, first : first + LANES]
            total = total + part * part
    return total


def norm(
    core: Core, weight: str, slot: Any, squares: jax.Array, put: Callable[..., None] | None = None
) -> None:
    """`normed` = RMS norm of the residual stream, given the partial sums of its squares.

    Args:
        core: The core's view.
        weight: Name of the norm's weight among the constants.
        slot: Where the layer's constants are.
        squares: `[8, 128]` float32.
        put: Writes rows into `normed`; `put_rows` unless given.
    """
    put = put or put_rows
    c, v = core.plan.config, core.vmem
    first, _ = core.plan.constants[weight]
    scale = lax.rsqrt(jnp.sum(squares, axis=-1, keepdims=True) * (1.0 / c.hidden) + c.norm_eps)
    for start in range(0, c.hidden, 512):
        columns = slice(start, start + 512)
        weights = v.constants[slot, :, first + start : first + start + 512]
        put(core, v.normed, start, (v.residual[:, columns] * scale * weights).astype(jnp.bfloat16))


def put_rows(core: Core, packed: Any, first: int, rows: jax.Array) -> None:
    """Write rows `[8, n]` at column `first` as matrices multiply them.

    With fp8, even blocks of 128 columns go to the upper half and odd ones to the lower (see common/gemv.py);
    the other halves stay zero from the start of the step.
    """
    if not core.plan.fp8:
        packed[:, first : first + rows.shape[1]] = rows
        return
    for start in range(first, first + rows.shape[1], LANES):
        half = slice(ROWS, None) if start // LANES % 2 else slice(ROWS)
        packed[half, start : start + LANES] = rows[:, start - first : start - first + LANES]


def put_plain_rows(core: Core, packed: Any, first: int, rows: jax.Array) -> None:
    """Write rows `[8, n]` at column `first` as bfloat16 matrices multiply them."""
    del core
    packed[:ROWS, first : first + rows.shape[1]] = rows
