"""The routed experts in Pallas against decoded experts: groups, slices of the width, rows, slots."""

import numpy as np
import pytest

from megakernels.k3.config import KIMI_K3, SMALL
from megakernels.k3.counts import Counts
from megakernels.k3.experts import ExpertPlan

MODES = [{"dma": "on_wait"}, {"dma": "eager", "detect_races": True}]
# Products are exact; activations may round to the other neighbour in bfloat16.
TOLERANCE = 1e-3


def close(run: dict) -> None:
    assert run["error"] < TOLERANCE
    assert run["dead"] == 0


@pytest.mark.parametrize("mode", MODES, ids=["on_wait", "eager"])
@pytest.mark.parametrize(
    "sizes",
    [{"rows": 1, "layers": 2}, {"rows": 3, "groups": 2, "width_ranks": 2, "slots": 1}],
    ids=str,
)
def test_sums_equal_the_decoded_experts(simulated, sizes: dict, mode: dict) -> None:
    close(simulated("k3:experts", sizes=sizes, **mode).clean())


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"groups": 4, "width_ranks": 2}, {"groups": 2, "width_ranks": 4}], ids=str)
def test_more_ranks(simulated, sizes: dict) -> None:
    close(simulated("k3:experts", sizes={"rows": 8, "layers": 3, **sizes}).clean())


def test_a_group_that_nobody_visits(simulated) -> None:
    close(simulated("k3:experts", sizes={"rows": 3, "groups": 4}, lone=True).clean())


def test_hooks_change_no_number(simulated) -> None:
    sizes = {"rows": 1, "layers": 2}
    runs = [simulated("k3:experts", sizes=sizes, level=level).clean() for level in ("off", "regions")]
    np.testing.assert_array_equal(runs[0]["values"], runs[1]["values"])


def test_the_real_model_on_32_ranks() -> None:
    plan = ExpertPlan(KIMI_K3, layers=92, groups=8, width_ranks=4)
    assert (plan.experts, plan.width, plan.lanes) == (112, 768, 896)
    # Packed for the kernel an expert takes what it takes in the checkpoint, and 2 % of padded scales.
    published = Counts(KIMI_K3).parts["expert"].stored_bytes / 4
    assert published < plan.expert_bytes < 1.02 * published


@pytest.mark.parametrize(
    ("sizes", "fault"), [({"groups": 5}, "5 groups"), ({"width_ranks": 2}, "256"), ({"rows": 9}, "rows")]
)
def test_sizes_that_do_not_split_are_refused(sizes: dict, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        ExpertPlan(SMALL, **sizes)
