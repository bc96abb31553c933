"""The scalars that walk the stream of tiles, against the order written out in plain Python."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax import lax

from megakernels.common.ring import Ring
from megakernels.mlp.stream import DOWN, GATE, UP, beginning, past_request, past_use


def order(layers: int, tiles: int) -> list[tuple[int, int]]:
    """Matrix and tile number of every request of a step."""
    requests = []
    for layer in range(layers):
        numbers = range(layer * tiles, (layer + 1) * tiles)
        requests += [(matrix, number) for number in numbers for matrix in (GATE, UP)]
        requests += [(DOWN, number) for number in numbers]
    return requests


@pytest.mark.parametrize(("layers", "tiles", "depth"), [(1, 1, 1), (3, 1, 2), (3, 4, 5), (2, 28, 12)])
def test_requests_follow_the_order_and_the_banks_go_round(layers: int, tiles: int, depth: int) -> None:
    ring = Ring(SimpleNamespace(banks=np.zeros((depth, 1))))  # only the number of banks is asked for
    wanted = order(layers, tiles)

    def step(stream, _):
        following = past_use(past_request(stream, ring, tiles), ring)
        return following, (stream.matrix, stream.tile, stream.fill_bank, stream.use_bank)

    end, (matrix, tile, fill_bank, use_bank) = jax.jit(
        lambda: lax.scan(step, beginning(tiles), length=len(wanted))
    )()
    assert list(zip(matrix.tolist(), tile.tolist(), strict=True)) == wanted
    np.testing.assert_array_equal(fill_bank, np.arange(len(wanted)) % depth)
    np.testing.assert_array_equal(use_bank, np.arange(len(wanted)) % depth)
    assert int(end.tile) == layers * tiles  # the number by which the kernel knows that no tile is left
