"""Norm and tile products in a kernel against their plain forms."""

import numpy as np
import pytest


@pytest.mark.parametrize(("packs", "pack", "batch"), [(1, 1, 8), (2, 3, 8), (2, 2, 16)])
def test_norm_by_blocks_is_rms_norm_rounded_once(simulated, packs, pack, batch) -> None:
    run = simulated("common:norm", packs=packs, pack=pack, batch=batch, block=128).clean()
    np.testing.assert_allclose(run["got"], run["want"], rtol=2**-8)  # half a unit in the last place of bf16


@pytest.mark.parametrize("pack", [1, 4])
def test_tile_products_are_products_of_the_whole_matrix(simulated, pack) -> None:
    run = simulated("common:matmul", pack=pack, batch=8, block=128).clean()
    np.testing.assert_allclose(run["down"], run["want_down"], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(run["across"], run["want_across"], rtol=1e-5, atol=1e-4)
