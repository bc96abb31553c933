"""The order in which weight tiles are used, and the scalars that walk it.

In each layer w_gate and w_up tiles come in turn, then the w_down tiles::

    gate 0, up 0, gate 1, up 1, ... gate n-1, up n-1, down 0, down 1, ... down n-1     (n tiles per matrix)

Every step is adds, compares and selects on int32 scalars: a handful of scalar slots per tile, which the
scheduler hides under the tile's matrix work. A division would not hide.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from megakernels.common.ring import Ring
from megakernels.hooks import helper_module

helper_module(__file__)

GATE, UP, DOWN = range(3)


class Stream(NamedTuple):
    """Where the kernel stands in the stream of tiles: what it uses next, and what it requests next.

    Tile numbers run through one matrix over all layers. Where a layer's w_down tiles end, the next layer's
    w_gate tiles begin, so the number goes on over a layer boundary without a reset.
    """

    use_bank: jax.Array  # bank of the next tile to use
    fill_bank: jax.Array  # bank of the next tile to request
    matrix: jax.Array  # GATE, UP or DOWN: matrix of the next tile to request
    tile: jax.Array  # number of the next tile to request
    layer_end: jax.Array  # number of the first tile of the following layer


def beginning(tiles_per_matrix: int) -> Stream:
    """Before the first tile of the first layer."""
    return Stream(*(jnp.int32(value) for value in (0, 0, GATE, 0, tiles_per_matrix)))


def past_request(stream: Stream, ring: Ring, tiles_per_matrix: int) -> Stream:
    """The stream with its next request made."""
    after_gate, after_up, after_down = stream.matrix == GATE, stream.matrix == UP, stream.matrix == DOWN
    following = stream.tile + 1
    at_end = following == stream.layer_end
    turn_to_down = after_up & at_end
    turn_to_gate = after_down & at_end
    matrix = jnp.where(after_gate, UP, jnp.where(after_up, GATE, DOWN))
    matrix = jnp.where(turn_to_down, DOWN, jnp.where(turn_to_gate, GATE, matrix))
    tile = jnp.where(after_gate, stream.tile, following)
    tile = jnp.where(turn_to_down, stream.layer_end - tiles_per_matrix, tile)
    layer_end = jnp.where(turn_to_gate, stream.layer_end + tiles_per_matrix, stream.layer_end)
    return Stream(stream.use_bank, ring.following(stream.fill_bank), matrix, tile, layer_end)


def past_use(stream: Stream, ring: Ring) -> Stream:
    """The stream with its next tile used."""
    return stream._replace(use_bank=ring.following(stream.use_bank))
