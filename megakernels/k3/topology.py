"""How a number of cores is a slice: hosts, their members, and who shares an expert."""

from typing import Any

from megakernels.k3 import fp4
from megakernels.k3.config import K3Config
from megakernels.k3.step_plan import StepPlan

HOST_CORES = 8  # 4 chips of two TensorCores
WIDTH_RANKS = 4  # in the published split of the experts


def step_plan(
    config: K3Config,
    cores: int,
    *,
    hosts: int | None = None,
    width_ranks: int | None = None,
    **sizes: Any,
) -> StepPlan:
    """The plan of a step on `cores` cores.

    Args:
        config: The model.
        cores: TensorCores of the slice.
        hosts: Hosts they are on; 8 on each when not given.
        width_ranks: Ranks that share an expert by width; when not given 4, or fewer where the width of an
            expert does not split so.
        sizes: Other fields of the plan.

    Raises:
        ValueError: The cores do not come so, or the model does not split.
    """
    hosts = max(1, cores // HOST_CORES) if hosts is None else hosts
    if hosts < 1 or cores % hosts:
        raise ValueError(f"{cores} cores are not on {hosts} hosts alike")
    if width_ranks is None:
        fit = [w for w in (WIDTH_RANKS, 2) if cores % w == 0 and config.expert_width % (fp4.BLOCK * w) == 0]
        width_ranks = fit[0] if fit else 1
    return StepPlan(config, hosts=hosts, members=cores // hosts, width_ranks=width_ranks, **sizes)
