"""Stacks of Kimi K3's layers on 32 cores, a few layers each: `megascope compile k3_stacks.py:kda`."""

from megakernels.k3.config import KIMI_K3
from megakernels.k3.experts import ExpertPlan
from megakernels.k3.experts_build import build_experts
from megakernels.k3.mixer_build import build_kda, build_mla
from megakernels.k3.mla_plan import MlaPlan
from megakernels.k3.plan import KdaPlan

LAYERS = 6


def kda(level="regions", layers=LAYERS, ring_depth=4):
    """KDA mixers, batch 1."""
    return build_kda(KdaPlan(KIMI_K3, cores=32, layers=layers, ring_depth=ring_depth), level=level)


def mla(level="regions"):
    """MLA mixers, batch 1."""
    return build_mla(MlaPlan(KIMI_K3, cores=32, layers=LAYERS), level=level)


def experts(level="regions"):
    """Routed experts, batch 1."""
    return build_experts(ExpertPlan(KIMI_K3, layers=LAYERS, groups=8, width_ranks=4), level=level)
