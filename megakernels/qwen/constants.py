"""The small vectors of a layer: norm weights, convolution taps, gate biases, in_proj_a and _b, scales.

They are requested one layer ahead, into the other of two slots: a copy waits for all requested before it.
"""

from typing import Any

from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from megakernels.hooks import tag
from megakernels.qwen.refs import Core


def load_constants(core: Core, index: Any) -> None:
    """Request the small vectors of layer `index`, and its w_ab if it is a GDN layer."""
    p, hbm, v = core.plan, core.hbm, core.vmem
    slot = lax.rem(index, 2)
    source = hbm.constants.at[index]
    tag(pltpu.make_async_copy(source, v.constants.at[slot], v.constants_in.at[slot]), "constants").start()
    if p.fp8:

        @pl.when(index < p.config.layers)
        def scales() -> None:
            copy = pltpu.make_async_copy(hbm.scales.at[index], v.scales.at[slot], v.constants_in.at[slot])
            tag(copy, "scales").start()

    @pl.when(has_w_ab(core, index))
    def _() -> None:
        source = hbm.w_ab.at[index - lax.div(index, p.config.attention_period)]
        tag(pltpu.make_async_copy(source, v.w_ab.at[slot], v.constants_in.at[slot]), "w_ab").start()


def await_constants(core: Core, index: Any) -> None:
    """Wait for what `load_constants` requested."""
    hbm, v = core.hbm, core.vmem
    slot = lax.rem(index, 2)
    pltpu.make_async_copy(hbm.constants.at[0], v.constants.at[slot], v.constants_in.at[slot]).wait()
    if core.plan.fp8:

        @pl.when(index < core.plan.config.layers)
        def scales() -> None:
            pltpu.make_async_copy(hbm.scales.at[0], v.scales.at[slot], v.constants_in.at[slot]).wait()

    @pl.when(has_w_ab(core, index))
    def _() -> None:
        pltpu.make_async_copy(hbm.w_ab.at[0], v.w_ab.at[slot], v.constants_in.at[slot]).wait()


def has_w_ab(core: Core, index: Any) -> Any:
    """Whether `index` (up to the number of layers, which stands for the final norm) is a GDN layer."""
    c = core.plan.config
    return (lax.rem(index, c.attention_period) != c.attention_period - 1) & (index < c.layers)
