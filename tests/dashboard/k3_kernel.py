"""A stack of K3's attention mixers at their real size over the 32 cores of 16 chips, to compile."""

from megakernels.k3.config import KIMI_K3
from megakernels.k3.mixer_build import build_mla
from megakernels.k3.mla_plan import MlaPlan


def build(*, level="regions", layers: int = 6):
    """The kernel with `layers` layers."""
    return build_mla(MlaPlan(KIMI_K3, layers=layers, cores=32), level=level)
