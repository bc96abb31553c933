"""The MLA mixers in Pallas against the reference: ranks, batches, verify blocks, places in the cache."""

import numpy as np
import pytest

from megakernels.k3.config import KIMI_K3, SMALL
from megakernels.k3.mla_plan import MlaPlan

MODES = [{"dma": "on_wait"}, {"dma": "eager", "detect_races": True}]
# Softmax weights are rounded before they are normalized, the reference's after; shares travel as bfloat16.
TOLERANCE = 8e-3
CACHE = {"capacity": 128, "cache_tile": 32}


def close(run: dict) -> None:
    assert run["cores_agree"]
    assert max(run["out"]) < TOLERANCE, run["out"]
    assert max(run["cache"]) < 1e-3, run["cache"]


@pytest.mark.parametrize(
    ("cores", "batch", "first", "mode"),
    [(1, 1, 0, MODES[0]), (2, 2, 75, MODES[0]), (2, 2, 75, MODES[1])],
    ids=str,
)
def test_decode_equals_the_reference(simulated, cores: int, batch: int, first: int, mode: dict) -> None:
    sizes = {"cores": cores, "batch": batch, "layers": 3, **CACHE}
    close(simulated("k3:mla", sizes=sizes, first_position=first, steps=2, **mode).clean())


@pytest.mark.parametrize("mode", MODES, ids=["on_wait", "eager"])
def test_verify_writes_over_rejected_rows(simulated, mode: dict) -> None:
    sizes = {"cores": 2, "verify": True, "layers": 2, **CACHE}
    close(simulated("k3:mla", sizes=sizes, first_position=42, steps=3, **mode).clean())


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"batch": 8}, {"batch": 4}, {"verify": True}], ids=str)
@pytest.mark.parametrize("cores", [4, 8])
def test_more_ranks(simulated, cores: int, sizes: dict) -> None:
    sizes = {"cores": cores, "layers": 3, **CACHE, **sizes}
    close(simulated("k3:mla", sizes=sizes, first_position=29, steps=6).clean())


@pytest.mark.parametrize("first", [15, 16, 47, 127])
def test_every_place_of_the_window(simulated, first: int) -> None:
    sizes = {"cores": 1, "layers": 1, **CACHE}
    close(simulated("k3:mla", sizes=sizes, first_position=first).clean())


def test_hooks_change_no_number(simulated) -> None:
    runs = [
        simulated("k3:mla", sizes={"cores": 2, "layers": 2, **CACHE}, first_position=40, level=level).clean()
        for level in ("off", "regions")
    ]
    np.testing.assert_array_equal(runs[0]["values"], runs[1]["values"])


def test_a_wrong_tensor_is_noticed(simulated) -> None:
    sizes = {"cores": 1, "layers": 1, **CACHE}
    norms = ("q_a_layernorm.weight", "kv_a_layernorm.weight")
    for tensor in (*norms, "kv_b_proj.weight", "kv_a_proj_with_mqa.weight", "g_proj.weight"):
        run = simulated("k3:mla", sizes=sizes, first_position=40, spoil=tensor).clean()
        assert max(run["out"]) > 3 * TOLERANCE, tensor


def test_the_real_model_on_32_ranks() -> None:
    plan = MlaPlan(KIMI_K3, layers=24, cores=32)
    assert (plan.heads, plan.group, plan.own_blocks) == (3, 8, 2)
    assert [m.tiles for m in plan.matrices] == [1, 2, 1, 2]
    assert plan.cache_width == 640
    # The published kernel reads the latent projections whole on every rank: 45.4 MB a layer.
    assert sum(plan.bytes_per_rank().values()) / 24 < 20e6


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [({"cores": 3}, "3 ranks"), ({"cache_tile": 40}, "cache_tile"), ({"batch": 2, "verify": True}, "verify")],
)
def test_sizes_that_do_not_split_are_refused(sizes: dict, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        MlaPlan(SMALL, **sizes)
