"""The KDA mixers in Pallas against the reference: ranks, batches, verify blocks, both interpreter modes."""

import numpy as np
import pytest

from megakernels.k3.config import KIMI_K3, SMALL
from megakernels.k3.counts import Counts
from megakernels.k3.plan import KdaPlan

MODES = [{"dma": "on_wait"}, {"dma": "eager", "detect_races": True}]
# The kernel rounds where the reference does; between ranks its shares travel as bfloat16.
TOLERANCE = 4e-3
STATE_TOLERANCE = 1e-5


def close(run: dict) -> None:
    assert run["cores_agree"]
    assert max(run["out"]) < TOLERANCE, run["out"]
    assert max(run["recurrent"]) < STATE_TOLERANCE, run["recurrent"]
    assert max(run["conv"]) < STATE_TOLERANCE, run["conv"]


@pytest.mark.parametrize(
    ("cores", "batch", "mode"), [(1, 1, MODES[0]), (2, 2, MODES[0]), (2, 2, MODES[1])], ids=str
)
def test_decode_equals_the_reference(simulated, cores: int, batch: int, mode: dict) -> None:
    sizes = {"cores": cores, "batch": batch, "layers": 3}
    close(simulated("k3:kda", sizes=sizes, steps=2, **mode).clean())


@pytest.mark.parametrize("mode", MODES, ids=["on_wait", "eager"])
def test_verify_recovers_the_state_after_any_row(simulated, mode: dict) -> None:
    sizes = {"cores": 2, "verify": True, "layers": 2}
    close(simulated("k3:kda", sizes=sizes, steps=4, accepted=(3, 8, 1, 5), **mode).clean())


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"batch": 8}, {"batch": 4}, {"verify": True}], ids=str)
@pytest.mark.parametrize("cores", [4, 8])
def test_more_ranks(simulated, cores: int, sizes: dict) -> None:
    run = simulated(
        "k3:kda", sizes={"cores": cores, "layers": 3, **sizes}, steps=6, accepted=(1, 2, 4, 6, 7, 8)
    )
    close(run.clean())


@pytest.mark.parametrize("ring_depth", [1, 40])
def test_every_depth_of_the_ring_gives_the_same(simulated, ring_depth: int) -> None:
    close(simulated("k3:kda", sizes={"cores": 1, "layers": 2, "ring_depth": ring_depth}).clean())


def test_hooks_change_no_number(simulated) -> None:
    runs = [
        simulated("k3:kda", sizes={"cores": 2, "layers": 2}, level=level).clean()
        for level in ("off", "regions")
    ]
    np.testing.assert_array_equal(runs[0]["values"], runs[1]["values"])


def test_a_wrong_tensor_is_noticed(simulated) -> None:
    for tensor in (
        "A_log",
        "dt_bias",
        "o_norm.weight",
        "b_proj.weight",
        "f_b_proj.weight",
        "q_conv1d.weight",
    ):
        run = simulated("k3:kda", sizes={"cores": 1, "layers": 1}, spoil=tensor).clean()
        assert max(run["out"]) > 3 * TOLERANCE, tensor


def test_the_real_model_on_32_ranks() -> None:
    plan = KdaPlan(KIMI_K3, layers=69, cores=32, batch=8)
    assert plan.heads == 3
    assert (plan.kda_in.tiles, plan.mixer_out.tiles) == (7, 2)
    weights = sum(m.bytes for m in plan.matrices) + 128 * 384 * 2
    # A rank reads its share, and the decay's first factor and beta's padding besides.
    whole = Counts(KIMI_K3).parts["kda"].bf16_bytes / 32
    assert whole < weights < whole + 2 * 7168 * 256


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [({"cores": 3}, "3 ranks"), ({"batch": 3}, "batch 3"), ({"verify": True, "batch": 2}, "verify")],
)
def test_sizes_that_do_not_split_are_refused(sizes: dict, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        KdaPlan(SMALL, **sizes)
