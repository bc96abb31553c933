"""The parts of a K3 layer at the sizes of the small model on 8 cores: stacks of mixers, and of experts."""

import dataclasses

import numpy as np

from megakernels.k3.config import SMALL
from megakernels.k3.experts import ExpertPlan
from megakernels.k3.experts_build import build_experts, routing_rows
from megakernels.k3.mixer_build import build_kda, build_mla
from megakernels.k3.mla_plan import MlaPlan
from megakernels.k3.plan import KdaPlan
from megakernels.k3.routing import uniform
from megakernels.k3.scenario import experts_scenario

LAYERS, CORES = 3, 8
# Experts need 256 columns per rank; the rest is the small model.
EXPERTS = ExpertPlan(
    dataclasses.replace(SMALL, latent=512, expert_width=512), layers=LAYERS, groups=4, width_ranks=2, rows=2
)


def kda(*, level="regions"):
    return build_kda(KdaPlan(SMALL, layers=LAYERS, cores=CORES), level=level)


def mla(*, level="regions"):
    return build_mla(MlaPlan(SMALL, layers=LAYERS, cores=CORES), level=level)


def experts(*, level="regions"):
    return build_experts(EXPERTS, level=level)


def routing():
    """Which experts two rows visit: other ones in each layer, and not equally many for each group."""
    return uniform(EXPERTS.config, EXPERTS.rows, seed=7)


def scenario():
    """The scenario file of `routing`."""
    return experts_scenario(EXPERTS, routing())


def _experts_arguments():
    """Zeros for weights and rows: only the routing decides what runs."""
    chosen = routing().chosen[: EXPERTS.layers]
    shapes = build_experts(EXPERTS).arguments
    weights = routing_rows(EXPERTS, chosen, np.full(chosen.shape, 0.25, np.float32))
    return weights, *(np.zeros(s.shape, s.dtype) for s in shapes[1:])


def recorded_experts(*, interpret):
    return build_experts(EXPERTS, level="off", interpret=interpret)


# What record_run.py runs a kernel on.
ARGUMENTS = {"recorded_experts": _experts_arguments}
